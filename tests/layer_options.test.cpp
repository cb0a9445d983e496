// SPDX-License-Identifier: MIT
#include <headwave/multi_head_attention.hpp>

#include "support/catch.hpp"
#include "support/layer.hpp"
#include "support/oracle_layer.hpp"
#include "support/random.hpp"
#include "support/threads.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace hw = headwave;
using support::error_of;
using support::lacks;
using support::layer_parameters;
using support::random_source;
using support::same_bits;
using support::within;

namespace {

hw::multi_head_attention_options random_options(random_source& random) {
  hw::multi_head_attention_options o;
  o.kv_heads = random.integer(1, 3);
  o.heads = o.kv_heads * random.integer(1, 3);
  o.head_dim = 2 * random.integer(1, 12);
  o.d_model = random.integer(3, 40);
  o.bias = random.chance(0.6);
  o.add_bias_kv = random.chance(0.2);
  o.add_zero_attention = random.chance(0.2);
  o.qk_norm = random.chance(0.5);
  o.norm_epsilon = random.chance(0.5) ? 1e-6 : 0.1;
  o.gate = random.chance(0.4)   ? hw::output_gate::channels
           : random.chance(0.6) ? hw::output_gate::heads
                                : hw::output_gate::none;
  if (random.chance(0.6)) {
    hw::rotary_options rotary{.base = random.uniform(2, 20000)};
    rotary.layout = random.chance(0.5) ? hw::channel_layout::halves : hw::channel_layout::interleaved;
    if (random.chance(0.4)) {
      rotary.rotary_dim = 2 * random.integer(1, o.head_dim / 2);
      rotary.first_channel = random.integer(0, o.head_dim - rotary.rotary_dim);
    }
    o.rotary = rotary;
  }
  return o;
}

std::string text_of_options(const hw::multi_head_attention_options& o) {
  return "heads " + std::to_string(o.heads) + "/" + std::to_string(o.kv_heads) + " head_dim " +
         std::to_string(o.head_dim) + " d_model " + std::to_string(o.d_model) + " norm " + std::to_string(o.qk_norm) +
         " gate " + std::to_string(static_cast<int>(o.gate)) + " rotary " +
         (o.rotary ? std::to_string(o.rotary->rotary_dim) : "none") + "\n";
}

}  // namespace

TEMPLATE_TEST_CASE("normalized, rotated and gated layers against the whole computation", "[layer_options][random]",
                   float, double) {
  random_source random(1);
  std::string failures;
  for (int n = 0; n < support::cases(120); ++n) {
    const hw::multi_head_attention_options o = random_options(random);
    const layer_parameters<TestType> p(o, random);
    const std::size_t batch = random.integer(1, 2), length = random.integer(1, 20);
    const bool crosses = random.chance(0.4);
    const auto x = random.tensor<TestType>({batch, length, o.d_model});
    const auto other = random.tensor<TestType>({batch, crosses ? random.integer(1, 30) : length, o.d_model});
    const auto& key = crosses ? other : x;
    std::vector<std::int64_t> starts;
    hw::attention_options<TestType> options{.causal = random.chance(0.5)};
    if (random.chance(0.3)) {
      options.query_start = static_cast<std::int64_t>(random.integer(0, 40)) - 10;
    } else if (random.chance(0.3)) {
      for (std::size_t b = 0; b < batch; ++b) {
        starts.push_back(static_cast<std::int64_t>(random.integer(0, 30)));
      }
      options.query_starts = starts;
    }
    const auto expected = oracle::multi_head_attention<TestType>(p.options, p.weights(), oracle::exact(x),
                                                                 oracle::exact(key), oracle::exact(key), options);
    const auto layer = p.layer();
    const auto out = layer(x, key, key, options);
    std::string faults = within(out, oracle::reshaped<3>(expected.out, x.extents()));
    if (!crosses) {
      faults += same_bits(layer(x, options), out);
    }
    failures += faults.empty() ? faults : text_of_options(o) + faults;
  }
  CHECK(failures.substr(0, 2000) == "");
}

TEMPLATE_TEST_CASE("a layer with a cache has the bits of the layer on everything", "[layer_options][kv_cache]", float,
                   double) {
  random_source random(2);
  std::string failures;
  for (int n = 0; n < 30; ++n) {
    const hw::multi_head_attention_options o = random_options(random);
    const layer_parameters<TestType> p(o, random);
    const auto layer = p.layer();
    const std::size_t batch = random.integer(1, 3), length = n % 5 == 0 ? 300 : random.integer(1, 40);
    const auto x = random.tensor<TestType>({batch, length, o.d_model});
    const auto expected = layer(x, {.causal = true});
    auto cache = layer.make_cache(batch, length);
    for (std::size_t at = 0; at < length;) {
      const std::size_t rest = length - at;
      const std::size_t step = random.chance(0.6) ? 1 : random.integer(1, rest < 150 ? rest : 150);
      const auto out = layer(x.view().slice(1, at, step), cache, {.causal = true});
      failures += same_bits(out, expected.view().slice(1, at, step));
      at += step;
    }
    failures += failures.empty() ? "" : text_of_options(o);
  }
  CHECK(failures.substr(0, 2000) == "");
}

TEST_CASE("samples of a cache grow by as many tokens as they have", "[layer_options][kv_cache]") {
  random_source random(3);
  const hw::multi_head_attention_options o{.d_model = 12, .heads = 2, .qk_norm = true, .rotary = hw::rotary_options{}};
  const layer_parameters<float> p(o, random);
  const auto layer = p.layer();
  auto cache = layer.make_cache<hw::bfloat16>(2, 9);
  const auto x = random.tensor<float>({2, 5, 12});
  const std::vector<std::int64_t> counts{5, 2};
  const auto first = layer(x, cache, {.causal = true, .query_lengths = counts});
  CHECK(cache.lengths()[0] == 5);
  CHECK(cache.lengths()[1] == 2);
  const auto y = random.tensor<float>({2, 1, 12});
  const auto second = layer(y, cache);
  for (std::size_t b = 0; b < 2; ++b) {
    auto own = layer.make_cache<hw::bfloat16>(1, 9);
    const auto n = static_cast<std::size_t>(counts[b]);
    const auto begin = layer(x.view().slice(0, b, 1).slice(1, 0, n), own, {.causal = true});
    CHECK(same_bits(first.view().slice(0, b, 1).slice(1, 0, n), begin) == "");
    CHECK(same_bits(second.view().slice(0, b, 1), layer(y.view().slice(0, b, 1), own)) == "");
  }
}

TEST_CASE("packed sequences through a rotated layer have the bits of separate calls", "[layer_options]") {
  random_source random(4);
  const hw::multi_head_attention_options o{
      .d_model = 20, .heads = 4, .kv_heads = 2, .head_dim = 6, .rotary = hw::rotary_options{}};
  const layer_parameters<float> p(o, random);
  const auto layer = p.layer();
  const auto x = random.tensor<float>({1, 23, 20});
  const std::vector<std::int64_t> offsets{0, 7, 7, 8, 23};
  const auto out = layer(x, {.causal = true, .query_offsets = offsets, .key_offsets = offsets});
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    const auto first = static_cast<std::size_t>(offsets[n]), count = static_cast<std::size_t>(offsets[n + 1]) - first;
    const auto part = x.view().slice(1, first, count);
    CHECK(same_bits(layer(part, {.causal = true}), out.view().slice(1, first, count)) == "");
  }
}

TEST_CASE("a wide layer on threads has the same bits", "[layer_options]") {
  random_source random(5);
  const hw::multi_head_attention_options o{.d_model = 256,
                                           .heads = 4,
                                           .qk_norm = true,
                                           .rotary = hw::rotary_options{.layout = hw::channel_layout::halves},
                                           .gate = hw::output_gate::channels};
  const layer_parameters<float> p(o, random);
  const auto layer = p.layer();
  const auto x = random.tensor<float>({1, 300, 256});
  const support::thread_executor threads{.threads = 3};
  CHECK(same_bits(layer(x, {.executor = threads}), layer(x)) == "");
}

TEST_CASE("gates of any size", "[layer_options]") {
  // One head of one channel, projections of 1, one key: the result is v / (1 + e^-g).
  hw::multi_head_attention<double> layer({.d_model = 1, .heads = 1, .bias = false, .gate = hw::output_gate::channels});
  const hw::tensor<double, 2> one = support::tensor_of<double>({1, 1}, {1});
  layer.set_weights({.q_proj_weight = one,
                     .k_proj_weight = one,
                     .v_proj_weight = one,
                     .gate_proj_weight = one,
                     .out_proj_weight = one});
  for (const double g : {-1000.0, -50.0, -1.0, 0.0, 1.0, 50.0, 1000.0}) {
    const auto y = layer(support::tensor_of<double>({1, 1, 1}, {g}));
    CHECK(std::fabs(y(0u, 0u, 0u) - g / (1 + std::exp(-g))) <= 1e-15 * std::fabs(g));
  }
}

TEST_CASE("what a layer's options do not fit is refused", "[layer_options][errors]") {
  random_source random(6);
  hw::multi_head_attention_options o{.d_model = 8, .heads = 2, .qk_norm = true};
  layer_parameters<float> p(o, random);
  const auto refused = [&](hw::multi_head_attention_options options, const hw::multi_head_attention_weights<float>& w) {
    return error_of([&] {
      hw::multi_head_attention<float> layer(options);
      layer.set_weights(w);
    });
  };
  CHECK(lacks(refused({.d_model = 8, .heads = 2}, p.weights()), {"q_norm_weight", "without qk_norm"}) == "");
  auto w = p.weights();
  w.k_norm_weight = {};
  CHECK(lacks(refused(o, w), {"k_norm_weight", "[4]"}) == "");
  o.gate = hw::output_gate::heads;
  CHECK(lacks(refused(o, p.weights()), {"gate_proj_weight", "[2, 8]"}) == "");
  CHECK(lacks(refused({.d_model = 8, .heads = 2, .rotary = hw::rotary_options{.rotary_dim = 6}}, p.weights()),
              {"rotary_dim", "head_dim 4"}) == "");
  CHECK(lacks(refused({.d_model = 8, .heads = 2, .norm_epsilon = -1}, p.weights()), {"norm_epsilon"}) == "");
  const auto layer = p.layer();
  const auto x = random.tensor<float>({1, 3, 8});
  auto cache = layer.make_cache(1, 2);
  CHECK(lacks(error_of([&] { layer(x, cache); }), {"capacity"}) == "");
  CHECK(cache.lengths()[0] == 0);
  hw::kv_cache<float> other({.batch = 1, .capacity = 9, .kv_heads = 1, .head_dim = 4});
  CHECK(lacks(error_of([&] { layer(x, other); }), {"multi_head_attention", "cache", "[1, 1, 4, 4]"}) == "");
  CHECK(other.lengths()[0] == 0);
}
