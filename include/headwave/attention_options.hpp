// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/bits.hpp>
#include <headwave/executor.hpp>
#include <headwave/tensor.hpp>

#include <cstdint>
#include <optional>
#include <span>

/// \file
/// What attention does beyond the plain formula of attention.hpp.

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

/// Attention weights that are dropped at random while a model is trained: after softmax, each weight is 0 with a
/// probability p, or else divided by 1 - p. Which ones follows from seed, sample, head, position of the query and key
/// alone: not from tiles, threads or instruction set. A layer's added keys are not dropped. Log-sum-exp, weights and
/// all other outputs are those without dropout. Source: Srivastava et al. (2014); counter-based generators: Salmon et
/// al. (2011).
struct attention_dropout {
  double probability = 0;  ///< from 0 to 1
  std::uint64_t seed = 0;
};

/// What attention does beyond the plain formula. Every restriction applies: a key is visible if all of them allow it.
/// A default-constructed view or span means "not given".
template <class T>
struct attention_options {
  /// Factor of q . k; 0 and negative are legal. Default: 1 / sqrt(head_dim).
  std::optional<double> scale = {};
  /// A factor for each head, [heads], instead of scale. Source: Henry et al. (2020), Liu et al. (2022).
  std::span<const T> head_scales = {};
  /// c > 0 turns a score s into c tanh(s / c); 0: no cap. Source: Gemma Team (2024), 2.
  double softcap = 0;
  /// Added to the scores; repeated along axes of extent 1. -infinity blocks the pair, a finite bias never does.
  broadcast_view<const T> bias = {};
  /// A bias for each distance key - query, [heads or 1, 2 M + 1] for the distances -M .. M; a distance beyond M has the
  /// bias of M. T5's: t5_distance_bias. Source: Shaw et al. (2018), Raffel et al. (2020).
  tensor_view<const T, 2> distance_bias = {};
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
  /// Queries of each sample, [batch]; the rows from there on see no key of the key tensor. From 0 to query_length.
  std::span<const std::int64_t> query_lengths = {};
  /// Keys of each sample, [batch]; the keys from there on are hidden and not read. From 0 to key_length.
  std::span<const std::int64_t> key_lengths = {};
  /// Sequences of different lengths, one behind the other in tensors of batch 1: sequence n has the rows from
  /// offsets[n] to offsets[n + 1] - 1. [sequences + 1] each; both or none. Queries are covered wholly. Each sequence is
  /// a sample of its own: its positions, and those of its keys, count from its start, and options for each sample have
  /// one element for each sequence. bias, visible, weights and mean_weights cannot be given.
  std::span<const std::int64_t> query_offsets = {};
  std::span<const std::int64_t> key_offsets = {};
  /// m_h for each head, [heads] or [batch, heads]: m_h |position - j| is subtracted from the scores. Source: Press et
  /// al. (2022).
  std::span<const T> alibi_slopes = {};
  /// A score without a value for each head, [heads]: e^sink joins the sum below the line. -infinity is no sink;
  /// infinity counts as the largest finite number, and leaves nothing to the keys. Source: Xiao et al. (2024).
  std::span<const T> sinks = {};
  /// A sink of score 0 for every head: weights are e^s / (1 + sum of e^s). Source: Miller (2023).
  bool softmax_plus_one = false;
  /// See attention_dropout.
  attention_dropout dropout = {};
  /// Receives the natural logarithm of the sum below the line, [batch, heads, query_length]; -infinity where nothing is
  /// visible.
  tensor_view<T, 3> lse = {};
  /// Receives the largest score that a query sees, [batch, heads, query_length]; -infinity where nothing is visible.
  tensor_view<T, 3> maximum = {};
  /// Receives -sum over j of p_j ln p_j of the weights p, [batch, heads, query_length], in nats; 0 where nothing is
  /// visible.
  tensor_view<T, 3> entropy = {};
  /// Receives e^(s_j) over the sum, [batch, heads, query_length, key_length]; 0 where not visible.
  tensor_view<T, 4> weights = {};
  /// The query rows whose weights are wanted, in any order and without repetition: weights is then [batch, heads,
  /// weight_rows.size(), key_length]. Default: all.
  std::span<const std::int64_t> weight_rows = {};
  /// Receives the mean of the weights over the heads, [batch, query_length, key_length].
  tensor_view<T, 3> mean_weights = {};
  /// Receives the sum of the weights over the queries, [batch, heads, key_length]: how much attention each key gets.
  /// Source: Zhang et al. (2023), H2O.
  tensor_view<T, 3> key_mass = {};
  /// Runs the parts of the call; see executor.hpp. Default: the calling thread.
  executor_ref executor = {};
};

namespace detail::inline HEADWAVE_ABI {

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
  // Whatever a call keeps is less than so many numbers for each element, and an index can count it.
  for (const std::array<std::size_t, 4>& extents : {s.query, s.key, s.value}) {
    std::uint64_t size = 16 * 1024;
    for (const std::size_t extent : extents) {
      size = checked_product_of<std::uint64_t>(s.function, size, extent ? extent : 1);
    }
  }
}

/// One element of lengths for each sample, each from 0 to the most that there is.
inline void check_lengths(const attention_shape& s, const char* name, std::span<const std::int64_t> lengths,
                          std::size_t most) {
  if (lengths.data()) {
    if (lengths.size() != s.batch()) {
      const std::string rule = std::string(name) + " must have one element for each sample";
      s.fail_with(differ(rule.c_str(), lengths.size(), s.batch()));
    }
    for (const std::int64_t length : lengths) {
      if (length < 0 || static_cast<std::uint64_t>(length) > most) {
        s.fail_with(std::string(name) + " must lie between 0 and " + std::to_string(most) + ": " +
                    std::to_string(length));
      }
    }
  }
}

/// Non-decreasing, from 0 to at most rows.
inline void check_offsets(const attention_shape& s, const char* name, std::span<const std::int64_t> offsets,
                          std::size_t rows) {
  bool ordered = offsets.front() == 0 && static_cast<std::uint64_t>(offsets.back()) <= rows;
  for (std::size_t n = 1; n < offsets.size(); ++n) {
    ordered = ordered && offsets[n - 1] <= offsets[n];
  }
  if (!ordered) {
    s.fail_with(std::string(name) + " must begin with 0, not decrease, and end at the number of rows at most");
  }
}

/// The options of an attention call whose shapes agree. added_columns: how many keys a row of weights has beside those
/// of the key tensor.
template <class T>
void check_options(attention_shape s, const attention_options<T>& options, std::size_t added_columns) {
  const std::array<std::size_t, 4> scores{s.batch(), s.heads(), s.query_length(), s.key_length()};
  const std::array<std::size_t, 3> rows{s.batch(), s.heads(), s.query_length()};
  const std::size_t weight_columns = s.key_length() + added_columns;
  if (options.bias.view().data()) {
    s.require_shape("bias", options.bias.view().extents(), scores, true);
  }
  if (options.visible.view().data()) {
    s.require_shape("visible", options.visible.view().extents(), scores, true);
  }
  if (options.distance_bias.data()) {
    const std::size_t columns = options.distance_bias.extent(1);
    s.require_shape<2>("distance_bias", options.distance_bias.extents(), {s.heads(), columns}, true);
    if (columns % 2 == 0) {
      s.fail_with("distance_bias must have an odd number of columns: " + std::to_string(columns));
    }
  }
  if (!is_finite(options.softcap) || options.softcap < 0) {
    s.fail_with("softcap must be finite and not negative");
  }
  if (options.head_scales.data()) {
    s.require_equal("head_scales must have one element for each head", options.head_scales.size(), s.heads());
    if (options.scale) {
      s.fail_with("scale and head_scales cannot both be given");
    }
  }
  if (options.window.left < 0 || options.window.right < 0) {
    s.fail_with("window.left and window.right must not be negative: " + std::to_string(options.window.left) + ", " +
                std::to_string(options.window.right));
  }
  if (!(options.dropout.probability >= 0 && options.dropout.probability <= 1)) {
    s.fail_with("dropout.probability must lie between 0 and 1");
  }
  if (options.sinks.data()) {
    s.require_equal("sinks must have one element for each head", options.sinks.size(), s.heads());
    if (options.softmax_plus_one) {
      s.fail_with("sinks and softmax_plus_one cannot both be given");
    }
  }
  const auto require_rows = [&s, &rows](const char* name, const tensor_view<T, 3>& x) {
    if (x.data()) {
      s.require_shape<3>(name, x.extents(), rows);
    }
  };
  require_rows("lse", options.lse);
  require_rows("maximum", options.maximum);
  require_rows("entropy", options.entropy);
  if (options.weight_rows.data()) {
    for (std::size_t i = 0; i < options.weight_rows.size(); ++i) {
      const std::int64_t row = options.weight_rows[i];
      if (row < 0 || static_cast<std::uint64_t>(row) >= s.query_length()) {
        s.fail_with("weight_rows must be rows of query: " + std::to_string(row));
      }
    }
  }
  if (options.weights.data()) {
    const std::size_t weight_rows = options.weight_rows.data() ? options.weight_rows.size() : s.query_length();
    s.require_shape<4>("weights", options.weights.extents(), {s.batch(), s.heads(), weight_rows, weight_columns});
  }
  if (options.mean_weights.data()) {
    s.require_shape<3>("mean_weights", options.mean_weights.extents(), {s.batch(), s.query_length(), weight_columns});
  }
  if (options.key_mass.data()) {
    s.require_shape<3>("key_mass", options.key_mass.extents(), {s.batch(), s.heads(), weight_columns});
  }
  if (options.query_offsets.data() || options.key_offsets.data()) {
    if (options.query_offsets.empty() || options.query_offsets.size() != options.key_offsets.size()) {
      s.fail_with("query_offsets and key_offsets must have the same number of elements, one more than sequences");
    }
    if (s.batch() != 1 || added_columns != 0 || options.bias.view().data() || options.visible.view().data() ||
        options.weights.data() || options.mean_weights.data()) {
      s.fail_with("with query_offsets, batch must be 1 and bias, visible, weights, mean_weights, added keys not given");
    }
    check_offsets(s, "query_offsets", options.query_offsets, s.query_length());
    check_offsets(s, "key_offsets", options.key_offsets, s.key_length());
    s.require_equal("query_offsets must end at query_length", static_cast<std::size_t>(options.query_offsets.back()),
                    s.query_length());
    s.query[0] = options.query_offsets.size() - 1;
  }
  if (options.query_starts.data()) {
    s.require_equal("query_starts must have one element for each sample", options.query_starts.size(), s.batch());
    if (options.query_start) {
      s.fail_with("query_start and query_starts cannot both be given");
    }
  }
  check_lengths(s, "query_lengths", options.query_lengths, s.query_length());
  check_lengths(s, "key_lengths", options.key_lengths, s.key_length());
  if (options.alibi_slopes.data() && options.alibi_slopes.size() != s.batch() * s.heads()) {
    s.require_equal("alibi_slopes must have one element for each head, or for each sample and head",
                    options.alibi_slopes.size(), s.heads());
  }
}

}  // namespace detail::inline HEADWAVE_ABI
}  // namespace headwave
