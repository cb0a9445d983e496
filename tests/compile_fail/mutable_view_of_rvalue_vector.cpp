// SPDX-License-Identifier: MIT
#include <headwave/tensor.hpp>

#include <vector>

// A result written into a temporary would be lost.
#if defined(EXPECT_ERROR)
using element = float;
#else
using element = const float;
#endif

std::size_t call() {
  return headwave::tensor_view<element, 1>(std::vector<float>(3), {3}).size();
}
