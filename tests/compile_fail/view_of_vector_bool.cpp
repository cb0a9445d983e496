// SPDX-License-Identifier: MIT
#include <headwave/tensor.hpp>

#include <vector>

// std::vector<bool> packs its elements into bits and has no bool to point at.
#if defined(EXPECT_ERROR)
using element = bool;
#else
using element = unsigned char;
#endif

std::size_t call() {
  std::vector<element> flags(3);
  return headwave::tensor_view<const element, 1>(flags, {3}).size();
}
