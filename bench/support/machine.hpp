// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/target.hpp>
#include <headwave/isa.hpp>
#include <headwave/tensor.hpp>

#include <benchmark/benchmark.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

/// \file
/// What the machine can do at best, measured in this process: multiply-adds of the instruction set in use, and bytes
/// moved.

namespace bench {
namespace hw = headwave;
}

#if defined(__clang__)
#define HEADWAVE_BENCH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HEADWAVE_BENCH_UNROLL _Pragma("GCC unroll 32")
#endif

// A new tier adds its region here and its case to active_probes. CHAINS fit into the registers, with two more vectors.

#define HEADWAVE_BENCH_TIER scalar
#define HEADWAVE_BENCH_VECTOR __BIGGEST_ALIGNMENT__
#define HEADWAVE_BENCH_CHAINS 12
#include "probe.inl"
#undef HEADWAVE_BENCH_TIER
#undef HEADWAVE_BENCH_VECTOR
#undef HEADWAVE_BENCH_CHAINS

#if defined(__x86_64__)
HEADWAVE_BEGIN_TARGET(HEADWAVE_AVX2_FEATURES)
#define HEADWAVE_BENCH_TIER avx2
#define HEADWAVE_BENCH_VECTOR 32
#define HEADWAVE_BENCH_CHAINS 12
#include "probe.inl"
#undef HEADWAVE_BENCH_TIER
#undef HEADWAVE_BENCH_VECTOR
#undef HEADWAVE_BENCH_CHAINS
HEADWAVE_END_TARGET

HEADWAVE_BEGIN_TARGET(HEADWAVE_AVX512_FEATURES)
#define HEADWAVE_BENCH_TIER avx512
#define HEADWAVE_BENCH_VECTOR 64
#define HEADWAVE_BENCH_CHAINS 24
#include "probe.inl"
#undef HEADWAVE_BENCH_TIER
#undef HEADWAVE_BENCH_VECTOR
#undef HEADWAVE_BENCH_CHAINS
HEADWAVE_END_TARGET
#elif defined(__aarch64__)
#define HEADWAVE_BENCH_TIER neon
#define HEADWAVE_BENCH_VECTOR 16
#define HEADWAVE_BENCH_CHAINS 24
#include "probe.inl"
#undef HEADWAVE_BENCH_TIER
#undef HEADWAVE_BENCH_VECTOR
#undef HEADWAVE_BENCH_CHAINS
#endif

#undef HEADWAVE_BENCH_UNROLL

namespace bench {

template <class T>
struct probes {
  int operations;
  T (*multiply_add)(T factor, T addend, int rounds);
  std::uint64_t (*read)(const void* data, std::size_t bytes);
};

template <class T>
probes<T> active_probes() {
  switch (hw::active_isa()) {
#if defined(__x86_64__)
    case hw::isa::avx512:
      return {avx512::operations<T>, avx512::multiply_add<T>, avx512::read};
    case hw::isa::avx2:
      return {avx2::operations<T>, avx2::multiply_add<T>, avx2::read};
#elif defined(__aarch64__)
    case hw::isa::neon:
      return {neon::operations<T>, neon::multiply_add<T>, neon::read};
#endif
    default:
      return {scalar::operations<T>, scalar::multiply_add<T>, scalar::read};
  }
}

/// amount per second, in 1e9, of the best sample. A sample is as many calls as take half a millisecond; there are at
/// least three, and more for a twentieth of a second.
template <class Call>
double best_rate(double amount, const Call& call) {
  using clock = std::chrono::steady_clock;
  const auto seconds_since = [](clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  };
  double best = 0;
  std::size_t calls = 1;
  const clock::time_point first = clock::now();
  for (int samples = 0; samples < 3 || seconds_since(first) < 0.05;) {
    const clock::time_point start = clock::now();
    for (std::size_t i = 0; i < calls; ++i) {
      call();
    }
    const double seconds = seconds_since(start);
    if (seconds < 0.5e-3) {
      calls *= 2;
      continue;
    }
    best = std::max(best, 1e-9 * amount * static_cast<double>(calls) / seconds);
    ++samples;
  }
  return best;
}

/// GFLOP/s of multiply-adds in registers, with the vectors of the instruction set in use.
template <class T>
double fma_peak() {
  constexpr int rounds = 10000;
  const probes<T> probe = active_probes<T>();
  T factor = T(0.5), addend = 1;
  return best_rate(static_cast<double>(rounds) * probe.operations, [&] {
    benchmark::DoNotOptimize(factor);
    benchmark::DoNotOptimize(probe.multiply_add(factor, addend, rounds));
  });
}

/// Bytes of a cache level, 2 or 3, or 0 where nobody says.
inline std::size_t cache_bytes([[maybe_unused]] int level) {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const long bytes = sysconf(level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
#else
  return 0;
#endif
}

/// A size that no cache holds: whoever goes through so many bytes again and again reads them from memory.
inline std::size_t cold_bytes() {
  constexpr std::size_t mebibyte = 1 << 20;
  return std::clamp(2 * cache_bytes(3), 256 * mebibyte, 512 * mebibyte);
}

/// The memory that bandwidth is measured on.
inline unsigned char* test_memory() {
  static hw::tensor<unsigned char, 1> memory({cold_bytes()});
  return memory.data();
}

/// The three below give GB/s for going again and again through so many bytes of memory, at most cold_bytes(). What is
/// copied is counted twice, as read and as written, and so are the bytes.
inline double read_bandwidth(std::size_t bytes) {
  const probes<float> probe = active_probes<float>();
  const unsigned char* const data = test_memory();
  return best_rate(static_cast<double>(bytes), [&] { benchmark::DoNotOptimize(probe.read(data, bytes)); });
}

inline double write_bandwidth(std::size_t bytes) {
  unsigned char* const data = test_memory();
  return best_rate(static_cast<double>(bytes), [&] {
    std::memset(data, 1, bytes);
    benchmark::ClobberMemory();
  });
}

inline double copy_bandwidth(std::size_t bytes) {
  unsigned char* const data = test_memory();
  return best_rate(static_cast<double>(bytes), [&] {
    std::memcpy(data, data + bytes / 2, bytes / 2);
    benchmark::ClobberMemory();
  });
}

}  // namespace bench
