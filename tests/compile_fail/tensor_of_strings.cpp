// SPDX-License-Identifier: MIT
#include <headwave/tensor.hpp>

#include <string>

// Elements are copied as bytes.
#if defined(EXPECT_ERROR)
using element = std::string;
#else
using element = double;
#endif

headwave::tensor<element, 1> make() {
  return headwave::tensor<element, 1>({3});
}
