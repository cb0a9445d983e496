// SPDX-License-Identifier: MIT
#include "one_definition.hpp"

namespace hw = headwave;

int main() {
  const hw::tensor<float, 3> x = compute();
  const hw::tensor<float, 3> twice = doubled(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (twice.data()[i] != 2 * x.data()[i]) {
      return 1;
    }
  }
  const hw::tensor<float, 3> there = computed_elsewhere();
  if (there.extents() != x.extents() || std::memcmp(there.data(), x.data(), x.size() * sizeof(float)) != 0) {
    return 2;
  }
  try {
    doubled({});
    return 3;
  } catch (const hw::shape_error&) {
    return 0;
  }
}
