// SPDX-License-Identifier: MIT
#include <headwave/tensor.hpp>

// A result written into a temporary would be lost.
#if defined(EXPECT_ERROR)
using element = float;
#else
using element = const float;
#endif

void use(headwave::tensor_view<element, 2> view);

void call() {
  use(headwave::tensor<float, 2>({2, 3}));
}
