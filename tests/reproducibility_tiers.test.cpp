// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/isa.hpp>
#include <headwave/linear.hpp>
#include <headwave/merge_attention.hpp>
#include <headwave/positional_encoding.hpp>
#include <headwave/rotary.hpp>
#include <headwave/softmax.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

/// \file
/// All instruction sets with fused multiply-adds give the same bits: those of one machine are compared with each other,
/// and those of different machines by a hash of the result that stands here.

namespace hw = headwave;
using support::random_source;
using support::same_bits;
using support::sizes;

namespace {

/// Multiples of 1/512 in [-4, 4], which every compiler makes of the random integers exactly.
template <class T, std::size_t Rank>
hw::tensor<T, Rank> numbers(random_source& random, const std::size_t (&shape)[Rank]) {
  hw::tensor<T, Rank> result(std::to_array(shape));
  for (T& x : result) {
    x = static_cast<T>(static_cast<int>(random.integer(0, 4096)) - 2048) / T(512);
  }
  return result;
}

template <class T>
hw::tensor<T, 3> projection(std::size_t rows, std::size_t in, std::size_t out) {
  random_source random(rows + in + out);
  const auto weight = numbers<T>(random, {out, in});
  const auto bias = numbers<T>(random, {out});
  return hw::linear<T>(weight, bias)(numbers<T>(random, {1, rows, in}));
}

enum class scores { plain, causal, bias, everything };

/// The outputs, and below them the weights, of grouped heads; every use of scores has rows of one key and of all keys.
template <class T>
hw::tensor<T, 1> attention(std::size_t queries, std::size_t keys, std::size_t head_dim, scores kind) {
  random_source random(queries + keys + head_dim);
  const auto q = numbers<T>(random, {2, queries, 4, head_dim});
  const auto k = numbers<T>(random, {2, keys, 2, head_dim});
  const auto v = numbers<T>(random, {2, keys, 2, head_dim + 3});
  const auto bias = numbers<T>(random, {4, queries, keys});
  const std::vector<T> slopes = {T(1) / 4, T(1) / 16, T(1) / 64, T(1) / 256};
  hw::tensor<bool, 2> visible({queries, keys});
  for (bool& pair : visible) {
    pair = random.integer(0, 3) != 0;
  }
  hw::tensor<T, 4> weights({2, 4, queries, keys});
  hw::attention_options<T> options;
  options.weights = weights;
  options.causal = kind == scores::causal || kind == scores::everything;
  if (kind == scores::bias || kind == scores::everything) {
    options.bias = bias;
  }
  if (kind == scores::everything) {
    options.softcap = 20;
    options.alibi_slopes = slopes;
    options.visible = visible;
  }
  const auto out = hw::scaled_dot_product_attention(q, k, v, options);
  hw::tensor<T, 1> result({out.size() + weights.size()});
  std::copy(weights.begin(), weights.end(), std::copy(out.begin(), out.end(), result.begin()));
  return result;
}

/// Two new tokens against a cache, for grouped heads.
template <class T>
hw::tensor<T, 4> decode(std::size_t keys, std::size_t head_dim) {
  random_source random(keys + head_dim);
  const auto q = numbers<T>(random, {1, 2, 6, head_dim});
  const auto k = numbers<T>(random, {1, keys, 2, head_dim});
  const auto v = numbers<T>(random, {1, keys, 2, head_dim});
  return hw::scaled_dot_product_attention(q, k, v, {.causal = true});
}

template <class T>
hw::tensor<T, 2> softmax(std::size_t count) {
  random_source random(count);
  return hw::softmax(numbers<T>(random, {7, count}));
}

template <class T>
hw::tensor<T, 4> merge(std::size_t queries, std::size_t value_dim) {
  random_source random(queries + value_dim);
  auto out = numbers<T>(random, {2, queries, 3, value_dim});
  auto lse = numbers<T>(random, {2, 3, queries});
  const auto other_out = numbers<T>(random, {2, queries, 3, value_dim});
  const auto other_lse = numbers<T>(random, {2, 3, queries});
  hw::merge_attention(out, lse, other_out, other_lse);
  return out;
}

template <class T>
hw::tensor<T, 2> encoding(std::size_t channels) {
  return hw::sinusoidal_encoding<T>(50, channels, {.first_position = 1'000'003});
}

/// A token's channels in each layout, rotated by scaled frequencies: every set-up that takes logarithms.
template <class T>
hw::tensor<T, 4> rotation(std::size_t pairs, hw::channel_layout layout) {
  random_source random(pairs);
  const hw::rotary_scaling scalings[] = {hw::yarn_scaling{7, 3000}, hw::llama3_scaling{8, 1, 4, 8192},
                                         hw::dynamic_ntk_scaling{3, 5000, 7777}};
  auto x = numbers<T>(random, {3, 37, 2, 2 * pairs + 3});
  for (std::size_t i = 0; i < 3; ++i) {
    const hw::rotary_embedding rope(
        {.rotary_dim = 2 * pairs, .base = 5e5, .layout = layout, .scaling = scalings[i], .first_channel = 1});
    rope.apply(x.view().slice(0, i, 1), 1'000'003);
  }
  return x;
}

/// FNV-1a, 64 bits, of the elements' bytes from the lowest to the highest.
template <class X>
std::uint64_t hash_of(const X& x) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const auto element : x) {
    auto bits = support::bits_of(element);
    for (std::size_t i = 0; i < sizeof bits; ++i) {
      hash = (hash ^ (bits & 0xff)) * 0x100000001b3;
      bits = static_cast<decltype(bits)>(bits >> 8);
    }
  }
  return hash;
}

std::string hexadecimal(std::uint64_t number) {
  char text[19];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// The tiers with fused multiply-adds that this machine has.
std::vector<hw::isa> fused_tiers() {
  std::vector<hw::isa> tiers;
  for (const hw::isa tier : {hw::isa::avx2, hw::isa::avx512, hw::isa::neon}) {
    if (hw::is_available(tier)) {
      tiers.push_back(tier);
    }
  }
  return tiers;
}

/// Compares compute() on all those tiers.
template <class Compute>
std::string differences_between_tiers(const Compute& compute) {
  const hw::isa before = hw::active_isa();
  const std::vector<hw::isa> tiers = fused_tiers();
  std::string faults;
  for (std::size_t i = 1; i < tiers.size(); ++i) {
    hw::set_isa(tiers[0]);
    const auto first = compute();
    hw::set_isa(tiers[i]);
    if (const std::string fault = same_bits(compute(), first); !fault.empty()) {
      faults += hw::name(tiers[i]) + std::string(": ") + fault + "\n";
    }
  }
  hw::set_isa(before);
  return faults;
}

}  // namespace

// A kernel that changes last bits changes these numbers: take the ones that the test then prints, after a look at the
// change itself. The plain C++ tier rounds products and is exempt.
TEST_CASE("results on all machines", "[tiers][bits]") {
  if (hw::active_isa() == hw::isa::scalar) {
    SUCCEED("no fused multiply-adds");
    return;
  }
  const struct {
    const char* name;
    std::uint64_t actual, expected;
  } cases[] = {
      {"projection<float>", hash_of(projection<float>(37, 53, 45)), 0x44cd8613202ca25b},
      {"projection<double>", hash_of(projection<double>(37, 53, 45)), 0x672640b82f328648},
      {"attention<float>", hash_of(attention<float>(29, 300, 40, scores::plain)), 0x7b5b0a9a0a320a92},
      {"attention<double>", hash_of(attention<double>(29, 300, 40, scores::plain)), 0x2b13609744bd8689},
      {"attention<float>, causal", hash_of(attention<float>(29, 300, 40, scores::causal)), 0x6c3418730940228b},
      {"attention<double>, causal", hash_of(attention<double>(29, 300, 40, scores::causal)), 0xee3661fd25ddbb65},
      {"attention<float>, bias", hash_of(attention<float>(29, 300, 40, scores::bias)), 0x5e6e75c43f89bd08},
      {"attention<double>, bias", hash_of(attention<double>(29, 300, 40, scores::bias)), 0x3457397767be51d3},
      {"attention<float>, everything", hash_of(attention<float>(29, 300, 40, scores::everything)), 0x1e3df1bd0225cfec},
      {"attention<double>, everything", hash_of(attention<double>(29, 300, 40, scores::everything)),
       0x0daf257cf48ee71c},
      {"decode<float>", hash_of(decode<float>(700, 40)), 0x5779057249a34822},
      {"decode<double>", hash_of(decode<double>(700, 40)), 0xc19950c8ed7e4c6d},
      {"projection<float>, deep", hash_of(projection<float>(5, 300, 45)), 0xef48537bda82d531},
      {"projection<double>, deep", hash_of(projection<double>(5, 300, 45)), 0xfb248dc09517cd1a},
      {"softmax<float>", hash_of(softmax<float>(77)), 0x39bd4717168e51f2},
      {"softmax<double>", hash_of(softmax<double>(77)), 0xb0d422d5c9ce11d8},
      {"merge<float>", hash_of(merge<float>(11, 37)), 0xb60de1ce3acfebd6},
      {"merge<double>", hash_of(merge<double>(11, 37)), 0x0b18aba08fca5a5b},
      {"encoding<float>", hash_of(encoding<float>(37)), 0x7de7973eb16b40d8},
      {"encoding<double>", hash_of(encoding<double>(37)), 0x4392a1777c76090a},
      {"rotation<float>, halves", hash_of(rotation<float>(37, hw::channel_layout::halves)), 0x50585cc24d11c073},
      {"rotation<double>, halves", hash_of(rotation<double>(37, hw::channel_layout::halves)), 0x4f7b4e70cd28ccee},
      {"rotation<float>, interleaved", hash_of(rotation<float>(37, hw::channel_layout::interleaved)),
       0x7a89c134153ae861},
      {"rotation<double>, interleaved", hash_of(rotation<double>(37, hw::channel_layout::interleaved)),
       0xfb75a147c1304d2d},
  };
  for (const auto& item : cases) {
    CAPTURE(item.name);
    CHECK(hexadecimal(item.actual) == hexadecimal(item.expected));
  }
}

TEMPLATE_TEST_CASE("results on the tiers of this machine", "[tiers][bits]", float, double) {
  using T = TestType;
  if (fused_tiers().size() < 2) {
    SUCCEED("at most one tier with fused multiply-adds");
    return;
  }
  for (std::size_t size = 1; size <= 40; ++size) {
    CAPTURE(size);
    CHECK(differences_between_tiers([=] { return projection<T>(size, 41 - size, 2 * size); }) == "");
    CHECK(differences_between_tiers([=] { return softmax<T>(3 * size); }) == "");
    CHECK(differences_between_tiers([=] { return encoding<T>(size); }) == "");
    CHECK(differences_between_tiers([=] { return rotation<T>(size, hw::channel_layout::halves); }) == "");
    CHECK(differences_between_tiers([=] { return rotation<T>(size, hw::channel_layout::interleaved); }) == "");
    CHECK(differences_between_tiers([=] { return merge<T>(size, 41 - size); }) == "");
    CHECK(differences_between_tiers([=] { return decode<T>(17 * size, size); }) == "");
    for (const scores kind : {scores::plain, scores::causal, scores::bias, scores::everything}) {
      CHECK(differences_between_tiers([=] { return attention<T>(size, 13 * size, 41 - size, kind); }) == "");
    }
  }
}
