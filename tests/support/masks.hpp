// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/masks.hpp>

#include "support/random.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace support {

namespace hw = headwave;

/// Words for a bit_mask: some empty, some full.
inline hw::tensor<std::uint64_t, 4> random_words(std::size_t samples, std::size_t heads, std::size_t queries,
                                                 std::size_t words) {
  random_source random(64);
  hw::tensor<std::uint64_t, 4> result({samples, heads, queries, words});
  for (std::uint64_t& word : result) {
    word = random.chance(0.2) ? 0 : random.chance(0.2) ? ~std::uint64_t{0} : random.bits() & random.bits();
  }
  return result;
}

inline std::string text_of(const hw::score_position& at) {
  return "sample " + std::to_string(at.batch) + ", head " + std::to_string(at.head) + ", query " +
         std::to_string(at.query) + ", key " + std::to_string(at.key);
}

/// Where a mask says something false about a region, or about the keys of one of its queries. Empty if all is well.
template <class Mask>
std::string false_statement(const Mask& mask, const hw::score_region& region) {
  const hw::visibility told = mask.sees(region);
  for (std::int64_t query = region.queries.first; query < region.queries.last; ++query) {
    const hw::position_range keys = mask.keys_for(query);
    for (std::int64_t head = region.heads.first; head < region.heads.last; ++head) {
      for (std::int64_t key = region.keys.first; key < region.keys.last; ++key) {
        const hw::score_position at{region.batch, head, query, key};
        const bool visible = mask(at);
        if (told != hw::visibility::some && visible != (told == hw::visibility::all)) {
          return (visible ? "seen in a region of none: " : "hidden in a region of all: ") + text_of(at);
        }
        // Keys have numbers from 0 on.
        if (visible && key >= 0 && (key < keys.first || key >= keys.last)) {
          return "seen outside of keys_for: " + text_of(at);
        }
      }
    }
  }
  return {};
}

/// What masks and rules were asked.
struct calls {
  std::size_t count = 0, regions = 0, bad_regions = 0;
};

/// How much a mask can tell about regions: nothing false, or the whole truth.
enum class told { truly, exactly };

/// A mask against its formula on positions from 3 before the first key to 10 behind it, in some samples and 3 heads:
/// every pair, every range of keys, every region. Empty if all is well.
template <class Mask, class Formula>
std::string mask_faults(const Mask& mask, Formula formula, told regions = told::exactly, std::int64_t samples = 1) {
  constexpr std::int64_t first = -3, last = 11, count = last - first, heads = 3;
  const auto text_of = [](const char* what, std::int64_t batch, std::int64_t head, std::int64_t query,
                          std::int64_t key) {
    return std::string(what) + ": sample " + std::to_string(batch) + ", head " + std::to_string(head) + ", query " +
           std::to_string(query) + ", key " + std::to_string(key);
  };
  for (std::int64_t batch = 0; batch < samples; ++batch) {
    // seen[h][i][j]: visible pairs before (i, j) of the heads before h.
    std::int64_t seen[heads + 1][count + 1][count + 1] = {};
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t query = first; query < last; ++query) {
        const hw::position_range bound = hw::detail::keys_for(mask, query);
        for (std::int64_t key = first; key < last; ++key) {
          const bool visible = mask(hw::score_position{batch, head, query, key});
          if (visible != formula(hw::score_position{batch, head, query, key})) {
            return text_of("pair", batch, head, query, key);
          }
          // Keys have numbers from 0 on.
          if (visible && key >= 0 && (key < bound.first || key >= bound.last)) {
            return text_of("keys_for", batch, head, query, key);
          }
          const std::int64_t i = query - first, j = key - first;
          seen[head + 1][i + 1][j + 1] = std::int64_t{visible} + seen[head][i + 1][j + 1] + seen[head + 1][i][j + 1] +
                                         seen[head + 1][i + 1][j] - seen[head][i][j + 1] - seen[head][i + 1][j] -
                                         seen[head + 1][i][j] + seen[head][i][j];
        }
      }
    }
    if constexpr (hw::detail::knows_regions<Mask>) {
      for (std::int64_t n = 0; n < heads * count * count * heads * count * count; ++n) {
        const std::int64_t h0 = n % heads, h1 = n / heads % heads + 1;
        const std::int64_t i0 = n / (heads * heads) % count, i1 = n / (heads * heads * count) % count + 1;
        const std::int64_t j0 = n / (heads * heads * count * count) % count;
        const std::int64_t j1 = n / (heads * heads * count * count * count) + 1;
        if (h0 >= h1 || i0 >= i1 || j0 >= j1) {
          continue;
        }
        const auto& a = seen[h0];
        const auto& b = seen[h1];
        const std::int64_t pairs =
            b[i1][j1] - a[i1][j1] - b[i0][j1] - b[i1][j0] + a[i0][j1] + a[i1][j0] + b[i0][j0] - a[i0][j0];
        const bool all = pairs == (h1 - h0) * (i1 - i0) * (j1 - j0);
        const hw::visibility told_visibility =
            mask.sees({batch, {h0, h1}, {first + i0, first + i1}, {first + j0, first + j1}});
        const hw::visibility truth = pairs == 0 ? hw::visibility::none
                                     : all      ? hw::visibility::all
                                                : hw::visibility::some;
        if (told_visibility != truth && (regions == told::exactly || told_visibility != hw::visibility::some)) {
          return text_of("sees", batch, h0, first + i0, first + j0) + " to " +
                 text_of("", batch, h1, first + i1, first + j1);
        }
      }
    }
  }
  return {};
}

}  // namespace support
