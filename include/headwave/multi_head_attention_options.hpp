// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/rotary.hpp>
#include <headwave/tensor.hpp>

#include <optional>

/// \file
/// The shape and the parameters of a multi-head attention layer.

namespace headwave {

/// Factors of what attention gives, before the output projection: 1 / (1 + e^-g), g = query W_g^T + b_g. Source: Qiu et
/// al. (2025).
enum class output_gate {
  none,
  channels,  ///< one for each channel of each head
  heads      ///< one for each head
};

/// The shape of a layer; 0 stands for the default named.
struct multi_head_attention_options {
  std::size_t d_model = 0;          ///< channels of the query and of the result; must be given
  std::size_t heads = 0;            ///< query heads; must be given
  std::size_t kv_heads = 0;         ///< key/value heads, a divisor of heads. Default: heads
  std::size_t head_dim = 0;         ///< channels of a head. Default: d_model / heads, which then must divide
  std::size_t key_dim = 0;          ///< channels of the key input. Default: d_model
  std::size_t value_dim = 0;        ///< channels of the value input. Default: d_model
  bool bias = true;                 ///< whether the four projections have a bias
  bool add_bias_kv = false;         ///< a learned key and value that every query sees
  bool add_zero_attention = false;  ///< a key and value of zeros that every query sees
  /// Queries and keys become x_c w_c / (mean of x^2 + norm_epsilon)^(1/2) in each head, before they are rotated.
  /// Source: Zhang and Sennrich (2019), Dehghani et al. (2023).
  bool qk_norm = false;
  double norm_epsilon = 1e-6;
  /// Rotates queries by their position and keys by theirs, which is their index, or their place in the cache. Default
  /// of its rotary_dim: head_dim. See rotary.hpp.
  std::optional<rotary_options> rotary = {};
  output_gate gate = output_gate::none;
};

/// The parameters of a layer, read by set_weights. q, k and v stand below each other in the packed forms.
/// With E = d_model, Q = heads * head_dim, KV = kv_heads * head_dim:
template <class T>
struct multi_head_attention_weights {
  tensor_view<const T, 2> in_proj_weight = {};    ///< [Q + 2 KV, E]; only if key_dim = value_dim = E. Or these three:
  tensor_view<const T, 2> q_proj_weight = {};     ///< [Q, E]
  tensor_view<const T, 2> k_proj_weight = {};     ///< [KV, key_dim]
  tensor_view<const T, 2> v_proj_weight = {};     ///< [KV, value_dim]
  tensor_view<const T, 1> in_proj_bias = {};      ///< [Q + 2 KV], with bias
  tensor_view<const T, 1> bias_k = {};            ///< [KV], with add_bias_kv
  tensor_view<const T, 1> bias_v = {};            ///< [KV], with add_bias_kv
  tensor_view<const T, 1> q_norm_weight = {};     ///< [head_dim], with qk_norm
  tensor_view<const T, 1> k_norm_weight = {};     ///< [head_dim], with qk_norm
  tensor_view<const T, 2> gate_proj_weight = {};  ///< [Q, E], or [heads, E] for a gate of heads
  tensor_view<const T, 1> gate_proj_bias = {};    ///< [Q] or [heads], with a gate and bias
  tensor_view<const T, 2> out_proj_weight = {};   ///< [E, Q]
  tensor_view<const T, 1> out_proj_bias = {};     ///< [E], with bias
};

}  // namespace headwave
