// SPDX-License-Identifier: MIT

// What machine.hpp times, compiled once for each instruction set: a namespace HEADWAVE_BENCH_TIER, with vectors of
// HEADWAVE_BENCH_VECTOR bytes and HEADWAVE_BENCH_CHAINS of them in flight. No standard template may be used here,
// because a region's target does not reach into it.

namespace bench::HEADWAVE_BENCH_TIER {

/// A fused multiply-add takes 4 cycles. Where two start in each, 8 chains would do, and multiplying and adding apart
/// needs 12; where four start in each, as on wide AArch64 cores, 16.
inline constexpr int chains = HEADWAVE_BENCH_CHAINS;

/// Floating-point operations of one round of multiply_add.
template <class T>
inline constexpr int operations = 2 * chains * HEADWAVE_BENCH_VECTOR / static_cast<int>(sizeof(T));

/// Independent chains x = x * factor + addend that stay in registers. The result is there to be used, so that nothing
/// is left out.
template <class T>
__attribute__((noinline)) T multiply_add(T factor, T addend, int rounds) {
  typedef T vec __attribute__((vector_size(HEADWAVE_BENCH_VECTOR)));
  const vec factors = vec{} + factor, addends = vec{} + addend;
  vec chain[chains];
  HEADWAVE_BENCH_UNROLL
  for (int i = 0; i < chains; ++i) {
    chain[i] = factors + static_cast<T>(i);
  }
  for (int round = 0; round < rounds; ++round) {
    HEADWAVE_BENCH_UNROLL
    for (int i = 0; i < chains; ++i) {
      chain[i] = chain[i] * factors + addends;
    }
  }
  vec sum = {};
  HEADWAVE_BENCH_UNROLL
  for (int i = 0; i < chains; ++i) {
    sum += chain[i];
  }
  return sum[0] + sum[1];
}

/// Reads in eight places in turn, 32 KiB apart if there are so many bytes, and leaves out less than eight such parts:
/// the hardware looks ahead in each page by itself, so that a single place would be read at two thirds of the speed.
/// data is aligned to a vector.
__attribute__((noinline)) inline std::uint64_t read(const void* data, std::size_t bytes) {
  typedef std::uint64_t vec __attribute__((vector_size(HEADWAVE_BENCH_VECTOR), may_alias));
  constexpr int places = 8;
  constexpr std::size_t line = 64 / sizeof(vec), largest = 32 * 1024 / sizeof(vec);
  const std::size_t share = bytes / (places * 64) * line, part = share < largest ? share : largest;
  const vec* const source = static_cast<const vec*>(data);
  vec sum[places] = {};
  for (std::size_t block = 0; part > 0 && block + places * part <= bytes / sizeof(vec); block += places * part) {
    for (std::size_t i = block; i < block + part; i += line) {
      HEADWAVE_BENCH_UNROLL
      for (int place = 0; place < places; ++place) {
        HEADWAVE_BENCH_UNROLL
        for (std::size_t j = 0; j < line; ++j) {
          sum[place] ^= source[i + static_cast<std::size_t>(place) * part + j];
        }
      }
    }
  }
  vec total = {};
  HEADWAVE_BENCH_UNROLL
  for (int place = 0; place < places; ++place) {
    total ^= sum[place];
  }
  return total[0] ^ total[1];
}

}  // namespace bench::HEADWAVE_BENCH_TIER
