// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/headwave.hpp>

#include <cstring>

/// Doubles every element, in the other translation unit. Throws shape_error if there is none.
headwave::tensor<float, 3> doubled(const headwave::tensor<float, 3>& x);

/// What both translation units compute, each with its own copy of every function.
static headwave::tensor<float, 3> compute() {
  namespace hw = headwave;
  hw::tensor<float, 3> x({2, 5, 16});
  hw::add_sinusoidal_encoding(x, {.first_position = 1'000'000});
  hw::multi_head_attention<float> layer({.d_model = 16, .heads = 4});
  layer.init_xavier(7);
  const hw::rotary_embedding rope({.rotary_dim = 4, .scaling = hw::yarn_scaling{4, 16}});
  rope.apply(x.view().reshaped({2, 5, 4, 4}), 3);
  x = layer(x, {.causal = true});
  auto cache = layer.make_cache<hw::bfloat16>(2, 5);
  const auto odd_keys = hw::visible_if([](hw::score_position at) { return at.key % 2 == 1; });
  x = layer(x, cache, {.causal = true}, hw::window_mask{.left = 3} || odd_keys);
  return x;
}

/// The elements that compute() gives in the other translation unit.
headwave::tensor<float, 3> computed_elsewhere();
