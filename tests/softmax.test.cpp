// SPDX-License-Identifier: MIT
#include <headwave/softmax.hpp>

#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace hw = headwave;
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

TEMPLATE_TEST_CASE("softmax of random rows", "[softmax]", float, double) {
  random_source random(1);
  for (std::size_t length = 1; length <= 70; ++length) {
    for (const double scale : {0.01, 1.0, 30.0, 1000.0}) {
      const auto x = random.tensor<TestType>({3, length}, scale);
      CAPTURE(length, scale);
      CHECK(within(hw::softmax(x), oracle::softmax(x)) == "");
    }
  }
  const auto long_rows = random.tensor<TestType>({2, 5000}, 3);
  CHECK(within(hw::softmax(long_rows), oracle::softmax(long_rows)) == "");
}

TEMPLATE_TEST_CASE("softmax runs over the last axis of any rank", "[softmax]", float, double) {
  random_source random(2);
  const auto x = random.tensor<TestType>({2, 3, 5, 7});
  const auto expected = hw::softmax(x.view().reshaped({30, 7}));
  CHECK(same_bits(hw::softmax(x), expected.view().reshaped({2, 3, 5, 7})) == "");
  CHECK(same_bits(hw::softmax(x.view().reshaped({6, 5, 7})), expected.view().reshaped({6, 5, 7})) == "");
  const auto first = x.view().reshaped({210}).slice(0, 0, 7);
  CHECK(same_bits(hw::softmax(first), expected.view().reshaped({210}).slice(0, 0, 7)) == "");
}

TEMPLATE_TEST_CASE("softmax of special rows", "[softmax]", float, double) {
  const auto row = [](const std::vector<double>& values) {
    return flat(hw::softmax(tensor_of<TestType>({values.size()}, values)));
  };
  using numbers = std::vector<TestType>;
  constexpr double lowest = static_cast<double>(std::numeric_limits<TestType>::lowest());
  constexpr double largest = static_cast<double>((std::numeric_limits<TestType>::max)());
  CHECK(row({3}) == numbers{1});
  CHECK(row({5, 5, 5, 5}) == numbers(4, 0.25));
  CHECK(row({lowest, lowest}) == numbers(2, 0.5));
  CHECK(row({largest, largest, lowest, -infinity}) == numbers{0.5, 0.5, 0, 0});
  CHECK(row({-infinity, 0, -infinity}) == numbers{0, 1, 0});
  CHECK(row({-infinity, -infinity}) == numbers(2, 0));
  CHECK(within(hw::softmax(tensor_of<TestType>({2}, {10000, 9999})), {0.73105857863, 0.26894142137},
               1e-11 + 4 * static_cast<double>(std::numeric_limits<TestType>::epsilon())) == "");
  CHECK(within(hw::softmax(tensor_of<TestType>({2, 3}, {0, not_a_number, 0, 0, 0, 0})),
               {not_a_number, not_a_number, not_a_number, 1 / 3.0, 1 / 3.0, 1 / 3.0},
               static_cast<double>(std::numeric_limits<TestType>::epsilon())) == "");
}

TEMPLATE_TEST_CASE("softmax: strides, canaries, in place", "[softmax]", float, double) {
  random_source random(3);
  for (const std::size_t length : sizes{1, 3, 8, 17, 64, 65}) {
    const auto x = random.tensor<TestType>({4, 3, length});
    const auto expected = hw::softmax(x);
    for (const hw::index last_stride : {1, 2, -1}) {
      const window<TestType, 3> in(x, {.last_stride = last_stride, .gap = 1, .reversed = true});
      window<TestType, 3> out({4, 3, length}, {.last_stride = last_stride, .gap = 2});
      hw::softmax_into(out.view(), in.view());
      CAPTURE(length, last_stride);
      CHECK(same_bits(out.view(), expected) == "");
      CHECK(out.intact());
    }
    hw::tensor<TestType, 3> in_place = x;
    hw::softmax_into(in_place, in_place);
    CHECK(same_bits(in_place, expected) == "");
  }
  CHECK(hw::softmax(hw::tensor<TestType, 2>({0, 5})).extents() == support::extents<2>{0, 5});
  CHECK(hw::softmax(hw::tensor<TestType, 2>({5, 0})).extents() == support::extents<2>{5, 0});
}

TEST_CASE("softmax: errors name the function and the shapes", "[softmax][errors]") {
  window<float, 2> out({3, 4});
  CHECK(lacks(error_of([&] { hw::softmax_into(out.view(), constant<float>({4, 3}, 0)); }),
              {"softmax", "[3, 4]", "[4, 3]"}) == "");
  CHECK(out.untouched());
}
