// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>

#include "support/attention_check.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

/// \file
/// Options of attention whose effect can be said by hand, at their ends, and where they are wrong. Their combinations
/// are in composition.test.cpp.

namespace hw = headwave;
using support::attention_outputs;
using support::constant;
using support::error_of;
using support::lacks;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::tensor_of;
using support::within;

namespace {

constexpr double minus_infinity = -support::infinity;

/// Maximum, entropy, lse and key mass of one query of 1 against keys that are their scores.
template <class T>
struct scores_outputs {
  hw::tensor<T, 3> lse{{1, 1, 1}}, maximum{{1, 1, 1}}, entropy{{1, 1, 1}}, key_mass;

  explicit scores_outputs(const std::vector<double>& scores, hw::attention_options<T> options = {})
      : key_mass({1, 1, scores.size()}) {
    const auto k = tensor_of<T>({1, scores.size(), 1, 1}, scores);
    options.scale = 1;
    options.lse = lse.view();
    options.maximum = maximum.view();
    options.entropy = entropy.view();
    options.key_mass = key_mass.view();
    hw::scaled_dot_product_attention(constant<T>({1, 1, 1, 1}, 1), k, k, options);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("entropy, maximum and mass that can be said by hand", "[attention]", float, double) {
  using outputs = scores_outputs<TestType>;
  const double bound = 8 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  for (const std::size_t n : sizes{1, 2, 17, 300}) {
    const outputs equal(std::vector<double>(n, 3.0));
    CAPTURE(n);
    CHECK(within(equal.entropy, {std::log(static_cast<double>(n))}, bound * 2) == "");
    CHECK(within(equal.maximum, {3}, 0) == "");
    CHECK(within(equal.key_mass, std::vector<double>(n, 1.0 / static_cast<double>(n)), bound) == "");
  }
  // Weights 3/4 and 1/4.
  const outputs two({std::log(3.0), 0});
  CHECK(within(two.entropy, {std::log(4.0) - 0.75 * std::log(3.0)}, bound) == "");
  CHECK(within(two.maximum, {std::log(3.0)}, bound) == "");
  CHECK(within(two.key_mass, {0.75, 0.25}, bound) == "");
  // A sink of weight 1/2 leaves two keys of 1/4: 2 * (1/4) ln 4.
  const std::vector<TestType> sink{static_cast<TestType>(std::log(2.0))};
  CHECK(within(outputs({0, 0}, {.sinks = sink}).entropy, {0.5 * std::log(4.0)}, bound) == "");
  CHECK(within(outputs({0, 0}, {.softmax_plus_one = true}).entropy, {2.0 / 3 * std::log(3.0)}, bound) == "");
  CHECK(within(outputs({0, 0}, {.softmax_plus_one = true}).lse, {std::log(3.0)}, bound) == "");
  CHECK(within(outputs({-5, -7}, {.softmax_plus_one = true}).maximum, {-5}, 0) == "");
}

TEMPLATE_TEST_CASE("a row that sees nothing", "[attention]", float, double) {
  using outputs = scores_outputs<TestType>;
  const std::vector<std::int64_t> none{0};
  for (const auto& options :
       {hw::attention_options<TestType>{.key_lengths = none}, hw::attention_options<TestType>{.query_lengths = none}}) {
    const outputs nothing({1, 2}, options);
    CHECK(within(nothing.maximum, {minus_infinity}, 0) == "");
    CHECK(within(nothing.entropy, {0}, 0) == "");
    CHECK(within(nothing.lse, {minus_infinity}, 0) == "");
    CHECK(within(nothing.key_mass, {0, 0}, 0) == "");
    hw::attention_options<TestType> with_sink = options;
    with_sink.softmax_plus_one = true;
    const outputs sink({1, 2}, with_sink);
    CHECK(within(sink.maximum, {minus_infinity}, 0) == "");
    CHECK(within(sink.entropy, {0}, 0) == "");
    CHECK(within(sink.lse, {0}, 0) == "");
  }
}

TEMPLATE_TEST_CASE("entropy and maximum of scores of any size", "[attention]", float, double) {
  using outputs = scores_outputs<TestType>;
  const double huge = static_cast<double>(std::numeric_limits<TestType>::max()) * 0.9;
  for (const std::size_t first : sizes{0, 255, 256, 511}) {
    // One key that takes all, before or behind others, in one block or another.
    std::vector<double> scores(512, -huge);
    scores[first] = huge;
    CAPTURE(first);
    CHECK(within(outputs(scores).entropy, {0}, 0) == "");
    CHECK(within(outputs(scores).maximum, {huge}, huge * 1e-7) == "");
    scores.assign(512, 0.0);
    scores[first] = 2000;
    CHECK(within(outputs(scores).entropy, {0}, 0) == "");
  }
  CHECK(within(outputs({-huge, -huge}).entropy, {std::log(2.0)}, 1e-6) == "");
}

TEMPLATE_TEST_CASE("a visible NaN is the largest score, whatever else the tile sees", "[attention]", float, double) {
  random_source random(1000);
  auto k = random.tensor<TestType>({1, 300, 1, 4});
  const auto v = random.tensor<TestType>({1, 300, 1, 4});
  const auto q = random.tensor<TestType>({1, 20, 1, 4});
  for (const std::size_t bad : sizes{0, 3, 17, 40, 256, 299}) {
    auto keys = k;
    keys(0, bad, 0, 1) = static_cast<TestType>(support::not_a_number);
    // Rows see prefixes of different lengths: 30, 45, ... keys.
    const hw::attention_options<TestType> plain;
    const attention_outputs<TestType> outputs(q, keys, v, plain);
    const auto mask = hw::visible_if([](hw::score_position at) { return at.key < 15 * (at.query - 278); });
    hw::scaled_dot_product_attention_into(outputs.out.view(), q, keys, v,
                                          {.maximum = outputs.maximum.view(), .entropy = outputs.entropy.view()}, mask);
    for (std::size_t i = 0; i < 20; ++i) {
      const bool sees_it = bad < 15 * (i + 2);
      CAPTURE(bad, i);
      CHECK(std::isnan(outputs.maximum.view()(0, 0, i)) == sees_it);
      CHECK(std::isnan(outputs.entropy.view()(0, 0, i)) == sees_it);
    }
  }
}

TEMPLATE_TEST_CASE("a bias for each distance", "[attention]", float, double) {
  // Distances -2 .. 2; query 3 of 6 keys stands at 3, so its distances are -3 .. 2.
  const auto table = tensor_of<TestType>({1, 5}, {1, 2, 3, 4, 5});
  const auto bias = tensor_of<TestType>({6}, {1, 1, 2, 3, 4, 5});
  random_source random(1010);
  const auto q = random.tensor<TestType>({1, 1, 2, 4});
  const auto k = random.tensor<TestType>({1, 6, 2, 4});
  const hw::attention_options<TestType> by_distance = {.distance_bias = table.view(), .query_start = 3};
  const hw::attention_options<TestType> by_pair = {.bias = bias, .query_start = 3};
  CHECK(same_bits(hw::scaled_dot_product_attention(q, k, k, by_distance),
                  hw::scaled_dot_product_attention(q, k, k, by_pair)) == "");
  // Every key is as far away as can be.
  for (const std::int64_t start : {std::int64_t{-1000}, std::int64_t{1000}, std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max()}) {
    CAPTURE(start);
    const auto same = constant<TestType>({1}, start < 0 ? 5 : 1);
    CHECK(same_bits(hw::scaled_dot_product_attention(q, k, k, {.distance_bias = table.view(), .query_start = start}),
                    hw::scaled_dot_product_attention(q, k, k, {.bias = same, .query_start = start})) == "");
  }
}

TEMPLATE_TEST_CASE("options said in two ways", "[attention]", float, double) {
  random_source random(1020);
  for (const std::size_t queries : sizes{2, 30}) {
    const auto q = random.tensor<TestType>({2, queries, 4, 8});
    const auto k = random.tensor<TestType>({2, 50, 2, 8});
    const auto run = [&](const hw::attention_options<TestType>& options) {
      return hw::scaled_dot_product_attention(q, k, k, options);
    };
    const std::vector<TestType> scales(4, TestType(0.5)), zeros(4), slopes{1, 2, 3, 4}, twice{1, 2, 3, 4, 1, 2, 3, 4};
    const std::vector<std::int64_t> all(2, static_cast<std::int64_t>(queries));
    CAPTURE(queries);
    CHECK(same_bits(run({.head_scales = scales}), run({.scale = 0.5})) == "");
    CHECK(same_bits(run({.softmax_plus_one = true}), run({.sinks = zeros})) == "");
    CHECK(same_bits(run({.alibi_slopes = twice}), run({.alibi_slopes = slopes})) == "");
    CHECK(same_bits(run({.query_lengths = all}), run({})) == "");
  }
}

TEST_CASE("options that are wrong are errors, before anything is written", "[attention][errors]") {
  using options = hw::attention_options<float>;
  const hw::tensor<float, 4> q({2, 3, 4, 8});
  const hw::tensor<float, 4> k({2, 5, 2, 8});
  support::window<float, 4> out({2, 3, 4, 8});
  const auto error = [&](const options& wrong) {
    const std::string text = error_of([&] { hw::scaled_dot_product_attention_into(out.view(), q, k, k, wrong); });
    return text + (out.untouched() ? "" : " and out is written");
  };
  const auto fails = [&](const options& wrong, const std::vector<std::string>& parts) {
    const std::string text = error(wrong);
    return out.untouched() ? lacks(text, parts) : text;
  };
  const std::vector<float> three(3), four(4), sixteen(16);
  CHECK(fails({.head_scales = three}, {"head_scales", "each head", "3", "4"}) == "");
  CHECK(fails({.scale = 1, .head_scales = four}, {"scale and head_scales"}) == "");
  CHECK(fails({.sinks = four, .softmax_plus_one = true}, {"sinks and softmax_plus_one"}) == "");
  CHECK(fails({.alibi_slopes = three}, {"alibi_slopes", "sample and head", "3"}) == "");
  CHECK(fails({.alibi_slopes = sixteen}, {"alibi_slopes", "16"}) == "");
  const hw::tensor<float, 2> even({4, 6}), heads({3, 5});
  CHECK(fails({.distance_bias = even.view()}, {"distance_bias", "odd", "6"}) == "");
  CHECK(fails({.distance_bias = heads.view()}, {"distance_bias", "[3, 5]"}) == "");
  const std::vector<std::int64_t> one{1}, negative{0, -1}, many{4, 0};
  CHECK(fails({.query_lengths = one}, {"query_lengths", "each sample"}) == "");
  CHECK(fails({.query_lengths = negative}, {"query_lengths", "between 0 and 3", "-1"}) == "");
  CHECK(fails({.query_lengths = many}, {"query_lengths", "between 0 and 3", "4"}) == "");
  const std::vector<std::int64_t> past{0, 3}, below{-1}, repeated{1, 0, 1};
  hw::tensor<float, 4> two_rows({2, 4, 2, 5}), one_row({2, 4, 1, 5}), three_rows({2, 4, 3, 5});
  CHECK(fails({.weights = two_rows.view(), .weight_rows = past}, {"weight_rows", "3"}) == "");
  CHECK(fails({.weights = one_row.view(), .weight_rows = below}, {"weight_rows", "-1"}) == "");
  CHECK(fails({.weights = three_rows.view(), .weight_rows = repeated}, {"weight_rows", "repeat", "1"}) == "");
  CHECK(fails({.weights = one_row.view(), .weight_rows = repeated}, {"weights must have the shape [2, 4, 3, 5]"}) ==
        "");
  hw::tensor<float, 3> rows({2, 3, 4});
  CHECK(fails({.maximum = rows.view()}, {"maximum must have the shape [2, 4, 3]"}) == "");
  CHECK(fails({.entropy = rows.view()}, {"entropy must have the shape [2, 4, 3]"}) == "");
  CHECK(fails({.key_mass = rows.view()}, {"key_mass must have the shape [2, 4, 5]"}) == "");
}
