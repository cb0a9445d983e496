// SPDX-License-Identifier: MIT
// The operations of the kernels on AArch64's Advanced SIMD, which is part of every AArch64. Included by
// detail/tiers.hpp, where HEADWAVE_TIER is neon.
//
// vec<T> is one cache line of elements, 16 floats or 8 doubles, on every ISA: here four 128-bit registers. Every
// simd/*.hpp file defines the same operations in the same order; what an operation means is said in simd/scalar.hpp.
// Finite results have the bits that AVX2 gives; the sign and payload of a NaN are the processor's own.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

// 5 x 1 vectors of accumulators are 20 registers; 4 hold a row of the panel and 5 the broadcasts, which g++ loads all
// at once: 29 of 32, where a sixth row would not fit. Per step of depth 20 FMA against 4 + 5 loads; 20 chains keep up
// to 4 FMA a cycle busy.
inline constexpr int tile_rows = 5;
inline constexpr int tile_panels = 1;
inline constexpr int tile_chains = 2;
inline constexpr int interleaved = 1;
inline constexpr bool has_fma = true;

template <class T>
struct vec;
template <class T>
struct lane_mask;

template <>
struct vec<float> {
  static constexpr index lanes = 16;
  float32x4_t part[4];
};
template <>
struct vec<double> {
  static constexpr index lanes = 8;
  float64x2_t part[4];
};
template <>
struct vec<std::uint64_t> {
  static constexpr index lanes = 8;
  uint64x2_t part[4];
};
template <>
struct lane_mask<float> {
  uint32x4_t part[4];
};
template <>
struct lane_mask<double> {
  uint64x2_t part[4];
};

// Defines name(parameters) as four times the expression, in which i is the number of the part.
#define HEADWAVE_PARTWISE(Result, name, parameters, expression) \
  HEADWAVE_INLINE Result name parameters { \
    Result result; \
    HEADWAVE_UNROLL \
    for (int i = 0; i < 4; ++i) { \
      result.part[i] = expression; \
    } \
    return result; \
  }

// ---- memory
HEADWAVE_PARTWISE(vec<float>, broadcast, (float x), vdupq_n_f32(x))
HEADWAVE_PARTWISE(vec<double>, broadcast, (double x), vdupq_n_f64(x))
HEADWAVE_PARTWISE(vec<std::uint64_t>, broadcast, (std::uint64_t x), vdupq_n_u64(x))
HEADWAVE_PARTWISE(vec<float>, load, (const float* p), vld1q_f32(p + 4 * i))
HEADWAVE_PARTWISE(vec<double>, load, (const double* p), vld1q_f64(p + 2 * i))
HEADWAVE_PARTWISE(vec<std::uint64_t>, load, (const std::uint64_t* p), vld1q_u64(p + 2 * i))
HEADWAVE_INLINE void store(float* p, vec<float> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    vst1q_f32(p + 4 * i, v.part[i]);
  }
}
HEADWAVE_INLINE void store(double* p, vec<double> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    vst1q_f64(p + 2 * i, v.part[i]);
  }
}
HEADWAVE_INLINE void store(std::uint64_t* p, vec<std::uint64_t> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    vst1q_u64(p + 2 * i, v.part[i]);
  }
}
HEADWAVE_INLINE void transpose(float* target, const float* source, index stride) {
  for (index row = 0; row < 16; row += 4) {
    for (index column = 0; column < 16; column += 4) {
      const float* const p = source + row * stride + column;
      const float32x4_t row0 = vld1q_f32(p), row1 = vld1q_f32(p + stride);
      const float32x4_t row2 = vld1q_f32(p + 2 * stride), row3 = vld1q_f32(p + 3 * stride);
      const float64x2_t even_01 = vreinterpretq_f64_f32(vtrn1q_f32(row0, row1));
      const float64x2_t odd_01 = vreinterpretq_f64_f32(vtrn2q_f32(row0, row1));
      const float64x2_t even_23 = vreinterpretq_f64_f32(vtrn1q_f32(row2, row3));
      const float64x2_t odd_23 = vreinterpretq_f64_f32(vtrn2q_f32(row2, row3));
      float* const t = target + column * 16 + row;
      vst1q_f32(t, vreinterpretq_f32_f64(vtrn1q_f64(even_01, even_23)));
      vst1q_f32(t + 16, vreinterpretq_f32_f64(vtrn1q_f64(odd_01, odd_23)));
      vst1q_f32(t + 32, vreinterpretq_f32_f64(vtrn2q_f64(even_01, even_23)));
      vst1q_f32(t + 48, vreinterpretq_f32_f64(vtrn2q_f64(odd_01, odd_23)));
    }
  }
}
HEADWAVE_INLINE void transpose(double* target, const double* source, index stride) {
  for (index row = 0; row < 8; row += 2) {
    for (index column = 0; column < 8; column += 2) {
      const double* const p = source + row * stride + column;
      const float64x2_t row0 = vld1q_f64(p), row1 = vld1q_f64(p + stride);
      vst1q_f64(target + column * 8 + row, vtrn1q_f64(row0, row1));
      vst1q_f64(target + (column + 1) * 8 + row, vtrn2q_f64(row0, row1));
    }
  }
}

// ---- arithmetic
HEADWAVE_PARTWISE(vec<float>, add, (vec<float> a, vec<float> b), vaddq_f32(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<double>, add, (vec<double> a, vec<double> b), vaddq_f64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<float>, subtract, (vec<float> a, vec<float> b), vsubq_f32(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<double>, subtract, (vec<double> a, vec<double> b), vsubq_f64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<float>, multiply, (vec<float> a, vec<float> b), vmulq_f32(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<double>, multiply, (vec<double> a, vec<double> b), vmulq_f64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<float>, divide, (vec<float> a, vec<float> b), vdivq_f32(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<double>, divide, (vec<double> a, vec<double> b), vdivq_f64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<float>, multiply_add, (vec<float> a, vec<float> b, vec<float> c),
                  vfmaq_f32(c.part[i], a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<double>, multiply_add, (vec<double> a, vec<double> b, vec<double> c),
                  vfmaq_f64(c.part[i], a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<float>, multiply_subtract, (vec<float> a, vec<float> b, vec<float> c),
                  vfmaq_f32(vnegq_f32(c.part[i]), a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<double>, multiply_subtract, (vec<double> a, vec<double> b, vec<double> c),
                  vfmaq_f64(vnegq_f64(c.part[i]), a.part[i], b.part[i]))
// Not vmaxq: that gives NaN where a is NaN.
HEADWAVE_PARTWISE(vec<float>, maximum, (vec<float> a, vec<float> b),
                  vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<double>, maximum, (vec<double> a, vec<double> b),
                  vbslq_f64(vcgtq_f64(a.part[i], b.part[i]), a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<float>, absolute, (vec<float> v), vabsq_f32(v.part[i]))
HEADWAVE_PARTWISE(vec<double>, absolute, (vec<double> v), vabsq_f64(v.part[i]))
HEADWAVE_PARTWISE(vec<float>, copy_sign, (vec<float> magnitude, vec<float> sign_of),
                  vbslq_f32(vdupq_n_u32(sign_bit<float>), sign_of.part[i], magnitude.part[i]))
HEADWAVE_PARTWISE(vec<double>, copy_sign, (vec<double> magnitude, vec<double> sign_of),
                  vbslq_f64(vdupq_n_u64(sign_bit<double>), sign_of.part[i], magnitude.part[i]))
HEADWAVE_PARTWISE(vec<float>, swap_neighbours, (vec<float> v), vrev64q_f32(v.part[i]))
HEADWAVE_PARTWISE(vec<double>, swap_neighbours, (vec<double> v), vextq_f64(v.part[i], v.part[i], 1))

// ---- exponents
HEADWAVE_PARTWISE(vec<float>, round_to_nearest, (vec<float> v), vrndnq_f32(v.part[i]))
HEADWAVE_PARTWISE(vec<double>, round_to_nearest, (vec<double> v), vrndnq_f64(v.part[i]))
HEADWAVE_PARTWISE(vec<float>, times_power_of_two, (vec<float> p, vec<float> n),
                  vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p.part[i]),
                                                  vshlq_n_s32(vcvtq_s32_f32(n.part[i]), 23))))
HEADWAVE_PARTWISE(vec<double>, times_power_of_two, (vec<double> p, vec<double> n),
                  vreinterpretq_f64_s64(vaddq_s64(vreinterpretq_s64_f64(p.part[i]),
                                                  vshlq_n_s64(vcvtq_s64_f64(n.part[i]), 52))))

// ---- reductions
HEADWAVE_INLINE float reduce_add(vec<float> v) {
  const float32x4_t four = vaddq_f32(vaddq_f32(v.part[0], v.part[2]), vaddq_f32(v.part[1], v.part[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
HEADWAVE_INLINE double reduce_add(vec<double> v) {
  const float64x2_t two = vaddq_f64(vaddq_f64(v.part[0], v.part[2]), vaddq_f64(v.part[1], v.part[3]));
  return vgetq_lane_f64(two, 0) + vgetq_lane_f64(two, 1);
}
HEADWAVE_INLINE float32x4_t larger_of(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
HEADWAVE_INLINE float64x2_t larger_of(float64x2_t a, float64x2_t b) {
  return vbslq_f64(vcgtq_f64(a, b), a, b);
}
HEADWAVE_INLINE float reduce_maximum(vec<float> v) {
  const float32x4_t four = larger_of(larger_of(v.part[0], v.part[2]), larger_of(v.part[1], v.part[3]));
  const float32x4_t two = larger_of(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(larger_of(two, vextq_f32(two, two, 1)), 0);
}
HEADWAVE_INLINE double reduce_maximum(vec<double> v) {
  const float64x2_t two = larger_of(larger_of(v.part[0], v.part[2]), larger_of(v.part[1], v.part[3]));
  return vgetq_lane_f64(larger_of(two, vextq_f64(two, two, 1)), 0);
}

// ---- masks
HEADWAVE_PARTWISE(lane_mask<float>, less, (vec<float> a, vec<float> b), vcltq_f32(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(lane_mask<double>, less, (vec<double> a, vec<double> b), vcltq_f64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(lane_mask<float>, not_less, (vec<float> a, vec<float> b), vmvnq_u32(vcltq_f32(a.part[i], b.part[i])))
HEADWAVE_PARTWISE(lane_mask<double>, not_less, (vec<double> a, vec<double> b),
                  veorq_u64(vcltq_f64(a.part[i], b.part[i]), vdupq_n_u64(~std::uint64_t(0))))
HEADWAVE_PARTWISE(lane_mask<float>, is_negative_infinity, (vec<float> v),
                  vceqq_u32(vreinterpretq_u32_f32(v.part[i]), vdupq_n_u32(negative_infinity_bits<float>)))
HEADWAVE_PARTWISE(lane_mask<double>, is_negative_infinity, (vec<double> v),
                  vceqq_u64(vreinterpretq_u64_f64(v.part[i]), vdupq_n_u64(negative_infinity_bits<double>)))
HEADWAVE_INLINE bool all_finite(vec<float> v) {
  const uint32x4_t exponent = vdupq_n_u32(exponent_mask<float>);
  uint32x4_t infinite = vdupq_n_u32(0);
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    infinite = vorrq_u32(infinite, vceqq_u32(vandq_u32(vreinterpretq_u32_f32(v.part[i]), exponent), exponent));
  }
  return vmaxvq_u32(infinite) == 0;
}
HEADWAVE_INLINE bool all_finite(vec<double> v) {
  const uint64x2_t exponent = vdupq_n_u64(exponent_mask<double>);
  uint64x2_t infinite = vdupq_n_u64(0);
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    infinite = vorrq_u64(infinite, vceqq_u64(vandq_u64(vreinterpretq_u64_f64(v.part[i]), exponent), exponent));
  }
  return vmaxvq_u32(vreinterpretq_u32_u64(infinite)) == 0;
}
// A byte that is not 0 becomes -1, which keeps all its bits set as it is widened.
HEADWAVE_INLINE void load_mask(const unsigned char* p, lane_mask<float>& mask) {
  const uint8x16_t bytes = vld1q_u8(p);
  const int8x16_t set = vreinterpretq_s8_u8(vtstq_u8(bytes, bytes));
  const int16x8_t low = vmovl_s8(vget_low_s8(set)), high = vmovl_s8(vget_high_s8(set));
  mask.part[0] = vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(low)));
  mask.part[1] = vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(low)));
  mask.part[2] = vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(high)));
  mask.part[3] = vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(high)));
}
HEADWAVE_INLINE void load_mask(const unsigned char* p, lane_mask<double>& mask) {
  const uint8x8_t bytes = vld1_u8(p);
  const int16x8_t set = vmovl_s8(vreinterpret_s8_u8(vtst_u8(bytes, bytes)));
  const int32x4_t low = vmovl_s16(vget_low_s16(set)), high = vmovl_s16(vget_high_s16(set));
  mask.part[0] = vreinterpretq_u64_s64(vmovl_s32(vget_low_s32(low)));
  mask.part[1] = vreinterpretq_u64_s64(vmovl_s32(vget_high_s32(low)));
  mask.part[2] = vreinterpretq_u64_s64(vmovl_s32(vget_low_s32(high)));
  mask.part[3] = vreinterpretq_u64_s64(vmovl_s32(vget_high_s32(high)));
}
HEADWAVE_PARTWISE(vec<float>, select, (lane_mask<float> mask, vec<float> a, vec<float> b),
                  vbslq_f32(mask.part[i], a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<double>, select, (lane_mask<double> mask, vec<double> a, vec<double> b),
                  vbslq_f64(mask.part[i], a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<float>, keep, (lane_mask<float> mask, vec<float> v),
                  vreinterpretq_f32_u32(vandq_u32(mask.part[i], vreinterpretq_u32_f32(v.part[i]))))
HEADWAVE_PARTWISE(vec<double>, keep, (lane_mask<double> mask, vec<double> v),
                  vreinterpretq_f64_u64(vandq_u64(mask.part[i], vreinterpretq_u64_f64(v.part[i]))))

// ---- 64-bit integers
HEADWAVE_PARTWISE(vec<std::uint64_t>, add, (vec<std::uint64_t> a, vec<std::uint64_t> b),
                  vaddq_u64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<std::uint64_t>, bit_and, (vec<std::uint64_t> a, vec<std::uint64_t> b),
                  vandq_u64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<std::uint64_t>, bit_or, (vec<std::uint64_t> a, vec<std::uint64_t> b),
                  vorrq_u64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<std::uint64_t>, bit_xor, (vec<std::uint64_t> a, vec<std::uint64_t> b),
                  veorq_u64(a.part[i], b.part[i]))
HEADWAVE_PARTWISE(vec<std::uint64_t>, multiply_lower, (vec<std::uint64_t> a, vec<std::uint64_t> b),
                  vmull_u32(vmovn_u64(a.part[i]), vmovn_u64(b.part[i])))
template <int Bits>
HEADWAVE_PARTWISE(vec<std::uint64_t>, shift_left, (vec<std::uint64_t> v), vshlq_n_u64(v.part[i], Bits))
template <int Bits>
HEADWAVE_PARTWISE(vec<std::uint64_t>, shift_right, (vec<std::uint64_t> v), vshrq_n_u64(v.part[i], Bits))
HEADWAVE_PARTWISE(vec<double>, as_double, (vec<std::uint64_t> bits), vreinterpretq_f64_u64(bits.part[i]))
    HEADWAVE_PARTWISE(vec<std::uint64_t>, as_bits, (vec<double> v), vreinterpretq_u64_f64(v.part[i]))
        HEADWAVE_PARTWISE(lane_mask<double>, top_bit, (vec<std::uint64_t> v),
                          vcltzq_s64(vreinterpretq_s64_u64(v.part[i])))

    // ---- doubles rounded to the element type
    HEADWAVE_INLINE void store_rounded(double* p, vec<double> v) {
  store(p, v);
}
HEADWAVE_INLINE void store_rounded(float* p, vec<double> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    vst1_f32(p + 2 * i, vcvt_f32_f64(v.part[i]));
  }
}
HEADWAVE_INLINE void store_pairs_rounded(double* p, vec<double> first, vec<double> second) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    vst1q_f64(p + 4 * i, vzip1q_f64(first.part[i], second.part[i]));
    vst1q_f64(p + 4 * i + 2, vzip2q_f64(first.part[i], second.part[i]));
  }
}
HEADWAVE_INLINE void store_pairs_rounded(float* p, vec<double> first, vec<double> second) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float32x2_t firsts = vcvt_f32_f64(first.part[i]), seconds = vcvt_f32_f64(second.part[i]);
    vst1q_f32(p + 4 * i, vcombine_f32(vzip1_f32(firsts, seconds), vzip2_f32(firsts, seconds)));
  }
}

// ---- storage types and integers, as floats and back
HEADWAVE_PARTWISE(vec<float>, load_converted, (const bfloat16* p),
                  vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p[4 * i].bits), 16)))
HEADWAVE_PARTWISE(vec<float>, load_converted, (const float16* p),
                  vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p[4 * i].bits))))
HEADWAVE_INLINE vec<float> load_converted(const std::int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
HEADWAVE_INLINE void store_converted(bfloat16* p, vec<float> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v.part[i]), upper = vshrq_n_u32(bits, 16);
    const uint32x4_t below_half = vaddq_u32(vandq_u32(upper, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, below_half), 16);
    const uint32x4_t quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
    const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
    const uint32x4_t is_nan = vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000));
    vst1_u16(&p[4 * i].bits, vmovn_u32(vbslq_u32(is_nan, quiet, rounded)));
  }
}
HEADWAVE_INLINE void store_converted(float16* p, vec<float> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    vst1_u16(&p[4 * i].bits, vreinterpret_u16_f16(vcvt_f16_f32(v.part[i])));
  }
}

#undef HEADWAVE_PARTWISE

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
