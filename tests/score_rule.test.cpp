// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/masks.hpp>
#include <headwave/multi_head_attention.hpp>
#include <headwave/score_rule.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

/// \file
/// A caller's own rules: what they are given, when, in which order, and what becomes of their answers.

namespace hw = headwave;
using hw::score_position;
using support::constant;
using support::infinity;
using support::not_a_number;
using support::random_source;
using support::same_bits;
using support::tensor_of;
using support::within;

namespace {

template <class T>
constexpr double few_ulps = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());

/// Weights and lse of one query of zero against keys of zero, so that every score is what the rules make of 0.
template <class T>
struct from_zero {
  hw::tensor<T, 4> weights, out;
  hw::tensor<T, 3> lse{std::array<std::size_t, 3>{1, 1, 1}};

  template <class... Rules>
  explicit from_zero(const std::vector<double>& values, hw::attention_options<T> options, const Rules&... rules)
      : weights({1, 1, 1, values.size()}), out({1, 1, 1, 1}) {
    options.weights = weights;
    options.lse = lse;
    out = hw::scaled_dot_product_attention(constant<T>({1, 1, 1, 1}, 0), constant<T>({1, values.size(), 1, 1}, 0),
                                           tensor_of<T>({1, values.size(), 1, 1}, values), options, rules...);
  }
};

/// (sample, head, query, key) of every question.
using position_list = std::vector<std::array<std::int64_t, 4>>;

struct recorder {
  position_list& asked;
  template <class T>
  T operator()(T score, score_position at) const {
    asked.push_back({at.batch, at.head, at.query, at.key});
    return score;
  }
};

position_list sorted(position_list positions) {
  std::sort(positions.begin(), positions.end());
  return positions;
}

template <class T>
T halved(T s, score_position) {
  return s / 2;
}
double halved_in_double(double s, score_position) {
  return s / 2;
}
bool is_even(score_position at) {
  return at.key % 2 == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("a rule makes the score", "[score_rule]", float, double) {
  const auto doubling = [](TestType s, score_position at) {
    return s + static_cast<TestType>(std::log(2.0) * static_cast<double>(at.key));
  };
  const from_zero<TestType> powers({7, 14, 21}, {}, doubling);
  CHECK(within(powers.weights, {1 / 7.0, 2 / 7.0, 4 / 7.0}, few_ulps<TestType>) == "");
  CHECK(within(powers.out, {17}, 21 * few_ulps<TestType>) == "");
  CHECK(within(powers.lse, {std::log(7.0)}, 2 * few_ulps<TestType>) == "");

  // The score that a rule is given is scaled.
  std::vector<double> given;
  const auto note = [&](TestType s, score_position) {
    given.push_back(static_cast<double>(s));
    return s;
  };
  const auto q = tensor_of<TestType>({1, 1, 1, 4}, {1, 2, 3, 4});
  const auto k = tensor_of<TestType>({1, 2, 1, 4}, {1, 1, 1, 1, 2, 0, 0, -1});
  hw::scaled_dot_product_attention(q, k, k, {}, note);
  CHECK(given == std::vector<double>{5, -1});
  given.clear();
  hw::scaled_dot_product_attention(q, k, k, hw::attention_options<TestType>{.scale = -2}, note);
  CHECK(given == std::vector<double>{-20, 4});
}

TEMPLATE_TEST_CASE("a rule may compute in another type", "[score_rule]", float, double) {
  const auto in_double = [](double s, score_position at) { return s + std::log(1.0 + static_cast<double>(at.key)); };
  CHECK(within(from_zero<TestType>({0, 0, 0, 0}, {}, in_double).weights, {0.1, 0.2, 0.3, 0.4}, few_ulps<TestType>) ==
        "");
  const auto in_float = [](float s, score_position at) { return s + static_cast<float>(at.key == 1 ? 1 : 0); };
  CHECK(within(from_zero<TestType>({0, 0}, {}, in_float).lse, {std::log(1 + std::exp(1.0))}, few_ulps<TestType>) == "");
  // A float rounds the score on its way, if attention computes in double.
  const auto rounded = [](float s, score_position) { return s; };
  const from_zero<TestType> tenth({0}, {}, [](double, score_position) { return 0.1; }, rounded);
  CHECK(within(tenth.lse, {static_cast<double>(0.1f)}, few_ulps<TestType>) == "");
  // A double that no float can hold becomes infinite there, by its conversion.
  const auto huge = [](double, score_position at) { return at.key == 0 ? -1e300 : 0.0; };
  CHECK(within(from_zero<TestType>({not_a_number, 3}, {}, huge).weights, {0, 1}, 0) == "");
}

TEMPLATE_TEST_CASE("rules apply in the order in which they are written", "[score_rule]", float, double) {
  const auto plus_one = [](TestType s, score_position) { return s + 1; };
  const auto twice = [](TestType s, score_position) { return 2 * s; };
  const auto square = [](TestType s, score_position) { return s * s; };
  CHECK(within(from_zero<TestType>({0}, {}, plus_one, twice).lse, {2}, few_ulps<TestType>) == "");
  CHECK(within(from_zero<TestType>({0}, {}, twice, plus_one).lse, {1}, few_ulps<TestType>) == "");
  CHECK(within(from_zero<TestType>({0}, {}, plus_one, twice, plus_one, square, twice).lse, {18},
               18 * few_ulps<TestType>) == "");
  // A mask among them, in any place, hides whatever the others say.
  const auto second = hw::visible_if([](score_position at) { return at.key == 1; });
  for (const double value : {1.0, not_a_number}) {
    const from_zero<TestType> first({value, 3}, {}, second, plus_one, twice);
    CHECK(within(first.lse, {2}, few_ulps<TestType>) == "");
    CHECK(within(first.out, {3}, 0) == "");
    CHECK(within(from_zero<TestType>({value, 3}, {}, plus_one, second, twice).lse, {2}, few_ulps<TestType>) == "");
    CHECK(within(from_zero<TestType>({value, 3}, {}, plus_one, twice, second).lse, {2}, few_ulps<TestType>) == "");
  }
}

TEMPLATE_TEST_CASE("rules come after soft cap, biases and ALiBi, and before visibility", "[score_rule]", float,
                   double) {
  const std::vector<TestType> slopes = {TestType(0.5)};
  const auto bias = tensor_of<TestType>({1}, {0.25});
  const auto by_distance = tensor_of<TestType>({1, 3}, {8, 16, 32});
  double given = 0;
  const auto note = [&](TestType s, score_position) {
    given = static_cast<double>(s);
    return TestType(1);
  };
  hw::tensor<TestType, 3> lse({1, 1, 1});
  const auto run = [&](hw::attention_options<TestType> options) {
    options.lse = lse;
    hw::scaled_dot_product_attention(constant<TestType>({1, 1, 1, 1}, 3), constant<TestType>({1, 1, 1, 1}, 1),
                                     constant<TestType>({1, 1, 1, 1}, 1), options, note);
    return given;
  };
  const double capped = 2 * std::tanh(1.5);
  CHECK(std::fabs(run({.softcap = 2}) - capped) < 4 * few_ulps<TestType>);
  CHECK(std::fabs(run({.softcap = 2, .bias = bias}) - (capped + 0.25)) < 4 * few_ulps<TestType>);
  CHECK(std::fabs(run({.softcap = 2, .bias = bias, .query_start = 4, .alibi_slopes = slopes}) - (capped - 1.75)) <
        4 * few_ulps<TestType>);
  CHECK(std::fabs(run({.bias = bias, .distance_bias = by_distance, .query_start = 4}) - 11.25) <
        16 * few_ulps<TestType>);
  CHECK(within(lse, {1}, few_ulps<TestType>) == "");
  // What the options hide stays hidden, though the rule gives it a score.
  const auto hidden = constant<bool>({1}, 0);
  run({.visible = hidden});
  CHECK(within(lse, {-infinity}, 0) == "");
  const auto blocking = tensor_of<TestType>({1}, {-infinity});
  run({.bias = blocking});
  CHECK(within(lse, {-infinity}, 0) == "");
  const auto blocking_distance = tensor_of<TestType>({1, 1}, {-infinity});
  run({.distance_bias = blocking_distance});
  CHECK(within(lse, {-infinity}, 0) == "");
}

TEMPLATE_TEST_CASE("a rule may throw the score away, and hide by -infinity", "[score_rule]", float, double) {
  // Keys and queries that are NaN do not matter to a rule that does not look at their product.
  const auto by_key = [](TestType, score_position at) { return at.key; };
  for (const std::size_t rows : {1u, 5u, 17u}) {
    CAPTURE(rows);
    hw::tensor<TestType, 3> lse({1, 1, rows});
    const auto out = hw::scaled_dot_product_attention(
        constant<TestType>({1, rows, 1, 3}, not_a_number), constant<TestType>({1, 2, 1, 3}, infinity),
        constant<TestType>({1, 2, 1, 1}, 5), hw::attention_options<TestType>{.lse = lse}, by_key);
    CHECK(within(out, std::vector<double>(rows, 5), 5 * few_ulps<TestType>) == "");
    CHECK(within(lse, std::vector<double>(rows, std::log(1 + std::exp(1.0))), 2 * few_ulps<TestType>) == "");

    const auto third = [](TestType s, score_position at) {
      return at.key % 3 == 2 ? s : -std::numeric_limits<TestType>::infinity();
    };
    const std::size_t count = 400;
    hw::tensor<TestType, 4> v({1, count, 1, 2});
    for (std::size_t j = 0; j < count; ++j) {
      v(0, j, 0, 0) = v(0, j, 0, 1) = static_cast<TestType>(j % 3 == 2 ? 1.0 : j % 3 ? infinity : not_a_number);
    }
    hw::tensor<TestType, 4> weights({1, 1, rows, count});
    const auto zeros = constant<TestType>({1, rows, 1, 1}, 0);
    const auto k = constant<TestType>({1, count, 1, 1}, 0);
    const auto ones = std::vector<double>(2 * rows, 1);
    CHECK(within(hw::scaled_dot_product_attention(zeros, k, v, {}, third), ones, few_ulps<TestType>) == "");
    CHECK(within(
              hw::scaled_dot_product_attention(zeros, k, v, hw::attention_options<TestType>{.weights = weights}, third),
              ones, few_ulps<TestType>) == "");
    CHECK(weights(0, 0, rows - 1, 3) == 0);

    const auto nothing = [](TestType, score_position) { return -std::numeric_limits<TestType>::infinity(); };
    CHECK(within(hw::scaled_dot_product_attention(zeros, k, v, hw::attention_options<TestType>{.lse = lse}, nothing),
                 std::vector<double>(2 * rows, 0), 0) == "");
    CHECK(within(lse, std::vector<double>(rows, -infinity), 0) == "");
  }
}

TEMPLATE_TEST_CASE("anything that can be called is a rule", "[score_rule]", float, double) {
  random_source random(21);
  const auto q = random.tensor<TestType>({1, 4, 2, 4});
  const auto k = random.tensor<TestType>({1, 9, 2, 4});
  const auto v = random.tensor<TestType>({1, 9, 2, 4});
  const auto run = [&](const auto&... rules) { return hw::scaled_dot_product_attention(q, k, v, {}, rules...); };
  const auto half = run([](TestType s, score_position) { return s / 2; });
  CHECK(same_bits(half, hw::scaled_dot_product_attention(q, k, v, hw::attention_options<TestType>{.scale = 0.25})) ==
        "");
  CHECK(same_bits(run(halved<TestType>), half) == "");
  CHECK(same_bits(run(&halved<TestType>), half) == "");
  CHECK(same_bits(run(halved_in_double), half) == "");
  CHECK(same_bits(run(std::function<TestType(TestType, score_position)>(halved<TestType>)), half) == "");
  struct divided {
    TestType by;
    TestType operator()(TestType s, const score_position&) const { return s / by; }
  };
  const divided by_two{2};
  CHECK(same_bits(run(by_two), half) == "");
  CHECK(same_bits(run(std::cref(by_two)), half) == "");
  CHECK(same_bits(run([](auto s, auto) { return s / 2; }), half) == "");
  CHECK(same_bits(run([](TestType s, score_position) noexcept { return s / 2; }), half) == "");

  const auto even = run(hw::visible_if([](score_position at) { return at.key % 2 == 0; }));
  CHECK(same_bits(run(is_even), even) == "");
  CHECK(same_bits(run(&is_even), even) == "");
  CHECK(same_bits(run(hw::visible_if(is_even)), even) == "");
  CHECK(same_bits(run(hw::visible_if(is_even) && hw::visible_if(&is_even)), even) == "");
  CHECK(same_bits(run([](score_position at) { return at.key % 2 == 0; }), even) == "");
  CHECK(same_bits(run(std::function<bool(score_position)>(is_even)), even) == "");
  std::vector<bool> seen(9);
  for (std::size_t j = 0; j < 9; j += 2) {
    seen[j] = true;
  }
  CHECK(same_bits(run([&](score_position at) { return seen[static_cast<std::size_t>(at.key)]; }), even) == "");
  const hw::distance_mask<bool (*)(std::int64_t)> near{[](std::int64_t d) { return d > -2; }};
  CHECK(same_bits(run(near), run([](score_position at) { return at.key - at.query > -2; })) == "");
}

namespace {

/// Every position that lengths, causality and window leave, in order.
template <class T>
position_list left_by(const hw::attention_options<T>& options, std::size_t batch, std::size_t heads,
                      const std::vector<std::size_t>& query_lengths, const std::vector<std::size_t>& key_lengths) {
  position_list positions;
  for (std::size_t b = 0; b < batch; ++b) {
    const auto queries = static_cast<std::int64_t>(query_lengths[b]), keys = static_cast<std::int64_t>(key_lengths[b]);
    const std::int64_t start = !options.query_starts.empty() ? options.query_starts[b]
                               : options.query_start         ? *options.query_start
                                                             : keys - queries;
    const std::int64_t rows = options.query_lengths.empty() ? queries : (std::min)(queries, options.query_lengths[b]);
    const std::int64_t last = options.key_lengths.empty() ? keys : (std::min)(keys, options.key_lengths[b]);
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::int64_t i = start; i < start + rows; ++i) {
        for (std::int64_t j = 0; j < last; ++j) {
          const bool left = (!options.causal || j <= i) &&
                            (options.window.left == hw::unlimited || j >= i - options.window.left) &&
                            (options.window.right == hw::unlimited || j <= i + options.window.right);
          if (left) {
            positions.push_back({static_cast<std::int64_t>(b), static_cast<std::int64_t>(h), i, j});
          }
        }
      }
    }
  }
  return positions;
}

}  // namespace

TEMPLATE_TEST_CASE("a rule is asked once about each position that is left", "[score_rule]", float, double) {
  const std::vector<std::int64_t> starts = {-2, 5}, queries = {3, 1}, keys = {7, 280};
  for (const auto& shape : {std::array<std::size_t, 4>{5, 300, 4, 2}, {2, 300, 3, 1}, {1, 17, 2, 2}, {19, 40, 4, 1}}) {
    const std::size_t rows = shape[0], count = shape[1], heads = shape[2], kv_heads = shape[3];
    CAPTURE(rows, count, heads, kv_heads);
    random_source random(3);
    const auto q = random.tensor<TestType>({2, rows, heads, 4});
    const auto k = random.tensor<TestType>({2, count, kv_heads, 4});
    const auto check = [&](const hw::attention_options<TestType>& options) {
      position_list asked;
      hw::scaled_dot_product_attention(q, k, k, options, recorder{asked});
      const auto expected = left_by(options, 2, heads, {rows, rows}, {count, count});
      CHECK(asked.size() == expected.size());
      CHECK(sorted(asked) == expected);
    };
    check({});
    check({.query_start = 3});
    check({.causal = true});
    check({.causal = true, .query_starts = starts});
    check({.query_start = -4, .window = {.left = 6, .right = 2}});
    check({.query_start = 9, .window = {.left = 0}});
    if (count == 300 && rows >= 3) {
      check({.query_lengths = queries, .key_lengths = keys});
      check({.causal = true, .query_starts = starts, .window = {.left = 9}, .key_lengths = keys});
    }
  }
}

TEMPLATE_TEST_CASE("a rule sees the sample, head and positions of a packed sequence", "[score_rule]", float, double) {
  random_source random(4);
  const std::vector<std::int64_t> query_offsets = {0, 3, 3, 8, 20}, key_offsets = {0, 5, 9, 14, 20};
  const std::vector<std::int64_t> starts = {7, 0, -1, 2};
  const auto q = random.tensor<TestType>({1, 20, 4, 4});
  const auto k = random.tensor<TestType>({1, 22, 2, 4});
  hw::tensor<TestType, 3> mass({1, 4, 22});
  for (const bool given : {false, true}) {
    for (const bool with_mass : {false, true}) {
      hw::attention_options<TestType> options = {
          .causal = given, .query_offsets = query_offsets, .key_offsets = key_offsets};
      options.query_starts = given ? std::span<const std::int64_t>(starts) : std::span<const std::int64_t>();
      if (with_mass) {
        options.key_mass = mass;
      }
      position_list asked;
      hw::scaled_dot_product_attention(q, k, k, options, recorder{asked});
      CHECK(sorted(asked) == left_by(options, 4, 4, {3, 0, 5, 12}, {5, 4, 5, 6}));
    }
  }

  // A mask of documents, by sample, is the same as no mask in a sequence of its own.
  const std::vector<std::int64_t> ids = {1, 1, 2, 2, 2, 9, 3, 3, 3, 9, 9, 9, 4, 4, 5, 5, 5, 9, 6, 6, 6, 7, 7, 7};
  const hw::tensor_view<const std::int64_t, 2> of_samples(ids, {4, 6});
  const hw::attention_options<TestType> options = {.query_offsets = query_offsets, .key_offsets = key_offsets};
  const auto out = hw::scaled_dot_product_attention(q, k, k, options, hw::document_mask(of_samples));
  for (const std::size_t n : {0u, 2u, 3u}) {
    const auto part = [&](const auto& x, const std::vector<std::int64_t>& offsets) {
      return x.view().slice(1, static_cast<std::size_t>(offsets[n]),
                            static_cast<std::size_t>(offsets[n + 1] - offsets[n]));
    };
    const auto keys_of = part(k, key_offsets);
    CHECK(same_bits(part(out, query_offsets),
                    hw::scaled_dot_product_attention(
                        part(q, query_offsets), keys_of, keys_of, {},
                        hw::document_mask(std::span<const std::int64_t>(ids).subspan(6 * n, 6)))) == "");
  }
}

TEMPLATE_TEST_CASE("few rows have the bits of a prefill under rules", "[score_rule][decode][bits]", float, double) {
  random_source random(5);
  const std::size_t count = 600;
  const auto table = random.tensor<TestType>({2, 4, count, count});
  const auto from_table = [&](TestType s, score_position at) {
    return s + table(static_cast<std::size_t>(at.batch), static_cast<std::size_t>(at.head),
                     static_cast<std::size_t>(at.query), static_cast<std::size_t>(at.key));
  };
  const auto squashed = [](TestType s, score_position at) {
    return at.key % 5 == 3 ? -std::numeric_limits<TestType>::infinity() : s / (1 + (s < 0 ? -s : s));
  };
  const auto q = random.tensor<TestType>({2, count, 4, 8});
  const auto k = random.tensor<TestType>({2, count, 2, 8});
  const auto v = random.tensor<TestType>({2, count, 2, 6});
  const hw::window_mask window{.left = 400};
  const hw::global_mask global{3};
  const hw::attention_options<TestType> options = {.causal = true};
  const auto all = [&](const auto& queries, const hw::attention_options<TestType>& o) {
    return hw::scaled_dot_product_attention(queries, k, v, o, from_table, window || global, squashed);
  };
  // 18 rows are a prefill, and lead back to the definition by the tests of masks and of this file.
  const auto prefill = all(q.view().slice(1, count - 18, 18), options);
  for (const std::size_t rows : {1u, 2u, 3u, 4u, 7u, 8u}) {
    CAPTURE(rows);
    CHECK(same_bits(prefill.view().slice(1, 18 - rows, rows), all(q.view().slice(1, count - rows, rows), options)) ==
          "");
  }
  hw::tensor<TestType, 3> entropy({2, 4, 2});
  CHECK(same_bits(prefill.view().slice(1, 16, 2),
                  all(q.view().slice(1, count - 2, 2),
                      hw::attention_options<TestType>{.causal = true, .entropy = entropy})) == "");
  // The table as a bias, and the masks as a tensor.
  hw::tensor<bool, 2> visible({18, count});
  support::for_each_index(visible.extents(), [&](const auto& at) {
    const std::size_t query = count - 18 + at[0];
    visible(at[0], at[1]) = at[1] % 5 != 3 && (at[1] + 400 >= query || at[1] < 3);
  });
  const auto bias = table.view().slice(2, count - 18, 18);
  const auto only_squashed = [](TestType s, score_position) { return s / (1 + (s < 0 ? -s : s)); };
  CHECK(same_bits(prefill, hw::scaled_dot_product_attention(
                               q.view().slice(1, count - 18, 18), k, v,
                               hw::attention_options<TestType>{.bias = bias, .visible = visible, .causal = true},
                               only_squashed)) == "");
}

TEMPLATE_TEST_CASE("sums of weights under rules, some rows at a time", "[score_rule]", float, double) {
  // So many keys that the rows are taken in several parts.
  const std::size_t rows = 37, count = 40000;
  const auto q = constant<TestType>({1, rows, 2, 1}, 0);
  const auto k = constant<TestType>({1, count, 1, 1}, 0);
  const std::vector<std::int64_t> starts = {2}, lengths = {36};
  hw::tensor<TestType, 3> mean({1, rows, count}), mass({1, 2, count}), lse({1, 2, rows});
  hw::tensor<TestType, 4> weights({1, 2, 1, count});
  const std::vector<std::int64_t> wanted = {33};
  // Query i sees the keys i * 1000 + 0 .. 3, in head 1 the first of them only.
  const auto own = hw::visible_if(
      [](score_position at) { return at.key / 1000 == at.query && at.key % 1000 < (at.head == 1 ? 1 : 4); });
  hw::scaled_dot_product_attention(q, k, k,
                                   hw::attention_options<TestType>{.query_starts = starts,
                                                                   .query_lengths = lengths,
                                                                   .lse = lse,
                                                                   .weights = weights,
                                                                   .weight_rows = wanted,
                                                                   .mean_weights = mean,
                                                                   .key_mass = mass},
                                   own);
  std::size_t faults = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < count; ++j) {
      const bool seen = i < 36 && j / 1000 == i + 2 && j % 1000 < 4;
      const double expected = !seen ? 0 : j % 1000 == 0 ? (0.25 + 1) / 2 : 0.25 / 2;
      faults += static_cast<double>(mean(0, i, j)) != expected;
      if (i == 33) {
        faults += static_cast<double>(weights(0, 0, 0, j)) != (seen ? 0.25 : 0);
        faults += static_cast<double>(weights(0, 1, 0, j)) != (seen && j % 1000 == 0 ? 1 : 0);
      }
    }
    for (std::size_t h = 0; h < 2; ++h) {
      const double expected = i == 36 ? -infinity : h == 1 ? 0 : std::log(4.0);
      const double actual = static_cast<double>(lse(0, h, i));
      faults += !(actual == expected || std::fabs(actual - expected) < few_ulps<TestType>);
    }
  }
  for (std::size_t j = 0; j < count; ++j) {
    const std::size_t query = j / 1000;
    const bool seen = query >= 2 && query < 38 && j % 1000 < 4;
    faults += static_cast<double>(mass(0, 0, j)) != (seen ? 0.25 : 0);
    faults += static_cast<double>(mass(0, 1, j)) != (seen && j % 1000 == 0 ? 1 : 0);
  }
  CHECK(faults == 0);
}

TEMPLATE_TEST_CASE("rules of the multi-head layer", "[score_rule][multi_head_attention]", float, double) {
  random_source random(6);
  const auto x = random.tensor<TestType>({2, 11, 12});
  const auto memory = random.tensor<TestType>({2, 7, 12});
  const auto bias = random.tensor<TestType>({2, 3, 11, 11});
  const auto from_bias = [&](TestType s, score_position at) {
    return s + bias(static_cast<std::size_t>(at.batch), static_cast<std::size_t>(at.head),
                    static_cast<std::size_t>(at.query), static_cast<std::size_t>(at.key));
  };
  for (const bool added : {false, true}) {
    CAPTURE(added);
    hw::multi_head_attention<TestType> layer(
        {.d_model = 12, .heads = 3, .add_bias_kv = added, .add_zero_attention = added});
    layer.init_xavier(1);
    CHECK(same_bits(layer(x, {}, from_bias, hw::causal_mask{}), layer(x, {.bias = bias, .causal = true})) == "");
    CHECK(same_bits(layer(x, memory, memory, {.query_start = 0}, hw::window_mask{2, 1}),
                    layer(x, memory, memory, {.query_start = 0, .window = {2, 1}})) == "");
    hw::tensor<TestType, 3> out({2, 11, 12});
    layer.apply_into(out, x, {}, hw::causal_mask{});
    CHECK(same_bits(out, layer(x, {.causal = true})) == "");
    layer.apply_into(out, x, memory, memory, {.query_start = 0}, hw::causal_mask{});
    CHECK(same_bits(out, layer(x, memory, memory, {.causal = true, .query_start = 0})) == "");
    // Keys that the layer adds are no positions.
    position_list asked;
    hw::tensor<TestType, 4> weights({2, 3, 11, added ? 9u : 7u});
    layer(x, memory, memory, {.weights = weights}, recorder{asked});
    CHECK(sorted(asked) == left_by(hw::attention_options<TestType>{}, 2, 3, {11, 11}, {7, 7}));
    asked.clear();
    layer(x.view().slice(1, 0, 2), memory, memory, {.query_start = 3}, recorder{asked});
    CHECK(sorted(asked) == left_by(hw::attention_options<TestType>{.query_start = 3}, 2, 3, {2, 2}, {7, 7}));
  }
}

TEMPLATE_TEST_CASE("a rule may call attention", "[score_rule]", float, double) {
  random_source random(8);
  for (const std::size_t rows : {2u, 12u}) {
    const auto q = random.tensor<TestType>({1, rows, 1, 4});
    const auto k = random.tensor<TestType>({1, 300, 1, 4});
    const auto v = random.tensor<TestType>({1, 300, 1, 4});
    const auto inner = [&](score_position at) {
      const auto key = k.view().slice(1, static_cast<std::size_t>(at.key), 1);
      return hw::scaled_dot_product_attention(key, k.view().slice(1, 0, 20), v.view().slice(1, 0, 20), {},
                                              hw::window_mask{.left = 3})(0, 0, 0, 0);
    };
    hw::tensor<TestType, 1> precomputed({300});
    for (std::size_t j = 0; j < 300; ++j) {
      precomputed(j) = inner({0, 0, 0, static_cast<std::int64_t>(j)});
    }
    CHECK(
        same_bits(
            hw::scaled_dot_product_attention(q, k, v, {}, [&](TestType s, score_position at) { return s + inner(at); }),
            hw::scaled_dot_product_attention(q, k, v, hw::attention_options<TestType>{.bias = precomputed})) == "");
  }
}

TEMPLATE_TEST_CASE("the relative shift of Transformer-XL", "[score_rule]", float, double) {
  // Score of query i and key j, at distance i - j >= 0 (Dai et al. 2019, 3.3):
  //   scale ((q_i + u) . k_j + (q_i + v) . r_(i - j))
  // The second product is made once for each query and distance, and a rule picks the distance: no shift of a matrix.
  constexpr std::size_t batch = 2, heads = 3, rows = 6, count = 10, head_dim = 5;
  random_source random(9);
  const auto q = random.tensor<TestType>({batch, rows, heads, head_dim});
  const auto k = random.tensor<TestType>({batch, count, heads, head_dim});
  const auto values = random.tensor<TestType>({batch, count, heads, 4});
  const auto u = random.tensor<TestType>({heads, head_dim});
  const auto v = random.tensor<TestType>({heads, head_dim});
  const auto r = random.tensor<TestType>({count, heads, head_dim});
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));

  auto q_plus_u = q;
  hw::tensor<TestType, 4> by_distance({batch, heads, rows, count});
  support::for_each_index(by_distance.extents(), [&](const auto& at) {
    const auto [b, h, i, distance] = at;
    TestType sum = 0;
    for (std::size_t c = 0; c < head_dim; ++c) {
      sum += (q(b, i, h, c) + v(h, c)) * r(distance, h, c);
      q_plus_u(b, i, h, c) = q(b, i, h, c) + u(h, c);
    }
    by_distance(b, h, i, distance) = sum * static_cast<TestType>(scale);
  });
  constexpr auto start = static_cast<std::int64_t>(count - rows);
  const hw::tensor_view<const TestType, 4> table = by_distance;
  const auto shifted = [table](TestType s, score_position at) {
    return at.key > at.query
               ? s
               : s + table(static_cast<std::size_t>(at.batch), static_cast<std::size_t>(at.head),
                           static_cast<std::size_t>(at.query - start), static_cast<std::size_t>(at.query - at.key));
  };
  const hw::attention_options<TestType> options = {.causal = true};
  const auto out = hw::scaled_dot_product_attention(q_plus_u, k, values, options, shifted);

  hw::tensor<double, 4> expected({batch, rows, heads, 4});
  support::for_each_index(support::extents<3>{batch, rows, heads}, [&](const auto& at) {
    const auto [b, i, h] = at;
    const std::size_t position = count - rows + i;
    std::vector<double> powers(position + 1);
    double sum = 0;
    for (std::size_t j = 0; j <= position; ++j) {
      double score = 0;
      for (std::size_t c = 0; c < head_dim; ++c) {
        const double query = static_cast<double>(q(b, i, h, c));
        score += (query + static_cast<double>(u(h, c))) * static_cast<double>(k(b, j, h, c)) +
                 (query + static_cast<double>(v(h, c))) * static_cast<double>(r(position - j, h, c));
      }
      powers[j] = std::exp(score * scale);
      sum += powers[j];
    }
    for (std::size_t c = 0; c < 4; ++c) {
      for (std::size_t j = 0; j <= position; ++j) {
        expected(b, i, h, c) += powers[j] / sum * static_cast<double>(values(b, j, h, c));
      }
    }
  });
  // Scores stay below 30 and each is made of 10 products and 5 sums: an error of 30 * 15 u at most, twice that of an
  // output whose values stay below 3.5.
  constexpr double u_of_type = static_cast<double>(std::numeric_limits<TestType>::epsilon()) / 2;
  CHECK(within(out, expected, 2 * 3.5 * 30 * 15 * u_of_type) == "");
  // One query at a time, as a decoder does.
  for (std::size_t i = 0; i < rows; ++i) {
    const auto one = static_cast<std::int64_t>(count - rows + i);
    CHECK(same_bits(hw::scaled_dot_product_attention(
                        q_plus_u.view().slice(1, i, 1), k, values,
                        hw::attention_options<TestType>{.causal = true, .query_start = one}, shifted),
                    out.view().slice(1, i, 1)) == "");
  }
}
