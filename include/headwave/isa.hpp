// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/target.hpp>
#include <headwave/error.hpp>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/// \file
/// Which instruction set the kernels use. It is chosen once, at the first call that needs it, from what the processor
/// has and the operating system saves; nothing runs before main(). The environment variable HEADWAVE_ISA=scalar, avx2,
/// avx512 or neon chooses another one that the machine has; any other value is ignored. With HEADWAVE_STATIC_ISA there
/// is one only, and the variable is not read.

namespace headwave {

/// The tiers. On each architecture the wider ones come later.
enum class isa {
  scalar,  ///< plain C++ for the command line's target: the readable reference, on any machine
  avx2,    ///< x86-64 with AVX2 and FMA
  avx512,  ///< x86-64 with AVX-512 F, BW, VL and DQ
  neon     ///< any AArch64
};

namespace detail {

inline constexpr int isa_count = 4;

/// The tier in use, or -1 before the first question.
inline std::atomic<int> chosen_isa{-1};

/// What CPUID and XGETBV say, as far as the choice of a tier depends on it.
struct cpu_words {
  std::uint32_t leaf1_ecx = 0;  ///< CPUID.1:ECX
  std::uint32_t leaf7_ebx = 0;  ///< CPUID.(7,0):EBX
  std::uint64_t xcr0 = 0;       ///< register states that the operating system saves; 0 without OSXSAVE
};

/// Whether a tier may run, by the words alone. Source: Intel SDM volume 1, 14.3, 14.7.1 and 15.2 to 15.4: a feature bit
/// counts only if the operating system saves the registers that the feature uses. Every AArch64 has NEON.
HEADWAVE_INLINE constexpr bool supports(const cpu_words& cpu, isa tier) {
  constexpr std::uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr std::uint32_t avx2 = 1u << 5, avx512f = 1u << 16, avx512dq = 1u << 17, avx512bw = 1u << 30,
                          avx512vl = 1u << 31;
  constexpr std::uint64_t xmm_and_ymm = 0x6, opmask_and_zmm = 0xe0;
  std::uint32_t leaf1 = fma | osxsave | avx | f16c, leaf7 = avx2;
  std::uint64_t state = xmm_and_ymm;
  switch (tier) {
    case isa::scalar:
      return true;
    case isa::avx512:
      leaf7 |= avx512f | avx512dq | avx512bw | avx512vl;
      state |= opmask_and_zmm;
      break;
    case isa::avx2:
      break;
    case isa::neon:
#if defined(__aarch64__)
      return true;
#else
      return false;
#endif
  }
  return (cpu.leaf1_ecx & leaf1) == leaf1 && (cpu.leaf7_ebx & leaf7) == leaf7 && (cpu.xcr0 & state) == state;
}

}  // namespace detail

namespace detail::inline HEADWAVE_ABI {

/// With HEADWAVE_NO_AVX512 the machine has none, whatever it says.
inline cpu_words read_cpu() {
  cpu_words cpu{};
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    cpu.leaf1_ecx = c;
    if (c & (1u << 27)) {
      std::uint32_t low = 0, high = 0;
      __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
      cpu.xcr0 = (static_cast<std::uint64_t>(high) << 32) | low;
    }
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    cpu.leaf7_ebx = b;
  }
#if defined(HEADWAVE_NO_AVX512)
  cpu.xcr0 &= 0x1f;
#elif defined(HEADWAVE_EMULATED_AVX512)
  cpu.leaf7_ebx |= 0xc0030000;
  cpu.xcr0 |= 0xe0;
#endif
#endif
  return cpu;
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// "scalar", "avx2", "avx512" or "neon": the names that HEADWAVE_ISA takes.
inline const char* name(isa tier) {
  constexpr const char* names[detail::isa_count] = {"scalar", "avx2", "avx512", "neon"};
  return names[static_cast<int>(tier)];
}

/// Whether this program on this machine can run a tier.
inline bool is_available(isa tier) {
#if defined(HEADWAVE_ONLY_TIER)
  return tier == isa::HEADWAVE_ONLY_TIER && detail::supports(detail::read_cpu(), tier);
#else
  return detail::supports(detail::read_cpu(), tier);
#endif
}

/// Sets the tier for all later calls of the program, on every thread. Results of other tiers differ in their last bits;
/// the tiers with FMA agree. Errors: the machine does not have it.
inline void set_isa(isa tier) {
  if (!is_available(tier)) {
    detail::fail("set_isa", std::string("this machine does not have ") + name(tier));
  }
  detail::chosen_isa.store(static_cast<int>(tier), std::memory_order_relaxed);
}

/// The tier in use: what set_isa or HEADWAVE_ISA asked for, else the widest that the machine has.
inline isa active_isa() {
#if defined(HEADWAVE_ONLY_TIER)
  return isa::HEADWAVE_ONLY_TIER;
#else
  int chosen = detail::chosen_isa.load(std::memory_order_relaxed);
  if (chosen < 0) [[unlikely]] {
    const detail::cpu_words cpu = detail::read_cpu();
    const char* const asked = std::getenv("HEADWAVE_ISA");
    for (int tier = 0; tier < detail::isa_count; ++tier) {
      if (detail::supports(cpu, static_cast<isa>(tier))) {
        chosen = tier;
        if (asked && std::strcmp(asked, name(static_cast<isa>(tier))) == 0) {
          break;
        }
      }
    }
    // What another thread has set or chosen in the meantime counts.
    int in_use = -1;
    if (!detail::chosen_isa.compare_exchange_strong(in_use, chosen, std::memory_order_relaxed)) {
      chosen = in_use;
    }
  }
  return static_cast<isa>(chosen);
#endif
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
