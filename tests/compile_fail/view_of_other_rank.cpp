// SPDX-License-Identifier: MIT
#include <headwave/tensor.hpp>

#if defined(EXPECT_ERROR)
constexpr std::size_t rank = 3;
#else
constexpr std::size_t rank = 2;
#endif

headwave::tensor_view<float, rank> look(headwave::tensor<float, 2>& owner) {
  return owner;
}
