// SPDX-License-Identifier: MIT
// What restrictions and biases do to attention weights: ALiBi, a window, and a window with tokens that see and are seen
// by all. All scores are 0, so that every visible key weighs the same but for its bias.
#include "support/heat_map.hpp"

#include <headwave/attention.hpp>
#include <headwave/masks.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace hw = headwave;

int main() {
  const std::size_t length = 24;
  const hw::tensor<float, 4> zeros({1, length, 1, 8});

  // The weights of one head as a matrix [query, key].
  const auto weights_of = [&](hw::attention_options<float> options, const auto&... rules) {
    hw::tensor<float, 4> weights({1, 1, length, length});
    options.weights = weights;
    hw::scaled_dot_product_attention(zeros, zeros, zeros, options, rules...);
    return weights;
  };
  const std::vector<float> slopes = {0.25f};
  const std::vector<std::pair<std::string, hw::tensor<float, 4>>> pictures = {
      {"ALiBi, slope 1/4", weights_of({.causal = true, .alibi_slopes = slopes})},
      {"window of 4 each side", weights_of({}, hw::window_mask{4, 4})},
      {"window and 2 global", weights_of({}, hw::window_mask{4, 4} || hw::global_mask{2})},
      {"prefix of 6", weights_of({}, hw::prefix_mask{6})},
      {"chunks of 8", weights_of({}, hw::chunk_mask{8} && hw::causal_mask{})},
      {"every third key", weights_of({}, hw::dilated_mask{3} && hw::causal_mask{})}};

  // Each row by its largest weight: blank is 0, @ is the largest.
  const char shades[] = " .:-=+*%@";
  std::vector<support::panel> panels;
  for (const auto& [name, weights] : pictures) {
    const hw::tensor_view<const float, 2> matrix(weights, {length, length});
    panels.push_back({name, matrix});
    std::printf("%s\n", name.c_str());
    for (std::size_t query = 0; query < length; query += 3) {
      float largest = 0;
      for (std::size_t key = 0; key < length; ++key) {
        largest = std::max(largest, matrix(query, key));
      }
      std::printf("%4zu  |", query);
      for (std::size_t key = 0; key < length; ++key) {
        std::printf("%c", shades[std::lround(8 * matrix(query, key) / largest)]);
      }
      std::printf("|  largest %.3f\n", static_cast<double>(largest));
    }
  }
  support::write_heat_map("masks_picture.png", panels,
                          {.title = "Attention weights where all scores are 0",
                           .x = {"key", {}},
                           .y = {"query", {}},
                           .value_label = "weight",
                           .high = 0.4,
                           .cell_width = 12,
                           .cell_height = 12,
                           .panels_per_row = 3});
}
