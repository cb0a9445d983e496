// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/dispatch.hpp>
#include <headwave/detail/scratch.hpp>
#include <headwave/executor.hpp>
#include <headwave/tensor.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

/// \file
/// Scaled dot-product attention.
///
/// For each sample b, query head h and query row i, over the keys j that the row may see:
///   s_j   = finish(scale * q(b, i, h) . k(b, j, g)),   g = h / (heads / kv_heads)
///   out(b, i, h) = sum over j of e^(s_j) v(b, j, g) / sum over j of e^(s_j)
/// where finish is, in this order: soft cap, bias, ALiBi. What a row may not see is left out of both sums, whatever it
/// holds; a row that sees nothing gives zeros. Source: Vaswani et al. (2017), 3.2.1; grouped heads: Ainslie et al.
/// (2023).
///
/// Memory beside the arguments does not grow with the product of the lengths. A row's bits depend on its own query and
/// visible keys only: not on the batch, on other rows of the call, on chunking, or on which outputs are asked for.

namespace headwave {

/// No bound, in attention_window.
inline constexpr std::int64_t unlimited = INT64_MAX;

/// How many keys a query sees on each side besides the one at its own position: left = 2 with causal sees 3 keys.
struct attention_window {
  std::int64_t left = unlimited;
  std::int64_t right = unlimited;
};

/// A read-only array that is repeated along axes of extent 1 to the shape of the scores, [batch, heads, query_length,
/// key_length]. Converts from tensors and views of rank 1 to 4, whose axes are aligned at the last one; the missing
/// ones have extent 1.
template <class T>
class broadcast_view {
 public:
  /// Not given.
  HEADWAVE_INLINE broadcast_view() = default;

  template <class X>
    requires(std::is_same_v<element_of<const X>, std::remove_const_t<T>> &&
             decltype(as_view(std::declval<const X&>()))::rank() <= 4)
  HEADWAVE_INLINE broadcast_view(const X& x) {
    const auto view = as_view(x);
    constexpr std::size_t missing = 4 - decltype(as_view(x))::rank();
    std::array<std::size_t, 4> extents{1, 1, 1, 1};
    std::array<index, 4> strides{};
    for (std::size_t axis = missing; axis < 4; ++axis) {
      extents[axis] = view.extent(axis - missing);
      strides[axis] = view.stride(axis - missing);
    }
    view_ = {view.data(), extents, strides};
  }

  HEADWAVE_INLINE const tensor_view<T, 4>& view() const { return view_; }

 private:
  tensor_view<T, 4> view_;
};

/// What attention does beyond the plain formula. Every restriction applies: a key is visible if all of them allow it.
/// A default-constructed view or span means "not given".
template <class T>
struct attention_options {
  /// Factor of q . k; 0 and negative are legal. Default: 1 / sqrt(head_dim).
  std::optional<double> scale = {};
  /// c > 0 turns a score s into c tanh(s / c); 0: no cap. Source: Gemma Team (2024), 2.
  double softcap = 0;
  /// Added to the scores; repeated along axes of extent 1. -infinity blocks the pair, a finite bias never does.
  broadcast_view<const T> bias = {};
  /// true: this query may see this key. Repeated along axes of extent 1.
  broadcast_view<const bool> visible = {};
  /// A query sees no key past its own position. Row i stands at query_start + i, key j at j.
  bool causal = false;
  /// Position of query row 0. Default: key_length - query_length, which suits a cache.
  std::optional<std::int64_t> query_start = {};
  /// The same for each sample, [batch], instead of query_start.
  std::span<const std::int64_t> query_starts = {};
  /// How far a query sees to both sides; not negative.
  attention_window window = {};
  /// Keys of each sample, [batch]; the keys from there on are hidden and not read. From 0 to key_length.
  std::span<const std::int64_t> key_lengths = {};
  /// m_h for each head, [heads]: m_h |position - j| is subtracted from the scores. Source: Press et al. (2022).
  std::span<const T> alibi_slopes = {};
  /// A score without a value for each head, [heads]: e^sink joins the sum below the line. Source: Xiao et al. (2024).
  std::span<const T> sinks = {};
  /// Receives the natural logarithm of the sum below the line, [batch, heads, query_length]; -infinity where nothing is
  /// visible.
  tensor_view<T, 3> lse = {};
  /// Receives e^(s_j) over the sum, [batch, heads, query_length, key_length]; 0 where not visible.
  tensor_view<T, 4> weights = {};
  /// Receives the mean of the weights over the heads, [batch, query_length, key_length]. Costs a tensor of all weights,
  /// unless weights is given too.
  tensor_view<T, 3> mean_weights = {};
  /// Runs the parts of the call; see executor.hpp. Default: the calling thread.
  executor_ref executor = {};
};

namespace detail::inline HEADWAVE_ABI {

template <class T>
strided4<T> sequence_strides(const tensor_view<T, 4>& x) {
  return {x.data(), x.stride(0), x.stride(2), x.stride(1), x.stride(3)};
}

/// The pointer and strides of an operand shaped like the scores; axes of extent 1 do not move.
template <class X, class T>
strided4<X> score_strides(X* data, const tensor_view<T, 4>& x) {
  index strides[4];
  for (std::size_t axis = 0; axis < 4; ++axis) {
    strides[axis] = x.extent(axis) == 1 ? 0 : x.stride(axis);
  }
  return {data, strides[0], strides[1], strides[2], strides[3]};
}

/// The arguments of an attention call, to check options against and to name in errors.
struct attention_shape {
  const char* function;
  std::array<std::size_t, 4> query, key, value;

  std::size_t batch() const { return query[0]; }
  std::size_t query_length() const { return query[1]; }
  std::size_t key_length() const { return key[1]; }
  std::size_t heads() const { return query[2]; }

  [[noreturn]] void fail_with(const std::string& rule) const {
    fail(function, rule, {{"query", query.data(), 4}, {"key", key.data(), 4}, {"value", value.data(), 4}});
  }
  void require_equal(const char* rule, std::size_t a, std::size_t b) const {
    if (a != b) {
      fail_with(differ(rule, a, b));
    }
  }
  template <std::size_t Rank>
  void require_shape(const char* name, const std::array<std::size_t, Rank>& actual,
                     const std::array<std::size_t, Rank>& wanted, bool repeats = false) const {
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      if (actual[axis] != wanted[axis] && !(repeats && actual[axis] == 1)) {
        fail_with(std::string(name) + " must have the shape " + shape_text(wanted.data(), Rank) +
                  (repeats ? ", or 1 on an axis: " : ": ") + shape_text(actual.data(), Rank));
      }
    }
  }
};

inline void check_shapes(const attention_shape& s) {
  s.require_equal("query and key must agree in extent(0), batch", s.query[0], s.key[0]);
  s.require_equal("query and value must agree in extent(0), batch", s.query[0], s.value[0]);
  s.require_equal("key and value must agree in extent(1), key_length", s.key[1], s.value[1]);
  s.require_equal("key and value must agree in extent(2), kv_heads", s.key[2], s.value[2]);
  s.require_equal("query and key must agree in extent(3), head_dim", s.query[3], s.key[3]);
  if (s.query[2] == 0 || s.key[2] == 0 || s.query[2] % s.key[2] != 0) {
    s.fail_with("heads must be a positive multiple of kv_heads: " + std::to_string(s.query[2]) + " over " +
                std::to_string(s.key[2]));
  }
}

/// The options of an attention call whose shapes agree. weight_columns: how many keys a row of weights has.
template <class T>
void check_options(const attention_shape& s, const attention_options<T>& options, std::size_t weight_columns) {
  const std::array<std::size_t, 4> scores{s.batch(), s.heads(), s.query_length(), s.key_length()};
  if (options.bias.view().data()) {
    s.require_shape("bias", options.bias.view().extents(), scores, true);
  }
  if (options.visible.view().data()) {
    s.require_shape("visible", options.visible.view().extents(), scores, true);
  }
  if (!is_finite(options.softcap) || options.softcap < 0) {
    s.fail_with("softcap must be finite and not negative");
  }
  if (options.window.left < 0 || options.window.right < 0) {
    s.fail_with("window.left and window.right must not be negative: " + std::to_string(options.window.left) + ", " +
                std::to_string(options.window.right));
  }
  if (options.query_starts.data()) {
    s.require_equal("query_starts must have one element for each sample", options.query_starts.size(), s.batch());
    if (options.query_start) {
      s.fail_with("query_start and query_starts cannot both be given");
    }
  }
  if (options.key_lengths.data()) {
    s.require_equal("key_lengths must have one element for each sample", options.key_lengths.size(), s.batch());
    for (const std::int64_t length : options.key_lengths) {
      if (length < 0 || static_cast<std::uint64_t>(length) > s.key_length()) {
        s.fail_with("key_lengths must lie between 0 and key_length: " + std::to_string(length));
      }
    }
  }
  if (options.alibi_slopes.data()) {
    s.require_equal("alibi_slopes must have one element for each head", options.alibi_slopes.size(), s.heads());
  }
  if (options.sinks.data()) {
    s.require_equal("sinks must have one element for each head", options.sinks.size(), s.heads());
  }
  if (options.lse.data()) {
    s.require_shape<3>("lse", options.lse.extents(), {s.batch(), s.heads(), s.query_length()});
  }
  if (options.weights.data()) {
    s.require_shape<4>("weights", options.weights.extents(), {s.batch(), s.heads(), s.query_length(), weight_columns});
  }
  if (options.mean_weights.data()) {
    s.require_shape<3>("mean_weights", options.mean_weights.extents(), {s.batch(), s.query_length(), weight_columns});
  }
}

/// Keys that every query sees besides those of the key tensor.
template <class T>
struct added_keys {
  const T* bias_key = nullptr;    ///< [kv_heads][head_dim]
  const T* bias_value = nullptr;  ///< [kv_heads][value_dim]
  bool zero_key = false;

  std::size_t count() const { return std::size_t{bias_key != nullptr} + std::size_t{zero_key}; }
};

/// mean(b, i, j) = sum over h of weights(b, h, i, j) / heads.
template <class T>
void average_heads(const tensor_view<T, 3>& mean, const tensor_view<T, 4>& weights) {
  for (std::size_t b = 0; b < mean.extent(0); ++b) {
    for (std::size_t i = 0; i < mean.extent(1); ++i) {
      for (std::size_t j = 0; j < mean.extent(2); ++j) {
        T sum = 0;
        for (std::size_t h = 0; h < weights.extent(1); ++h) {
          sum += weights(b, h, i, j);
        }
        mean(b, i, j) = sum / static_cast<T>(weights.extent(1));
      }
    }
  }
}

/// All tasks of an attention call.
template <class T>
void run_attention(const attention_arguments<T>& a, const executor_ref& executor) {
  const double rows = static_cast<double>(a.batch) * static_cast<double>(a.heads) * static_cast<double>(a.query_length);
  const double cost = 2 * rows * static_cast<double>(a.key_length) * static_cast<double>(a.head_dim + a.value_dim);
  if (!is_decode(a)) {
    const index wanted = wanted_tasks(executor, cost);
    const attention_plan<T> plan(a, wanted);
    run_tasks(executor, wanted, plan.tasks, [&a, &plan](index task) {
      scratch_frame frame;
      T* const workspace = frame.take<T>(static_cast<std::size_t>(plan.parts.size));
      HEADWAVE_DISPATCH(attention<T>(a, plan, task, workspace))
    });
    return;
  }
  // Reading a key or value takes as long as some ten operations.
  const index wanted = wanted_tasks(executor, 10 * cost);
  const decode_plan<T> plan(a, wanted);
  scratch_frame shared_frame;
  T* const shared = shared_frame.take<T>(static_cast<std::size_t>(plan.shared_size));
  for (const decode_pass pass : {decode_pass::scores, decode_pass::values, decode_pass::finish}) {
    const index tasks = pass == decode_pass::finish ? a.batch * plan.head_groups : plan.tasks;
    run_tasks(executor, wanted, tasks, [&a, &plan, shared, pass](index task) {
      scratch_frame frame;
      T* const workspace = frame.take<T>(static_cast<std::size_t>(plan.task_size));
      HEADWAVE_DISPATCH(decode<T>(a, plan, pass, task, shared, workspace))
    });
  }
}

/// Attention on checked arguments.
template <class T>
void attend(const tensor_view<T, 4>& out, const tensor_view<const T, 4>& query, const tensor_view<const T, 4>& key,
            const tensor_view<const T, 4>& value, const attention_options<T>& options,
            const added_keys<T>& added = {}) {
  if (query.extent(0) == 0 || query.extent(1) == 0) {
    return;
  }
  scratch_frame frame;
  tensor_view<T, 4> weights = options.weights;
  if (options.mean_weights.data() && !weights.data()) {
    const std::size_t shape[] = {query.extent(0), query.extent(2), query.extent(1), key.extent(1) + added.count()};
    const std::size_t count = checked_size("scaled_dot_product_attention", shape, 4);
    weights = tensor_view<T, 4>(frame.take<T>(count), {shape[0], shape[1], shape[2], shape[3]});
  }
  const auto head_dim = static_cast<double>(query.extent(3));
  attention_arguments<T> a{};
  a.query = sequence_strides(query);
  a.key = sequence_strides(key);
  a.value = sequence_strides(value);
  a.out = sequence_strides(out);
  a.batch = static_cast<index>(query.extent(0));
  a.query_length = static_cast<index>(query.extent(1));
  a.key_length = static_cast<index>(key.extent(1));
  a.heads = static_cast<index>(query.extent(2));
  a.kv_heads = static_cast<index>(key.extent(2));
  a.head_dim = static_cast<index>(query.extent(3));
  a.value_dim = static_cast<index>(value.extent(3));
  a.scale = static_cast<T>(options.scale ? *options.scale : query.extent(3) ? 1 / std::sqrt(head_dim) : 0.0);
  a.softcap = static_cast<T>(options.softcap);
  a.bias = score_strides(options.bias.view().data(), options.bias.view());
  a.visible =
      score_strides(reinterpret_cast<const unsigned char*>(options.visible.view().data()), options.visible.view());
  a.causal = options.causal;
  a.query_start = options.query_start ? *options.query_start : a.key_length - a.query_length;
  a.query_starts = options.query_starts.data();
  a.window_left = options.window.left;
  a.window_right = options.window.right;
  a.key_lengths = options.key_lengths.data();
  a.alibi_slopes = options.alibi_slopes.data();
  a.sinks = options.sinks.data();
  a.bias_key = added.bias_key;
  a.bias_value = added.bias_value;
  a.zero_key = added.zero_key;
  a.lse = {options.lse.data(), options.lse.stride(0), options.lse.stride(1), options.lse.stride(2), 0};
  a.weights = {weights.data(), weights.stride(0), weights.stride(1), weights.stride(2), weights.stride(3)};

  run_attention(a, options.executor);
  if (options.mean_weights.data()) {
    average_heads(options.mean_weights, weights);
  }
}

template <class T>
void check_and_attend(const tensor_view<T, 4>& out, const tensor_view<const T, 4>& query,
                      const tensor_view<const T, 4>& key, const tensor_view<const T, 4>& value,
                      const attention_options<T>& options) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "attention takes float or double");
  const attention_shape shape{"scaled_dot_product_attention", query.extents(), key.extents(), value.extents()};
  check_shapes(shape);
  check_options(shape, options, key.extent(1));
  shape.require_shape<4>("out", out.extents(), {query.extent(0), query.extent(1), query.extent(2), value.extent(3)});
  attend(out, query, key, value, options);
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// Writes the attention of query to key and value to out; see the formula at the head of this file.
///
/// query [batch, query_length, heads, head_dim], key [batch, key_length, kv_heads, head_dim],
/// value [batch, key_length, kv_heads, value_dim], out [batch, query_length, heads, value_dim]: all float or all
/// double, any strides. heads is a multiple of kv_heads. Lengths and widths may be 0. A last axis whose stride is not 1
/// costs element-wise loads when a block of keys, values or queries is packed, or when a row of out is stored: about as
/// much as a copy of the tensor. Errors: shapes or options that disagree (shape_error), before anything is written; no
/// memory (std::bad_alloc).
template <class Out, class Query, class Key, class Value>
  requires(output_like<Out, 4> && tensor_like<const Query, 4> && tensor_like<const Key, 4> &&
           tensor_like<const Value, 4>)
void scaled_dot_product_attention_into(Out&& out, const Query& query, const Key& key, const Value& value,
                                       const attention_options<element_of<const Query>>& options = {}) {
  using T = element_of<const Query>;
  detail::check_and_attend<T>(as_view(out), as_view(query), as_view(key), as_view(value), options);
}

/// The attention of query to key and value as a new tensor [batch, query_length, heads, value_dim].
template <class Query, class Key, class Value>
  requires(tensor_like<const Query, 4> && tensor_like<const Key, 4> && tensor_like<const Value, 4>)
tensor<element_of<const Query>, 4> scaled_dot_product_attention(
    const Query& query, const Key& key, const Value& value,
    const attention_options<element_of<const Query>>& options = {}) {
  const auto q = as_view(query);
  tensor<element_of<const Query>, 4> out({q.extent(0), q.extent(1), q.extent(2), as_view(value).extent(3)},
                                         uninitialized);
  scaled_dot_product_attention_into(out, query, key, value, options);
  return out;
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
