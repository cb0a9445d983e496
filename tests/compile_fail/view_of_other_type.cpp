// SPDX-License-Identifier: MIT
#include <headwave/tensor.hpp>

#include <vector>

#if defined(EXPECT_ERROR)
using element = double;
#else
using element = float;
#endif

std::size_t call() {
  std::vector<element> numbers(3);
  return headwave::tensor_view<const float, 1>(numbers, {3}).size();
}
