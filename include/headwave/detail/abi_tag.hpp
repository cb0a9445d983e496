// SPDX-License-Identifier: MIT
#pragma once

// HEADWAVE_ABI: an identifier that spells the command line's code generation flags. Each flag that is on adds its
// number; the numbers, being no identifiers, cannot meet a user's macro.

#if defined(__SSE3__)
#define HEADWAVE_TAG_A 10
#else
#define HEADWAVE_TAG_A
#endif
#if defined(__SSSE3__)
#define HEADWAVE_TAG_B 11
#else
#define HEADWAVE_TAG_B
#endif
#if defined(__SSE4_1__)
#define HEADWAVE_TAG_C 12
#else
#define HEADWAVE_TAG_C
#endif
#if defined(__SSE4_2__)
#define HEADWAVE_TAG_D 13
#else
#define HEADWAVE_TAG_D
#endif
#if defined(__POPCNT__)
#define HEADWAVE_TAG_E 14
#else
#define HEADWAVE_TAG_E
#endif
#if defined(__AVX__)
#define HEADWAVE_TAG_F 15
#else
#define HEADWAVE_TAG_F
#endif
#if defined(__F16C__)
#define HEADWAVE_TAG_G 16
#else
#define HEADWAVE_TAG_G
#endif
#if defined(__FMA__) || defined(__FMA4__)
#define HEADWAVE_TAG_H 17
#else
#define HEADWAVE_TAG_H
#endif
#if defined(__AVX2__)
#define HEADWAVE_TAG_I 18
#else
#define HEADWAVE_TAG_I
#endif
#if defined(__BMI__)
#define HEADWAVE_TAG_J 19
#else
#define HEADWAVE_TAG_J
#endif
#if defined(__BMI2__)
#define HEADWAVE_TAG_K 20
#else
#define HEADWAVE_TAG_K
#endif
#if defined(__LZCNT__)
#define HEADWAVE_TAG_L 21
#else
#define HEADWAVE_TAG_L
#endif
#if defined(__MOVBE__)
#define HEADWAVE_TAG_M 22
#else
#define HEADWAVE_TAG_M
#endif
#if defined(__AVX512F__)
#define HEADWAVE_TAG_N 23
#else
#define HEADWAVE_TAG_N
#endif
#if defined(__AVX512BW__) || defined(__AVX512DQ__) || defined(__AVX512VL__)
#define HEADWAVE_TAG_O 24
#else
#define HEADWAVE_TAG_O
#endif
#if defined(__AVX512VNNI__) || defined(__AVX512VBMI2__) || defined(__AVX512BITALG__) || defined(__AVX512VPOPCNTDQ__)
#define HEADWAVE_TAG_P 25
#else
#define HEADWAVE_TAG_P
#endif
#if defined(__AVX512BF16__) || defined(__AVX512FP16__) || defined(__AVXVNNI__) || defined(__AVXNECONVERT__)
#define HEADWAVE_TAG_Q 26
#else
#define HEADWAVE_TAG_Q
#endif
#if defined(__ARM_FEATURE_ATOMICS)
#define HEADWAVE_TAG_R 27
#else
#define HEADWAVE_TAG_R
#endif
#if defined(__ARM_FEATURE_DOTPROD) || defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define HEADWAVE_TAG_S 28
#else
#define HEADWAVE_TAG_S
#endif
#if defined(__ARM_FEATURE_SVE)
#define HEADWAVE_TAG_T 29
#else
#define HEADWAVE_TAG_T
#endif
#if defined(__ARM_FEATURE_BF16) || defined(__ARM_FEATURE_MATMUL_INT8)
#define HEADWAVE_TAG_U 30
#else
#define HEADWAVE_TAG_U
#endif
#if defined(__cpp_exceptions)
#define HEADWAVE_TAG_V 31
#else
#define HEADWAVE_TAG_V
#endif
#if defined(NDEBUG)
#define HEADWAVE_TAG_W 32
#else
#define HEADWAVE_TAG_W
#endif
#if defined(_GLIBCXX_ASSERTIONS)
#define HEADWAVE_TAG_X 33
#else
#define HEADWAVE_TAG_X
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#define HEADWAVE_TAG_Y 34
#else
#define HEADWAVE_TAG_Y
#endif
#if defined(HEADWAVE_STATIC_ISA) && defined(HEADWAVE_NO_AVX512)
#define HEADWAVE_TAG_Z 37
#elif defined(HEADWAVE_STATIC_ISA)
#define HEADWAVE_TAG_Z 36
#elif defined(HEADWAVE_NO_AVX512)
#define HEADWAVE_TAG_Z 35
#else
#define HEADWAVE_TAG_Z
#endif

#define HEADWAVE_PASTE(version, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19, p20, p21, p22, p23, p24, p25, p26, \
                       p27, p28, p29, p30, p31, p32, p33, p34, p35) \
  version##_##p10##p11##p12##p13##p14##p15##p16##p17##p18##p19##p20##p21##p22##p23##p24##p25##p26##p27##p28##p29##p30##p31##p32##p33##p34##p35
#define HEADWAVE_EXPAND_AND_PASTE(...) HEADWAVE_PASTE(__VA_ARGS__)
#define HEADWAVE_ABI \
  HEADWAVE_EXPAND_AND_PASTE( \
      v0, HEADWAVE_TAG_A, HEADWAVE_TAG_B, HEADWAVE_TAG_C, HEADWAVE_TAG_D, HEADWAVE_TAG_E, HEADWAVE_TAG_F, \
      HEADWAVE_TAG_G, HEADWAVE_TAG_H, HEADWAVE_TAG_I, HEADWAVE_TAG_J, HEADWAVE_TAG_K, HEADWAVE_TAG_L, HEADWAVE_TAG_M, \
      HEADWAVE_TAG_N, HEADWAVE_TAG_O, HEADWAVE_TAG_P, HEADWAVE_TAG_Q, HEADWAVE_TAG_R, HEADWAVE_TAG_S, HEADWAVE_TAG_T, \
      HEADWAVE_TAG_U, HEADWAVE_TAG_V, HEADWAVE_TAG_W, HEADWAVE_TAG_X, HEADWAVE_TAG_Y, HEADWAVE_TAG_Z)
