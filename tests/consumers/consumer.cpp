// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

int main() {
  headwave::tensor<float, 2> x({2, 3});
  x(1, 2) = 5;
  const headwave::tensor<float, 2> weights = headwave::softmax(x);
  return x.view().transposed(0, 1)(2, 1) == 5 && weights(1, 2) > 0.9f && HEADWAVE_VERSION >= 100 ? 0 : 1;
}
