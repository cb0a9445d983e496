// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>

#include <vector>

/// Compiled in several files: what each of them makes of the same inputs, and which tier it says that it uses.
struct result_of_file {
  headwave::isa tier;
  bool others_available;
  std::vector<float> out;
};
result_of_file with_all_tiers(headwave::isa tier);
result_of_file with_scalar_only();
result_of_file with_avx2_only();

namespace {

/// Attention of 19 queries to 37 keys, in the tier that this file uses.
inline result_of_file attend_here(headwave::isa other) {
  headwave::tensor<float, 4> q({1, 19, 2, 24}), k({1, 37, 2, 24}), v({1, 37, 2, 24});
  float next = 0;
  for (headwave::tensor<float, 4>* const x : {&q, &k, &v}) {
    for (float& element : *x) {
      next = next * 3.9f * (1 - next) + (next <= 0 ? 0.3f : 0);
      element = 4 * next - 2;
    }
  }
  const headwave::tensor<float, 4> out = headwave::scaled_dot_product_attention(q, k, v, {.causal = true});
  return {headwave::active_isa(), headwave::is_available(other), {out.begin(), out.end()}};
}

}  // namespace
