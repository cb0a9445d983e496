// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/guarded.hpp"
#include "support/random.hpp"

#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// \file
/// A thread may have told its processor to take numbers below the smallest normal one for zero, as audio and game
/// engines do: calls leave that as it is, and results change by no more than such numbers.

namespace hw = headwave;
using support::constant;
using support::random_source;
using support::result_bytes;
using support::same_bits;
using support::sizes;
using support::within;

namespace {

#if defined(__x86_64__)
unsigned control_bits() {
  return _mm_getcsr() & ~0x3fu;  // without what has happened so far
}
void set_control_bits(unsigned bits) {
  _mm_setcsr(bits);
}
constexpr unsigned flushing = 0x8040;  // results and operands
#elif defined(__aarch64__)
std::uint64_t control_bits() {
  std::uint64_t bits;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
void set_control_bits(std::uint64_t bits) {
  asm volatile("msr fpcr, %0" : : "r"(bits));
}
constexpr std::uint64_t flushing = std::uint64_t{1} << 24;
#endif

/// Runs a call with numbers below the smallest normal one flushed to zero. Whether that is still so afterwards.
template <class Call>
bool flushed(const Call& call) {
  const auto before = control_bits();
  set_control_bits(before | flushing);
  call();
  const bool kept = control_bits() == (before | flushing);
  set_control_bits(before);
  return kept;
}
/// Runs a call as usual. Whether the state is as before.
template <class Call>
bool usual(const Call& call) {
  const auto before = control_bits();
  call();
  return control_bits() == before;
}

/// Queries and keys of numbers around 1, times a factor.
template <class T>
struct problem {
  random_source random{8};
  hw::tensor<T, 4> q, k, v = random.tensor<T>({2, 270, 2, 18});
  hw::tensor<T, 3> x = random.tensor<T>({2, 20, 40});
  hw::tensor<T, 2> table = random.tensor<T>({32, 4});

  explicit problem(double factor)
      : q(random.tensor<T>({2, 20, 4, 24}, factor)), k(random.tensor<T>({2, 270, 2, 24}, factor)) {}
};

/// The results of one call of each kind.
template <class T>
result_bytes results_of_calls(const problem<T>& p) {
  result_bytes all;
  all.add(hw::sinusoidal_encoding<T>(20, 40));
  all.add(hw::sinusoidal_encoding_2d<T>(3, 4, 40));
  all.add(hw::alibi_slopes<T>(12));
  all.add(hw::t5_distance_bias(p.table));
  all.add(hw::softmax(p.q));
  auto rotated = p.v;
  hw::rotary_embedding({.rotary_dim = 18, .scaling = hw::yarn_scaling{8, 1000}}).apply(rotated, 100);
  all.add(rotated);
  for (const std::size_t rows : sizes{1, 20}) {
    hw::tensor<T, 3> lse({2, 4, rows});
    const auto some = p.q.view().slice(1, 0, rows);
    auto out = hw::scaled_dot_product_attention(some, p.k, p.v, {.softcap = 5, .causal = true, .lse = lse});
    all.add(out);
    all.add(lse);
    hw::merge_attention(out, lse, hw::scaled_dot_product_attention(some, p.k, p.v), lse);
    all.add(out);
    hw::tensor<T, 4> weights({2, 4, rows, 270});
    hw::tensor<T, 3> mass({2, 4, 270});
    all.add(
        hw::scaled_dot_product_attention(some, p.k, p.v, {.dropout = {0.3, 1}, .weights = weights, .key_mass = mass}));
    all.add(weights);
    all.add(mass);
  }
  hw::multi_head_attention_options o{.d_model = 40, .heads = 4, .qk_norm = true};
  o.gate = hw::output_gate::heads;
  hw::multi_head_attention<T> layer(o);
  layer.init_xavier(5);
  all.add(layer(p.x));
  return all;
}

/// Attention to a cache of fewer bits, and to keys and values of them.
template <class Stored>
result_bytes results_of_storage(double factor) {
  random_source random(9);
  const auto k = random.tensor<float>({1, 70, 1, 24}), v = random.tensor<float>({1, 70, 1, 20}, factor);
  hw::kv_cache<float, Stored> cache({.capacity = 70, .head_dim = 24, .value_dim = 20});
  cache.append(k, v);
  result_bytes all;
  for (const std::size_t rows : sizes{1, 20}) {
    const auto q = random.tensor<float>({1, rows, 1, 24});
    all.add(hw::scaled_dot_product_attention(q, cache));
    if constexpr (!std::is_same_v<Stored, std::int8_t>) {
      hw::tensor<Stored, 4> out({1, rows, 1, 20});
      hw::scaled_dot_product_attention_into(out, q, cache);
      all.add(out);
    }
  }
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("whether tiny numbers are flushed is left as it is, and changes no ordinary result", "[flush]",
                   float, double) {
  // Queries and keys that are no normal numbers have scores of zero either way.
  const double tiny = std::is_same_v<TestType, float> ? 0x1p-135 : 0x1p-1030;
  for (const double factor : {1.0, tiny}) {
    CAPTURE(factor);
    const problem<TestType> p(factor);
    result_bytes expected, actual;
    CHECK(usual([&] { expected = results_of_calls(p); }));
    CHECK(flushed([&] { actual = results_of_calls(p); }));
    CHECK(actual.differs_from(expected) == "");
  }
}

TEST_CASE("flushing: numbers of fewer bits", "[flush]") {
  // Numbers below 2^-14 are subnormal in float16, and normal in float.
  for (const double factor : {1.0, 0x1p-17}) {
    CAPTURE(factor);
    result_bytes expected, actual;
    const auto check = [&](const auto& results) {
      CHECK(usual([&] { expected = results(factor); }));
      CHECK(flushed([&] { actual = results(factor); }));
      CHECK(actual.differs_from(expected) == "");
    };
    check(results_of_storage<hw::float16>);
    check(results_of_storage<hw::bfloat16>);
    check(results_of_storage<std::int8_t>);
    check(results_of_storage<float>);
  }
}

TEMPLATE_TEST_CASE("flushing: a tiny value is lost, or it is there, and nothing else changes", "[flush]", float,
                   double) {
  using T = TestType;
  constexpr double smallest = std::is_same_v<T, float> ? 0x1p-126 : 0x1p-1022;
  random_source random(10);
  const auto q = random.tensor<T>({1, 20, 2, 8}), k = random.tensor<T>({1, 30, 1, 8});
  auto v = random.tensor<T>({1, 30, 1, 10}), tokens = random.tensor<T>({1, 30, 1, 10});
  for (std::size_t key = 0; key < 30; ++key) {
    for (std::size_t c = 5; c < 10; ++c) {
      v(0u, key, 0u, c) = tokens(0u, key, 0u, c) = static_cast<T>(smallest / 8 * random.uniform(-1, 1));
    }
  }
  const auto rotate = [&] {
    auto x = tokens;
    hw::rotary_embedding({.rotary_dim = 10, .layout = hw::channel_layout::interleaved}).apply(x, 7);
    return x;
  };
  for (const std::size_t rows : sizes{1, 20}) {
    const auto some = q.view().slice(1, 0, rows);
    const auto expected = hw::scaled_dot_product_attention(some, k, v);
    hw::tensor<T, 4> actual;
    CHECK(flushed([&] { actual = hw::scaled_dot_product_attention(some, k, v); }));
    CHECK(within(actual.view().slice(3, 5, 5), expected.view().slice(3, 5, 5), smallest) == "");
    CHECK(same_bits(actual.view().slice(3, 0, 5), expected.view().slice(3, 0, 5)) == "");
  }
  const auto expected = rotate();
  hw::tensor<T, 4> actual;
  CHECK(flushed([&] { actual = rotate(); }));
  CHECK(within(actual.view().slice(3, 6, 4), expected.view().slice(3, 6, 4), smallest) == "");
  CHECK(same_bits(actual.view().slice(3, 0, 4), expected.view().slice(3, 0, 4)) == "");
}

TEST_CASE("rows of tiny numbers in 8 bits", "[kv_cache]") {
  for (const double size : {1e-36, 1e-37, 2e-38, 1e-40, 1e-44}) {
    CAPTURE(size);
    hw::kv_cache<float, std::int8_t> cache({.capacity = 1, .head_dim = 2});
    const auto v = support::tensor_of<float>({1, 1, 1, 2}, {size, -size / 2});
    cache.append(v, v);
    const auto out = hw::scaled_dot_product_attention(constant<float>({1, 1, 1, 2}, 0), cache);
    // Half of a 127th, and what the scale, below the smallest normal number, is rounded by.
    CHECK(within(out, v, size / 254 * 1.001 + 128 * 0x1p-149) == "");
  }
}
