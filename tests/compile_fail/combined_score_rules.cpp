// SPDX-License-Identifier: MIT
#include <headwave/masks.hpp>

// Masks combine; what changes a score does not.
bool call() {
#if defined(EXPECT_ERROR)
  const auto half = [](float s, headwave::score_position) { return s / 2; };
#else
  const auto half = headwave::visible_if([](headwave::score_position at) { return at.key % 2 == 0; });
#endif
  return (headwave::causal_mask{} && half)({0, 0, 3, 2});
}
