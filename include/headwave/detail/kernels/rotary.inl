// SPDX-License-Identifier: MIT
// Rotation of pairs of channels. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// The factors of one token: the anchor's angles, turned by the token's place in its group.
template <class T>
void rotary_row(const rotary_row_arguments<T>& a) {
  const vec<double> cosine_factor = broadcast(a.cosine_factor);
  const vec<double> sine_factor = broadcast(a.sine_factor), minus_sine_factor = broadcast(-a.sine_factor);
  for (index pair = 0; pair < a.count; pair += vec<double>::lanes) {
    vec<double> sine, cosine;
    turn_angles<false>(a.anchor + pair, a.turn + pair, a.count, sine, cosine);
    cosine = multiply(cosine, cosine_factor);
    if (a.interleaved) {
      store_pairs_rounded(a.row + 2 * pair, cosine, cosine);
      store_pairs_rounded(a.row + 2 * (a.count + pair), multiply(sine, minus_sine_factor), multiply(sine, sine_factor));
    } else {
      store_rounded(a.row + pair, cosine);
      store_rounded(a.row + a.count + pair, multiply(sine, sine_factor));
    }
  }
}

// Both layouts round alike: (a, b) becomes (a c - [b s], b c + [a s]), the brackets rounded first.

/// Channels x[i] and x[second + i] for i = 0 .. pairs - 1. At least a vec of them: the last vec overlaps the one
/// before, so it is read before anything is written.
template <class T>
HEADWAVE_INLINE void rotate_halves(T* x, index second, index pairs, const T* cosines, const T* sines) {
  constexpr index lanes = vec<T>::lanes;
  const index last = pairs - lanes;
  const vec<T> a = load(x + last), b = load(x + second + last), c = load(cosines + last), s = load(sines + last);
  const vec<T> last_a = multiply_subtract(a, c, multiply(b, s)), last_b = multiply_add(b, c, multiply(a, s));
  for (index i = 0; i < last; i += lanes) {
    const vec<T> ai = load(x + i), bi = load(x + second + i), ci = load(cosines + i), si = load(sines + i);
    store(x + i, multiply_subtract(ai, ci, multiply(bi, si)));
    store(x + second + i, multiply_add(bi, ci, multiply(ai, si)));
  }
  store(x + last, last_a);
  store(x + second + last, last_b);
}

/// Channels x[2 i] and x[2 i + 1] for i = 0 .. channels / 2 - 1. At least a vec of them, as above.
template <class T>
HEADWAVE_INLINE void rotate_pairs(T* x, index channels, const T* cosines, const T* sines) {
  constexpr index lanes = vec<T>::lanes;
  const index last = channels - lanes;
  const vec<T> v = load(x + last);
  const vec<T> last_v = multiply_add(v, load(cosines + last), multiply(swap_neighbours(v), load(sines + last)));
  for (index i = 0; i < last; i += lanes) {
    const vec<T> vi = load(x + i);
    store(x + i, multiply_add(vi, load(cosines + i), multiply(swap_neighbours(vi), load(sines + i))));
  }
  store(x + last, last_v);
}

/// One head by way of a buffer of 2 * count channels, for channels that lie apart or are fewer than a vec.
template <class T>
void rotate_apart(T* x, const rotary_arguments<T>& a, const T* row, T* buffer) {
  const index between_halves = a.interleaved ? 0 : a.count - a.pairs;
  for (index i = 0; i < 2 * a.count; ++i) {
    buffer[i] = T(0);
  }
  for (index i = 0; i < 2 * a.pairs; ++i) {
    buffer[i < a.pairs ? i : i + between_halves] = x[i * a.channel_stride];
  }
  if (a.interleaved) {
    rotate_pairs(buffer, 2 * a.count, row, row + 2 * a.count);
  } else {
    rotate_halves(buffer, a.count, a.count, row, row + a.count);
  }
  for (index i = 0; i < 2 * a.pairs; ++i) {
    x[i * a.channel_stride] = buffer[i < a.pairs ? i : i + between_halves];
  }
}

/// Tokens and heads in the order of memory: of the two, the one whose neighbours are closer is the inner loop.
/// buffer: [2][count].
template <class T>
void rotate_heads(const rotary_arguments<T>& a, T* buffer) {
  const index token_distance = a.token_stride < 0 ? -a.token_stride : a.token_stride;
  const index head_distance = a.head_stride < 0 ? -a.head_stride : a.head_stride;
  const bool heads_inside = head_distance <= token_distance;
  const index outer_count = heads_inside ? a.tokens : a.heads, inner_count = heads_inside ? a.heads : a.tokens;
  const index row_size = rotary_row_size(a.count, a.interleaved);
  const bool together = a.channel_stride == 1 && (a.interleaved ? 2 * a.pairs : a.pairs) >= vec<T>::lanes;
  for (index sample = 0; sample < a.samples; ++sample) {
    for (index outer = 0; outer < outer_count; ++outer) {
      for (index inner = 0; inner < inner_count; ++inner) {
        const index token = heads_inside ? outer : inner, head = heads_inside ? inner : outer;
        T* const x = a.data + sample * a.sample_stride + token * a.token_stride + head * a.head_stride;
        const T* const row = a.rows + token * row_size;
        if (!together) {
          rotate_apart(x, a, row, buffer);
        } else if (a.interleaved) {
          rotate_pairs(x, 2 * a.pairs, row, row + 2 * a.count);
        } else {
          rotate_halves(x, a.pairs, a.pairs, row, row + a.count);
        }
      }
    }
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
