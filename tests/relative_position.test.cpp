// SPDX-License-Identifier: MIT
#include <headwave/relative_position.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace hw = headwave;
using support::bits_of;
using support::constant;
using support::element;
using support::error_of;
using support::extents;
using support::flat;
using support::for_each_index;
using support::lacks;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::tensor_of;
using support::window;
using support::within;

namespace {

/// The formula in long double. A quotient that is whole but for rounding is meant to be whole.
int bucket_by_logarithms(std::int64_t relative_position, const hw::t5_bucket_options& options) {
  const int count = options.bidirectional ? options.buckets / 2 : options.buckets;
  const int exact = count / 2;
  int first = 0;
  long double distance = -static_cast<long double>(relative_position);
  if (options.bidirectional) {
    first = relative_position > 0 ? count : 0;
    distance = std::fabs(distance);
  }
  if (distance <= 0) {
    return first;
  }
  if (distance < static_cast<long double>(exact)) {
    return first + static_cast<int>(distance);
  }
  if (count == 1) {
    return first;
  }
  const auto e = static_cast<long double>(exact);
  long double steps = std::log(distance / e) / std::log(static_cast<long double>(options.max_distance) / e) *
                      static_cast<long double>(count - exact);
  if (std::fabs(steps - std::round(steps)) < 1e-13L * static_cast<long double>(count)) {
    steps = std::round(steps);
  }
  const long double bucket = e + std::floor(steps);
  return first + (bucket < static_cast<long double>(count) ? static_cast<int>(bucket) : count - 1);
}

}  // namespace

TEMPLATE_TEST_CASE("slopes of linear biases", "[relative][alibi]", float, double) {
  constexpr long double unit = static_cast<long double>(std::numeric_limits<TestType>::epsilon()) / 2;
  for (const std::size_t heads : sizes{0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 40, 64, 71, 100, 128, 1000}) {
    const hw::tensor<TestType, 1> slopes = hw::alibi_slopes<TestType>(heads);
    CAPTURE(heads);
    REQUIRE(slopes.extents() == extents<1>{heads});
    std::size_t whole = 1;
    for (std::size_t power = 1; power <= heads; power *= 2) {
      whole = power;
    }
    const auto n = static_cast<long double>(whole);
    const auto expected = [&](const extents<1>& at) {
      const auto h = static_cast<long double>(at[0]);
      return at[0] < whole ? std::exp2(-8 * (h + 1) / n) : std::exp2(-4 * (2 * (h - n) + 1) / n);
    };
    // Rounded to nearest: half an ulp, and a little for the oracle's own exponential.
    const auto bound = [&](const extents<1>& at) {
      return unit * std::exp2(std::floor(std::log2(expected(at)))) * (1 + 0x1p-8L);
    };
    CHECK(support::worst_element(slopes, expected, bound) == "");
    // Where the exponent is whole, so is the result.
    bool exact = true;
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t eighths = h < whole ? 8 * (h + 1) : 4 * (2 * (h - whole) + 1);
      exact = exact && (eighths % whole != 0 ||
                        bits_of(slopes(h)) == bits_of(std::ldexp(TestType(1), -static_cast<int>(eighths / whole))));
    }
    CHECK(exact);
    window<TestType, 1> strided({heads}, {.last_stride = -2});
    hw::alibi_slopes_into(strided.view());
    CHECK(same_bits(strided.view(), slopes) == "");
    CHECK(strided.intact());
  }
}

TEST_CASE("buckets of distances: the formula, at all distances", "[relative][t5]") {
  random_source random(1);
  for (int round = 0; round < 60; ++round) {
    hw::t5_bucket_options options;
    options.bidirectional = random.chance(0.5);
    options.buckets = static_cast<int>(random.integer(2, round % 4 ? 40 : 150));
    const int exact = options.buckets / (options.bidirectional ? 4 : 2);
    options.max_distance = exact + static_cast<std::int64_t>(random.integer(1, round % 3 ? 300 : 100'000));
    CAPTURE(options.buckets, options.max_distance, options.bidirectional);
    int wrong = 0;
    for (std::int64_t distance = 0; distance < 400; ++distance) {
      wrong += hw::t5_bucket(-distance, options) != bucket_by_logarithms(-distance, options);
      wrong += hw::t5_bucket(distance, options) != bucket_by_logarithms(distance, options);
    }
    for (int i = 0; i < 200; ++i) {
      const auto distance = static_cast<std::int64_t>(
          random.integer(0, static_cast<std::size_t>(options.max_distance + options.max_distance / 2)));
      wrong += hw::t5_bucket(-distance, options) != bucket_by_logarithms(-distance, options);
      wrong += hw::t5_bucket(distance, options) != bucket_by_logarithms(distance, options);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("buckets of distances: borders that are powers", "[relative][t5]") {
  // Distances 16 * 2^b.
  const hw::t5_bucket_options doubling = {.buckets = 32, .max_distance = 16 << 16, .bidirectional = false};
  for (int b = 1; b < 16; ++b) {
    CHECK(hw::t5_bucket(-(std::int64_t{16} << b), doubling) == 16 + b);
    CHECK(hw::t5_bucket(-(std::int64_t{16} << b) + 1, doubling) == 15 + b);
  }
  // E = 128 and N - E = 128 steps from there to 2^40: half of the way is the distance 128 * 2^16.5 = 11863283.2, which
  // the product of 128 factors tells from its neighbours; half of the way to 2^39 is 2^23.
  const hw::t5_bucket_options wide = {.buckets = 512, .max_distance = std::int64_t{1} << 40};
  CHECK(hw::t5_bucket(-11'863'283, wide) == 191);
  CHECK(hw::t5_bucket(-11'863'284, wide) == 192);
  const hw::t5_bucket_options even = {.buckets = 512, .max_distance = std::int64_t{1} << 39};
  CHECK(hw::t5_bucket(-(1 << 23), even) == 192);
  CHECK(hw::t5_bucket(-(1 << 23) + 1, even) == 191);
}

TEST_CASE("buckets of distances: few buckets, far distances", "[relative][t5]") {
  constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  CHECK(hw::t5_bucket(lowest) == 15);
  CHECK(hw::t5_bucket(largest) == 31);
  CHECK(hw::t5_bucket(lowest, {.bidirectional = false}) == 31);
  CHECK(hw::t5_bucket(largest, {.bidirectional = false}) == 0);
  for (const std::int64_t position : {lowest, std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, largest}) {
    CHECK(hw::t5_bucket(position, {.buckets = 1, .max_distance = 1, .bidirectional = false}) == 0);
    CHECK(hw::t5_bucket(position, {.buckets = 2, .max_distance = 1}) == (position > 0 ? 1 : 0));
    CHECK(hw::t5_bucket(position, {.buckets = 3, .max_distance = 1}) == (position > 0 ? 1 : 0));
    CHECK(hw::t5_bucket(position, {.buckets = 2, .max_distance = 2, .bidirectional = false}) == (position < 0 ? 1 : 0));
  }
  CHECK(hw::t5_bucket(-(largest - 1), {.max_distance = largest}) == 15);
  CHECK(hw::t5_bucket(-100, {.max_distance = largest}) == 8);
}

TEST_CASE("buckets of distances: errors", "[relative][t5][errors]") {
  const auto with = [](const hw::t5_bucket_options& options) { return error_of([&] { hw::t5_bucket(-3, options); }); };
  CHECK(lacks(with({.buckets = 0}), {"t5_bucket", "buckets", "0"}) == "");
  CHECK(lacks(with({.buckets = 1}), {"t5_bucket", "buckets", "1"}) == "");
  CHECK(lacks(with({.buckets = -32}), {"t5_bucket", "buckets", "-32"}) == "");
  CHECK(lacks(with({.max_distance = 8}), {"t5_bucket", "max_distance", "8 <= 8"}) == "");
  CHECK(lacks(with({.max_distance = -1}), {"t5_bucket", "max_distance", "-1 <= 8"}) == "");
  CHECK(lacks(with({.max_distance = 16, .bidirectional = false}), {"t5_bucket", "max_distance", "16 <= 16"}) == "");
  CHECK(with({.max_distance = 9}) == "");
}

TEMPLATE_TEST_CASE("biases of all distances, from a table of buckets", "[relative][t5]", float, double) {
  random_source random(2);
  for (const hw::t5_bucket_options options :
       {hw::t5_bucket_options{}, hw::t5_bucket_options{.bidirectional = false},
        hw::t5_bucket_options{.buckets = 7, .max_distance = 3}, hw::t5_bucket_options{.buckets = 2, .max_distance = 1},
        hw::t5_bucket_options{.buckets = 1, .max_distance = 5, .bidirectional = false},
        hw::t5_bucket_options{.buckets = 200, .max_distance = 1000}}) {
    for (const std::size_t heads : sizes{0, 1, 3}) {
      CAPTURE(options.buckets, options.max_distance, options.bidirectional, heads);
      const auto table = random.tensor<TestType>({static_cast<std::size_t>(options.buckets), heads});
      const window<TestType, 2> strided(table, {.last_stride = 2});
      const std::size_t size = hw::detail::clipped_biases_size("test", heads, options.max_distance);
      REQUIRE(size == heads * static_cast<std::size_t>(2 * options.max_distance + 1));
      std::vector<TestType> biases(size + 1, TestType(77));
      hw::detail::clipped_biases<TestType>("test", biases.data(), strided.view(), options);
      std::size_t wrong = 0, at = 0;
      for (std::size_t head = 0; head < heads; ++head) {
        for (std::int64_t d = -options.max_distance; d <= options.max_distance; ++d) {
          wrong += bits_of(biases[at++]) != bits_of(table(hw::t5_bucket(d, options), head));
        }
      }
      CHECK(wrong == 0);
      CHECK(bits_of(biases[size]) == bits_of(TestType(77)));
    }
  }
  std::vector<TestType> untouched(257, TestType(77));
  const auto table = random.tensor<TestType>({31, 1});
  CHECK(lacks(error_of([&] { hw::detail::clipped_biases<TestType>("test", untouched.data(), table, {}); }),
              {"test", "31 != 32", "table [31, 1]"}) == "");
  CHECK(untouched == std::vector<TestType>(257, TestType(77)));
  CHECK(error_of([] { hw::detail::clipped_biases_size("test", 8, std::numeric_limits<std::int64_t>::max()); }) != "");
}

TEMPLATE_TEST_CASE("learned positions are added", "[relative][learned]", float, double) {
  random_source random(3);
  for (const std::size_t d_model : sizes{1, 3, 8, 16, 21, 64}) {
    const auto x = random.tensor<TestType>({2, 5, d_model});
    const auto table = random.tensor<TestType>({9, d_model});
    const std::vector<std::int32_t> positions = {8, 0, 3, 3, 1};
    for (const hw::index last_stride : {1, 2, -1}) {
      CAPTURE(d_model, last_stride);
      const window<TestType, 3> consecutive(x, {.last_stride = last_stride, .gap = 2});
      const window<TestType, 3> scattered(x, {.last_stride = last_stride, .reversed = true});
      const window<TestType, 2> rows(table, {.last_stride = last_stride, .gap = 1, .reversed = true});
      hw::add_learned_encoding(consecutive.view(), rows.view(), 4);
      hw::add_learned_encoding(scattered.view(), table, positions);
      bool right = true;
      for_each_index(x.extents(), [&](const extents<3>& at) {
        const TestType before = element(x.view(), at);
        right = right && bits_of(element(consecutive.view(), at)) == bits_of(before + table(4 + at[1], at[2]));
        right = right && bits_of(element(scattered.view(), at)) == bits_of(before + table(positions[at[1]], at[2]));
      });
      CHECK(right);
      CHECK(consecutive.intact());
      CHECK(scattered.intact());
    }
  }
  hw::tensor<TestType, 3> from_zero = constant<TestType>({1, 2, 3}, 1);
  hw::add_learned_encoding(from_zero, tensor_of<TestType>({2, 3}, {1, 2, 3, 4, 5, 6}));
  CHECK(flat(from_zero) == std::vector<TestType>{2, 3, 4, 5, 6, 7});
  hw::tensor<TestType, 3> no_rows({2, 0, 3}), no_samples({0, 2, 3}), no_channels({2, 2, 0});
  hw::add_learned_encoding(no_rows, constant<TestType>({2, 3}, 1), 2);
  hw::add_learned_encoding(no_samples, constant<TestType>({2, 3}, 1));
  hw::add_learned_encoding(no_channels, constant<TestType>({2, 0}, 1), std::array<std::uint64_t, 2>{1, 1});
}

TEST_CASE("learned positions: errors name the function and the shapes", "[relative][learned][errors]") {
  const window<float, 3> x({2, 4, 3});
  const auto table = constant<float>({9, 3}, 1);
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  const auto from = [&](std::int64_t first) {
    return error_of([&] { hw::add_learned_encoding(x.view(), table, first); });
  };
  CHECK(lacks(from(-1), {"add_learned_encoding", "-1", "x [2, 4, 3]", "table [9, 3]"}) == "");
  CHECK(lacks(from(6), {"add_learned_encoding", "6", "x [2, 4, 3]", "table [9, 3]"}) == "");
  CHECK(lacks(from(largest), {"add_learned_encoding", "no row"}) == "");
  const auto at = [&](const auto& positions) {
    return error_of([&] { hw::add_learned_encoding(x.view(), table, positions); });
  };
  CHECK(lacks(at(std::vector<int>{0, 1, 2, 9}), {"add_learned_encoding", "position 9", "table [9, 3]"}) == "");
  CHECK(lacks(at(std::vector<int>{0, -2, 2, 3}), {"add_learned_encoding", "position -2"}) == "");
  CHECK(lacks(at(std::vector<std::uint64_t>{~std::uint64_t{0}, 1, 2, 3}), {"position 18446744073709551615"}) == "");
  CHECK(lacks(at(std::vector<int>{0, 1, 2}), {"add_learned_encoding", "3 != 4", "x [2, 4, 3]"}) == "");
  CHECK(lacks(error_of([&] { hw::add_learned_encoding(x.view(), constant<float>({9, 4}, 1)); }),
              {"add_learned_encoding", "4 != 3", "x [2, 4, 3]", "table [9, 4]"}) == "");
  CHECK(x.untouched());
}
