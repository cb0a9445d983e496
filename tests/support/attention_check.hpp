// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>

#include "support/compare.hpp"
#include "support/oracle.hpp"

#include <string>
#include <type_traits>
#include <vector>

namespace support {

/// Options of the element type of a tensor.
template <class X>
using options_for = hw::attention_options<hw::element_of<const X>>;

/// Runs attention with every output asked for, each into a window with canaries around it, and compares them with the
/// oracle; then runs it again for the output alone, and for output and lse, which must have the same bits: few queries
/// take another path without weights. Empty if all is well.
template <class Q, class K, class V>
std::string attention_faults(const Q& q, const K& k, const V& v, options_for<Q> options, spacing layout = {}) {
  using value_type = hw::element_of<const Q>;
  const auto queries = hw::as_view(q);
  const auto keys = hw::as_view(k);
  const std::size_t batch = queries.extent(0);
  const std::size_t query_length = queries.extent(1);
  const std::size_t heads = queries.extent(2);
  const std::size_t key_length = keys.extent(1);

  window<value_type, 4> out({batch, query_length, heads, hw::as_view(v).extent(3)}, layout);
  window<value_type, 3> lse({batch, heads, query_length}, layout);
  window<value_type, 4> weights({batch, heads, query_length, key_length}, layout);
  window<value_type, 3> mean_weights({batch, query_length, key_length}, layout);
  const options_for<Q> bare = options;
  options.lse = lse.view();
  options.weights = weights.view();
  options.mean_weights = mean_weights.view();
  hw::scaled_dot_product_attention_into(out.view(), q, k, v, options);
  const oracle::attention_result expected = oracle::attention(q, k, v, bare);

  std::string text;
  const auto note = [&](const char* name, const std::string& fault) {
    text += fault.empty() ? fault : std::string(name) + ": " + fault + "\n";
  };
  note("out", within(out.view(), expected.out));
  note("lse", within(lse.view(), expected.lse));
  note("weights", within(weights.view(), expected.weights));
  note("mean_weights", within(mean_weights.view(), expected.mean_weights));
  note("canaries", out.intact() && lse.intact() && weights.intact() && mean_weights.intact() ? "" : "overwritten");
  note("out alone", same_bits(hw::scaled_dot_product_attention(q, k, v, bare), out.view()));
  window<value_type, 3> lse_alone({batch, heads, query_length}, layout);
  options = bare;
  options.lse = lse_alone.view();
  note("out with lse", same_bits(hw::scaled_dot_product_attention(q, k, v, options), out.view()));
  note("lse alone", same_bits(lse_alone.view(), lse.view()));
  note("canaries of lse alone", lse_alone.intact() ? "" : "overwritten");
  return text;
}

}  // namespace support
