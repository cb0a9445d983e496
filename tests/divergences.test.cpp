// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/masks.hpp>

#include "support/attention_check.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

/// \file
/// What other systems answer differently from each other, and what is right here. With queries of zero every visible
/// key weighs the same, so that an output is the mean of the values it may see.

namespace hw = headwave;
using hw::score_position;
using support::attention_faults;
using support::constant;
using support::flat;
using support::infinity;
using support::not_a_number;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::tensor_of;
using support::within;

namespace {

template <class T>
constexpr double few_ulps = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());

/// Every output of a call of one sample.
template <class T>
struct outputs {
  hw::tensor<T, 4> out, weights;
  hw::tensor<T, 3> lse, maximum, entropy, mean_weights, key_mass;

  template <class Q, class K, class V, class... Rules>
  outputs(const Q& q, const K& k, const V& v, hw::attention_options<T> options, const Rules&... rules)
      : out({1, 1, 1, 1}),
        weights({1, q.extent(2), q.extent(1), k.extent(1)}),
        lse({1, q.extent(2), q.extent(1)}),
        maximum({1, q.extent(2), q.extent(1)}),
        entropy({1, q.extent(2), q.extent(1)}),
        mean_weights({1, q.extent(1), k.extent(1)}),
        key_mass({1, q.extent(2), k.extent(1)}) {
    for (auto* x : {&lse, &maximum, &entropy, &mean_weights, &key_mass}) {
      std::fill(x->begin(), x->end(), T(77));
    }
    std::fill(weights.begin(), weights.end(), T(77));
    options.lse = lse;
    options.maximum = maximum;
    options.entropy = entropy;
    options.key_mass = key_mass;
    if (options.query_offsets.empty()) {
      options.weights = weights;
      options.mean_weights = mean_weights;
    } else {
      std::fill(weights.begin(), weights.end(), T(0));
      std::fill(mean_weights.begin(), mean_weights.end(), T(0));
    }
    out = hw::scaled_dot_product_attention(q, k, v, options, rules...);
  }
};

/// Rows that see nothing, of NaN keys and values: as many rows as make a prefill or a decode call, with and without
/// outputs beside out.
template <class T, class... Rules>
std::string faults_of_nothing(std::size_t rows, std::size_t count, hw::attention_options<T> options,
                              const Rules&... rules) {
  const auto q = constant<T>({1, rows, 2, 3}, 1);
  const auto k = constant<T>({1, count, 1, 3}, not_a_number);
  const auto v = constant<T>({1, count, 1, 5}, not_a_number);
  const std::vector<double> zeros(rows * 10, 0), no_entropy(rows * 2, 0), nothing(rows * 2, -infinity);
  const std::vector<double> no_weights(rows * 2 * count, 0), no_mean(rows * count, 0), no_mass(2 * count, 0);
  const outputs<T> all(q, k, v, options, rules...);
  std::string text = within(all.out, zeros, 0) + within(all.lse, nothing, 0) + within(all.maximum, nothing, 0) +
                     within(all.entropy, no_entropy, 0) + within(all.weights, no_weights, 0) +
                     within(all.mean_weights, no_mean, 0) + within(all.key_mass, no_mass, 0);
  text += within(hw::scaled_dot_product_attention(q, k, v, options, rules...), zeros, 0);
  hw::tensor<T, 3> lse({1, 2, rows});
  options.lse = lse;
  text += within(hw::scaled_dot_product_attention(q, k, v, options, rules...), zeros, 0);
  return text + within(lse, nothing, 0);
}

/// The mean of values j = 0, 1, ... that a query of zero at a position sees, by hand.
template <class Seen>
std::vector<double> means_of_seen(std::int64_t start, std::size_t rows, std::size_t count, Seen seen) {
  std::vector<double> means;
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0, n = 0;
    for (std::size_t j = 0; j < count; ++j) {
      if (seen(start + static_cast<std::int64_t>(i), static_cast<std::int64_t>(j))) {
        sum += static_cast<double>(j);
        n += 1;
      }
    }
    means.push_back(n > 0 ? sum / n : 0);
  }
  return means;
}

template <class T, class... Rules>
hw::tensor<T, 4> means(std::size_t rows, std::size_t count, const hw::attention_options<T>& options,
                       const Rules&... rules) {
  hw::tensor<T, 4> v({1, count, 1, 1});
  for (std::size_t j = 0; j < count; ++j) {
    v(0, j, 0, 0) = static_cast<T>(j);
  }
  return hw::scaled_dot_product_attention(constant<T>({1, rows, 1, 1}, 0), constant<T>({1, count, 1, 1}, 0), v, options,
                                          rules...);
}

}  // namespace

TEMPLATE_TEST_CASE("causal, more queries than keys and fewer, aligned at either corner", "[divergences]", float,
                   double) {
  const auto past = [](std::int64_t i, std::int64_t j) { return j <= i; };
  for (const auto& [rows, count] : {std::pair<std::size_t, std::size_t>{2, 5}, {5, 2}, {1, 16}, {40, 7}, {7, 600}}) {
    const auto lower_right = static_cast<std::int64_t>(count) - static_cast<std::int64_t>(rows);
    for (const std::int64_t start : {lower_right, std::int64_t{0}}) {
      CAPTURE(rows, count, start);
      const auto expected = means_of_seen(start, rows, count, past);
      // A mean of n numbers below n: n roundings in the sum.
      const double bound = static_cast<double>(count * count) * few_ulps<TestType>;
      const std::optional<std::int64_t> given = start == lower_right ? std::nullopt : std::optional(start);
      CHECK(within(means<TestType>(rows, count, {.causal = true, .query_start = given}), expected, bound) == "");
      CHECK(within(means<TestType>(rows, count, {.query_start = given}, hw::causal_mask{}), expected, bound) == "");
      CHECK(within(means<TestType>(rows, count, {.query_start = given, .window = {.right = 0}}), expected, bound) ==
            "");
    }
  }
}

TEMPLATE_TEST_CASE("a row that sees nothing, by every means", "[divergences]", float, double) {
  for (const std::size_t rows : sizes{1, 3, 12}) {
    for (const std::size_t count : sizes{1, 5, 300}) {
      CAPTURE(rows, count);
      const auto n = static_cast<std::int64_t>(count);
      const auto hidden = constant<bool>({1}, 0);
      CHECK(faults_of_nothing<TestType>(rows, count, {.visible = hidden}) == "");
      const auto blocked = constant<TestType>({1}, -infinity);
      CHECK(faults_of_nothing<TestType>(rows, count, {.bias = blocked}) == "");
      const auto blocked_distances = constant<TestType>({1, 3}, -infinity);
      CHECK(faults_of_nothing<TestType>(rows, count, {.distance_bias = blocked_distances}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {.query_start = n + 4, .window = {.left = 4}}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {.query_start = -20, .window = {.right = 2}}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {.causal = true, .query_start = -20}) == "");
      const std::vector<std::int64_t> none = {0};
      CHECK(faults_of_nothing<TestType>(rows, count, {.query_lengths = none}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {.key_lengths = none}) == "");
      const std::vector<std::int64_t> all_rows = {0, static_cast<std::int64_t>(rows)}, no_keys = {0, 0};
      CHECK(faults_of_nothing<TestType>(rows, count, {.query_offsets = all_rows, .key_offsets = no_keys}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {}, [](score_position) { return false; }) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {.query_start = -20}, hw::causal_mask{}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {}, hw::causal_mask{} && !hw::causal_mask{}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {}, hw::document_mask(std::span<const std::int64_t>())) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {}, hw::prefix_mask{1},
                                        hw::visible_if([](score_position at) { return at.key > at.query; }) &&
                                            hw::window_mask{.right = 0}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {}, [](TestType, score_position) {
              return -std::numeric_limits<TestType>::infinity();
            }) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {.softcap = 3, .visible = hidden}) == "");
      CHECK(faults_of_nothing<TestType>(rows, count, {.visible = hidden, .dropout = {0.5, 1}}) == "");
    }
    CHECK(faults_of_nothing<TestType>(rows, 0, {}) == "");
    CHECK(faults_of_nothing<TestType>(rows, 0, {}, hw::causal_mask{}) == "");
  }
}

TEMPLATE_TEST_CASE("the first blocks of keys hidden and a later one seen", "[divergences]", float, double) {
  // Of 700 keys, 3 blocks, the keys 560 .. 563 are seen: an online softmax that starts from the first block meets
  // -infinity minus -infinity.
  const std::size_t count = 700;
  const auto seen = [](std::size_t j) { return j >= 560 && j < 564; };
  const auto k = constant<TestType>({1, count, 1, 2}, 1);
  hw::tensor<TestType, 4> v({1, count, 1, 1});
  hw::tensor<bool, 1> visible({count});
  hw::tensor<TestType, 1> bias({count});
  for (std::size_t j = 0; j < count; ++j) {
    v(0, j, 0, 0) = static_cast<TestType>(seen(j) ? static_cast<double>(j) : not_a_number);
    visible(j) = seen(j);
    bias(j) = static_cast<TestType>(seen(j) ? 0 : -infinity);
  }
  for (const double query : {0.0, -1e4, 1e4}) {
    for (const std::size_t rows : sizes{1, 30}) {
      CAPTURE(query, rows);
      const auto q = constant<TestType>({1, rows, 1, 2}, query);
      const auto check = [&](const hw::attention_options<TestType>& options, const auto&... rules) {
        const std::vector<double> expected(rows, 561.5);
        CHECK(within(hw::scaled_dot_product_attention(q, k, v, options, rules...), expected, 0) == "");
        const outputs<TestType> all(q, k, v, options, rules...);
        CHECK(within(all.out, expected, 0) == "");
        CHECK(within(all.entropy, std::vector<double>(rows, std::log(4.0)), 2 * few_ulps<TestType>) == "");
        CHECK(within(all.weights.view().slice(3, 560, 4), std::vector<double>(rows * 4, 0.25), 0) == "");
        CHECK(within(all.weights.view().slice(3, 0, 560), std::vector<double>(rows * 560, 0), 0) == "");
      };
      check({.visible = visible});
      check({.bias = bias});
      check({}, [](score_position at) { return at.key >= 560 && at.key < 564; });
      check({}, hw::visible_if([](score_position at) { return at.key >= 560; }), hw::chunk_mask{1000},
            [](score_position at) { return at.key < 564; });
      check({}, [](TestType s, score_position at) {
        return at.key >= 560 && at.key < 564 ? s : -std::numeric_limits<TestType>::infinity();
      });
      const std::vector<std::int64_t> lengths = {564};
      check({.key_lengths = lengths}, hw::visible_if([](score_position at) { return at.key >= 560; }));
      if (rows == 1) {
        check({.causal = true, .query_start = 563, .window = {.left = 3}});
        check({.query_start = 563}, hw::window_mask{3, 0});
      }
    }
  }
}

TEMPLATE_TEST_CASE("a soft cap, masks and poison", "[divergences]", float, double) {
  for (const std::size_t rows : sizes{1, 20}) {
    const auto q = constant<TestType>({1, rows, 1, 1}, 3);
    const auto k = tensor_of<TestType>({1, 4, 1, 1}, {1, not_a_number, infinity, -infinity});
    const auto v = tensor_of<TestType>({1, 4, 1, 1}, {7, not_a_number, infinity, not_a_number});
    const auto first = tensor_of<bool>({4}, {1, 0, 0, 0});
    const auto check = [&](const hw::attention_options<TestType>& options, const auto&... rules) {
      const outputs<TestType> all(q, k, v, options, rules...);
      const std::vector<double> capped(rows, 2 * std::tanh(1.5));
      CHECK(within(all.out, std::vector<double>(rows, 7), 0) == "");
      CHECK(within(all.lse, capped, 2 * few_ulps<TestType>) == "");
      CHECK(within(all.maximum, capped, 2 * few_ulps<TestType>) == "");
      CHECK(within(all.weights.view().slice(3, 1, 3), std::vector<double>(3 * rows, 0), 0) == "");
      CHECK(within(hw::scaled_dot_product_attention(q, k, v, options, rules...), std::vector<double>(rows, 7), 0) ==
            "");
    };
    check({.softcap = 2, .visible = first});
    check({.softcap = 2}, hw::prefix_mask{1} && !hw::visible_if([](score_position at) { return at.key > 0; }));
    check({.softcap = 2}, [](score_position at) { return at.key == 0; });
    const std::vector<std::int64_t> one = {1};
    check({.softcap = 2, .key_lengths = one});
  }
}

TEMPLATE_TEST_CASE("sinks: beside nothing, of any size, infinite", "[divergences]", float, double) {
  const std::vector<TestType> two = {2};
  const auto hidden = constant<bool>({1}, 0);
  for (const std::size_t rows : sizes{1, 9}) {
    CAPTURE(rows);
    const auto q = constant<TestType>({1, rows, 1, 1}, 0);
    const auto k = constant<TestType>({1, 2, 1, 1}, 0);
    const auto v = tensor_of<TestType>({1, 2, 1, 1}, {4, 8});
    const auto poison = constant<TestType>({1, 2, 1, 1}, not_a_number);
    const auto each = [&](double x, std::size_t times = 1) { return std::vector<double>(rows * times, x); };

    const outputs<TestType> empty(q, poison, poison, {.visible = hidden, .sinks = two});
    CHECK(within(empty.out, each(0), 0) == "");
    CHECK(within(empty.lse, each(2), few_ulps<TestType>) == "");
    CHECK(within(empty.maximum, each(-infinity), 0) == "");
    CHECK(within(empty.entropy, each(0), 0) == "");
    CHECK(within(empty.weights, each(0, 2), 0) == "");
    const outputs<TestType> plus_one(q, poison, poison, {.visible = hidden, .softmax_plus_one = true});
    CHECK(within(plus_one.out, each(0), 0) == "");
    CHECK(within(plus_one.lse, each(0), 0) == "");

    // 1 / (2 + e^sink) for each key.
    for (const double sink : {-100.0, -1.0, 0.0, 2.0, 100.0}) {
      CAPTURE(sink);
      const std::vector<TestType> sinks = {static_cast<TestType>(sink)};
      const double weight = 1 / (2 + std::exp(sink));
      const outputs<TestType> all(q, k, v, {.sinks = sinks});
      CHECK(within(all.weights, each(weight, 2), weight * few_ulps<TestType> + 1e-43) == "");
      CHECK(within(all.out, each(12 * weight), 12 * weight * few_ulps<TestType> + 1e-42) == "");
      CHECK(within(all.lse, each(std::log(2 + std::exp(sink))), 100 * few_ulps<TestType>) == "");
      CHECK(within(all.maximum, each(0), 0) == "");
      CHECK(within(all.entropy, each(-2 * weight * std::log(weight)), 8 * few_ulps<TestType>) == "");
    }
    const std::vector<TestType> no_sink = {static_cast<TestType>(-infinity)};
    const outputs<TestType> without(q, k, v, {}), with(q, k, v, {.sinks = no_sink});
    CHECK(same_bits(with.out, without.out) == "");
    CHECK(same_bits(with.lse, without.lse) == "");
    CHECK(same_bits(with.weights, without.weights) == "");
    CHECK(same_bits(with.entropy, without.entropy) == "");
    // An infinite sink takes all, from keys as from none.
    const std::vector<TestType> endless = {static_cast<TestType>(infinity)};
    const double largest = static_cast<double>((std::numeric_limits<TestType>::max)());
    for (const bool empty_row : {false, true}) {
      hw::attention_options<TestType> options = {.sinks = endless};
      if (empty_row) {
        options.visible = hidden;
      }
      const outputs<TestType> all(q, k, v, options);
      CHECK(within(all.out, each(0), 0) == "");
      CHECK(within(all.weights, each(0, 2), 0) == "");
      CHECK(within(all.lse, each(largest), 0) == "");
      CHECK(within(all.maximum, each(empty_row ? -infinity : 0), 0) == "");
      CHECK(within(all.entropy, each(0), 0) == "");
      CHECK(within(hw::scaled_dot_product_attention(q, k, v, options), each(0), 0) == "");
    }
    const outputs<TestType> nothing(q, poison, poison, {.visible = hidden, .sinks = no_sink});
    CHECK(within(nothing.out, each(0), 0) == "");
    CHECK(within(nothing.lse, each(-infinity), 0) == "");
  }
}

TEMPLATE_TEST_CASE("a window of one key, and of more than there are", "[divergences]", float, double) {
  for (const std::size_t count : sizes{1, 6, 300}) {
    for (const std::size_t rows : sizes{1, 2, 20}) {
      CAPTURE(rows, count);
      const auto start = static_cast<std::int64_t>(count) - static_cast<std::int64_t>(rows);
      const auto itself = means_of_seen(start, rows, count, [](std::int64_t i, std::int64_t j) { return i == j; });
      CHECK(within(means<TestType>(rows, count, {.window = {0, 0}}), itself, 0) == "");
      CHECK(within(means<TestType>(rows, count, {.causal = true, .window = {.left = 0}}), itself, 0) == "");
      CHECK(within(means<TestType>(rows, count, {}, hw::window_mask{0, 0}), itself, 0) == "");
      const auto n = static_cast<std::int64_t>(count + rows);
      const auto plain = means<TestType>(rows, count, {});
      for (const std::int64_t wide : {n, n + 1, std::int64_t{1} << 62, INT64_MAX - 1, INT64_MAX}) {
        CHECK(same_bits(means<TestType>(rows, count, {.window = {wide, wide}}), plain) == "");
        CHECK(same_bits(means<TestType>(rows, count, {}, hw::window_mask{wide, wide}), plain) == "");
        CHECK(same_bits(means<TestType>(rows, count, {.causal = true, .window = {.left = wide}}),
                        means<TestType>(rows, count, {.causal = true})) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("scales of zero and below", "[divergences]", float, double) {
  for (const std::size_t rows : sizes{1, 9}) {
    const auto q = constant<TestType>({1, rows, 2, 2}, 1);
    const auto k = tensor_of<TestType>({1, 2, 1, 2}, {1, 0, 0, 0});
    const auto v = tensor_of<TestType>({1, 2, 1, 1}, {0, 1});
    const auto out = [&](const hw::attention_options<TestType>& options, std::size_t head) {
      return static_cast<double>(hw::scaled_dot_product_attention(q, k, v, options)(0, rows - 1, head, 0));
    };
    const double e = std::exp(1.0);
    CHECK(out({.scale = 0}, 1) == 0.5);
    CHECK(out({.scale = -0.0}, 1) == 0.5);
    CHECK(std::fabs(out({.scale = 1}, 0) - 1 / (1 + e)) < few_ulps<TestType>);
    CHECK(std::fabs(out({.scale = -1}, 0) - e / (1 + e)) < few_ulps<TestType>);
    const std::vector<TestType> scales = {-1, 0};
    CHECK(std::fabs(out({.head_scales = scales}, 0) - e / (1 + e)) < few_ulps<TestType>);
    CHECK(out({.head_scales = scales}, 1) == 0.5);
    // Keys that a scale of zero would turn into NaN are hidden first.
    const auto infinite = tensor_of<TestType>({1, 2, 1, 2}, {1, 2, infinity, not_a_number});
    const auto first = tensor_of<bool>({2}, {1, 0});
    CHECK(within(hw::scaled_dot_product_attention(q, infinite, v,
                                                  hw::attention_options<TestType>{.scale = 0, .visible = first}),
                 std::vector<double>(2 * rows, 0), 0) == "");
  }
}

TEMPLATE_TEST_CASE("widths that are odd, and differ between keys and values", "[divergences]", float, double) {
  random_source random(11);
  for (const std::size_t rows : sizes{2, 11}) {
    for (const std::size_t head_dim : sizes{1, 3, 17, 65}) {
      for (const std::size_t value_dim : sizes{1, 2, 33, 80}) {
        CAPTURE(rows, head_dim, value_dim);
        CHECK(attention_faults(random.tensor<TestType>({1, rows, 2, head_dim}),
                               random.tensor<TestType>({1, 21, 1, head_dim}),
                               random.tensor<TestType>({1, 21, 1, value_dim}), {.causal = true}) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("values that are the first columns of the keys", "[divergences]", float, double) {
  // Latent attention: one key of 512 + 64 numbers for all heads, whose first 512 are the value.
  random_source random(12);
  const auto k = random.tensor<TestType>({1, 270, 1, 576});
  const auto values = k.view().slice(3, 0, 512);
  const auto copy = support::packed(values);
  for (const std::size_t rows : sizes{1, 3}) {
    const auto q = random.tensor<TestType>({1, rows, 4, 576});
    const hw::attention_options<TestType> options = {.scale = 1 / std::sqrt(192.0), .causal = true};
    CAPTURE(rows);
    CHECK(same_bits(hw::scaled_dot_product_attention(q, k, values, options),
                    hw::scaled_dot_product_attention(q, k, copy, options)) == "");
    if (rows == 1) {
      CHECK(attention_faults(q, k, values, options) == "");
    }
  }
}

TEMPLATE_TEST_CASE("a query alone has the bits of its row in a prefill", "[divergences][bits]", float, double) {
  random_source random(13);
  const std::size_t count = 530;
  const auto q = random.tensor<TestType>({1, count, 2, 8});
  const auto k = random.tensor<TestType>({1, count, 1, 8});
  const auto v = random.tensor<TestType>({1, count, 1, 7});
  const std::vector<TestType> slopes = {TestType(0.25), TestType(0.0625)}, sinks = {1, -2}, scales = {1, -0.5};
  const auto distances = random.tensor<TestType>({2, 21});
  const auto rule = [](TestType s, score_position at) { return at.key % 7 == 2 ? -s : s; };
  const auto check = [&](hw::attention_options<TestType> options, const auto&... rules) {
    options.query_start = 0;
    hw::tensor<TestType, 3> lse({1, 2, count}), one({1, 2, 1});
    options.lse = lse;
    const auto whole = hw::scaled_dot_product_attention(q, k, v, options, rules...);
    for (const std::size_t i : sizes{0, 1, 255, 256, 257, 511, 512, 529}) {
      options.query_start = static_cast<std::int64_t>(i);
      options.lse = one;
      CAPTURE(i);
      CHECK(same_bits(hw::scaled_dot_product_attention(q.view().slice(1, i, 1), k, v, options, rules...),
                      whole.view().slice(1, i, 1)) == "");
      CHECK(same_bits(one, lse.view().slice(2, i, 1)) == "");
      const hw::attention_options<TestType> alone = options;
      hw::tensor<TestType, 3> entropy({1, 2, 1});
      options.entropy = entropy;
      CHECK(same_bits(hw::scaled_dot_product_attention(q.view().slice(1, i, 1), k, v, options, rules...),
                      whole.view().slice(1, i, 1)) == "");
      options = alone;
    }
  };
  check({.causal = true});
  check({.head_scales = scales, .distance_bias = distances, .causal = true, .window = {.left = 300}});
  check({.softcap = 4, .causal = true, .alibi_slopes = slopes, .sinks = sinks});
  check({.softmax_plus_one = true}, hw::window_mask{100, 0} || hw::global_mask{2}, rule);
  check({.causal = true, .dropout = {0.25, 9}}, hw::chunk_mask{300});
}

namespace {

struct on_threads {
  hw::index count;

  template <class Task>
  void operator()(hw::index tasks, const Task& task) const {
    std::vector<std::thread> threads;
    for (hw::index t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        for (hw::index i = tasks - 1 - t; i >= 0; i -= count) {
          task(i);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("any number of threads gives the same bits", "[divergences][bits]", float, double) {
  random_source random(14);
  const std::vector<std::int64_t> query_offsets = {0, 30, 31, 60}, key_offsets = {0, 50, 350, 620};
  for (const bool packed : {false, true}) {
    const std::size_t batch = packed ? 1 : 2, count = packed ? 620 : 530;
    const auto k = random.tensor<TestType>({batch, count, 2, 16});
    const auto v = random.tensor<TestType>({batch, count, 2, 16});
    for (const std::size_t rows : packed ? sizes{60} : sizes{1, 2, 40}) {
      const auto q = random.tensor<TestType>({batch, rows, 4, 16});
      const auto run = [&](const hw::executor_ref& executor) {
        hw::tensor<TestType, 3> lse({batch, 4, rows}), mass({batch, 4, count}), entropy({batch, 4, rows});
        hw::attention_options<TestType> options = {.dropout = {packed ? 0.25 : 0, 3}, .lse = lse, .executor = executor};
        if (packed) {
          options.query_offsets = query_offsets;
          options.key_offsets = key_offsets;
        }
        const auto rule = [](TestType s, score_position at) { return s - TestType(0.01) * TestType(at.key % 9); };
        auto results = flat(hw::scaled_dot_product_attention(q, k, v, options,
                                                             hw::window_mask{.left = 350} || hw::global_mask{4}, rule));
        const auto add = [&](const auto& x) { results.insert(results.end(), x.begin(), x.end()); };
        add(lse);
        options.entropy = entropy;
        options.key_mass = mass;
        add(hw::scaled_dot_product_attention(q, k, v, options, rule));
        add(entropy);
        add(mass);
        return results;
      };
      const auto alone = run({});
      for (const hw::index threads : {1, 2, 3, 7}) {
        CAPTURE(packed, rows, threads);
        const on_threads executor{threads};
        const auto together = run(executor);
        CHECK(same_bits(hw::tensor_view<const TestType, 1>(together, {together.size()}),
                        hw::tensor_view<const TestType, 1>(alone, {alone.size()})) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("infinite logits are no numbers, in their own rows only", "[divergences]", float, double) {
  // e^infinity / (e^infinity + e^infinity) has no value.
  for (const std::size_t rows : sizes{2, 30}) {
    CAPTURE(rows);
    auto q = constant<TestType>({1, rows, 1, 1}, 1);
    q(0, 0, 0, 0) = 0;
    const auto k = constant<TestType>({1, 300, 1, 1}, 0);
    const auto v = constant<TestType>({1, 300, 1, 1}, 2);
    const auto infinite = [](TestType s, score_position at) {
      return s > 0 || at.query == 1 ? std::numeric_limits<TestType>::infinity() : s;
    };
    const auto second = [](score_position at) { return at.key != 7; };
    const hw::attention_options<TestType> options = {.query_start = 0};
    const outputs<TestType> all(q, k, v, options, infinite, second);
    const auto out = hw::scaled_dot_product_attention(q, k, v, options, infinite, second);
    for (std::size_t i = 0; i < rows; ++i) {
      const double expected = i == 1 ? not_a_number : 2;
      CHECK(within(out.view().slice(1, i, 1), {expected}, 2 * few_ulps<TestType>) == "");
      CHECK(within(all.out.view().slice(1, i, 1), {expected}, 2 * few_ulps<TestType>) == "");
      CHECK(all.weights(0, 0, i, 7) == 0);
    }
    CHECK(within(all.maximum.view().slice(2, 0, 2), {0, infinity}, 0) == "");
    // One logit above all is no number either, and -infinity is a hidden key.
    const auto keys = tensor_of<TestType>({1, 2, 1, 1}, {0, -infinity});
    const auto values = tensor_of<TestType>({1, 2, 1, 1}, {3, not_a_number});
    CHECK(within(hw::scaled_dot_product_attention(q.view().slice(1, 1, rows - 1), keys, values),
                 std::vector<double>(rows - 1, 3), 0) == "");
  }
}

TEMPLATE_TEST_CASE("log-sum-exp is a natural logarithm", "[divergences]", float, double) {
  const std::vector<TestType> two = {2};
  for (const std::size_t count : sizes{1, 2, 16, 512}) {
    for (const std::size_t rows : sizes{1, 9}) {
      hw::tensor<TestType, 3> lse({1, 1, rows});
      const double sum = static_cast<double>(count);
      const double bound = (1 + std::log(sum)) * few_ulps<TestType>;
      means<TestType>(rows, count, {.lse = lse});
      CHECK(within(lse, std::vector<double>(rows, std::log(sum)), bound) == "");
      means<TestType>(rows, count, {.sinks = two, .lse = lse});
      CHECK(within(lse, std::vector<double>(rows, std::log(sum + std::exp(2.0))), 2 * bound) == "");
      // Dropout does not reach it.
      means<TestType>(rows, count, {.dropout = {0.9, 4}, .lse = lse});
      CHECK(within(lse, std::vector<double>(rows, std::log(sum)), bound) == "");
    }
  }
}
