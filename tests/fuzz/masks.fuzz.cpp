// SPDX-License-Identifier: MIT
#include <headwave/masks.hpp>

#include "finding.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/random_rules.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

/// \file
/// Trees of mask combinations with any numbers that masks may have, asked about all positions that they are made for:
/// each pair is seen as formulas say, and what masks tell about ranges and regions is true.

namespace hw = headwave;

namespace {

constexpr std::int64_t end = std::int64_t{1} << 62;

/// Up to most positions of first .. last.
hw::position_range draw_range(support::random_source& random, std::int64_t first, std::int64_t last, std::size_t most) {
  const bool far = random.chance(0.5);
  const std::int64_t start = far ? random.extreme() : static_cast<std::int64_t>(random.integer(0, 300)) - 100;
  const std::int64_t inside = std::clamp(start, first, last);
  return {inside, (std::min)(last, inside + static_cast<std::int64_t>(random.integer(0, most - 1))) + 1};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  support::random_source random({data, size});
  const std::size_t length = random.pick({1, 7, 20, 70, 140});
  support::mask_source masks(random, 2, 2, length, true);
  const support::any_mask mask = masks.draw(3);
  for (int n = 0; n < 8; ++n) {
    const auto head = static_cast<std::int64_t>(random.integer(0, 1));
    const hw::score_region region{static_cast<std::int64_t>(random.integer(0, 1)),
                                  {head, random.chance(0.5) ? 2 : head + 1},
                                  draw_range(random, -end, end, 20),
                                  draw_range(random, 0, end - 1, 70)};
    std::string fault = support::false_statement(mask, region);
    for (std::int64_t query = region.queries.first; query < region.queries.last; ++query) {
      for (std::int64_t key = region.keys.first; key < region.keys.last; ++key) {
        const hw::score_position at{region.batch, head, query, key};
        if (fault.empty() && mask(at) != mask.meaning(at)) {
          fault = "not its formula: " + support::text_of(at);
        }
      }
    }
    fuzz::require_none(fault.empty() ? fault : mask.text() + ", length " + std::to_string(length) + ": " + fault);
  }
  return 0;
}
