// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/memory.hpp>
#include <headwave/error.hpp>

#include <array>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <type_traits>

/// \file
/// Two types hold every array of the library: tensor owns its elements, tensor_view looks at somebody's.
///
/// Shapes are row-major, outermost axis first: x(b, l, c) of a [batch, length, channels] tensor has its channels side
/// by side. (What other libraries call shape, ndim and numel is extents(), rank() and size() here, as in std::mdspan.)

namespace headwave {

template <class T, std::size_t Rank>
class tensor;

namespace detail {

/// Row-major strides of a shape, in elements. Sizes that overflow wrap; who calls this refuses them.
template <std::size_t Rank>
HEADWAVE_INLINE constexpr std::array<index, Rank> row_major(const std::array<std::size_t, Rank>& extents) {
  std::array<index, Rank> strides{};
  std::size_t stride = 1;
  for (std::size_t axis = Rank; axis-- > 0;) {
    strides[axis] = static_cast<index>(stride);
    stride *= extents[axis] ? extents[axis] : 1;
  }
  return strides;
}

/// A lvalue range, or an rvalue one whose elements stay writable through a const range (a span): its memory outlives
/// the call.
template <class Range, class T>
concept lends_elements =
    requires(Range&& range) {
      { std::size(range) } -> std::convertible_to<std::size_t>;
      requires std::is_convertible_v<std::remove_pointer_t<decltype(std::data(range))>(*)[], T(*)[]>;
    } &&
    (std::is_lvalue_reference_v<Range> || std::is_const_v<T> || requires(const std::remove_reference_t<Range>& range) {
      requires std::is_convertible_v<std::remove_pointer_t<decltype(std::data(range))>(*)[], T(*)[]>;
    });

}  // namespace detail

/// A view of somebody else's elements: a pointer, Rank extents and Rank strides. Trivially copyable; pass it by value.
///
/// Constness is shallow, as for std::span: tensor_view<const T, Rank> is the read-only view, and converts implicitly
/// from tensor_view<T, Rank> and from tensor<T, Rank>. Strides are signed, count elements, and may be zero (an axis
/// repeated without a copy) or negative (an axis read backwards). Any alignment that suits T will do.
template <class T, std::size_t Rank>
class tensor_view {
  static_assert(Rank > 0, "a view has at least one axis");

 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using extents_type = std::array<std::size_t, Rank>;
  using strides_type = std::array<index, Rank>;

  /// No data and extents of zero; as an option it means "not given".
  HEADWAVE_INLINE constexpr tensor_view() = default;

  /// Row-major elements at data. Nothing is known of how many there are: the caller vouches for the product of the
  /// extents.
  template <class Pointer>
    requires(std::is_pointer_v<std::remove_cvref_t<Pointer>> && std::is_convertible_v<Pointer, T*>)
  HEADWAVE_INLINE constexpr tensor_view(Pointer&& data, const extents_type& extents)
      : data_(data), extents_(extents), strides_(detail::row_major(extents)) {
    detail::checked_size("tensor_view", extents_.data(), Rank);
  }

  /// Elements at data + i0 * strides[0] + i1 * strides[1] + ...; strides in elements, of any sign.
  HEADWAVE_INLINE constexpr tensor_view(T* data, const extents_type& extents, const strides_type& strides)
      : data_(data), extents_(extents), strides_(strides) {}

  /// Row-major over a vector, span, array or any other contiguous range. Errors: the range has fewer elements than the
  /// extents ask for.
  template <class Range>
    requires detail::lends_elements<Range, T>
  HEADWAVE_INLINE constexpr tensor_view(Range&& range, const extents_type& extents)
      : data_(std::data(range)), extents_(extents), strides_(detail::row_major(extents)) {
    const std::size_t needed = detail::checked_size("tensor_view", extents_.data(), Rank);
    if (needed > std::size(range)) [[unlikely]] {
      detail::fail("tensor_view",
                   "needs " + std::to_string(needed) + " elements, the range has " + std::to_string(std::size(range)),
                   {{"extents", extents_.data(), Rank}});
    }
  }

  /// The read-only view of the same elements.
  template <class U>
    requires(std::is_const_v<T> && std::is_same_v<U, value_type>)
  HEADWAVE_INLINE constexpr tensor_view(const tensor_view<U, Rank>& other)
      : data_(other.data()), extents_(other.extents()), strides_(other.strides()) {}

  static constexpr std::size_t rank() { return Rank; }
  HEADWAVE_INLINE constexpr T* data() const { return data_; }
  HEADWAVE_INLINE constexpr const extents_type& extents() const { return extents_; }
  HEADWAVE_INLINE constexpr const strides_type& strides() const { return strides_; }
  HEADWAVE_INLINE constexpr std::size_t extent(std::size_t axis) const { return extents_[axis]; }
  HEADWAVE_INLINE constexpr index stride(std::size_t axis) const { return strides_[axis]; }
  HEADWAVE_INLINE constexpr bool empty() const { return size() == 0; }

  /// The number of elements: the product of the extents.
  HEADWAVE_INLINE constexpr std::size_t size() const {
    std::size_t size = 1;
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      size *= extents_[axis];
    }
    return size;
  }

  /// Whether the elements lie in memory in row-major order without gaps. An axis of one element may have any stride.
  HEADWAVE_INLINE constexpr bool is_contiguous() const {
    index expected = 1;
    for (std::size_t axis = Rank; axis-- > 0;) {
      if (extents_[axis] != 1 && strides_[axis] != expected && size() != 0) {
        return false;
      }
      expected *= static_cast<index>(extents_[axis]);
    }
    return true;
  }

  /// The element at an index of Rank integers; checked by HEADWAVE_ASSERT only.
  template <class... Indices>
    requires(sizeof...(Indices) == Rank && (std::is_integral_v<Indices> && ...))
  HEADWAVE_INLINE constexpr T& operator()(Indices... indices) const {
    const index at[] = {static_cast<index>(indices)...};
    index offset = 0;
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      HEADWAVE_ASSERT(at[axis] >= 0 && static_cast<std::size_t>(at[axis]) < extents_[axis]);
      offset += at[axis] * strides_[axis];
    }
    return data_[offset];
  }

  /// The view with two axes exchanged; nothing moves. [batch, heads, length, head_dim] data becomes
  /// [batch, length, heads, head_dim] by transposed(1, 2). Errors: an axis past the rank.
  HEADWAVE_INLINE constexpr tensor_view transposed(std::size_t a, std::size_t b) const {
    if (a >= Rank || b >= Rank) [[unlikely]] {
      detail::fail("transposed", "no such axis: " + std::to_string(a >= Rank ? a : b),
                   {{"view", extents_.data(), Rank}});
    }
    tensor_view result = *this;
    result.extents_[a] = extents_[b];
    result.extents_[b] = extents_[a];
    result.strides_[a] = strides_[b];
    result.strides_[b] = strides_[a];
    return result;
  }

  /// The same elements in the same row-major order under other extents. Errors: the number of elements differs, or the
  /// view has gaps (is_contiguous() is false).
  template <std::size_t NewRank>
  HEADWAVE_INLINE constexpr tensor_view<T, NewRank> reshaped(const std::size_t (&extents)[NewRank]) const {
    std::array<std::size_t, NewRank> shape{};
    for (std::size_t axis = 0; axis < NewRank; ++axis) {
      shape[axis] = extents[axis];
    }
    if (detail::checked_size("reshaped", shape.data(), NewRank) != size()) [[unlikely]] {
      detail::fail("reshaped", "the number of elements must stay the same",
                   {{"view", extents_.data(), Rank}, {"new extents", shape.data(), NewRank}});
    }
    if (!is_contiguous()) [[unlikely]] {
      detail::fail("reshaped", "the view must be contiguous", {{"view", extents_.data(), Rank}});
    }
    return tensor_view<T, NewRank>(data_, shape, detail::row_major(shape));
  }

  /// Elements first .. first + count - 1 of one axis. Errors: the axis or the range does not exist.
  HEADWAVE_INLINE constexpr tensor_view slice(std::size_t axis, std::size_t first, std::size_t count) const {
    if (axis >= Rank || first > extents_[axis] || count > extents_[axis] - first) [[unlikely]] {
      detail::fail("slice",
                   "no elements " + std::to_string(first) + " to " + std::to_string(first) + " + " +
                       std::to_string(count) + " on axis " + std::to_string(axis),
                   {{"view", extents_.data(), Rank}});
    }
    tensor_view result = *this;
    result.data_ += static_cast<index>(first) * strides_[axis];
    result.extents_[axis] = count;
    return result;
  }

 private:
  T* data_ = nullptr;
  extents_type extents_{};
  strides_type strides_{};
};

/// Asks tensor's constructor to leave the elements unwritten, for memory that is about to be filled.
struct uninitialized_t {};
inline constexpr uninitialized_t uninitialized{};

/// An owning array: row-major without gaps, 64-byte aligned, deep copies, deep constness.
template <class T, std::size_t Rank>
class tensor {
  static_assert(std::is_arithmetic_v<T> || (std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>),
                "a tensor holds plain numbers");

 public:
  using value_type = T;
  using extents_type = std::array<std::size_t, Rank>;

  /// No elements; every extent is zero.
  HEADWAVE_INLINE tensor() = default;

  /// Elements of value zero. Errors: the size in bytes overflows (shape_error), no memory (std::bad_alloc).
  HEADWAVE_INLINE explicit tensor(const extents_type& extents) : tensor(extents, uninitialized) {
    if (data_) {
      std::memset(static_cast<void*>(data_), 0, size() * sizeof(T));
    }
  }

  /// Elements of unknown value.
  HEADWAVE_INLINE tensor(const extents_type& extents, uninitialized_t) : extents_(extents) {
    const std::size_t count = detail::checked_size("tensor", extents_.data(), Rank);
    if (count) {
      data_ = static_cast<T*>(detail::allocate(detail::checked_product("tensor", count, sizeof(T))));
    }
  }

  HEADWAVE_INLINE tensor(const tensor& other) : tensor(other.extents_, uninitialized) {
    if (data_) {
      std::memcpy(static_cast<void*>(data_), other.data_, size() * sizeof(T));
    }
  }
  HEADWAVE_INLINE tensor(tensor&& other) noexcept : data_(other.data_), extents_(other.extents_) {
    other.data_ = nullptr;
    other.extents_ = {};
  }
  HEADWAVE_INLINE tensor& operator=(const tensor& other) {
    if (this != &other) {
      *this = tensor(other);
    }
    return *this;
  }
  HEADWAVE_INLINE tensor& operator=(tensor&& other) noexcept {
    T* const data = other.data_;
    const extents_type extents = other.extents_;
    other.data_ = nullptr;
    other.extents_ = {};
    release();
    data_ = data;
    extents_ = extents;
    return *this;
  }
  HEADWAVE_INLINE ~tensor() { release(); }

  static constexpr std::size_t rank() { return Rank; }
  HEADWAVE_INLINE T* data() { return data_; }
  HEADWAVE_INLINE const T* data() const { return data_; }
  HEADWAVE_INLINE const extents_type& extents() const { return extents_; }
  HEADWAVE_INLINE std::size_t extent(std::size_t axis) const { return extents_[axis]; }
  HEADWAVE_INLINE index stride(std::size_t axis) const { return view().stride(axis); }
  HEADWAVE_INLINE std::size_t size() const { return view().size(); }
  HEADWAVE_INLINE bool empty() const { return size() == 0; }

  HEADWAVE_INLINE tensor_view<T, Rank> view() & { return {data_, extents_, detail::row_major(extents_)}; }
  HEADWAVE_INLINE tensor_view<const T, Rank> view() const& { return {data_, extents_, detail::row_major(extents_)}; }
  HEADWAVE_INLINE operator tensor_view<T, Rank>() & { return view(); }
  HEADWAVE_INLINE operator tensor_view<const T, Rank>() const { return {data_, extents_, detail::row_major(extents_)}; }

  /// The element at an index of Rank integers; checked by HEADWAVE_ASSERT only.
  template <class... Indices>
  HEADWAVE_INLINE T& operator()(Indices... indices) {
    return view()(indices...);
  }
  template <class... Indices>
  HEADWAVE_INLINE const T& operator()(Indices... indices) const {
    return view()(indices...);
  }

  HEADWAVE_INLINE T* begin() { return data_; }
  HEADWAVE_INLINE T* end() { return data_ + size(); }
  HEADWAVE_INLINE const T* begin() const { return data_; }
  HEADWAVE_INLINE const T* end() const { return data_ + size(); }

 private:
  HEADWAVE_INLINE void release() {
    if (data_) {
      detail::deallocate(static_cast<void*>(data_), size() * sizeof(T));
    }
  }

  T* data_ = nullptr;
  extents_type extents_{};
};

/// The view of a tensor or view: what every function that takes "tensors or views" does with its arguments.
template <class T, std::size_t Rank>
HEADWAVE_INLINE constexpr tensor_view<T, Rank> as_view(const tensor_view<T, Rank>& view) {
  return view;
}
template <class T, std::size_t Rank>
HEADWAVE_INLINE tensor_view<T, Rank> as_view(tensor<T, Rank>& owner) {
  return owner;
}
template <class T, std::size_t Rank>
HEADWAVE_INLINE tensor_view<const T, Rank> as_view(const tensor<T, Rank>& owner) {
  return owner;
}

/// The element type of a tensor or view, without const.
template <class X>
using element_of = typename decltype(as_view(std::declval<X&>()))::value_type;

/// A tensor or view of a given rank.
template <class X, std::size_t Rank>
concept tensor_like = requires(X& x) { requires decltype(as_view(x))::rank() == Rank; };

/// A tensor or view of a given rank whose elements may be written.
template <class X, std::size_t Rank>
concept output_like =
    tensor_like<X, Rank> && requires(X& x) { requires !std::is_const_v<typename decltype(as_view(x))::element_type>; };

}  // namespace headwave
