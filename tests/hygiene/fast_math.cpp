// SPDX-License-Identifier: MIT
// Compiled with -O3 -ffast-math, under which a comparison with infinity or NaN may be folded away. So the results are
// looked at as bits.
#include <headwave/attention.hpp>
#include <headwave/merge_attention.hpp>
#include <headwave/numeric.hpp>

#include <cfloat>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace hw = headwave;

namespace {

constexpr std::uint32_t quiet_nan = 0x7fc00000, minus_infinity = 0xff800000;

std::uint32_t bits(float x) {
  std::uint32_t word = 0;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

float from_bits(std::uint32_t word) {
  float x = 0;
  std::memcpy(&x, &word, sizeof x);
  return x;
}

// -ffast-math lets the compiler divide by an approximate reciprocal, so finite results have no exact bits.
bool near(float a, float b) {
  return (bits(a - b) & 0x7fffffff) < bits(1e-4f);
}

int failures = 0;

void expect(bool holds, const char* what) {
  if (!holds) {
    std::printf("failed: %s\n", what);
    ++failures;
  }
}

}  // namespace

int main() {
  constexpr std::size_t queries = 3, keys = 11, width = 9;
  hw::tensor<float, 4> q({1, queries, 1, width}), k({1, keys, 1, width}), v({1, keys, 1, width});
  for (std::size_t s = 0; s < keys; ++s) {
    for (std::size_t c = 0; c < width; ++c) {
      k(0, s, 0, c) = 0.25f * static_cast<float>(s + c);
      v(0, s, 0, c) = static_cast<float>(10 * s + c);
    }
  }

  // Query 0 sees nothing, query 1 the key 4, query 2 all but the last key, which holds NaN.
  hw::tensor<bool, 2> visible({queries, keys});
  hw::tensor<float, 2> bias({queries, keys});
  visible(1, 4) = true;
  for (std::size_t s = 0; s < keys; ++s) {
    visible(2, s) = s + 1 != keys;
    bias(0, s) = from_bits(minus_infinity);
    bias(1, s) = from_bits(s == 4 ? 0 : minus_infinity);
    bias(2, s) = s + 1 != keys ? -FLT_MAX : from_bits(minus_infinity);
  }
  for (std::size_t c = 0; c < width; ++c) {
    k(0, keys - 1, 0, c) = v(0, keys - 1, 0, c) = from_bits(quiet_nan);
  }

  hw::tensor<float, 3> lse({1, 1, queries});
  for (const bool by_bias : {false, true}) {
    hw::attention_options<float> options;
    options.lse = lse;
    if (by_bias) {
      options.bias = bias;
    } else {
      options.visible = visible;
    }
    const hw::tensor<float, 4> out = hw::scaled_dot_product_attention(q, k, v, options);
    for (std::size_t c = 0; c < width; ++c) {
      expect(bits(out(0, 0, 0, c)) == 0, "a query that sees nothing gives zeros");
      expect(near(out(0, 1, 0, c), v(0, 4, 0, c)), "one visible key gives its value");
      // The query is zero, so all scores agree and the result is the mean of the values, (0 + ... + 9) * 10 / 10 + c.
      expect(near(out(0, 2, 0, c), 45.0f + static_cast<float>(c)), "blocked NaN does not reach the mean of the others");
    }
    expect(bits(lse(0, 0, 0)) == minus_infinity, "the log-sum-exp of nothing is -inf");
  }

  // Rows 1 and 2 see nothing on one side, where NaN lies, and row 0 on both.
  hw::tensor<float, 4> out_a({1, queries, 1, width}), out_b({1, queries, 1, width});
  hw::tensor<float, 3> lse_a({1, 1, queries}), lse_b({1, 1, queries});
  for (std::size_t c = 0; c < width; ++c) {
    out_a(0, 0, 0, c) = out_b(0, 0, 0, c) = out_a(0, 1, 0, c) = out_b(0, 2, 0, c) = from_bits(quiet_nan);
    out_b(0, 1, 0, c) = out_a(0, 2, 0, c) = 7;
  }
  lse_a(0, 0, 0) = lse_b(0, 0, 0) = lse_a(0, 0, 1) = lse_b(0, 0, 2) = from_bits(minus_infinity);
  lse_b(0, 0, 1) = lse_a(0, 0, 2) = 3;
  hw::merge_attention(out_a, lse_a, out_b, lse_b);
  for (std::size_t c = 0; c < width; ++c) {
    expect(bits(out_a(0, 0, 0, c)) == 0, "two sides that see nothing give zeros");
    expect(bits(out_a(0, 1, 0, c)) == bits(7), "nothing merged with a side is that side");
    expect(bits(out_a(0, 2, 0, c)) == bits(7), "a side merged with nothing is itself");
  }
  expect(bits(lse_a(0, 0, 0)) == minus_infinity, "the log-sum-exp of two sides that see nothing is -inf");
  expect(bits(lse_a(0, 0, 1)) == bits(3) && bits(lse_a(0, 0, 2)) == bits(3), "and that of one side is its own");

  // Numbers of 16 bits: NaN, infinity, and a subnormal one, which -ffast-math lets the processor take for zero.
  expect(hw::float16(from_bits(quiet_nan)).bits == 0x7e00, "NaN as a float16");
  expect(hw::bfloat16(from_bits(quiet_nan)).bits == 0x7fc0, "NaN as a bfloat16");
  expect(hw::float16(from_bits(minus_infinity)).bits == 0xfc00, "-infinity as a float16");
  expect(bits(static_cast<float>(hw::bfloat16::from_bits(0xff80))) == minus_infinity, "-infinity from a bfloat16");
  expect(bits(static_cast<float>(hw::float16::from_bits(1))) == 0x33800000, "the smallest float16");
  expect(hw::bfloat16(from_bits(0x00010000)).bits == 1, "the smallest bfloat16");
  expect(!(hw::float16::from_bits(0x7e00) == hw::float16::from_bits(0x7e00)), "NaN equals nothing");
  return failures;
}
