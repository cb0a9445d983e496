// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/multi_head_attention.hpp>

#include "support/oracle_attention.hpp"
#include "support/oracle_rotary.hpp"

/// \file
/// The layer of multi_head_attention.hpp, written a second time: see oracle.hpp.

namespace oracle {

/// keys or values [batch, length, kv_heads, head_dim] followed by one key of given numbers ([kv_heads * head_dim], or
/// zeros).
template <class T>
estimate<4> append_key(const estimate<4>& x, hw::tensor_view<const T, 1> key) {
  auto shape = x.value.extents();
  const std::size_t length = shape[1]++;
  estimate<4> result(shape);
  for_each_index(shape, [&](const extents<4>& at) {
    if (at[1] < length) {
      element(result.value.view(), at) = element(x.value.view(), at);
      element(result.error.view(), at) = element(x.error.view(), at);
    } else if (!key.empty()) {
      element(result.value.view(), at) = static_cast<real>(key(at[2] * shape[3] + at[3]));
    }
  });
  return result;
}

/// x_c w_c / (mean of x^2 + epsilon)^(1/2) over the channels of each head. x is [batch, length, heads, head_dim].
template <class T>
estimate<4> normalized(const estimate<4>& x, hw::tensor_view<const T, 1> weight, double epsilon) {
  constexpr real u = unit<T>;
  estimate<4> result(x.value.extents());
  const std::size_t width = x.value.extent(3);
  const real count = static_cast<real>(width);
  for (std::size_t row = 0; row < x.value.size() / width; ++row) {
    const real* const values = x.value.data() + row * width;
    const real* const errors = x.error.data() + row * width;
    real mean = 0, mean_error = 0;
    for (std::size_t c = 0; c < width; ++c) {
      mean += values[c] * values[c] / count;
      mean_error += 2 * std::fabs(values[c]) * errors[c] / count;
    }
    mean_error += u * roundings(width + 2) * mean;
    const real inside = mean + static_cast<real>(epsilon), factor = 1 / std::sqrt(inside);
    const real relative = mean_error / (2 * inside) + 2 * u;
    for (std::size_t c = 0; c < width; ++c) {
      const real w = static_cast<real>(weight(c));
      result.value.data()[row * width + c] = values[c] * factor * w;
      result.error.data()[row * width + c] =
          std::fabs(factor * w) * (errors[c] + std::fabs(values[c]) * (relative + 2 * u));
    }
  }
  return result;
}

/// Heads rotated by position_of(sample, token).
template <class T, class PositionOf>
estimate<4> rotated(const estimate<4>& x, const hw::rotary_options& options, PositionOf position_of) {
  estimate<4> result = x;
  const std::size_t rotary_dim = options.rotary_dim ? options.rotary_dim : x.value.extent(3), pairs = rotary_dim / 2;
  const rotary_frequencies frequencies = plain_frequencies(rotary_dim, static_cast<real>(options.base));
  const bool interleaved = options.layout == hw::channel_layout::interleaved;
  for_each_index(extents<3>{x.value.extent(0), x.value.extent(1), x.value.extent(2)}, [&](const extents<3>& at) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::size_t first = options.first_channel + (interleaved ? 2 * i : i);
      const std::size_t second = options.first_channel + (interleaved ? 2 * i + 1 : i + pairs);
      const real angle = frequencies.radians[i] * position_of(at[0], at[1]);
      const real c = std::cos(angle), s = std::sin(angle);
      const real factor_errors = (std::max)(factor_error<T>(c, 1, frequencies.radians[i], angle),
                                            factor_error<T>(s, 1, frequencies.radians[i], angle));
      const real a = x.value(at[0], at[1], at[2], first), b = x.value(at[0], at[1], at[2], second);
      const real a_error = x.error(at[0], at[1], at[2], first), b_error = x.error(at[0], at[1], at[2], second);
      const auto set = [&](std::size_t channel, real value, real size, real error) {
        result.value(at[0], at[1], at[2], channel) = value;
        result.error(at[0], at[1], at[2], channel) =
            error + (std::fabs(a) + std::fabs(b)) * factor_errors + 2 * unit<T> * size;
      };
      set(first, a * c - b * s, std::fabs(a * c) + std::fabs(b * s), std::fabs(c) * a_error + std::fabs(s) * b_error);
      set(second, b * c + a * s, std::fabs(b * c) + std::fabs(a * s), std::fabs(c) * b_error + std::fabs(s) * a_error);
    }
  });
  return result;
}

/// x / (1 + e^-g) for g [batch, length, one for each channel or head of x].
template <class T>
estimate<4> gated(const estimate<4>& x, const estimate<3>& gate) {
  estimate<4> result = x;
  const std::size_t width = x.value.extent(3);
  const bool by_heads = gate.value.extent(2) == x.value.extent(2) && width > 1;
  for_each_index(x.value.extents(), [&](const extents<4>& at) {
    const std::size_t place = by_heads ? at[2] : at[2] * width + at[3];
    const real factor = 1 / (1 + std::exp(-gate.value(at[0], at[1], place)));
    const real value = element(x.value.view(), at);
    // The exponential is off by two units, the sum and the quotient by one each, and so is the product.
    element(result.value.view(), at) = value * factor;
    element(result.error.view(), at) =
        factor * (element(x.error.view(), at) +
                  std::fabs(value) * ((1 - factor) * gate.error(at[0], at[1], place) + 5 * unit<T>));
  });
  return result;
}

/// The whole layer; result.out is [batch, query_length, 1, d_model].
template <class T>
attention_result multi_head_attention(const hw::multi_head_attention_options& layer,
                                      const hw::multi_head_attention_weights<T>& weights, const estimate<3>& query,
                                      const estimate<3>& key, const estimate<3>& value,
                                      const hw::attention_options<T>& options) {
  const std::size_t heads = layer.heads;
  const std::size_t kv_heads = layer.kv_heads ? layer.kv_heads : heads;
  const std::size_t head_dim = layer.head_dim ? layer.head_dim : layer.d_model / heads;
  const auto project = [&](const estimate<3>& x, hw::tensor_view<const T, 2> own_weight, std::size_t first,
                           std::size_t count) {
    const auto weight =
        own_weight.empty() ? weights.in_proj_weight.slice(0, first * head_dim, count * head_dim) : own_weight;
    const auto bias = weights.in_proj_bias.empty() ? weights.in_proj_bias
                                                   : weights.in_proj_bias.slice(0, first * head_dim, count * head_dim);
    const estimate<3> flat = linear<T>(x, weight, bias);
    return reshaped<4>(flat, {flat.value.extent(0), flat.value.extent(1), count, head_dim});
  };
  estimate<4> q = project(query, weights.q_proj_weight, 0, heads);
  estimate<4> k = project(key, weights.k_proj_weight, heads, kv_heads);
  estimate<4> v = project(value, weights.v_proj_weight, heads + kv_heads, kv_heads);
  if (layer.qk_norm) {
    q = normalized<T>(q, weights.q_norm_weight, layer.norm_epsilon);
    k = normalized<T>(k, weights.k_norm_weight, layer.norm_epsilon);
  }
  if (layer.rotary) {
    const attention_problem<T> problem{.q = q, .k = k, .v = v, .options = options};
    q = rotated<T>(q, *layer.rotary,
                   [&](std::size_t sample, std::size_t row) { return problem.position(sample, row); });
    k = rotated<T>(k, *layer.rotary, [](std::size_t, std::size_t row) { return static_cast<real>(row); });
  }
  std::size_t appended = 0;
  if (layer.add_bias_kv) {
    k = append_key<T>(k, weights.bias_k);
    v = append_key<T>(v, weights.bias_v);
    ++appended;
  }
  if (layer.add_zero_attention) {
    k = append_key<T>(k, {});
    v = append_key<T>(v, {});
    ++appended;
  }
  attention_result result = attention<T>({.q = q, .k = k, .v = v, .options = options, .appended = appended});
  const std::size_t batch = query.value.extent(0);
  const std::size_t length = query.value.extent(1);
  if (layer.gate != hw::output_gate::none) {
    result.out = gated<T>(result.out, linear<T>(query, weights.gate_proj_weight, weights.gate_proj_bias));
  }
  const estimate<3> joined = reshaped<3>(result.out, {batch, length, heads * head_dim});
  const estimate<3> out = linear<T>(joined, weights.out_proj_weight, weights.out_proj_bias);
  result.out = reshaped<4>(out, {batch, length, 1, out.value.extent(2)});
  return result;
}

}  // namespace oracle
