// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/bits.hpp>

#include <compare>
#include <concepts>

/// \file
/// Numbers of 16 bits, which halve the memory of keys, values and weights. They are for storage: one computes with the
/// float that each of them is exactly, and rounds the result.
///
/// Conversions use integers only: they are the same on every machine and under -ffast-math.

namespace headwave {

/// A floating-point number of 16 bits: a sign, ExponentBits of exponent, the rest fraction, as in IEEE 754. Use it by
/// its names bfloat16 and float16. Its default constructor leaves it unwritten, as float's does; bits of zero are the
/// number zero.
template <int ExponentBits>
struct storage_float {
  std::uint16_t bits;  ///< from the top: sign, exponent, fraction

  storage_float() = default;

  /// The nearest number, that of even fraction if two are equally near. What is larger than the largest number by half
  /// a unit in its last place or more becomes infinity. NaN stays NaN: it becomes quiet, and keeps its sign and the
  /// upper bits of its payload.
  HEADWAVE_INLINE constexpr explicit storage_float(float x) : bits(rounded(x)) {}
  HEADWAVE_INLINE constexpr explicit storage_float(double x) : bits(rounded(x)) {}

  HEADWAVE_INLINE static constexpr storage_float from_bits(std::uint16_t bits) {
    return __builtin_bit_cast(storage_float, bits);
  }

  /// The same number, exactly. NaN keeps its sign and payload; a float16's becomes quiet.
  template <std::floating_point Number>
  HEADWAVE_INLINE constexpr explicit operator Number() const {
    if constexpr (sizeof(Number) == 4) {
      return widened<float>();
    } else {
      return static_cast<Number>(widened<double>());
    }
  }

  /// By value, as floats compare: NaN with nothing, and the two zeros are equal.
  HEADWAVE_INLINE friend constexpr bool operator==(storage_float a, storage_float b) {
    return !a.is_nan() && !b.is_nan() && a.order() == b.order();
  }
  HEADWAVE_INLINE friend constexpr std::partial_ordering operator<=>(storage_float a, storage_float b) {
    return a.is_nan() || b.is_nan() ? std::partial_ordering::unordered : a.order() <=> b.order();
  }

 private:
  static constexpr int fraction_bits = 15 - ExponentBits;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr std::uint16_t infinity = ((1 << ExponentBits) - 1) << fraction_bits;

  HEADWAVE_INLINE constexpr std::uint16_t magnitude() const { return bits & 0x7fff; }
  HEADWAVE_INLINE constexpr bool is_nan() const { return magnitude() > infinity; }
  /// Of two numbers the greater one has the greater order.
  HEADWAVE_INLINE constexpr int order() const { return bits >> 15 ? -magnitude() : magnitude(); }

  template <class Wide>
  static constexpr int bias_of = (1 << (8 * sizeof(Wide) - 2 - detail::mantissa_bits<Wide>)) - 1;

  template <class Wide>
  HEADWAVE_INLINE static constexpr std::uint16_t rounded(Wide x) {
    using word = detail::bits_type<Wide>;
    constexpr int wide_bits = detail::mantissa_bits<Wide>, dropped = wide_bits - fraction_bits;
    constexpr word one = word(1) << wide_bits;
    const word all = detail::bits_of(x);
    const auto sign = static_cast<std::uint16_t>(all >> (8 * sizeof(Wide) - 16) & 0x8000);
    word number = all & ~detail::sign_bit<Wide>;
    if (number > detail::exponent_mask<Wide>) {
      const auto payload = static_cast<std::uint16_t>((number & (one - 1)) >> dropped);
      return static_cast<std::uint16_t>(sign | infinity | (1 << (fraction_bits - 1)) | payload);
    }
    // Both exponents count from the smallest normal number of 16 bits, which has 1.
    constexpr word lowered = word(bias_of<Wide> - bias);
    int shift = dropped;
    if (number >> wide_bits > lowered) {
      number -= lowered << wide_bits;
    } else {
      // Below it, all numbers have the same unit in the last place.
      const word exponent = number >> wide_bits;
      shift += static_cast<int>(lowered + 1 - (exponent ? exponent : 1));
      number = (number & (one - 1)) | (exponent ? one : 0);
      if (shift > wide_bits + 1) {
        return sign;  // less than half of the smallest number
      }
    }
    // A carry out of the fraction steps into the exponent, which is where it belongs.
    const word below_half = (word(1) << (shift - 1)) - 1, odd = number >> shift & 1;
    number = (number + below_half + odd) >> shift;
    return static_cast<std::uint16_t>(sign | (number < infinity ? static_cast<std::uint16_t>(number) : infinity));
  }

  template <class Wide>
  HEADWAVE_INLINE constexpr Wide widened() const {
    using word = detail::bits_type<Wide>;
    constexpr int wide_bits = detail::mantissa_bits<Wide>, added = wide_bits - fraction_bits;
    const word sign = word(bits >> 15) << (8 * sizeof(Wide) - 1);
    word number = word(magnitude()) << added;
    if constexpr (bias_of<Wide> != bias) {
      if (magnitude() >= infinity) {
        number |= detail::exponent_mask<Wide> | (word(is_nan()) << (wide_bits - 1));
      } else if (magnitude() >> fraction_bits) {
        number += word(bias_of<Wide> - bias) << wide_bits;
      } else if (magnitude()) {
        // A subnormal number of this type is a normal one of the other: its top bit becomes the implicit one.
        const int top = 31 - __builtin_clz(magnitude());
        const int exponent = top + 1 - fraction_bits + bias_of<Wide> - bias;
        number = (word(magnitude()) << (wide_bits - top)) + (static_cast<word>(exponent - 1) << wide_bits);
      }
    }
    return detail::from_bits<Wide>(sign | number);
  }
};

/// The upper half of a float: the same range with 8 bits of precision.
using bfloat16 = storage_float<8>;

/// IEEE 754 binary16: 11 bits of precision, the largest number 65504, the smallest normal one 2^-14.
using float16 = storage_float<5>;

namespace detail {

template <class T>
struct computed_in {};
template <>
struct computed_in<float> {
  using type = float;
};
template <>
struct computed_in<double> {
  using type = double;
};
template <int ExponentBits>
struct computed_in<storage_float<ExponentBits>> {
  using type = float;
};

}  // namespace detail

/// What is computed in where elements are stored as T: float for bfloat16, float16 and float, double for double.
template <class T>
using compute_type = typename detail::computed_in<T>::type;

}  // namespace headwave
