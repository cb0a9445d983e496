// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/phase.hpp>

#include <span>

// The frequencies of a rotary embedding as turns per position, in the 128-bit arithmetic of phase.hpp: right to more
// digits than any position needs, and the same on every machine, which logarithms and powers of a C library are not.

namespace headwave::detail {

enum class rotary_scaling_kind { none, linear, ntk, dynamic_ntk, yarn, longrope, llama3, proportional };

/// What rotary.hpp's scalings say, in one form. Which fields count depends on the kind.
struct rotary_scaling_fields {
  rotary_scaling_kind kind = rotary_scaling_kind::none;
  double factor = 1;
  double low = 0, high = 0;  ///< yarn: beta_slow, beta_fast; llama3: low and high frequency factor
  std::int64_t original_length = 0;
  std::int64_t length = 0;
  bool truncate = true;
  double fraction = 1;
  std::span<const double> short_factors = {}, long_factors = {};
};

inline namespace HEADWAVE_ABI {

/// Errors: what a scaling cannot be computed from.
inline void check_rotary_scaling(const char* function, const rotary_scaling_fields& s, std::size_t pairs, double base) {
  using enum rotary_scaling_kind;
  const auto positive = [](double x) { return is_finite(x) && x > 0; };
  const auto require = [function](bool holds, const char* rule) {
    if (!holds) {
      fail(function, rule);
    }
  };
  require(positive(s.factor), "factor of a scaling must be positive and finite");
  require(s.original_length > 0 || s.kind == none || s.kind == linear || s.kind == ntk || s.kind == proportional,
          "original_length must be positive");
  switch (s.kind) {
    case yarn:
      require(base > 1, "base must exceed 1 for YaRN");
      require(positive(s.low) && positive(s.high) && s.low <= s.high,
              "beta_fast and beta_slow must be positive, and beta_fast not the smaller");
      break;
    case longrope:
      require(s.original_length > 1 || s.factor <= 1, "original_length must exceed 1");
      for (const std::span<const double> factors : {s.short_factors, s.long_factors}) {
        require(factors.size() == pairs, "longrope_scaling needs rotary_dim / 2 short and as many long factors");
        for (const double factor : factors) {
          require(positive(factor), "factors of longrope_scaling must be positive and finite");
        }
      }
      break;
    case llama3:
      require(positive(s.low) && positive(s.high) && s.low < s.high,
              "low_frequency_factor must be positive, and high_frequency_factor larger");
      break;
    case proportional:
      require(is_finite(s.fraction) && s.fraction >= 0 && s.fraction <= 1, "fraction must be from 0 to 1");
      break;
    default:
      break;
  }
}

inline constexpr wide_float wide_one{static_cast<uint128>(1) << 127, 0};

/// (x - low) / (high - low), from 0 to 1.
inline wide_float ramp_of(wide_float x, wide_float low, wide_float width) {
  const wide_float ramp = divide(subtract(x, low), width);
  return less(ramp, wide_one) ? ramp : wide_one;
}

/// rate * kept + (rate / factor) * (1 - kept).
inline wide_float blended(wide_float rate, wide_float kept, wide_float factor) {
  return add(multiply(rate, kept), divide(multiply(rate, subtract(wide_one, kept)), factor));
}

/// YaRN's bounds of the ramp, in pairs: between them the rates pass from theirs to theirs / factor.
struct yarn_ramp {
  wide_float low, width;
};

/// The pair, as a real number, that turns n times over the original length; 0 where none turns so often.
inline wide_float pair_that_turns(double n, const rotary_scaling_fields& s, double base, std::size_t pairs) {
  const wide_float length = whole_number(static_cast<std::uint64_t>(s.original_length));
  const wide_float ratio = divide(multiply(length, turns_per_radian), widen(n));
  if (less(ratio, wide_one)) {
    return {0, 0};
  }
  return divide(multiply(whole_number(pairs), number_of(log2_of(ratio))), number_of(log2_of(widen(base))));
}

inline yarn_ramp yarn_ramp_of(const rotary_scaling_fields& s, double base, std::size_t pairs) {
  wide_float low = pair_that_turns(s.high, s, base, pairs), high = pair_that_turns(s.low, s, base, pairs);
  if (s.truncate) {
    const wide_float floor_of_high = floor_of(high);
    low = floor_of(low);
    high = less(floor_of_high, high) ? add(floor_of_high, wide_one) : high;
  }
  const wide_float last = whole_number(2 * pairs - 1);
  high = less(last, high) ? last : high;
  const wide_float width = subtract(high, low), least = divide(wide_one, whole_number(1000));
  return {low, less(width, least) ? least : width};
}

/// factor * length / original_length - (factor - 1), and 1 up to the original length.
inline wide_float dynamic_factor(const rotary_scaling_fields& s) {
  if (s.length <= s.original_length) {
    return wide_one;
  }
  const wide_float beyond = whole_number(static_cast<std::uint64_t>(s.length - s.original_length));
  const wide_float original = whole_number(static_cast<std::uint64_t>(s.original_length));
  return add(wide_one, divide(multiply(widen(s.factor), beyond), original));
}

/// rates[i] for i = 0 .. pairs-1: base^(-i / pairs) / (2 pi), scaled. The fields have been checked.
inline void fill_rotary_rates(turn_rate* rates, std::size_t pairs, double base, const rotary_scaling_fields& s) {
  using enum rotary_scaling_kind;
  const wide_float factor = widen(s.factor), low = widen(s.low);
  wide_float ratio = pairs > 1 ? frequency_ratio(widen(base), 2 * pairs) : wide_one;
  if ((s.kind == ntk || s.kind == dynamic_ntk) && pairs > 1) {
    // A base of base * factor^(r / (r - 2)) multiplies the ratio of neighbours by factor^(-2 / (r - 2)).
    ratio = multiply(ratio, frequency_ratio(s.kind == ntk ? factor : dynamic_factor(s), 2 * pairs - 2));
  }
  const yarn_ramp ramp = s.kind == yarn ? yarn_ramp_of(s, base, pairs) : yarn_ramp{};
  const std::span<const double> divisors = s.length > s.original_length ? s.long_factors : s.short_factors;
  const auto rotated = static_cast<std::size_t>(s.fraction * static_cast<double>(pairs));

  wide_float rate = turns_per_radian;
  for (std::size_t i = 0; i < pairs; ++i) {
    const wide_float pair = whole_number(i);
    wide_float scaled = rate;
    switch (s.kind) {
      case none:
      case ntk:
      case dynamic_ntk:
        break;
      case linear:
        scaled = divide(rate, factor);
        break;
      case yarn:
        scaled = blended(rate, subtract(wide_one, ramp_of(pair, ramp.low, ramp.width)), factor);
        break;
      case longrope:
        scaled = divide(rate, widen(divisors[i]));
        break;
      case llama3: {
        const wide_float turns = multiply(whole_number(static_cast<std::uint64_t>(s.original_length)), rate);
        scaled = blended(rate, ramp_of(turns, low, subtract(widen(s.high), low)), factor);
        break;
      }
      case proportional:
        scaled = i < rotated ? divide(rate, factor) : wide_float{0, 0};
        break;
    }
    rates[i] = fixed_point(scaled, false);
    rate = multiply(rate, ratio);
  }
}

/// The natural logarithm of a number that is at least 1.
inline wide_float natural_log(double x) {
  return multiply(number_of(log2_of(widen(x))), ln_2);
}

/// 1 + mscale ln(factor) / 10.
inline double yarn_magnitude_of(double factor, double mscale) {
  const wide_float tenth = divide(natural_log(factor), whole_number(10));
  return narrowed(add(wide_one, multiply(tenth, widen(mscale))));
}

/// (1 + ln(factor) / ln(original_length))^(1/2).
inline double longrope_magnitude_of(double factor, std::int64_t original_length) {
  const wide_float logs = divide(natural_log(factor), natural_log(static_cast<double>(original_length)));
  return __builtin_sqrt(narrowed(add(wide_one, logs)));
}

/// Radians per position, to about an ulp.
inline double radians_of(const turn_rate& rate) {
  const bool negative = rate.whole >> 63;
  const std::uint64_t whole = negative ? ~rate.whole + (rate.fraction == 0) : rate.whole;
  const uint128 fraction = negative ? ~rate.fraction + 1 : rate.fraction;
  const double radians = narrowed(divide(add(normalized(fraction, -1), whole_number(whole)), turns_per_radian));
  return negative ? -radians : radians;
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave::detail
