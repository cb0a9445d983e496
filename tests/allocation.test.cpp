// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/layer.hpp"
#include "support/random.hpp"

#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// \file
/// Calls that write into the caller's memory take none of their own once their thread has made the same call before.

namespace hw = headwave;
using support::constant;
using support::layer_parameters;
using support::random_source;

namespace {

template <class Call>
std::size_t allocations_of(const Call& call) {
  const std::size_t before = support::allocation_count;
  call();
  return support::allocation_count - before;
}

/// What a call allocates on a thread that has made no other call: the first time, and the second.
template <class Call>
std::pair<std::size_t, std::size_t> cold_and_warm(const Call& call) {
  std::pair<std::size_t, std::size_t> result;
  std::thread([&] {
    result.first = allocations_of(call);
    result.second = allocations_of(call);
  }).join();
  return result;
}

struct named_call {
  std::string name;
  std::function<void()> run;
};

/// Every function that writes into the caller's memory, at sizes that take several blocks of keys and of depth. The
/// tensors are the object's.
template <class T>
struct problem {
  random_source random{1};
  hw::tensor<T, 4> q = random.tensor<T>({2, 50, 4, 72}), k = random.tensor<T>({2, 700, 2, 72}),
                   v = random.tensor<T>({2, 700, 2, 40});
  hw::tensor<T, 4> out = constant<T>({2, 50, 4, 40}, 0), weights = constant<T>({2, 4, 50, 700}, 0);
  hw::tensor<T, 3> lse = constant<T>({2, 4, 50}, 0), mean_weights = constant<T>({2, 50, 700}, 0);
  hw::tensor<bool, 2> visible = random.mask({50, 700}, 0.7);
  hw::tensor<T, 2> bias = random.tensor<T>({50, 700});
  hw::tensor<T, 3> maximum = constant<T>({2, 4, 50}, 0), entropy = constant<T>({2, 4, 50}, 0),
                   key_mass = constant<T>({2, 4, 700}, 0);
  hw::tensor<T, 2> distance_bias = random.tensor<T>({4, 21});
  std::vector<std::int64_t> lengths{700, 300}, weight_rows{3, 49}, query_offsets{0, 20, 50}, key_offsets{0, 300, 700};
  std::vector<T> slopes = std::vector<T>(4, T(0.1)), sinks = std::vector<T>(4, T(1));

  hw::linear<T> projection{random.tensor<T>({130, 300}), random.tensor<T>({130})};
  hw::tensor<T, 3> x = random.tensor<T>({2, 200, 300}), y = constant<T>({2, 200, 130}, 0);

  hw::multi_head_attention<T> layer = layer_parameters<T>({.d_model = 96, .heads = 6, .kv_heads = 3}, random).layer();
  hw::multi_head_attention<T> long_layer =
      layer_parameters<T>({.d_model = 60, .heads = 3, .add_bias_kv = true, .add_zero_attention = true}, random).layer();
  hw::tensor<T, 3> words = random.tensor<T>({2, 40, 96}), results = constant<T>({2, 40, 96}, 0);
  hw::tensor<T, 3> short_words = random.tensor<T>({2, 2, 60}), memory = random.tensor<T>({2, 600, 60}),
                   short_results = constant<T>({2, 2, 60}, 0);

  hw::tensor<T, 2> encoding = constant<T>({90, 130}, 0);
  hw::tensor<T, 3> grid = constant<T>({7, 9, 64}, 0), encoded = constant<T>({2, 90, 130}, 0);
  std::vector<double> positions = std::vector<double>(90, 0.5);
  hw::tensor<T, 3> scores = random.tensor<T>({3, 50, 333}), probabilities = constant<T>({3, 50, 333}, 0);

  hw::rotary_embedding rope{{.rotary_dim = 64, .layout = hw::channel_layout::halves}};
  std::vector<std::size_t> sections{10, 11, 11};
  hw::rotary_embedding multi_axis_rope{{.rotary_dim = 64, .sections = sections}};
  hw::tensor<std::int64_t, 2> token_positions = hw::tensor<std::int64_t, 2>({2, 50});
  hw::tensor<std::int64_t, 3> axis_positions = hw::tensor<std::int64_t, 3>({3, 2, 50});

  hw::tensor_view<T, 4> out_view = out;
  std::vector<named_call> calls;

  problem() {
    const auto attend = [this](std::size_t rows, const hw::attention_options<T>& options, const auto&... rules) {
      hw::scaled_dot_product_attention_into(out.view().slice(1, 0, rows), q.view().slice(1, 0, rows), k, v, options,
                                            rules...);
    };
    const auto nearer = [](T s, hw::score_position at) { return s + T(at.key % 3); };
    calls = {
        {"prefill", [=] { attend(50, {}); }},
        {"prefill with every option",
         [=, this] {
           attend(50, {.softcap = 5,
                       .bias = bias,
                       .visible = visible,
                       .causal = true,
                       .window = {.left = 100},
                       .key_lengths = lengths,
                       .alibi_slopes = slopes,
                       .sinks = sinks,
                       .lse = lse});
         }},
        {"prefill with weights", [=, this] { attend(50, {.weights = weights, .mean_weights = mean_weights}); }},
        {"prefill with mean weights", [=, this] { attend(50, {.mean_weights = mean_weights}); }},
        {"prefill with masks and a rule",
         [=] { attend(50, {}, hw::window_mask{.left = 100} || hw::global_mask{4}, nearer); }},
        {"prefill with every sum",
         [=, this] {
           attend(50, {.distance_bias = distance_bias,
                       .softmax_plus_one = true,
                       .dropout = {0.5, 1},
                       .maximum = maximum,
                       .entropy = entropy,
                       .weights = weights.view().slice(2, 0, 2),
                       .weight_rows = weight_rows,
                       .key_mass = key_mass});
         }},
        {"packed sequences",
         [this] {
           hw::scaled_dot_product_attention_into(out.view().slice(0, 0, 1), q.view().slice(0, 0, 1),
                                                 k.view().slice(0, 0, 1), v.view().slice(0, 0, 1),
                                                 {.query_offsets = query_offsets, .key_offsets = key_offsets});
         }},
        {"decode with masks and a rule",
         [=] { attend(1, {}, hw::window_mask{.left = 100} || hw::global_mask{4}, nearer); }},
        {"decode, one row", [=] { attend(1, {}); }},
        {"decode, four rows", [=] { attend(4, {.causal = true}); }},
        {"decode with options",
         [=, this] {
           attend(2, {.softcap = 5,
                      .causal = true,
                      .window = {.left = 100},
                      .key_lengths = lengths,
                      .alibi_slopes = slopes,
                      .sinks = sinks});
         }},
        {"projection", [this] { projection.apply_into(y, x); }},
        {"projection of a row", [this] { projection.apply_into(y.view().slice(1, 3, 1), x.view().slice(1, 3, 1)); }},
        {"self-attention layer", [this] { layer.apply_into(results, words, {.causal = true}); }},
        {"cross-attention layer, decoding",
         [this] { long_layer.apply_into(short_results, short_words, memory, memory); }},
        {"softmax", [this] { hw::softmax_into(probabilities, scores); }},
        {"softmax along another axis",
         [this] { hw::softmax_into(probabilities.view().transposed(1, 2), scores.view().transposed(1, 2)); }},
        {"encoding", [this] { hw::sinusoidal_encoding_into(encoding); }},
        {"encoding of positions", [this] { hw::sinusoidal_encoding_into(encoding, positions); }},
        {"encoding of a grid", [this] { hw::sinusoidal_encoding_2d_into(grid); }},
        {"encoding in place", [this] { hw::add_sinusoidal_encoding(encoded); }},
        {"rotation", [this] { rope.apply(q, 1000); }},
        {"rotation back, positions of samples", [this] { rope.apply_inverse(q, token_positions); }},
        {"rotation of multi-axis positions", [this] { multi_axis_rope.apply(q, axis_positions); }},
    };
  }
  problem(const problem&) = delete;
};

}  // namespace

TEST_CASE("the replaced operators count", "[allocation]") {
  // Called by name: a compiler may leave out what a new-expression and its delete-expression call.
  constexpr std::align_val_t line{64};
  CHECK(allocations_of([] { ::operator delete(::operator new(4)); }) == 1);
  CHECK(allocations_of([] { ::operator delete[](::operator new[](4)); }) == 1);
  CHECK(allocations_of([] { ::operator delete(::operator new(4, std::nothrow)); }) == 1);
  CHECK(allocations_of([] { ::operator delete[](::operator new[](4, std::nothrow)); }) == 1);
  CHECK(allocations_of([] { ::operator delete(::operator new(4, line), line); }) == 1);
  CHECK(allocations_of([] { ::operator delete[](::operator new[](4, line), line); }) == 1);
  CHECK(allocations_of([] { ::operator delete(::operator new(4, line, std::nothrow), line); }) == 1);
  CHECK(allocations_of([] { ::operator delete[](::operator new[](4, line, std::nothrow), line); }) == 1);
  CHECK(allocations_of([] {}) == 0);
}

TEMPLATE_TEST_CASE("a warm call allocates nothing", "[allocation]", float, double) {
  const problem<TestType> p;
  for (const named_call& call : p.calls) {
    CAPTURE(call.name);
    const auto [cold, warm] = cold_and_warm(call.run);
    CHECK(warm == 0);
    // All but softmax keep scratch memory, whose first use shows that the count sees it.
    CHECK((cold > 0) == (call.name.find("softmax") == std::string::npos));
  }
}

TEMPLATE_TEST_CASE("a mask is read where it lies: it costs no memory", "[allocation][E06]", float, double) {
  const problem<TestType> p;
  const auto attend = [&](const hw::attention_options<TestType>& options) {
    hw::scaled_dot_product_attention_into(p.out_view, p.q, p.k, p.v, options);
  };
  std::size_t with_masks = 1;
  std::thread([&] {
    attend({});
    with_masks = allocations_of([&] { attend({.bias = p.bias, .visible = p.visible}); });
  }).join();
  CHECK(with_masks == 0);
}

TEMPLATE_TEST_CASE("different warm calls in turn allocate nothing", "[allocation]", float, double) {
  const problem<TestType> p;
  std::size_t warm = 0;
  std::thread([&] {
    const auto all = [&] {
      for (const named_call& call : p.calls) {
        call.run();
      }
    };
    // Memory grows as calls need it; a larger first piece takes the place of a smaller one and of those behind it.
    all();
    all();
    warm = allocations_of(all);
  }).join();
  CHECK(warm == 0);
}
