// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/masks.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/random_rules.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// \file
/// Ready-made masks against their definitions, and what masks tell about themselves against what they are.

namespace hw = headwave;
using support::any_mask;
using support::error_of;
using support::lacks;
using support::mask_source;
using support::random_source;
using support::text_of;

namespace {

constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t highest = std::numeric_limits<std::int64_t>::max();

/// Where a mask is not as it should be, for positions about zero.
template <class Mask, class Wanted>
std::string differs(const Mask& mask, Wanted wanted) {
  for (std::int64_t batch = 0; batch < 2; ++batch) {
    for (std::int64_t head = 0; head < 2; ++head) {
      for (std::int64_t query = -20; query < 20; ++query) {
        for (std::int64_t key = 0; key < 20; ++key) {
          const hw::score_position at{batch, head, query, key};
          if (mask(at) != wanted(at)) {
            return text_of(at);
          }
        }
      }
    }
  }
  return {};
}

/// Where a mask says something false about itself; sample 0 and 1, heads 0 to 2.
std::string false_statement(const any_mask& mask, random_source& random, std::int64_t first, std::int64_t last) {
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random.integer(0, static_cast<std::size_t>(high - low)));
  };
  for (std::int64_t query = first; query < last; ++query) {
    const hw::position_range keys = mask.keys_for(query);
    for (std::int64_t key = 0; key < last; ++key) {
      const hw::score_position at{key % 2, query % 2 == 0 ? 0 : 1, query, key};
      if ((key < keys.first || key >= keys.last) && mask(at)) {
        return "seen outside of keys_for: " + text_of(at);
      }
    }
  }
  for (int n = 0; n < 30; ++n) {
    hw::score_region region{
        between(0, 1), {between(0, 1), 0}, {between(first, last - 1), 0}, {between(0, last - 1), 0}};
    region.heads.last = between(region.heads.first + 1, 2);
    region.queries.last = between(region.queries.first + 1, last);
    region.keys.last = between(region.keys.first + 1, last);
    if (const std::string fault = support::false_statement(mask, region); !fault.empty()) {
      return fault;
    }
  }
  return {};
}

}  // namespace

TEST_CASE("ready-made masks are what their formulas say", "[masks]") {
  using at = hw::score_position;
  CHECK(differs(hw::causal_mask{}, [](at a) { return a.key <= a.query; }) == "");
  CHECK(differs(hw::window_mask{}, [](at) { return true; }) == "");
  CHECK(differs(hw::window_mask{3, 2}, [](at a) { return a.key - a.query <= 2 && a.query - a.key <= 3; }) == "");
  CHECK(differs(hw::window_mask{.left = 0}, [](at a) { return a.key >= a.query; }) == "");
  CHECK(differs(hw::prefix_mask{5}, [](at a) { return a.key < 5 || a.key <= a.query; }) == "");
  CHECK(differs(hw::global_mask{3}, [](at a) { return a.key < 3 || a.query < 3; }) == "");
  CHECK(differs(hw::dilated_mask{3}, [](at a) { return (a.query + 300 - a.key) % 3 == 0; }) == "");
  CHECK(differs(hw::chunk_mask{7}, [](at a) { return (a.query + 700) / 7 == (a.key + 700) / 7; }) == "");
  CHECK(differs(hw::distance_mask{[](std::int64_t d) { return d == -2 || d == 5; }},
                [](at a) { return a.key == a.query - 2 || a.key == a.query + 5; }) == "");
  CHECK(differs(hw::visible_if([](at a) { return a.head == 1 && a.key > 3; }),
                [](at a) { return a.head == 1 && a.key > 3; }) == "");
}

TEST_CASE("masks over memory of the caller are what their formulas say", "[masks]") {
  using at = hw::score_position;
  const std::vector<std::int64_t> ids{7, 7, -1, 2, 2, 7};
  const auto known = [](std::int64_t i) { return i >= 0 && i < 6; };
  CHECK(differs(hw::document_mask(ids), [&](at a) {
          return known(a.query) && known(a.key) &&
                 ids[static_cast<std::size_t>(a.query)] == ids[static_cast<std::size_t>(a.key)];
        }) == "");
  const hw::tensor_view<const std::int64_t, 2> turned(ids.data(), {2, 3}, {1, 2});
  CHECK(differs(hw::document_mask(turned), [&](at a) {
          return a.query >= 0 && a.query < 3 && a.key < 3 &&
                 ids[static_cast<std::size_t>(a.batch + 2 * a.query)] ==
                     ids[static_cast<std::size_t>(a.batch + 2 * a.key)];
        }) == "");

  random_source random(900);
  hw::tensor<std::uint64_t, 4> words({2, 1, 11, 1});
  for (std::uint64_t& word : words) {
    word = random.bits();
  }
  CHECK(differs(hw::bit_mask(words.view(), 2), [&](at a) {
          return a.query >= 2 && a.query < 13 &&
                 (words(a.batch, 0, a.query - 2, 0) >> static_cast<unsigned>(a.key)) % 2 == 1;
        }) == "");

  //   0 - 1 - 3      behind 4 common keys
  //     \ 2   4 - 5
  const std::vector<std::int64_t> parents{-1, 0, 0, 1, -1, 4};
  const std::vector<std::vector<std::int64_t>> seen{{0}, {0, 1}, {0, 2}, {0, 1, 3}, {4}, {4, 5}};
  CHECK(differs(hw::tree_mask(parents, 4), [&](at a) {
          if (a.key < 4) {
            return true;
          }
          const std::int64_t node = a.query - 4;
          const auto sees = [&](const std::vector<std::int64_t>& list) {
            return std::find(list.begin(), list.end(), a.key - 4) != list.end();
          };
          return node >= 0 && node < 6 && sees(seen[static_cast<std::size_t>(node)]);
        }) == "");

  const std::vector<std::int64_t> offsets{0, 2, 2, 3}, columns{0, 2, 1};
  CHECK(differs(hw::block_sparse_mask(4, 3, offsets, columns), [](at a) {
          const std::int64_t column = a.key / 3;
          return (a.query >= 0 && a.query < 4 && (column == 0 || column == 2)) ||
                 (a.query >= 8 && a.query < 12 && column == 1);
        }) == "");
}

TEST_CASE("what masks tell about themselves is true", "[masks]") {
  random_source random(910);
  std::string failures;
  for (std::size_t n = 0; n < 60 * mask_source::kinds; ++n) {
    const std::size_t length = random.pick({1, 7, 20, 70, 140});
    mask_source masks(random, 2, 2, length);
    const any_mask mask = n % 2 == 0 ? masks.draw_one(n / 2 % mask_source::kinds) : masks.draw(3);
    const std::string fault = false_statement(mask, random, -static_cast<std::int64_t>(random.integer(0, length)),
                                              static_cast<std::int64_t>(length) + 10);
    failures += fault.empty() ? fault : mask.text() + ", length " + std::to_string(length) + ": " + fault + "\n";
  }
  CHECK(failures.substr(0, 2000) == "");
}

TEST_CASE("masks know most regions", "[masks]") {
  using hw::visibility;
  const auto region = [](std::int64_t first_query, std::int64_t last_query, std::int64_t first_key,
                         std::int64_t last_key) {
    return hw::score_region{0, {0, 1}, {first_query, last_query}, {first_key, last_key}};
  };
  const auto before = region(64, 80, 0, 16), own = region(64, 80, 64, 80), after = region(64, 80, 80, 96);
  CHECK(hw::causal_mask{}.sees(before) == visibility::all);
  CHECK(hw::causal_mask{}.sees(own) == visibility::some);
  CHECK(hw::causal_mask{}.sees(after) == visibility::none);
  CHECK(hw::window_mask{20, 20}.sees(before) == visibility::none);
  CHECK(hw::window_mask{20, 20}.sees(own) == visibility::all);
  CHECK(hw::window_mask{20, 20}.sees(after) == visibility::some);
  CHECK(hw::prefix_mask{16}.sees(before) == visibility::all);
  CHECK(hw::prefix_mask{16}.sees(after) == visibility::none);
  CHECK(hw::global_mask{16}.sees(before) == visibility::all);
  CHECK(hw::global_mask{16}.sees(own) == visibility::none);
  CHECK(hw::chunk_mask{16}.sees(own) == visibility::all);
  CHECK(hw::chunk_mask{16}.sees(after) == visibility::none);
  CHECK(hw::distance_mask{[](std::int64_t d) { return d > 0; }}.sees(before) == visibility::none);
  CHECK(hw::distance_mask{[](std::int64_t d) { return d > 0; }}.sees(after) == visibility::all);
  std::vector<std::int64_t> ids(96, 1);
  std::fill_n(ids.begin(), 64, 0);
  CHECK(hw::document_mask(ids).sees(before) == visibility::none);
  CHECK(hw::document_mask(ids).sees(own) == visibility::all);
  CHECK((!hw::causal_mask{}).sees(before) == visibility::none);
  CHECK((!hw::causal_mask{}).sees(after) == visibility::all);
  CHECK((hw::causal_mask{} && hw::window_mask{20, 20}).sees(before) == visibility::none);
  CHECK((hw::causal_mask{} || hw::window_mask{20, 20}).sees(own) == visibility::all);
  CHECK((hw::causal_mask{} || hw::chunk_mask{16}).sees(after) == visibility::none);
}

TEST_CASE("bounds of keys at the ends of the integers", "[masks]") {
  const auto is = [](hw::position_range a, std::int64_t first, std::int64_t last) {
    return a.first == first && a.last == last;
  };
  CHECK(is(hw::causal_mask{}.keys_for(5), lowest, 6));
  CHECK(is(hw::causal_mask{}.keys_for(highest), lowest, highest));
  CHECK(is(hw::window_mask{3, 2}.keys_for(5), 2, 8));
  CHECK(is(hw::window_mask{3, 2}.keys_for(lowest), lowest, lowest + 3));
  CHECK(is(hw::window_mask{}.keys_for(highest), 0, highest));
  CHECK(is(hw::chunk_mask{4}.keys_for(-1), -4, 0));
  CHECK(is(hw::chunk_mask{4}.keys_for(6), 4, 8));
  CHECK(is(hw::chunk_mask{highest}.keys_for(6), 0, highest));
  const hw::position_range nothing = (hw::window_mask{0, 0} && hw::prefix_mask{3}).keys_for(7);
  CHECK(is(nothing, 7, 8));
  CHECK(is((hw::window_mask{1, 0} || hw::window_mask{0, 2}).keys_for(7), 6, 10));
}

TEST_CASE("positions at the ends of the integers are seen or not, as any", "[masks]") {
  const std::vector<std::int64_t> parents{-1, 0}, ids{1, 1}, offsets{0, 1}, columns{0};
  const hw::tensor<std::uint64_t, 4> words({1, 1, 2, 1});
  for (const std::int64_t query : {lowest, highest}) {
    const hw::score_position at{0, 0, query, 3};
    CAPTURE(query);
    CHECK(hw::causal_mask{}(at) == (query == highest));
    CHECK_FALSE(hw::window_mask{5, 5}(at));
    CHECK(hw::prefix_mask{4}(at));
    CHECK(hw::global_mask{4}(at));
    CHECK_FALSE(hw::chunk_mask{8}(at));
    CHECK_FALSE(hw::document_mask(ids)(at));
    CHECK_FALSE(hw::bit_mask(words.view(), 1)(at));
    CHECK(hw::tree_mask(parents, 4)(at));
    CHECK_FALSE(hw::block_sparse_mask(4, 4, offsets, columns)(at));
    // 2^63 is 2 modulo 3, and -2^63 is 1.
    CHECK(hw::dilated_mask{1}(at));
    CHECK(hw::dilated_mask{2}(at) == (query == highest));
    CHECK(hw::distance_mask{[](std::int64_t d) { return d != 0; }}(at));
  }
}

TEST_CASE("masks that cannot be are errors", "[masks][errors]") {
  const auto tree = [](const std::vector<std::int64_t>& parents) {
    return error_of([&] { hw::tree_mask(parents, 0); });
  };
  CHECK(tree({-1, 0, 1}) == "");
  CHECK(lacks(tree({0}), {"tree_mask", "parent"}) == "");
  CHECK(lacks(tree({-1, 2, 0}), {"tree_mask", "parent"}) == "");
  CHECK(lacks(tree({-2}), {"tree_mask", "parent"}) == "");
  const auto blocks = [](std::int64_t rows, std::int64_t keys, const std::vector<std::int64_t>& offsets,
                         const std::vector<std::int64_t>& columns) {
    return error_of([&] { hw::block_sparse_mask(rows, keys, offsets, columns); });
  };
  CHECK(blocks(4, 4, {0, 2, 3}, {0, 1, 0}) == "");
  CHECK(lacks(blocks(0, 4, {0, 1}, {0}), {"block_sparse_mask", "empty"}) == "");
  CHECK(lacks(blocks(4, -1, {0, 1}, {0}), {"block_sparse_mask", "empty"}) == "");
  CHECK(lacks(blocks(4, 4, {}, {}), {"block_sparse_mask", "offsets"}) == "");
  CHECK(lacks(blocks(4, 4, {0, 2}, {0}), {"block_sparse_mask", "offsets"}) == "");
  CHECK(lacks(blocks(4, 4, {1, 1}, {0}), {"block_sparse_mask", "offsets"}) == "");
  CHECK(lacks(blocks(4, 4, {0, 2, 1, 2}, {0, 1}), {"block_sparse_mask", "decrease"}) == "");
  CHECK(lacks(blocks(4, 4, {0, 3, 1, 2}, {0, 1}), {"block_sparse_mask"}) == "");
  CHECK(lacks(blocks(4, 4, {0, 2}, {1, 1}), {"block_sparse_mask", "rise"}) == "");
}

TEST_CASE("operators make masks of masks only", "[masks]") {
  using function = std::function<bool(hw::score_position)>;
  const function given = [](hw::score_position at) { return at.key == 1; };
  const function none;
  // Somebody's test for an empty function stays one.
  static_assert(std::is_same_v<decltype(!given), bool> && std::is_same_v<decltype(given && none), bool> &&
                std::is_same_v<decltype(given || none), bool>);
  CHECK(!none);
  CHECK((given && !none));
  static_assert(hw::score_mask<decltype(hw::causal_mask{} && given)>);
  static_assert(hw::score_mask<decltype(given || hw::causal_mask{})>);
  static_assert(hw::score_mask<decltype(!hw::visible_if(given))>);
  CHECK((hw::visible_if(given) && given)({0, 0, 0, 1}));
  CHECK_FALSE((!hw::visible_if(given))({0, 0, 0, 1}));
}
