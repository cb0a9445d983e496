// SPDX-License-Identifier: MIT
#include <headwave/masks.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/masks.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// \file
/// Ready-made masks and their combinations: each against its formula, pair by pair; and what it says about ranges and
/// regions against all pairs of them.

namespace hw = headwave;
using hw::score_position;
using support::error_of;
using support::lacks;
using support::mask_faults;
using support::random_words;
using support::told;

namespace {

const std::vector<std::int64_t> document_ids = {0, 0, 0, 1, 1, 7, 7, 7, 2, 0, 0};
const std::vector<std::int64_t> parents = {-1, 0, 0, 1, -1, 4, 3, 3};
constexpr std::int64_t tree_prefix = 3;
const std::vector<std::int64_t> row_offsets = {0, 2, 2, 5, 6};
const std::vector<std::int64_t> block_columns = {0, 2, 0, 1, 3, 1};

bool is_ancestor(std::int64_t node, std::int64_t other) {
  for (; node >= 0; node = parents[static_cast<std::size_t>(node)]) {
    if (node == other) {
      return true;
    }
  }
  return false;
}

std::int64_t floor_of(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

}  // namespace

TEST_CASE("each mask is its formula, and what it says about regions is true", "[masks]") {
  const auto check = [](const char* name, const auto& mask, auto formula, told regions = told::exactly) {
    CAPTURE(name);
    CHECK(mask_faults(mask, formula, regions) == "");
  };
  check("causal", hw::causal_mask{}, [](score_position at) { return at.key <= at.query; });
  for (const std::int64_t left : {0, 1, 3, 100}) {
    for (const std::int64_t right : {0, 1, 2, 100}) {
      check("window", hw::window_mask{left, right},
            [=](score_position at) { return at.key >= at.query - left && at.key <= at.query + right; });
    }
  }
  check("window, left", hw::window_mask{.left = 2}, [](score_position at) { return at.key >= at.query - 2; });
  check("window, right", hw::window_mask{.right = 2}, [](score_position at) { return at.key <= at.query + 2; });
  check("no window", hw::window_mask{}, [](score_position) { return true; });
  for (const std::int64_t n : {-2, 0, 1, 4, 100}) {
    check("prefix", hw::prefix_mask{n}, [=](score_position at) { return at.key < n || at.key <= at.query; });
    check("global", hw::global_mask{n}, [=](score_position at) { return at.query < n || at.key < n; });
  }
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{5}, INT64_MAX / 2, INT64_MAX}) {
    check("chunk", hw::chunk_mask{size}, [=](score_position at) {
      return size > 100 ? (at.key < 0) == (at.query < 0) : floor_of(at.key, size) == floor_of(at.query, size);
    });
    check("dilated", hw::dilated_mask{size}, [=](score_position at) { return (at.query - at.key) % size == 0; });
  }
  check("distance", hw::distance_mask{[](std::int64_t d) { return d == -3 || d == 0 || d > 4; }},
        [](score_position at) {
          const std::int64_t d = at.key - at.query;
          return d == -3 || d == 0 || d > 4;
        });
}

TEST_CASE("documents", "[masks]") {
  const auto ids_of = [](const std::vector<std::int64_t>& ids, std::int64_t position) {
    return position >= 0 && position < static_cast<std::int64_t>(ids.size()) ? ids[static_cast<std::size_t>(position)]
                                                                             : -1;
  };
  const auto same = [&](score_position at) {
    const std::int64_t of_query = ids_of(document_ids, at.query), of_key = ids_of(document_ids, at.key);
    return of_query >= 0 && of_query == of_key;
  };
  CHECK(mask_faults(hw::document_mask(document_ids), same, told::truly) == "");
  const hw::tensor_view<const std::int64_t, 2> repeated(document_ids, {1, document_ids.size()});
  CHECK(mask_faults(hw::document_mask(repeated), same, told::truly) == "");

  const std::vector<std::int64_t> two = {5, 5, 5, 6, 6, 6, 6, 6, -9, -9, -9, 5};
  const hw::tensor_view<const std::int64_t, 2> of_samples(two, {2, 6});
  const hw::document_mask each(of_samples);
  const auto same_of_sample = [&](score_position at) {
    return at.batch < 2 && at.query >= 0 && at.query < 6 && at.key >= 0 && at.key < 6 &&
           two[static_cast<std::size_t>(6 * at.batch + at.query)] ==
               two[static_cast<std::size_t>(6 * at.batch + at.key)];
  };
  CHECK(mask_faults(each, same_of_sample, told::truly, 3) == "");
  // Every second id of a longer list, backwards.
  std::vector<std::int64_t> spread(24);
  for (std::size_t i = 0; i < 12; ++i) {
    spread[23 - 2 * i] = two[i];
  }
  const hw::tensor_view<const std::int64_t, 2> strided(spread.data() + 23, {2, 6}, {-12, -2});
  CHECK(mask_faults(hw::document_mask(strided), same_of_sample, told::truly, 3) == "");
  CHECK(mask_faults(hw::document_mask(std::span<const std::int64_t>()), [](score_position) { return false; }) == "");

  // It can tell regions of one document, and of documents without a common one.
  const hw::document_mask mask(document_ids);
  CHECK(mask.sees({0, {0, 1}, {0, 3}, {0, 3}}) == hw::visibility::all);
  CHECK(mask.sees({0, {0, 1}, {0, 3}, {9, 11}}) == hw::visibility::all);
  CHECK(mask.sees({0, {0, 1}, {0, 3}, {5, 8}}) == hw::visibility::none);
  CHECK(mask.sees({0, {0, 1}, {9, 20}, {5, 30}}) == hw::visibility::some);
  CHECK(mask.sees({0, {0, 1}, {11, 20}, {0, 3}}) == hw::visibility::none);
  CHECK(mask.sees({0, {0, 1}, {0, 3}, {-5, 0}}) == hw::visibility::none);
}

TEST_CASE("bits", "[masks]") {
  for (const std::size_t samples : {1u, 2u}) {
    for (const std::size_t heads : {1u, 2u}) {
      for (const std::int64_t first_query : {-4, 0, 3}) {
        const auto words = random_words(samples, heads, 6, 1);
        CAPTURE(samples, heads, first_query);
        CHECK(mask_faults(
                  hw::bit_mask(words, first_query),
                  [&](score_position at) {
                    const std::int64_t row = at.query - first_query;
                    if (row < 0 || row >= 6 || at.key < 0 || at.key >= 64 || (samples > 1 && at.batch > 1) ||
                        (heads > 1 && at.head > 1)) {
                      return false;
                    }
                    const std::uint64_t word =
                        words(samples > 1 ? static_cast<std::size_t>(at.batch) : 0,
                              heads > 1 ? static_cast<std::size_t>(at.head) : 0, static_cast<std::size_t>(row), 0);
                    return (word >> at.key & 1) != 0;
                  },
                  told::exactly, 3) == "");
      }
    }
  }
  // Regions that cross words, and end in the middle of one.
  const auto words = random_words(1, 2, 3, 3);
  const hw::bit_mask mask(words);
  std::size_t faults = 0;
  for (std::int64_t first = -70; first < 200; first += 7) {
    for (const std::int64_t count : {1, 5, 63, 64, 65, 130, 200}) {
      bool any = false, all = true;
      for (std::int64_t key = first; key < first + count; ++key) {
        for (std::int64_t query = 0; query < 2; ++query) {
          const bool seen =
              key >= 0 && key < 192 &&
              (words(0, 1, static_cast<std::size_t>(query), static_cast<std::size_t>(key / 64)) >> (key % 64) & 1) != 0;
          faults += mask({0, 1, query, key}) != seen;
          any = any || seen;
          all = all && seen;
        }
      }
      faults += mask.sees({0, {1, 2}, {0, 2}, {first, first + count}}) != (!any  ? hw::visibility::none
                                                                           : all ? hw::visibility::all
                                                                                 : hw::visibility::some);
    }
  }
  CHECK(faults == 0);
}

TEST_CASE("trees of drafts", "[masks]") {
  const auto nodes = static_cast<std::int64_t>(parents.size());
  const auto sees = [&](score_position at) {
    const std::int64_t node = at.query - tree_prefix, other = at.key - tree_prefix;
    if (at.key < tree_prefix) {
      return at.key >= 0;
    }
    return node >= 0 && node < nodes && other < nodes && is_ancestor(node, other);
  };
  CHECK(mask_faults(hw::tree_mask(parents, tree_prefix), sees, told::truly) == "");

  // A chain is causal; siblings see themselves only. More nodes than bits of a word.
  std::vector<std::int64_t> chain(150), siblings(150, -1);
  for (std::size_t n = 0; n < chain.size(); ++n) {
    chain[n] = static_cast<std::int64_t>(n) - 1;
  }
  const hw::tree_mask of_chain(chain, 0), of_siblings(siblings, 0);
  std::size_t faults = 0;
  for (std::int64_t query = 0; query < 150; ++query) {
    for (std::int64_t key = 0; key < 150; ++key) {
      faults += of_chain({0, 0, query, key}) != (key <= query);
      faults += of_siblings({0, 0, query, key}) != (key == query);
    }
  }
  CHECK(faults == 0);
  const hw::tree_mask copy = of_chain;  // owns its bits
  CHECK(copy({0, 0, 149, 0}));
  const hw::tree_mask empty({}, 4);
  CHECK(mask_faults(empty, [](score_position at) { return at.key >= 0 && at.key < 4; }, told::truly) == "");

  const hw::tree_mask mask(parents, tree_prefix);
  CHECK(mask.sees({0, {0, 1}, {3, 11}, {0, 3}}) == hw::visibility::all);
  CHECK(mask.sees({0, {0, 1}, {3, 5}, {5, 11}}) == hw::visibility::none);
  CHECK(mask.sees({0, {0, 1}, {3, 11}, {11, 19}}) == hw::visibility::none);
  CHECK(mask.sees({0, {0, 1}, {0, 3}, {3, 4}}) == hw::visibility::none);
}

TEST_CASE("block-sparse rows", "[masks]") {
  for (const std::int64_t query_block : {1, 2, 3}) {
    for (const std::int64_t key_block : {1, 2, 4}) {
      CAPTURE(query_block, key_block);
      const auto sees = [&](score_position at) {
        const std::int64_t row = floor_of(at.query, query_block), column = floor_of(at.key, key_block);
        if (row < 0 || row >= 4) {
          return false;
        }
        const auto r = static_cast<std::size_t>(row);
        for (std::int64_t i = row_offsets[r]; i < row_offsets[r + 1]; ++i) {
          if (block_columns[static_cast<std::size_t>(i)] == column) {
            return true;
          }
        }
        return false;
      };
      CHECK(mask_faults(hw::block_sparse_mask(query_block, key_block, row_offsets, block_columns), sees) == "");
    }
  }
}

TEST_CASE("masks refuse numbers that mean nothing", "[masks][errors]") {
  using numbers = std::vector<std::int64_t>;
  const auto tree = [](const numbers& of_nodes, std::int64_t prefix) {
    return error_of([&] { static_cast<void>(hw::tree_mask(of_nodes, prefix)); });
  };
  CHECK(lacks(tree({-1, 1}, 0), {"tree_mask", "parent"}) == "");
  CHECK(lacks(tree({0}, 0), {"tree_mask"}) == "");
  CHECK(lacks(tree({-2}, 0), {"tree_mask"}) == "");
  CHECK(lacks(tree({-1}, -1), {"tree_mask", "prefix"}) == "");
  CHECK(tree({-1, 0, 0}, 9) == "");

  const auto blocks = [](std::int64_t query_block, std::int64_t key_block, const numbers& offsets,
                         const numbers& columns) {
    return error_of([&] { static_cast<void>(hw::block_sparse_mask(query_block, key_block, offsets, columns)); });
  };
  CHECK(blocks(2, 2, {0, 1, 1}, {5}) == "");
  CHECK(blocks(2, 2, {0}, {}) == "");
  CHECK(lacks(blocks(0, 2, {0, 1}, {5}), {"block_sparse_mask", "empty"}) == "");
  CHECK(lacks(blocks(2, -1, {0, 1}, {5}), {"block_sparse_mask", "empty"}) == "");
  CHECK(lacks(blocks(2, 2, {}, {}), {"block_sparse_mask", "offsets"}) == "");
  CHECK(lacks(blocks(2, 2, {1, 1}, {5}), {"block_sparse_mask", "begin with 0"}) == "");
  CHECK(lacks(blocks(2, 2, {0, 2}, {5}), {"block_sparse_mask", "number of columns"}) == "");
  CHECK(lacks(blocks(2, 2, {0, -1}, {5}), {"block_sparse_mask", "number of columns"}) == "");
  CHECK(lacks(blocks(2, 2, {0, 2, 1, 2}, {5, 6}), {"block_sparse_mask", "decrease"}) == "");
  // Columns are not read where an offset points behind them.
  CHECK(lacks(blocks(2, 2, {0, std::int64_t{1} << 40, 2}, {5, 6}), {"block_sparse_mask", "decrease"}) == "");
  CHECK(lacks(blocks(2, 2, {0, 2}, {6, 6}), {"block_sparse_mask", "rise"}) == "");
  CHECK(lacks(blocks(2, 2, {0, 2}, {6, 5}), {"block_sparse_mask", "rise"}) == "");
  CHECK(blocks(2, 2, {0, 1, 2}, {6, 5}) == "");

  CHECK(lacks(error_of([] { static_cast<void>(hw::chunk_mask{0}); }), {"size", "at least 1", "0"}) == "");
  CHECK(lacks(error_of([] { static_cast<void>(hw::dilated_mask{-3}); }), {"stride", "at least 1", "-3"}) == "");
  CHECK(lacks(error_of([] { static_cast<void>(hw::window_mask{.left = -1}); }), {"window", "at least 0", "-1"}) == "");
  CHECK(lacks(error_of([] { static_cast<void>(hw::window_mask{.right = INT64_MIN}); }), {"window"}) == "");
  CHECK(error_of([] { static_cast<void>(hw::window_mask{0, 0}); }) == "");
  static_assert(hw::chunk_mask{4}({0, 0, 7, 4}) && !hw::chunk_mask{4}({0, 0, 7, 3}));
}

TEST_CASE("masks combine, nested to any depth", "[masks]") {
  const auto third = hw::visible_if([](score_position at) { return at.key % 3 == 0; });
  const auto is_third = [](score_position at) { return at.key % 3 == 0; };
  const auto is_near = [](score_position at) { return at.key >= at.query - 2 && at.key <= at.query + 1; };
  const auto is_past = [](score_position at) { return at.key <= at.query; };
  const hw::window_mask window{2, 1};
  const hw::causal_mask past;
  const hw::chunk_mask chunk{4};
  const auto in_chunk = [](score_position at) { return floor_of(at.query, 4) == floor_of(at.key, 4); };
  const auto check = [](const auto& mask, auto formula, told regions = told::truly) {
    CHECK(mask_faults(mask, formula, regions) == "");
  };
  check(window && past, [&](score_position at) { return is_near(at) && is_past(at); });
  check(window || past, [&](score_position at) { return is_near(at) || is_past(at); });
  check(!window, [&](score_position at) { return !is_near(at); }, told::exactly);
  check(!!past, is_past, told::exactly);
  check(third && past, [&](score_position at) { return is_third(at) && is_past(at); });
  check(third || past, [&](score_position at) { return is_third(at) || is_past(at); });
  check(!third, [&](score_position at) { return !is_third(at); });
  check(past || third, [&](score_position at) { return is_third(at) || is_past(at); });
  check((window || chunk) && !(third && past),
        [&](score_position at) { return (is_near(at) || in_chunk(at)) && !(is_third(at) && is_past(at)); });
  check(!(!window || !(chunk || third)),
        [&](score_position at) { return is_near(at) && (in_chunk(at) || is_third(at)); });
  // One side has an empty range of keys.
  check((hw::window_mask{0, 0} && hw::visible_if(hw::distance_mask{[](std::int64_t d) { return d == 1; }})) || chunk,
        in_chunk);
  struct nothing {
    bool operator()(score_position) const { return false; }
    hw::position_range keys_for(std::int64_t) const { return {7, -7}; }
    hw::visibility sees(const hw::score_region&) const { return hw::visibility::none; }
  };
  check(nothing{}, [](score_position) { return false; }, told::exactly);
  check(hw::visible_if(nothing{}) || chunk, in_chunk, told::exactly);
  check(chunk || hw::visible_if(nothing{}), in_chunk, told::exactly);
  check(!hw::visible_if(nothing{}), [](score_position) { return true; }, told::exactly);
  check(hw::visible_if(nothing{}) && third, [](score_position) { return false; }, told::exactly);

  // A combination tells what its parts tell.
  static_assert(hw::detail::bounds_keys<decltype(third && past)> && !hw::detail::bounds_keys<decltype(third || past)>);
  static_assert(hw::detail::bounds_keys<decltype(window || past)> && !hw::detail::bounds_keys<decltype(!past)>);
  static_assert(hw::detail::knows_regions<decltype(third || past)> && !hw::detail::knows_regions<decltype(!third)>);
  const hw::score_region early{0, {0, 1}, {0, 3}, {5, 9}}, late{0, {0, 1}, {9, 12}, {5, 9}};
  CHECK((third && past).sees(early) == hw::visibility::none);
  CHECK((third || past).sees(late) == hw::visibility::all);
  CHECK((!past).sees(early) == hw::visibility::all);
  CHECK((!past).sees(late) == hw::visibility::none);
  CHECK((!past || third).sees(early) == hw::visibility::all);

  // What can only be moved can be combined, too.
  auto owner = std::make_unique<int>(3);
  const auto mask = hw::visible_if([p = std::move(owner)](score_position at) { return at.key < *p; }) && past;
  CHECK(mask({0, 0, 5, 2}));
  CHECK(!mask({0, 0, 5, 3}));
}
