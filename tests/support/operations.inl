// SPDX-License-Identifier: MIT
// Every operation of a tier, on arrays. Included once for each tier, inside its target region.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

template <class T>
__attribute__((noinline)) void apply_operations(const operands<T>& x, results<T>& r) {
  const vec<T> a = load(x.a), b = load(x.b), c = load(x.c);
  store(r.broadcast, broadcast(x.a[0]));
  store(r.add, add(a, b));
  store(r.subtract, subtract(a, b));
  store(r.multiply, multiply(a, b));
  store(r.divide, divide(a, b));
  store(r.multiply_add, multiply_add(a, b, c));
  store(r.multiply_subtract, multiply_subtract(a, b, c));
  store(r.maximum, maximum(a, b));
  store(r.absolute, absolute(a));
  store(r.copy_sign, copy_sign(a, b));
  store(r.swap_neighbours, swap_neighbours(a));
  store(r.round_to_nearest, round_to_nearest(load(x.small)));
  store(r.times_power_of_two, times_power_of_two(load(x.normal), load(x.exponent)));
  r.reduce_add = reduce_add(a);
  r.reduce_maximum = reduce_maximum(a);
  store(r.less, select(less(a, b), a, c));
  store(r.not_less, keep(not_less(a, b), c));
  store(r.is_negative_infinity, select(is_negative_infinity(a), b, c));
  r.all_finite = all_finite(a);
  lane_mask<T> mask;
  load_mask(x.bytes, mask);
  store(r.load_mask, select(mask, a, b));
  store(r.keep, keep(mask, a));
}

template <class T>
__attribute__((noinline)) void apply_transpose(T* target, const T* source, index stride) {
  transpose(target, source, stride);
}

__attribute__((noinline)) inline void apply_integer_operations(const std::uint64_t* x, const std::uint64_t* y,
                                                               integer_results& r) {
  const vec<std::uint64_t> a = load(x), b = load(y);
  store(r.broadcast, broadcast(x[0]));
  store(r.add, add(a, b));
  store(r.bit_and, bit_and(a, b));
  store(r.bit_or, bit_or(a, b));
  store(r.bit_xor, bit_xor(a, b));
  store(r.shift_left, shift_left<2>(a));
  store(r.shift_right, shift_right<12>(a));
  store(r.as_bits, as_bits(as_double(a)));
  store(r.top_bit, as_bits(select(top_bit(a), as_double(a), as_double(b))));
}

template <class T>
__attribute__((noinline)) void apply_roundings(const double* x, const double* y, rounding_results<T>& r) {
  store_rounded(r.store_rounded, load(x));
  store_pairs_rounded(r.store_pairs_rounded, load(x), load(y));
}

/// Numbers of a storage type become floats.
template <class Small>
__attribute__((noinline)) void apply_load_converted(float* to, const Small* from) {
  store(to, load_converted(from));
}
/// And back.
template <class Small>
__attribute__((noinline)) void apply_store_converted(Small* to, const float* from) {
  store_converted(to, load(from));
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
