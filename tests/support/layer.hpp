// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/multi_head_attention.hpp>

#include "support/random.hpp"

#include <cstddef>

namespace support {

/// Random parameters of a layer: packed input projections if queries, keys and values have one width, else three.
template <class T>
struct layer_parameters {
  hw::multi_head_attention_options options;
  hw::tensor<T, 2> in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, out_proj_weight;
  hw::tensor<T, 2> gate_proj_weight;
  hw::tensor<T, 1> in_proj_bias, bias_k, bias_v, q_norm_weight, k_norm_weight, gate_proj_bias, out_proj_bias;

  layer_parameters(const hw::multi_head_attention_options& layer_options, random_source& random)
      : options(layer_options) {
    const std::size_t kv_heads = options.kv_heads ? options.kv_heads : options.heads;
    const std::size_t head_dim = options.head_dim ? options.head_dim : options.d_model / options.heads;
    const std::size_t queries = options.heads * head_dim;
    const std::size_t keys = kv_heads * head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(options.d_model));
    if (options.key_dim || options.value_dim) {
      q_proj_weight = random.tensor<T>({queries, options.d_model}, scale);
      k_proj_weight = random.tensor<T>({keys, options.key_dim ? options.key_dim : options.d_model}, scale);
      v_proj_weight = random.tensor<T>({keys, options.value_dim ? options.value_dim : options.d_model}, scale);
    } else {
      in_proj_weight = random.tensor<T>({queries + 2 * keys, options.d_model}, scale);
    }
    out_proj_weight = random.tensor<T>({options.d_model, queries}, scale);
    if (options.bias) {
      in_proj_bias = random.tensor<T>({queries + 2 * keys}, 0.2);
      out_proj_bias = random.tensor<T>({options.d_model}, 0.2);
    }
    if (options.qk_norm) {
      q_norm_weight = random.tensor<T>({head_dim});
      k_norm_weight = random.tensor<T>({head_dim});
    }
    if (options.gate != hw::output_gate::none) {
      const std::size_t gates = options.gate == hw::output_gate::heads ? options.heads : queries;
      gate_proj_weight = random.tensor<T>({gates, options.d_model}, 2 * scale);
      if (options.bias) {
        gate_proj_bias = random.tensor<T>({gates});
      }
    }
    if (options.add_bias_kv) {
      bias_k = random.tensor<T>({keys}, 0.2);
      bias_v = random.tensor<T>({keys}, 0.2);
    }
  }

  hw::multi_head_attention_weights<T> weights() const {
    return {.in_proj_weight = in_proj_weight,
            .q_proj_weight = q_proj_weight,
            .k_proj_weight = k_proj_weight,
            .v_proj_weight = v_proj_weight,
            .in_proj_bias = in_proj_bias,
            .bias_k = bias_k,
            .bias_v = bias_v,
            .q_norm_weight = q_norm_weight,
            .k_norm_weight = k_norm_weight,
            .gate_proj_weight = gate_proj_weight,
            .gate_proj_bias = gate_proj_bias,
            .out_proj_weight = out_proj_weight,
            .out_proj_bias = out_proj_bias};
  }

  hw::multi_head_attention<T> layer() const {
    hw::multi_head_attention<T> result(options);
    result.set_weights(weights());
    return result;
  }
};

}  // namespace support
