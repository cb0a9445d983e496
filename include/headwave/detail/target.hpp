// SPDX-License-Identifier: MIT
#pragma once

// The tiers that are compiled: all that the architecture has, or with HEADWAVE_STATIC_ISA only the widest that the
// command line allows, or that tests/support/emulated_avx512.hpp makes of AVX2 code.
#if !defined(HEADWAVE_STATIC_ISA)
#define HEADWAVE_WITH_SCALAR
#if defined(__x86_64__)
#define HEADWAVE_WITH_AVX2
#if !defined(HEADWAVE_NO_AVX512)
#define HEADWAVE_WITH_AVX512
#endif
#elif defined(__aarch64__)
#define HEADWAVE_WITH_NEON
#endif
#elif defined(__aarch64__)
#define HEADWAVE_WITH_NEON
#define HEADWAVE_ONLY_TIER neon
#elif !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#define HEADWAVE_WITH_SCALAR
#define HEADWAVE_ONLY_TIER scalar
#elif (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
       !defined(HEADWAVE_NO_AVX512)) || \
    defined(HEADWAVE_EMULATED_AVX512)
#define HEADWAVE_WITH_AVX512
#define HEADWAVE_ONLY_TIER avx512
#else
#define HEADWAVE_WITH_AVX2
#define HEADWAVE_ONLY_TIER avx2
#endif

// What a tier's code may use beyond the command line's target, and how a region of such code begins and ends:
//   HEADWAVE_BEGIN_TARGET(HEADWAVE_AVX2_FEATURES)
//   ...
//   HEADWAVE_END_TARGET
// All code of a tier stands in regions of one and the same feature list, because compilers do not inline across
// different ones.

#define HEADWAVE_AVX2_FEATURES "avx2,fma,f16c"

#if !defined(HEADWAVE_EMULATED_AVX512)
#define HEADWAVE_AVX512_FEATURES "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
#else
// Set by tests/support/emulated_avx512.hpp only: the 512-bit intrinsics are then macros for AVX2 code.
#define HEADWAVE_AVX512_FEATURES HEADWAVE_AVX2_FEATURES
#endif

#define HEADWAVE_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HEADWAVE_BEGIN_TARGET(features) \
  HEADWAVE_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define HEADWAVE_END_TARGET HEADWAVE_PRAGMA(clang attribute pop)
#else
#define HEADWAVE_BEGIN_TARGET(features) HEADWAVE_PRAGMA(GCC push_options) HEADWAVE_PRAGMA(GCC target(features))
#define HEADWAVE_END_TARGET HEADWAVE_PRAGMA(GCC pop_options)
#endif
