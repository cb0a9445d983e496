// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>

// Rules are called on any thread and in any order, so a rule that counts its calls would be a race.
headwave::tensor<float, 4> call(const headwave::tensor<float, 4>& x) {
#if defined(EXPECT_ERROR)
  auto rule = [calls = 0](float s, headwave::score_position) mutable { return s + static_cast<float>(++calls); };
#else
  auto rule = [calls = 0](float s, headwave::score_position) { return s + static_cast<float>(calls); };
#endif
  return headwave::scaled_dot_product_attention(x, x, x, {}, rule);
}
