// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/linear.hpp>
#include <headwave/multi_head_attention.hpp>
#include <headwave/positional_encoding.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/layer.hpp"
#include "support/random.hpp"

#include <array>
#include <limits>
#include <thread>
#include <vector>

/// \file
/// Faults that people have met in other implementations of the multi-head layer.

namespace hw = headwave;
using support::constant;
using support::error_of;
using support::layer_parameters;
using support::random_source;
using support::same_bits;
using support::tensor_of;
using support::within;

namespace {

template <class T>
constexpr double few_ulps = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());

/// [count * n, n]: the identity, count times over.
template <class T>
hw::tensor<T, 2> identity(std::size_t n, std::size_t count = 1) {
  hw::tensor<T, 2> result({count * n, n});
  for (std::size_t row = 0; row < count * n; ++row) {
    result(row, row % n) = 1;
  }
  return result;
}

/// A layer whose projections do nothing.
template <class T>
hw::multi_head_attention<T> identity_layer(hw::multi_head_attention_options options) {
  options.bias = false;
  hw::multi_head_attention<T> layer(options);
  const auto in = identity<T>(options.d_model, 3);
  const auto out = identity<T>(options.d_model);
  layer.set_weights({.in_proj_weight = in, .out_proj_weight = out});
  return layer;
}

/// What the layer does, by hand: three projections, heads by reshape, attention, heads joined, output projection.
template <class T>
hw::tensor<T, 3> by_hand(const layer_parameters<T>& p, const hw::tensor<T, 3>& query, const hw::tensor<T, 3>& key,
                         const hw::tensor<T, 3>& value) {
  const std::size_t d_model = p.options.d_model;
  const std::size_t heads = p.options.heads;
  const auto project = [&](const hw::tensor<T, 3>& x, hw::tensor_view<const T, 2> weight, std::size_t part) {
    return hw::linear<T>(weight, p.in_proj_bias.view().slice(0, part * d_model, d_model))(x);
  };
  const auto split = [&](const hw::tensor<T, 3>& x) {
    return x.view().reshaped({x.extent(0), x.extent(1), heads, d_model / heads});
  };
  const auto q = project(query, p.q_proj_weight, 0);
  const auto k = project(key, p.k_proj_weight, 1);
  const auto v = project(value, p.v_proj_weight, 2);
  const auto attended = hw::scaled_dot_product_attention(split(q), split(k), split(v));
  const auto joined = attended.view().reshaped({query.extent(0), query.extent(1), d_model});
  return hw::linear<T>(p.out_proj_weight, p.out_proj_bias)(joined);
}

}  // namespace

TEMPLATE_TEST_CASE("heads are split from the channels and joined again", "[B17]", float, double) {
  const auto layer = identity_layer<TestType>({.d_model = 4, .heads = 2});
  const auto x = tensor_of<TestType>({1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(within(layer(constant<TestType>({1, 2, 4}, 0), x, x), {3, 4, 5, 6, 3, 4, 5, 6}, 0) == "");

  // Every extent differs, so no wrong axis order has the right shape.
  random_source random(17);
  const auto wide = identity_layer<TestType>({.d_model = 35, .heads = 5});
  const auto y = random.tensor<TestType>({2, 3, 35});
  const auto split = y.view().reshaped({2, 3, 5, 7});
  const auto expected = hw::scaled_dot_product_attention(split, split, split);
  CHECK(within(wide(y), expected.view().reshaped({2, 3, 35}), few_ulps<TestType>) == "");
}

TEMPLATE_TEST_CASE("the layer scales by its head width", "[B18]", float, double) {
  const auto layer = identity_layer<TestType>({.d_model = 8, .heads = 2});
  const auto query = tensor_of<TestType>({1, 1, 8}, {1, 1, 1, 1, 0, 0, 0, 0});
  const auto key = tensor_of<TestType>({1, 2, 8}, {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  hw::tensor<TestType, 4> weights({1, 2, 1, 2});
  layer(query, key, key, {.weights = weights});
  CHECK(within(weights, {0.880797077978, 0.119202922022, 0.5, 0.5}, 1e-11 + few_ulps<TestType>) == "");
  layer(query, key, key, {.scale = 0.25, .weights = weights});
  CHECK(within(weights, {0.73105857863, 0.26894142137, 0.5, 0.5}, 1e-11 + few_ulps<TestType>) == "");
}

TEMPLATE_TEST_CASE("heads that do not divide the width", "[B25]", float, double) {
  CHECK(error_of([] { hw::multi_head_attention<TestType>({.d_model = 10, .heads = 3}); }) != "");
  CHECK(error_of([] { hw::multi_head_attention<TestType>({.d_model = 10, .heads = 0}); }) != "");
  CHECK(error_of([] { hw::multi_head_attention<TestType>({.d_model = 0, .heads = 2}); }) != "");
  CHECK(error_of([] { hw::multi_head_attention<TestType>({.d_model = 12, .heads = 6, .kv_heads = 4}); }) != "");
}

TEMPLATE_TEST_CASE("no bias is a bias of zero", "[B26]", float, double) {
  random_source random(26);
  const layer_parameters<TestType> p({.d_model = 4, .heads = 2}, random);
  const auto x = random.tensor<TestType>({2, 5, 4});
  hw::multi_head_attention<TestType> without({.d_model = 4, .heads = 2, .bias = false});
  without.set_weights({.in_proj_weight = p.in_proj_weight, .out_proj_weight = p.out_proj_weight});
  hw::multi_head_attention<TestType> with({.d_model = 4, .heads = 2});
  const hw::tensor<TestType, 1> in_zeros({12});
  const hw::tensor<TestType, 1> out_zeros({4});
  with.set_weights({.in_proj_weight = p.in_proj_weight,
                    .in_proj_bias = in_zeros,
                    .out_proj_weight = p.out_proj_weight,
                    .out_proj_bias = out_zeros});
  CHECK(same_bits(without(x), with(x)) == "");
}

TEMPLATE_TEST_CASE("keys and values of other widths, three different inputs", "[B26]", float, double) {
  random_source random(126);
  const layer_parameters<TestType> p({.d_model = 4, .heads = 2, .key_dim = 3, .value_dim = 5}, random);
  const auto query = random.tensor<TestType>({2, 6, 4});
  const auto key = random.tensor<TestType>({2, 7, 3});
  const auto value = random.tensor<TestType>({2, 7, 5});
  CHECK(within(p.layer()(query, key, value), by_hand(p, query, key, value), 8 * few_ulps<TestType>) == "");
}

TEMPLATE_TEST_CASE("the appended zero key is seen by every query", "[B26]", float, double) {
  const auto layer = identity_layer<TestType>({.d_model = 1, .heads = 1, .add_zero_attention = true});
  const auto one = constant<TestType>({1, 1, 1}, 1);
  hw::tensor<TestType, 4> weights({1, 1, 1, 2});
  const std::vector<double> seen = {0.73105857863, 0.26894142137};
  CHECK(within(layer(one, {.scale = 1, .weights = weights}), {0.73105857863}, 1e-11 + few_ulps<TestType>) == "");
  CHECK(within(weights, seen, 1e-11 + few_ulps<TestType>) == "");
  layer(one, {.scale = 1, .causal = true, .weights = weights});
  CHECK(within(weights, seen, 1e-11 + few_ulps<TestType>) == "");

  const auto hidden = constant<bool>({1}, 0);
  CHECK(within(layer(one, {.scale = 1, .visible = hidden, .weights = weights}), {0}, 0) == "");
  CHECK(within(weights, {0, 1}, 0) == "");
  const std::vector<std::int64_t> none = {0};
  CHECK(within(layer(one, {.scale = 1, .key_lengths = none, .weights = weights}), {0}, 0) == "");
  CHECK(within(weights, {0, 1}, 0) == "");
}

TEMPLATE_TEST_CASE("one layer and one table serve many threads", "[E07]", float, double) {
  hw::multi_head_attention<TestType> layer({.d_model = 24, .heads = 3});
  layer.init_xavier(7);
  const auto table = hw::sinusoidal_encoding<TestType>(50, 24);
  random_source random(7);
  const auto x = random.tensor<TestType>({2, 50, 24});
  const auto work = [&] {
    auto own = x;
    hw::add_sinusoidal_encoding(own);
    hw::tensor<TestType, 3> result = layer(own, {.causal = true});
    // Of another length each time round, as caches are built by.
    for (std::size_t length = 1; length < 50; length += 9) {
      const auto part = hw::sinusoidal_encoding<TestType>(length, 24);
      result(0, 0, 0) += same_bits(part, table.view().slice(0, 0, length)) == "" ? TestType(0) : TestType(1);
    }
    return result;
  };
  const auto expected = work();
  std::array<hw::tensor<TestType, 3>, 8> results;
  std::array<std::thread, 8> threads;
  for (std::size_t t = 0; t < threads.size(); ++t) {
    threads[t] = std::thread([&, t] { results[t] = work(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& result : results) {
    CHECK(same_bits(result, expected) == "");
  }
}
