// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/linear.hpp>
#include <headwave/multi_head_attention_options.hpp>

#include <cmath>

// The parameters of a multi-head attention layer in the order in which its kernels read them.

namespace headwave {

namespace detail {

/// The matrices of a layer, and its vectors, in the order in which they are packed.
enum layer_matrix : std::size_t { query_matrix, key_matrix, value_matrix, gate_matrix, output_matrix, layer_matrices };
enum layer_vector : std::size_t {
  bias_k_vector = layer_matrices,
  bias_v_vector,
  q_norm_vector,
  k_norm_vector,
  layer_vectors
};

/// A layer's packed parameters: the panels of all matrices, then their biases, then the other vectors. Where q, k, v
/// and the gate read the same number of channels, their panels and biases follow each other like those of one matrix.
template <class T>
struct packed_layer {
  static constexpr std::size_t absent = static_cast<std::size_t>(-1);

  multi_head_attention_options shape{};  ///< with every default filled in; spans in it are gone
  rotary_embedding rotary;               ///< rotates nothing if the shape does not say so
  tensor<T, 1> memory;                   ///< empty before weights are set
  std::size_t panels_at[layer_matrices] = {};
  std::size_t vectors_at[layer_vectors] = {};  ///< the matrices' biases and the other vectors, some absent

  HEADWAVE_INLINE packed_layer() = default;
  HEADWAVE_INLINE packed_layer(const packed_layer&) = default;
  HEADWAVE_INLINE packed_layer(packed_layer&&) = default;
  HEADWAVE_INLINE packed_layer& operator=(const packed_layer& other) {
    return *this = packed_layer(other);  // all of it or, without memory, nothing
  }
  HEADWAVE_INLINE packed_layer& operator=(packed_layer&&) = default;
  HEADWAVE_INLINE ~packed_layer() = default;

  HEADWAVE_INLINE std::size_t query_width() const { return shape.heads * shape.head_dim; }
  HEADWAVE_INLINE std::size_t key_width() const { return shape.kv_heads * shape.head_dim; }

  HEADWAVE_INLINE std::size_t gate_width() const {
    return shape.gate == output_gate::none ? 0 : shape.gate == output_gate::heads ? shape.heads : query_width();
  }

  HEADWAVE_INLINE const T* vector(std::size_t i) const {
    return vectors_at[i] == absent ? nullptr : memory.data() + vectors_at[i];
  }
  HEADWAVE_INLINE packed_columns<T> matrix(layer_matrix i) const {
    const std::size_t inputs[] = {shape.d_model, shape.key_dim, shape.value_dim, shape.d_model, query_width()};
    const std::size_t columns[] = {query_width(), key_width(), key_width(), gate_width(), shape.d_model};
    return {memory.data() + panels_at[i], vector(i), inputs[i], columns[i]};
  }
};

}  // namespace detail

namespace detail::inline HEADWAVE_ABI {

inline constexpr const char* layer_name = "multi_head_attention";

inline multi_head_attention_options filled_in(multi_head_attention_options o) {
  const auto text = [&o] {
    return "d_model " + std::to_string(o.d_model) + ", heads " + std::to_string(o.heads) + ", kv_heads " +
           std::to_string(o.kv_heads) + ", head_dim " + std::to_string(o.head_dim);
  };
  if (o.d_model == 0 || o.heads == 0) {
    fail(layer_name, "d_model and heads must be given: " + text());
  }
  if (o.head_dim == 0 && o.d_model % o.heads != 0) {
    fail(layer_name, "heads must divide d_model, or head_dim be given: " + text());
  }
  o.head_dim = o.head_dim ? o.head_dim : o.d_model / o.heads;
  o.kv_heads = o.kv_heads ? o.kv_heads : o.heads;
  o.key_dim = o.key_dim ? o.key_dim : o.d_model;
  o.value_dim = o.value_dim ? o.value_dim : o.d_model;
  if (o.heads % o.kv_heads != 0) {
    fail(layer_name, "kv_heads must divide heads: " + text());
  }
  checked_product(layer_name, o.heads, o.head_dim);
  if (!is_finite(o.norm_epsilon) || o.norm_epsilon < 0) {
    fail(layer_name, "norm_epsilon must be finite and not negative");
  }
  if (o.rotary) {
    o.rotary->rotary_dim = o.rotary->rotary_dim ? o.rotary->rotary_dim : o.head_dim;
    if (o.rotary->rotary_dim > o.head_dim || o.rotary->first_channel > o.head_dim - o.rotary->rotary_dim) {
      fail(layer_name, "first_channel + rotary_dim must not exceed head_dim: " + text());
    }
  }
  return o;
}

template <std::size_t Rank>
void require_weight(const char* name, bool given, const std::array<std::size_t, Rank>& actual,
                    const std::array<std::size_t, Rank>& wanted) {
  if (!given || actual != wanted) {
    fail(layer_name, std::string(name) + " must have the shape " + shape_text(wanted.data(), Rank),
         {{given ? name : "not given:", actual.data(), Rank}});
  }
}
inline void forbid_weight(const char* name, bool given, const char* why) {
  if (given) {
    fail(layer_name, std::string(name) + " is given to a layer " + why);
  }
}

template <class T>
void check_weights(const packed_layer<T>& layer, multi_head_attention_weights<T>& w) {
  const multi_head_attention_options& o = layer.shape;
  const std::size_t q = layer.query_width(), kv = layer.key_width();
  if (w.in_proj_weight.data()) {
    if (o.key_dim != o.d_model || o.value_dim != o.d_model) {
      fail(
          layer_name,
          "in_proj_weight needs key_dim and value_dim to be d_model; give q_proj_weight, k_proj_weight, v_proj_weight");
    }
    forbid_weight("q_proj_weight, k_proj_weight or v_proj_weight",
                  w.q_proj_weight.data() || w.k_proj_weight.data() || w.v_proj_weight.data(), "with in_proj_weight");
    require_weight<2>("in_proj_weight", true, w.in_proj_weight.extents(), {q + 2 * kv, o.d_model});
    w.q_proj_weight = w.in_proj_weight.slice(0, 0, q);
    w.k_proj_weight = w.in_proj_weight.slice(0, q, kv);
    w.v_proj_weight = w.in_proj_weight.slice(0, q + kv, kv);
  }
  require_weight<2>("q_proj_weight", w.q_proj_weight.data(), w.q_proj_weight.extents(), {q, o.d_model});
  require_weight<2>("k_proj_weight", w.k_proj_weight.data(), w.k_proj_weight.extents(), {kv, o.key_dim});
  require_weight<2>("v_proj_weight", w.v_proj_weight.data(), w.v_proj_weight.extents(), {kv, o.value_dim});
  if (o.gate != output_gate::none) {
    require_weight<2>("gate_proj_weight", w.gate_proj_weight.data(), w.gate_proj_weight.extents(),
                      {layer.gate_width(), o.d_model});
  } else {
    forbid_weight("gate_proj_weight or gate_proj_bias", w.gate_proj_weight.data() || w.gate_proj_bias.data(),
                  "without gate");
  }
  if (o.qk_norm) {
    require_weight<1>("q_norm_weight", w.q_norm_weight.data(), w.q_norm_weight.extents(), {o.head_dim});
    require_weight<1>("k_norm_weight", w.k_norm_weight.data(), w.k_norm_weight.extents(), {o.head_dim});
  } else {
    forbid_weight("q_norm_weight or k_norm_weight", w.q_norm_weight.data() || w.k_norm_weight.data(),
                  "without qk_norm");
  }
  require_weight<2>("out_proj_weight", w.out_proj_weight.data(), w.out_proj_weight.extents(), {o.d_model, q});
  if (o.bias) {
    require_weight<1>("in_proj_bias", w.in_proj_bias.data(), w.in_proj_bias.extents(), {q + 2 * kv});
    require_weight<1>("out_proj_bias", w.out_proj_bias.data(), w.out_proj_bias.extents(), {o.d_model});
    if (o.gate != output_gate::none) {
      require_weight<1>("gate_proj_bias", w.gate_proj_bias.data(), w.gate_proj_bias.extents(), {layer.gate_width()});
    }
  } else {
    forbid_weight("in_proj_bias, gate_proj_bias or out_proj_bias",
                  w.in_proj_bias.data() || w.gate_proj_bias.data() || w.out_proj_bias.data(), "without bias");
  }
  if (o.add_bias_kv) {
    require_weight<1>("bias_k", w.bias_k.data(), w.bias_k.extents(), {kv});
    require_weight<1>("bias_v", w.bias_v.data(), w.bias_v.extents(), {kv});
  } else {
    forbid_weight("bias_k or bias_v", w.bias_k.data() || w.bias_v.data(), "without add_bias_kv");
  }
}

template <class T>
void pack_layer(packed_layer<T>& layer, multi_head_attention_weights<T> w) {
  check_weights(layer, w);
  const std::size_t q = layer.query_width(), kv = layer.key_width();
  const tensor_view<const T, 2> matrices[] = {w.q_proj_weight, w.k_proj_weight, w.v_proj_weight, w.gate_proj_weight,
                                              w.out_proj_weight};
  const auto in_proj_bias = [&](std::size_t first, std::size_t count) {
    return layer.shape.bias ? w.in_proj_bias.slice(0, first, count) : w.in_proj_bias;
  };
  const tensor_view<const T, 1> vectors[] = {in_proj_bias(0, q), in_proj_bias(q, kv), in_proj_bias(q + kv, kv),
                                             w.gate_proj_bias,   w.out_proj_bias,     w.bias_k,
                                             w.bias_v,           w.q_norm_weight,     w.k_norm_weight};
  std::size_t size = 0;
  for (const auto& matrix : matrices) {
    size = checked_sum(layer_name, size, packed_size<T>(layer_name, matrix.extent(0), matrix.extent(1)));
  }
  for (const auto& vector : vectors) {
    size = checked_sum(layer_name, size, vector.data() ? padded_columns<T>(vector.extent(0)) : 0);
  }
  layer.memory = tensor<T, 1>({size}, uninitialized);
  std::size_t next = 0;
  for (std::size_t i = 0; i < layer_matrices; ++i) {
    layer.panels_at[i] = next;
    pack_weight(layer.memory.data() + next, matrices[i]);
    next += packed_size<T>(layer_name, matrices[i].extent(0), matrices[i].extent(1));
  }
  for (std::size_t i = 0; i < layer_vectors; ++i) {
    layer.vectors_at[i] = packed_layer<T>::absent;
    if (vectors[i].data()) {
      layer.vectors_at[i] = next;
      pack_bias(layer.memory.data() + next, vectors[i]);
      next += padded_columns<T>(vectors[i].extent(0));
    }
  }
}

/// Uniform on [-bound, bound): the next number of a stream of splitmix64 (Steele, Lea and Flood, 2014), the same on
/// every machine.
template <class T>
T next_uniform(std::uint64_t& state, double bound) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<T>((static_cast<double>(z >> 11) * 0x1p-52 - 1) * bound);
}

template <class T>
void init_layer(packed_layer<T>& layer, std::uint64_t seed) {
  const multi_head_attention_options& o = layer.shape;
  const std::size_t q = layer.query_width(), kv = layer.key_width();
  std::uint64_t state = seed;
  const auto glorot = [&state](std::size_t outputs, std::size_t inputs) {
    tensor<T, 2> weight({outputs, inputs}, uninitialized);
    const double bound = std::sqrt(6 / static_cast<double>(outputs + inputs));
    for (T& x : weight) {
      x = next_uniform<T>(state, bound);
    }
    return weight;
  };
  const tensor<T, 2> weights[] = {glorot(q, o.d_model),
                                  glorot(kv, o.key_dim),
                                  glorot(kv, o.value_dim),
                                  glorot(o.d_model, q),
                                  glorot(kv, 1),
                                  glorot(kv, 1),
                                  glorot(layer.gate_width(), o.d_model)};
  const tensor<T, 1> zeros({q + 2 * kv > o.d_model ? q + 2 * kv : o.d_model});
  tensor<T, 1> ones({o.head_dim}, uninitialized);
  for (T& x : ones) {
    x = T(1);
  }
  multi_head_attention_weights<T> w{};
  w.q_proj_weight = weights[0];
  w.k_proj_weight = weights[1];
  w.v_proj_weight = weights[2];
  w.out_proj_weight = weights[3];
  if (o.bias) {
    w.in_proj_bias = {zeros.data(), {q + 2 * kv}};
    w.out_proj_bias = {zeros.data(), {o.d_model}};
  }
  if (o.add_bias_kv) {
    w.bias_k = {weights[4].data(), {kv}};
    w.bias_v = {weights[5].data(), {kv}};
  }
  if (o.gate != output_gate::none) {
    w.gate_proj_weight = weights[6];
    if (o.bias) {
      w.gate_proj_bias = {zeros.data(), {layer.gate_width()}};
    }
  }
  if (o.qk_norm) {
    w.q_norm_weight = ones;
    w.k_norm_weight = ones;
  }
  pack_layer(layer, w);
}

}  // namespace detail::inline HEADWAVE_ABI
}  // namespace headwave
