// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/packed_layer.hpp>
#include <headwave/kv_cache.hpp>

/// \file
/// The multi-head attention layer:
///   Q = query W_q^T + b_q,  K = key W_k^T + b_k,  V = value W_v^T + b_v,
///   y = concat over heads h of attention(Q_h, K_g, V_g) W_o^T + b_o,
/// with, where the options ask for it, Q and K normalized and rotated and the heads' results gated.
/// Source: Vaswani et al. (2017), 3.2.2. Weights have the layouts of torch.nn.MultiheadAttention.

namespace headwave {

namespace detail::inline HEADWAVE_ABI {

template <class T>
bool same_view(const tensor_view<const T, 3>& a, const tensor_view<const T, 3>& b) {
  return a.data() == b.data() && a.extents() == b.extents() && a.strides() == b.strides();
}

/// Some columns of a scratch matrix whose rows are those of [batch, length]: the whole of a row, and by heads.
template <class T>
struct layer_columns {
  T* data;
  std::size_t batch, length, row, width;

  tensor_view<T, 3> whole() const {
    const auto stride = static_cast<index>(row);
    return {data, {batch, length, width}, {static_cast<index>(length) * stride, stride, 1}};
  }
  tensor_view<T, 4> by_heads(std::size_t heads) const {
    const auto stride = static_cast<index>(row), head = static_cast<index>(width / heads);
    return {data, {batch, length, heads, width / heads}, {static_cast<index>(length) * stride, stride, head, 1}};
  }
};

/// What the input projections of a layer give.
template <class T>
struct layer_inputs {
  layer_columns<T> query, key, value, gate;
};

template <class T>
layer_inputs<T> project_inputs(scratch_frame& frame, const tensor_view<const T, 3>& query,
                               const tensor_view<const T, 3>& key, const tensor_view<const T, 3>& value,
                               const packed_layer<T>& layer, const executor_ref& executor) {
  const auto columns = [&](const tensor_view<const T, 3>& x, std::size_t row, std::size_t width) {
    const std::size_t rows = checked_product(layer_name, x.extent(0), x.extent(1));
    return layer_columns<T>{frame.take<T>(checked_product(layer_name, rows, row)), x.extent(0), x.extent(1), row,
                            width};
  };
  const std::size_t q = padded_columns<T>(layer.query_width()), kv = padded_columns<T>(layer.key_width());
  const std::size_t gate = padded_columns<T>(layer.gate_width());
  layer_inputs<T> inputs{};
  if (same_view(query, key) && same_view(query, value)) {
    // Self-attention: the panels of q, k, v and the gate follow each other, and so do their padded columns in the
    // product.
    const std::size_t row = q + 2 * kv + gate;
    const layer_columns<T> all = columns(query, row, row);
    packed_columns<T> matrix = layer.matrix(query_matrix);
    matrix.columns = row;
    project(all.whole(), query, matrix, executor);
    inputs = {all, all, all, all};
    inputs.key.data += q;
    inputs.value.data += q + kv;
    inputs.gate.data += q + 2 * kv;
    inputs.query.width = layer.query_width();
    inputs.key.width = inputs.value.width = layer.key_width();
    inputs.gate.width = layer.gate_width();
    return inputs;
  }
  inputs = {columns(query, q, layer.query_width()), columns(key, kv, layer.key_width()),
            columns(value, kv, layer.key_width()), columns(query, gate, layer.gate_width())};
  project(inputs.query.whole(), query, layer.matrix(query_matrix), executor);
  project(inputs.key.whole(), key, layer.matrix(key_matrix), executor);
  project(inputs.value.whole(), value, layer.matrix(value_matrix), executor);
  if (layer.gate_width() > 0) {
    project(inputs.gate.whole(), query, layer.matrix(gate_matrix), executor);
  }
  return inputs;
}

/// Calls row_task(row) for every row of some columns.
template <class T, class RowTask>
void for_each_row(const layer_columns<T>& x, const executor_ref& executor, const RowTask& row_task) {
  // An element takes as long as some ten operations.
  const double cost = 10 * static_cast<double>(x.batch) * static_cast<double>(x.length) * static_cast<double>(x.width);
  run_ranges(executor, wanted_tasks(executor, cost), static_cast<index>(x.batch * x.length),
             [&row_task](index first, index last) {
               for (index row = first; row < last; ++row) {
                 row_task(row);
               }
             });
}

template <class T>
void normalize_heads(const layer_columns<T>& x, std::size_t heads, const T* weight, double epsilon,
                     const executor_ref& executor) {
  const index width = static_cast<index>(x.width / heads);
  for_each_row(x, executor, [&](index row) {
    for (index h = 0; h < static_cast<index>(heads); ++h) {
      HEADWAVE_DISPATCH(normalize_row(x.data + row * static_cast<index>(x.row) + h * width, weight, width, epsilon))
    }
  });
}

template <class T>
void gate_output(const layer_columns<T>& x, const layer_columns<T>& gate, std::size_t heads,
                 const executor_ref& executor) {
  const bool by_heads = gate.width == heads && x.width != heads;
  const index parts = by_heads ? static_cast<index>(heads) : 1, width = static_cast<index>(x.width) / parts;
  for_each_row(x, executor, [&](index row) {
    T* const target = x.data + row * static_cast<index>(x.row);
    const T* const factors = gate.data + row * static_cast<index>(gate.row);
    for (index part = 0; part < parts; ++part) {
      HEADWAVE_DISPATCH(gate_row(target + part * width, factors + part, by_heads ? 0 : 1, width))
    }
  });
}

/// Where the rows of packed sequences stand: row - offsets[n] + start.
inline const std::int64_t* positions_in_sequences(scratch_frame& frame, std::span<const std::int64_t> offsets,
                                                  std::size_t rows, auto start_of) {
  std::int64_t* const positions = frame.take<std::int64_t>(rows);
  std::fill_n(positions, rows, std::int64_t{0});
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    for (std::int64_t row = offsets[n]; row < offsets[n + 1]; ++row) {
      positions[row] = row - offsets[n] + start_of(n);
    }
  }
  return positions;
}

/// Where queries and keys stand.
struct layer_positions {
  rotary_positions query, key;
};

/// Those of a call without cache.
template <class T>
layer_positions positions_of(scratch_frame& frame, const layer_inputs<T>& inputs, const attention_options<T>& options) {
  const auto q_offsets = options.query_offsets, k_offsets = options.key_offsets;
  const auto start_of = [&](std::size_t sample, std::int64_t keys, std::int64_t queries) {
    return options.query_starts.data() ? options.query_starts[sample]
           : options.query_start       ? *options.query_start
                                       : keys - queries;
  };
  if (q_offsets.data()) {
    const std::int64_t* const queries = positions_in_sequences(
        frame, q_offsets, inputs.query.length,
        [&](std::size_t n) { return start_of(n, k_offsets[n + 1] - k_offsets[n], q_offsets[n + 1] - q_offsets[n]); });
    const std::int64_t* const keys =
        positions_in_sequences(frame, k_offsets, inputs.key.length, [](std::size_t) { return std::int64_t{0}; });
    using list = tensor_view<const std::int64_t, 1>;
    return {list(queries, {inputs.query.length}), list(keys, {inputs.key.length})};
  }
  if (options.query_starts.data()) {
    return {rotary_positions::starts(options.query_starts), 0};
  }
  return {start_of(0, static_cast<std::int64_t>(inputs.key.length), static_cast<std::int64_t>(inputs.query.length)), 0};
}

/// Normalizes queries and keys, and rotates them to their positions.
template <class T>
void place_inputs(const layer_inputs<T>& inputs, const packed_layer<T>& layer, const layer_positions& positions,
                  const executor_ref& executor) {
  const multi_head_attention_options& o = layer.shape;
  if (o.qk_norm) {
    normalize_heads(inputs.query, o.heads, layer.vector(q_norm_vector), o.norm_epsilon, executor);
    normalize_heads(inputs.key, o.kv_heads, layer.vector(k_norm_vector), o.norm_epsilon, executor);
  }
  if (o.rotary) {
    layer.rotary.apply(inputs.query.by_heads(o.heads), positions.query, executor);
    layer.rotary.apply(inputs.key.by_heads(o.kv_heads), positions.key, executor);
  }
}

/// Asks for the memory of finish_layer, which then has it: if it is missing, that is known before attention writes to
/// what the caller wants of it.
template <class T>
void reserve_for_output(const layer_columns<T>& joined) {
  gemm_arguments<T> product{};
  product.rows = static_cast<index>(joined.batch * joined.length);
  product.depth = static_cast<index>(joined.width);
  scratch_frame().take<T>(static_cast<std::uint64_t>(gemm_workspace(product)));
}

/// The gate, and the output projection.
template <class T>
void finish_layer(const tensor_view<T, 3>& out, const layer_columns<T>& joined, const layer_columns<T>& gate,
                  const packed_layer<T>& layer, const executor_ref& executor) {
  if (layer.shape.gate != output_gate::none) {
    gate_output(joined, gate, layer.shape.heads, executor);
  }
  project<T>(out, joined.whole(), layer.matrix(output_matrix), executor);
}

template <class T>
layer_columns<T> joined_heads(scratch_frame& frame, const tensor_view<const T, 3>& query,
                              const packed_layer<T>& layer) {
  const std::size_t width = layer.query_width(), rows = checked_product(layer_name, query.extent(0), query.extent(1));
  return {frame.take<T>(checked_product(layer_name, rows, width)), query.extent(0), query.extent(1), width, width};
}

template <class T>
added_keys<T> added_keys_of(const packed_layer<T>& layer) {
  return {layer.vector(bias_k_vector), layer.vector(bias_v_vector), layer.shape.add_zero_attention};
}

template <class T>
void check_layer(const tensor_view<T, 3>& out, const tensor_view<const T, 3>& query, const tensor_view<const T, 3>& key,
                 const tensor_view<const T, 3>& value, const packed_layer<T>& layer) {
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
}

template <class T>
void apply_layer(const tensor_view<T, 3>& out, const tensor_view<const T, 3>& query, const tensor_view<const T, 3>& key,
                 const tensor_view<const T, 3>& value, const packed_layer<T>& layer,
                 const attention_options<T>& options, const rule_arguments<T>& rules) {
  check_layer(out, query, key, value, layer);
  const multi_head_attention_options& o = layer.shape;
  const added_keys<T> added = added_keys_of(layer);
  const std::array<std::size_t, 4> keys{key.extent(0), key.extent(1), o.kv_heads, o.head_dim};
  const attention_shape shape{layer_name, {query.extent(0), query.extent(1), o.heads, o.head_dim}, keys, keys};
  check_options(shape, options, added.count());
  scratch_frame frame;
  const layer_inputs<T> inputs = project_inputs(frame, query, key, value, layer, options.executor);
  const layer_columns<T> joined = joined_heads(frame, query, layer);
  place_inputs(inputs, layer, o.rotary ? positions_of(frame, inputs, options) : layer_positions{0, 0},
               options.executor);
  reserve_for_output(joined);
  attend<T>({stored<const void>(inputs.query.by_heads(o.heads)), rows_of_keys(inputs.key.by_heads(o.kv_heads)),
             rows_of_keys(inputs.value.by_heads(o.kv_heads)), stored<void>(joined.by_heads(o.heads)), shape},
            options, rules, added);
  finish_layer(out, joined, inputs.gate, layer, options.executor);
}

/// Self-attention of new tokens to themselves and what a cache holds.
template <class T, class Stored>
void apply_layer_to_cache(const tensor_view<T, 3>& out, const tensor_view<const T, 3>& x, const packed_layer<T>& layer,
                          kv_cache<T, Stored>& cache, attention_options<T> options, const rule_arguments<T>& rules) {
  check_layer(out, x, x, x, layer);
  const multi_head_attention_options& o = layer.shape;
  const kv_cache_options& c = cache.options();
  if (c.batch != x.extent(0) || c.kv_heads != o.kv_heads || c.head_dim != o.head_dim || c.value_dim != o.head_dim) {
    const std::size_t wanted[] = {x.extent(0), o.kv_heads, o.head_dim, o.head_dim};
    const std::size_t given[] = {c.batch, c.kv_heads, c.head_dim, c.value_dim};
    fail(layer_name, "the cache must be made for the layer and the batch",
         {{"wanted batch, kv_heads, head_dim, value_dim", wanted, 4}, {"cache", given, 4}});
  }
  scratch_frame frame;
  std::int64_t* const starts = frame.take<std::int64_t>(c.batch);
  std::copy_n(cache.lengths().data(), c.batch, starts);
  const added_keys<T> added = added_keys_of(layer);
  const auto shape = check_cache_call(layer_name, {x.extent(0), x.extent(1), o.heads, o.head_dim}, cache.state(),
                                      x.extent(1), options, added.count());
  const layer_inputs<T> inputs = project_inputs(frame, x, x, x, layer, options.executor);
  if (!options.query_start && !options.query_starts.data()) {
    options.query_starts = {starts, c.batch};
  }
  const auto queries =
      options.query_start ? rotary_positions(*options.query_start) : rotary_positions::starts(options.query_starts);
  place_inputs(inputs, layer, {queries, rotary_positions::starts({starts, c.batch})}, options.executor);
  const layer_columns<T> joined = joined_heads(frame, x, layer);
  reserve_for_output(joined);
  pending_append<Stored> pending(cache.state(), starts);
  cache.append(inputs.key.by_heads(o.kv_heads), inputs.value.by_heads(o.kv_heads), options.query_lengths);
  attend_to_cache<T>(stored<void>(joined.by_heads(o.heads)), stored<const void>(inputs.query.by_heads(o.heads)), shape,
                     cache.state(), options, rules, added);
  finish_layer(out, joined, inputs.gate, layer, options.executor);
  pending.keep();
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
    if (layer_.shape.rotary) {
      layer_.rotary = rotary_embedding(*layer_.shape.rotary);
    }
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

  /// Self-attention of new tokens x [batch, length, d_model] to themselves and all that the cache holds: their keys and
  /// values are appended, then attended to; give causal with more than one. The rows of sample b stand at what was its
  /// length; of a sample with fewer new tokens, only the first query_lengths[b] are appended. Errors: a cache of
  /// another shape, or full; then it is as before. Without memory (std::bad_alloc), too, but for the keys that a
  /// rolling cache has forgotten for the new ones: the same call again has the result.
  template <class Out, class X, class Stored, score_rule<T>... Rules>
    requires(output_like<Out, 3> && tensor_like<const X, 3>)
  HEADWAVE_INLINE void apply_into(Out&& out, const X& x, kv_cache<T, Stored>& cache,
                                  const attention_options<T>& options = {}, const Rules&... rules) const {
    const auto list = detail::list_rules(rules...);
    detail::apply_layer_to_cache<T>(as_view(out), as_view(x), layer_, cache, options, detail::arguments_of<T>(list));
  }

  /// An empty cache for this layer, of the element type wanted.
  template <class Stored = T>
  HEADWAVE_INLINE kv_cache<T, Stored> make_cache(std::size_t batch, std::size_t capacity, bool rolling = false) const {
    return kv_cache<T, Stored>({.batch = batch,
                                .capacity = capacity,
                                .kv_heads = layer_.shape.kv_heads,
                                .head_dim = layer_.shape.head_dim,
                                .rolling = rolling});
  }

  /// Self-attention with a cache as a new tensor of x's shape.
  template <class X, class Stored, score_rule<T>... Rules>
    requires tensor_like<const X, 3>
  HEADWAVE_INLINE tensor<T, 3> operator()(const X& x, kv_cache<T, Stored>& cache,
                                          const attention_options<T>& options = {}, const Rules&... rules) const {
    tensor<T, 3> out(as_view(x).extents(), uninitialized);
    apply_into(out, x, cache, options, rules...);
    return out;
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
