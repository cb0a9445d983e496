// SPDX-License-Identifier: MIT
// Compiled with -O3 -ffast-math, and by .ci/run with -Ofast, under which a comparison with infinity or NaN may be
// folded away. So the results are looked at as bits.
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

constexpr std::uint32_t quiet_nan = 0x7fc00000, minus_infinity = 0xff800000, plus_infinity = 0x7f800000;

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

// Row r is one of three: 0 sees nothing, 1 the key 4, 2 all but the last key. Few rows and many go different ways.
void check_masks(std::size_t queries) {
  constexpr std::size_t keys = 11, width = 9;
  hw::tensor<float, 4> q({1, queries, 1, width}), k({1, keys, 1, width}), v({1, keys, 1, width});
  for (std::size_t s = 0; s < keys; ++s) {
    for (std::size_t c = 0; c < width; ++c) {
      k(0, s, 0, c) = 0.25f * static_cast<float>(s + c);
      v(0, s, 0, c) = static_cast<float>(10 * s + c);
    }
  }
  hw::tensor<bool, 2> visible({queries, keys});
  hw::tensor<float, 2> bias({queries, keys});
  for (std::size_t r = 0; r < queries; ++r) {
    for (std::size_t s = 0; s < keys; ++s) {
      visible(r, s) = r % 3 == 1 ? s == 4 : r % 3 == 2 && s + 1 != keys;
      bias(r, s) = visible(r, s) ? r % 3 == 2 ? -FLT_MAX : 0 : from_bits(minus_infinity);
    }
  }
  hw::tensor<float, 3> lse({1, 1, queries});
  hw::tensor<float, 4> weights({1, 1, queries, keys});
  for (const std::uint32_t blocked : {quiet_nan, minus_infinity, plus_infinity}) {
    for (std::size_t c = 0; c < width; ++c) {
      k(0, keys - 1, 0, c) = v(0, keys - 1, 0, c) = from_bits(blocked);
    }
    for (const bool by_bias : {false, true}) {
      hw::attention_options<float> options;
      options.lse = lse;
      options.weights = weights;
      if (by_bias) {
        options.bias = bias;
      } else {
        options.visible = visible;
      }
      const hw::tensor<float, 4> out = hw::scaled_dot_product_attention(q, k, v, options);
      for (std::size_t r = 0; r < queries; ++r) {
        for (std::size_t c = 0; c < width; ++c) {
          const float y = out(0, r, 0, c);
          expect(r % 3 != 0 || bits(y) == 0, "a query that sees nothing gives zeros");
          expect(r % 3 != 1 || near(y, v(0, 4, 0, c)), "one visible key gives its value");
          // The query is zero, so all scores agree: the mean of the values is (0 + ... + 9) * 10 / 10 + c.
          expect(r % 3 != 2 || near(y, 45.0f + static_cast<float>(c)), "what is blocked does not reach a mean");
        }
        for (std::size_t s = 0; s < keys; ++s) {
          expect(visible(r, s) || bits(weights(0, 0, r, s)) == 0, "a blocked key has no weight");
        }
        expect(r % 3 != 0 || bits(lse(0, 0, r)) == minus_infinity, "the log-sum-exp of nothing is -inf");
      }
    }
  }
}

// Scores far below any constant that could stand for -infinity.
void check_low_scores() {
  const float query[] = {-30000}, keys[] = {1, 0}, values[] = {2, 50};
  const hw::tensor_view<const float, 4> q(query, {1, 1, 1, 1}), k(keys, {1, 2, 1, 1}), v(values, {1, 2, 1, 1});
  const std::int64_t one[] = {1};
  hw::attention_options<float> options;
  options.scale = 1;
  options.key_lengths = one;
  expect(near(hw::scaled_dot_product_attention(q, k, v, options)(0, 0, 0, 0), 2), "a key past the length is blocked");
}

}  // namespace

int main() {
  check_masks(3);
  check_masks(30);
  check_low_scores();

  constexpr std::size_t queries = 3, width = 9;
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
