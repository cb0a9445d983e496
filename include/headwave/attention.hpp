// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention_operands.hpp>
#include <headwave/detail/dispatch.hpp>
#include <headwave/detail/scratch.hpp>
#include <headwave/merge_attention.hpp>

#include <algorithm>
#include <cmath>

/// \file
/// Scaled dot-product attention.
///
/// For each sample b, query head h and query row i, over the keys j that the row may see:
///   s_j   = finish(scale * q(b, i, h) . k(b, j, g)),   g = h / (heads / kv_heads)
///   out(b, i, h) = sum over j of e^(s_j) v(b, j, g) / sum over j of e^(s_j)
/// where finish is, in this order: soft cap, bias, ALiBi, the caller's own rules. What a row may not see is left out of
/// both sums, whatever it holds; a row that sees nothing gives zeros. Source: Vaswani et al. (2017), 3.2.1; grouped
/// heads: Ainslie et al. (2023).
///
/// Memory beside the arguments does not grow with the product of the lengths. A row's bits depend on its own query and
/// visible keys only: not on the batch, on other rows of the call, on chunking, or on which outputs are asked for.

namespace headwave {

namespace detail::inline HEADWAVE_ABI {

/// The pointer and strides of an operand shaped like the scores; axes of extent 1 do not move.
template <class X, class T>
strided4<X> score_strides(X* data, const tensor_view<T, 4>& x) {
  index strides[4];
  for (std::size_t axis = 0; axis < 4; ++axis) {
    strides[axis] = x.extent(axis) == 1 ? 0 : x.stride(axis);
  }
  return {data, strides[0], strides[1], strides[2], strides[3]};
}

/// Keys that every query sees besides those of the key tensor.
template <class T>
struct added_keys {
  const T* bias_key = nullptr;    ///< [kv_heads][head_dim]
  const T* bias_value = nullptr;  ///< [kv_heads][value_dim]
  bool zero_key = false;

  std::size_t count() const { return std::size_t{bias_key != nullptr} + std::size_t{zero_key}; }
};

/// The rules of a call, compiled for the tier in use.
template <class T, class Rules>
rule_arguments<T> arguments_of(const Rules& rules) {
  rule_arguments<T> a{&rules, nullptr, nullptr, nullptr};
  if constexpr (Rules::has_masks || Rules::has_scores) {
    HEADWAVE_DISPATCH(set_rules<T, Rules>(a))
  }
  if constexpr (Rules::has_bounds) {
    a.keys_for = [](const void* object, std::int64_t query) {
      return static_cast<const Rules*>(object)->keys_for(query);
    };
  }
  if constexpr (Rules::has_regions) {
    a.sees = [](const void* object, const score_region& region) {
      return static_cast<const Rules*>(object)->sees(region);
    };
  }
  return a;
}

/// All scores, in a form that does not overflow.
template <class T>
double cost_of(const attention_arguments<T>& a) {
  const double rows = static_cast<double>(a.batch) * static_cast<double>(a.heads) * static_cast<double>(a.query_length);
  const double cost = 2 * rows * static_cast<double>(a.key_length) * static_cast<double>(a.head_dim + a.value_dim);
  // Reading a key or value takes as long as some ten operations, and a decode call reads each for a few rows only.
  return is_decode(a) ? 10 * cost : cost;
}

/// The tasks of a call in a pass; a call that is not a decode call has them all in the first.
template <class T>
index tasks_of(const attention_arguments<T>& a, decode_pass pass, index wanted) {
  if (!has_rows(a)) {
    return 0;
  }
  if (is_decode(a)) {
    const decode_plan<T> plan(a, wanted);
    return pass == decode_pass::finish ? a.batch * plan.head_groups : plan.tasks;
  }
  return pass == decode_pass::scores ? attention_plan<T>(a, wanted).tasks : 0;
}

/// Elements of memory that a task has to itself.
template <class T>
index workspace_of(const attention_arguments<T>& a, index wanted) {
  return is_decode(a) ? decode_plan<T>(a, wanted).task_size : attention_plan<T>(a, wanted).parts.size;
}

/// Task number task of a call in a pass. shared: memory of a decode call.
template <class T>
void run_attention_task(const attention_arguments<T>& a, decode_pass pass, index wanted, index task, T* shared) {
  scratch_frame frame;
  if (is_decode(a)) {
    const decode_plan<T> plan(a, wanted);
    T* const workspace = frame.take<T>(static_cast<std::uint64_t>(plan.task_size));
    HEADWAVE_DISPATCH(decode<T>(a, plan, pass, task, shared, workspace))
  } else {
    const attention_plan<T> plan(a, wanted);
    T* const workspace = frame.take<T>(static_cast<std::uint64_t>(plan.parts.size));
    HEADWAVE_DISPATCH(attention<T>(a, plan, task, workspace))
  }
}

/// All tasks of some calls, numbered through, call after call.
template <class T>
void run_attention(const attention_arguments<T>* calls, index count, const executor_ref& executor) {
  double cost = 0;
  for (index c = 0; c < count; ++c) {
    cost += cost_of(calls[c]);
  }
  const index wanted = wanted_tasks(executor, cost);
  const auto wanted_of = [calls, cost, wanted](index c) {
    const double share = cost > 0 ? static_cast<double>(wanted) * cost_of(calls[c]) / cost : 0;
    return share > 1 ? static_cast<index>(share + 0.5) : index(1);
  };
  scratch_frame frame;
  const auto places = static_cast<std::size_t>(count + 1);
  index* const tasks_before = frame.take<index>(places);
  index* const memory_before = frame.take<index>(places);
  memory_before[0] = 0;
  for (index c = 0; c < count; ++c) {
    const bool shares = has_rows(calls[c]) && is_decode(calls[c]);
    memory_before[c + 1] = memory_before[c] + (shares ? decode_plan<T>(calls[c], wanted_of(c)).shared_size : 0);
  }
  T* const shared = frame.take<T>(static_cast<std::uint64_t>(memory_before[count]));
  if (count > 1 && wanted <= 1) {
    // What the last call needs is asked for before the first one writes.
    index largest = 0;
    for (index c = 0; c < count; ++c) {
      largest = larger(largest, has_rows(calls[c]) ? workspace_of(calls[c], wanted_of(c)) : 0);
    }
    scratch_frame().take<T>(static_cast<std::uint64_t>(largest));
  }
  for (const decode_pass pass : {decode_pass::scores, decode_pass::values, decode_pass::finish}) {
    tasks_before[0] = 0;
    for (index c = 0; c < count; ++c) {
      tasks_before[c + 1] = tasks_before[c] + tasks_of(calls[c], pass, wanted_of(c));
    }
    run_tasks(executor, wanted, tasks_before[count], [=](index task) {
      const index c = std::upper_bound(tasks_before, tasks_before + count, task) - tasks_before - 1;
      run_attention_task(calls[c], pass, wanted_of(c), task - tasks_before[c], shared + memory_before[c]);
    });
  }
}

/// Moves the first row, if there is any.
template <class X>
void skip_rows(strided4<X>& x, index rows) {
  x.data += x.data ? rows * x.length : 0;
}
template <class T, class Data>
void skip_rows(stored4<Data>& x, index rows) {
  using byte = std::conditional_t<std::is_const_v<Data>, const char, char>;
  x.data = static_cast<byte*>(x.data) + rows * x.length * element_size<T>(x.format);
}

/// Moves the first query row of all that has one for each query.
template <class T>
void skip_queries(attention_arguments<T>& a, index rows) {
  skip_rows<T>(a.query, rows);
  skip_rows<T>(a.out, rows);
  for (strided4<T>* const x : {&a.lse, &a.maximum, &a.entropy}) {
    skip_rows(*x, rows);
  }
}

/// A call's query rows first .. first + count-1 as a call. starts and lengths: memory for one number per sample.
template <class T>
attention_arguments<T> rows_of(attention_arguments<T> a, index first, index count, std::int64_t* starts,
                               std::int64_t* lengths) {
  skip_queries(a, first);
  skip_rows(a.bias, first);
  skip_rows(a.visible, first);
  a.query_length = count;
  a.query_start = saturated_sum(a.query_start, first);
  for (index b = 0; b < a.batch; ++b) {
    if (a.query_starts) {
      starts[b] = saturated_sum(a.query_starts[b], first);
    }
    if (a.query_lengths) {
      lengths[b] = a.query_lengths[b] - first;
    }
  }
  a.query_starts = a.query_starts ? starts : nullptr;
  a.query_lengths = a.query_lengths ? lengths : nullptr;
  return a;
}

/// Weights that are only wanted as sums.
template <class T>
struct weight_sums {
  tensor_view<T, 3> mean;  ///< [batch, query_length, keys]
  tensor_view<T, 3> mass;  ///< [batch, heads, keys]
};

/// A call whose weights are summed: some rows at a time, so that memory does not grow with the product of the lengths.
template <class T>
void run_with_weight_sums(const attention_arguments<T>& call, const weight_sums<T>& sums, index keys,
                          const executor_ref& executor) {
  constexpr const char* function = "scaled_dot_product_attention";
  const auto count = static_cast<std::size_t>(keys), heads = static_cast<std::size_t>(call.batch * call.heads);
  const auto row_size = static_cast<index>(checked_product(function, heads, count));
  const index fitting = static_cast<index>(8 * 1024 * 1024 / sizeof(T)) / (row_size + 1);
  const index wish = fitting < 16 ? 16 : fitting;
  const index step = call.query_length < wish ? call.query_length : wish;
  scratch_frame frame;
  T* const weights =
      frame.take<T>(checked_product(function, static_cast<std::size_t>(step), static_cast<std::size_t>(row_size)));
  T* const sum = frame.take<T>(count);
  std::int64_t* const starts = frame.take<std::int64_t>(static_cast<std::uint64_t>(call.batch));
  std::int64_t* const lengths = frame.take<std::int64_t>(static_cast<std::uint64_t>(call.batch));
  const strided4<T> chunk{weights, call.heads * step * keys, step * keys, keys, 1};
  const auto add_weights = [&](const auto& target, index b, index h, index row) {
    const T* const source = weights + b * chunk.batch + h * chunk.head + row * chunk.length;
    HEADWAVE_DISPATCH(add_row<T>(target, source, keys))
  };
  const auto extent = [](index n) { return static_cast<std::size_t>(n); };
  const auto clear_mass = [&] {
    for (index b = 0; sums.mass.data() && b < call.batch; ++b) {
      for (index h = 0; h < call.heads; ++h) {
        for (std::size_t j = 0; j < count; ++j) {
          sums.mass(extent(b), extent(h), j) = T(0);
        }
      }
    }
  };
  if (call.query_length == 0) {
    clear_mass();
  }
  for (index first = 0; first < call.query_length; first += step) {
    const index rows = call.query_length - first < step ? call.query_length - first : step;
    attention_arguments<T> part = rows_of(call, first, rows, starts, lengths);
    part.weights = chunk;
    part.weight_rows = nullptr;
    run_attention(&part, 1, executor);
    if (first == 0) {
      clear_mass();
    }
    for (index b = 0; b < call.batch; ++b) {
      for (index i = 0; sums.mean.data() && i < rows; ++i) {
        std::fill_n(sum, count, T(0));
        for (index h = 0; h < call.heads; ++h) {
          add_weights(sum, b, h, i);
        }
        for (std::size_t j = 0; j < count; ++j) {
          sums.mean(extent(b), extent(first + i), j) = sum[j] / static_cast<T>(call.heads);
        }
      }
      for (index h = 0; sums.mass.data() && h < call.heads; ++h) {
        for (std::size_t j = 0; j < count; ++j) {
          sum[j] = sums.mass(extent(b), extent(h), j);
        }
        for (index i = 0; i < rows; ++i) {
          add_weights(sum, b, h, i);
        }
        for (std::size_t j = 0; j < count; ++j) {
          sums.mass(extent(b), extent(h), j) = sum[j];
        }
      }
    }
    for (index b = 0; call.weights.data && b < call.batch; ++b) {
      for (index h = 0; h < call.heads; ++h) {
        for (index i = 0; i < rows; ++i) {
          const index row = call.weight_rows ? call.weight_rows[first + i] : first + i;
          for (index j = 0; row >= 0 && j < keys; ++j) {
            call.weights.data[b * call.weights.batch + h * call.weights.head + row * call.weights.length +
                              j * call.weights.channel] =
                weights[b * chunk.batch + h * chunk.head + i * chunk.length + j];
          }
        }
      }
    }
  }
}

/// Finds out which keys a decode call has to do with.
template <class T>
void bound_keys(attention_arguments<T>& a) {
  a.seen = {0, 0};
  for (index b = 0; is_decode(a) && b < a.batch; ++b) {
    const std::int64_t start = a.query_starts ? a.query_starts[b] : a.query_start;
    for (index i = 0; i < a.query_length; ++i) {
      a.seen = either(a.seen, keys_at(a, b, saturated_sum(start, i)));
    }
  }
}

/// Sequence n of packed sequences as a call.
template <class T>
attention_arguments<T> sequence_of(attention_arguments<T> a, const attention_options<T>& options, index n) {
  const auto place = static_cast<std::size_t>(n);
  const index query = options.query_offsets[place], key = options.key_offsets[place];
  skip_queries(a, query);
  skip_rows<T>(a.key, key);
  skip_rows<T>(a.value, key);
  a.query_length = options.query_offsets[place + 1] - query;
  a.key_length = options.key_offsets[place + 1] - key;
  a.query_start = options.query_start ? *options.query_start : a.key_length - a.query_length;
  a.query_starts += a.query_starts ? n : 0;
  a.query_lengths += a.query_lengths ? n : 0;
  a.key_lengths += a.key_lengths ? n : 0;
  a.alibi_slopes += a.alibi_slopes ? n * a.alibi_batch_stride : 0;
  a.first_sample = n;
  bound_keys(a);
  return a;
}

/// distance_bias as kernels read it: see distance_columns.
template <class T>
const T* padded_distance_bias(scratch_frame& frame, const tensor_view<const T, 2>& bias, index heads, index limit) {
  constexpr const char* function = "scaled_dot_product_attention";
  const std::size_t padding = 2 * static_cast<std::size_t>(vec_lanes<T>);
  T* const padded = frame.take<T>(
      checked_product(function, static_cast<std::size_t>(heads), checked_sum(function, bias.extent(1), padding)));
  const index columns = distance_columns<T>(limit);
  for (index h = 0; h < heads; ++h) {
    const std::size_t row = bias.extent(0) == 1 ? 0 : static_cast<std::size_t>(h);
    for (index c = 0; c < columns; ++c) {
      const index column = c - vec_lanes<T>;
      padded[h * columns + c] = bias(row, static_cast<std::size_t>(column < 0           ? 0
                                                                   : column > 2 * limit ? 2 * limit
                                                                                        : column));
    }
  }
  return padded;
}

/// The row of weights that receives each query's, -1 for none.
template <class T>
const index* weight_row_of_queries(scratch_frame& frame, const attention_options<T>& options, std::size_t queries) {
  index* const rows = frame.take<index>(queries);
  std::fill_n(rows, queries, index(-1));
  for (std::size_t i = 0; i < options.weight_rows.size(); ++i) {
    index& row = rows[options.weight_rows[i]];
    if (row >= 0) {
      fail("scaled_dot_product_attention", "weight_rows must not repeat " + std::to_string(options.weight_rows[i]));
    }
    row = static_cast<index>(i);
  }
  return rows;
}

/// Attention on checked arguments. key_starts: the first key of each sample that still exists; null: all do.
template <class T>
void attend(const attention_operands& operands, const attention_options<T>& options, const rule_arguments<T>& rule,
            const added_keys<T>& added = {}, const std::int64_t* key_starts = nullptr) {
  const attention_shape& shape = operands.shape;
  const auto head_dim = static_cast<double>(shape.query[3]);
  scratch_frame frame;
  attention_arguments<T> a{};
  a.query = operands.query;
  a.key = operands.key.rows;
  a.value = operands.value.rows;
  a.out = operands.out;
  a.batch = static_cast<index>(shape.query[0]);
  a.query_length = static_cast<index>(shape.query[1]);
  a.key_length = static_cast<index>(shape.key[1]);
  a.heads = static_cast<index>(shape.query[2]);
  a.kv_heads = static_cast<index>(shape.key[2]);
  a.head_dim = static_cast<index>(shape.query[3]);
  a.value_dim = static_cast<index>(shape.value[3]);
  a.scale = static_cast<T>(options.scale ? *options.scale : head_dim > 0 ? 1 / std::sqrt(head_dim) : 0.0);
  a.head_scales = options.head_scales.data();
  a.softcap = static_cast<T>(options.softcap);
  a.bias = score_strides(options.bias.view().data(), options.bias.view());
  if (options.distance_bias.data()) {
    a.distance_limit = static_cast<std::int64_t>(options.distance_bias.extent(1) / 2);
    a.distance_bias = padded_distance_bias(frame, options.distance_bias, a.heads, a.distance_limit);
  }
  a.visible =
      score_strides(reinterpret_cast<const unsigned char*>(options.visible.view().data()), options.visible.view());
  a.causal = options.causal;
  a.query_start = options.query_start ? *options.query_start : a.key_length - a.query_length;
  a.query_starts = options.query_starts.data();
  a.window_left = options.window.left;
  a.window_right = options.window.right;
  a.query_lengths = options.query_lengths.data();
  a.key_starts = key_starts;
  a.key_lengths = options.key_lengths.data();
  a.alibi_slopes = options.alibi_slopes.data();
  a.alibi_batch_stride = options.alibi_slopes.size() == shape.heads() ? 0 : a.heads;
  a.sinks = options.sinks.data();
  if (options.softmax_plus_one) {
    T* const zeros = frame.take<T>(shape.heads());
    std::fill_n(zeros, shape.heads(), T(0));
    a.sinks = zeros;
  }
  a.dropout = options.dropout.probability;
  a.dropout_seed = options.dropout.seed;
  a.bias_key = added.bias_key;
  a.bias_value = added.bias_value;
  a.zero_key = added.zero_key;
  a.rule = rule;
  a.lse = strides_of(options.lse);
  a.maximum = strides_of(options.maximum);
  a.entropy = strides_of(options.entropy);
  const tensor_view<T, 4>& weights = options.weights;
  a.weights = {weights.data(), weights.stride(0), weights.stride(1), weights.stride(2), weights.stride(3)};
  if (options.weight_rows.data()) {
    a.weight_rows = weight_row_of_queries(frame, options, shape.query_length());
  }

  const index keys = a.key_length + static_cast<index>(added.count());
  if (!options.query_offsets.data()) {
    if (options.mean_weights.data() || options.key_mass.data()) {
      run_with_weight_sums(a, {options.mean_weights, options.key_mass}, keys, options.executor);
    } else {
      bound_keys(a);
      run_attention(&a, 1, options.executor);
    }
    return;
  }
  const index sequences = static_cast<index>(options.query_offsets.size()) - 1;
  if (options.key_mass.data()) {
    const std::size_t last = static_cast<std::size_t>(options.key_offsets.back());
    for (index n = 0; n < sequences; ++n) {
      const attention_arguments<T> call = sequence_of(a, options, n);
      const auto first = static_cast<std::size_t>(options.key_offsets[static_cast<std::size_t>(n)]);
      run_with_weight_sums(call, {{}, options.key_mass.slice(2, first, static_cast<std::size_t>(call.key_length))},
                           call.key_length, options.executor);
    }
    for (std::size_t h = 0; h < shape.heads(); ++h) {
      for (std::size_t j = last; j < shape.key_length(); ++j) {
        options.key_mass(0, h, j) = T(0);
      }
    }
    return;
  }
  attention_arguments<T>* const calls = frame.take<attention_arguments<T>>(static_cast<std::uint64_t>(sequences));
  for (index n = 0; n < sequences; ++n) {
    calls[n] = sequence_of(a, options, n);
  }
  run_attention(calls, sequences, options.executor);
}

/// Checks shapes and options; nothing is written before.
template <class T>
void check_and_attend(const attention_operands& operands, const std::array<std::size_t, 4>& out,
                      const attention_options<T>& options, const rule_arguments<T>& rule) {
  const attention_shape& s = operands.shape;
  check_shapes(s);
  check_options(s, options, 0);
  s.require_shape<4>("out", out, {s.query[0], s.query[1], s.query[2], s.value[3]});
  const bool is_paged = operands.key.table.data() || operands.value.table.data();
  if (is_paged && options.query_offsets.data()) {
    s.fail_with("query_offsets cannot be given with pages");
  }
  check_pages(s, "key", operands.key, options.key_lengths);
  check_pages(s, "value", operands.value, options.key_lengths);
  attend(operands, options, rule);
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// Writes the attention of query to key and value to out; see the formula at the head of this file.
///
/// query [batch, query_length, heads, head_dim], key [batch, key_length, kv_heads, head_dim],
/// value [batch, key_length, kv_heads, value_dim], out [batch, query_length, heads, value_dim]: any strides, each of
/// float, bfloat16 or float16, or all of double; see attention_operands.hpp. What is computed is float or double: 16
/// bits are widened when they are read, and out is rounded once. heads is a multiple of kv_heads. Lengths and widths
/// may be 0. value may be a part of key. A last axis whose stride is not 1 costs element-wise loads when a block of
/// keys, values or queries is packed, or when a row of out is stored: about as much as a copy of the tensor. rules:
/// score rules and masks of your own, see score_rule.hpp. Errors: shapes or options that disagree (shape_error), before
/// anything is written; no memory (std::bad_alloc).
template <class Out, class Query, class Key, class Value, class... Rules,
          class T = compute_type<element_of<const Query>>>
  requires(attention_output<Out, T> && attention_queries<Query, T> && attention_keys<Key, T> &&
           attention_keys<Value, T> && (score_rule<Rules, T> && ...))
void scaled_dot_product_attention_into(Out&& out, const Query& query, const Key& key, const Value& value,
                                       const std::type_identity_t<attention_options<T>>& options = {},
                                       const Rules&... rules) {
  const auto list = detail::list_rules(rules...);
  const auto q = as_view(query);
  const auto o = as_view(out);
  detail::attention_operands operands{.query = detail::stored<const void>(q),
                                      .key = detail::rows_of_keys(key),
                                      .value = detail::rows_of_keys(value),
                                      .out = detail::stored<void>(o),
                                      .shape = {"scaled_dot_product_attention", q.extents(), {}, {}}};
  operands.shape.key = operands.key.extents;
  operands.shape.value = operands.value.extents;
  detail::check_and_attend<T>(operands, o.extents(), options, detail::arguments_of<T>(list));
}

/// The attention of query to key and value as a new tensor [batch, query_length, heads, value_dim] of the query's
/// elements.
template <class Query, class Key, class Value, class... Rules, class T = compute_type<element_of<const Query>>>
  requires(attention_queries<Query, T> && attention_keys<Key, T> && attention_keys<Value, T> &&
           (score_rule<Rules, T> && ...))
tensor<element_of<const Query>, 4> scaled_dot_product_attention(
    const Query& query, const Key& key, const Value& value,
    const std::type_identity_t<attention_options<T>>& options = {}, const Rules&... rules) {
  const auto q = as_view(query);
  tensor<element_of<const Query>, 4> out(
      {q.extent(0), q.extent(1), q.extent(2), detail::rows_of_keys(value).extents[3]}, uninitialized);
  scaled_dot_product_attention_into(out, query, key, value, options, rules...);
  return out;
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
