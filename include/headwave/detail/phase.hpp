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

/// base^(-2 / denominator), to about 125 bits: the ratio of neighbouring frequencies.
inline wide_float frequency_ratio(double base, std::uint64_t denominator) {
  const wide_log log = log2_of(widen(base));
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
  constexpr uint128 ln2 = (static_cast<uint128>(0xb17217f7d1cf79abu) << 64) | 0xc9e3b39803f2f6afu;
  constexpr uint128 one = static_cast<uint128>(1) << 127;
  const uint128 x = multiply_high(~exponent + 1, ln2);
  uint128 sum = one;
  for (unsigned term = 34; term > 0; --term) {
    sum = one + multiply_high(x, sum) / term;
  }
  return {sum, static_cast<int>(-whole - 1)};
}

/// rates[i] = scale * base^(-2 i / denominator) / (2 pi) for i = 0 .. count-1.
/// One product of 128-bit integers for each: its relative error grows by 2^-126 a step.
inline void fill_turn_rates(turn_rate* rates, std::size_t count, double base, std::uint64_t denominator, double scale) {
  constexpr wide_float inverse_turn{(static_cast<uint128>(0xa2f9836e4e441529u) << 64) | 0xfc2757d1f534ddc0u, -3};
  const wide_float ratio = count > 1 ? frequency_ratio(base, denominator) : wide_float{};
  wide_float rate = multiply(widen(scale), inverse_turn);
  for (std::size_t i = 0; i < count; ++i) {
    turn_rate fixed{0, 0};
    if (rate.mantissa != 0 && rate.exponent < 64) {
      const int shift = rate.exponent + 1;  // binary places left of the point
      if (shift > 0) {
        fixed.whole = static_cast<std::uint64_t>(rate.mantissa >> (128 - shift));
        fixed.fraction = rate.mantissa << shift;
      } else if (shift > -128) {
        fixed.fraction = rate.mantissa >> -shift;
      }
    }
    if (bits_of(scale) >> 63) {
      fixed.whole = ~fixed.whole + (fixed.fraction == 0);
      fixed.fraction = ~fixed.fraction + 1;
    }
    rates[i] = fixed;
    rate = multiply(rate, ratio);
  }
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave::detail
