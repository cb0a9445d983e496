// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// AVX-512 on machines that have AVX2 only: SIMDe makes each 512-bit intrinsic a macro for AVX2 code. Included before
/// everything else, by -include in the preset avx512; with it the avx512 tier is AVX2 code, and is available.

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || defined(__AVX512F__)
#error "compile for AVX2 with FMA and F16C, and without AVX-512"
#endif

#define HEADWAVE_EMULATED_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif
#include <simde/x86/avx512.h>

#include <immintrin.h>

// What SIMDe 0.7.4 lacks. At -O0 some intrinsics are macros already.
namespace support {

HEDLEY_ALWAYS_INLINE static __m256 upper_half(__m512 v) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}
HEDLEY_ALWAYS_INLINE static __m256 to_float(__m512d v) {
  return _mm256_set_m128(_mm256_cvtpd_ps(_mm512_extractf64x4_pd(v, 1)), _mm256_cvtpd_ps(_mm512_castpd512_pd256(v)));
}
HEDLEY_ALWAYS_INLINE static __m512i to_integer(__m512 v) {
  const __m512i low = _mm512_castsi256_si512(_mm256_cvtps_epi32(_mm512_castps512_ps256(v)));
  return _mm512_inserti64x4(low, _mm256_cvtps_epi32(upper_half(v)), 1);
}
HEDLEY_ALWAYS_INLINE static __mmask16 bytes_in_common(__m128i a, __m128i b) {
  const __m128i none = _mm_cmpeq_epi8(_mm_and_si128(a, b), _mm_setzero_si128());
  return static_cast<__mmask16>(~_mm_movemask_epi8(none));
}

HEDLEY_ALWAYS_INLINE static __m512i both(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
HEDLEY_ALWAYS_INLINE static __m512 both(__m256 low, __m256 high) {
  return _mm512_castsi512_ps(both(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}
HEDLEY_ALWAYS_INLINE static __m512i widen_bytes(__m128i v) {
  return both(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)));
}
HEDLEY_ALWAYS_INLINE static __m512i widen_words(__m256i v) {
  return both(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
HEDLEY_ALWAYS_INLINE static __m512 widen_halves(__m256i v) {
  return both(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
HEDLEY_ALWAYS_INLINE static __m256i to_halves(__m512 v) {
  return _mm256_set_m128i(_mm256_cvtps_ph(upper_half(v), _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(_mm512_castps512_ps256(v), _MM_FROUND_TO_NEAREST_INT));
}
HEDLEY_ALWAYS_INLINE static __m512 from_integer(__m512i v) {
  return both(_mm256_cvtepi32_ps(_mm512_castsi512_si256(v)), _mm256_cvtepi32_ps(_mm512_extracti64x4_epi64(v, 1)));
}
HEDLEY_ALWAYS_INLINE static __m256i low_words(__m512i v) {
  int from[16];
  short to[16];
  _mm512_storeu_si512(from, v);
  for (int i = 0; i < 16; ++i) {
    to[i] = static_cast<short>(from[i]);
  }
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(to));
}

/// Quarters of a, a, b, b: each two bits of the selection name one.
HEDLEY_ALWAYS_INLINE static __m512 quarters(__m512 a, __m512 b, int selection) {
  float from[2][16], to[16];
  _mm512_storeu_ps(from[0], a);
  _mm512_storeu_ps(from[1], b);
  for (int i = 0; i < 16; ++i) {
    to[i] = from[i / 8][4 * ((selection >> (2 * (i / 4))) & 3) + i % 4];
  }
  return _mm512_loadu_ps(to);
}

}  // namespace support

#undef _mm512_extractf32x8_ps
#undef _mm512_cvtpd_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi32_epi16
#undef _mm_test_epi8_mask
#undef _mm512_shuffle_f32x4
#define _mm512_extractf32x8_ps(v, half) ((half) == 1 ? support::upper_half(v) : _mm512_castps512_ps256(v))
#define _mm512_cvtpd_ps(v) support::to_float(v)
#define _mm512_cvtps_epi32(v) support::to_integer(v)
#define _mm512_cvtepi8_epi32(v) support::widen_bytes(v)
#define _mm512_cvtepu16_epi32(v) support::widen_words(v)
#define _mm512_cvtph_ps(v) support::widen_halves(v)
#define _mm512_cvtps_ph(v, rounding) support::to_halves(v)
#define _mm512_cvtepi32_ps(v) support::from_integer(v)
#define _mm512_cvtepi32_epi16(v) support::low_words(v)
#define _mm_test_epi8_mask(a, b) support::bytes_in_common(a, b)
#define _mm512_shuffle_f32x4(a, b, selection) support::quarters(a, b, selection)
