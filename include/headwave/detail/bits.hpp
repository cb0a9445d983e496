// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/config.hpp>

#include <cstdint>
#include <type_traits>

// The bits of float and double. What is decided here by integers holds under -ffast-math too.

namespace headwave::detail {

template <class T>
using bits_type = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <class T>
inline constexpr int mantissa_bits = sizeof(T) == 4 ? 23 : 52;
template <class T>
inline constexpr bits_type<T> sign_bit = bits_type<T>(1) << (8 * sizeof(T) - 1);
template <class T>
inline constexpr bits_type<T> exponent_mask = sign_bit<T> - (bits_type<T>(1) << mantissa_bits<T>);
template <class T>
inline constexpr bits_type<T> negative_infinity_bits = sign_bit<T> | exponent_mask<T>;

template <class T>
HEADWAVE_INLINE constexpr bits_type<T> bits_of(T x) {
  return __builtin_bit_cast(bits_type<T>, x);
}
template <class T>
HEADWAVE_INLINE constexpr T from_bits(bits_type<T> bits) {
  return __builtin_bit_cast(T, bits);
}

/// The lowest finite number.
template <class T>
HEADWAVE_INLINE constexpr T lowest_finite() {
  return from_bits<T>(negative_infinity_bits<T> - 1);
}
template <class T>
HEADWAVE_INLINE constexpr T negative_infinity() {
  return from_bits<T>(negative_infinity_bits<T>);
}
template <class T>
HEADWAVE_INLINE constexpr bool is_finite(T x) {
  return (bits_of(x) & exponent_mask<T>) != exponent_mask<T>;
}
template <class T>
HEADWAVE_INLINE constexpr bool is_nan(T x) {
  return (bits_of(x) & ~sign_bit<T>) > exponent_mask<T>;
}

}  // namespace headwave::detail
