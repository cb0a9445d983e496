// SPDX-License-Identifier: MIT
// All kernels, compiled once for our tests, benchmarks and examples, which only declare them.
#define HEADWAVE_INSTANTIATE_KERNELS
#include <headwave/headwave.hpp>
