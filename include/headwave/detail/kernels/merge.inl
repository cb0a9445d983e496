// SPDX-License-Identifier: MIT
// Attention over two sets of keys, from the attention over each. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// a = heavy_share * heavy + light_share * light, over count elements; one of the two is a.
template <class T>
HEADWAVE_INLINE void mix_row(T* a, index a_stride, const T* heavy, index heavy_stride, const T* light,
                             index light_stride, T heavy_share, T light_share, index count) {
  constexpr index lanes = vec<T>::lanes;
  for (index i = 0; i < count; i += lanes) {
    const vec<T> addend =
        multiply(load_first(light + i * light_stride, light_stride, count - i), broadcast(light_share));
    const vec<T> x = load_first(heavy + i * heavy_stride, heavy_stride, count - i);
    store_first(a + i * a_stride, a_stride, multiply_add(x, broadcast(heavy_share), addend), count - i);
  }
}

/// Rows first .. last-1, at most 8 of them, numbered in the order of out [batch, length, heads].
template <class T>
void merge_few_rows(const merge_arguments<T>& a, index first, index last) {
  constexpr T infinity = from_bits<T>(exponent_mask<T>);
  constexpr index lanes = vec<T>::lanes;
  T* out_a[8];
  const T* out_b[8];
  T* lse_a[8];
  T lse_b[8];
  double wide_a[8] = {}, wide_b[8] = {}, sums[8], heavy_shares[8], light_shares[8];
  const index count = last - first;
  for (index i = 0; i < count; ++i) {
    const index head = (first + i) % a.heads, place = (first + i) / a.heads;
    const index query = place % a.query_length, batch = place / a.query_length;
    out_a[i] = a.out_a.data + batch * a.out_a.batch + query * a.out_a.length + head * a.out_a.head;
    out_b[i] = a.out_b.data + batch * a.out_b.batch + query * a.out_b.length + head * a.out_b.head;
    lse_a[i] = a.lse_a.data + batch * a.lse_a.batch + query * a.lse_a.length + head * a.lse_a.head;
    lse_b[i] = a.lse_b.data[batch * a.lse_b.batch + query * a.lse_b.length + head * a.lse_b.head];
    wide_a[i] = static_cast<double>(*lse_a[i]);
    wide_b[i] = static_cast<double>(lse_b[i]);
  }
  // The larger of the two exponentials is 1, so none overflows.
  const vec<double> one = broadcast(1.0);
  const vec<double> difference = absolute(subtract(load(wide_a), load(wide_b)));
  const vec<double> power = exponential(subtract(broadcast(0.0), difference));
  const vec<double> sum = add(one, power);
  store(sums, sum);
  const vec<double> light = divide(power, sum);
  store(light_shares, light);
  store(heavy_shares, subtract(one, light));

  for (index i = 0; i < count; ++i) {
    const bool a_is_empty = bits_of(*lse_a[i]) == negative_infinity_bits<T>;
    const bool b_is_empty = bits_of(lse_b[i]) == negative_infinity_bits<T>;
    if (a_is_empty) {
      for (index c = 0; c < a.value_dim; c += lanes) {
        const vec<T> x = load_first(out_b[i] + c * a.out_b.channel, a.out_b.channel, a.value_dim - c);
        store_first(out_a[i] + c * a.out_a.channel, a.out_a.channel, b_is_empty ? broadcast(T(0)) : x, a.value_dim - c);
      }
      *lse_a[i] = lse_b[i];
      continue;
    }
    if (b_is_empty) {
      continue;
    }
    T heavy_share = static_cast<T>(heavy_shares[i]);
    const T light_share = static_cast<T>(light_shares[i]);
    if (heavy_share < 1 && light_share > 1 - heavy_share) {
      // Both were rounded up. With a sum of at most 1, a mean of finite numbers is finite.
      heavy_share = from_bits<T>(bits_of(heavy_share) - 1);
    }
    if (*lse_a[i] < lse_b[i]) {
      mix_row(out_a[i], a.out_a.channel, out_b[i], a.out_b.channel, out_a[i], a.out_a.channel, heavy_share, light_share,
              a.value_dim);
    } else {
      mix_row(out_a[i], a.out_a.channel, out_a[i], a.out_a.channel, out_b[i], a.out_b.channel, heavy_share, light_share,
              a.value_dim);
    }
    if (bits_of(*lse_a[i]) != bits_of(infinity) || bits_of(lse_b[i]) != bits_of(infinity)) {
      const double largest = *lse_a[i] < lse_b[i] ? wide_b[i] : wide_a[i];
      *lse_a[i] = static_cast<T>(largest + __builtin_log(sums[i]));
    }
  }
}

/// Rows first .. last-1. A row's bits depend on nothing but its own numbers.
template <class T>
void merge_rows(const merge_arguments<T>& a, index first, index last) {
  for (; first < last; first += 8) {
    merge_few_rows(a, first, smaller(first + 8, last));
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
