// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/relative_position.hpp>

#include "support/attention_check.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

/// \file
/// Faults that people have met in other implementations of attention. With queries of zero every visible key weighs the
/// same, so an output is the mean of the values it may see.

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
using support::within;

namespace {

template <class T>
constexpr double few_ulps = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());

/// Attention of one head with keys and values of one component each.
template <class T>
hw::tensor<T, 4> one_head(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
                          const hw::attention_options<T>& options = {}) {
  return hw::scaled_dot_product_attention(tensor_of<T>({1, q.size(), 1, 1}, q), tensor_of<T>({1, k.size(), 1, 1}, k),
                                          tensor_of<T>({1, v.size(), 1, 1}, v), options);
}

/// The same with queries and keys of zero: means of the values.
template <class T>
hw::tensor<T, 4> means(std::size_t query_length, const std::vector<double>& v,
                       const hw::attention_options<T>& options = {}) {
  return one_head<T>(std::vector<double>(query_length, 0), std::vector<double>(v.size(), 0), v, options);
}

std::vector<double> counted(double first, std::size_t count) {
  std::vector<double> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = first + static_cast<double>(i);
  }
  return numbers;
}

}  // namespace

TEMPLATE_TEST_CASE("a query that sees nothing gives zeros, however its keys are blocked", "[B10]", float, double) {
  const auto q = constant<TestType>({1, 2, 1, 2}, 0);
  const auto k = constant<TestType>({1, 3, 1, 2}, 0);
  const auto v = tensor_of<TestType>({1, 3, 1, 2}, {1, 2, 3, 4, 5, 9});
  hw::tensor<TestType, 3> lse({1, 1, 2});
  hw::tensor<TestType, 4> weights({1, 1, 2, 3});
  const auto check = [&](hw::attention_options<TestType> options) {
    const auto alone = hw::scaled_dot_product_attention(q, k, v, options);
    std::fill(lse.begin(), lse.end(), TestType(7));
    std::fill(weights.begin(), weights.end(), TestType(7));
    options.lse = lse;
    options.weights = weights;
    const auto out = hw::scaled_dot_product_attention(q, k, v, options);
    CHECK(same_bits(alone, out) == "");
    CHECK(within(out.view().slice(1, 0, 1), {3, 5}, 5 * few_ulps<TestType>) == "");
    CHECK(within(out.view().slice(1, 1, 1), {0, 0}, 0) == "");
    CHECK(within(weights.view().slice(2, 0, 1), std::vector<double>(3, 1 / 3.0), few_ulps<TestType>) == "");
    CHECK(within(weights.view().slice(2, 1, 1), {0, 0, 0}, 0) == "");
    CHECK(within(lse, {std::log(3.0), -infinity}, few_ulps<TestType>) == "");
  };
  hw::tensor<bool, 2> visible({2, 3});
  std::fill(visible.begin(), visible.begin() + 3, true);
  check({.visible = visible});
  const auto bias = tensor_of<TestType>({2, 3}, {0, 0, 0, -infinity, -infinity, -infinity});
  check({.bias = bias});

  // Causal and padding together: query 0 stands before every key, query 1 sees key 0 only, which is hidden.
  const auto hidden_first = tensor_of<bool>({3}, {0, 1, 1});
  const auto both = means<TestType>(2, {1, 3, 5}, {.visible = hidden_first, .causal = true, .query_start = -1});
  CHECK(within(both, {0, 0}, 0) == "");
  const std::vector<std::int64_t> lengths = {3, 0};
  const auto padded = hw::scaled_dot_product_attention(
      constant<TestType>({2, 1, 1, 1}, 0), constant<TestType>({2, 3, 1, 1}, 0),
      tensor_of<TestType>({2, 3, 1, 1}, {1, 3, 5, not_a_number, not_a_number, not_a_number}),
      hw::attention_options<TestType>{.key_lengths = lengths});
  CHECK(within(padded, {3, 0}, 3 * few_ulps<TestType>) == "");
}

TEMPLATE_TEST_CASE("true means visible", "[B11]", float, double) {
  const auto first = tensor_of<bool>({2}, {1, 0});
  CHECK(within(means<TestType>(1, {1, 3}, {.visible = first}), {1}, 0) == "");

  random_source random(11);
  const auto q = random.tensor<TestType>({2, 5, 3, 8});
  const auto k = random.tensor<TestType>({2, 7, 3, 8});
  const auto v = random.tensor<TestType>({2, 7, 3, 4});
  const auto all = constant<bool>({2, 3, 5, 7}, 1);
  CHECK(same_bits(hw::scaled_dot_product_attention(q, k, v, hw::attention_options<TestType>{.visible = all}),
                  hw::scaled_dot_product_attention(q, k, v)) == "");
}

TEMPLATE_TEST_CASE("the element type, never a value, tells a bias from a mask", "[B12]", float, double) {
  hw::tensor<TestType, 4> weights({1, 1, 1, 2});
  const auto zero_one = tensor_of<TestType>({2}, {0, 1});
  const auto out = means<TestType>(1, {1, 3}, {.bias = zero_one, .weights = weights});
  CHECK(within(weights, {0.26894142137, 0.73105857863}, 1e-11 + few_ulps<TestType>) == "");
  CHECK(within(out, {2.46211715726}, 1e-11 + 3 * few_ulps<TestType>) == "");
  const auto first = tensor_of<bool>({2}, {1, 0});
  CHECK(within(means<TestType>(1, {1, 3}, {.visible = first}), {1}, 0) == "");
  const auto uniform = tensor_of<TestType>({2}, {-0.5, -0.5});
  CHECK(within(means<TestType>(1, {1, 3}, {.bias = uniform}), {2}, 0) == "");
}

TEMPLATE_TEST_CASE("causal: key position <= query position, whatever the lengths are", "[B13]", float, double) {
  const auto check = [](std::size_t queries, const std::vector<double>& values, std::optional<std::int64_t> start,
                        const std::vector<double>& expected) {
    CAPTURE(queries, start.has_value());
    CHECK(within(means<TestType>(queries, values, {.causal = true, .query_start = start}), expected,
                 16 * few_ulps<TestType>) == "");
  };
  check(2, counted(1, 5), {}, {2.5, 3});
  check(5, counted(1, 2), {}, {0, 0, 0, 1, 1.5});
  check(1, counted(1, 16), {}, {8.5});
  check(2, counted(1, 5), 0, {1, 1.5});
  check(5, counted(1, 2), 0, {1, 1.5, 1.5, 1.5, 1.5});
  check(1, counted(1, 16), 0, {1});

  const auto whole = means<TestType>(5, counted(1, 5), {.causal = true});
  const auto head = means<TestType>(3, counted(1, 5), {.causal = true, .query_start = 0});
  const auto tail = means<TestType>(2, counted(1, 5), {.causal = true, .query_start = 3});
  CHECK(same_bits(whole.view().slice(1, 0, 3), head) == "");
  CHECK(same_bits(whole.view().slice(1, 3, 2), tail) == "");
  const auto cached = means<TestType>(3, counted(1, 3), {.causal = true});
  CHECK(same_bits(head, cached) == "");
}

TEMPLATE_TEST_CASE("scores far below any sentinel", "[B14]", float, double) {
  const auto first = tensor_of<bool>({2}, {1, 0});
  CHECK(within(one_head<TestType>({-30000}, {1, 0}, {2, 50}, {.scale = 1, .visible = first}), {2}, 0) == "");
  CHECK(within(one_head<TestType>({-30000}, {1, 1.0001}, {1, 0}, {.scale = 1}), {0.952574126822},
               sizeof(TestType) == 4 ? 2e-3 : 1e-9) == "");
}

TEMPLATE_TEST_CASE("only false and -infinity block; the lowest finite number is arithmetic", "[B15]", float, double) {
  constexpr double lowest = static_cast<double>(std::numeric_limits<TestType>::lowest());
  hw::tensor<TestType, 4> weights({1, 1, 1, 3});
  const auto sum_of_two = tensor_of<TestType>({3}, {0, 0, -infinity});  // what lowest + lowest rounds to
  CHECK(within(means<TestType>(1, {1, 2, 4}, {.bias = sum_of_two, .weights = weights}), {1.5}, 0) == "");
  CHECK(within(weights, {0.5, 0.5, 0}, 0) == "");
  const auto once = tensor_of<TestType>({3}, {0, 0, lowest});
  const auto second = tensor_of<bool>({3}, {1, 1, 0});
  CHECK(within(means<TestType>(1, {1, 2, 4}, {.bias = once, .weights = weights}), {1.5}, 0) == "");
  CHECK(within(weights, {0.5, 0.5, 0}, 0) == "");
  CHECK(within(means<TestType>(1, {1, 2, 4}, {.bias = once, .visible = second}), {1.5}, 0) == "");

  const auto everywhere = constant<TestType>({4}, lowest);
  CHECK(within(means<TestType>(1, {1, 2, 4, 9}, {.bias = everywhere}), {4}, 0) == "");
  const auto from_double = constant<TestType>({4}, -DBL_MAX);
  CHECK(within(means<TestType>(1, {1, 2, 4, 9}, {.bias = from_double}), {sizeof(TestType) == 4 ? 0.0 : 4.0}, 0) == "");
}

TEMPLATE_TEST_CASE("what lies in a blocked slot is never used", "[B16]", float, double) {
  const auto first = tensor_of<bool>({2}, {1, 0});
  const auto minus_infinity = tensor_of<TestType>({2}, {0, -infinity});
  const std::vector<std::int64_t> one = {1};
  for (const double poison : {not_a_number, infinity, -infinity}) {
    CAPTURE(poison);
    for (const auto& [k, v] : {std::pair(0.0, poison), std::pair(poison, 0.0), std::pair(poison, poison)}) {
      const auto check = [&, key = k, value = v](hw::attention_options<TestType> options) {
        hw::tensor<TestType, 4> weights({1, 1, 1, 2});
        options.weights = weights;
        CHECK(within(one_head<TestType>({0}, {0, key}, {1, value}, options), {1}, 0) == "");
        CHECK(within(weights, {1, 0}, 0) == "");
      };
      check({.visible = first});
      check({.bias = minus_infinity});
      check({.key_lengths = one});
      check({.causal = true, .query_start = 0});
      check({.query_start = 0, .window = {.right = 0}});
    }
  }
  std::vector<double> cache(64, not_a_number);
  cache[0] = 1;
  CHECK(within(one_head<TestType>({0}, cache, cache, {.key_lengths = one}), {1}, 0) == "");
}

TEMPLATE_TEST_CASE("the default scale is that of the head; a given one replaces it", "[B18]", float, double) {
  // d_model 8 in two heads of 4; head 0 has q · k = 4 for key 0 and 0 for key 1.
  const auto q = tensor_of<TestType>({1, 1, 2, 4}, {1, 1, 1, 1, 0, 0, 0, 0});
  const auto k = tensor_of<TestType>({1, 2, 2, 4}, {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  for (const std::size_t value_dim : sizes{3, 4, 9}) {
    const auto v = constant<TestType>({1, 2, 2, value_dim}, 1);
    hw::tensor<TestType, 4> weights({1, 2, 1, 2});
    hw::scaled_dot_product_attention(q, k, v, hw::attention_options<TestType>{.weights = weights});
    CHECK(within(weights, {0.880797077978, 0.119202922022, 0.5, 0.5}, 1e-11 + few_ulps<TestType>) == "");
    hw::scaled_dot_product_attention(q, k, v, hw::attention_options<TestType>{.scale = 0.25, .weights = weights});
    CHECK(within(weights, {0.73105857863, 0.26894142137, 0.5, 0.5}, 1e-11 + few_ulps<TestType>) == "");
  }
}

TEMPLATE_TEST_CASE("neighbouring query heads share a key head", "[B19]", float, double) {
  const auto heads = [](std::size_t query_heads, std::size_t kv_heads) {
    std::vector<double> values = counted(1, kv_heads);
    for (double& value : values) {
      value *= 10;
    }
    return flat(hw::scaled_dot_product_attention(constant<TestType>({1, 1, query_heads, 1}, 0),
                                                 constant<TestType>({1, 1, kv_heads, 1}, 0),
                                                 tensor_of<TestType>({1, 1, kv_heads, 1}, values)));
  };
  CHECK(heads(4, 2) == std::vector<TestType>{10, 10, 20, 20});
  CHECK(heads(4, 1) == std::vector<TestType>(4, 10));
  CHECK(lacks(error_of([&] { heads(6, 4); }),
              {"scaled_dot_product_attention", "6", "4", "[1, 1, 6, 1]", "[1, 1, 4, 1]"}) == "");

  random_source random(19);
  const auto q = random.tensor<TestType>({2, 5, 6, 16});
  const auto k = random.tensor<TestType>({2, 9, 2, 16});
  const auto v = random.tensor<TestType>({2, 9, 2, 8});
  const auto repeated = [](const auto& x) {
    hw::tensor<TestType, 4> result({2, 9, 6, x.extent(3)});
    support::for_each_index(result.extents(), [&](const auto& at) {
      support::element(result.view(), at) = x(at[0], at[1], at[2] / 3, at[3]);
    });
    return result;
  };
  CHECK(same_bits(hw::scaled_dot_product_attention(q, k, v),
                  hw::scaled_dot_product_attention(q, repeated(k), repeated(v))) == "");
}

TEMPLATE_TEST_CASE("a window counts its keys and applies by itself", "[B20]", float, double) {
  const std::vector<double> values = counted(0, 6);
  const auto all = constant<bool>({6, 6}, 1);
  const auto check = [&](hw::attention_options<TestType> options, const std::vector<double>& expected) {
    CHECK(within(means<TestType>(6, values, options), expected, 5 * few_ulps<TestType>) == "");
    options.visible = all;
    CHECK(within(means<TestType>(6, values, options), expected, 5 * few_ulps<TestType>) == "");
  };
  const std::vector<double> of_three = {0, 0.5, 1, 2, 3, 4};
  const std::vector<double> unlimited = {0, 0.5, 1, 1.5, 2, 2.5};
  check({.causal = true, .window = {.left = 2}}, of_three);
  check({.causal = true, .window = {.left = 0}}, values);
  check({.causal = true, .window = {.left = 5}}, unlimited);
  check({.causal = true, .window = {.left = 99}}, unlimited);
  check({.window = {.left = 2, .right = 0}}, of_three);
  check({.window = {.right = 0}}, unlimited);
  check({.window = {.left = 1, .right = 1}}, {0.5, 1, 2, 3, 4, 4.5});
  CHECK(within(means<TestType>(2, values, {.causal = true, .window = {.left = 2}}), {3, 4}, 5 * few_ulps<TestType>) ==
        "");
  CHECK(error_of([&] { means<TestType>(6, values, {.window = {.left = -1}}); }) != "");
}

TEMPLATE_TEST_CASE("the soft cap comes before bias and masks", "[B21]", float, double) {
  const auto first = tensor_of<bool>({2}, {1, 0});
  CHECK(within(means<TestType>(1, {0, 1}, {.softcap = 2, .visible = first}), {0}, 0) == "");
  hw::tensor<TestType, 3> lse({1, 1, 1});
  one_head<TestType>({3}, {1}, {1}, {.scale = 1, .softcap = 2, .lse = lse});
  CHECK(within(lse, {1.81029650729}, 1e-11 + 4 * few_ulps<TestType>) == "");
  one_head<TestType>({3}, {1}, {1}, {.scale = 1, .softcap = 0, .lse = lse});
  CHECK(within(lse, {3}, 4 * few_ulps<TestType>) == "");
  const auto ten = tensor_of<TestType>({1}, {10});
  one_head<TestType>({3}, {1}, {1}, {.scale = 1, .softcap = 2, .bias = ten, .lse = lse});
  CHECK(within(lse, {11.81029650729}, 1e-11 + 12 * few_ulps<TestType>) == "");
}

TEMPLATE_TEST_CASE("slopes of linear biases for numbers of heads that are no powers of two", "[B22]", float, double) {
  // As exponents of 2.
  const std::vector<std::vector<double>> exponents = {{-8},
                                                      {-4, -8},
                                                      {-2, -4, -6, -8, -1, -3},
                                                      {-1, -2, -3, -4, -5, -6, -7, -8},
                                                      {-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5}};
  for (const std::vector<double>& of_heads : exponents) {
    std::vector<TestType> expected;
    for (const double exponent : of_heads) {
      expected.push_back(static_cast<TestType>(std::exp2(exponent)));
    }
    CHECK(flat(hw::alibi_slopes<TestType>(of_heads.size())) == expected);
  }
}

TEMPLATE_TEST_CASE("the linear bias follows absolute positions, also in decoding", "[B22]", float, double) {
  const std::vector<TestType> slopes = {TestType(0.25)};
  hw::tensor<TestType, 4> weights({1, 1, 1, 3});
  means<TestType>(1, {1, 2, 3}, {.causal = true, .query_start = 2, .alibi_slopes = slopes, .weights = weights});
  const double sum = std::exp(-0.5) + std::exp(-0.25) + 1;
  CHECK(within(weights, {std::exp(-0.5) / sum, std::exp(-0.25) / sum, 1 / sum}, few_ulps<TestType>) == "");

  random_source random(22);
  const auto q = random.tensor<TestType>({1, 6, 1, 8});
  const auto k = random.tensor<TestType>({1, 6, 1, 8});
  const auto v = random.tensor<TestType>({1, 6, 1, 8});
  const hw::attention_options<TestType> options = {.causal = true, .query_start = 0, .alibi_slopes = slopes};
  const auto whole = hw::scaled_dot_product_attention(q, k, v, options);
  const hw::attention_options<TestType> decode = {.causal = true, .query_start = 5, .alibi_slopes = slopes};
  CHECK(same_bits(whole.view().slice(1, 5, 1),
                  hw::scaled_dot_product_attention(q.view().slice(1, 5, 1), k, v, decode)) == "");
}

TEMPLATE_TEST_CASE("strides are obeyed on every axis", "[B23]", float, double) {
  random_source random(23);
  const std::size_t length = 9;
  const std::size_t d_model = 12;
  auto fused = random.tensor<TestType>({1, length, 3 * d_model});
  const auto part = [&](std::size_t n) {
    return hw::tensor_view<const TestType, 4>(fused.data() + n * d_model, {1, length, 3, 4},
                                              {0, static_cast<hw::index>(3 * d_model), 4, 1});
  };
  const auto expected =
      hw::scaled_dot_product_attention(support::packed(part(0)), support::packed(part(1)), support::packed(part(2)));
  CHECK(same_bits(hw::scaled_dot_product_attention(part(0), part(1), part(2)), expected) == "");

  // Channels outermost, so that the innermost stride is not 1, in and out.
  const auto turned = [&](std::size_t n) { return support::packed(part(n).transposed(1, 3)); };
  const auto q = turned(0);
  const auto k = turned(1);
  const auto v = turned(2);
  support::window<TestType, 4> out({1, length, 3, 4}, {.last_stride = 2, .gap = 5});
  hw::scaled_dot_product_attention_into(out.view(), q.view().transposed(1, 3), k.view().transposed(1, 3),
                                        v.view().transposed(1, 3));
  CHECK(same_bits(out.view(), expected) == "");
  CHECK(out.intact());

  auto mask = random.mask({1, length}, 0.5);
  mask(0, 3) = true;
  hw::tensor<bool, 2> repeated({length, length});
  support::for_each_index(repeated.extents(), [&](const auto& at) { repeated(at[0], at[1]) = mask(0, at[1]); });
  const hw::tensor_view<const bool, 2> stride_zero(mask.data(), {length, length}, {0, 1});
  CHECK(same_bits(hw::scaled_dot_product_attention(part(0), part(1), part(2),
                                                   hw::attention_options<TestType>{.visible = stride_zero}),
                  hw::scaled_dot_product_attention(part(0), part(1), part(2),
                                                   hw::attention_options<TestType>{.visible = repeated})) == "");

  // An axis of one element may have any stride.
  TestType number[] = {2, 3, 5};
  const hw::tensor_view<const TestType, 4> single(number, {1, 1, 1, 1}, {-77, 1'000'000'007, 13, -5});
  CHECK(flat(hw::scaled_dot_product_attention(single, single, single)) == std::vector<TestType>{2});
}

TEST_CASE("offsets and sizes are 64 bits wide", "[B24]") {
  static_assert(std::is_same_v<hw::index, std::int64_t>);
  char* const base = reinterpret_cast<char*>(std::uintptr_t{1} << 40);
  const hw::tensor_view<char, 2> rows(base, {16'781'313, 128}, {128, 1});
  CHECK(rows.slice(0, 16'781'312, 1).data() - base == 2'148'007'936);
  const hw::tensor_view<char, 2> mask(base, {46'342, 46'341}, {46'341, 1});
  CHECK(mask.slice(0, 46'341, 1).data() - base == 2'147'488'281);
  CHECK(error_of([] { hw::tensor<float, 2>({std::size_t{1} << 31, std::size_t{1} << 31}); }) != "");

  float number = 0;
  const std::size_t huge = std::size_t{1} << 31;
  const hw::tensor_view<const float, 4> q(&number, {huge, huge, 2, 1}, {0, 0, 0, 0});
  const hw::tensor_view<const float, 4> k(&number, {huge, 1, 2, 1}, {0, 0, 0, 0});
  CHECK(error_of([&] { hw::scaled_dot_product_attention(q, k, k); }) != "");
}

TEMPLATE_TEST_CASE("extents of zero", "[B25]", float, double) {
  const auto run = [](std::size_t queries, std::size_t keys, std::size_t heads, std::size_t head_dim,
                      std::size_t value_dim, hw::attention_options<TestType> options = {}) {
    return hw::scaled_dot_product_attention(constant<TestType>({1, queries, heads, head_dim}, 1),
                                            constant<TestType>({1, keys, heads, head_dim}, 1),
                                            constant<TestType>({1, keys, heads, value_dim}, 1), options);
  };
  CHECK(run(0, 4, 2, 3, 5).extents() == support::extents<4>{1, 0, 2, 5});
  hw::tensor<TestType, 3> lse({1, 1, 3});
  CHECK(within(run(3, 0, 1, 2, 2, {.lse = lse}), std::vector<double>(6, 0), 0) == "");
  CHECK(within(lse, {-infinity, -infinity, -infinity}, 0) == "");
  CHECK(run(3, 4, 2, 3, 0).extents() == support::extents<4>{1, 3, 2, 0});
  CHECK(error_of([&] { run(3, 4, 0, 3, 5); }) != "");

  const auto no_channels =
      hw::scaled_dot_product_attention(constant<TestType>({1, 1, 1, 0}, 0), constant<TestType>({1, 2, 1, 0}, 0),
                                       tensor_of<TestType>({1, 2, 1, 1}, {1, 3}));
  CHECK(within(no_channels, {2}, 0) == "");

  const std::vector<std::int64_t> lengths = {0, 2};
  const auto out = hw::scaled_dot_product_attention(
      constant<TestType>({2, 1, 1, 1}, 0), constant<TestType>({2, 2, 1, 1}, 0),
      tensor_of<TestType>({2, 2, 1, 1}, {1, 3, 1, 3}), hw::attention_options<TestType>{.key_lengths = lengths});
  CHECK(within(out, {0, 2}, 0) == "");
}

TEMPLATE_TEST_CASE("weights per head and their mean", "[B27]", float, double) {
  const auto q = constant<TestType>({1, 1, 2, 4}, 0);
  const auto k = constant<TestType>({1, 2, 2, 4}, 0);
  const auto v = tensor_of<TestType>({1, 2, 2, 1}, {1, 2, 3, 4});
  const auto visible = tensor_of<bool>({1, 2, 1, 2}, {1, 0, 1, 1});
  hw::tensor<TestType, 4> weights({1, 2, 1, 2});
  hw::tensor<TestType, 3> mean({1, 1, 2});
  const hw::attention_options<TestType> asked = {.visible = visible, .weights = weights, .mean_weights = mean};
  const auto out = hw::scaled_dot_product_attention(q, k, v, asked);
  CHECK(flat(weights) == std::vector<TestType>{1, 0, 0.5, 0.5});
  CHECK(flat(mean) == std::vector<TestType>{0.75, 0.25});
  CHECK(same_bits(
            out, hw::scaled_dot_product_attention(q, k, v, hw::attention_options<TestType>{.visible = visible})) == "");

  random_source random(27);
  const auto many_q = random.tensor<TestType>({2, 6, 3, 8});
  const auto many_k = random.tensor<TestType>({2, 50, 3, 8});
  const auto many_v = random.tensor<TestType>({2, 50, 3, 8});
  auto mask = random.mask({2, 3, 6, 50}, 0.4);
  for (std::size_t j = 0; j < 50; ++j) {
    mask(1, 2, 3, j) = false;
  }
  hw::tensor<TestType, 4> many({2, 3, 6, 50});
  hw::scaled_dot_product_attention(many_q, many_k, many_v,
                                   hw::attention_options<TestType>{.visible = mask, .weights = many});
  for (std::size_t row = 0; row < 36; ++row) {
    double sum = 0;
    for (std::size_t j = 0; j < 50; ++j) {
      sum += static_cast<double>(many.data()[row * 50 + j]);
    }
    CAPTURE(row);
    CHECK(std::fabs(sum - (row == (1 * 3 + 2) * 6 + 3 ? 0 : 1)) <= few_ulps<TestType>);
  }
}

TEMPLATE_TEST_CASE("dropout: weights are those before it, what is kept grows, all may be dropped", "[B27]", float,
                   double) {
  const std::size_t queries = 40, keys = 16;
  hw::tensor<TestType, 4> v({1, keys, 1, keys}), weights({1, 1, queries, keys});
  for (std::size_t j = 0; j < keys; ++j) {
    v(0, j, 0, j) = 1;
  }
  const auto q = constant<TestType>({1, queries, 1, 1}, 0);
  const auto k = constant<TestType>({1, keys, 1, 1}, 0);
  const auto run = [&](double probability, std::uint64_t seed, hw::tensor_view<TestType, 4> wanted = {}) {
    return hw::scaled_dot_product_attention(
        q, k, v, hw::attention_options<TestType>{.dropout = {probability, seed}, .weights = wanted});
  };
  // An output is a row of weights after dropout: 0, or 1 / 16 divided by 1 - 0.75.
  const auto out = run(0.75, 1, weights);
  std::size_t kept = 0, others = 0;
  for (const TestType x : out) {
    kept += x == TestType(0.25);
    others += x != TestType(0.25) && x != 0;
  }
  CHECK(others == 0);
  // Of 640 weights 160 are expected, with a standard deviation of 11.
  CHECK(kept > 160 - 44);
  CHECK(kept < 160 + 44);
  CHECK(within(weights, std::vector<double>(queries * keys, 0.0625), 0) == "");
  CHECK(same_bits(out, run(0.75, 1)) == "");
  CHECK(same_bits(out, run(0.75, 2)) != "");
  CHECK(same_bits(run(0, 1), hw::scaled_dot_product_attention(q, k, v)) == "");
  CHECK(within(run(1, 1, weights), std::vector<double>(queries * keys, 0), 0) == "");
  CHECK(within(weights, std::vector<double>(queries * keys, 0.0625), 0) == "");
  for (const double probability : {-0.1, 1.1, not_a_number, infinity}) {
    CHECK(lacks(error_of([&] { run(probability, 1); }), {"dropout.probability"}) == "");
  }
}

TEMPLATE_TEST_CASE("an explicit zero is given", "[E05]", float, double) {
  hw::tensor<TestType, 4> weights({1, 1, 1, 2});
  one_head<TestType>({3}, {1, 2}, {1, 3}, {.scale = 0, .weights = weights});
  CHECK(flat(weights) == std::vector<TestType>{0.5, 0.5});
  const std::vector<TestType> zero = {0};
  one_head<TestType>({3}, {1, 2}, {1, 3}, {.head_scales = zero, .weights = weights});
  CHECK(flat(weights) == std::vector<TestType>{0.5, 0.5});
  CHECK(within(means<TestType>(1, {1, 3}, {.causal = true, .query_start = 0}), {1}, 0) == "");
  CHECK(within(means<TestType>(1, {1, 3}, {.causal = true}), {2}, 0) == "");
  CHECK(within(means<TestType>(1, {1, 3}, {.window = {.left = 0}}), {3}, 0) == "");
  const std::vector<std::int64_t> none = {0};
  CHECK(within(means<TestType>(1, {1, 3}, {.query_lengths = none}), {0}, 0) == "");
  CHECK(within(means<TestType>(1, {1, 3}, {.key_lengths = none}), {0}, 0) == "");
  CHECK(within(means<TestType>(1, {1, 3}, {.sinks = zero}), {4 / 3.0}, 4 * few_ulps<TestType>) == "");
}

TEMPLATE_TEST_CASE("samples have masks of their own, with -infinity in them", "[E09]", float, double) {
  const auto q = constant<TestType>({3, 2, 1, 1}, 0);
  const auto k = constant<TestType>({3, 3, 1, 1}, 0);
  const auto v = tensor_of<TestType>({3, 3, 1, 1}, {1, 2, 6, 1, 2, 6, 1, 2, 6});
  const std::vector<double> expected = {1.5, 1.5, 6, 6, 0, 0};
  const auto check = [&](const hw::attention_options<TestType>& options, const auto&... rules) {
    CHECK(within(hw::scaled_dot_product_attention(q, k, v, options, rules...), expected, 0) == "");
  };
  const auto visible = tensor_of<bool>({3, 1, 1, 3}, {1, 1, 0, 0, 0, 1, 0, 0, 0});
  check({.visible = visible});
  const auto bias =
      tensor_of<TestType>({3, 1, 1, 3}, {0, 0, -infinity, -infinity, -infinity, 0, -infinity, -infinity, -infinity});
  check({.bias = bias});
  check({}, [](hw::score_position at) { return at.batch == 0 ? at.key < 2 : at.batch == 1 && at.key == 2; });
}

TEMPLATE_TEST_CASE("large finite logits and every shape of a mask", "[B35]", float, double) {
  const std::vector<double> weights_of_one_apart = {0.73105857863, 0.26894142137};
  hw::tensor<TestType, 4> weights({1, 1, 1, 2});
  one_head<TestType>({1}, {10000, 9999}, {1, 0}, {.scale = 1, .weights = weights});
  CHECK(within(weights, weights_of_one_apart, sizeof(TestType) == 4 ? 2e-3 : 1e-11) == "");

  const auto q = constant<TestType>({1, 1, 1, 4}, 1.2e19);
  const auto k = tensor_of<TestType>({1, 2, 1, 4}, {1.2e19, 1.2e19, 1.2e19, 1.2e19, 0, 0, 0, 0});
  hw::scaled_dot_product_attention(q, k, tensor_of<TestType>({1, 2, 1, 1}, {1, 0}),
                                   hw::attention_options<TestType>{.weights = weights});
  CHECK(flat(weights) == std::vector<TestType>{1, 0});

  random_source random(35);
  const auto many_q = random.tensor<TestType>({2, 4, 3, 8}, 100);
  const auto many_k = random.tensor<TestType>({2, 5, 3, 8}, 100);
  const auto many_v = random.tensor<TestType>({2, 5, 3, 8});
  const auto plain = hw::scaled_dot_product_attention(many_q, many_k, many_v);
  const auto check = [&](const auto& mask) {
    CAPTURE(support::text_of(mask.extents()));
    CHECK(same_bits(plain, hw::scaled_dot_product_attention(many_q, many_k, many_v,
                                                            hw::attention_options<TestType>{.visible = mask})) == "");
  };
  check(constant<bool>({5}, 1));
  check(constant<bool>({1, 1, 1, 5}, 1));
  check(constant<bool>({2, 1, 1, 5}, 1));
  check(constant<bool>({4, 5}, 1));
  check(constant<bool>({2, 3, 4, 5}, 1));
  const auto short_mask = constant<bool>({4}, 1);
  CHECK(lacks(error_of([&] {
                hw::scaled_dot_product_attention(many_q, many_k, many_v,
                                                 hw::attention_options<TestType>{.visible = short_mask});
              }),
              {"scaled_dot_product_attention", "visible", "[1, 1, 1, 4]", "[2, 3, 4, 5]"}) == "");
}
