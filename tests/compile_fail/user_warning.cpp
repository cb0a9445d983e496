// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

int narrow(double x) {
#if defined(EXPECT_ERROR)
  return x;
#else
  return static_cast<int>(x);
#endif
}
