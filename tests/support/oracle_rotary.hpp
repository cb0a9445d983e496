// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/rotary.hpp>

#include "support/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numbers>
#include <utility>
#include <vector>

/// \file
/// Rotary embeddings, written a second time from the papers' formulas, in long double.

namespace oracle {

inline constexpr real two_pi = 2 * std::numbers::pi_v<real>;

/// w_i, and the factor m of every rotated channel.
struct rotary_frequencies {
  std::vector<real> radians;
  real magnitude = 1;
};

/// base^(-2 i / r).
inline rotary_frequencies plain_frequencies(std::size_t rotary_dim, real base) {
  rotary_frequencies result;
  for (std::size_t i = 0; i < rotary_dim / 2; ++i) {
    const real exponent = -2 * static_cast<real>(i) / static_cast<real>(rotary_dim);
    result.radians.push_back(i == 0 ? 1 : std::pow(base, exponent));
  }
  return result;
}

inline rotary_frequencies scaled_frequencies(std::size_t r, real base, const hw::linear_scaling& s) {
  rotary_frequencies result = plain_frequencies(r, base);
  for (real& w : result.radians) {
    w /= static_cast<real>(s.factor);
  }
  return result;
}

inline rotary_frequencies ntk_frequencies(std::size_t r, real base, real factor) {
  const real dim = static_cast<real>(r);
  return plain_frequencies(r, r > 2 ? base * std::pow(factor, dim / (dim - 2)) : base);
}
inline rotary_frequencies scaled_frequencies(std::size_t r, real base, const hw::ntk_scaling& s) {
  return ntk_frequencies(r, base, static_cast<real>(s.factor));
}
inline rotary_frequencies scaled_frequencies(std::size_t r, real base, const hw::dynamic_ntk_scaling& s) {
  const real factor = static_cast<real>(s.factor);
  const real length = static_cast<real>((std::max)(s.length, s.original_length));
  return ntk_frequencies(r, base, factor * length / static_cast<real>(s.original_length) - (factor - 1));
}

inline rotary_frequencies scaled_frequencies(std::size_t r, real base, const hw::yarn_scaling& s) {
  rotary_frequencies result = plain_frequencies(r, base);
  const real factor = static_cast<real>(s.factor);
  const auto dim_of = [&](double turns) {
    return static_cast<real>(r) * std::log(static_cast<real>(s.original_length) / (two_pi * static_cast<real>(turns))) /
           (2 * std::log(base));
  };
  real low = dim_of(s.beta_fast), high = dim_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = (std::max)(low, real{0});
  high = (std::min)(high, static_cast<real>(r - 1));
  for (std::size_t i = 0; i < result.radians.size(); ++i) {
    const real slope = (static_cast<real>(i) - low) / (std::max)(high - low, real{1} / 1000);
    const real ramp = (std::min)((std::max)(slope, real{0}), real{1});
    result.radians[i] = result.radians[i] * (1 - ramp) + result.radians[i] / factor * ramp;
  }
  result.magnitude = factor > 1 ? std::log(factor) / 10 + 1 : 1;
  return result;
}

inline rotary_frequencies scaled_frequencies(std::size_t r, real base, const hw::longrope_scaling& s) {
  rotary_frequencies result = plain_frequencies(r, base);
  for (std::size_t i = 0; i < result.radians.size(); ++i) {
    result.radians[i] /= static_cast<real>((s.length > s.original_length ? s.long_factors : s.short_factors)[i]);
  }
  const real factor = static_cast<real>(s.factor);
  result.magnitude = factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(static_cast<real>(s.original_length))) : 1;
  return result;
}

inline rotary_frequencies scaled_frequencies(std::size_t r, real base, const hw::llama3_scaling& s) {
  rotary_frequencies result = plain_frequencies(r, base);
  const real original = static_cast<real>(s.original_length), factor = static_cast<real>(s.factor);
  const real low = static_cast<real>(s.low_frequency_factor), high = static_cast<real>(s.high_frequency_factor);
  for (real& w : result.radians) {
    const real wave_length = two_pi / w;
    if (wave_length > original / low) {
      w /= factor;
    } else if (wave_length >= original / high) {
      const real smooth = (original / wave_length - low) / (high - low);
      w = (1 - smooth) * w / factor + smooth * w;
    }
  }
  return result;
}

inline rotary_frequencies scaled_frequencies(std::size_t r, real base, const hw::proportional_scaling& s) {
  rotary_frequencies result = plain_frequencies(r, base);
  for (std::size_t i = 0; i < result.radians.size(); ++i) {
    const bool rotated = static_cast<real>(i + 1) <= static_cast<real>(s.fraction) * static_cast<real>(r / 2);
    result.radians[i] = rotated ? result.radians[i] / static_cast<real>(s.factor) : 0;
  }
  return result;
}

/// How pairs lie in a head, and where each token's pairs stand.
struct rotation {
  rotary_frequencies frequencies;
  hw::channel_layout layout = hw::channel_layout::interleaved;
  std::size_t first_channel = 0;
  bool inverse = false;
  std::function<std::int64_t(std::size_t pair, std::size_t sample, std::size_t token)> position = {};
};

/// The error that m times a cosine or sine may have: what the kernel promises, of which half a unit in the last place
/// is rounding, and what the angle lacks here, since its frequency comes from powers and logarithms in long double.
template <class T>
real factor_error(real value, real magnitude, real frequency, real angle) {
  const real half_ulp = value == 0 ? 0 : std::ldexp(unit<T>, std::ilogb(value));
  const real own = frequency == 1 || frequency == 0 ? 0 : unit<real> * (8 + std::fabs(std::log(std::fabs(frequency))));
  const real m = std::fabs(magnitude);
  if (sizeof(T) == sizeof(float)) {
    return half_ulp + m * (1.2e-9L + own * std::fabs(angle));
  }
  return (m == 1 ? 0 : half_ulp) + m * (1e-15L + (unit<double> + own) * std::fabs(angle));
}

/// q [batch, length, heads, head_dim], rotated. Two factors with their errors, two products, and their sum.
template <class T>
estimate<4> rotated(const estimate<4>& q, const rotation& by) {
  constexpr real u = unit<T>;
  estimate<4> out = q;
  const std::size_t pairs = by.frequencies.radians.size();
  const real m = by.frequencies.magnitude;
  for_each_index(extents<3>{q.value.extent(0), q.value.extent(1), q.value.extent(2)}, [&](const auto& at) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const bool interleaved = by.layout == hw::channel_layout::interleaved;
      const std::size_t first = by.first_channel + (interleaved ? 2 * i : i);
      const std::size_t second = first + (interleaved ? 1 : pairs);
      const real frequency = by.frequencies.radians[i];
      const real angle = static_cast<real>(by.position(i, at[0], at[1])) * frequency;
      const real c = m * std::cos(angle), s = m * (by.inverse ? -std::sin(angle) : std::sin(angle));
      const real ec = factor_error<T>(c, m, frequency, angle), es = factor_error<T>(s, m, frequency, angle);
      const auto in = [&](const hw::tensor<real, 4>& t, std::size_t channel) {
        return t(at[0], at[1], at[2], channel);
      };
      const real a = in(q.value, first), b = in(q.value, second);
      const real ea = in(q.error, first), eb = in(q.error, second);
      const auto put = [&](std::size_t channel, real value, real x, real ex, real y, real ey) {
        // x times the cosine and y times the sine.
        const real given = (std::fabs(c) + ec) * ex + (std::fabs(s) + es) * ey + std::fabs(x) * ec + std::fabs(y) * es;
        const real products = std::fabs(x * c) + std::fabs(y * s) + given;
        out.value(at[0], at[1], at[2], channel) = value;
        out.error(at[0], at[1], at[2], channel) =
            given + u * products + u * (1 + u) * (std::fabs(value) + given + u * products);
      };
      put(first, a * c - b * s, a, ea, b, eb);
      put(second, b * c + a * s, b, eb, a, ea);
    }
  });
  return out;
}

}  // namespace oracle
