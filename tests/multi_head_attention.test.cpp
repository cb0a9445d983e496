// SPDX-License-Identifier: MIT
#include <headwave/multi_head_attention.hpp>

#include "support/catch.hpp"
#include "support/layer.hpp"
#include "support/oracle_layer.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace hw = headwave;
using support::constant;
using support::error_of;
using support::lacks;
using support::layer_parameters;
using support::random_source;
using support::same_bits;
using support::window;
using support::within;

namespace {

/// Runs a layer with every output asked for and compares with the oracle. Empty if all is well.
template <class T>
std::string layer_faults(const layer_parameters<T>& p, const hw::tensor<T, 3>& query, const hw::tensor<T, 3>& key,
                         const hw::tensor<T, 3>& value, hw::attention_options<T> options) {
  const hw::attention_options<T> bare = options;
  const auto expected = oracle::multi_head_attention<T>(p.options, p.weights(), oracle::exact(query),
                                                        oracle::exact(key), oracle::exact(value), bare);
  const auto layer = p.layer();
  window<T, 3> out(query.extents(), {.last_stride = 2});
  window<T, 4> weights(expected.weights.value.extents());
  window<T, 3> lse(expected.lse.value.extents());
  window<T, 3> maximum(expected.lse.value.extents());
  window<T, 3> entropy(expected.lse.value.extents());
  window<T, 3> mean_weights(expected.mean_weights.value.extents());
  window<T, 3> key_mass(expected.key_mass.value.extents());
  options.lse = lse.view();
  options.weights = weights.view();
  options.maximum = maximum.view();
  options.entropy = entropy.view();
  options.mean_weights = mean_weights.view();
  options.key_mass = key_mass.view();
  layer.apply_into(out.view(), query, key, value, options);
  std::string text;
  const auto note = [&](const char* name, const std::string& fault) {
    text += fault.empty() ? fault : std::string(name) + ": " + fault + "\n";
  };
  const oracle::estimate<3> expected_out = oracle::reshaped<3>(expected.out, query.extents());
  note("out", within(out.view(), expected_out));
  note("weights", within(weights.view(), expected.weights));
  note("lse", within(lse.view(), expected.lse));
  note("maximum", within(maximum.view(), expected.maximum));
  note("entropy", within(entropy.view(), expected.entropy));
  note("mean_weights", within(mean_weights.view(), expected.mean_weights));
  note("key_mass", within(key_mass.view(), expected.key_mass));
  note("canaries", out.intact() && weights.intact() && lse.intact() && maximum.intact() && entropy.intact() &&
                           mean_weights.intact() && key_mass.intact()
                       ? ""
                       : "overwritten");
  note("out alone", same_bits(layer(query, key, value, bare), out.view()));
  return text;
}

}  // namespace

TEMPLATE_TEST_CASE("layers of random shapes and options", "[multi_head_attention][random]", float, double) {
  random_source random(1);
  std::string failures;
  for (int n = 0; n < support::cases(120); ++n) {
    const std::size_t kv_heads = random.integer(1, 3);
    hw::multi_head_attention_options o;
    o.heads = kv_heads * random.integer(1, 3);
    o.kv_heads = random.chance(0.5) ? kv_heads : 0;
    // Now and then past one block of a projection's sums, and past one block of keys.
    o.d_model = o.heads * (random.chance(0.07) ? random.integer(20, 40) : random.integer(1, 9));
    o.head_dim = random.chance(0.3) ? random.integer(1, 12) : 0;
    o.key_dim = random.chance(0.3) ? random.integer(1, 20) : 0;
    o.value_dim = random.chance(0.3) ? random.integer(1, 20) : 0;
    o.bias = random.chance(0.7);
    o.add_bias_kv = random.chance(0.3);
    o.add_zero_attention = random.chance(0.3);
    const layer_parameters<TestType> p(o, random);
    const std::size_t batch = random.integer(1, 3);
    const std::size_t query_length = random.integer(1, 9);
    const std::size_t key_length = random.chance(0.1) ? random.integer(250, 600) : random.integer(0, 30);
    const auto query = random.tensor<TestType>({batch, query_length, o.d_model});
    const auto key = random.tensor<TestType>({batch, key_length, o.key_dim ? o.key_dim : o.d_model});
    const auto value = random.tensor<TestType>({batch, key_length, o.value_dim ? o.value_dim : o.d_model});

    hw::attention_options<TestType> options;
    const auto visible = random.mask({batch, o.heads, query_length, key_length}, 0.7);
    const auto bias = random.tensor<TestType>({query_length, key_length});
    std::vector<std::int64_t> lengths(batch);
    std::generate(lengths.begin(), lengths.end(),
                  [&] { return static_cast<std::int64_t>(random.integer(0, key_length)); });
    std::vector<TestType> slopes(o.heads);
    std::generate(slopes.begin(), slopes.end(), [&] { return static_cast<TestType>(random.uniform(0.01, 0.5)); });
    std::vector<TestType> sinks(o.heads);
    std::generate(sinks.begin(), sinks.end(), [&] { return static_cast<TestType>(random.uniform(-3, 3)); });
    options.causal = random.chance(0.3);
    if (random.chance(0.3)) {
      options.softcap = random.uniform(0.5, 10);
    }
    if (random.chance(0.3)) {
      options.alibi_slopes = slopes;
    }
    if (random.chance(0.3)) {
      options.sinks = sinks;
    } else {
      options.softmax_plus_one = random.chance(0.2);
    }
    const auto distance_bias = random.tensor<TestType>({o.heads, 9});
    if (random.chance(0.3)) {
      options.distance_bias = distance_bias.view();
    }
    if (random.chance(0.2)) {
      options.dropout = {random.uniform(0, 0.9), random.bits()};
    }
    if (key_length > 0 && random.chance(0.3)) {
      options.visible = visible;
    }
    if (key_length > 0 && random.chance(0.3)) {
      options.bias = bias;
    }
    if (random.chance(0.3)) {
      options.key_lengths = lengths;
    }
    if (random.chance(0.3)) {
      options.window = {.left = static_cast<std::int64_t>(random.integer(0, key_length)), .right = 2};
    }
    if (random.chance(0.3)) {
      options.query_start = static_cast<std::int64_t>(random.integer(0, key_length));
    }
    if (random.chance(0.3)) {
      options.scale = random.uniform(0, 1);
    }
    const std::string faults = layer_faults(p, query, key, value, options);
    if (!faults.empty()) {
      failures += "layer " + std::to_string(n) + ", d_model " + std::to_string(o.d_model) + ", heads " +
                  std::to_string(o.heads) + "/" + std::to_string(o.kv_heads) + ", head_dim " +
                  std::to_string(o.head_dim) + ", appended " + std::to_string(o.add_bias_kv) +
                  std::to_string(o.add_zero_attention) + ", lengths " + std::to_string(query_length) + " " +
                  std::to_string(key_length) + "\n" + faults;
    }
  }
  CHECK(failures.substr(0, 3000) == "");
}

TEMPLATE_TEST_CASE("a layer of usual size", "[multi_head_attention]", float, double) {
  random_source random(2);
  const layer_parameters<TestType> p({.d_model = 192, .heads = 6}, random);
  const auto x = random.tensor<TestType>({2, 130, 192});
  CHECK(layer_faults(p, x, x, x, {.causal = true}) == "");
}

TEMPLATE_TEST_CASE("self-attention is attention to the same input", "[multi_head_attention]", float, double) {
  random_source random(3);
  const layer_parameters<TestType> p({.d_model = 24, .heads = 3}, random);
  const auto layer = p.layer();
  const auto x = random.tensor<TestType>({2, 7, 24});
  const auto out = layer(x);
  CHECK(same_bits(layer(x, x, x), out) == "");
  hw::tensor<TestType, 3> into({2, 7, 24});
  layer.apply_into(into, x);
  CHECK(same_bits(into, out) == "");
  hw::tensor<TestType, 3> in_place = x;
  layer.apply_into(in_place, in_place);
  CHECK(same_bits(in_place, out) == "");
  const window<TestType, 3> strided(x, {.last_stride = -2, .gap = 4, .reversed = true});
  CHECK(same_bits(layer(strided.view()), out) == "");
}

TEMPLATE_TEST_CASE("packed and separate input projections", "[multi_head_attention]", float, double) {
  random_source random(4);
  const layer_parameters<TestType> p({.d_model = 24, .heads = 4, .kv_heads = 2, .head_dim = 5}, random);
  const auto x = random.tensor<TestType>({2, 7, 24});
  hw::multi_head_attention<TestType> separate(p.options);
  const hw::tensor_view<const TestType, 2> packed = p.in_proj_weight;
  separate.set_weights({.q_proj_weight = packed.slice(0, 0, 20),
                        .k_proj_weight = packed.slice(0, 20, 10),
                        .v_proj_weight = packed.slice(0, 30, 10),
                        .in_proj_bias = p.in_proj_bias,
                        .out_proj_weight = p.out_proj_weight,
                        .out_proj_bias = p.out_proj_bias});
  CHECK(same_bits(separate(x), p.layer()(x)) == "");
}

TEMPLATE_TEST_CASE("Xavier initialisation", "[multi_head_attention]", float, double) {
  random_source random(5);
  const auto x = random.tensor<TestType>({1, 3, 64});
  const auto run = [&](std::uint64_t seed) {
    hw::multi_head_attention<TestType> layer({.d_model = 64, .heads = 4});
    layer.init_xavier(seed);
    return layer(x);
  };
  CHECK(same_bits(run(42), run(42)) == "");
  CHECK(same_bits(run(42), run(43)) != "");
  const auto out = run(42);
  CHECK(std::all_of(out.begin(), out.end(), [](TestType y) { return std::isfinite(y) && std::fabs(y) < 10; }));
}

TEMPLATE_TEST_CASE("padding of any content leaves the rest as it is", "[multi_head_attention]", float, double) {
  random_source random(6);
  const layer_parameters<TestType> p({.d_model = 24, .heads = 3}, random);
  const auto layer = p.layer();
  const auto query = random.tensor<TestType>({2, 4, 24});
  auto key = random.tensor<TestType>({2, 70, 24});
  const std::vector<std::int64_t> lengths = {9, 66};
  const auto clean = layer(query, key, key, {.key_lengths = lengths});
  for (std::size_t b = 0; b < 2; ++b) {
    for (std::size_t j = static_cast<std::size_t>(lengths[b]); j < 70; ++j) {
      for (std::size_t i = 0; i < 24; ++i) {
        key(b, j, i) = std::numeric_limits<TestType>::quiet_NaN();
      }
    }
  }
  CHECK(same_bits(layer(query, key, key, {.key_lengths = lengths}), clean) == "");
}

TEMPLATE_TEST_CASE("extents of zero in the layer", "[multi_head_attention]", float, double) {
  random_source random(7);
  const layer_parameters<TestType> p({.d_model = 8, .heads = 2}, random);
  const auto layer = p.layer();
  CHECK(layer(hw::tensor<TestType, 3>({2, 0, 8})).extents() == support::extents<3>{2, 0, 8});
  CHECK(layer(hw::tensor<TestType, 3>({0, 3, 8})).extents() == support::extents<3>{0, 3, 8});
  // Without keys every head gives zeros, and the output projection its bias.
  const hw::tensor<TestType, 3> no_keys({1, 0, 8});
  const auto out = layer(constant<TestType>({1, 2, 8}, 1), no_keys, no_keys);
  CHECK(same_bits(out.view().slice(1, 0, 1), p.out_proj_bias.view().reshaped({1, 1, 8})) == "");
  CHECK(same_bits(out.view().slice(1, 1, 1), p.out_proj_bias.view().reshaped({1, 1, 8})) == "");
}

TEMPLATE_TEST_CASE("layer: errors name the function and the shapes", "[multi_head_attention][errors]", float, double) {
  using layer_type = hw::multi_head_attention<TestType>;
  const std::string name = "multi_head_attention";
  CHECK(lacks(error_of([] { layer_type({.d_model = 10, .heads = 3}); }), {name, "10", "3"}) == "");
  CHECK(lacks(error_of([] { layer_type({.d_model = 10, .heads = 0}); }), {name, "heads"}) == "");
  CHECK(lacks(error_of([] { layer_type({.d_model = 0, .heads = 2}); }), {name, "d_model"}) == "");
  CHECK(lacks(error_of([] { layer_type({.d_model = 12, .heads = 6, .kv_heads = 4}); }), {name, "6", "4"}) == "");

  random_source random(8);
  const layer_parameters<TestType> p({.d_model = 8, .heads = 2}, random);
  const auto wrong_matrix = constant<TestType>({7, 8}, 1);
  const auto wrong_vector = constant<TestType>({7}, 1);
  const auto refuses = [&](auto change, const std::vector<std::string>& parts) {
    layer_type layer(p.options);
    hw::multi_head_attention_weights<TestType> weights = p.weights();
    change(weights);
    CHECK(lacks(error_of([&] { layer.set_weights(weights); }), parts) == "");
  };
  refuses([&](auto& w) { w.in_proj_weight = wrong_matrix; }, {name, "in_proj_weight", "[7, 8]", "[24, 8]"});
  refuses([&](auto& w) { w.in_proj_weight = {}; }, {name, "weight"});
  refuses([&](auto& w) { w.in_proj_bias = wrong_vector; }, {name, "in_proj_bias", "[7]", "[24]"});
  refuses([&](auto& w) { w.out_proj_weight = wrong_matrix; }, {name, "out_proj_weight", "[7, 8]", "[8, 8]"});
  refuses([&](auto& w) { w.out_proj_bias = wrong_vector; }, {name, "out_proj_bias", "[7]", "[8]"});

  const layer_type layer = p.layer();
  window<TestType, 3> out({2, 5, 8});
  const auto check = [&](const auto& query, const auto& key, const auto& value, std::vector<std::string> parts) {
    parts.push_back(name);
    CHECK(lacks(error_of([&] { layer.apply_into(out.view(), query, key, value); }), parts) == "");
    CHECK(out.untouched());
  };
  const auto filled = [](const std::size_t(&shape)[3]) { return constant<TestType>(shape, 1); };
  const auto query = filled({2, 5, 8});
  const auto key = filled({2, 6, 8});
  check(filled({2, 5, 9}), key, key, {"9", "8", "[2, 5, 9]"});
  check(query, filled({2, 6, 7}), key, {"7", "8", "[2, 6, 7]"});
  check(query, key, filled({2, 6, 7}), {"7", "8", "[2, 6, 7]"});
  check(query, key, filled({2, 4, 8}), {"[2, 6, 8]", "[2, 4, 8]"});
  check(filled({1, 5, 8}), key, key, {"[1, 5, 8]", "[2, 6, 8]"});
  check(filled({2, 4, 8}), key, key, {"[2, 4, 8]", "[2, 5, 8]"});
}
