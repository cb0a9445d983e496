// SPDX-License-Identifier: MIT
// The exponential, and softmax of a row. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// Constants of e^x = 2^n * 2^f, x log2(e) = n + f, |f| <= 1/2, with 2^f = 1 + f * power(f).
/// log2(e) in two parts keeps f exact to its last bit; below underflow the result is 0. The first part of ln(2) has so
/// few bits that n times it is exact.
template <class T>
struct exponential_constants;
template <>
struct exponential_constants<float> {
  static constexpr float log2_e_high = 0x1.715476p+0f, log2_e_low = 0x1.4ae0cp-26f;
  static constexpr float ln_2_high = 0x1.62e4p-1f, ln_2_low = 0x1.7f7d1cp-20f;
  static constexpr float underflow = -87.0f;
  static constexpr float power[] = {0x1.62e43p-1f,  0x1.ebfbep-3f,   0x1.c6af6cp-5f,
                                    0x1.3b29e4p-7f, 0x1.5f0896p-10f, 0x1.446c7cp-13f};
};
template <>
struct exponential_constants<double> {
  static constexpr double log2_e_high = 0x1.71547652b82fep+0, log2_e_low = 0x1.777d0ffda0d24p-56;
  static constexpr double ln_2_high = 0x1.62e42fefap-1, ln_2_low = 0x1.cf79abc9e3b3ap-40;
  static constexpr double underflow = -708.0;
  static constexpr double power[] = {0x1.62e42fefa39efp-1,  0x1.ebfbdff82c598p-3,  0x1.c6b08d704a0cbp-5,
                                     0x1.3b2ab6fba1ddap-7,  0x1.5d87fe78a2ccap-10, 0x1.430913096ff84p-13,
                                     0x1.ffcbfc743e32cp-17, 0x1.62bfd47724eddp-20, 0x1.b524dcbea595fp-24,
                                     0x1.e6063ffec5e05p-28, 0x1.ea044073920bdp-32};
};

/// x log2(e) = n + f.
template <class T>
HEADWAVE_INLINE void to_base_two(vec<T> x, vec<T>& n, vec<T>& f) {
  using constants = exponential_constants<T>;
  n = round_to_nearest(multiply(x, broadcast(constants::log2_e_high)));
  if constexpr (has_fma) {
    f = multiply_subtract(x, broadcast(constants::log2_e_high), n);
    f = multiply_add(x, broadcast(constants::log2_e_low), f);
  } else {
    // A rounded product less n would keep what it was rounded by, and that grows with x.
    const vec<T> rest = subtract(x, multiply(n, broadcast(constants::ln_2_high)));
    f = multiply(subtract(rest, multiply(n, broadcast(constants::ln_2_low))), broadcast(constants::log2_e_high));
  }
}

/// Each x becomes e^x, for x <= 80: at most 1.1 ulp off, without FMA 1.5; 0 below the underflow bound, -infinity
/// included; NaN for NaN. Step by step for the whole tile, because each step waits for the one before.
template <class T, int Rows, int Panels>
HEADWAVE_INLINE void exponentials(tile<T, Rows, Panels>& x) {
  using constants = exponential_constants<T>;
  constexpr std::size_t terms = sizeof(constants::power) / sizeof(T);
  tile<T, Rows, Panels> n, f, power;
  HEADWAVE_UNROLL
  for (int i = 0; i < Rows * Panels; ++i) {
    const int r = i / Panels, p = i % Panels;
    to_base_two(x.at[r][p], n.at[r][p], f.at[r][p]);
    power.at[r][p] = broadcast(constants::power[terms - 1]);
  }
  HEADWAVE_UNROLL
  for (std::size_t term = 2; term <= terms; ++term) {
    HEADWAVE_UNROLL
    for (int i = 0; i < Rows * Panels; ++i) {
      const int r = i / Panels, p = i % Panels;
      power.at[r][p] = multiply_add(power.at[r][p], f.at[r][p], broadcast(constants::power[terms - term]));
    }
  }
  HEADWAVE_UNROLL
  for (int i = 0; i < Rows * Panels; ++i) {
    const int r = i / Panels, p = i % Panels;
    const vec<T> result = multiply_add(power.at[r][p], f.at[r][p], broadcast(T(1)));
    x.at[r][p] = keep(not_less(x.at[r][p], broadcast(constants::underflow)), times_power_of_two(result, n.at[r][p]));
  }
}
template <class T>
HEADWAVE_INLINE vec<T> exponential(vec<T> x) {
  tile<T, 1, 1> one{{{x}}};
  exponentials(one);
  return one.at[0][0];
}

/// tanh(x) = -m / (2 + m) with m = e^(-2|x|) - 1, which is formed without cancellation, and the sign of x: at most 3.4
/// ulp off. NaN for NaN.
template <class T>
HEADWAVE_INLINE vec<T> hyperbolic_tangent(vec<T> x) {
  using constants = exponential_constants<T>;
  // Past 20 the result is 1 in float and double alike. The order of the operands lets NaN through.
  const vec<T> t = maximum(broadcast(T(-40)), multiply(absolute(x), broadcast(T(-2))));
  vec<T> n, f;
  to_base_two(t, n, f);
  const vec<T> scale = times_power_of_two(broadcast(T(1)), n);
  const vec<T> rise = multiply(polynomial(constants::power, f), f);
  const vec<T> m = multiply_add(rise, scale, subtract(scale, broadcast(T(1))));
  return copy_sign(divide(subtract(broadcast(T(0)), m), add(m, broadcast(T(2)))), x);
}

/// Turns scores of the keys key .. last-1 into powers e^(score - subtrahend), Vecs vecs of each of Rows rows at a time,
/// and adds them to sum; several at a time, because a single exponential would wait for itself. Rows lie stride apart.
/// Returns the first key that is left.
template <int Rows, int Vecs, class T>
HEADWAVE_INLINE index take_powers(tile<T, Rows, 1>& sum, const tile<T, Rows, 1>& subtrahend, T* out, const T* scores,
                                  index stride, index key, index last) {
  constexpr index lanes = vec<T>::lanes;
  for (; key + Vecs * lanes <= last; key += Vecs * lanes) {
    tile<T, Rows, Vecs> power;
    HEADWAVE_UNROLL
    for (int i = 0; i < Rows * Vecs; ++i) {
      const int r = i / Vecs, v = i % Vecs;
      power.at[r][v] = subtract(load(scores + r * stride + key + v * lanes), subtrahend.at[r][0]);
    }
    exponentials(power);
    HEADWAVE_UNROLL
    for (int i = 0; i < Rows * Vecs; ++i) {
      const int r = i / Vecs, v = i % Vecs;
      sum.at[r][0] = add(sum.at[r][0], power.at[r][v]);
      store(out + r * stride + key + v * lanes, power.at[r][v]);
    }
  }
  return key;
}

/// The same for one row; sum, a vec, receives what the powers of the keys key .. last-1 give, lane by lane. Not
/// inlined: the exponential is long.
template <class T>
void take_powers_of_row(T* sum, T subtrahend, T* out, const T* scores, index key, index last) {
  const tile<T, 1, 1> reference{{{broadcast(subtrahend)}}};
  tile<T, 1, 1> total;
  clear(total);
  key = take_powers<1, 2 * interleaved>(total, reference, out, scores, index(0), key, last);
  take_powers<1, 1>(total, reference, out, scores, index(0), key, last);
  store(sum, total.at[0][0]);
}

/// out[i] = e^(x[i] - max) / sum of e^(x[j] - max), over count elements; -infinity has weight 0, and so has a row of
/// nothing else. x and out may be the same row.
template <class T>
void softmax_row(T* out, index out_stride, const T* x, index x_stride, index count) {
  constexpr index lanes = vec<T>::lanes;
  const vec<T> nothing = broadcast(negative_infinity<T>());
  const vec<T> lane_numbers = load(lane_numbers_of<T>);
  // Whole vecs of contiguous rows go without masks.
  const index whole = x_stride == 1 && out_stride == 1 ? count - count % lanes : 0;
  vec<T> largest = broadcast(lowest_finite<T>());
  for (index i = 0; i < whole; i += lanes) {
    largest = maximum(largest, load(x + i));
  }
  for (index i = whole; i < count; i += lanes) {
    const lane_mask<T> present = less(lane_numbers, broadcast(static_cast<T>(count - i)));
    largest = maximum(largest, select(present, load_first(x + i * x_stride, x_stride, count - i), nothing));
  }
  const T reference = reduce_maximum(largest);
  T lane_sums[64 / sizeof(T)];
  take_powers_of_row(lane_sums, reference, out, x, 0, whole);
  vec<T> sums = load(lane_sums);
  for (index i = whole; i < count; i += lanes) {
    const lane_mask<T> present = less(lane_numbers, broadcast(static_cast<T>(count - i)));
    const vec<T> power =
        keep(present, exponential(subtract(load_first(x + i * x_stride, x_stride, count - i), broadcast(reference))));
    sums = add(sums, power);
    store_first(out + i * out_stride, out_stride, power, count - i);
  }
  const T sum = reduce_add(sums);
  const vec<T> divisor = broadcast(bits_of(sum) == 0 ? T(1) : sum);
  for (index i = 0; i < count; i += lanes) {
    const vec<T> power = load_first(out + i * out_stride, out_stride, count - i);
    store_first(out + i * out_stride, out_stride, divide(power, divisor), count - i);
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
