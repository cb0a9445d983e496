// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/bits.hpp>
#include <headwave/error.hpp>

// Angles as integers. An angle position * frequency matters only modulo a turn, and a phase of 2^-64 turns in an
// unsigned 64-bit integer is taken modulo a turn by overflowing. So a phase is exact at any position, needs no argument
// reduction, depends on nothing but position and frequency, and cannot be spoilt by a user's -ffast-math. Only its sine
// and cosine are rounded.

namespace headwave::detail {

__extension__ typedef unsigned __int128 uint128;

/// The upper 128 bits of a 256-bit product.
HEADWAVE_INLINE constexpr uint128 multiply_high(uint128 a, uint128 b) {
  const auto a_high = static_cast<std::uint64_t>(a >> 64), a_low = static_cast<std::uint64_t>(a);
  const auto b_high = static_cast<std::uint64_t>(b >> 64), b_low = static_cast<std::uint64_t>(b);
  const uint128 high_low = static_cast<uint128>(a_high) * b_low;
  const uint128 low_high = static_cast<uint128>(a_low) * b_high;
  const uint128 carry = ((static_cast<uint128>(a_low) * b_low) >> 64) + static_cast<std::uint64_t>(high_low) +
                        static_cast<std::uint64_t>(low_high);
  return static_cast<uint128>(a_high) * b_high + (high_low >> 64) + (low_high >> 64) + (carry >> 64);
}

/// A positive number mantissa * 2^(exponent - 127), the top bit of the mantissa set: 1.m * 2^exponent with 127 bits
/// behind the point. Zero has mantissa 0.
struct wide_float {
  uint128 mantissa;
  int exponent;
};

HEADWAVE_INLINE constexpr wide_float multiply(wide_float a, wide_float b) {
  const uint128 product = multiply_high(a.mantissa, b.mantissa);  // in [2^126, 2^128)
  return product >> 127 ? wide_float{product, a.exponent + b.exponent + 1}
                        : wide_float{product << 1, a.exponent + b.exponent};
}

/// The magnitude of a finite double, exactly.
HEADWAVE_INLINE constexpr wide_float widen(double x) {
  const std::uint64_t bits = bits_of(x) & ~sign_bit<double>;
  int exponent = static_cast<int>(bits >> 52) - 1023;
  std::uint64_t mantissa = (bits & 0xfffffffffffffu) | (exponent == -1023 ? 0 : std::uint64_t(1) << 52);
  if (mantissa == 0) {
    return {0, 0};
  }
  if (exponent == -1023) {
    exponent = -1022;
    while (!(mantissa >> 52)) {
      mantissa <<= 1;
      --exponent;
    }
  }
  return {static_cast<uint128>(mantissa) << 75, exponent};
}

/// 1 / (2 pi): the turns of a radian.
inline constexpr wide_float turns_per_radian{(static_cast<uint128>(0xa2f9836e4e441529u) << 64) | 0xfc2757d1f534ddc0u,
                                             -3};
/// The natural logarithm of 2.
inline constexpr wide_float ln_2{(static_cast<uint128>(0xb17217f7d1cf79abu) << 64) | 0xc9e3b39803f2f6afu, -1};

/// How far the angle turns for one position: whole turns and a fraction in units of 2^-128 turns, two's complement
/// together.
struct turn_rate {
  std::uint64_t whole;
  uint128 fraction;
};

/// A position: an integer and a fraction in units of 2^-64, two's complement together.
struct wide_position {
  uint128 whole;
  std::uint64_t fraction;
};

template <class Integer>
  requires std::is_integral_v<Integer>
HEADWAVE_INLINE constexpr wide_position exact_position(Integer position) {
  return {static_cast<uint128>(position), 0};
}

/// A finite float or double; what lies below 2^-64 is dropped.
HEADWAVE_INLINE constexpr wide_position exact_position(double position) {
  const wide_float magnitude = widen(position);
  uint128 whole = 0;
  std::uint64_t fraction = 0;
  if (magnitude.exponent >= 127) {
    const int shift = magnitude.exponent - 127;
    whole = shift < 128 ? magnitude.mantissa << shift : 0;  // what is lost is a multiple of 2^128 positions
  } else if (magnitude.exponent >= 0) {
    whole = magnitude.mantissa >> (127 - magnitude.exponent);
    fraction = static_cast<std::uint64_t>((magnitude.mantissa << (magnitude.exponent + 1)) >> 64);
  } else if (magnitude.exponent >= -64) {
    fraction = static_cast<std::uint64_t>((magnitude.mantissa >> (-1 - magnitude.exponent)) >> 64);
  }
  if (bits_of(position) >> 63) {
    whole = ~whole + (fraction == 0);
    fraction = ~fraction + 1;
  }
  return {whole, fraction};
}

/// Positions are taken in runs from a multiple of this number: a phase is the exact phase of the run's start plus a
/// whole number of steps of 2^-64 turns. So the angle between two rows of a run is a whole number of steps, and every
/// way to ask for a position gives the same phase.
inline constexpr int phase_run = 64;

HEADWAVE_INLINE constexpr std::uint64_t phase_step(const turn_rate& rate) {
  return static_cast<std::uint64_t>(rate.fraction >> 64);
}

/// position * rate modulo a turn, in units of 2^-64 turns; off by less than 2^-57 turns.
HEADWAVE_INLINE constexpr std::uint64_t phase_at(const wide_position& position, const turn_rate& rate) {
  const auto in_run = static_cast<std::uint64_t>(position.whole) % phase_run;
  const auto start = static_cast<std::uint64_t>(((position.whole - in_run) * rate.fraction) >> 64);
  const std::uint64_t of_fraction =
      position.fraction * rate.whole +
      static_cast<std::uint64_t>((static_cast<uint128>(position.fraction) * phase_step(rate)) >> 64);
  return start + in_run * phase_step(rate) + of_fraction;
}

inline namespace HEADWAVE_ABI {

/// a / b by long division; b is not zero.
inline wide_float divide(wide_float a, wide_float b) {
  if (a.mantissa == 0) {
    return {0, 0};
  }
  const bool smaller = a.mantissa < b.mantissa;
  uint128 rest = smaller ? a.mantissa - (b.mantissa - a.mantissa) : a.mantissa - b.mantissa;
  uint128 quotient = 1;
  for (int bit = 0; bit < 127; ++bit) {
    const bool overflows = rest >> 127;
    rest <<= 1;
    const bool fits = overflows || rest >= b.mantissa;
    rest -= fits ? b.mantissa : 0;
    quotient = quotient << 1 | static_cast<uint128>(fits);
  }
  return {quotient, a.exponent - b.exponent - smaller};
}

inline bool less(wide_float a, wide_float b) {
  if (a.mantissa == 0 || b.mantissa == 0) {
    return a.mantissa < b.mantissa;
  }
  return a.exponent != b.exponent ? a.exponent < b.exponent : a.mantissa < b.mantissa;
}

/// A number whose top bit may not be set.
inline wide_float normalized(uint128 mantissa, int exponent) {
  while (mantissa != 0 && !(mantissa >> 127)) {
    mantissa <<= 1;
    --exponent;
  }
  return {mantissa, mantissa ? exponent : 0};
}

inline uint128 shifted_right(uint128 x, int bits) {
  return bits < 128 ? x >> bits : 0;
}

inline wide_float add(wide_float a, wide_float b) {
  if (a.mantissa == 0 || b.mantissa == 0) {
    return a.mantissa ? a : b;
  }
  const wide_float larger = less(a, b) ? b : a, smaller = less(a, b) ? a : b;
  const uint128 sum = larger.mantissa + shifted_right(smaller.mantissa, larger.exponent - smaller.exponent);
  return sum < larger.mantissa ? wide_float{sum >> 1 | static_cast<uint128>(1) << 127, larger.exponent + 1}
                               : wide_float{sum, larger.exponent};
}

/// a - b, and zero where b is larger.
inline wide_float subtract(wide_float a, wide_float b) {
  if (b.mantissa == 0 || !less(b, a)) {
    return b.mantissa == 0 ? a : wide_float{0, 0};
  }
  return normalized(a.mantissa - shifted_right(b.mantissa, a.exponent - b.exponent), a.exponent);
}

/// The largest whole number that is not larger.
inline wide_float floor_of(wide_float x) {
  if (x.mantissa == 0 || x.exponent < 0) {
    return {0, 0};
  }
  return x.exponent < 127 ? wide_float{x.mantissa >> (127 - x.exponent) << (127 - x.exponent), x.exponent} : x;
}

/// A natural number, exactly.
inline wide_float whole_number(std::uint64_t n) {
  return normalized(n, 127);
}

/// The nearest double; zero below 2^-895.
inline double narrowed(wide_float x) {
  if (x.mantissa == 0 || x.exponent < -895) {
    return 0;
  }
  return static_cast<double>(x.mantissa) *
         from_bits<double>(static_cast<std::uint64_t>(x.exponent - 127 + 1023) << mantissa_bits<double>);
}

/// A rate of so many turns.
inline turn_rate fixed_point(wide_float turns, bool negative) {
  turn_rate fixed{0, 0};
  if (turns.mantissa != 0 && turns.exponent < 64) {
    const int shift = turns.exponent + 1;  // binary places left of the point
    if (shift > 0) {
      fixed.whole = static_cast<std::uint64_t>(turns.mantissa >> (128 - shift));
      fixed.fraction = turns.mantissa << shift;
    } else if (shift > -128) {
      fixed.fraction = turns.mantissa >> -shift;
    }
  }
  if (negative) {
    fixed.whole = ~fixed.whole + (fixed.fraction == 0);
    fixed.fraction = ~fixed.fraction + 1;
  }
  return fixed;
}

/// log2 of a positive finite number: a whole part and a fraction in units of 2^-128, by repeated squaring.
struct wide_log {
  std::int64_t whole;
  uint128 fraction;
};
inline wide_log log2_of(wide_float x) {
  wide_log result{x.exponent, 0};
  uint128 power = x.mantissa;
  for (int bit = 0; bit < 128; ++bit) {
    const uint128 square = multiply_high(power, power);
    result.fraction = (result.fraction << 1) | (square >> 127);
    power = square >> 127 ? square : square << 1;
  }
  return result;
}

/// A logarithm that is not negative, as a number.
inline wide_float number_of(const wide_log& log) {
  wide_float result = normalized(log.fraction, -1);
  if (log.whole > 0) {
    result = add(result, whole_number(static_cast<std::uint64_t>(log.whole)));
  }
  return result;
}

/// base^(-2 / denominator), to about 125 bits: the ratio of neighbouring frequencies.
inline wide_float frequency_ratio(wide_float base, std::uint64_t denominator) {
  const wide_log log = log2_of(base);
  // 2 log2(base) / denominator by long division, 64 bits at a time; whole rounds towards minus infinity.
  const std::int64_t doubled = 2 * log.whole + static_cast<std::int64_t>(log.fraction >> 127);
  const auto divisor = static_cast<std::int64_t>(denominator);
  std::int64_t whole = doubled / divisor;
  std::int64_t rest = doubled % divisor;
  if (rest < 0) {
    rest += divisor;
    --whole;
  }
  const uint128 fraction = log.fraction << 1;
  const uint128 upper = (static_cast<uint128>(rest) << 64) | static_cast<std::uint64_t>(fraction >> 64);
  const uint128 lower = ((upper % denominator) << 64) | static_cast<std::uint64_t>(fraction);
  const uint128 exponent = ((upper / denominator) << 64) | (lower / denominator);
  if (exponent == 0) {
    return {static_cast<uint128>(1) << 127, static_cast<int>(-whole)};
  }
  // 2^-(whole + exponent) = 2^(-whole - 1) * 2^(1 - exponent), the last factor by the series of e^(x ln 2).
  constexpr uint128 one = static_cast<uint128>(1) << 127;
  const uint128 x = multiply_high(~exponent + 1, ln_2.mantissa);
  uint128 sum = one;
  for (unsigned term = 34; term > 0; --term) {
    sum = one + multiply_high(x, sum) / term;
  }
  return {sum, static_cast<int>(-whole - 1)};
}

/// rates[i] = scale * base^(-2 i / denominator) / (2 pi) for i = 0 .. count-1.
/// One product of 128-bit integers for each: its relative error grows by 2^-126 a step.
inline void fill_turn_rates(turn_rate* rates, std::size_t count, double base, std::uint64_t denominator, double scale) {
  const wide_float ratio = count > 1 ? frequency_ratio(widen(base), denominator) : wide_float{};
  wide_float rate = multiply(widen(scale), turns_per_radian);
  for (std::size_t i = 0; i < count; ++i) {
    rates[i] = fixed_point(rate, bits_of(scale) >> 63);
    rate = multiply(rate, ratio);
  }
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave::detail
