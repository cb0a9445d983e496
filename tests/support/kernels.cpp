// SPDX-License-Identifier: MIT
// All kernels, compiled once for all tests; the tests themselves only declare them.
#define HEADWAVE_INSTANTIATE_KERNELS
#include <headwave/headwave.hpp>
