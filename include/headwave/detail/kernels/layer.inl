// SPDX-License-Identifier: MIT
// What a layer does to rows between its products. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// x_c becomes x_c w_c / (mean of x^2 + epsilon)^(1/2), for count channels. The squares are summed lane by lane.
template <class T>
void normalize_row(T* x, const T* weight, index count, double epsilon) {
  constexpr index lanes = vec<T>::lanes;
  vec<T> squares = broadcast(T(0));
  for (index c = 0; c < count; c += lanes) {
    const vec<T> chunk = load_first(x + c, 1, count - c);
    squares = multiply_add(chunk, chunk, squares);
  }
  const double mean = static_cast<double>(reduce_add(squares)) / static_cast<double>(count);
  const vec<T> factor = broadcast(static_cast<T>(1 / __builtin_sqrt(mean + epsilon)));
  for (index c = 0; c < count; c += lanes) {
    const vec<T> scaled = multiply(load_first(x + c, 1, count - c), factor);
    store_first(x + c, 1, multiply(scaled, load_first(weight + c, 1, count - c)), count - c);
  }
}

/// 1 / (1 + e^-x), of which no step overflows.
template <class T>
HEADWAVE_INLINE vec<T> logistic(vec<T> x) {
  const vec<T> zero = broadcast(T(0)), one = broadcast(T(1));
  const vec<T> power = exponential(subtract(zero, absolute(x)));
  return divide(select(less(x, zero), power, one), add(one, power));
}

/// x_c becomes x_c / (1 + e^-g_c), for count channels; gate_step 0: they share one g.
template <class T>
void gate_row(T* x, const T* gate, index gate_step, index count) {
  constexpr index lanes = vec<T>::lanes;
  for (index c = 0; c < count; c += lanes) {
    const vec<T> g = gate_step == 0 ? broadcast(*gate) : load_first(gate + c, 1, count - c);
    store_first(x + c, 1, multiply(load_first(x + c, 1, count - c), logistic(g)), count - c);
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
