// SPDX-License-Identifier: MIT
#include <headwave/numeric.hpp>
#include <headwave/tensor.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace hw = headwave;
using support::bits_of;
using support::random_source;

namespace {

/// What IEEE 754 says of a format, for values in double, where every number of 16 bits and every step below is exact.
template <class Small>
struct format;
template <>
struct format<hw::bfloat16> {
  static constexpr int precision = 8, lowest_exponent = -126;
  static constexpr double largest = 0x1.fep127;
};
template <>
struct format<hw::float16> {
  static constexpr int precision = 11, lowest_exponent = -14;
  static constexpr double largest = 65504;
};

template <class Small>
Small pattern(std::uint32_t bits) {
  return Small::from_bits(static_cast<std::uint16_t>(bits));
}

/// The value of a pattern, from its fields.
template <class Small>
double value_of(std::uint32_t bits) {
  constexpr int fraction_bits = format<Small>::precision - 1;
  const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const std::uint32_t exponent = (bits & 0x7fff) >> fraction_bits;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == 0x7fffu >> fraction_bits) {
    return std::copysign(fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity(),
                         sign);
  }
  const std::uint32_t whole = exponent ? fraction + (1u << fraction_bits) : fraction;
  const int power = static_cast<int>(exponent ? exponent : 1) - 1 + format<Small>::lowest_exponent - fraction_bits;
  return sign * std::ldexp(static_cast<double>(whole), power);
}

/// x rounded to nearest, ties to even, by the processor's own rounding of doubles to integers.
template <class Small>
double nearest(double x) {
  if (!std::isfinite(x) || x == 0) {
    return x;
  }
  const int exponent = (std::max)(std::ilogb(x), format<Small>::lowest_exponent);
  const int unit = exponent - (format<Small>::precision - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::fabs(rounded) > format<Small>::largest ? std::copysign(std::numeric_limits<double>::infinity(), x)
                                                     : rounded;
}

/// Equal in value and in the sign of zero, or both NaN.
bool same_value(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || bits_of(a) == bits_of(b);
}

std::string faults;

/// Rounds x, and notes it if the result is wrong.
template <class Small, class Wide>
void check_rounding(Wide x) {
  const Small small(x);
  const double actual = value_of<Small>(small.bits), expected = nearest<Small>(static_cast<double>(x));
  bool right = same_value(actual, expected) && std::signbit(actual) == std::signbit(x);
  if (std::isnan(x)) {
    // Quiet, the upper payload kept.
    constexpr int fraction_bits = format<Small>::precision - 1;
    constexpr int dropped = hw::detail::mantissa_bits<Wide> - fraction_bits;
    const auto quiet = static_cast<std::uint16_t>(1u << (fraction_bits - 1));
    right = right && small.bits == ((small.bits & 0x8000) | ((0x7fff >> fraction_bits) << fraction_bits) | quiet |
                                    static_cast<std::uint16_t>((bits_of(x) >> dropped) & ((1u << fraction_bits) - 1)));
  }
  if (!right && faults.size() < 1000) {
    faults += support::text_of(static_cast<long double>(x)) + " became " +
              support::text_of(static_cast<long double>(actual)) + "\n";
  }
}

// What fits, and what must not happen by accident.
template <class Small>
constexpr bool is_storage = sizeof(Small) == 2 && std::is_trivially_copyable_v<Small> &&
                            std::is_standard_layout_v<Small> && std::is_trivially_default_constructible_v<Small> &&
                            std::is_constructible_v<Small, float> && std::is_constructible_v<Small, double> &&
                            !std::is_convertible_v<float, Small> && !std::is_convertible_v<Small, float> &&
                            std::is_constructible_v<float, Small> && std::is_same_v<hw::compute_type<Small>, float>;
static_assert(is_storage<hw::bfloat16> && is_storage<hw::float16>);
static_assert(std::is_same_v<hw::compute_type<float>, float> && std::is_same_v<hw::compute_type<double>, double>);
static_assert(hw::float16(1.0f).bits == 0x3c00 && hw::bfloat16(1.0).bits == 0x3f80 && hw::float16().bits == 0);
static_assert(hw::float16(0.1f) < hw::float16(0.2f) && hw::bfloat16(0.0f) == hw::bfloat16(-0.0f));
static_assert(static_cast<float>(hw::bfloat16(3.0f)) > 2.5f && static_cast<double>(hw::float16(-2.0f)) < -1.5);

}  // namespace

TEST_CASE("numbers of 16 bits that everybody knows", "[numeric]") {
  CHECK(hw::float16(65504.0f).bits == 0x7bff);
  CHECK(hw::float16(65519.996f).bits == 0x7bff);
  CHECK(hw::float16(65520.0f).bits == 0x7c00);
  CHECK(hw::float16(-1e30f).bits == 0xfc00);
  CHECK(hw::float16(0x1p-24f).bits == 1);
  CHECK(hw::float16(0x1p-25f).bits == 0);
  CHECK(hw::float16(0x1.000002p-25f).bits == 1);
  CHECK(hw::float16(-0x1p-26f).bits == 0x8000);
  CHECK(hw::float16(0x1.ffcp-15f).bits == 0x0400);
  CHECK(hw::float16(0.1f).bits == 0x2e66);
  CHECK(hw::float16(1.0f / 3).bits == 0x3555);
  CHECK(hw::bfloat16(0.1f).bits == 0x3dcd);
  CHECK(hw::bfloat16(3.14159f).bits == 0x4049);
  CHECK(hw::bfloat16(1.00390625f).bits == 0x3f80);
  CHECK(hw::bfloat16(1.01171875f).bits == 0x3f82);
  CHECK(hw::bfloat16(0x1.fep127f).bits == 0x7f7f);
  CHECK(hw::bfloat16(0x1.fffffep127f).bits == 0x7f80);
  CHECK(hw::bfloat16(0x1p-149f).bits == 0);
  CHECK(hw::bfloat16(0x1p-133f).bits == 1);
  // One rounding, not one to float and another: the float of the first is the tie between 1 and the next number.
  CHECK(hw::float16(1 + 0x1p-11 + 0x1p-40).bits == 0x3c01);
  CHECK(hw::bfloat16(1 + 0x1p-8 + 0x1p-40).bits == 0x3f81);
  CHECK(hw::bfloat16(1e300).bits == 0x7f80);
  CHECK(hw::bfloat16(-0x1p-1074).bits == 0x8000);
}

TEMPLATE_TEST_CASE("all numbers of 16 bits widen exactly, and come back", "[numeric]", hw::bfloat16, hw::float16) {
  std::uint32_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto small = pattern<TestType>(bits);
    const double value = value_of<TestType>(bits);
    const float wide = static_cast<float>(small);
    bool right = same_value(static_cast<double>(wide), value) && same_value(static_cast<double>(small), value) &&
                 same_value(static_cast<double>(static_cast<long double>(small)), value) &&
                 std::signbit(wide) == std::signbit(value);
    const std::uint32_t back = TestType(wide).bits;
    right = right && TestType(static_cast<double>(small)).bits == back;
    const std::uint32_t quiet = std::isnan(value) ? 1u << (format<TestType>::precision - 2) : 0;
    wrong += !right || back != (bits | quiet);
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("rounding to nearest, ties to even", "[numeric]", hw::bfloat16, hw::float16) {
  faults.clear();
  // Every sign, exponent and upper fraction of a float, with the lower parts around the ties of both formats.
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2000u, 0x3000u, 0x3001u, 0x4000u,
                                      0x7fffu, 0x8000u, 0x8001u, 0xefffu, 0xf000u, 0xffffu}) {
      check_rounding<TestType>(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  // Each number, the middle between it and the next, and what lies just beside these, as doubles.
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (std::uint32_t bits = 0; value_of<TestType>(bits) < infinity; ++bits) {
    const double low = value_of<TestType>(bits);
    const double high = bits == pattern<TestType>(TestType(infinity).bits - 1u).bits
                            ? std::ldexp(1.0, std::ilogb(low) + 1)
                            : value_of<TestType>(bits + 1);
    for (const double x : {low, low + (high - low) / 2}) {
      for (const double sign : {1.0, -1.0}) {
        check_rounding<TestType>(sign * x);
        check_rounding<TestType>(sign * std::nextafter(x, infinity));
        check_rounding<TestType>(sign * std::nextafter(x, -infinity));
      }
    }
  }
  random_source random(1);
  for (int i = 0; i < 200'000; ++i) {
    check_rounding<TestType>(std::bit_cast<double>(random.bits()));
    check_rounding<TestType>(std::ldexp(random.uniform(-1, 1), static_cast<int>(random.integer(0, 60)) - 40));
  }
  CHECK(faults == "");
}

TEMPLATE_TEST_CASE("16-bit numbers compare as floats do", "[numeric]", hw::bfloat16, hw::float16) {
  const std::vector<std::uint32_t> patterns = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00,
                                               0x3f80, 0xbc00, 0x7bff, 0x7c00, 0xfc00, 0x7c01, 0x7f7f,
                                               0x7f80, 0xff80, 0x7f81, 0xff7f, 0xffff, 0x7fc0, 0xfbff};
  std::uint32_t wrong = 0;
  for (const std::uint32_t first : patterns) {
    for (const std::uint32_t second : patterns) {
      const auto a = pattern<TestType>(first), b = pattern<TestType>(second);
      const double x = value_of<TestType>(first), y = value_of<TestType>(second);
      wrong += (a == b) != (x == y);
      wrong += (a != b) != (x != y);
      wrong += (a < b) != (x < y);
      wrong += (a > b) != (x > y);
      wrong += (a <= b) != (x <= y);
      wrong += (a >= b) != (x >= y);
    }
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("tensors of 16-bit numbers", "[numeric][tensor]", hw::bfloat16, hw::float16) {
  hw::tensor<TestType, 2> x({3, 5});
  CHECK(std::all_of(x.begin(), x.end(), [](TestType zero) { return zero.bits == 0; }));
  x(1, 2) = TestType(1.5f);
  const hw::tensor<TestType, 2> copy = x;
  const hw::tensor_view<const TestType, 2> turned = hw::as_view(copy).transposed(0, 1);
  CHECK(turned(2, 1) == TestType(1.5));
  CHECK(turned(1, 2) == TestType(0.0));
  std::vector<TestType> memory(6, TestType(2.0f));
  const hw::tensor_view<TestType, 2> view(memory, {2, 3});
  view(1, 1) = TestType(-4.0f);
  CHECK(memory[4] == TestType(-4.0));
  CHECK(std::is_same_v<hw::element_of<decltype(view)>, TestType>);
}
