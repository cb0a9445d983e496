// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/arguments.hpp>
#include <headwave/detail/bits.hpp>
#include <headwave/detail/target.hpp>
#include <headwave/numeric.hpp>

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Compiles the kernels once for each tier: a namespace, a set of operations (simd/<tier>.hpp) and the kernels written
// on them.
//
// The code of a tier may use instructions that the command line does not allow, by a target pragma. Therefore, within a
// region: every standard header comes before it, no std template is instantiated, no lambda of our own is written (the
// pragma does not reach into them), and no vector constant lives outside a function (it would run on any CPU).

#if defined(__clang__)
#define HEADWAVE_UNROLL _Pragma("clang loop unroll(full)")
#define HEADWAVE_UNROLL_FOUR _Pragma("clang loop unroll_count(4)")
#else
#define HEADWAVE_UNROLL _Pragma("GCC unroll 16")
#define HEADWAVE_UNROLL_FOUR _Pragma("GCC unroll 4")
#endif

namespace headwave::detail {

/// 0, 1, 2, ...: compared with a count, the mask of a vec's first lanes.
template <class T>
inline constexpr T lane_numbers_of[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

}  // namespace headwave::detail

#if defined(HEADWAVE_WITH_SCALAR)
#define HEADWAVE_TIER scalar
#include <headwave/detail/simd/scalar.hpp>

#include <headwave/detail/kernels/all.inl>
#undef HEADWAVE_TIER
#endif

#if defined(HEADWAVE_WITH_AVX2)
HEADWAVE_BEGIN_TARGET(HEADWAVE_AVX2_FEATURES)
#define HEADWAVE_TIER avx2
#include <headwave/detail/simd/avx2.hpp>

#include <headwave/detail/kernels/all.inl>
#undef HEADWAVE_TIER
HEADWAVE_END_TARGET
#endif

#if defined(HEADWAVE_WITH_AVX512)
HEADWAVE_BEGIN_TARGET(HEADWAVE_AVX512_FEATURES)
#define HEADWAVE_TIER avx512
#include <headwave/detail/simd/avx512.hpp>

#include <headwave/detail/kernels/all.inl>
#undef HEADWAVE_TIER
HEADWAVE_END_TARGET
#endif

#if defined(HEADWAVE_WITH_NEON)
#define HEADWAVE_TIER neon
#include <headwave/detail/simd/neon.hpp>

#include <headwave/detail/kernels/all.inl>
#undef HEADWAVE_TIER
#endif

#undef HEADWAVE_UNROLL
#undef HEADWAVE_UNROLL_FOUR
