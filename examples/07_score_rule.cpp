// SPDX-License-Identifier: MIT
// A score rule and a mask of your own: lambdas, compiled into the kernel.
#include <headwave/attention.hpp>
#include <headwave/masks.hpp>

#include <cmath>
#include <cstdio>

namespace hw = headwave;

int main() {
  // Four queries and four keys, all alike: the rules alone decide.
  const hw::tensor<float, 4> zeros({1, 4, 1, 2});
  hw::tensor<float, 4> weights({1, 1, 4, 4});
  const auto print = [&](const char* title) {
    std::printf("%s\n", title);
    for (std::size_t query = 0; query < 4; ++query) {
      for (std::size_t key = 0; key < 4; ++key) {
        std::printf("  %.3f", static_cast<double>(weights(0, 0, query, key)));
      }
      std::printf("\n");
    }
  };

  // The weight of a key halves with each step away from the query.
  const auto halving = [](float score, hw::score_position at) {
    return score - std::log(2.0f) * std::abs(static_cast<float>(at.query - at.key));
  };
  hw::scaled_dot_product_attention(zeros, zeros, zeros, {.weights = weights}, halving);
  print("halving with the distance");

  // No query sees key 1 or a later key than its own.
  const auto not_1 = hw::visible_if([](hw::score_position at) { return at.key != 1; });
  hw::scaled_dot_product_attention(zeros, zeros, zeros, {.weights = weights}, halving, not_1 && hw::causal_mask{});
  print("and without key 1 and the future");
}
