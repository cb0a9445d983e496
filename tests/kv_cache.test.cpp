// SPDX-License-Identifier: MIT
#include <headwave/kv_cache.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/stored.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

namespace hw = headwave;
using support::error_of;
using support::lacks;
using support::random_source;
using support::same_bits;
using support::stored_and_read;

namespace {

struct problem {
  hw::tensor<float, 4> q, k, v;

  problem(std::size_t batch, std::size_t length, std::size_t heads, std::size_t kv_heads, std::size_t head_dim,
          std::size_t value_dim, random_source& random)
      : q(random.tensor<float>({batch, length, heads, head_dim})),
        k(random.tensor<float>({batch, length, kv_heads, head_dim})),
        v(random.tensor<float>({batch, length, kv_heads, value_dim})) {}
};

}  // namespace

TEMPLATE_TEST_CASE("steps of any size through a cache have the bits of one attention to what is stored", "[kv_cache]",
                   float, hw::bfloat16, hw::float16, std::int8_t) {
  random_source random(1);
  const problem p(2, 612, 6, 2, 40, 24, random);
  const auto k = stored_and_read<TestType>(p.k), v = stored_and_read<TestType>(p.v);
  const hw::attention_options<float> options{.causal = true, .window = {.left = 400}};
  const auto expected = hw::scaled_dot_product_attention(p.q, k, v, options);
  hw::kv_cache<float, TestType> cache({.batch = 2, .capacity = 620, .kv_heads = 2, .head_dim = 40, .value_dim = 24});
  std::size_t at = 0;
  std::string faults;
  for (const std::size_t step : {1u, 2u, 3u, 250u, 1u, 7u, 300u, 47u, 1u}) {
    cache.append(p.k.view().slice(1, at, step), p.v.view().slice(1, at, step));
    const auto out = hw::scaled_dot_product_attention(p.q.view().slice(1, at, step), cache, options);
    faults += same_bits(out, expected.view().slice(1, at, step));
    at += step;
  }
  CHECK(faults == "");
  CHECK(at == 612);
  CHECK(cache.lengths()[1] == 612);
}

TEST_CASE("a cache of double", "[kv_cache]") {
  random_source random(2);
  const auto q = random.tensor<double>({1, 30, 2, 9});
  const auto k = random.tensor<double>({1, 30, 1, 9});
  hw::kv_cache<double> cache({.batch = 1, .capacity = 30, .kv_heads = 1, .head_dim = 9});
  cache.append(k, k);
  CHECK(same_bits(hw::scaled_dot_product_attention(q, cache, {.causal = true}),
                  hw::scaled_dot_product_attention(q, k, k, {.causal = true})) == "");
}

TEMPLATE_TEST_CASE("queries, keys, values and outputs of 16 bits", "[kv_cache][numeric]", hw::bfloat16, hw::float16) {
  random_source random(3);
  for (const std::size_t query_length : {1u, 37u}) {
    problem p(1, 290, 4, 2, 33, 20, random);
    const auto narrow = [](const hw::tensor<float, 4>& x) {
      hw::tensor<TestType, 4> result(x.extents());
      std::transform(x.begin(), x.end(), result.begin(), [](float y) { return static_cast<TestType>(y); });
      return result;
    };
    const auto q = narrow(hw::tensor<float, 4>(support::packed(p.q.view().slice(1, 0, query_length))));
    const auto k = narrow(p.k), v = narrow(p.v);
    const auto wide = [](const hw::tensor<TestType, 4>& x) {
      hw::tensor<float, 4> result(x.extents());
      std::transform(x.begin(), x.end(), result.begin(), [](TestType y) { return static_cast<float>(y); });
      return result;
    };
    const auto expected = hw::scaled_dot_product_attention(wide(q), wide(k), wide(v), {.causal = true});
    const hw::tensor<TestType, 4> out = hw::scaled_dot_product_attention(q, k, v, {.causal = true});
    std::size_t differences = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      differences += out.data()[i].bits != static_cast<TestType>(expected.data()[i]).bits;
    }
    CHECK(differences == 0);
    // Keys and values alone, with strides other than 1.
    hw::tensor<float, 4> mixed(expected.extents());
    const auto turned = support::packed(k.view().transposed(1, 3));
    hw::scaled_dot_product_attention_into(mixed, wide(q), turned.view().transposed(1, 3), v, {.causal = true});
    CHECK(same_bits(mixed, expected) == "");
  }
}

TEST_CASE("samples of different lengths", "[kv_cache]") {
  random_source random(4);
  const problem p(3, 20, 2, 2, 8, 8, random);
  hw::kv_cache<float> cache({.batch = 3, .capacity = 40, .kv_heads = 2, .head_dim = 8});
  const std::vector<std::int64_t> counts{20, 7, 0}, one{1, 1, 1};
  cache.append(p.k, p.v, counts);
  cache.append(p.k.view().slice(1, 0, 1), p.v.view().slice(1, 0, 1), one);
  CHECK(std::vector<std::int64_t>(cache.lengths().begin(), cache.lengths().end()) ==
        std::vector<std::int64_t>{21, 8, 1});
  const auto out = hw::scaled_dot_product_attention(p.q.view().slice(1, 0, 1), cache, {.causal = true});
  for (std::size_t b = 0; b < 3; ++b) {
    const auto n = static_cast<std::size_t>(counts[b]);
    hw::tensor<float, 4> k({1, n + 1, 2, 8}), v({1, n + 1, 2, 8});
    for (std::size_t j = 0; j <= n; ++j) {
      for (std::size_t i = 0; i < 16; ++i) {
        k(0u, j, i / 8, i % 8) = p.k(b, j == n ? 0 : j, i / 8, i % 8);
        v(0u, j, i / 8, i % 8) = p.v(b, j == n ? 0 : j, i / 8, i % 8);
      }
    }
    const auto expected = hw::scaled_dot_product_attention(p.q.view().slice(0, b, 1).slice(1, 0, 1), k, v);
    CHECK(same_bits(out.view().slice(0, b, 1), expected) == "");
  }
}

TEST_CASE("drafts are forgotten, beams are reordered, a cleared cache is empty", "[kv_cache]") {
  random_source random(5);
  const problem p(2, 12, 1, 1, 4, 4, random);
  hw::kv_cache<float, hw::float16> cache({.batch = 2, .capacity = 12, .head_dim = 4});
  cache.append(p.k, p.v);
  const auto q = p.q.view().slice(1, 0, 1);
  cache.truncate(5);
  hw::kv_cache<float, hw::float16> short_cache({.batch = 2, .capacity = 5, .head_dim = 4});
  short_cache.append(p.k.view().slice(1, 0, 5), p.v.view().slice(1, 0, 5));
  const auto expected = hw::scaled_dot_product_attention(q, short_cache);
  CHECK(same_bits(hw::scaled_dot_product_attention(q, cache), expected) == "");
  cache.truncate(1, 3);
  const std::vector<std::int64_t> sources{1, 0};
  cache.reorder(sources);
  CHECK(cache.lengths()[0] == 3);
  CHECK(cache.lengths()[1] == 5);
  hw::tensor<float, 4> swapped({2, 1, 1, 4});
  std::copy_n(p.q.data(), 4, swapped.data() + 4);
  CHECK(same_bits(hw::scaled_dot_product_attention(swapped, cache).view().slice(0, 1, 1),
                  expected.view().slice(0, 0, 1)) == "");
  const std::vector<std::int64_t> same{0, 0};
  cache.reorder(same);
  CHECK(cache.lengths()[1] == 3);
  cache.clear();
  CHECK(cache.lengths()[0] == 0);
  const auto nothing = hw::scaled_dot_product_attention(q, cache);
  CHECK(std::all_of(nothing.begin(), nothing.end(), [](float x) { return x == 0; }));
}

TEST_CASE("a rolling cache has the bits of a window over everything", "[kv_cache]") {
  random_source random(6);
  const problem p(2, 700, 4, 2, 16, 16, random);
  const hw::attention_options<float> options{.causal = true, .window = {.left = 299}};
  const auto expected = hw::scaled_dot_product_attention(p.q, p.k, p.v, options);
  hw::kv_cache<float> cache({.batch = 2, .capacity = 310, .kv_heads = 2, .head_dim = 16, .rolling = true});
  std::string faults;
  std::size_t at = 0;
  for (std::size_t n = 0; at < 700; ++n) {
    const std::size_t step = (std::min)(std::size_t{700} - at, std::size_t{n % 3 == 0 ? 11u : 1u});
    cache.append(p.k.view().slice(1, at, step), p.v.view().slice(1, at, step));
    const auto out = hw::scaled_dot_product_attention(p.q.view().slice(1, at, step), cache, options);
    faults += same_bits(out, expected.view().slice(1, at, step));
    at += step;
  }
  CHECK(faults.substr(0, 500) == "");
  CHECK(cache.lengths()[0] == 700);
  CHECK(cache.first_keys()[0] == 390);
  // A query that could see further back sees what is there.
  const auto all = hw::scaled_dot_product_attention(p.q.view().slice(1, 699, 1), cache);
  CHECK(same_bits(all, hw::scaled_dot_product_attention(p.q.view().slice(1, 699, 1), p.k, p.v,
                                                        {.window = {.left = 309}})) == "");
  // More at once than fits: the last stay.
  cache.append(p.k, p.v);
  CHECK(cache.lengths()[0] == 1400);
  CHECK(cache.first_keys()[0] == 1090);
}

TEMPLATE_TEST_CASE("pages in any order have the bits of one piece", "[kv_cache][paged]", float, hw::bfloat16) {
  random_source random(7);
  for (const std::size_t page_size : {1u, 16u, 24u}) {
    const std::size_t pages = 300 / page_size + 1;
    const problem p(2, pages * page_size, 4, 2, 20, 12, random);
    std::vector<std::int32_t> order(2 * pages);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i-- > 1;) {
      std::swap(order[i], order[random.integer(0, i)]);
    }
    const hw::tensor_view<const std::int32_t, 2> table(order, {2, pages});
    const auto in_pages = [&](const hw::tensor<float, 4>& x) {
      hw::tensor<TestType, 4> pool({2 * pages, page_size, 2, x.extent(3)});
      for (std::size_t b = 0; b < 2; ++b) {
        for (std::size_t j = 0; j < x.extent(1); ++j) {
          for (std::size_t h = 0; h < 2; ++h) {
            for (std::size_t c = 0; c < x.extent(3); ++c) {
              const auto page = static_cast<std::size_t>(table(b, j / page_size));
              pool(page, j % page_size, h, c) = static_cast<TestType>(x(b, j, h, c));
            }
          }
        }
      }
      return pool;
    };
    const auto k = in_pages(p.k), v = in_pages(p.v);
    const hw::paged_view<TestType> paged_k{k, table}, paged_v{v, table};
    const std::vector<std::int64_t> lengths{static_cast<std::int64_t>(pages * page_size) - 3, 270};
    for (const std::size_t query_length : {1u, 2u, 30u}) {
      const auto q = p.q.view().slice(1, 5, query_length);
      const hw::attention_options<float> options{.query_starts = lengths, .key_lengths = lengths};
      CHECK(same_bits(hw::scaled_dot_product_attention(q, paged_k, paged_v, options),
                      hw::scaled_dot_product_attention(q, stored_and_read<TestType>(p.k),
                                                       stored_and_read<TestType>(p.v), options)) == "");
    }
  }
}

TEST_CASE("NaN in 8 bits stays NaN, in its own row only", "[kv_cache]") {
  hw::tensor<float, 4> k({1, 2, 1, 4}), v({1, 2, 1, 4}), q({1, 2, 1, 4});
  std::fill(v.begin(), v.end(), 2.0f);
  v(0u, 1u, 0u, 2u) = std::nanf("");
  hw::kv_cache<float, std::int8_t> cache({.batch = 1, .capacity = 2, .head_dim = 4});
  cache.append(k, v);
  const auto out = hw::scaled_dot_product_attention(q, cache, {.causal = true});
  CHECK(out(0u, 0u, 0u, 2u) == 2.0f);
  CHECK(std::isnan(out(0u, 1u, 0u, 2u)));
}

TEST_CASE("what does not fit is refused, and changes nothing", "[kv_cache]") {
  random_source random(8);
  const problem p(1, 4, 2, 1, 8, 8, random);
  hw::kv_cache<float> cache({.batch = 1, .capacity = 6, .head_dim = 8});
  cache.append(p.k, p.v);
  CHECK(lacks(error_of([&] { cache.append(p.k, p.v); }), {"kv_cache::append", "capacity", "[1, 4, 1, 8]"}) == "");
  CHECK(cache.lengths()[0] == 4);
  CHECK(lacks(error_of([&] { cache.append(p.q, p.v); }), {"kv_cache::append", "kv_heads", "[1, 4, 2, 8]"}) == "");
  CHECK(lacks(error_of([&] { cache.truncate(0, 5); }), {"kv_cache::truncate", "5"}) == "");
  CHECK(lacks(error_of([&] { cache.truncate(0, -1); }), {"kv_cache::truncate", "-1"}) == "");
  CHECK(lacks(error_of([&] { cache.truncate(1, 0); }), {"kv_cache::truncate", "no sample 1 of 1"}) == "");
  const std::vector<std::int64_t> sources{1};
  CHECK(lacks(error_of([&] { cache.reorder(sources); }), {"kv_cache::reorder"}) == "");
  CHECK(lacks(error_of([&] { hw::kv_cache<float>({.head_dim = 3}); }), {"kv_cache", "capacity"}) == "");
  const std::vector<std::int64_t> lengths{2};
  CHECK(lacks(error_of([&] { hw::scaled_dot_product_attention(p.q, cache, {.key_lengths = lengths}); }),
              {"scaled_dot_product_attention", "key_lengths"}) == "");
  const std::vector<std::int32_t> table{0, 7};
  const hw::paged_view<float> pages{p.k, {table, {1, 2}}};
  CHECK(lacks(error_of([&] { hw::scaled_dot_product_attention(p.q, pages, pages); }), {"key.table", "7"}) == "");
}

TEST_CASE("a length that one sample refuses changes no other", "[kv_cache]") {
  random_source random(9);
  const problem p(2, 5, 1, 1, 4, 4, random);
  hw::kv_cache<float> cache({.batch = 2, .capacity = 3, .head_dim = 4, .rolling = true});
  const std::vector<std::int64_t> counts{3, 5};
  cache.append(p.k, p.v, counts);
  CHECK(lacks(error_of([&] { cache.truncate(1); }), {"kv_cache::truncate", "sample 1 has 2 .. 5"}) == "");
  CHECK(cache.lengths()[0] == 3);
  cache.truncate(2);
  CHECK(cache.lengths()[0] == 2);
  CHECK(cache.lengths()[1] == 2);
}

TEST_CASE("heads of no channels are counted as any", "[kv_cache]") {
  hw::kv_cache<float> cache({.batch = 2, .capacity = 3});
  const hw::tensor<float, 4> none({2, 3, 1, 0});
  cache.append(none, none);
  CHECK(cache.lengths()[1] == 3);
  CHECK(hw::scaled_dot_product_attention(none, cache).extents() == none.extents());
}
