// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>

#include "support/attention_check.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/threads.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

/// \file
/// Dropout of attention weights. Queries of zeros have equal weights, and the identity as values shows them.

namespace hw = headwave;
using support::constant;
using support::error_of;
using support::lacks;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::within;

namespace {

/// Values that give the weights: element j of key j is 1.
template <class T>
hw::tensor<T, 4> identity(std::size_t batch, std::size_t keys, std::size_t heads) {
  hw::tensor<T, 4> v({batch, keys, heads, keys});
  support::for_each_index(v.extents(), [&](const auto& at) { v(at[0], at[1], at[2], at[3]) = at[1] == at[3]; });
  return v;
}

/// Equal weights after dropout, times the number of keys: 0 or 1 / (1 - probability).
template <class T>
hw::tensor<T, 4> factors(std::size_t batch, std::size_t queries, std::size_t keys, std::size_t heads,
                         const hw::attention_options<T>& options) {
  auto out = hw::scaled_dot_product_attention(hw::tensor<T, 4>({batch, queries, heads, 2}),
                                              hw::tensor<T, 4>({batch, keys, heads, 2}),
                                              identity<T>(batch, keys, heads), options);
  for (T& x : out) {
    x *= static_cast<T>(keys);
  }
  return out;
}

}  // namespace

TEST_CASE("the oracle's Philox gives the known answers of Random123", "[dropout]") {
  using words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t ones = 0xffffffff;
  CHECK(oracle::philox({0, 0, 0, 0}, {0, 0}) == words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(oracle::philox({ones, ones, ones, ones}, {ones, ones}) ==
        words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(oracle::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEMPLATE_TEST_CASE("the first four weights follow from the known answer", "[dropout]", float, double) {
  // Words 6627e8d5 e169c58d bc57ac4c 9b00dbd8: a key is dropped if its word is below probability * 2^32.
  const auto dropped = [](double probability) {
    return factors<TestType>(1, 1, 4, 1, {.query_start = 0, .dropout = {probability, 0}});
  };
  CHECK(within(dropped(0.375), {1.6, 1.6, 1.6, 1.6}, 4e-7) == "");
  CHECK(within(dropped(0.5), {0, 2, 2, 2}, 0) == "");
  CHECK(within(dropped(0.625), {0, 8 / 3.0, 8 / 3.0, 0}, 4e-7) == "");
  CHECK(within(dropped(0.75), {0, 4, 0, 0}, 0) == "");
  CHECK(within(dropped(0.875), {0, 8, 0, 0}, 0) == "");
  CHECK(within(dropped(0.9375), {0, 0, 0, 0}, 0) == "");
  // The very word is kept, the next one is not.
  CHECK(within(dropped(0x6627e8d5p-32), {1, 1, 1, 1}, 0.7) == "");
  CHECK(within(dropped(0x6627e8d6p-32), {0, 1, 1, 1}, 0.7) == "");
}

TEMPLATE_TEST_CASE("which weights are dropped follows from seed, sample, head, position and key", "[dropout]", float,
                   double) {
  // Many queries and few, several blocks of keys, positions below zero and past 2^32.
  struct place {
    std::size_t batch, queries, keys, heads;
    std::int64_t start;
    std::uint64_t seed;
  };
  for (const place& p : {place{2, 11, 64, 3, 5, 1}, place{1, 1, 1024, 2, 700, 0xfedcba9876543210},
                         place{3, 2, 16, 1, -1, std::uint64_t{1} << 40}, place{1, 30, 256, 2, 4294967290, 9}}) {
    for (const double probability : {0.25, 0.5}) {
      const auto actual = factors<TestType>(p.batch, p.queries, p.keys, p.heads,
                                            {.query_start = p.start, .dropout = {probability, p.seed}});
      hw::tensor<TestType, 4> expected(actual.extents());
      support::for_each_index(expected.extents(), [&](const auto& at) {
        const hw::score_position position{static_cast<std::int64_t>(at[0]), static_cast<std::int64_t>(at[2]),
                                          p.start + static_cast<std::int64_t>(at[1]), static_cast<std::int64_t>(at[3])};
        expected(at[0], at[1], at[2], at[3]) = static_cast<TestType>(oracle::kept({probability, p.seed}, position));
      });
      CAPTURE(p.start, probability);
      CHECK(within(actual, expected, 2e-7) == "");
    }
  }
}

TEMPLATE_TEST_CASE("as many weights are dropped as the probability says, and the mean stays", "[dropout]", float,
                   double) {
  random_source random(800);
  const auto q = random.tensor<TestType>({1, 40, 2, 8});
  const auto k = random.tensor<TestType>({1, 100, 2, 8});
  const auto v = identity<TestType>(1, 100, 2);
  const auto weights = hw::scaled_dot_product_attention(q, k, v, {});
  for (const double probability : {0.1, 0.5, 0.9}) {
    hw::tensor<double, 4> sum(weights.extents());
    double dropped = 0;
    constexpr int draws = 400;
    for (int seed = 0; seed < draws; ++seed) {
      const auto out =
          hw::scaled_dot_product_attention(q, k, v, {.dropout = {probability, static_cast<std::uint64_t>(seed)}});
      for (std::size_t i = 0; i < out.size(); ++i) {
        dropped += out.begin()[i] == 0 ? 1 : 0;
        sum.begin()[i] += static_cast<double>(out.begin()[i]);
      }
    }
    // A count of n events of probability p has the deviation sqrt(n p (1 - p)), a kept weight w / (1 - p) that of
    // w sqrt(p / (1 - p)). Six of them come up once in 5e8 times; the largest of 8000 stays below.
    const double count = draws * static_cast<double>(weights.size());
    CAPTURE(probability);
    CHECK(std::fabs(dropped - probability * count) < 6 * std::sqrt(count * probability * (1 - probability)));
    const std::string fault = support::worst_element(
        sum, [&](const auto& at) { return draws * static_cast<double>(support::element(weights.view(), at)); },
        [&](const auto& at) {
          const double weight = static_cast<double>(support::element(weights.view(), at));
          return 6 * weight * std::sqrt(draws * probability / (1 - probability));
        });
    CHECK(fault == "");
  }
}

TEST_CASE("no two coordinates share a pattern", "[dropout]") {
  const auto pattern = [](std::size_t sample, std::size_t head, std::size_t query, std::uint64_t seed) {
    const auto all = factors<float>(3, 3, 64, 3, {.query_start = 0, .dropout = {0.5, seed}});
    std::vector<float> row(64);
    for (std::size_t j = 0; j < row.size(); ++j) {
      row[j] = all(sample, query, head, j);
    }
    return row;
  };
  std::vector<std::vector<float>> patterns;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
    for (std::size_t n = 0; n < 27; ++n) {
      patterns.push_back(pattern(n / 9, n / 3 % 3, n % 3, seed));
    }
  }
  for (std::size_t a = 0; a < patterns.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      std::size_t same = 0;
      for (std::size_t j = 0; j < 64; ++j) {
        same += patterns[a][j] == patterns[b][j] ? std::size_t{1} : 0;
      }
      CAPTURE(a, b);
      REQUIRE((same > 8 && same < 56));  // six deviations from 32
    }
  }
}

TEMPLATE_TEST_CASE("the same weights are dropped however the call is cut", "[dropout]", float, double) {
  random_source random(810);
  const auto q = random.tensor<TestType>({2, 30, 4, 16});
  const auto k = random.tensor<TestType>({2, 600, 2, 16});
  const auto v = random.tensor<TestType>({2, 600, 2, 24});
  const hw::attention_options<TestType> options = {.query_start = 100, .dropout = {0.3, 12345}};
  const auto whole = hw::scaled_dot_product_attention(q, k, v, options);
  for (const std::size_t step : sizes{1, 2, 7, 29}) {
    for (std::size_t first = 0; first < 30; first += step) {
      const std::size_t count = (std::min)(step, 30 - first);
      hw::attention_options<TestType> part = options;
      part.query_start = 100 + static_cast<std::int64_t>(first);
      CAPTURE(step, first);
      CHECK(same_bits(hw::scaled_dot_product_attention(q.view().slice(1, first, count), k, v, part),
                      whole.view().slice(1, first, count)) == "");
    }
  }
  for (const int threads : {2, 3}) {
    const support::thread_executor team{threads};
    hw::attention_options<TestType> shared = options;
    shared.executor = team;
    CHECK(same_bits(hw::scaled_dot_product_attention(q, k, v, shared), whole) == "");
  }
}

TEMPLATE_TEST_CASE("probability 0 drops nothing, 1 everything, and the other outputs know of neither", "[dropout]",
                   float, double) {
  random_source random(820);
  for (const std::size_t queries : sizes{1, 20}) {
    const auto q = random.tensor<TestType>({1, queries, 2, 8});
    const auto k = random.tensor<TestType>({1, 300, 2, 8});
    const auto v = random.tensor<TestType>({1, 300, 2, 8});
    const auto run = [&](const support::attention_outputs<TestType>& outputs, double probability) {
      hw::attention_options<TestType> options = {.dropout = {probability, 3}};
      options.lse = outputs.lse.view();
      options.maximum = outputs.maximum.view();
      options.entropy = outputs.entropy.view();
      options.weights = outputs.weights.view();
      options.mean_weights = outputs.mean_weights.view();
      options.key_mass = outputs.key_mass.view();
      hw::scaled_dot_product_attention_into(outputs.out.view(), q, k, v, options);
    };
    const hw::attention_options<TestType> plain;
    const support::attention_outputs<TestType> without(q, k, v, plain);
    run(without, 0);
    CHECK(same_bits(without.out.view(), hw::scaled_dot_product_attention(q, k, v, plain)) == "");
    for (const double probability : {0.0, 1e-12, 0.5, 1.0}) {
      const support::attention_outputs<TestType> with(q, k, v, plain);
      run(with, probability);
      CAPTURE(queries, probability);
      CHECK(same_bits(with.lse.view(), without.lse.view()) == "");
      CHECK(same_bits(with.maximum.view(), without.maximum.view()) == "");
      CHECK(same_bits(with.entropy.view(), without.entropy.view()) == "");
      CHECK(same_bits(with.weights.view(), without.weights.view()) == "");
      CHECK(same_bits(with.mean_weights.view(), without.mean_weights.view()) == "");
      CHECK(same_bits(with.key_mass.view(), without.key_mass.view()) == "");
      if (probability == 1.0) {
        CHECK(within(with.out.view(), hw::tensor<TestType, 4>(with.out.view().extents()), 0) == "");
      }
    }
  }
}

TEST_CASE("a probability lies between 0 and 1", "[dropout][errors]") {
  const hw::tensor<float, 4> x({1, 2, 1, 4});
  for (const double probability : {-0.1, 1.1, support::not_a_number, support::infinity}) {
    CAPTURE(probability);
    CHECK(lacks(error_of([&] { hw::scaled_dot_product_attention(x, x, x, {.dropout = {probability, 0}}); }),
                {"dropout.probability", "between 0 and 1"}) == "");
  }
}
