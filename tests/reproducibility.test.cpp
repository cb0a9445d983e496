// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/linear.hpp>
#include <headwave/multi_head_attention.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/layer.hpp"
#include "support/random.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

/// \file
/// A row's bits depend on its own query and on the keys it sees, and on nothing else of the call.

namespace hw = headwave;
using support::constant;
using support::layer_parameters;
using support::not_a_number;
using support::random_source;
using support::same_bits;
using support::sizes;

namespace {

/// Twelve queries against three samples of keys, and what one call gives for all of them.
template <class T>
struct problem {
  static constexpr std::size_t batch = 3, rows = 12, heads = 4;
  std::size_t keys;
  hw::tensor<T, 4> q, k, v;

  explicit problem(std::size_t key_length, std::size_t head_dim = 40) : keys(key_length) {
    random_source random(key_length + head_dim);
    q = random.tensor<T>({batch, rows, heads, head_dim});
    k = random.tensor<T>({batch, keys, 2, head_dim});
    v = random.tensor<T>({batch, keys, 2, head_dim});
  }

  std::int64_t start(std::size_t row = 0) const { return static_cast<std::int64_t>(keys - rows + row); }
  hw::tensor<T, 4> operator()(const hw::attention_options<T>& options = {}) const {
    return hw::scaled_dot_product_attention(q, k, v, options);
  }
};

/// The tests hold for keys within one block, in part of the second, and in several.
const std::size_t key_lengths[] = {13, 77, 300, 700};

template <class T>
hw::tensor<T, 4> with_tail(const hw::tensor<T, 4>& x, std::size_t count, double value) {
  hw::tensor<T, 4> result = constant<T>({x.extent(0), x.extent(1) + count, x.extent(2), x.extent(3)}, value);
  support::for_each_index(
      x.extents(), [&](const auto& at) { support::element(result.view(), at) = support::element(x.view(), at); });
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("any rows of the queries, any samples, any heads", "[attention][bits]", float, double) {
  for (const std::size_t keys : key_lengths) {
    const problem<TestType> p(keys);
    for (const bool causal : {false, true}) {
      const auto whole = p({.causal = causal});
      std::string faults;
      for (std::size_t count = 1; count <= p.rows; ++count) {
        for (const std::size_t first : {std::size_t{0}, p.rows - count}) {
          const auto part = hw::scaled_dot_product_attention(
              p.q.view().slice(1, first, count), p.k, p.v,
              hw::attention_options<TestType>{.causal = causal, .query_start = p.start(first)});
          faults += same_bits(part, whole.view().slice(1, first, count));
        }
      }
      for (std::size_t count = 1; count <= p.batch; ++count) {
        const auto part = hw::scaled_dot_product_attention(
            p.q.view().slice(0, 3 - count, count), p.k.view().slice(0, 3 - count, count),
            p.v.view().slice(0, 3 - count, count), hw::attention_options<TestType>{.causal = causal});
        faults += same_bits(part, whole.view().slice(0, 3 - count, count));
      }
      for (std::size_t h = 0; h < p.heads; ++h) {
        const auto part = hw::scaled_dot_product_attention(p.q.view().slice(2, h, 1), p.k.view().slice(2, h / 2, 1),
                                                           p.v.view().slice(2, h / 2, 1),
                                                           hw::attention_options<TestType>{.causal = causal});
        faults += same_bits(part, whole.view().slice(2, h, 1));
      }
      CAPTURE(keys, causal);
      CHECK(faults == "");
    }
  }
}

TEMPLATE_TEST_CASE("a prompt in chunks", "[attention][bits]", float, double) {
  random_source random(1);
  const std::size_t length = 330;
  const auto q = random.tensor<TestType>({1, length, 2, 24});
  const auto k = random.tensor<TestType>({1, length, 2, 24});
  const auto v = random.tensor<TestType>({1, length, 2, 24});
  const auto whole = hw::scaled_dot_product_attention(q, k, v, hw::attention_options<TestType>{.causal = true});
  for (const std::size_t chunk : sizes{1, 3, 7, 64, 150}) {
    std::string faults;
    for (std::size_t first = 0; first < length; first += chunk) {
      const std::size_t count = std::min(chunk, length - first);
      // The cache holds the keys so far, and queries are aligned at its end by default.
      const auto part = hw::scaled_dot_product_attention(
          q.view().slice(1, first, count), k.view().slice(1, 0, first + count), v.view().slice(1, 0, first + count),
          hw::attention_options<TestType>{.causal = true});
      faults += same_bits(part, whole.view().slice(1, first, count));
    }
    CAPTURE(chunk);
    CHECK(faults == "");
  }
}

TEMPLATE_TEST_CASE("blocked keys past the visible ones", "[attention][bits]", float, double) {
  for (const std::size_t keys : key_lengths) {
    const problem<TestType> p(keys);
    const auto alone = p();
    for (const std::size_t extra : sizes{1, 5, 64, 400}) {
      for (const double tail : {0.0, not_a_number}) {
        const auto k = with_tail(p.k, extra, tail);
        const auto v = with_tail(p.v, extra, tail);
        const std::size_t all = keys + extra;
        const auto run = [&](const hw::attention_options<TestType>& options) {
          return hw::scaled_dot_product_attention(p.q, k, v, options);
        };
        auto visible = constant<bool>({all}, 1);
        auto bias = constant<TestType>({all}, 0);
        for (std::size_t j = keys; j < all; ++j) {
          visible(j) = false;
          bias(j) = -std::numeric_limits<TestType>::infinity();
        }
        const std::vector<std::int64_t> lengths(3, static_cast<std::int64_t>(keys));
        CAPTURE(keys, extra, tail);
        CHECK(same_bits(run({.visible = visible}), alone) == "");
        CHECK(same_bits(run({.bias = bias}), alone) == "");
        CHECK(same_bits(run({.key_lengths = lengths}), alone) == "");
        CHECK(same_bits(run({.causal = true, .query_start = p.start()}), p({.causal = true})) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("equal restrictions said in different ways", "[attention][bits]", float, double) {
  for (const std::size_t keys : key_lengths) {
    const problem<TestType> p(keys);
    const auto plain = p();
    const auto causal = p({.causal = true});
    hw::tensor<bool, 2> mask({p.rows, keys});
    hw::tensor<bool, 4> full_mask({p.batch, p.heads, p.rows, keys});
    support::for_each_index(full_mask.extents(), [&](const auto& at) {
      full_mask(at[0], at[1], at[2], at[3]) = mask(at[2], at[3]) = at[3] <= at[2] + keys - p.rows;
    });
    const auto all = constant<bool>({keys}, 1);
    const auto zeros = constant<TestType>({p.rows, keys}, 0);
    const std::vector<std::int64_t> full(3, static_cast<std::int64_t>(keys));
    hw::tensor<TestType, 4> weights({p.batch, p.heads, p.rows, keys});
    hw::tensor<TestType, 3> lse({p.batch, p.heads, p.rows});
    CAPTURE(keys);
    CHECK(same_bits(p({.visible = all}), plain) == "");
    CHECK(same_bits(p({.bias = zeros}), plain) == "");
    CHECK(same_bits(p({.key_lengths = full}), plain) == "");
    CHECK(same_bits(p({.weights = weights}), plain) == "");
    CHECK(same_bits(p({.lse = lse}), plain) == "");
    CHECK(same_bits(p({.visible = mask}), causal) == "");
    CHECK(same_bits(p({.visible = full_mask}), causal) == "");
    CHECK(same_bits(p({.window = {.right = 0}}), causal) == "");
    CHECK(same_bits(p({.causal = true, .window = {.left = static_cast<std::int64_t>(keys)}}), causal) == "");
    CHECK(same_bits(p({.causal = true, .weights = weights}), causal) == "");
  }
}

TEMPLATE_TEST_CASE("memory of any alignment", "[attention][bits][B32]", float, double) {
  for (std::size_t head_dim = 1; head_dim <= 33; ++head_dim) {
    const problem<TestType> p(13, head_dim);
    const auto plain = p();
    std::string faults;
    for (const std::size_t shift : sizes{1, 3}) {
      const auto shifted = [&](const hw::tensor<TestType, 4>& x, std::vector<TestType>& memory) {
        memory.resize(x.size() + shift);
        std::copy(x.begin(), x.end(), memory.begin() + static_cast<std::ptrdiff_t>(shift));
        return hw::tensor_view<const TestType, 4>(memory.data() + shift, x.extents());
      };
      std::vector<TestType> q, k, v;
      faults += same_bits(hw::scaled_dot_product_attention(shifted(p.q, q), shifted(p.k, k), shifted(p.v, v)), plain);
    }
    CAPTURE(head_dim);
    CHECK(faults == "");
  }
}

TEMPLATE_TEST_CASE("rows of a projection", "[linear][bits]", float, double) {
  random_source random(2);
  for (const std::size_t in : sizes{1, 7, 40, 128, 129, 300, 700}) {
    for (const std::size_t out : sizes{1, 5, 33, 130}) {
      const auto weight = random.tensor<TestType>({out, in});
      const auto bias = random.tensor<TestType>({out});
      const hw::linear<TestType> project(weight, bias);
      const auto x = random.tensor<TestType>({1, 200, in});
      const auto whole = project(x);
      std::string faults;
      for (std::size_t count = 1; count <= 12; ++count) {
        faults += same_bits(project(x.view().slice(1, 200 - count, count)), whole.view().slice(1, 200 - count, count));
      }
      faults += same_bits(project(x.view().reshaped({8, 25, in})), whole.view().reshaped({8, 25, out}));
      const support::window<TestType, 3> strided(x, {.last_stride = -2, .gap = 3, .reversed = true});
      faults += same_bits(project(strided.view()), whole);
      CAPTURE(in, out);
      CHECK(faults == "");
    }
  }
}

TEMPLATE_TEST_CASE("rows and samples of the layer", "[multi_head_attention][bits]", float, double) {
  random_source random(3);
  const layer_parameters<TestType> p({.d_model = 60, .heads = 3}, random);
  const auto layer = p.layer();
  const auto x = random.tensor<TestType>({3, 12, 60});
  for (const bool causal : {false, true}) {
    const auto whole = layer(x, {.causal = causal});
    std::string faults;
    for (std::size_t count = 1; count <= 12; ++count) {
      const std::size_t first = 12 - count;
      const auto part = layer(x.view().slice(1, first, count), x, x, {.causal = causal});
      faults += same_bits(part, whole.view().slice(1, first, count));
      if (causal) {
        const auto prefix = x.view().slice(1, 0, count);
        faults += same_bits(layer(prefix, {.causal = true}), whole.view().slice(1, 0, count));
      }
    }
    for (std::size_t count = 1; count <= 3; ++count) {
      faults += same_bits(layer(x.view().slice(0, 3 - count, count), {.causal = causal}),
                          whole.view().slice(0, 3 - count, count));
    }
    faults += same_bits(layer(x, x, x, {.causal = causal}), whole);
    CAPTURE(causal);
    CHECK(faults == "");
  }
}
