// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/multi_head_attention.hpp>

#include "support/oracle_attention.hpp"

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
  const estimate<4> q = project(query, weights.q_proj_weight, 0, heads);
  estimate<4> k = project(key, weights.k_proj_weight, heads, kv_heads);
  estimate<4> v = project(value, weights.v_proj_weight, heads + kv_heads, kv_heads);
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
  const estimate<3> joined = reshaped<3>(result.out, {batch, length, heads * head_dim});
  const estimate<3> out = linear<T>(joined, weights.out_proj_weight, weights.out_proj_bias);
  result.out = reshaped<4>(out, {batch, length, 1, out.value.extent(2)});
  return result;
}

}  // namespace oracle
