// SPDX-License-Identifier: MIT
#include <headwave/linear.hpp>

#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace hw = headwave;
using support::constant;
using support::error_of;
using support::flat;
using support::lacks;
using support::random_source;
using support::same_bits;
using support::tensor_of;
using support::window;
using support::within;

TEMPLATE_TEST_CASE("x W^T + b by hand", "[linear]", float, double) {
  const auto weight = tensor_of<TestType>({2, 3}, {1, 2, 3, 4, 5, 6});
  const auto bias = tensor_of<TestType>({2}, {10, 20});
  const auto x = tensor_of<TestType>({1, 2, 3}, {1, 0, 0, 1, 1, -1});
  CHECK(flat(hw::linear<TestType>(weight, bias)(x)) == std::vector<TestType>{11, 24, 10, 23});
  CHECK(flat(hw::linear<TestType>(weight, {})(x)) == std::vector<TestType>{1, 4, 0, 3});
}

TEMPLATE_TEST_CASE("projections of any size", "[linear]", float, double) {
  random_source random(1);
  std::string failures;
  for (int n = 0; n < support::cases(150); ++n) {
    // Around the tiles of a kernel: a few rows, 8 or 16 columns; and past a block of rows.
    const std::size_t batch = random.integer(1, 3);
    const std::size_t length = random.pick({1, 2, 3, 5, 6, 7, 12, 13, 31, 100, 210});
    const std::size_t in = random.pick({1, 2, 3, 7, 8, 16, 31, 64, 100, 128, 129, 384, 768});
    const std::size_t out = random.pick({1, 2, 7, 8, 9, 15, 16, 17, 33, 48, 100});
    const bool biased = random.chance(0.5);
    const auto weight = random.tensor<TestType>({out, in});
    const auto bias = biased ? random.tensor<TestType>({out}) : hw::tensor<TestType, 1>();
    const auto x = random.tensor<TestType>({batch, length, in});
    const hw::linear<TestType> project(weight, bias);
    const auto expected = oracle::linear<TestType>(oracle::exact(x), weight, bias);
    std::string faults = within(project(x), expected);

    window<TestType, 3> strided({batch, length, out}, {.last_stride = random.chance(0.5) ? 1 : 2, .gap = 3});
    const window<TestType, 3> source(x, {.last_stride = random.chance(0.5) ? 1 : -3, .gap = 1, .reversed = true});
    project.apply_into(strided.view(), source.view());
    faults += within(strided.view(), expected);
    faults += strided.intact() ? "" : "canaries";
    if (!faults.empty()) {
      failures += support::text_of(support::extents<4>{batch, length, in, out}) + faults + "\n";
    }
  }
  CHECK(failures.substr(0, 2000) == "");
}

// Sums in blocks of 256 instead of 128 fail.
TEST_CASE("768 inputs of unit variance, outputs right to 1.2e-6", "[linear]") {
  random_source random(4);
  const std::size_t in = 768;
  const auto weight = random.tensor<float>({100, in}, 1 / std::sqrt(static_cast<double>(in)));
  const auto x = random.tensor<float>({1, 60, in});
  const auto expected = oracle::linear<float>(oracle::exact(x), weight, {});
  CHECK(within(hw::linear<float>(weight, {})(x), expected.value, 1.2e-6) == "");
}

TEMPLATE_TEST_CASE("weights of any strides", "[linear]", float, double) {
  random_source random(2);
  const auto weight = random.tensor<TestType>({17, 23});
  const auto bias = random.tensor<TestType>({17});
  const auto x = random.tensor<TestType>({2, 5, 23});
  const auto expected = hw::linear<TestType>(weight, bias)(x);
  const auto turned = support::packed(weight.view().transposed(0, 1));
  const window<TestType, 1> strided_bias(bias, {.last_stride = -2});
  CHECK(same_bits(hw::linear<TestType>(turned.view().transposed(0, 1), strided_bias.view())(x), expected) == "");
}

TEMPLATE_TEST_CASE("linear keeps its own weights", "[linear]", float, double) {
  std::optional<hw::linear<TestType>> project;
  {
    const auto weight = constant<TestType>({3, 2}, 2);
    const auto bias = constant<TestType>({3}, 1);
    project.emplace(weight, bias);
  }
  const hw::linear<TestType> copy = *project;
  project.reset();
  CHECK(flat(copy(constant<TestType>({1, 1, 2}, 1))) == std::vector<TestType>{5, 5, 5});
}

TEMPLATE_TEST_CASE("a NaN stays in its row, extents of zero", "[linear]", float, double) {
  random_source random(3);
  const hw::linear<TestType> project(random.tensor<TestType>({9, 6}), random.tensor<TestType>({9}));
  auto x = random.tensor<TestType>({1, 20, 6});
  const auto clean = project(x);
  x(0, 7, 2) = std::numeric_limits<TestType>::quiet_NaN();
  const auto out = project(x);
  CHECK(within(out.view().slice(1, 7, 1), std::vector<double>(9, std::numeric_limits<double>::quiet_NaN()), 0) == "");
  CHECK(same_bits(out.view().slice(1, 0, 7), clean.view().slice(1, 0, 7)) == "");
  CHECK(same_bits(out.view().slice(1, 8, 12), clean.view().slice(1, 8, 12)) == "");
  CHECK(project(hw::tensor<TestType, 3>({2, 0, 6})).extents() == support::extents<3>{2, 0, 9});
  CHECK(project(hw::tensor<TestType, 3>({0, 2, 6})).extents() == support::extents<3>{0, 2, 9});
  const auto bias = tensor_of<TestType>({2}, {3, 4});
  CHECK(flat(hw::linear<TestType>(hw::tensor<TestType, 2>({2, 0}), bias)(hw::tensor<TestType, 3>({1, 1, 0}))) ==
        std::vector<TestType>{3, 4});
}

TEMPLATE_TEST_CASE("linear: errors name the function and the shapes", "[linear][errors]", float, double) {
  const auto weight = constant<TestType>({4, 6}, 1);
  const auto short_bias = constant<TestType>({3}, 1);
  CHECK(lacks(error_of([&] { hw::linear<TestType>(weight, short_bias); }), {"linear", "[4, 6]", "[3]"}) == "");
  const hw::linear<TestType> project(weight, {});
  window<TestType, 3> out({2, 5, 4});
  const auto check = [&](const auto& x, const std::vector<std::string>& parts) {
    CHECK(lacks(error_of([&] { project.apply_into(out.view(), x); }), parts) == "");
    CHECK(out.untouched());
  };
  check(constant<TestType>({2, 5, 7}, 1), {"linear", "7", "6", "[2, 5, 7]", "[4, 6]"});
  check(constant<TestType>({2, 4, 6}, 1), {"linear", "[2, 4, 6]", "[2, 5, 4]"});
  check(constant<TestType>({1, 5, 6}, 1), {"linear", "[1, 5, 6]", "[2, 5, 4]"});
}
