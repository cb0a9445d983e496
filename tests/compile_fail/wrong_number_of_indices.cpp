// SPDX-License-Identifier: MIT
#include <headwave/tensor.hpp>

float call(headwave::tensor_view<const float, 3> view) {
#if defined(EXPECT_ERROR)
  return view(1, 2);
#else
  return view(1, 2, 3);
#endif
}
