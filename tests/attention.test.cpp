// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/relative_position.hpp>

#include "support/attention_check.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace hw = headwave;
using support::attention_faults;
using support::constant;
using support::error_of;
using support::flat;
using support::infinity;
using support::lacks;
using support::not_a_number;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::tensor_of;
using support::window;
using support::within;

namespace {

/// Queries, keys and values of distinct extents.
template <class T>
struct problem {
  static constexpr std::size_t batch = 2, query_length = 5, key_length = 7, heads = 6, kv_heads = 3, head_dim = 8,
                               value_dim = 4;
  hw::tensor<T, 4> q, k, v;

  explicit problem(std::uint64_t seed, double scale = 1) {
    random_source random(seed);
    q = random.tensor<T>({batch, query_length, heads, head_dim}, scale);
    k = random.tensor<T>({batch, key_length, kv_heads, head_dim}, scale);
    v = random.tensor<T>({batch, key_length, kv_heads, value_dim});
  }

  hw::tensor<T, 4> operator()(const hw::attention_options<T>& options = {}) const {
    return hw::scaled_dot_product_attention(q, k, v, options);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("queries of zero see the mean of the values", "[attention]", float, double) {
  // Sums of small integers and means over powers of two are exact.
  for (const std::size_t keys : sizes{1, 2, 8, 64, 256, 512, 1024}) {
    const auto q = constant<TestType>({1, 3, 2, 8}, 0);
    const auto k = random_source(keys).tensor<TestType>({1, keys, 2, 8});
    hw::tensor<TestType, 4> v({1, keys, 2, 3});
    std::vector<double> sums(6, 0);
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double number = static_cast<double>(i * 7 % 31);
      v.data()[i] = static_cast<TestType>(number);
      sums[i % 6] += number;
    }
    std::vector<double> expected;
    for (std::size_t i = 0; i < 18; ++i) {
      expected.push_back(sums[i % 6] / static_cast<double>(keys));
    }
    CAPTURE(keys);
    CHECK(within(hw::scaled_dot_product_attention(q, k, v), expected, 0) == "");
  }
}

TEMPLATE_TEST_CASE("a query that sees one key gets its value, bit for bit", "[attention]", float, double) {
  random_source random(1);
  for (const std::size_t keys : sizes{1, 5, 40, 300}) {
    const auto q = random.tensor<TestType>({1, 4, 1, 16}, 3);
    const auto k = random.tensor<TestType>({1, keys, 1, 16}, 3);
    const auto v = random.tensor<TestType>({1, keys, 1, 9});
    hw::tensor<bool, 2> visible({4, keys});
    hw::tensor<TestType, 4> expected({1, 4, 1, 9});
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t seen = random.integer(0, keys - 1);
      visible(i, seen) = true;
      for (std::size_t d = 0; d < 9; ++d) {
        expected(0, i, 0, d) = v(0, seen, 0, d);
      }
    }
    hw::tensor<TestType, 4> weights({1, 1, 4, keys});
    CAPTURE(keys);
    CHECK(same_bits(hw::scaled_dot_product_attention(
                        q, k, v, hw::attention_options<TestType>{.visible = visible, .weights = weights}),
                    expected) == "");
    CHECK(std::equal(weights.begin(), weights.end(), visible.begin()));
  }
}

TEMPLATE_TEST_CASE("scale: zero, negative and by default", "[attention]", float, double) {
  const problem<TestType> p(2);
  CHECK(attention_faults(p.q, p.k, p.v, {}) == "");
  CHECK(attention_faults(p.q, p.k, p.v, {.scale = -0.5}) == "");
  CHECK(attention_faults(p.q, p.k, p.v, {.scale = 0}) == "");
  hw::tensor<TestType, 4> weights({2, 6, 5, 7});
  p({.scale = 0, .weights = weights});
  CHECK(within(weights, std::vector<double>(weights.size(), 1 / 7.0),
               static_cast<double>(std::numeric_limits<TestType>::epsilon())) == "");
}

TEMPLATE_TEST_CASE("positions: query_start, query_starts, windows", "[attention]", float, double) {
  const problem<TestType> p(3);
  const std::vector<std::int64_t> starts = {4, -2};
  CHECK(attention_faults(p.q, p.k, p.v, {.causal = true, .query_starts = starts}) == "");
  for (const std::int64_t start : {-100, -5, -4, -1, 0, 1, 2, 3, 6, 100}) {
    CAPTURE(start);
    CHECK(attention_faults(p.q, p.k, p.v, {.causal = true, .query_start = start}) == "");
    CHECK(attention_faults(p.q, p.k, p.v, {.query_start = start, .window = {.left = 2}}) == "");
    CHECK(attention_faults(p.q, p.k, p.v, {.query_start = start, .window = {.right = 1}}) == "");
    CHECK(attention_faults(p.q, p.k, p.v, {.causal = true, .query_start = start, .window = {.left = 0, .right = 3}}) ==
          "");
  }
  const std::vector<std::int64_t> same = {1, 1};
  CHECK(same_bits(p({.causal = true, .query_start = 1}), p({.causal = true, .query_starts = same})) == "");
  CHECK(same_bits(p({.causal = true}), p({.causal = true, .query_start = 2})) == "");
}

// Each row sees one key, so it is that key's value.
TEMPLATE_TEST_CASE("ordinary sizes are no overflow where std::size_t has 32 bits", "[attention]", float, double) {
  random_source random(41);
  const auto q = random.tensor<TestType>({2, 300, 8, 64});
  const auto k = random.tensor<TestType>({2, 1, 8, 64}), v = random.tensor<TestType>({2, 1, 8, 1});
  const hw::tensor_view<const TestType, 4> repeated(v.data(), {2, 300, 8, 1}, {8, 0, 1, 1});
  CHECK(same_bits(hw::scaled_dot_product_attention(q, k, v), repeated) == "");
  if constexpr (sizeof(std::size_t) == 4) {
    const hw::tensor<TestType, 2> table({32, 8});
    CHECK(error_of([&] { hw::t5_distance_bias(table, {.max_distance = (std::int64_t{1} << 32) + 1}); }) ==
          "t5_distance_bias: size overflows: 2 * 2147483647");
  }
}

TEMPLATE_TEST_CASE("extreme positions and window counts do not wrap", "[attention]", float, double) {
  constexpr std::int64_t largest = (std::numeric_limits<std::int64_t>::max)();
  constexpr std::int64_t smallest = (std::numeric_limits<std::int64_t>::min)();
  const problem<TestType> p(4);
  const auto none = constant<TestType>({2, 5, 6, 4}, 0);
  for (const std::int64_t start : {largest, largest / 2}) {
    CHECK(same_bits(p({.causal = true, .query_start = start}), p()) == "");
    CHECK(same_bits(p({.query_start = start, .window = {.left = 3, .right = largest - 1}}), none) == "");
  }
  for (const std::int64_t start : {smallest, smallest / 2}) {
    CHECK(same_bits(p({.causal = true, .query_start = start}), none) == "");
    CHECK(same_bits(p({.query_start = start, .window = {.left = largest - 1, .right = 3}}), none) == "");
  }
  CHECK(same_bits(p({.window = {.left = largest - 1, .right = largest - 1}}), p()) == "");
  const std::vector<TestType> slopes(6, static_cast<TestType>(1e-19));
  for (const std::int64_t start : {smallest, largest - 4, std::int64_t{1} << 40}) {
    CAPTURE(start);
    CHECK(attention_faults(p.q, p.k, p.v, {.query_start = start, .alibi_slopes = slopes}) == "");
  }
}

TEMPLATE_TEST_CASE("soft caps far above and below the scores", "[attention]", float, double) {
  const problem<TestType> p(14);
  for (const double softcap : {1e-3, 0.1, 50.0, 1e4, 1e20}) {
    CAPTURE(softcap);
    CHECK(attention_faults(p.q, p.k, p.v, {.softcap = softcap}) == "");
    CHECK(attention_faults(p.q, p.k, p.v, {.scale = 30, .softcap = softcap}) == "");
  }
}

TEMPLATE_TEST_CASE("sinks take weight and give no value", "[attention]", float, double) {
  const problem<TestType> p(5);
  const std::vector<TestType> sinks = {0, 1, -1, 3, 50, -50};
  CHECK(attention_faults(p.q, p.k, p.v, {.sinks = sinks}) == "");
  const auto hidden = constant<bool>({7}, 0);
  CHECK(attention_faults(p.q, p.k, p.v, {.visible = hidden, .sinks = sinks}) == "");
  const std::vector<TestType> as_large_as_the_score = {0};
  const auto zero = constant<TestType>({1, 1, 1, 1}, 0);
  const auto out = hw::scaled_dot_product_attention(zero, zero, constant<TestType>({1, 1, 1, 1}, 6),
                                                    hw::attention_options<TestType>{.sinks = as_large_as_the_score});
  CHECK(flat(out) == std::vector<TestType>{3});
}

TEMPLATE_TEST_CASE("bias and mask broadcast like NumPy", "[attention]", float, double) {
  const problem<TestType> p(6);
  random_source random(60);
  const auto check = [&](const auto& bias, const auto& visible) {
    CAPTURE(support::text_of(bias.extents()));
    CHECK(attention_faults(p.q, p.k, p.v, {.bias = bias}) == "");
    CHECK(attention_faults(p.q, p.k, p.v, {.visible = visible}) == "");
    CHECK(attention_faults(p.q, p.k, p.v, {.bias = bias, .visible = visible}) == "");
  };
  check(random.tensor<TestType>({7}), random.mask({7}, 0.6));
  check(random.tensor<TestType>({1}), random.mask({1}, 1));
  check(random.tensor<TestType>({5, 7}), random.mask({5, 7}, 0.6));
  check(random.tensor<TestType>({5, 1}), random.mask({5, 1}, 0.6));
  check(random.tensor<TestType>({6, 1, 7}), random.mask({6, 1, 7}, 0.6));
  check(random.tensor<TestType>({6, 5, 1}), random.mask({6, 5, 1}, 0.6));
  check(random.tensor<TestType>({2, 1, 1, 7}), random.mask({2, 1, 1, 7}, 0.6));
  check(random.tensor<TestType>({2, 1, 5, 7}), random.mask({2, 1, 5, 7}, 0.6));
  check(random.tensor<TestType>({1, 6, 5, 7}), random.mask({1, 6, 5, 7}, 0.6));
  check(random.tensor<TestType>({2, 6, 5, 7}), random.mask({2, 6, 5, 7}, 0.6));
}

TEMPLATE_TEST_CASE("a visible NaN or infinity reaches its own rows and no other", "[attention]", float, double) {
  problem<TestType> p(7);
  const hw::attention_options<TestType> causal = {.causal = true, .query_start = 0};
  const auto clean = p(causal);
  p.q(1, 2, 4, 3) = static_cast<TestType>(not_a_number);
  const auto one_query = p(causal);
  support::for_each_index(support::extents<3>{2, 5, 6}, [&](const auto& at) {
    const auto row = [&](const auto& x) { return x.view().slice(0, at[0], 1).slice(1, at[1], 1).slice(2, at[2], 1); };
    if (at == support::extents<3>{1, 2, 4}) {
      CHECK(within(row(one_query), std::vector<double>(4, not_a_number), 0) == "");
    } else if (same_bits(row(one_query), row(clean)) != "") {
      FAIL_CHECK("row " + support::text_of(at) + " changed");
    }
  });

  problem<TestType> key(7);
  key.k(0, 3, 1, 0) = static_cast<TestType>(not_a_number);
  CHECK(attention_faults(key.q, key.k, key.v, causal) == "");
  problem<TestType> value(7);
  value.v(0, 3, 1, 2) = static_cast<TestType>(not_a_number);
  value.v(1, 2, 0, 1) = static_cast<TestType>(infinity);
  CHECK(attention_faults(value.q, value.k, value.v, causal) == "");
}

TEMPLATE_TEST_CASE("a NaN in bias counts where it is visible only", "[attention]", float, double) {
  const problem<TestType> p(8);
  auto bias = constant<TestType>({5, 7}, 0);
  bias(1, 3) = static_cast<TestType>(not_a_number);
  CHECK(attention_faults(p.q, p.k, p.v, {.bias = bias}) == "");
  auto visible = constant<bool>({5, 7}, 1);
  visible(1, 3) = false;
  CHECK(same_bits(p({.bias = bias, .visible = visible}), p({.visible = visible})) == "");
}

TEMPLATE_TEST_CASE("poison in blocked slots of every kind, past several key blocks", "[attention]", float, double) {
  random_source random(9);
  const std::size_t length = 600;
  const auto q = random.tensor<TestType>({1, 3, 2, 16});
  const auto clean_k = random.tensor<TestType>({1, length, 2, 16});
  const auto clean_v = random.tensor<TestType>({1, length, 2, 16});
  const auto check = [&](const char* kind, const hw::attention_options<TestType>& options, std::size_t first,
                         std::size_t count) {
    const auto expected = hw::scaled_dot_product_attention(q, clean_k, clean_v, options);
    for (const double poison : {not_a_number, infinity, -infinity}) {
      auto k = clean_k;
      auto v = clean_v;
      for (hw::tensor<TestType, 4>* x : {&k, &v}) {
        TestType* const start = x->data() + first * 32;
        std::fill(start, start + count * 32, static_cast<TestType>(poison));
      }
      CAPTURE(kind, poison);
      CHECK(same_bits(hw::scaled_dot_product_attention(q, k, v, options), expected) == "");
      CHECK(attention_faults(q, k, v, options) == "");
    }
  };
  auto visible = constant<bool>({length}, 1);
  auto bias = constant<TestType>({length}, 0);
  for (std::size_t j = 203; j < 203 + 170; ++j) {
    visible(j) = false;
    bias(j) = static_cast<TestType>(-infinity);
  }
  const std::vector<std::int64_t> lengths = {259};
  check("visible", {.visible = visible}, 203, 170);
  check("bias", {.bias = bias}, 203, 170);
  check("key_lengths", {.key_lengths = lengths}, 259, length - 259);
  check("causal", {.causal = true, .query_start = 300}, 303, length - 303);
  check("window to the left", {.query_start = 500, .window = {.left = 20}}, 0, 480);
  check("window to the right", {.query_start = 100, .window = {.right = 3}}, 106, length - 106);
}

TEMPLATE_TEST_CASE("huge, equal and tiny logits", "[attention]", float, double) {
  for (const double scale : {1e-30, 1e-3, 10.0, 100.0}) {
    const problem<TestType> p(10, scale);
    CAPTURE(scale);
    CHECK(attention_faults(p.q, p.k, p.v, {}) == "");
  }
  const problem<TestType> p(11);
  const auto equal = constant<TestType>({2, 7, 3, 8}, 40);
  CHECK(attention_faults(constant<TestType>({2, 5, 6, 8}, 40), equal, p.v, {}) == "");

  // Scores that only grow: each key block has a larger maximum than the one before. And scores that only fall.
  for (const double slope : {0.5, -0.5}) {
    hw::tensor<TestType, 4> k({1, 700, 1, 1});
    for (std::size_t j = 0; j < 700; ++j) {
      k(0, j, 0, 0) = static_cast<TestType>(slope * static_cast<double>(j));
    }
    const auto v = random_source(12).tensor<TestType>({1, 700, 1, 5});
    CAPTURE(slope);
    CHECK(attention_faults(tensor_of<TestType>({1, 2, 1, 1}, {1, 0.001}), k, v, {}) == "");
  }
}

TEMPLATE_TEST_CASE("the output may not be touched where an argument is wrong", "[attention][errors]", float, double) {
  const problem<TestType> p(13);
  const std::string function = "scaled_dot_product_attention";
  window<TestType, 4> out({2, 5, 6, 4});
  window<TestType, 3> lse({2, 6, 5});
  using options = hw::attention_options<TestType>;
  const auto check = [&](const auto& q, const auto& k, const auto& v, options o, std::vector<std::string> parts) {
    o.lse = o.lse.data() ? o.lse : lse.view();
    parts.push_back(function);
    CHECK(lacks(error_of([&] { hw::scaled_dot_product_attention_into(out.view(), q, k, v, o); }), parts) == "");
    CHECK(out.untouched());
    CHECK(lse.untouched());
  };
  const auto with = [&](const options& o, const std::vector<std::string>& parts) { check(p.q, p.k, p.v, o, parts); };
  const std::string q_text = "[2, 5, 6, 8]";
  const std::string k_text = "[2, 7, 3, 8]";
  const std::string v_text = "[2, 7, 3, 4]";
  const auto filled = [](const std::size_t(&shape)[4]) { return constant<TestType>(shape, 1); };
  check(filled({3, 5, 6, 8}), p.k, p.v, {}, {"3 != 2", "[3, 5, 6, 8]", k_text});
  check(p.q, filled({2, 7, 3, 9}), p.v, {}, {"8 != 9", q_text, "[2, 7, 3, 9]"});
  check(p.q, filled({2, 7, 2, 8}), p.v, {}, {"[2, 7, 2, 8]", v_text});
  check(p.q, filled({2, 6, 3, 8}), p.v, {}, {"[2, 6, 3, 8]", v_text});
  check(p.q, p.k, filled({1, 7, 3, 4}), {}, {"[1, 7, 3, 4]", k_text});
  check(p.q, filled({2, 7, 4, 8}), filled({2, 7, 4, 4}), {}, {"6", "4", q_text, "[2, 7, 4, 8]"});
  check(filled({2, 5, 0, 8}), filled({2, 7, 0, 8}), filled({2, 7, 0, 4}), {}, {"[2, 5, 0, 8]"});
  check(p.q, filled({2, 7, 0, 8}), filled({2, 7, 0, 4}), {}, {q_text, "[2, 7, 0, 8]"});
  check(p.q, p.k, filled({2, 7, 3, 5}), {}, {"[2, 5, 6, 4]", "[2, 7, 3, 5]"});

  const std::string scores = "[2, 6, 5, 7]";
  with({.bias = constant<TestType>({6}, 0)}, {"bias", "[1, 1, 1, 6]", scores});
  with({.bias = constant<TestType>({7, 5}, 0)}, {"bias", "[1, 1, 7, 5]", scores});
  with({.visible = constant<bool>({2, 3, 5, 7}, 1)}, {"visible", "[2, 3, 5, 7]", scores});
  with({.visible = constant<bool>({3, 1, 1, 7}, 1)}, {"visible", "[3, 1, 1, 7]", scores});
  const std::vector<std::int64_t> three = {1, 1, 1};
  const std::vector<std::int64_t> two = {1, 1};
  const std::vector<std::int64_t> negative = {7, -1};
  const std::vector<std::int64_t> too_long = {7, 8};
  with({.query_starts = three}, {"query_starts", "3"});
  with({.query_start = 0, .query_starts = two}, {"query_start"});
  with({.key_lengths = three}, {"key_lengths", "3"});
  with({.key_lengths = negative}, {"key_lengths", "-1"});
  with({.key_lengths = too_long}, {"key_lengths", "8", "7"});
  with({.window = {.left = -1}}, {"window", "-1"});
  with({.window = {.right = -1}}, {"window", "-1"});
  with({.softcap = -1}, {"softcap"});
  with({.softcap = not_a_number}, {"softcap"});
  const std::vector<TestType> per_kv_head(3, TestType(1));
  with({.alibi_slopes = per_kv_head}, {"alibi_slopes", "3", "6"});
  with({.sinks = per_kv_head}, {"sinks", "3", "6"});
  window<TestType, 3> wrong_lse({2, 5, 6});
  window<TestType, 4> wrong_weights({2, 5, 6, 7});
  window<TestType, 3> wrong_mean({2, 6, 7});
  with({.lse = wrong_lse.view()}, {"lse", "[2, 5, 6]", "[2, 6, 5]"});
  with({.weights = wrong_weights.view()}, {"weights", "[2, 5, 6, 7]", scores});
  with({.mean_weights = wrong_mean.view()}, {"mean_weights", "[2, 6, 7]", "[2, 5, 7]"});
}
