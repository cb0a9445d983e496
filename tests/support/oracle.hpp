// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/positional_encoding.hpp>
#include <headwave/tensor.hpp>

#include "support/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

/// \file
/// What the library should compute, written a second time from its definition: loops over single elements in long
/// double, nothing shared with the kernels. Every result comes with a bound on the error that a correct computation in
/// T may have; tests/README.md derives it. Names follow the derivation: u is the unit roundoff of T.
///
/// Here: estimates, softmax, projections, sinusoids. oracle_attention.hpp has attention, oracle_layer.hpp the layer.

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
  real maximum = -std::numeric_limits<real>::infinity();  ///< of scores and sink
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
  result.maximum = maximum;
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
