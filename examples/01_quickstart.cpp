// SPDX-License-Identifier: MIT
// Positions, then attention, from nothing but the headers: g++ -std=c++20 -O2 -I include examples/01_quickstart.cpp
// [quickstart]
#include <headwave/headwave.hpp>

#include <iomanip>
#include <iostream>
#include <vector>

namespace hw = headwave;

int main() {
  std::cout << std::fixed << std::setprecision(4);

  // The sinusoidal encoding of 50 positions in 128 dimensions: sines in the even ones, cosines in the odd ones.
  const auto encoding = hw::sinusoidal_encoding<float>(50, 128);
  std::cout << "position 3:  " << encoding(3, 0) << " " << encoding(3, 1) << " ...\n";

  // Two sequences of 50 words in your own memory, and the same encoding added in place.
  std::vector<float> words(2 * 50 * 128, 0.5f);
  hw::tensor_view<float, 3> x(words, {2, 50, 128});
  hw::add_sinusoidal_encoding(x);
  std::cout << "word 3:      " << x(0, 3, 0) << " " << x(0, 3, 1) << " ...\n";

  // Self-attention with 8 heads, in which no word sees a later one.
  hw::multi_head_attention<float> attention({.d_model = 128, .heads = 8});
  attention.init_xavier(/*seed=*/42);
  const auto y = attention(x, {.causal = true});
  std::cout << "attended to: " << y(0, 3, 0) << " " << y(0, 3, 1) << " ...\n";
}
// [/quickstart]
