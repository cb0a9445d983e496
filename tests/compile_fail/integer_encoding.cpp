// SPDX-License-Identifier: MIT
#include <headwave/positional_encoding.hpp>

// Sines rounded to integers would be 0 and 1.
#if defined(EXPECT_ERROR)
using element = int;
#else
using element = float;
#endif

float call() {
  return static_cast<float>(headwave::sinusoidal_encoding<element>(50, 128)(3, 5));
}
