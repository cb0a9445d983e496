// SPDX-License-Identifier: MIT
// Rows of sines and cosines from phases. Compiled once per tier; see detail/tiers.hpp and, for phases,
// detail/phase.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// Minimax polynomials of u = x^2 on |x| <= 1/2, x in quarter turns: sin = x * sine(u), cos = 1 + u * cosine(u).
/// Largest error for float 1.9e-10 and for double 1.4e-21, both before rounding.
template <class T>
struct quarter_turn;
template <>
struct quarter_turn<float> {
  static constexpr double sine[] = {0x1.921fb5443b5c4p+0, -0x1.4abbce56b23a7p-1, 0x1.466bbacb04e86p-4,
                                    -0x1.32ca9e6d0c6ffp-8, 0x1.4bc8998db7461p-13};
  static constexpr double cosine[] = {-0x1.3bd3cc98a08d6p+0, 0x1.03c1e9f81dc6ap-2, -0x1.55cb98f579469p-6,
                                      0x1.db650eb2beacfp-11};
};
template <>
struct quarter_turn<double> {
  static constexpr double sine[] = {0x1.921fb54442d18p+0,  -0x1.4abbce625be53p-1, 0x1.466bc6775aad9p-4,
                                    -0x1.32d2cce62ac24p-8, 0x1.50783485cc001p-13, -0x1.e3074b502d925p-19,
                                    0x1.e8eed15986b30p-25, -0x1.6c5b939123450p-31};
  static constexpr double cosine[] = {-0x1.3bd3cc9be45dep+0,  0x1.03c1f081b5ac4p-2,   -0x1.55d3c7e3cbff7p-6,
                                      0x1.e1f506891ae96p-11,  -0x1.a6d1f2a086e21p-16, 0x1.f9d3870895e62p-22,
                                      -0x1.b6de8ba96b89ep-28, 0x1.1e74660a1c8bdp-34};
};

/// c[0] + c[1] u + ... by Horner's rule.
template <class T, std::size_t Count>
HEADWAVE_INLINE vec<T> polynomial(const T (&c)[Count], vec<T> u) {
  vec<T> sum = broadcast(c[Count - 1]);
  HEADWAVE_UNROLL
  for (std::size_t i = 2; i <= Count; ++i) {
    sum = multiply_add(sum, u, broadcast(c[Count - i]));
  }
  return sum;
}

/// Sine and cosine of phases in units of 2^-64 turns, accurate enough to be rounded to T.
template <class T>
HEADWAVE_INLINE void sine_cosine(vec<std::uint64_t> phase, vec<double>& sine, vec<double>& cosine) {
  // An eighth of a turn further on, the top two bits count quarter turns and the others are the angle's distance from
  // their middle: x + 1/2. 52 of them become the mantissa of a number in [1, 2).
  const vec<std::uint64_t> turned = add(phase, broadcast(std::uint64_t(1) << 61));
  const vec<std::uint64_t> distance = shift_left<2>(turned);
  const vec<std::uint64_t> one = broadcast(bits_of(1.0));
  vec<double> x = subtract(as_double(bit_or(shift_right<12>(distance), one)), broadcast(1.5));
  if constexpr (sizeof(T) == sizeof(double)) {
    // The last 12 bits, so that a small angle keeps its relative accuracy.
    const vec<std::uint64_t> low = bit_and(distance, broadcast(std::uint64_t(0xfff)));
    const vec<double> rest = subtract(as_double(bit_or(low, broadcast(bits_of(0x1p52)))), broadcast(0x1p52));
    x = multiply_add(rest, broadcast(0x1p-64), x);
  }
  const vec<double> u = multiply(x, x);
  const vec<double> s = multiply(x, polynomial(quarter_turn<T>::sine, u));
  const vec<double> c = multiply_add(polynomial(quarter_turn<T>::cosine, u), u, broadcast(1.0));
  // Quarter 0: (s, c), 1: (c, -s), 2: (-s, -c), 3: (-c, s).
  const vec<std::uint64_t> top = broadcast(sign_bit<double>);
  const vec<std::uint64_t> odd_quarter = shift_left<1>(turned);
  const lane_mask<double> swapped = top_bit(odd_quarter);
  sine = as_double(bit_xor(as_bits(select(swapped, c, s)), bit_and(turned, top)));
  cosine = as_double(bit_xor(as_bits(select(swapped, s, c)), bit_and(bit_xor(turned, odd_quarter), top)));
}

/// The first count elements of a group at the end of a row.
template <class T>
HEADWAVE_INLINE void copy_first(T* out, const T* group, index count) {
  for (index i = 0; i < count; ++i) {
    out[i] = group[i];
  }
}

template <class T>
HEADWAVE_INLINE void sinusoid_row(const sinusoid_arguments<T>& a, T* out) {
  constexpr index lanes = vec<double>::lanes;
  T group[2 * lanes];
  for (index pair = 0; pair < a.firsts; pair += lanes) {
    vec<double> first, second;
    if (a.cosine_first) {
      sine_cosine<T>(load(a.phases + pair), second, first);
    } else {
      sine_cosine<T>(load(a.phases + pair), first, second);
    }
    if (a.interleaved) {
      const index left = a.firsts + a.seconds - 2 * pair;
      if (left >= 2 * lanes) {
        store_pairs_rounded(out + 2 * pair, first, second);
      } else {
        store_pairs_rounded(group, first, second);
        copy_first(out + 2 * pair, group, left);
      }
    } else if (pair + lanes <= a.seconds) {
      store_rounded(out + pair, first);
      store_rounded(out + a.firsts + pair, second);
    } else {
      store_rounded(group, first);
      copy_first(out + pair, group, a.firsts - pair < lanes ? a.firsts - pair : lanes);
      store_rounded(group, second);
      copy_first(out + a.firsts + pair, group, a.seconds - pair < lanes ? a.seconds - pair : lanes);
    }
  }
  for (index channel = a.firsts + a.seconds; channel < a.channels; ++channel) {
    out[channel] = T(0);
  }
}

/// Consecutive rows of an encoding, out[row * row_stride + channel]. The phases advance by their steps after each row.
template <class T>
void sinusoid_rows(const sinusoid_arguments<T>& a) {
  for (index row = 0; row < a.rows; ++row) {
    sinusoid_row(a, a.out + row * a.row_stride);
    for (index pair = 0; pair < a.firsts; pair += vec<std::uint64_t>::lanes) {
      store(a.phases + pair, add(load(a.phases + pair), load(a.steps + pair)));
    }
  }
}

/// x[i] += row[i] for count contiguous elements.
template <class T>
void add_row(T* x, const T* row, index count) {
  index i = 0;
  for (; i + vec<T>::lanes <= count; i += vec<T>::lanes) {
    store(x + i, add(load(x + i), load(row + i)));
  }
  for (; i < count; ++i) {
    x[i] = x[i] + row[i];
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
