// SPDX-License-Identifier: MIT
#include <headwave/detail/dispatch.hpp>
#include <headwave/isa.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

/// \file
/// The exponential that every softmax is made of, against the standard library's in a wider type. `[exhaustive]`, which
/// only runs if it is named, is about every float.

namespace hw = headwave;
using support::infinity;
using support::not_a_number;
using support::random_source;

namespace {

constexpr std::size_t block = 4096;

/// Each x becomes e^x; returns the sum of all.
template <class T>
T take_exponentials(std::array<T, block>& x) {
  T sums[64 / sizeof(T)];
  HEADWAVE_DISPATCH(take_powers_of_row<T>(sums, T(0), x.data(), x.data(), 0, static_cast<hw::index>(block)))
  T sum = 0;
  for (const T& lane : sums) {
    sum += lane;
  }
  return sum;
}

/// The largest error of e^x, in units in the last place of the right value; NaN if some e^x is.
template <class T, class Wide>
double largest_error(const std::array<T, block>& x) {
  std::array<T, block> powers = x;
  take_exponentials(powers);
  double largest = 0;
  for (std::size_t i = 0; i < block; ++i) {
    const Wide right = std::exp(static_cast<Wide>(x[i]));
    int exponent = 0;
    std::frexp(right, &exponent);
    const Wide unit = std::ldexp(Wide(1), exponent - std::numeric_limits<T>::digits);
    const auto error = static_cast<double>(std::fabs(static_cast<Wide>(powers[i]) - right) / unit);
    largest = error <= largest ? largest : error;
  }
  return largest;
}

/// Over the floats of bit patterns first, first + step, ... last.
double largest_error_of_floats(std::uint32_t first, std::uint32_t last, std::uint32_t step) {
  double largest = 0;
  std::array<float, block> x;
  for (std::uint64_t pattern = first; pattern <= last;) {
    for (float& element : x) {
      element = std::bit_cast<float>(static_cast<std::uint32_t>(pattern < last ? pattern : last));
      pattern += step;
    }
    const double error = largest_error<float, double>(x);
    largest = error <= largest ? largest : error;
  }
  return largest;
}

/// Without FMA one more rounding.
double bound_of(double with_fma) {
  return hw::active_isa() == hw::isa::scalar ? with_fma + 0.4 : with_fma;
}
const std::uint32_t minus_zero = 0x80000000u, lowest = std::bit_cast<std::uint32_t>(-87.0f);
const std::uint32_t highest = std::bit_cast<std::uint32_t>(80.0f);

}  // namespace

TEST_CASE("the exponential of floats is off by little more than a unit in the last place", "[exponential]") {
  CHECK(largest_error_of_floats(minus_zero, lowest, 1009) <= bound_of(1.1));
  CHECK(largest_error_of_floats(0, highest, 1009) <= bound_of(1.1));
}

TEST_CASE("the exponential of every float", "[.][exhaustive]") {
  const double below = largest_error_of_floats(minus_zero, lowest, 1), above = largest_error_of_floats(0, highest, 1);
  WARN("largest errors: " << below << " for x <= 0, " << above << " for x >= 0, in units in the last place");
  CHECK(below <= bound_of(1.1));
  CHECK(above <= bound_of(1.1));
}

TEST_CASE("the exponential of doubles is off by little more than a unit in the last place", "[exponential]") {
  random_source random(5);
  double largest = 0;
  for (int n = 0; n < 200; ++n) {
    std::array<double, block> x;
    for (double& element : x) {
      element = n % 2 ? random.uniform(-708, 80) : random.uniform(-2, 2);
    }
    const double error = largest_error<double, long double>(x);
    largest = error <= largest ? largest : error;
  }
  CHECK(largest <= bound_of(1.2));
}

TEMPLATE_TEST_CASE("exponentials of 0, of what is too small, and of what is no number", "[exponential]", float,
                   double) {
  std::array<TestType, block> x{};
  x[1] = TestType(-0.0);
  x[2] = static_cast<TestType>(-infinity);
  x[3] = std::numeric_limits<TestType>::lowest();
  x[4] = TestType(-1000);
  x[5] = std::numeric_limits<TestType>::denorm_min();
  const TestType sum = take_exponentials(x);
  CHECK(x[0] == 1);
  CHECK(x[1] == 1);
  CHECK(x[2] == 0);
  CHECK(x[3] == 0);
  CHECK(x[4] == 0);
  CHECK(x[5] == 1);
  CHECK(sum == static_cast<TestType>(block - 3));
  x[6] = static_cast<TestType>(not_a_number);
  CHECK(std::isnan(take_exponentials(x)));
  CHECK(std::isnan(x[6]));
}
