// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/dispatch.hpp>
#include <headwave/executor.hpp>
#include <headwave/tensor.hpp>

namespace headwave {
namespace detail::inline HEADWAVE_ABI {

/// x [batch, length, head, channel].
template <class T>
strided4<T> strides_of(const tensor_view<T, 4>& x) {
  return {x.data(), x.stride(0), x.stride(2), x.stride(1), x.stride(3)};
}
/// lse [batch, head, length].
template <class T>
strided4<T> strides_of(const tensor_view<T, 3>& lse) {
  return {lse.data(), lse.stride(0), lse.stride(1), lse.stride(2), 0};
}

template <class T>
void merge_attention(const tensor_view<T, 4>& out_a, const tensor_view<T, 3>& lse_a,
                     const tensor_view<const T, 4>& out_b, const tensor_view<const T, 3>& lse_b,
                     const executor_ref& executor) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "merge_attention takes float or double");
  const std::array<std::size_t, 3> rows_of_heads{out_a.extent(0), out_a.extent(2), out_a.extent(1)};
  if (out_b.extents() != out_a.extents() || lse_a.extents() != rows_of_heads || lse_b.extents() != rows_of_heads) {
    fail(
        "merge_attention",
        "out_a and out_b must be [batch, query_length, heads, value_dim], lse_a and lse_b [batch, heads, query_length]",
        {{"out_a", out_a.extents().data(), 4},
         {"lse_a", lse_a.extents().data(), 3},
         {"out_b", out_b.extents().data(), 4},
         {"lse_b", lse_b.extents().data(), 3}});
  }
  const merge_arguments<T> arguments{.out_a = strides_of(out_a),
                                     .out_b = strides_of(out_b),
                                     .lse_a = strides_of(lse_a),
                                     .lse_b = strides_of(lse_b),
                                     .query_length = static_cast<index>(out_a.extent(1)),
                                     .heads = static_cast<index>(out_a.extent(2)),
                                     .value_dim = static_cast<index>(out_a.extent(3))};
  const auto rows = static_cast<index>(lse_a.size());
  // Elements come from memory, each at the price of some operations; a row has a logarithm and an exponential.
  const double cost = static_cast<double>(rows) * (4 * static_cast<double>(arguments.value_dim) + 100);
  const index wanted = wanted_tasks(executor, cost);
  run_ranges(executor, wanted, rows,
             [&arguments](index first, index last) { HEADWAVE_DISPATCH(merge_rows<T>(arguments, first, last)) });
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// Attention over two sets of keys, from the attention over each of them: for every row, in place,
///   out_a <- (e^lse_a out_a + e^lse_b out_b) / (e^lse_a + e^lse_b),   lse_a <- ln(e^lse_a + e^lse_b).
/// So keys can be taken in parts: a prefix that many sequences share once for all of them, parts on several machines,
/// or parts that do not fit in memory together. The order of merges makes no difference but to the last bits.
///
/// out_a and out_b: [batch, query_length, heads, value_dim], lse_a and lse_b: [batch, heads, query_length], as
/// scaled_dot_product_attention gives them: lse is the natural logarithm of the sum of e^score over the visible keys.
/// All of one type, float or double; any strides. executor runs the parts of the call (executor.hpp).
///
/// A side that sees nothing, with lse -infinity, leaves the other bit for bit, whatever its own out holds; two of them
/// give 0 and -infinity. NaN of any other side propagates, also where its share is 0, and so does a lse of NaN. A lse
/// of +infinity has all of the share; two of them have no shares, and give NaN.
/// A sink is part of lse, so at most one side may have been computed with sinks.
/// The relative error of a share is at most (|lse_a - lse_b| + 6) 2^-53; an output has at most four roundings more.
/// Errors: shapes that do not fit.
/// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), 3.1.
template <class OutA, class LseA, class OutB, class LseB>
  requires(output_like<OutA, 4> && output_like<LseA, 3> && tensor_like<const OutB, 4> && tensor_like<const LseB, 3>)
void merge_attention(OutA&& out_a, LseA&& lse_a, const OutB& out_b, const LseB& lse_b,
                     const executor_ref& executor = {}) {
  detail::merge_attention<element_of<OutA>>(as_view(out_a), as_view(lse_a), as_view(out_b), as_view(lse_b), executor);
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
