// SPDX-License-Identifier: MIT
// The operations of the kernels on AVX-512 F, BW, VL and DQ. Included by detail/tiers.hpp inside a target region, where
// HEADWAVE_TIER is avx512.
//
// vec<T> is one cache line of elements, 16 floats or 8 doubles, on every ISA: here one 512-bit register. Every
// simd/*.hpp file defines the same operations in the same order; what an operation means is said in simd/scalar.hpp.
// Results have the bits that AVX2 gives, so the instructions that would round differently (vscalefps, vrangeps,
// vrcp14ps) are not used.

// g++ 12 warns about its own intrinsics: about a vector without a value where a mask keeps none of it, and at -O0 about
// the sign of a mask of ones.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

// 12 x 2 vectors of accumulators are 24 registers; 2 hold a row of each panel and 1 the broadcast: 27 of 32. Per step
// of depth 24 FMA against 2 + 12 loads, so that each element of A is loaded once for two FMA.
inline constexpr int tile_rows = 12;
inline constexpr int tile_panels = 2;
inline constexpr int tile_chains = 8;
inline constexpr int interleaved = 4;
inline constexpr bool has_fma = true;

template <class T>
struct vec;
template <class T>
struct lane_mask;

template <>
struct vec<float> {
  static constexpr index lanes = 16;
  __m512 all;
};
template <>
struct vec<double> {
  static constexpr index lanes = 8;
  __m512d all;
};
template <>
struct vec<std::uint64_t> {
  static constexpr index lanes = 8;
  __m512i all;
};
template <>
struct lane_mask<float> {
  __mmask16 all;
};
template <>
struct lane_mask<double> {
  __mmask8 all;
};

// ---- memory
HEADWAVE_INLINE vec<float> broadcast(float x) {
  return {_mm512_set1_ps(x)};
}
HEADWAVE_INLINE vec<double> broadcast(double x) {
  return {_mm512_set1_pd(x)};
}
HEADWAVE_INLINE vec<std::uint64_t> broadcast(std::uint64_t x) {
  return {_mm512_set1_epi64(static_cast<long long>(x))};
}
HEADWAVE_INLINE vec<float> load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
HEADWAVE_INLINE vec<double> load(const double* p) {
  return {_mm512_loadu_pd(p)};
}
HEADWAVE_INLINE vec<std::uint64_t> load(const std::uint64_t* p) {
  return {_mm512_loadu_si512(p)};
}
HEADWAVE_INLINE void store(float* p, vec<float> v) {
  _mm512_storeu_ps(p, v.all);
}
HEADWAVE_INLINE void store(double* p, vec<double> v) {
  _mm512_storeu_pd(p, v.all);
}
HEADWAVE_INLINE void store(std::uint64_t* p, vec<std::uint64_t> v) {
  _mm512_storeu_si512(p, v.all);
}
HEADWAVE_INLINE void store_quarters_turned(float* target, index stride, __m512 a, __m512 b, __m512 c, __m512 d) {
  // Quarter q of each register goes to row q.
  const __m512 ab_even = _mm512_shuffle_f32x4(a, b, 0x88), ab_odd = _mm512_shuffle_f32x4(a, b, 0xdd);
  const __m512 cd_even = _mm512_shuffle_f32x4(c, d, 0x88), cd_odd = _mm512_shuffle_f32x4(c, d, 0xdd);
  _mm512_storeu_ps(target, _mm512_shuffle_f32x4(ab_even, cd_even, 0x88));
  _mm512_storeu_ps(target + stride, _mm512_shuffle_f32x4(ab_odd, cd_odd, 0x88));
  _mm512_storeu_ps(target + 2 * stride, _mm512_shuffle_f32x4(ab_even, cd_even, 0xdd));
  _mm512_storeu_ps(target + 3 * stride, _mm512_shuffle_f32x4(ab_odd, cd_odd, 0xdd));
}
HEADWAVE_INLINE void transpose(float* target, const float* source, index stride) {
  // turned[c][g]: in quarter q, column 4 q + c of the rows 4 g .. 4 g + 3.
  __m512 turned[4][4];
  HEADWAVE_UNROLL
  for (int g = 0; g < 4; ++g) {
    const float* const p = source + 4 * g * stride;
    const __m512 row0 = _mm512_loadu_ps(p), row1 = _mm512_loadu_ps(p + stride);
    const __m512 row2 = _mm512_loadu_ps(p + 2 * stride), row3 = _mm512_loadu_ps(p + 3 * stride);
    const __m512d low_01 = _mm512_castps_pd(_mm512_unpacklo_ps(row0, row1));
    const __m512d high_01 = _mm512_castps_pd(_mm512_unpackhi_ps(row0, row1));
    const __m512d low_23 = _mm512_castps_pd(_mm512_unpacklo_ps(row2, row3));
    const __m512d high_23 = _mm512_castps_pd(_mm512_unpackhi_ps(row2, row3));
    turned[0][g] = _mm512_castpd_ps(_mm512_unpacklo_pd(low_01, low_23));
    turned[1][g] = _mm512_castpd_ps(_mm512_unpackhi_pd(low_01, low_23));
    turned[2][g] = _mm512_castpd_ps(_mm512_unpacklo_pd(high_01, high_23));
    turned[3][g] = _mm512_castpd_ps(_mm512_unpackhi_pd(high_01, high_23));
  }
  HEADWAVE_UNROLL
  for (int c = 0; c < 4; ++c) {
    store_quarters_turned(target + 16 * c, 64, turned[c][0], turned[c][1], turned[c][2], turned[c][3]);
  }
}
HEADWAVE_INLINE void transpose(double* target, const double* source, index stride) {
  // turned[c][g]: in quarter q, column 2 q + c of the rows 2 g and 2 g + 1.
  __m512 turned[2][4];
  HEADWAVE_UNROLL
  for (int g = 0; g < 4; ++g) {
    const __m512d row0 = _mm512_loadu_pd(source + 2 * g * stride);
    const __m512d row1 = _mm512_loadu_pd(source + (2 * g + 1) * stride);
    turned[0][g] = _mm512_castpd_ps(_mm512_unpacklo_pd(row0, row1));
    turned[1][g] = _mm512_castpd_ps(_mm512_unpackhi_pd(row0, row1));
  }
  HEADWAVE_UNROLL
  for (int c = 0; c < 2; ++c) {
    store_quarters_turned(reinterpret_cast<float*>(target + 8 * c), 32, turned[c][0], turned[c][1], turned[c][2],
                          turned[c][3]);
  }
}

// ---- arithmetic
HEADWAVE_INLINE vec<float> add(vec<float> a, vec<float> b) {
  return {_mm512_add_ps(a.all, b.all)};
}
HEADWAVE_INLINE vec<double> add(vec<double> a, vec<double> b) {
  return {_mm512_add_pd(a.all, b.all)};
}
HEADWAVE_INLINE vec<float> subtract(vec<float> a, vec<float> b) {
  return {_mm512_sub_ps(a.all, b.all)};
}
HEADWAVE_INLINE vec<double> subtract(vec<double> a, vec<double> b) {
  return {_mm512_sub_pd(a.all, b.all)};
}
HEADWAVE_INLINE vec<float> multiply(vec<float> a, vec<float> b) {
  return {_mm512_mul_ps(a.all, b.all)};
}
HEADWAVE_INLINE vec<double> multiply(vec<double> a, vec<double> b) {
  return {_mm512_mul_pd(a.all, b.all)};
}
HEADWAVE_INLINE vec<float> divide(vec<float> a, vec<float> b) {
  return {_mm512_div_ps(a.all, b.all)};
}
HEADWAVE_INLINE vec<double> divide(vec<double> a, vec<double> b) {
  return {_mm512_div_pd(a.all, b.all)};
}
HEADWAVE_INLINE vec<float> multiply_add(vec<float> a, vec<float> b, vec<float> c) {
  return {_mm512_fmadd_ps(a.all, b.all, c.all)};
}
HEADWAVE_INLINE vec<double> multiply_add(vec<double> a, vec<double> b, vec<double> c) {
  return {_mm512_fmadd_pd(a.all, b.all, c.all)};
}
HEADWAVE_INLINE vec<float> multiply_subtract(vec<float> a, vec<float> b, vec<float> c) {
  return {_mm512_fmsub_ps(a.all, b.all, c.all)};
}
HEADWAVE_INLINE vec<double> multiply_subtract(vec<double> a, vec<double> b, vec<double> c) {
  return {_mm512_fmsub_pd(a.all, b.all, c.all)};
}
HEADWAVE_INLINE vec<float> maximum(vec<float> a, vec<float> b) {
  return {_mm512_max_ps(a.all, b.all)};
}
HEADWAVE_INLINE vec<double> maximum(vec<double> a, vec<double> b) {
  return {_mm512_max_pd(a.all, b.all)};
}
HEADWAVE_INLINE vec<float> absolute(vec<float> v) {
  return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), v.all)};
}
HEADWAVE_INLINE vec<double> absolute(vec<double> v) {
  return {_mm512_andnot_pd(_mm512_set1_pd(-0.0), v.all)};
}
HEADWAVE_INLINE vec<float> copy_sign(vec<float> magnitude, vec<float> sign_of) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(sign, magnitude.all), _mm512_and_ps(sign, sign_of.all))};
}
HEADWAVE_INLINE vec<double> copy_sign(vec<double> magnitude, vec<double> sign_of) {
  const __m512d sign = _mm512_set1_pd(-0.0);
  return {_mm512_or_pd(_mm512_andnot_pd(sign, magnitude.all), _mm512_and_pd(sign, sign_of.all))};
}
HEADWAVE_INLINE vec<float> swap_neighbours(vec<float> v) {
  return {_mm512_shuffle_ps(v.all, v.all, 0xb1)};
}
HEADWAVE_INLINE vec<double> swap_neighbours(vec<double> v) {
  const __m512 halves = _mm512_castpd_ps(v.all);
  return {_mm512_castps_pd(_mm512_shuffle_ps(halves, halves, 0x4e))};
}

// ---- exponents
HEADWAVE_INLINE vec<float> round_to_nearest(vec<float> v) {
  return {_mm512_roundscale_ps(v.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HEADWAVE_INLINE vec<double> round_to_nearest(vec<double> v) {
  return {_mm512_roundscale_pd(v.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HEADWAVE_INLINE vec<float> times_power_of_two(vec<float> p, vec<float> n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n.all), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.all), exponent))};
}
HEADWAVE_INLINE vec<double> times_power_of_two(vec<double> p, vec<double> n) {
  // Adding 1.5 * 2^52 leaves n in the low bits of the sum; the shift drops all others.
  const __m512i low_bits = _mm512_castpd_si512(_mm512_add_pd(n.all, _mm512_set1_pd(0x1.8p52)));
  return {_mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(p.all), _mm512_slli_epi64(low_bits, 52)))};
}

// ---- reductions
HEADWAVE_INLINE float reduce_add(vec<float> v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v.all), _mm512_extractf32x8_ps(v.all, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HEADWAVE_INLINE double reduce_add(vec<double> v) {
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(v.all), _mm512_extractf64x4_pd(v.all, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
HEADWAVE_INLINE float reduce_maximum(vec<float> v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v.all), _mm512_extractf32x8_ps(v.all, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
HEADWAVE_INLINE double reduce_maximum(vec<double> v) {
  const __m256d four = _mm256_max_pd(_mm512_castpd512_pd256(v.all), _mm512_extractf64x4_pd(v.all, 1));
  const __m128d two = _mm_max_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_max_sd(two, _mm_unpackhi_pd(two, two)));
}

// ---- masks
HEADWAVE_INLINE lane_mask<float> less(vec<float> a, vec<float> b) {
  return {_mm512_cmp_ps_mask(a.all, b.all, _CMP_LT_OQ)};
}
HEADWAVE_INLINE lane_mask<double> less(vec<double> a, vec<double> b) {
  return {_mm512_cmp_pd_mask(a.all, b.all, _CMP_LT_OQ)};
}
HEADWAVE_INLINE lane_mask<float> not_less(vec<float> a, vec<float> b) {
  return {_mm512_cmp_ps_mask(a.all, b.all, _CMP_NLT_UQ)};
}
HEADWAVE_INLINE lane_mask<double> not_less(vec<double> a, vec<double> b) {
  return {_mm512_cmp_pd_mask(a.all, b.all, _CMP_NLT_UQ)};
}
HEADWAVE_INLINE lane_mask<float> is_negative_infinity(vec<float> v) {
  const __m512i pattern = _mm512_set1_epi32(static_cast<int>(0xff800000u));
  return {_mm512_cmpeq_epi32_mask(_mm512_castps_si512(v.all), pattern)};
}
HEADWAVE_INLINE lane_mask<double> is_negative_infinity(vec<double> v) {
  const __m512i pattern = _mm512_set1_epi64(static_cast<long long>(0xfff0000000000000u));
  return {_mm512_cmpeq_epi64_mask(_mm512_castpd_si512(v.all), pattern)};
}
HEADWAVE_INLINE bool all_finite(vec<float> v) {
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(v.all), exponent), exponent) == 0;
}
HEADWAVE_INLINE bool all_finite(vec<double> v) {
  const __m512i exponent = _mm512_set1_epi64(0x7ff0000000000000);
  return _mm512_cmpeq_epi64_mask(_mm512_and_si512(_mm512_castpd_si512(v.all), exponent), exponent) == 0;
}
HEADWAVE_INLINE void load_mask(const unsigned char* p, lane_mask<float>& mask) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  mask.all = _mm_test_epi8_mask(bytes, bytes);
}
HEADWAVE_INLINE void load_mask(const unsigned char* p, lane_mask<double>& mask) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  mask.all = static_cast<__mmask8>(_mm_test_epi8_mask(bytes, bytes));
}
HEADWAVE_INLINE vec<float> select(lane_mask<float> mask, vec<float> a, vec<float> b) {
  return {_mm512_mask_blend_ps(mask.all, b.all, a.all)};
}
HEADWAVE_INLINE vec<double> select(lane_mask<double> mask, vec<double> a, vec<double> b) {
  return {_mm512_mask_blend_pd(mask.all, b.all, a.all)};
}
HEADWAVE_INLINE vec<float> keep(lane_mask<float> mask, vec<float> v) {
  return {_mm512_maskz_mov_ps(mask.all, v.all)};
}
HEADWAVE_INLINE vec<double> keep(lane_mask<double> mask, vec<double> v) {
  return {_mm512_maskz_mov_pd(mask.all, v.all)};
}

// ---- 64-bit integers
HEADWAVE_INLINE vec<std::uint64_t> add(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm512_add_epi64(a.all, b.all)};
}
HEADWAVE_INLINE vec<std::uint64_t> bit_and(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm512_and_si512(a.all, b.all)};
}
HEADWAVE_INLINE vec<std::uint64_t> bit_or(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm512_or_si512(a.all, b.all)};
}
HEADWAVE_INLINE vec<std::uint64_t> bit_xor(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm512_xor_si512(a.all, b.all)};
}
HEADWAVE_INLINE vec<std::uint64_t> multiply_lower(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm512_mul_epu32(a.all, b.all)};
}
template <int Bits>
HEADWAVE_INLINE vec<std::uint64_t> shift_left(vec<std::uint64_t> v) {
  return {_mm512_slli_epi64(v.all, Bits)};
}
template <int Bits>
HEADWAVE_INLINE vec<std::uint64_t> shift_right(vec<std::uint64_t> v) {
  return {_mm512_srli_epi64(v.all, Bits)};
}
HEADWAVE_INLINE vec<double> as_double(vec<std::uint64_t> bits) {
  return {_mm512_castsi512_pd(bits.all)};
}
HEADWAVE_INLINE vec<std::uint64_t> as_bits(vec<double> v) {
  return {_mm512_castpd_si512(v.all)};
}
HEADWAVE_INLINE lane_mask<double> top_bit(vec<std::uint64_t> v) {
  return {_mm512_movepi64_mask(v.all)};
}

// ---- doubles rounded to the element type
HEADWAVE_INLINE void store_rounded(double* p, vec<double> v) {
  store(p, v);
}
HEADWAVE_INLINE void store_rounded(float* p, vec<double> v) {
  _mm256_storeu_ps(p, _mm512_cvtpd_ps(v.all));
}
HEADWAVE_INLINE void store_pairs_rounded(double* p, vec<double> first, vec<double> second) {
  // Elements 0 .. 7 are first's, 8 .. 15 second's.
  const __m512i low_pairs = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
  const __m512i high_pairs = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  _mm512_storeu_pd(p, _mm512_permutex2var_pd(first.all, low_pairs, second.all));
  _mm512_storeu_pd(p + 8, _mm512_permutex2var_pd(first.all, high_pairs, second.all));
}
HEADWAVE_INLINE void store_pairs_rounded(float* p, vec<double> first, vec<double> second) {
  const __m256 firsts = _mm512_cvtpd_ps(first.all), seconds = _mm512_cvtpd_ps(second.all);
  const __m256 even = _mm256_unpacklo_ps(firsts, seconds);  // pairs 0, 1 and 4, 5
  const __m256 odd = _mm256_unpackhi_ps(firsts, seconds);   // pairs 2, 3 and 6, 7
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(even, odd, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(even, odd, 0x31));
}

// ---- storage types and integers, as floats and back
HEADWAVE_INLINE vec<float> load_converted(const bfloat16* p) {
  const __m512i upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(upper, 16))};
}
HEADWAVE_INLINE vec<float> load_converted(const float16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
HEADWAVE_INLINE vec<float> load_converted(const std::int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
HEADWAVE_INLINE void store_converted(bfloat16* p, vec<float> v) {
  const __m512i bits = _mm512_castps_si512(v.all), upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i below_half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, below_half), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet)));
}
HEADWAVE_INLINE void store_converted(float16* p, vec<float> v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
