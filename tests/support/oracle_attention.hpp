// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>

#include "support/oracle.hpp"

#include <array>
#include <functional>

/// \file
/// Attention and everything that it can be asked for, written a second time: see oracle.hpp.

namespace oracle {

/// Philox4x32-10 of Salmon et al. (2011): four random words for each counter and key.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = counter[0] * std::uint64_t{0xd2511f53};
    const std::uint64_t second = counter[2] * std::uint64_t{0xcd9e8d57};
    counter = {high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1], low(first)};
    key = {key[0] + 0x9e3779b9U, key[1] + 0xbb67ae85U};
  }
  return counter;
}

/// What dropout multiplies a weight by: 0 or 1 / (1 - probability).
inline real kept(const hw::attention_dropout& dropout, const hw::score_position& at) {
  const auto word = [](std::int64_t x) { return static_cast<std::uint32_t>(static_cast<std::uint64_t>(x)); };
  const std::array<std::uint32_t, 4> words =
      philox({word(at.key / 4), word(at.query), word(at.head), word(at.batch)},
             {static_cast<std::uint32_t>(dropout.seed), static_cast<std::uint32_t>(dropout.seed >> 32)});
  const real threshold = std::floor(static_cast<real>(dropout.probability) * 0x1p32L);
  return static_cast<real>(words[static_cast<std::size_t>(at.key % 4)]) < threshold
             ? 0
             : 1 / (1 - static_cast<real>(dropout.probability));
}

/// What one of a caller's rules means: a mask, or what it makes of a score that may be off by an error.
struct rule {
  std::function<bool(const hw::score_position&)> visible = {};
  std::function<void(real& score, real& error, const hw::score_position&)> score = {};
};

struct attention_result {
  estimate<4> out;           ///< [batch, query_length, heads, value_dim]
  estimate<4> weights;       ///< [batch, heads, query_length, key_length]
  estimate<3> lse;           ///< [batch, heads, query_length]
  estimate<3> maximum;       ///< [batch, heads, query_length]
  estimate<3> entropy;       ///< [batch, heads, query_length]
  estimate<3> mean_weights;  ///< [batch, query_length, key_length]
  estimate<3> key_mass;      ///< [batch, heads, key_length]

  attention_result() = default;
  attention_result(std::size_t batch, std::size_t queries, std::size_t heads, std::size_t keys, std::size_t value_dim)
      : out({batch, queries, heads, value_dim}),
        weights({batch, heads, queries, keys}),
        lse({batch, heads, queries}),
        maximum({batch, heads, queries}),
        entropy({batch, heads, queries}),
        mean_weights({batch, queries, keys}),
        key_mass({batch, heads, keys}) {}
};

/// The element of an option that broadcasts to [batch, heads, query_length, key_length].
template <class T>
T broadcast_element(const hw::broadcast_view<T>& option, extents<4> at) {
  for (std::size_t axis = 0; axis < 4; ++axis) {
    at[axis] = option.view().extent(axis) == 1 ? 0 : at[axis];
  }
  return element(option.view(), at);
}

/// The channels of one head at one place of a sequence.
inline const real* channels(const hw::tensor<real, 4>& x, std::size_t batch, std::size_t place, std::size_t head) {
  return x.data() + ((batch * x.extent(1) + place) * x.extent(2) + head) * x.extent(3);
}

/// The arguments of an attention. The last `appended` keys are not counted by any mask and seen by every query.
template <class T>
struct attention_problem {
  const estimate<4>& q;
  const estimate<4>& k;
  const estimate<4>& v;
  const hw::attention_options<T>& options;
  std::vector<rule> rules = {};
  std::size_t appended = 0;
  std::size_t first_sample = 0;  ///< the number of sample 0 among those that options and rules count

  std::size_t heads() const { return q.value.extent(2); }
  std::size_t key_length() const { return k.value.extent(1) - appended; }
  std::size_t kv_head(std::size_t head) const { return head / (heads() / k.value.extent(2)); }

  /// Positions of 64 bits and their sums are exact in long double; a position past their end is the last one.
  real position(std::size_t sample, std::size_t row) const {
    const real start = !options.query_starts.empty() ? static_cast<real>(options.query_starts[first_sample + sample])
                       : options.query_start         ? static_cast<real>(*options.query_start)
                                             : static_cast<real>(key_length()) - static_cast<real>(q.value.extent(1));
    return (std::min)(start + static_cast<real>(row), static_cast<real>(std::numeric_limits<std::int64_t>::max()));
  }

  /// at is [batch, head, query, key].
  hw::score_position score_position(const extents<4>& at) const {
    return {static_cast<std::int64_t>(first_sample + at[0]), static_cast<std::int64_t>(at[1]),
            static_cast<std::int64_t>(position(at[0], at[2])), static_cast<std::int64_t>(at[3])};
  }
  /// The same as rules see it.
  hw::score_position rule_position(const extents<4>& at) const {
    constexpr std::int64_t most = std::int64_t{1} << 62;
    hw::score_position seen = score_position(at);
    seen.query = std::clamp(seen.query, -most, most);
    return seen;
  }

  /// The bias of the distance between a query and a key.
  T distance_bias(const extents<4>& at) const {
    const std::size_t columns = options.distance_bias.extent(1);
    const real limit = static_cast<real>(columns / 2);
    const real distance = static_cast<real>(at[3]) - position(at[0], at[2]);
    const real nearest = (std::max)(-limit, (std::min)(limit, distance));
    return element(options.distance_bias,
                   {options.distance_bias.extent(0) == 1 ? 0 : at[1], static_cast<std::size_t>(nearest + limit)});
  }

  T slope(std::size_t sample, std::size_t head) const {
    return options
        .alibi_slopes[options.alibi_slopes.size() == heads() ? head : (first_sample + sample) * heads() + head];
  }

  /// Whether a query may see one of the keys that masks count; at is [batch, head, query, key].
  bool visible(const extents<4>& at) const {
    constexpr T nothing = -std::numeric_limits<T>::infinity();
    const real query = position(at[0], at[2]);
    const real key = static_cast<real>(at[3]);
    const hw::attention_window window = options.window;
    const std::size_t sample = first_sample + at[0];
    return (!options.visible.view().data() || broadcast_element(options.visible, at)) &&
           (!options.bias.view().data() || broadcast_element(options.bias, at) != nothing) &&
           (!options.distance_bias.data() || distance_bias(at) != nothing) && (!options.causal || key <= query) &&
           (window.left == hw::unlimited || key >= query - static_cast<real>(window.left)) &&
           (window.right == hw::unlimited || key <= query + static_cast<real>(window.right)) &&
           (options.query_lengths.empty() ||
            static_cast<real>(at[2]) < static_cast<real>(options.query_lengths[sample])) &&
           (options.key_lengths.empty() || key < static_cast<real>(options.key_lengths[sample])) &&
           std::all_of(rules.begin(), rules.end(),
                       [&](const rule& r) { return !r.visible || r.visible(rule_position(at)); });
  }

  /// Adds the final score of one key to a row, unless a rule hides it.
  void add_score(score_row& row, const extents<4>& at) const {
    constexpr real u = unit<T>;
    const auto [b, h, i, j] = at;
    const std::size_t head_dim = q.value.extent(3);
    const real scale = !options.head_scales.empty() ? static_cast<real>(options.head_scales[h])
                       : options.scale              ? static_cast<real>(*options.scale)
                                       : 1 / std::sqrt(static_cast<real>((std::max<std::size_t>)(head_dim, 1)));
    const real* const x = channels(q.value, b, i, h);
    const real* const y = channels(k.value, b, j, kv_head(h));
    const real* const x_errors = channels(q.error, b, i, h);
    const real* const y_errors = channels(k.error, b, j, kv_head(h));
    real dot = 0;
    real magnitude = 0;
    real error = 0;
    for (std::size_t d = 0; d < head_dim; ++d) {
      dot += x[d] * y[d];
      magnitude += std::fabs(x[d] * y[d]);
      error += x_errors[d] * std::fabs(y[d]) + y_errors[d] * std::fabs(x[d]);
    }
    real score = scale * dot;
    // The one score of a layer's added key is a single chain.
    const bool counted = j < key_length();
    const std::size_t chain = counted ? product_sum(head_dim) : head_dim;
    error = std::fabs(scale) * (error + u * roundings(chain + 2) * magnitude);
    if (options.softcap != 0) {
      const real softcap = static_cast<real>(options.softcap);
      score = softcap * std::tanh(score / softcap);
      error += 10 * u * std::fabs(score);
    }
    const auto add_bias = [&](T option) {
      const real bias = static_cast<real>(option);
      score += bias;
      error += u * (std::fabs(score) + std::fabs(bias));
    };
    if (counted && options.bias.view().data()) {
      add_bias(broadcast_element(options.bias, at));
    }
    if (counted && options.distance_bias.data()) {
      add_bias(distance_bias(at));
    }
    if (counted && !options.alibi_slopes.empty()) {
      const real distance = std::fabs(position(b, i) - static_cast<real>(j));
      const real penalty = static_cast<real>(slope(b, h)) * distance;
      score -= penalty;
      error += u * (std::fabs(score) + 3 * std::fabs(penalty));
    }
    for (const rule& r : rules) {
      if (counted && r.score) {
        r.score(score, error, rule_position(at));
      }
    }
    if (score != -std::numeric_limits<real>::infinity()) {
      row.add(j, score, error);
    }
  }
};

/// The largest score of a row, which is off by no more than some score is, or by what underflows.
template <class T>
void add_maximum(const score_row& row, const extents<3>& at, estimate<3>& result) {
  real& maximum = element(result.value.view(), at);
  maximum = -std::numeric_limits<real>::infinity();
  for (std::size_t n = 0; n < row.scores.size(); ++n) {
    maximum = std::isnan(maximum) || maximum > row.scores[n] ? maximum : row.scores[n];
    real& error = element(result.error.view(), at);
    error = (std::max)(
        error, row.errors[n] + unit<T> * std::fabs(row.scores[n]) + static_cast<real>((std::numeric_limits<T>::min)()));
  }
}

/// -sum of p ln p over the weights of the keys, which are computed as ln S - M / S, where S is the sum of the powers
/// e^x, and M that of x e^x, of x = score - reference. The reference is the largest score, or at most slack below it.
template <class T>
void add_entropy(const score_row& row, const weight_row& weights, const T* sink, real slack, const extents<3>& at,
                 estimate<3>& result) {
  constexpr real u = unit<T>;
  const std::size_t count = row.scores.size();
  if (count == 0) {
    return;
  }
  const real log_sum = weights.lse - weights.maximum;
  const real sum_roundings = roundings(2 * count + 2) + 3;
  real entropy = 0;
  real distance = 0;  // the mean of |x|
  for (std::size_t n = 0; n < count; ++n) {
    entropy += weights.weights[n] * (weights.lse - row.scores[n]);
    distance += weights.weights[n] * (weights.maximum - row.scores[n] + slack);
  }
  const real sink_score = sink ? static_cast<real>(*sink) : weights.maximum;
  const real log_sink_weight = sink_score - weights.lse;
  const real sink_weight = sink ? std::exp(log_sink_weight) : 0;
  distance += sink_weight * (weights.maximum - sink_score + slack);
  real error = 0;
  real explained = 0;
  for (std::size_t n = 0; n < count; ++n) {
    const real x = weights.maximum - row.scores[n] + slack;
    // In a power, in S; in x itself.
    error += weights.weights[n] * (weights.relative_errors[n] * (2 + x + distance) + slack * u);
    explained += weights.weights[n] * weights.relative_errors[n];
  }
  const real sink_part = (std::max)(weights.mean_error - explained, real{0});
  error += sink_part * (2 + weights.maximum - sink_score + slack + distance);
  // The sums, also where they are moved to another reference; the logarithm, the quotient, their difference.
  error += u * sum_roundings * (1 + 3 * distance + 2 * slack) +
           u * (2 * (log_sum + slack) + 3 * distance + 2 * std::fabs(entropy) + 1);
  // What the sink has in S and M is taken out again.
  error += sink_weight * (1 + std::fabs(log_sink_weight)) *
           (weights.mean_error + u * (sum_roundings + 2 * std::fabs(weights.maximum) + 2 * std::fabs(sink_score) +
                                      3 * std::fabs(weights.lse) + 2 * slack));
  element(result.value.view(), at) = entropy;
  element(result.error.view(), at) =
      weights.growth * error + 100 * static_cast<real>(count) * static_cast<real>((std::numeric_limits<T>::min)());
}

/// Adds up the values of one row. keys: those it sees; sum_error: of the sums above and below the line, relative.
template <class T>
void add_values(const attention_problem<T>& problem, const extents<3>& row, const std::vector<std::size_t>& keys,
                const weight_row& weights, real sum_error, estimate<4>& result) {
  constexpr real u = unit<T>;
  constexpr real smallest = static_cast<real>((std::numeric_limits<T>::min)());
  const auto [b, h, i] = row;
  const std::size_t value_dim = result.value.extent(3);
  std::vector<real> out(value_dim);
  std::vector<real> factors(keys.size(), 1);
  real explained = 0;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    if (problem.options.dropout.probability > 0 && keys[n] < problem.key_length()) {
      factors[n] = kept(problem.options.dropout, problem.score_position({b, h, i, keys[n]}));
    }
    const real* const values = channels(problem.v.value, b, keys[n], problem.kv_head(h));
    explained += weights.weights[n] * weights.relative_errors[n];
    for (std::size_t d = 0; d < value_dim; ++d) {
      out[d] += weights.weights[n] * factors[n] * values[d];
    }
  }
  const real sink_part = (std::max)(weights.mean_error - explained, real{0});
  const real value_error = sum_error + (problem.options.dropout.probability > 0 ? 2 * u : 0);
  std::vector<real> errors(value_dim);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const real* const values = channels(problem.v.value, b, keys[n], problem.kv_head(h));
    const real* const value_errors = channels(problem.v.error, b, keys[n], problem.kv_head(h));
    for (std::size_t d = 0; d < value_dim; ++d) {
      const real size = std::fabs(factors[n] * values[d]);
      const real error = weights.relative_errors[n] * std::fabs(factors[n] * values[d] - out[d]) +
                         factors[n] * value_errors[d] + value_error * size;
      errors[d] += weights.growth * weights.weights[n] * error + 2 * smallest * (size + 1);
    }
  }
  for (std::size_t d = 0; d < value_dim; ++d) {
    result.value(b, i, h, d) = out[d];
    result.error(b, i, h, d) = errors[d] + weights.growth * sink_part * std::fabs(out[d]);
  }
}

/// Scaled dot-product attention.
template <class T>
attention_result attention(const attention_problem<T>& problem) {
  constexpr real u = unit<T>;
  constexpr real smallest = static_cast<real>((std::numeric_limits<T>::min)());
  const hw::attention_options<T>& options = problem.options;
  const std::size_t batch = problem.q.value.extent(0);
  const std::size_t query_length = problem.q.value.extent(1);
  const std::size_t heads = problem.heads();
  const std::size_t all_keys = problem.k.value.extent(1);
  attention_result result(batch, query_length, heads, all_keys, problem.v.value.extent(3));
  for_each_index(extents<3>{batch, heads, query_length}, [&](const extents<3>& row) {
    const auto [b, h, i] = row;
    score_row scores;
    for (std::size_t j = 0; j < all_keys; ++j) {
      const extents<4> at{b, h, i, j};
      if (j >= problem.key_length() || problem.visible(at)) {
        problem.add_score(scores, at);
      }
    }
    const T zero = 0;
    const T* sink = options.softmax_plus_one ? &zero : options.sinks.empty() ? nullptr : &options.sinks[h];
    sink = sink && *sink == -std::numeric_limits<T>::infinity() ? nullptr : sink;
    const weight_row weights = softmax<T>(scores, sink);
    const std::size_t count = scores.keys.size();
    const real sum_error = u * (roundings(2 * count + 2) + 3);
    result.lse.value(b, h, i) = weights.lse;
    result.lse.error(b, h, i) = weights.lse_error;
    add_maximum<T>(scores, row, result.maximum);
    // Without anything else, all keys of one block find the largest score before the first power is taken.
    const bool at_once = !sink && problem.appended == 0 && all_keys <= 256;
    add_entropy<T>(scores, weights, sink, at_once ? 0 : 8, row, result.entropy);
    for (std::size_t n = 0; n < count; ++n) {
      const std::size_t j = scores.keys[n];
      const real weight = weights.weights[n];
      const real relative = weights.relative_errors[n] + weights.mean_error + sum_error;
      const real error = weights.growth * weight * relative + 2 * smallest;
      const real share = static_cast<real>(problem.heads());
      result.weights.value(b, h, i, j) = weight;
      result.weights.error(b, h, i, j) = error;
      result.mean_weights.value(b, i, j) += weight / share;
      result.mean_weights.error(b, i, j) += (error + u * roundings(problem.heads() + 1) * weight) / share;
      result.key_mass.value(b, h, j) += weight;
      result.key_mass.error(b, h, j) += error + u * roundings(query_length) * weight;
    }
    add_values(problem, row, scores.keys, weights, sum_error, result.out);
  });
  return result;
}

/// Copies part of a result to the rows of axis `axis` from first on.
template <std::size_t Rank>
void place(const estimate<Rank>& part, std::size_t axis, std::size_t first, estimate<Rank>& whole) {
  for_each_index(part.value.extents(), [&](const extents<Rank>& from) {
    extents<Rank> to = from;
    to[axis] += first;
    element(whole.value.view(), to) = element(part.value.view(), from);
    element(whole.error.view(), to) = element(part.error.view(), from);
  });
}

/// The same from tensors or views. Packed sequences are so many calls; those have no weights and mean_weights.
template <class Q, class K, class V, class T>
attention_result attention(const Q& q, const K& k, const V& v, const hw::attention_options<T>& options,
                           const std::vector<rule>& rules = {}) {
  if (options.query_offsets.empty()) {
    const auto exact_q = exact(q);
    const auto exact_k = exact(k);
    const auto exact_v = exact(v);
    return attention<T>({.q = exact_q, .k = exact_k, .v = exact_v, .options = options, .rules = rules});
  }
  const auto all = hw::as_view(q);
  attention_result result(1, all.extent(1), all.extent(2), hw::as_view(k).extent(1), hw::as_view(v).extent(3));
  for (std::size_t n = 0; n + 1 < options.query_offsets.size(); ++n) {
    const auto sequence = [n](const auto& x, std::span<const std::int64_t> offsets) {
      return exact(hw::as_view(x).slice(1, static_cast<std::size_t>(offsets[n]),
                                        static_cast<std::size_t>(offsets[n + 1] - offsets[n])));
    };
    const auto exact_q = sequence(q, options.query_offsets);
    const auto exact_k = sequence(k, options.key_offsets);
    const auto exact_v = sequence(v, options.key_offsets);
    const attention_result part =
        attention<T>({.q = exact_q, .k = exact_k, .v = exact_v, .options = options, .rules = rules, .first_sample = n});
    const auto first_query = static_cast<std::size_t>(options.query_offsets[n]);
    place(part.out, 1, first_query, result.out);
    place(part.lse, 2, first_query, result.lse);
    place(part.maximum, 2, first_query, result.maximum);
    place(part.entropy, 2, first_query, result.entropy);
    place(part.key_mass, 2, static_cast<std::size_t>(options.key_offsets[n]), result.key_mass);
  }
  return result;
}

}  // namespace oracle
