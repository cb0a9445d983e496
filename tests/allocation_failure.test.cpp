// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/guarded.hpp"
#include "support/layer.hpp"
#include "support/random.hpp"

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

/// \file
/// The first, the second, ... request for memory of every kind of call fails, until none is left to fail. The call says
/// std::bad_alloc, changes nothing and keeps nothing, and the same objects then give the right bits.

namespace hw = headwave;
using support::constant;
using support::layer_parameters;
using support::random_source;
using support::result_bytes;

namespace {

/// Runs a call on a new thread, which has no scratch memory yet, with its n-th request failing. make() makes what the
/// call belongs to: it has call(), and results() with all that this may change. Returns what was wrong.
template <class Make>
std::string fault_of_failure(const Make& make, std::size_t n, const result_bytes& expected, bool& failed) {
  std::string fault;
  const std::ptrdiff_t before = support::live_allocations;
  std::thread([&] {
    auto state = make();
    const result_bytes untouched = state.results();
    support::calls_until_failure = n;
    failed = false;
    try {
      state.call();
    } catch (const std::exception& error) {
      failed = true;
      fault += typeid(error) == typeid(std::bad_alloc) ? "" : std::string(" not std::bad_alloc: ") + error.what();
    }
    support::calls_until_failure = 0;
    if (failed) {
      const std::string change = state.results().differs_from(untouched);
      fault += change.empty() ? "" : " changes " + change;
      state.call();
    }
    const std::string difference = state.results().differs_from(expected);
    fault += difference.empty() ? "" : " then wrong: " + difference;
  }).join();
  if (fault.empty() && support::live_allocations != before) {
    fault = " keeps pieces of memory: " + std::to_string(support::live_allocations - before);
  }
  return fault;
}

/// How often a call has failed, and what was wrong about it.
template <class Make>
std::pair<std::size_t, std::string> failures_of(const Make& make) {
  result_bytes expected;
  std::thread([&] {
    auto state = make();
    state.call();
    expected = state.results();
  }).join();
  bool failed = true;
  for (std::size_t n = 1;; ++n) {
    const std::string fault = fault_of_failure(make, n, expected, failed);
    if (!fault.empty() || !failed) {
      return {n - 1, fault};
    }
  }
}

/// A call on objects, which are copied for each attempt.
template <class Objects, class Call, class Results>
auto on(const Objects& objects, const Call& call_on, const Results& results_of) {
  struct state {
    Objects objects;
    const Call& call_on;
    const Results& results_of;

    void call() { call_on(objects); }
    result_bytes results() {
      result_bytes all;
      results_of(all, objects);
      return all;
    }
  };
  return [&] { return state{objects, call_on, results_of}; };
}

/// A call that writes to, or makes, one tensor.
template <class Object, class Call>
std::pair<std::size_t, std::string> failures_on(const Object& object, const Call& call) {
  return failures_of(on(object, call, [](result_bytes& all, Object& x) { all.add(x); }));
}

/// At least so many requests have failed, all of them well.
bool is_well(const std::pair<std::size_t, std::string>& failures, std::size_t least) {
  UNSCOPED_INFO(failures.first << " failures " << failures.second);
  return failures.first >= least && failures.second.empty();
}

/// What a cache knows of each sample.
template <class T, class Stored>
void add_cache(result_bytes& all, const hw::kv_cache<T, Stored>& cache) {
  const auto& state = cache.state();
  const auto one = [](const auto& x, std::size_t b, std::size_t row) {
    return x.view().slice(0, b, 1).slice(1, row, 1);
  };
  all.add(state.marks);
  for (std::size_t b = 0; b < cache.options().batch; ++b) {
    for (std::int64_t position = cache.first_keys()[b]; position < cache.lengths()[b]; ++position) {
      const std::size_t row = static_cast<std::size_t>(position) % cache.options().capacity;
      all.add(one(state.keys, b, row));
      all.add(one(state.values, b, row));
      if (!state.key_scales.empty()) {
        all.add(one(state.key_scales, b, row));
        all.add(one(state.value_scales, b, row));
      }
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("encodings without memory", "[allocation]", float, double) {
  using T = TestType;
  random_source random(1);
  const auto table = random.tensor<T>({60, 600});
  const auto tokens = random.tensor<T>({2, 60, 600});
  const auto grid = random.tensor<T>({3, 5, 40});
  std::vector<double> positions(60, 0.5);
  CHECK(is_well(failures_on(table, [](auto& x) { hw::sinusoidal_encoding_into(x); }), 2));
  CHECK(is_well(failures_on(table, [&](auto& x) { hw::sinusoidal_encoding_into(x, positions); }), 2));
  // Channels apart go through a buffer, which for the first rows of a group can be small.
  CHECK(is_well(failures_on(table, [](auto& x) { hw::sinusoidal_encoding_into(x.view().transposed(0, 1)); }), 1));
  CHECK(is_well(failures_on(tokens, [](auto& x) { hw::add_sinusoidal_encoding(x); }), 2));
  CHECK(is_well(failures_on(tokens, [](auto& x) { hw::add_sinusoidal_encoding(x, {.first_position = 14}); }), 2));
  CHECK(is_well(failures_on(grid, [](auto& x) { hw::sinusoidal_encoding_2d_into(x); }), 1));
  CHECK(is_well(failures_on(hw::tensor<T, 2>(), [](auto& x) { x = hw::sinusoidal_encoding<T>(5, 6); }), 2));
  CHECK(is_well(failures_on(hw::tensor<T, 3>(), [](auto& x) { x = hw::sinusoidal_encoding_2d<T>(2, 3, 8); }), 2));
  CHECK(is_well(failures_on(hw::tensor<T, 1>(), [](auto& x) { x = hw::alibi_slopes<T>(12); }), 1));
  const auto buckets = random.tensor<T>({32, 3});
  CHECK(is_well(failures_on(hw::tensor<T, 2>(), [&](auto& x) { x = hw::t5_distance_bias(buckets); }), 2));
  CHECK(is_well(failures_on(table, [](auto& x) { x = hw::softmax(x); }), 1));
}

TEMPLATE_TEST_CASE("tensors without memory", "[allocation]", float, double) {
  using T = TestType;
  random_source random(2);
  const auto x = random.tensor<T>({3, 4}), y = random.tensor<T>({7, 9});
  CHECK(is_well(failures_on(x, [&](auto& target) { target = y; }), 1));
  CHECK(is_well(failures_on(x, [&](auto& target) { target = hw::tensor<T, 2>({5, 5}); }), 1));
}

TEMPLATE_TEST_CASE("rotations without memory", "[allocation]", float, double) {
  using T = TestType;
  random_source random(3);
  const std::vector<std::size_t> sections{4, 6, 6};
  const hw::rotary_options small{.rotary_dim = 8}, large{.rotary_dim = 32, .sections = sections};
  const hw::rotary_embedding rope(large);
  const auto q = random.tensor<T>({2, 40, 3, 32});
  CHECK(is_well(failures_on(q, [&](auto& x) { rope.apply(x, 5); }), 1));
  CHECK(is_well(failures_on(q, [&](auto& x) { rope.apply_inverse(x, 5); }), 1));

  // What an embedding is shows in what it does, here on a thread of its own, which has memory.
  const auto rotated = [&](result_bytes& all, hw::rotary_embedding& x) {
    hw::tensor<T, 4> copy(q);
    std::thread([&] { x.apply(copy, 5); }).join();
    all.add(copy);
  };
  const hw::rotary_embedding other(small);
  CHECK(is_well(failures_of(on(other, [&](auto& x) { x = hw::rotary_embedding(large); }, rotated)), 4));
  CHECK(is_well(failures_of(on(other, [&](auto& x) { x = rope; }, rotated)), 3));
}

TEMPLATE_TEST_CASE("projections without memory", "[allocation]", float, double) {
  using T = TestType;
  random_source random(4);
  const auto weight = random.tensor<T>({30, 40}), other_weight = random.tensor<T>({20, 40});
  const auto bias = random.tensor<T>({30});
  const auto x = random.tensor<T>({2, 60, 40});
  const hw::linear<T> projection(weight, bias);
  const auto y = constant<T>({2, 60, 30}, -7);
  CHECK(is_well(failures_on(y, [&](auto& out) { projection.apply_into(out, x); }), 1));
  CHECK(is_well(failures_on(y, [&](auto& out) { out = projection(x); }), 2));
  const auto projected = [&](result_bytes& all, hw::linear<T>& linear) { all.add(linear(x)); };
  const hw::linear<T> other(other_weight);
  CHECK(is_well(failures_of(on(other, [&](auto& linear) { linear = hw::linear<T>(weight, bias); }, projected)), 1));
  CHECK(is_well(failures_of(on(other, [&](auto& linear) { linear = projection; }, projected)), 1));
}

namespace {

/// Attention, with all that it may write to.
template <class T>
struct outputs {
  hw::tensor<T, 4> out, weights;
  hw::tensor<T, 3> lse, entropy, mean_weights, key_mass;
};
template <class T>
void add_outputs(result_bytes& all, const outputs<T>& x) {
  all.add(x.out);
  all.add(x.weights);
  for (const auto* const each : {&x.lse, &x.entropy, &x.mean_weights, &x.key_mass}) {
    all.add(*each);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("attention without memory", "[allocation]", float, double) {
  using T = TestType;
  random_source random(5);
  const auto q = random.tensor<T>({1, 120, 4, 72}), k = random.tensor<T>({1, 300, 2, 72}),
             v = random.tensor<T>({1, 300, 2, 40});
  const auto distance_bias = random.tensor<T>({4, 4001});
  const auto failures = [&](std::size_t rows, auto options_for) {
    const outputs<T> all{constant<T>({1, rows, 4, 40}, -7), constant<T>({1, 4, rows, 300}, -7),
                         constant<T>({1, 4, rows}, -7),     constant<T>({1, 4, rows}, -7),
                         constant<T>({1, rows, 300}, -7),   constant<T>({1, 4, 300}, -7)};
    const auto call = [&](outputs<T>& x) {
      hw::scaled_dot_product_attention_into(x.out, q.view().slice(1, 0, rows), k, v, options_for(x));
    };
    return failures_of(on(all, call, [](result_bytes& bytes, outputs<T>& x) { add_outputs(bytes, x); }));
  };
  using options = hw::attention_options<T>;
  CHECK(is_well(failures(120, [](auto&) { return options{}; }), 2));
  CHECK(is_well(failures(2, [](auto&) { return options{}; }), 1));
  CHECK(is_well(failures(2, [&](auto& x) { return options{.softmax_plus_one = true, .lse = x.lse}; }), 1));
  CHECK(is_well(failures(120,
                         [&](auto& x) {
                           return options{.distance_bias = distance_bias,
                                          .softmax_plus_one = true,
                                          .lse = x.lse,
                                          .entropy = x.entropy,
                                          .weights = x.weights};
                         }),
                2));
  CHECK(is_well(failures(120, [](auto& x) { return options{.mean_weights = x.mean_weights}; }), 1));
  CHECK(is_well(failures(60, [](auto& x) { return options{.lse = x.lse, .key_mass = x.key_mass}; }), 1));
  // A small sequence, then larger ones, few rows and many.
  const std::vector<std::int64_t> queries{0, 1, 10, 12, 120}, keys{0, 3, 60, 200, 300};
  CHECK(is_well(failures(120, [&](auto&) { return options{.query_offsets = queries, .key_offsets = keys}; }), 2));

  CHECK(is_well(failures_on(hw::tensor<T, 4>(), [&](auto& x) { x = hw::scaled_dot_product_attention(q, k, v); }), 3));
  const auto a = random.tensor<T>({1, 9, 2, 8}), b = random.tensor<T>({1, 9, 2, 8});
  const auto lse = random.tensor<T>({1, 2, 9});
  CHECK(is_well(failures_on(a,
                            [&](auto& x) {
                              std::vector<T> numbers(18);  // of its own, which may fail
                              hw::merge_attention(x, hw::tensor_view<T, 3>(numbers, {1, 2, 9}), b, lse);
                            }),
                1));
}

TEMPLATE_TEST_CASE("layers without memory", "[allocation]", float, double) {
  using T = TestType;
  random_source random(6);
  hw::multi_head_attention_options o{.d_model = 40, .heads = 4, .kv_heads = 2, .add_bias_kv = true, .qk_norm = true};
  o.rotary = hw::rotary_options{};
  o.gate = hw::output_gate::channels;
  const layer_parameters<T> parameters(o, random), others({.d_model = 40, .heads = 2}, random);
  const auto layer = parameters.layer(), other = others.layer();
  const auto x = random.tensor<T>({2, 70, 40});

  const outputs<T> all{{},
                       constant<T>({2, 4, 70, 71}, -7),
                       constant<T>({2, 4, 70}, -7),
                       constant<T>({2, 70, 40}, -7),  // the layer's output
                       constant<T>({2, 70, 71}, -7),
                       constant<T>({2, 4, 71}, -7)};
  const auto add_all = [](result_bytes& bytes, outputs<T>& each) { add_outputs(bytes, each); };
  CHECK(is_well(failures_of(on(all, [&](auto& y) { layer.apply_into(y.entropy, x); }, add_all)), 2));
  const auto with_weights = [&](auto& y) {
    layer.apply_into(y.entropy, x, {.causal = true, .lse = y.lse, .weights = y.weights});
  };
  CHECK(is_well(failures_of(on(all, with_weights, add_all)), 3));
  const auto with_sums = [&](auto& y) {
    layer.apply_into(y.entropy, x, x, x.view(), {.mean_weights = y.mean_weights, .key_mass = y.key_mass});
  };
  CHECK(is_well(failures_of(on(all, with_sums, add_all)), 3));
  CHECK(is_well(failures_on(hw::tensor<T, 3>(), [&](auto& y) { y = layer(x); }), 3));

  const auto applied = [&](result_bytes& bytes, hw::multi_head_attention<T>& each) {
    hw::tensor<T, 3> y;
    std::thread([&] { y = each(x); }).join();
    bytes.add(y);
  };
  const auto assign = [&](auto& each) { each = layer; };
  CHECK(is_well(failures_of(on(other, assign, applied)), 3));
  const auto make = [&](auto& each) {
    hw::multi_head_attention<T> made(o);
    made.set_weights(parameters.weights());
    each = std::move(made);
  };
  CHECK(is_well(failures_of(on(other, make, applied)), 4));
  const layer_parameters<T> new_parameters(o, random);
  CHECK(is_well(failures_of(on(layer, [&](auto& each) { each.set_weights(new_parameters.weights()); }, applied)), 1));
  CHECK(is_well(failures_of(on(layer, [&](auto& each) { each.init_xavier(3); }, applied)), 9));
}

TEMPLATE_TEST_CASE("caches without memory", "[allocation]", float, hw::bfloat16, std::int8_t) {
  using cache_type = hw::kv_cache<float, TestType>;
  random_source random(7);
  const auto k = random.tensor<float>({2, 20, 2, 10}), v = random.tensor<float>({2, 20, 2, 10});
  const std::vector<std::int64_t> counts{20, 7}, swapped{1, 0}, twice{1, 1};
  const auto cache_of = [&](std::size_t capacity, bool rolling) {
    cache_type cache({.batch = 2, .capacity = capacity, .kv_heads = 2, .head_dim = 10, .rolling = rolling});
    cache.append(k, v, counts);
    return cache;
  };
  const cache_type cache = cache_of(120, false), other = cache_of(50, false), rolling = cache_of(40, true);
  const auto add = [](result_bytes& all, cache_type& x) { add_cache(all, x); };
  const auto failures = [&](const cache_type& x, const auto& call) { return failures_of(on(x, call, add)); };
  CHECK(is_well(failures(other, [&](auto& x) { x = cache; }), 3));
  CHECK(is_well(failures(other, [&](auto& x) { x = cache_type({.batch = 2, .capacity = 9, .head_dim = 10}); }), 3));
  CHECK(is_well(failures(cache, [&](auto& x) { x.reorder(swapped); }), 3));
  CHECK(is_well(failures(cache, [&](auto& x) { x.reorder(twice); }), 3));
  CHECK(is_well(failures(cache,
                         [&](auto& x) {
                           std::vector<int> request(1);  // these ask for none
                           x.append(k, v);
                           x.truncate(5);
                           x.clear();
                         }),
                1));

  const auto q = random.tensor<float>({2, 30, 4, 10});
  for (const std::size_t rows : {1u, 30u}) {
    const auto attend = [&](auto& out) {
      hw::scaled_dot_product_attention_into(out, q.view().slice(1, 0, rows), cache);
    };
    CHECK(is_well(failures_on(constant<float>({2, rows, 4, 10}, -7), attend), 1));
  }

  // A layer appends, then attends.
  hw::multi_head_attention_options o{.d_model = 40, .heads = 4, .kv_heads = 2};
  o.rotary = hw::rotary_options{};
  const auto layer = layer_parameters<float>(o, random).layer();
  const auto x = random.tensor<float>({2, 70, 40});
  struct step {
    cache_type cache;
    hw::tensor<float, 3> out, lse;
  };
  const auto decode = [&](step& s) {
    layer.apply_into(s.out, x.view().slice(1, 0, s.out.extent(1)), s.cache, {.causal = true, .lse = s.lse});
  };
  const auto add_step = [](result_bytes& all, step& s) {
    if (s.cache.options().rolling) {
      // What it has forgotten for new keys does not return.
      all.add(hw::tensor_view<const std::int64_t, 1>(s.cache.lengths().data(), {2}));
    } else {
      add_cache(all, s.cache);
    }
    all.add(s.out);
    all.add(s.lse);
  };
  for (const cache_type* const each : {&cache, &rolling}) {
    for (const std::size_t rows : {1u, 70u}) {
      const step start{*each, constant<float>({2, rows, 40}, -7), constant<float>({2, 4, rows}, -7)};
      CHECK(is_well(failures_of(on(start, decode, add_step)), 3));
    }
  }
}
