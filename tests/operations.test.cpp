// SPDX-License-Identifier: MIT
#include <headwave/detail/dispatch.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>

/// \file
/// Each operation of the instruction set in use against what simd/scalar.hpp says it means, lane by lane.

namespace headwave::detail {

template <class T>
struct operands {
  static constexpr std::size_t lanes = 64 / sizeof(T);
  T a[lanes], b[lanes], c[lanes];
  T small[lanes];                    // round_to_nearest: what it is defined for
  T normal[lanes], exponent[lanes];  // times_power_of_two: likewise
  unsigned char bytes[lanes];
};

// What the operations of these names give; a mask is seen by what it selects.
template <class T>
struct results {
  static constexpr std::size_t lanes = 64 / sizeof(T);
  T broadcast[lanes], add[lanes], subtract[lanes], multiply[lanes], divide[lanes], multiply_add[lanes],
      multiply_subtract[lanes], maximum[lanes], absolute[lanes], copy_sign[lanes], swap_neighbours[lanes],
      round_to_nearest[lanes], times_power_of_two[lanes], less[lanes], not_less[lanes], is_negative_infinity[lanes],
      load_mask[lanes], keep[lanes];
  T reduce_add, reduce_maximum;
  bool all_finite;
};
struct integer_results {
  std::uint64_t broadcast[8], add[8], bit_and[8], bit_or[8], bit_xor[8], shift_left[8], shift_right[8], as_bits[8],
      top_bit[8];
};
template <class T>
struct rounding_results {
  T store_rounded[8], store_pairs_rounded[16];
};

}  // namespace headwave::detail

#if defined(HEADWAVE_WITH_SCALAR)
#define HEADWAVE_TIER scalar
#include "support/operations.inl"
#undef HEADWAVE_TIER
#endif
#if defined(HEADWAVE_WITH_AVX2)
HEADWAVE_BEGIN_TARGET(HEADWAVE_AVX2_FEATURES)
#define HEADWAVE_TIER avx2
#include "support/operations.inl"
#undef HEADWAVE_TIER
HEADWAVE_END_TARGET
#endif
#if defined(HEADWAVE_WITH_AVX512)
HEADWAVE_BEGIN_TARGET(HEADWAVE_AVX512_FEATURES)
#define HEADWAVE_TIER avx512
#include "support/operations.inl"
#undef HEADWAVE_TIER
HEADWAVE_END_TARGET
#endif
#if defined(HEADWAVE_WITH_NEON)
#define HEADWAVE_TIER neon
#include "support/operations.inl"
#undef HEADWAVE_TIER
#endif

namespace hw = headwave;
using support::bits_of;
using support::random_source;

namespace {

constexpr int rounds = 4000;

template <class T>
T any_number(random_source& random) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  constexpr T special[] = {0,
                           -T(0),
                           1,
                           -1,
                           infinity,
                           -infinity,
                           std::numeric_limits<T>::quiet_NaN(),
                           -std::numeric_limits<T>::quiet_NaN(),
                           std::numeric_limits<T>::max(),
                           std::numeric_limits<T>::lowest(),
                           std::numeric_limits<T>::min(),
                           std::numeric_limits<T>::denorm_min()};
  switch (random.integer(0, 3)) {
    case 0:
      return special[random.integer(0, std::size(special) - 1)];
    case 1:
      return hw::detail::from_bits<T>(static_cast<hw::detail::bits_type<T>>(random.bits()));
    default:
      return static_cast<T>(static_cast<int>(random.integer(0, 64)) - 32) / T(8);
  }
}

/// Equal bit for bit; where arithmetic has made a NaN, any NaN.
template <class T>
bool same(T a, T b) {
  return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b));
}

std::string faults;

template <class T, class Expected>
void compare(const char* name, const T* actual, std::size_t count, const Expected& expected) {
  for (std::size_t i = 0; i < count; ++i) {
    if (!same<T>(actual[i], expected(i)) && faults.size() < 1000) {
      faults += std::string(name) + " " + std::to_string(i) + ": " + std::to_string(actual[i]) + ", expected " +
                std::to_string(expected(i)) + "\n";
    }
  }
}

template <class T>
T larger(T a, T b) {
  return a > b ? a : b;
}

/// In the tree that fixes the order of sums: lane i with the one half the lanes away, and so on.
template <class T, class Combine>
T reduced(const T* lanes, const Combine& combine) {
  T lane[64 / sizeof(T)];
  std::copy(lanes, lanes + std::size(lane), lane);
  for (std::size_t half = std::size(lane) / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      lane[i] = combine(lane[i], lane[i + half]);
    }
  }
  return lane[0];
}

}  // namespace

TEMPLATE_TEST_CASE("operations on floating-point numbers", "[operations]", float, double) {
  using T = TestType;
  random_source random(sizeof(T));
  const bool fused = hw::active_isa() != hw::isa::scalar;
  faults.clear();
  for (int round = 0; round < rounds; ++round) {
    hw::detail::operands<T> x;
    for (std::size_t i = 0; i < x.lanes; ++i) {
      // Every other round has sums that stay finite.
      x.a[i] = round % 2 ? any_number<T>(random) : static_cast<T>(random.uniform(-9, 9));
      x.b[i] = any_number<T>(random);
      x.c[i] = any_number<T>(random);
      x.small[i] = static_cast<T>(random.uniform(-9, 9));
      if (fused) {
        x.small[i] = static_cast<T>(static_cast<int>(random.integer(0, 64)) - 32) / T(4);
      }
      x.normal[i] = static_cast<T>(random.uniform(1, 9));
      x.exponent[i] = static_cast<T>(static_cast<int>(random.integer(0, 200)) - 100);
      x.bytes[i] = random.chance(0.5) ? static_cast<unsigned char>(random.integer(1, 255)) : 0;
    }
    hw::detail::results<T> r;
    HEADWAVE_DISPATCH(apply_operations<T>(x, r))

    const auto each = [&](const char* name, const T* actual, const auto& expected) {
      compare(name, actual, x.lanes, expected);
    };
    each("broadcast", r.broadcast, [&](std::size_t) { return x.a[0]; });
    each("add", r.add, [&](std::size_t i) { return x.a[i] + x.b[i]; });
    each("subtract", r.subtract, [&](std::size_t i) { return x.a[i] - x.b[i]; });
    each("multiply", r.multiply, [&](std::size_t i) { return x.a[i] * x.b[i]; });
    each("divide", r.divide, [&](std::size_t i) { return x.a[i] / x.b[i]; });
    if (fused) {
      each("multiply_add", r.multiply_add, [&](std::size_t i) { return std::fma(x.a[i], x.b[i], x.c[i]); });
      each("multiply_subtract", r.multiply_subtract, [&](std::size_t i) { return std::fma(x.a[i], x.b[i], -x.c[i]); });
    }
    each("maximum", r.maximum, [&](std::size_t i) { return larger(x.a[i], x.b[i]); });
    each("absolute", r.absolute, [&](std::size_t i) { return std::fabs(x.a[i]); });
    each("copy_sign", r.copy_sign, [&](std::size_t i) { return std::copysign(x.a[i], x.b[i]); });
    each("swap_neighbours", r.swap_neighbours, [&](std::size_t i) { return x.a[i ^ 1]; });
    // The scalar tier gives zero no sign.
    each("round_to_nearest", r.round_to_nearest,
         [&](std::size_t i) { return std::nearbyint(x.small[i]) + (fused ? -T(0) : T(0)); });
    each("times_power_of_two", r.times_power_of_two,
         [&](std::size_t i) { return std::ldexp(x.normal[i], static_cast<int>(x.exponent[i])); });
    each("less", r.less, [&](std::size_t i) { return x.a[i] < x.b[i] ? x.a[i] : x.c[i]; });
    each("not_less", r.not_less, [&](std::size_t i) { return x.a[i] < x.b[i] ? T(0) : x.c[i]; });
    each("is_negative_infinity", r.is_negative_infinity,
         [&](std::size_t i) { return std::isinf(x.a[i]) && std::signbit(x.a[i]) ? x.b[i] : x.c[i]; });
    each("load_mask", r.load_mask, [&](std::size_t i) { return x.bytes[i] ? x.a[i] : x.b[i]; });
    each("keep", r.keep, [&](std::size_t i) { return x.bytes[i] ? x.a[i] : T(0); });
    compare("reduce_add", &r.reduce_add, 1, [&](std::size_t) { return reduced(x.a, [](T a, T b) { return a + b; }); });
    compare("reduce_maximum", &r.reduce_maximum, 1, [&](std::size_t) { return reduced(x.a, larger<T>); });
    CHECK(r.all_finite == std::all_of(x.a, x.a + x.lanes, [](T a) { return std::isfinite(a); }));
  }
  CHECK(faults == "");
}

TEMPLATE_TEST_CASE("transposition of a square of numbers", "[operations]", float, double) {
  using T = TestType;
  constexpr std::size_t lanes = 64 / sizeof(T), stride = lanes + 3;
  T source[lanes * stride], target[lanes * lanes + 1];
  for (std::size_t i = 0; i < lanes * stride; ++i) {
    source[i] = static_cast<T>(i);
  }
  target[lanes * lanes] = T(-1);
  HEADWAVE_DISPATCH(apply_transpose<T>(target, source, hw::index(stride)))
  bool right = true;
  for (std::size_t r = 0; r < lanes; ++r) {
    for (std::size_t c = 0; c < lanes; ++c) {
      right = right && bits_of(target[c * lanes + r]) == bits_of(source[r * stride + c]);
    }
  }
  CHECK(right);
  CHECK(bits_of(target[lanes * lanes]) == bits_of(T(-1)));
}

TEST_CASE("operations on 64-bit integers", "[operations]") {
  random_source random(1);
  for (int round = 0; round < rounds; ++round) {
    std::uint64_t a[8], b[8];
    for (std::size_t i = 0; i < 8; ++i) {
      a[i] = random.bits();
      b[i] = random.bits();
    }
    hw::detail::integer_results r;
    HEADWAVE_DISPATCH(apply_integer_operations(a, b, r))
    bool right = true;
    for (std::size_t i = 0; i < 8; ++i) {
      right = right && r.broadcast[i] == a[0] && r.add[i] == a[i] + b[i] && r.bit_and[i] == (a[i] & b[i]) &&
              r.bit_or[i] == (a[i] | b[i]) && r.bit_xor[i] == (a[i] ^ b[i]) && r.shift_left[i] == a[i] << 2 &&
              r.shift_right[i] == a[i] >> 12 && r.as_bits[i] == a[i] && r.top_bit[i] == (a[i] >> 63 ? a[i] : b[i]);
    }
    REQUIRE(right);
  }
}

TEMPLATE_TEST_CASE("doubles rounded as they are stored", "[operations]", float, double) {
  using T = TestType;
  random_source random(2);
  faults.clear();
  for (int round = 0; round < rounds; ++round) {
    double a[8], b[8];
    for (std::size_t i = 0; i < 8; ++i) {
      a[i] = random.uniform(-1, 1);
      b[i] = random.uniform(-1, 1);
    }
    hw::detail::rounding_results<T> r;
    HEADWAVE_DISPATCH(apply_roundings<T>(a, b, r))
    compare("store_rounded", r.store_rounded, 8, [&](std::size_t i) { return static_cast<T>(a[i]); });
    compare("store_pairs_rounded", r.store_pairs_rounded, 16,
            [&](std::size_t i) { return static_cast<T>(i % 2 ? b[i / 2] : a[i / 2]); });
  }
  CHECK(faults == "");
}

TEMPLATE_TEST_CASE("all numbers of 16 bits as they are loaded", "[operations]", hw::bfloat16, hw::float16) {
  std::uint32_t wrong = 0;
  for (std::uint32_t first = 0; first < 0x10000; first += 16) {
    TestType from[16];
    float to[16];
    for (std::uint32_t i = 0; i < 16; ++i) {
      from[i] = TestType::from_bits(static_cast<std::uint16_t>(first + i));
    }
    HEADWAVE_DISPATCH(apply_load_converted<TestType>(to, from))
    for (std::uint32_t i = 0; i < 16; ++i) {
      wrong += bits_of(to[i]) != bits_of(static_cast<float>(from[i]));
    }
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("floats rounded to 16 bits as they are stored", "[operations]", hw::bfloat16, hw::float16) {
  // Every upper half of a float, NaNs included, with lower halves around the ties of both formats.
  const std::uint32_t lower[16] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2000, 0x2fff, 0x3000,
                                   0x3001, 0x5000, 0x7fff, 0x8000, 0x8001, 0xb000, 0xf000, 0xffff};
  std::uint32_t wrong = 0;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    float from[16];
    TestType to[17] = {};
    for (std::uint32_t i = 0; i < 16; ++i) {
      from[i] = std::bit_cast<float>(upper << 16 | lower[(i + upper) % 16]);
    }
    HEADWAVE_DISPATCH(apply_store_converted<TestType>(to, from))
    for (std::uint32_t i = 0; i < 16; ++i) {
      wrong += to[i].bits != TestType(from[i]).bits;
    }
    wrong += to[16].bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("all bytes as they are loaded", "[operations]") {
  std::uint32_t wrong = 0;
  for (int first = -128; first < 128; first += 16) {
    std::int8_t from[16];
    float to[16];
    for (int i = 0; i < 16; ++i) {
      from[i] = static_cast<std::int8_t>(first + i);
    }
    HEADWAVE_DISPATCH(apply_load_converted<std::int8_t>(to, from))
    for (int i = 0; i < 16; ++i) {
      wrong += bits_of(to[i]) != bits_of(static_cast<float>(first + i));
    }
  }
  CHECK(wrong == 0);
}
