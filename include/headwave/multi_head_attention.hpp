// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>
#include <headwave/linear.hpp>

/// \file
/// The multi-head attention layer:
///   Q = query W_q^T + b_q,  K = key W_k^T + b_k,  V = value W_v^T + b_v,
///   y = concat over heads h of attention(Q_h, K_g, V_g) W_o^T + b_o.
/// Source: Vaswani et al. (2017), 3.2.2. Weights have the layouts of torch.nn.MultiheadAttention.

namespace headwave {

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
};

/// The parameters of a layer, read by set_weights. q, k and v stand below each other in the packed forms.
/// With E = d_model, Q = heads * head_dim, KV = kv_heads * head_dim:
template <class T>
struct multi_head_attention_weights {
  tensor_view<const T, 2> in_proj_weight = {};   ///< [Q + 2 KV, E]; only if key_dim = value_dim = E. Or these three:
  tensor_view<const T, 2> q_proj_weight = {};    ///< [Q, E]
  tensor_view<const T, 2> k_proj_weight = {};    ///< [KV, key_dim]
  tensor_view<const T, 2> v_proj_weight = {};    ///< [KV, value_dim]
  tensor_view<const T, 1> in_proj_bias = {};     ///< [Q + 2 KV], with bias
  tensor_view<const T, 1> bias_k = {};           ///< [KV], with add_bias_kv
  tensor_view<const T, 1> bias_v = {};           ///< [KV], with add_bias_kv
  tensor_view<const T, 2> out_proj_weight = {};  ///< [E, Q]
  tensor_view<const T, 1> out_proj_bias = {};    ///< [E], with bias
};

namespace detail {

/// A layer's packed parameters: the panels of q, k, v and the output projection, then their biases, then bias_k and
/// bias_v. Where q, k and v read the same number of channels, their panels and biases follow each other like those of
/// one matrix.
template <class T>
struct packed_layer {
  static constexpr std::size_t absent = static_cast<std::size_t>(-1);

  multi_head_attention_options shape{};  ///< with every default filled in
  tensor<T, 1> memory;                   ///< empty before weights are set
  std::size_t panels_at[4] = {absent, absent, absent, absent};
  std::size_t biases_at[6] = {absent, absent, absent, absent, absent, absent};

  HEADWAVE_INLINE packed_layer() = default;
  HEADWAVE_INLINE packed_layer(const packed_layer&) = default;
  HEADWAVE_INLINE packed_layer(packed_layer&&) = default;
  HEADWAVE_INLINE packed_layer& operator=(const packed_layer&) = default;
  HEADWAVE_INLINE packed_layer& operator=(packed_layer&&) = default;
  HEADWAVE_INLINE ~packed_layer() = default;

  HEADWAVE_INLINE std::size_t query_width() const { return shape.heads * shape.head_dim; }
  HEADWAVE_INLINE std::size_t key_width() const { return shape.kv_heads * shape.head_dim; }

  HEADWAVE_INLINE const T* bias(std::size_t i) const {
    return biases_at[i] == absent ? nullptr : memory.data() + biases_at[i];
  }
  HEADWAVE_INLINE packed_columns<T> projection(std::size_t i, std::size_t in_features, std::size_t columns) const {
    return {memory.data() + panels_at[i], bias(i), in_features, columns};
  }
  HEADWAVE_INLINE packed_columns<T> query() const { return projection(0, shape.d_model, query_width()); }
  HEADWAVE_INLINE packed_columns<T> key() const { return projection(1, shape.key_dim, key_width()); }
  HEADWAVE_INLINE packed_columns<T> value() const { return projection(2, shape.value_dim, key_width()); }
  HEADWAVE_INLINE packed_columns<T> output() const { return projection(3, query_width(), shape.d_model); }
  HEADWAVE_INLINE const T* bias_k() const { return bias(4); }
  HEADWAVE_INLINE const T* bias_v() const { return bias(5); }
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
  require_weight<2>("out_proj_weight", w.out_proj_weight.data(), w.out_proj_weight.extents(), {o.d_model, q});
  if (o.bias) {
    require_weight<1>("in_proj_bias", w.in_proj_bias.data(), w.in_proj_bias.extents(), {q + 2 * kv});
    require_weight<1>("out_proj_bias", w.out_proj_bias.data(), w.out_proj_bias.extents(), {o.d_model});
  } else {
    forbid_weight("in_proj_bias or out_proj_bias", w.in_proj_bias.data() || w.out_proj_bias.data(), "without bias");
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
  const tensor_view<const T, 2> weights[] = {w.q_proj_weight, w.k_proj_weight, w.v_proj_weight, w.out_proj_weight};
  const auto in_proj_bias = [&](std::size_t first, std::size_t count) {
    return layer.shape.bias ? w.in_proj_bias.slice(0, first, count) : w.in_proj_bias;
  };
  const tensor_view<const T, 1> biases[] = {
      in_proj_bias(0, q), in_proj_bias(q, kv), in_proj_bias(q + kv, kv), w.out_proj_bias, w.bias_k, w.bias_v};
  std::size_t size = 0;
  for (const auto& weight : weights) {
    size += packed_size<T>(layer_name, weight.extent(0), weight.extent(1));
  }
  for (const auto& bias : biases) {
    size += bias.data() ? padded_columns<T>(bias.extent(0)) : 0;
  }
  layer.memory = tensor<T, 1>({size}, uninitialized);
  std::size_t next = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    layer.panels_at[i] = next;
    pack_weight(layer.memory.data() + next, weights[i]);
    next += packed_size<T>(layer_name, weights[i].extent(0), weights[i].extent(1));
  }
  for (std::size_t i = 0; i < 6; ++i) {
    layer.biases_at[i] = packed_layer<T>::absent;
    if (biases[i].data()) {
      layer.biases_at[i] = next;
      pack_bias(layer.memory.data() + next, biases[i]);
      next += padded_columns<T>(biases[i].extent(0));
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
  const tensor<T, 2> weights[] = {glorot(q, o.d_model), glorot(kv, o.key_dim), glorot(kv, o.value_dim),
                                  glorot(o.d_model, q), glorot(kv, 1),         glorot(kv, 1)};
  const tensor<T, 1> zeros({q + 2 * kv > o.d_model ? q + 2 * kv : o.d_model});
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
  pack_layer(layer, w);
}

template <class T>
bool same_view(const tensor_view<const T, 3>& a, const tensor_view<const T, 3>& b) {
  return a.data() == b.data() && a.extents() == b.extents() && a.strides() == b.strides();
}

/// [batch, length, heads, head_dim] in rows of a scratch matrix.
template <class T>
tensor_view<T, 4> heads_of(T* data, const tensor_view<const T, 3>& x, std::size_t row, std::size_t heads,
                           std::size_t head_dim) {
  const auto stride = static_cast<index>(row);
  return {data,
          {x.extent(0), x.extent(1), heads, head_dim},
          {static_cast<index>(x.extent(1)) * stride, stride, static_cast<index>(head_dim), 1}};
}

template <class T>
void apply_layer(const tensor_view<T, 3>& out, const tensor_view<const T, 3>& query, const tensor_view<const T, 3>& key,
                 const tensor_view<const T, 3>& value, const packed_layer<T>& layer,
                 const attention_options<T>& options, const rule_arguments<T>& rules) {
  const multi_head_attention_options& o = layer.shape;
  const auto require = [&](bool holds, const char* rule) {
    if (!holds) {
      const std::size_t widths[] = {o.d_model, o.key_dim, o.value_dim};
      fail(layer_name, rule,
           {{"out", out.extents().data(), 3},
            {"query", query.extents().data(), 3},
            {"key", key.extents().data(), 3},
            {"value", value.extents().data(), 3},
            {"d_model, key_dim, value_dim", widths, 3}});
    }
  };
  require(!layer.memory.empty(), "weights must be set first, by set_weights or init_xavier");
  require(query.extent(2) == o.d_model, "query extent(2) must be d_model");
  require(key.extent(2) == o.key_dim, "key extent(2) must be key_dim");
  require(value.extent(2) == o.value_dim, "value extent(2) must be value_dim");
  require(key.extent(0) == query.extent(0) && value.extent(0) == query.extent(0),
          "query, key and value must agree in extent(0)");
  require(key.extent(1) == value.extent(1), "key and value must agree in extent(1)");
  require(out.extents() == query.extents(), "out must have the query's shape");
  const added_keys<T> added{layer.bias_k(), layer.bias_v(), o.add_zero_attention};
  check_options({layer_name,
                 {query.extent(0), query.extent(1), o.heads, o.head_dim},
                 {key.extent(0), key.extent(1), o.kv_heads, o.head_dim},
                 {value.extent(0), value.extent(1), o.kv_heads, o.head_dim}},
                options, added.count());

  const std::size_t q = padded_columns<T>(layer.query_width()), kv = padded_columns<T>(layer.key_width());
  const std::size_t query_rows = checked_product(layer_name, query.extent(0), query.extent(1));
  const std::size_t key_rows = checked_product(layer_name, key.extent(0), key.extent(1));
  const auto projected = [](T* data, const tensor_view<const T, 3>& x, std::size_t row, std::size_t columns) {
    const auto stride = static_cast<index>(row);
    return tensor_view<T, 3>(data, {x.extent(0), x.extent(1), columns},
                             {static_cast<index>(x.extent(1)) * stride, stride, 1});
  };
  scratch_frame frame;
  T* q_data = nullptr;
  T* k_data = nullptr;
  T* v_data = nullptr;
  std::size_t q_row = q, kv_row = kv;
  if (same_view(query, key) && same_view(query, value)) {
    // Self-attention: the panels of q, k and v follow each other, and so do their padded columns in the product.
    q_row = kv_row = q + 2 * kv;
    q_data = frame.take<T>(checked_product(layer_name, query_rows, q_row));
    k_data = q_data + q;
    v_data = k_data + kv;
    packed_columns<T> all = layer.query();
    all.columns = q_row;
    project(projected(q_data, query, q_row, q_row), query, all, options.executor);
  } else {
    q_data = frame.take<T>(checked_product(layer_name, query_rows, q));
    k_data = frame.take<T>(checked_product(layer_name, key_rows, kv));
    v_data = frame.take<T>(checked_product(layer_name, key_rows, kv));
    project(projected(q_data, query, q, layer.query_width()), query, layer.query(), options.executor);
    project(projected(k_data, key, kv, layer.key_width()), key, layer.key(), options.executor);
    project(projected(v_data, value, kv, layer.key_width()), value, layer.value(), options.executor);
  }
  T* const joined = frame.take<T>(checked_product(layer_name, query_rows, layer.query_width()));
  attend<T>(heads_of(joined, query, layer.query_width(), o.heads, o.head_dim),
            heads_of(q_data, query, q_row, o.heads, o.head_dim), heads_of(k_data, key, kv_row, o.kv_heads, o.head_dim),
            heads_of(v_data, value, kv_row, o.kv_heads, o.head_dim), options, rules, added);
  project<T>(out, projected(joined, query, layer.query_width(), layer.query_width()), layer.output(), options.executor);
}

}  // namespace detail::inline HEADWAVE_ABI

/// A multi-head attention layer. Its weights are packed once, when they are set. Calls are const and may run at the
/// same time.
template <class T>
class multi_head_attention {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "a layer computes in float or double");

 public:
  /// Errors: a shape that cannot be: d_model or heads missing, heads that do not divide d_model without head_dim,
  /// kv_heads that do not divide heads.
  HEADWAVE_INLINE explicit multi_head_attention(const multi_head_attention_options& options) {
    layer_.shape = detail::filled_in(options);
  }
  HEADWAVE_INLINE multi_head_attention(const multi_head_attention&) = default;
  HEADWAVE_INLINE multi_head_attention(multi_head_attention&&) = default;
  HEADWAVE_INLINE multi_head_attention& operator=(const multi_head_attention&) = default;
  HEADWAVE_INLINE multi_head_attention& operator=(multi_head_attention&&) = default;
  HEADWAVE_INLINE ~multi_head_attention() = default;

  /// The shape, with every default filled in.
  HEADWAVE_INLINE const multi_head_attention_options& options() const { return layer_.shape; }

  /// Packs the parameters; the tensors given may go. Errors: one that is missing, not wanted by the options, or of
  /// another shape.
  HEADWAVE_INLINE void set_weights(const multi_head_attention_weights<T>& weights) {
    detail::pack_layer(layer_, weights);
  }

  /// Weights drawn uniformly from +-sqrt(6 / (inputs + outputs)), biases zero; the same for a seed on every machine.
  /// Source: Glorot and Bengio (2010).
  HEADWAVE_INLINE void init_xavier(std::uint64_t seed) { detail::init_layer(layer_, seed); }

  /// Self-attention: writes the layer's result for x to out, both [batch, length, d_model], any strides.
  /// The options are those of scaled_dot_product_attention, for the layer's heads; the columns of weights and
  /// mean_weights are the length keys, then the one of add_bias_kv, then the one of add_zero_attention, which no mask
  /// hides. Errors: other shapes; no weights set. out must not overlap x, unless it is x itself.
  template <class Out, class X, score_rule<T>... Rules>
    requires(output_like<Out, 3> && tensor_like<const X, 3>)
  HEADWAVE_INLINE void apply_into(Out&& out, const X& x, const attention_options<T>& options = {},
                                  const Rules&... rules) const {
    apply_into(out, x, x, x, options, rules...);
  }

  /// Cross-attention. query, out: [batch, query_length, d_model]; key: [batch, key_length, key_dim];
  /// value: [batch, key_length, value_dim].
  template <class Out, class Query, class Key, class Value, score_rule<T>... Rules>
    requires(output_like<Out, 3> && tensor_like<const Query, 3> && tensor_like<const Key, 3> &&
             tensor_like<const Value, 3>)
  HEADWAVE_INLINE void apply_into(Out&& out, const Query& query, const Key& key, const Value& value,
                                  const attention_options<T>& options = {}, const Rules&... rules) const {
    const auto list = detail::list_rules(rules...);
    detail::apply_layer<T>(as_view(out), as_view(query), as_view(key), as_view(value), layer_, options,
                           detail::arguments_of<T>(list));
  }

  /// Self-attention as a new tensor of x's shape.
  template <class X, score_rule<T>... Rules>
    requires tensor_like<const X, 3>
  HEADWAVE_INLINE tensor<T, 3> operator()(const X& x, const attention_options<T>& options = {},
                                          const Rules&... rules) const {
    tensor<T, 3> out(as_view(x).extents(), uninitialized);
    apply_into(out, x, options, rules...);
    return out;
  }

  /// Cross-attention as a new tensor of the query's shape.
  template <class Query, class Key, class Value, score_rule<T>... Rules>
    requires(tensor_like<const Query, 3> && tensor_like<const Key, 3> && tensor_like<const Value, 3>)
  HEADWAVE_INLINE tensor<T, 3> operator()(const Query& query, const Key& key, const Value& value,
                                          const attention_options<T>& options = {}, const Rules&... rules) const {
    tensor<T, 3> out(as_view(query).extents(), uninitialized);
    apply_into(out, query, key, value, options, rules...);
    return out;
  }

 private:
  detail::packed_layer<T> layer_;
};

}  // namespace headwave
