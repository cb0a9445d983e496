// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/dispatch.hpp>
#include <headwave/tensor.hpp>

namespace headwave {
namespace detail::inline HEADWAVE_ABI {

/// Calls the kernel for each row along the last axis, by recursion over the others.
template <class T, std::size_t Rank>
void softmax_rows(tensor_view<T, Rank> out, tensor_view<const T, Rank> x, std::size_t axis = 0) {
  if (axis + 1 < Rank) {
    for (std::size_t i = 0; i < out.extent(axis); ++i) {
      softmax_rows(out.slice(axis, i, 1), x.slice(axis, i, 1), axis + 1);
    }
    return;
  }
  T* const target = out.data();
  const T* const source = x.data();
  HEADWAVE_DISPATCH(
      softmax_row<T>(target, out.stride(axis), source, x.stride(axis), static_cast<index>(x.extent(axis))))
}

template <class T, std::size_t Rank>
void softmax(tensor_view<T, Rank> out, tensor_view<const T, Rank> x) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "softmax takes float or double");
  if (out.extents() != x.extents()) {
    fail("softmax", "out and x must have the same shape",
         {{"out", out.extents().data(), Rank}, {"x", x.extents().data(), Rank}});
  }
  if (x.size() != 0) {
    softmax_rows(out, x);
  }
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// out = softmax of x along its last axis: out(.., i) = e^(x(.., i) - m) / sum over j of e^(x(.., j) - m), m the row's
/// maximum.
///
/// out and x: float or double tensors of one shape, rank 1 to 4, any strides; they may be the same tensor.
/// An element of -infinity has weight 0; a row of nothing else becomes zeros. NaN makes its row NaN.
/// Errors: shapes that differ.
template <class Out, class X>
  requires(output_like<Out, decltype(as_view(std::declval<X&>()))::rank()>)
void softmax_into(Out&& out, const X& x) {
  using T = element_of<const X>;
  constexpr std::size_t rank = decltype(as_view(x))::rank();
  detail::softmax(tensor_view<T, rank>(as_view(out)), tensor_view<const T, rank>(as_view(x)));
}

/// Softmax along the last axis, as a new tensor of x's shape.
template <class X>
auto softmax(const X& x) {
  tensor<element_of<const X>, decltype(as_view(x))::rank()> out(as_view(x).extents(), uninitialized);
  softmax_into(out, x);
  return out;
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
