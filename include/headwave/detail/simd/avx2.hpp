// SPDX-License-Identifier: MIT
// The operations of the kernels on AVX2 + FMA. Included by detail/tiers.hpp inside a target region, where HEADWAVE_TIER
// is avx2.
//
// vec<T> is one cache line of elements, 16 floats or 8 doubles, on every ISA: here two 256-bit registers. Every
// simd/*.hpp file defines the same operations in the same order; what an operation means is said in simd/scalar.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

// 6 x 1 vectors of accumulators are 12 registers; 2 hold a row of the panel and 1 the broadcast: 15 of 16. Per step of
// depth 12 FMA against 2 + 6 loads: the FMA units are the limit on every machine with 2 FMA and 2 loads a cycle.
inline constexpr int tile_rows = 6;
inline constexpr int tile_panels = 1;
inline constexpr int tile_chains = 4;
inline constexpr int interleaved = 2;
inline constexpr bool has_fma = true;

template <class T>
struct vec;
template <class T>
struct lane_mask;

template <>
struct vec<float> {
  static constexpr index lanes = 16;
  __m256 low, high;
};
template <>
struct vec<double> {
  static constexpr index lanes = 8;
  __m256d low, high;
};
template <>
struct vec<std::uint64_t> {
  static constexpr index lanes = 8;
  __m256i low, high;
};
template <>
struct lane_mask<float> {
  __m256 low, high;
};
template <>
struct lane_mask<double> {
  __m256d low, high;
};

// ---- memory
HEADWAVE_INLINE vec<float> broadcast(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
HEADWAVE_INLINE vec<double> broadcast(double x) {
  return {_mm256_set1_pd(x), _mm256_set1_pd(x)};
}
HEADWAVE_INLINE vec<std::uint64_t> broadcast(std::uint64_t x) {
  const __m256i all = _mm256_set1_epi64x(static_cast<long long>(x));
  return {all, all};
}
HEADWAVE_INLINE vec<float> load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
HEADWAVE_INLINE vec<double> load(const double* p) {
  return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)};
}
HEADWAVE_INLINE vec<std::uint64_t> load(const std::uint64_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 4))};
}
HEADWAVE_INLINE void store(float* p, vec<float> v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
HEADWAVE_INLINE void store(double* p, vec<double> v) {
  _mm256_storeu_pd(p, v.low);
  _mm256_storeu_pd(p + 4, v.high);
}
HEADWAVE_INLINE void store(std::uint64_t* p, vec<std::uint64_t> v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 4), v.high);
}

// Rows r and r + 4 share a register from the start, so that only shuffles within halves remain.
HEADWAVE_INLINE __m256 load_halves(const float* low, const float* high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}
HEADWAVE_INLINE void transpose(float* target, const float* source, index stride) {
  for (index row = 0; row < 16; row += 8) {
    HEADWAVE_UNROLL
    for (index column = 0; column < 16; column += 4) {
      const float *const upper = source + column, *const lower = upper + 4 * stride;
      const __m256 row_0 = load_halves(upper, lower), row_1 = load_halves(upper + stride, lower + stride);
      const __m256 row_2 = load_halves(upper + 2 * stride, lower + 2 * stride);
      const __m256 row_3 = load_halves(upper + 3 * stride, lower + 3 * stride);
      const __m256 low_01 = _mm256_unpacklo_ps(row_0, row_1), high_01 = _mm256_unpackhi_ps(row_0, row_1);
      const __m256 low_23 = _mm256_unpacklo_ps(row_2, row_3), high_23 = _mm256_unpackhi_ps(row_2, row_3);
      float* const to = target + column * 16 + row;
      _mm256_storeu_ps(to, _mm256_shuffle_ps(low_01, low_23, 0x44));
      _mm256_storeu_ps(to + 16, _mm256_shuffle_ps(low_01, low_23, 0xee));
      _mm256_storeu_ps(to + 32, _mm256_shuffle_ps(high_01, high_23, 0x44));
      _mm256_storeu_ps(to + 48, _mm256_shuffle_ps(high_01, high_23, 0xee));
    }
    source += 8 * stride;
  }
}
HEADWAVE_INLINE void transpose(double* target, const double* source, index stride) {
  for (index row = 0; row < 8; row += 4) {
    for (index column = 0; column < 8; column += 2) {
      const double* const p = source + row * stride + column;
      // Rows r and r + 2 share a register.
      const __m256d even =
          _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), _mm_loadu_pd(p + 2 * stride), 1);
      const __m256d odd =
          _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p + stride)), _mm_loadu_pd(p + 3 * stride), 1);
      _mm256_storeu_pd(target + column * 8 + row, _mm256_unpacklo_pd(even, odd));
      _mm256_storeu_pd(target + (column + 1) * 8 + row, _mm256_unpackhi_pd(even, odd));
    }
  }
}

// ---- arithmetic
HEADWAVE_INLINE vec<float> add(vec<float> a, vec<float> b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
HEADWAVE_INLINE vec<double> add(vec<double> a, vec<double> b) {
  return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
}
HEADWAVE_INLINE vec<float> subtract(vec<float> a, vec<float> b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
HEADWAVE_INLINE vec<double> subtract(vec<double> a, vec<double> b) {
  return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)};
}
HEADWAVE_INLINE vec<float> multiply(vec<float> a, vec<float> b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
HEADWAVE_INLINE vec<double> multiply(vec<double> a, vec<double> b) {
  return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)};
}
HEADWAVE_INLINE vec<float> divide(vec<float> a, vec<float> b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
HEADWAVE_INLINE vec<double> divide(vec<double> a, vec<double> b) {
  return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)};
}
HEADWAVE_INLINE vec<float> multiply_add(vec<float> a, vec<float> b, vec<float> c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
HEADWAVE_INLINE vec<double> multiply_add(vec<double> a, vec<double> b, vec<double> c) {
  return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
}
HEADWAVE_INLINE vec<float> multiply_subtract(vec<float> a, vec<float> b, vec<float> c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
HEADWAVE_INLINE vec<double> multiply_subtract(vec<double> a, vec<double> b, vec<double> c) {
  return {_mm256_fmsub_pd(a.low, b.low, c.low), _mm256_fmsub_pd(a.high, b.high, c.high)};
}
HEADWAVE_INLINE vec<float> maximum(vec<float> a, vec<float> b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
HEADWAVE_INLINE vec<double> maximum(vec<double> a, vec<double> b) {
  return {_mm256_max_pd(a.low, b.low), _mm256_max_pd(a.high, b.high)};
}
HEADWAVE_INLINE vec<float> absolute(vec<float> v) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high)};
}
HEADWAVE_INLINE vec<double> absolute(vec<double> v) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return {_mm256_andnot_pd(sign, v.low), _mm256_andnot_pd(sign, v.high)};
}
HEADWAVE_INLINE vec<float> copy_sign(vec<float> magnitude, vec<float> sign_of) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, magnitude.low), _mm256_and_ps(sign, sign_of.low)),
          _mm256_or_ps(_mm256_andnot_ps(sign, magnitude.high), _mm256_and_ps(sign, sign_of.high))};
}
HEADWAVE_INLINE vec<double> copy_sign(vec<double> magnitude, vec<double> sign_of) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return {_mm256_or_pd(_mm256_andnot_pd(sign, magnitude.low), _mm256_and_pd(sign, sign_of.low)),
          _mm256_or_pd(_mm256_andnot_pd(sign, magnitude.high), _mm256_and_pd(sign, sign_of.high))};
}
HEADWAVE_INLINE vec<float> swap_neighbours(vec<float> v) {
  return {_mm256_permute_ps(v.low, 0xb1), _mm256_permute_ps(v.high, 0xb1)};
}
HEADWAVE_INLINE vec<double> swap_neighbours(vec<double> v) {
  return {_mm256_permute_pd(v.low, 0x5), _mm256_permute_pd(v.high, 0x5)};
}

// ---- exponents
HEADWAVE_INLINE vec<float> round_to_nearest(vec<float> v) {
  return {_mm256_round_ps(v.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(v.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HEADWAVE_INLINE vec<double> round_to_nearest(vec<double> v) {
  return {_mm256_round_pd(v.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_pd(v.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HEADWAVE_INLINE __m256 times_power_of_two(__m256 p, __m256 n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}
HEADWAVE_INLINE __m256d times_power_of_two(__m256d p, __m256d n) {
  // Adding 1.5 * 2^52 leaves n in the low bits of the sum; the shift drops all others.
  const __m256i low_bits = _mm256_castpd_si256(_mm256_add_pd(n, _mm256_set1_pd(0x1.8p52)));
  return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(p), _mm256_slli_epi64(low_bits, 52)));
}
HEADWAVE_INLINE vec<float> times_power_of_two(vec<float> p, vec<float> n) {
  return {times_power_of_two(p.low, n.low), times_power_of_two(p.high, n.high)};
}
HEADWAVE_INLINE vec<double> times_power_of_two(vec<double> p, vec<double> n) {
  return {times_power_of_two(p.low, n.low), times_power_of_two(p.high, n.high)};
}

// ---- reductions
HEADWAVE_INLINE float reduce_add(vec<float> v) {
  const __m256 eight = _mm256_add_ps(v.low, v.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HEADWAVE_INLINE double reduce_add(vec<double> v) {
  const __m256d four = _mm256_add_pd(v.low, v.high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
HEADWAVE_INLINE float reduce_maximum(vec<float> v) {
  const __m256 eight = _mm256_max_ps(v.low, v.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
HEADWAVE_INLINE double reduce_maximum(vec<double> v) {
  const __m256d four = _mm256_max_pd(v.low, v.high);
  const __m128d two = _mm_max_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_max_sd(two, _mm_unpackhi_pd(two, two)));
}

// ---- masks
HEADWAVE_INLINE lane_mask<float> less(vec<float> a, vec<float> b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
}
HEADWAVE_INLINE lane_mask<double> less(vec<double> a, vec<double> b) {
  return {_mm256_cmp_pd(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_pd(a.high, b.high, _CMP_LT_OQ)};
}
HEADWAVE_INLINE lane_mask<float> not_less(vec<float> a, vec<float> b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_NLT_UQ), _mm256_cmp_ps(a.high, b.high, _CMP_NLT_UQ)};
}
HEADWAVE_INLINE lane_mask<double> not_less(vec<double> a, vec<double> b) {
  return {_mm256_cmp_pd(a.low, b.low, _CMP_NLT_UQ), _mm256_cmp_pd(a.high, b.high, _CMP_NLT_UQ)};
}
HEADWAVE_INLINE lane_mask<float> is_negative_infinity(vec<float> v) {
  const __m256i pattern = _mm256_set1_epi32(static_cast<int>(0xff800000u));
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_castps_si256(v.low), pattern)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_castps_si256(v.high), pattern))};
}
HEADWAVE_INLINE lane_mask<double> is_negative_infinity(vec<double> v) {
  const __m256i pattern = _mm256_set1_epi64x(static_cast<long long>(0xfff0000000000000u));
  return {_mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_castpd_si256(v.low), pattern)),
          _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_castpd_si256(v.high), pattern))};
}
HEADWAVE_INLINE bool all_finite(vec<float> v) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  const __m256i low = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(v.low), exponent), exponent);
  const __m256i high = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(v.high), exponent), exponent);
  return _mm256_testz_si256(_mm256_or_si256(low, high), _mm256_or_si256(low, high)) != 0;
}
HEADWAVE_INLINE bool all_finite(vec<double> v) {
  const __m256i exponent = _mm256_set1_epi64x(0x7ff0000000000000);
  const __m256i low = _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_castpd_si256(v.low), exponent), exponent);
  const __m256i high = _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_castpd_si256(v.high), exponent), exponent);
  return _mm256_testz_si256(_mm256_or_si256(low, high), _mm256_or_si256(low, high)) != 0;
}
HEADWAVE_INLINE void load_mask(const unsigned char* p, lane_mask<float>& mask) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i zero = _mm256_setzero_si256();
  mask.low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(bytes), zero));
  mask.high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)), zero));
}
HEADWAVE_INLINE void load_mask(const unsigned char* p, lane_mask<double>& mask) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m256i zero = _mm256_setzero_si256();
  mask.low = _mm256_castsi256_pd(_mm256_cmpgt_epi64(_mm256_cvtepu8_epi64(bytes), zero));
  mask.high = _mm256_castsi256_pd(_mm256_cmpgt_epi64(_mm256_cvtepu8_epi64(_mm_srli_si128(bytes, 4)), zero));
}
HEADWAVE_INLINE vec<float> select(lane_mask<float> mask, vec<float> a, vec<float> b) {
  return {_mm256_blendv_ps(b.low, a.low, mask.low), _mm256_blendv_ps(b.high, a.high, mask.high)};
}
HEADWAVE_INLINE vec<double> select(lane_mask<double> mask, vec<double> a, vec<double> b) {
  return {_mm256_blendv_pd(b.low, a.low, mask.low), _mm256_blendv_pd(b.high, a.high, mask.high)};
}
HEADWAVE_INLINE vec<float> keep(lane_mask<float> mask, vec<float> v) {
  return {_mm256_and_ps(mask.low, v.low), _mm256_and_ps(mask.high, v.high)};
}
HEADWAVE_INLINE vec<double> keep(lane_mask<double> mask, vec<double> v) {
  return {_mm256_and_pd(mask.low, v.low), _mm256_and_pd(mask.high, v.high)};
}

// ---- 64-bit integers
HEADWAVE_INLINE vec<std::uint64_t> add(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm256_add_epi64(a.low, b.low), _mm256_add_epi64(a.high, b.high)};
}
HEADWAVE_INLINE vec<std::uint64_t> bit_and(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
HEADWAVE_INLINE vec<std::uint64_t> bit_or(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
HEADWAVE_INLINE vec<std::uint64_t> bit_xor(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
HEADWAVE_INLINE vec<std::uint64_t> multiply_lower(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  return {_mm256_mul_epu32(a.low, b.low), _mm256_mul_epu32(a.high, b.high)};
}
template <int Bits>
HEADWAVE_INLINE vec<std::uint64_t> shift_left(vec<std::uint64_t> v) {
  return {_mm256_slli_epi64(v.low, Bits), _mm256_slli_epi64(v.high, Bits)};
}
template <int Bits>
HEADWAVE_INLINE vec<std::uint64_t> shift_right(vec<std::uint64_t> v) {
  return {_mm256_srli_epi64(v.low, Bits), _mm256_srli_epi64(v.high, Bits)};
}
HEADWAVE_INLINE vec<double> as_double(vec<std::uint64_t> bits) {
  return {_mm256_castsi256_pd(bits.low), _mm256_castsi256_pd(bits.high)};
}
HEADWAVE_INLINE vec<std::uint64_t> as_bits(vec<double> v) {
  return {_mm256_castpd_si256(v.low), _mm256_castpd_si256(v.high)};
}
HEADWAVE_INLINE lane_mask<double> top_bit(vec<std::uint64_t> v) {
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_castsi256_pd(_mm256_cmpgt_epi64(zero, v.low)), _mm256_castsi256_pd(_mm256_cmpgt_epi64(zero, v.high))};
}

// ---- doubles rounded to the element type
HEADWAVE_INLINE void store_rounded(double* p, vec<double> v) {
  store(p, v);
}
HEADWAVE_INLINE void store_rounded(float* p, vec<double> v) {
  _mm_storeu_ps(p, _mm256_cvtpd_ps(v.low));
  _mm_storeu_ps(p + 4, _mm256_cvtpd_ps(v.high));
}
HEADWAVE_INLINE void store_pairs_rounded(double* p, vec<double> first, vec<double> second) {
  const __m256d low_even = _mm256_unpacklo_pd(first.low, second.low);     // pairs 0 and 2
  const __m256d low_odd = _mm256_unpackhi_pd(first.low, second.low);      // pairs 1 and 3
  const __m256d high_even = _mm256_unpacklo_pd(first.high, second.high);  // pairs 4 and 6
  const __m256d high_odd = _mm256_unpackhi_pd(first.high, second.high);   // pairs 5 and 7
  _mm256_storeu_pd(p, _mm256_permute2f128_pd(low_even, low_odd, 0x20));
  _mm256_storeu_pd(p + 4, _mm256_permute2f128_pd(low_even, low_odd, 0x31));
  _mm256_storeu_pd(p + 8, _mm256_permute2f128_pd(high_even, high_odd, 0x20));
  _mm256_storeu_pd(p + 12, _mm256_permute2f128_pd(high_even, high_odd, 0x31));
}
HEADWAVE_INLINE void store_pairs_rounded(float* p, vec<double> first, vec<double> second) {
  const __m128 low_first = _mm256_cvtpd_ps(first.low), low_second = _mm256_cvtpd_ps(second.low);
  const __m128 high_first = _mm256_cvtpd_ps(first.high), high_second = _mm256_cvtpd_ps(second.high);
  _mm_storeu_ps(p, _mm_unpacklo_ps(low_first, low_second));
  _mm_storeu_ps(p + 4, _mm_unpackhi_ps(low_first, low_second));
  _mm_storeu_ps(p + 8, _mm_unpacklo_ps(high_first, high_second));
  _mm_storeu_ps(p + 12, _mm_unpackhi_ps(high_first, high_second));
}

// ---- storage types and integers, as floats and back
HEADWAVE_INLINE __m256 widen(__m128i bfloats) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bfloats), 16));
}
HEADWAVE_INLINE vec<float> load_converted(const bfloat16* p) {
  return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
HEADWAVE_INLINE vec<float> load_converted(const float16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
HEADWAVE_INLINE vec<float> load_converted(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
// Each bfloat16 in the lower half of 32 bits.
HEADWAVE_INLINE __m256i round_to_bfloat(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v), upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i below_half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, below_half), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000)));
}
HEADWAVE_INLINE void store_converted(bfloat16* p, vec<float> v) {
  // Packing goes by halves of registers: four of v.low, four of v.high, and again.
  const __m256i packed = _mm256_packus_epi32(round_to_bfloat(v.low), round_to_bfloat(v.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
HEADWAVE_INLINE void store_converted(float16* p, vec<float> v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
