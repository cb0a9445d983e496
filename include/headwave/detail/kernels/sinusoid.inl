// SPDX-License-Identifier: MIT
// Rows of sines and cosines from phases. Compiled once per tier; see detail/tiers.hpp and, for phases,
// detail/phase.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// Minimax polynomials of u = x^2 on |x| <= 1/2, x in quarter turns: sin = x * sine(u), cos = 1 + u * cosine(u).
/// Largest error 1.4e-21 before rounding.
struct quarter_turn {
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

/// Sines and cosines of phases in units of 2^-64 turns.
HEADWAVE_INLINE void sine_cosine(vec<std::uint64_t> phase, vec<double>& sine, vec<double>& cosine) {
  // An eighth of a turn further on, the top two bits count quarter turns and the others are the angle's distance from
  // their middle: x + 1/2. 52 of them become the mantissa of a number in [1, 2); the other 12 follow, so that a small
  // angle keeps its relative accuracy.
  const vec<std::uint64_t> turned = add(phase, broadcast(std::uint64_t(1) << 61));
  const vec<std::uint64_t> distance = shift_left<2>(turned);
  const vec<std::uint64_t> one = broadcast(bits_of(1.0));
  const vec<double> high = subtract(as_double(bit_or(shift_right<12>(distance), one)), broadcast(1.5));
  const vec<std::uint64_t> low = bit_and(distance, broadcast(std::uint64_t(0xfff)));
  const vec<double> rest = subtract(as_double(bit_or(low, broadcast(bits_of(0x1p52)))), broadcast(0x1p52));
  const vec<double> x = multiply_add(rest, broadcast(0x1p-64), high);
  const vec<double> u = multiply(x, x);
  const vec<double> s = multiply(x, polynomial(quarter_turn::sine, u));
  const vec<double> c = multiply_add(polynomial(quarter_turn::cosine, u), u, broadcast(1.0));
  // Quarter 0: (s, c), 1: (c, -s), 2: (-s, -c), 3: (-c, s).
  const vec<std::uint64_t> top = broadcast(sign_bit<double>);
  const vec<std::uint64_t> odd_quarter = shift_left<1>(turned);
  const lane_mask<double> swapped = top_bit(odd_quarter);
  sine = as_double(bit_xor(as_bits(select(swapped, c, s)), bit_and(turned, top)));
  cosine = as_double(bit_xor(as_bits(select(swapped, s, c)), bit_and(bit_xor(turned, odd_quarter), top)));
}

/// count sines and as many cosines behind them.
inline void sine_cosine_row(double* row, const std::uint64_t* phases, index count) {
  for (index pair = 0; pair < count; pair += vec<double>::lanes) {
    vec<double> sine, cosine;
    sine_cosine(load(phases + pair), sine, cosine);
    store(row + pair, sine);
    store(row + count + pair, cosine);
  }
}

/// The first count elements of a group at the end of a row.
template <class T>
HEADWAVE_INLINE void copy_first(T* out, const T* group, index count) {
  for (index i = 0; i < count; ++i) {
    out[i] = group[i];
  }
}

/// Eight angles a of the anchor, turned by b.
///   sin(a + b) = sin a cos b + cos a sin b,  cos(a + b) = cos a cos b - sin a sin b
template <bool CosineFirst>
HEADWAVE_INLINE void turn_angles(const double* a, const double* b, index count, vec<double>& first,
                                 vec<double>& second) {
  const vec<double> sine_a = load(a), cosine_a = load(a + count), sine_b = load(b), cosine_b = load(b + count);
  const vec<double> sine = multiply_add(sine_a, cosine_b, multiply(cosine_a, sine_b));
  const vec<double> cosine = multiply_subtract(cosine_a, cosine_b, multiply(sine_a, sine_b));
  first = CosineFirst ? cosine : sine;
  second = CosineFirst ? sine : cosine;
}

/// One row of an encoding.
template <bool Interleaved, bool CosineFirst, class T>
HEADWAVE_INLINE void sinusoid_row(const sinusoid_arguments<T>& a, const double* turn, T* out) {
  constexpr index lanes = vec<double>::lanes;
  const double* const anchor = a.anchor;
  const index count = a.count, firsts = a.firsts, whole = a.seconds - a.seconds % lanes;
  vec<double> first, second;
  for (index pair = 0; pair < whole; pair += lanes) {
    turn_angles<CosineFirst>(anchor + pair, turn + pair, count, first, second);
    if constexpr (Interleaved) {
      store_pairs_rounded(out + 2 * pair, first, second);
    } else {
      store_rounded(out + pair, first);
      store_rounded(out + firsts + pair, second);
    }
  }
  if (whole < firsts) {
    T group[2 * lanes];
    turn_angles<CosineFirst>(anchor + whole, turn + whole, count, first, second);
    if constexpr (Interleaved) {
      store_pairs_rounded(group, first, second);
      copy_first(out + 2 * whole, group, firsts + a.seconds - 2 * whole);
    } else {
      store_rounded(group, first);
      store_rounded(group + lanes, second);
      copy_first(out + whole, group, firsts - whole);
      copy_first(out + firsts + whole, group + lanes, a.seconds - whole);
    }
  }
  for (index channel = firsts + a.seconds; channel < a.channels; ++channel) {
    out[channel] = T(0);
  }
}

template <bool Interleaved, bool CosineFirst, class T>
void sinusoid_rows_in_layout(const sinusoid_arguments<T>& a) {
  for (index row = 0; row < a.rows; ++row) {
    sinusoid_row<Interleaved, CosineFirst>(a, a.turns + (a.first_row + row) * 2 * a.count, a.out + row * a.row_stride);
  }
}

/// Consecutive rows of one group, out[row * row_stride + channel]. Turns that were not known become so.
template <class T>
void sinusoid_rows(sinusoid_arguments<T>& a) {
  sine_cosine_row(a.anchor, a.phases, a.count);
  for (index row = a.first_row; row < a.first_row + a.rows; ++row) {
    const auto place = static_cast<std::uint32_t>(row);
    if ((a.known >> place & 1u) == 0) {
      for (index i = 0; i < a.count; ++i) {
        a.turned[i] = place * a.steps[i];
      }
      sine_cosine_row(a.turns + row * 2 * a.count, a.turned, a.count);
      a.known |= 1u << place;
    }
  }
  if (a.interleaved) {
    a.cosine_first ? sinusoid_rows_in_layout<true, true>(a) : sinusoid_rows_in_layout<true, false>(a);
  } else {
    a.cosine_first ? sinusoid_rows_in_layout<false, true>(a) : sinusoid_rows_in_layout<false, false>(a);
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
