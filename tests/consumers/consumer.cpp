// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

int main() {
  headwave::tensor<float, 2> x({2, 3});
  x(1, 2) = 5;
  return x.view().transposed(0, 1)(2, 1) == 5 && HEADWAVE_VERSION >= 100 ? 0 : 1;
}
