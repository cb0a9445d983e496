// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>
#include <headwave/multi_head_attention.hpp>
#include <headwave/positional_encoding.hpp>

#include "support/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

/// \file
/// What the library should compute, written a second time from its definition: loops over single elements in long
/// double, nothing shared with the kernels. Every result comes with a bound on the error that a correct computation in
/// T may have; tests/README.md derives it. Names follow the derivation: u is the unit roundoff of T.

namespace oracle {

namespace hw = headwave;
using real = long double;
using support::element;
using support::extents;
using support::for_each_index;

/// Half a unit in the last place of 1.
template <class T>
inline constexpr real unit = static_cast<real>(std::numeric_limits<T>::epsilon()) / 2;

/// How many units the roundings of n dependent operations add up to: n in the worst case, and with independent signs
/// hardly ever more than 4 sqrt(n).
inline real roundings(std::size_t n) {
  const real count = static_cast<real>(n);
  return (std::min)(count, 4 * std::sqrt(count));
}

/// The longest chain of roundings in a sum of n products that is made in blocks of 128, whose sums are then added in
/// order: a product, the additions of its block, and those of the blocks.
inline std::size_t product_sum(std::size_t n) {
  constexpr std::size_t block = 128;
  return n == 0 ? 0 : (std::min)(n, block) + (n + block - 1) / block - 1;
}

/// Values and the error that each may have.
template <std::size_t Rank>
struct estimate {
  hw::tensor<real, Rank> value;
  hw::tensor<real, Rank> error;

  estimate() = default;
  explicit estimate(const extents<Rank>& shape) : value(shape), error(shape) {}
};

/// Inputs have no error.
template <class X>
auto exact(const X& x) {
  const auto view = hw::as_view(x);
  estimate<decltype(view)::rank()> result(view.extents());
  for_each_index(view.extents(),
                 [&](const auto& at) { element(result.value.view(), at) = static_cast<real>(element(view, at)); });
  return result;
}

/// Inputs that are rounded to T on their way into the library.
template <class T, class X>
auto rounded(const X& x) {
  auto result = exact(x);
  std::transform(result.value.begin(), result.value.end(), result.error.begin(),
                 [](real value) { return unit<T> * std::fabs(value); });
  return result;
}

/// The same elements in row-major order under another shape.
template <std::size_t Rank, std::size_t From>
estimate<Rank> reshaped(const estimate<From>& x, const extents<Rank>& shape) {
  estimate<Rank> result(shape);
  std::copy(x.value.begin(), x.value.end(), result.value.begin());
  std::copy(x.error.begin(), x.error.end(), result.error.begin());
  return result;
}

/// A row of scores on its way through the softmax; the blocked ones are left out.
struct score_row {
  std::vector<std::size_t> keys;
  std::vector<real> scores;
  std::vector<real> errors;  ///< absolute

  void add(std::size_t key, real score, real error) {
    keys.push_back(key);
    scores.push_back(score);
    errors.push_back(error);
  }
};

struct weight_row {
  std::vector<real> weights;
  std::vector<real> relative_errors;  ///< of exp(score - maximum), before the division
  real mean_error = 0;                ///< of the denominator, relative
  real growth = 1;                    ///< what the first-order terms are multiplied by to bound the rest
  real lse = -std::numeric_limits<real>::infinity();
  real lse_error = 0;
};

/// Softmax over a row, with a sink if there is one.
template <class T>
weight_row softmax(const score_row& row, const T* sink) {
  constexpr real u = unit<T>;
  weight_row result;
  real maximum = -std::numeric_limits<real>::infinity();
  for (const real score : row.scores) {
    maximum = score > maximum || std::isnan(score) ? score : maximum;
    if (std::isnan(maximum)) {
      break;
    }
  }
  if (sink && !(maximum > static_cast<real>(*sink)) && !std::isnan(maximum)) {
    maximum = static_cast<real>(*sink);
  }
  const std::size_t count = row.scores.size();
  if (count == 0 && !sink) {
    return result;
  }
  // A score's own error; its rounding, also after a factor log2(e); the subtraction of the maximum; two ulps of exp.
  const auto relative_error = [&](real score, real error) {
    return error + 2 * u * std::fabs(score) + 2 * u * std::fabs(score - maximum) + 4 * u;
  };
  real denominator = 0;
  real largest = 0;
  const auto add = [&](real score, real error) {
    const real term = std::exp(score - maximum);
    const real relative = relative_error(score, error);
    denominator += term;
    result.mean_error += term * relative;
    largest = term > 0 ? (std::max)(largest, relative) : largest;
    return term;
  };
  for (std::size_t i = 0; i < count; ++i) {
    result.weights.push_back(add(row.scores[i], row.errors[i]));
    result.relative_errors.push_back(relative_error(row.scores[i], row.errors[i]));
  }
  if (sink) {
    add(static_cast<real>(*sink), 0);
  }
  for (real& weight : result.weights) {
    weight /= denominator;
  }
  result.mean_error /= denominator;
  result.growth = std::exp(2 * largest);
  result.lse = maximum + std::log(denominator);
  result.lse_error = result.growth * result.mean_error + u * (roundings(2 * count + 2) + 4 * std::log(denominator) +
                                                              2 * std::fabs(maximum) + 2 * std::fabs(result.lse) + 1);
  return result;
}

/// Softmax over the last axis.
template <class X>
auto softmax(const X& x) {
  using value_type = hw::element_of<const X>;
  constexpr real u = unit<value_type>;
  const auto view = hw::as_view(x);
  constexpr std::size_t last = decltype(view)::rank() - 1;
  estimate<last + 1> result(view.extents());
  auto rows = view.extents();
  rows[last] = view.extent(last) ? 1 : 0;
  for_each_index(rows, [&](auto at) {
    score_row scores;
    for (at[last] = 0; at[last] < view.extent(last); ++at[last]) {
      const real score = static_cast<real>(element(view, at));
      if (score != -std::numeric_limits<real>::infinity()) {
        scores.add(at[last], score, 0);
      }
    }
    const weight_row row = softmax<value_type>(scores, nullptr);
    for (std::size_t i = 0; i < scores.keys.size(); ++i) {
      at[last] = scores.keys[i];
      element(result.value.view(), at) = row.weights[i];
      element(result.error.view(), at) =
          row.growth * row.weights[i] *
              (row.relative_errors[i] + row.mean_error + u * (roundings(2 * scores.keys.size()) + 3)) +
          2 * static_cast<real>((std::numeric_limits<value_type>::min)());
    }
  });
  return result;
}

struct attention_result {
  estimate<4> out;           ///< [batch, query_length, heads, value_dim]
  estimate<4> weights;       ///< [batch, heads, query_length, key_length]
  estimate<3> lse;           ///< [batch, heads, query_length]
  estimate<3> mean_weights;  ///< [batch, query_length, key_length]
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
  std::size_t appended = 0;

  std::size_t heads() const { return q.value.extent(2); }
  std::size_t key_length() const { return k.value.extent(1) - appended; }
  std::size_t kv_head(std::size_t head) const { return head / (heads() / k.value.extent(2)); }

  /// Positions of 64 bits and their sums are exact in long double.
  real position(std::size_t sample, std::size_t row) const {
    const real start = !options.query_starts.empty() ? static_cast<real>(options.query_starts[sample])
                       : options.query_start         ? static_cast<real>(*options.query_start)
                                             : static_cast<real>(key_length()) - static_cast<real>(q.value.extent(1));
    return start + static_cast<real>(row);
  }

  /// Whether a query may see one of the keys that masks count; at is [batch, head, query, key].
  bool visible(const extents<4>& at) const {
    const real query = position(at[0], at[2]);
    const real key = static_cast<real>(at[3]);
    const hw::attention_window window = options.window;
    return (!options.visible.view().data() || broadcast_element(options.visible, at)) &&
           (!options.bias.view().data() ||
            broadcast_element(options.bias, at) != -std::numeric_limits<T>::infinity()) &&
           (!options.causal || key <= query) &&
           (window.left == hw::unlimited || key >= query - static_cast<real>(window.left)) &&
           (window.right == hw::unlimited || key <= query + static_cast<real>(window.right)) &&
           (options.key_lengths.empty() || key < static_cast<real>(options.key_lengths[at[0]]));
  }

  /// Adds the final score of one key to a row.
  void add_score(score_row& row, const extents<4>& at) const {
    constexpr real u = unit<T>;
    const auto [b, h, i, j] = at;
    const std::size_t head_dim = q.value.extent(3);
    const real scale = options.scale ? static_cast<real>(*options.scale)
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
    if (counted && options.bias.view().data()) {
      const real bias = static_cast<real>(broadcast_element(options.bias, at));
      score += bias;
      error += u * (std::fabs(score) + std::fabs(bias));
    }
    if (counted && !options.alibi_slopes.empty()) {
      const real distance = std::fabs(position(b, i) - static_cast<real>(j));
      const real penalty = static_cast<real>(options.alibi_slopes[h]) * distance;
      score -= penalty;
      error += u * (std::fabs(score) + 3 * std::fabs(penalty));
    }
    row.add(j, score, error);
  }
};

/// Adds up the values of one row. keys: those it sees; sum_error: of the sums above and below the line, relative.
template <class T>
void add_values(const attention_problem<T>& problem, const extents<3>& row, const std::vector<std::size_t>& keys,
                const weight_row& weights, real sum_error, estimate<4>& result) {
  constexpr real smallest = static_cast<real>((std::numeric_limits<T>::min)());
  const auto [b, h, i] = row;
  const std::size_t value_dim = result.value.extent(3);
  std::vector<real> out(value_dim);
  real explained = 0;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const real* const values = channels(problem.v.value, b, keys[n], problem.kv_head(h));
    explained += weights.weights[n] * weights.relative_errors[n];
    for (std::size_t d = 0; d < value_dim; ++d) {
      out[d] += weights.weights[n] * values[d];
    }
  }
  const real sink_part = (std::max)(weights.mean_error - explained, real{0});
  std::vector<real> errors(value_dim);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const real* const values = channels(problem.v.value, b, keys[n], problem.kv_head(h));
    const real* const value_errors = channels(problem.v.error, b, keys[n], problem.kv_head(h));
    for (std::size_t d = 0; d < value_dim; ++d) {
      const real size = std::fabs(values[d]);
      const real error =
          weights.relative_errors[n] * std::fabs(values[d] - out[d]) + value_errors[d] + sum_error * size;
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
  const std::size_t batch = problem.q.value.extent(0);
  const std::size_t query_length = problem.q.value.extent(1);
  const std::size_t heads = problem.heads();
  const std::size_t all_keys = problem.k.value.extent(1);
  attention_result result{estimate<4>({batch, query_length, heads, problem.v.value.extent(3)}),
                          estimate<4>({batch, heads, query_length, all_keys}),
                          estimate<3>({batch, heads, query_length}), estimate<3>({batch, query_length, all_keys})};
  for_each_index(extents<3>{batch, heads, query_length}, [&](const extents<3>& row) {
    const auto [b, h, i] = row;
    score_row scores;
    for (std::size_t j = 0; j < all_keys; ++j) {
      const extents<4> at{b, h, i, j};
      if (j >= problem.key_length() || problem.visible(at)) {
        problem.add_score(scores, at);
      }
    }
    const T* const sink = problem.options.sinks.empty() ? nullptr : &problem.options.sinks[h];
    const weight_row weights = softmax<T>(scores, sink);
    const std::size_t count = scores.keys.size();
    const real sum_error = u * (roundings(2 * count + 2) + 3);
    result.lse.value(b, h, i) = weights.lse;
    result.lse.error(b, h, i) = weights.lse_error;
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
    }
    add_values(problem, row, scores.keys, weights, sum_error, result.out);
  });
  return result;
}

/// The same from tensors or views.
template <class Q, class K, class V, class T>
attention_result attention(const Q& q, const K& k, const V& v, const hw::attention_options<T>& options) {
  const auto exact_q = exact(q);
  const auto exact_k = exact(k);
  const auto exact_v = exact(v);
  return attention<T>({.q = exact_q, .k = exact_k, .v = exact_v, .options = options});
}

/// x [batch, length, in] · weight^T [out, in] + bias [out], the bias being optional. The parameters may have been
/// rounded to T.
template <class T>
estimate<3> linear(const estimate<3>& x, hw::tensor_view<const T, 2> weight, hw::tensor_view<const T, 1> bias) {
  const std::size_t in = x.value.extent(2);
  estimate<3> result({x.value.extent(0), x.value.extent(1), weight.extent(0)});
  for_each_index(result.value.extents(), [&](const extents<3>& at) {
    real sum = bias.empty() ? 0 : static_cast<real>(bias(at[2]));
    real magnitude = std::fabs(sum);
    real error = 0;
    for (std::size_t i = 0; i < in; ++i) {
      const real factor = static_cast<real>(weight(at[2], i));
      sum += x.value(at[0], at[1], i) * factor;
      magnitude += std::fabs(x.value(at[0], at[1], i) * factor);
      error += x.error(at[0], at[1], i) * std::fabs(factor);
    }
    element(result.value.view(), at) = sum;
    element(result.error.view(), at) = error + unit<T> * (roundings(product_sum(in) + 1) + 1) * magnitude;
  });
  return result;
}

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

/// One row of the encoding. Its error is that of this computation, not the library's: the product of a frequency and a
/// position has an error of its own, a few units of long double.
inline estimate<1> encoding_row(real position, std::size_t d_model, const hw::encoding_options& options = {}) {
  const bool padded = options.odd == hw::odd_channel::zero;
  const std::size_t firsts = padded ? d_model / 2 : (d_model + 1) / 2;
  const std::size_t seconds = d_model / 2;
  const real half = padded ? static_cast<real>(d_model / 2) : static_cast<real>(d_model) / 2;
  real denominator = half - static_cast<real>(options.frequency_shift);
  denominator = denominator > 0 ? denominator : 1;
  const real log_base = std::log(static_cast<real>(options.base));
  estimate<1> row({d_model});
  const auto set = [&](std::size_t pair, bool second, std::size_t column) {
    const real exponent = -static_cast<real>(pair) / denominator;
    const real frequency = static_cast<real>(options.scale) * std::pow(static_cast<real>(options.base), exponent);
    const real angle = position * frequency;
    const bool sine = second == (options.order == hw::channel_order::cos_sin);
    row.value(column) = sine ? std::sin(angle) : std::cos(angle);
    row.error(column) =
        std::fabs(angle) * unit<real> * (pair == 0 && options.scale == 1 ? 0 : 4 + std::fabs(log_base * exponent));
  };
  for (std::size_t pair = 0; pair < firsts; ++pair) {
    set(pair, false, options.layout == hw::channel_layout::interleaved ? 2 * pair : pair);
  }
  for (std::size_t pair = 0; pair < seconds; ++pair) {
    set(pair, true, options.layout == hw::channel_layout::interleaved ? 2 * pair + 1 : firsts + pair);
  }
  return row;
}

}  // namespace oracle
