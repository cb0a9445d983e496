// SPDX-License-Identifier: MIT
#pragma once

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
/// has and the operating system saves; nothing runs before main(). The environment variable HEADWAVE_ISA=scalar or avx2
/// chooses another one that the machine has; any other value is ignored.

namespace headwave {

/// The tiers, from the narrowest to the widest.
enum class isa {
  scalar,  ///< plain C++ for the command line's target: the readable reference
  avx2     ///< x86-64 with AVX2 and FMA
};

namespace detail {

inline constexpr int isa_count = 2;

/// The tier in use, or -1 before the first question.
inline std::atomic<int> chosen_isa{-1};

/// What CPUID and XGETBV say, as far as the choice of a tier depends on it.
struct cpu_words {
  std::uint32_t leaf1_ecx = 0;  ///< CPUID.1:ECX
  std::uint32_t leaf7_ebx = 0;  ///< CPUID.(7,0):EBX
  std::uint64_t xcr0 = 0;       ///< register states that the operating system saves; 0 without OSXSAVE
};

/// Whether a tier may run, by the words alone. Source: Intel SDM volume 1, 14.3 and 14.7.1: a feature bit counts only
/// if the operating system saves the registers that the feature uses.
HEADWAVE_INLINE constexpr bool supports(const cpu_words& cpu, isa tier) {
  constexpr std::uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29, avx2 = 1u << 5;
  constexpr std::uint64_t ymm_state = 0x6;
  if (tier == isa::avx2) {
    constexpr std::uint32_t needed = fma | osxsave | avx | f16c;
    return (cpu.leaf1_ecx & needed) == needed && (cpu.leaf7_ebx & avx2) != 0 && (cpu.xcr0 & ymm_state) == ymm_state;
  }
  return tier == isa::scalar;
}

}  // namespace detail

namespace detail::inline HEADWAVE_ABI {

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
#endif
  return cpu;
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// "scalar", "avx2": the names that HEADWAVE_ISA takes.
inline const char* name(isa tier) {
  return tier == isa::avx2 ? "avx2" : "scalar";
}

/// Whether this machine can run a tier.
inline bool is_available(isa tier) {
  return detail::supports(detail::read_cpu(), tier);
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
    detail::chosen_isa.store(chosen, std::memory_order_relaxed);
  }
  return static_cast<isa>(chosen);
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
