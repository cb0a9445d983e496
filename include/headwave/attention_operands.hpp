// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention_options.hpp>
#include <headwave/detail/arguments.hpp>
#include <headwave/numeric.hpp>

/// \file
/// What queries, keys, values and outputs of attention may be: tensors and views of float or double, or of bfloat16 and
/// float16, which are computed with as float; keys and values also lie in the pages of a paged_view.

namespace headwave {

/// Rows of many sequences in pages of a pool, as servers of language models keep keys and values. Row j of sample b
/// lies in page table(b, j / page_size), at place j mod page_size. Both have to outlive the call. Source: Kwon et al.
/// (2023).
template <class T>
struct paged_view {
  tensor_view<const T, 4> pages;             ///< [pages, page_size, kv_heads, head_dim or value_dim]
  tensor_view<const std::int32_t, 2> table;  ///< [batch, pages of a sample]
};

namespace detail {

template <class Element, class T>
inline constexpr bool is_stored_as =
    std::is_same_v<Element, T> ||
    (std::is_same_v<T, float> && (std::is_same_v<Element, bfloat16> || std::is_same_v<Element, float16>));

template <class Element>
HEADWAVE_INLINE constexpr element_format format_of() {
  return std::is_same_v<Element, bfloat16>      ? element_format::bfloat16
         : std::is_same_v<Element, float16>     ? element_format::float16
         : std::is_same_v<Element, std::int8_t> ? element_format::int8
                                                : element_format::own;
}

template <class X>
struct element_of_rows {
  using type = element_of<const X>;
};
template <class Element>
struct element_of_rows<paged_view<Element>> {
  using type = Element;
};

/// Keys or values of a call.
struct attention_rows_view {
  stored_rows rows;
  std::array<std::size_t, 4> extents;          ///< [batch, length, kv_heads, width]
  tensor_view<const std::int32_t, 2> table{};  ///< of pages, which are table_limit
  std::size_t page_limit = 0;
};

}  // namespace detail

/// A tensor, or a view of one, that attention computing in T reads its queries from, [batch, query_length, heads,
/// head_dim].
template <class X, class T>
concept attention_queries = tensor_like<const X, 4> && detail::is_stored_as<element_of<const X>, T>;

/// What attention computing in T writes to.
template <class X, class T>
concept attention_output = output_like<X, 4> && detail::is_stored_as<element_of<X>, T>;

/// A tensor, a view of one or a paged_view that attention computing in T reads keys or values from.
template <class X, class T>
concept attention_keys = (tensor_like<const X, 4> || requires(const X& x) { x.pages, x.table; }) &&
                         detail::is_stored_as<typename detail::element_of_rows<X>::type, T>;

namespace detail::inline HEADWAVE_ABI {

template <class Data, class Element>
stored4<Data> stored(const tensor_view<Element, 4>& x) {
  return {x.data(), x.stride(0), x.stride(2), x.stride(1), x.stride(3), format_of<std::remove_const_t<Element>>()};
}

template <class Element>
attention_rows_view rows_of_keys(const tensor_view<Element, 4>& x) {
  attention_rows_view view{.rows = {}, .extents = x.extents()};
  static_cast<stored4<const void>&>(view.rows) = stored<const void>(x);
  return view;
}
template <class Element, std::size_t Rank>
attention_rows_view rows_of_keys(const tensor<Element, Rank>& x) {
  return rows_of_keys(as_view(x));
}
template <class Element>
attention_rows_view rows_of_keys(const paged_view<Element>& x) {
  attention_rows_view view = rows_of_keys(x.pages);
  const std::size_t page_size = x.pages.extent(1);
  view.rows.page_stride = x.pages.stride(0);
  view.rows.batch = 0;
  view.rows.pages = x.table.data();
  view.rows.pages_batch = x.table.stride(0);
  view.rows.pages_step = x.table.stride(1);
  view.rows.page_size = static_cast<index>(page_size ? page_size : 1);
  view.extents = {x.table.extent(0), checked_product("paged_view", x.table.extent(1), page_size), x.pages.extent(2),
                  x.pages.extent(3)};
  view.table = x.table;
  view.page_limit = x.pages.extent(0);
  return view;
}

/// The operands of a call, and how much of them there is.
struct attention_operands {
  stored4<const void> query;
  attention_rows_view key, value;
  stored4<void> out;
  attention_shape shape;
};

/// The pages that the keys in use lie in exist.
inline void check_pages(const attention_shape& s, const char* name, const attention_rows_view& x,
                        std::span<const std::int64_t> key_lengths) {
  for (std::size_t b = 0; x.table.data() && b < x.table.extent(0); ++b) {
    const std::size_t length = key_lengths.data() ? static_cast<std::size_t>(key_lengths[b]) : x.extents[1];
    const auto page_size = static_cast<std::size_t>(x.rows.page_size);
    for (std::size_t p = 0; p < (length + page_size - 1) / page_size; ++p) {
      const std::int32_t page = x.table(b, p);
      if (page < 0 || static_cast<std::size_t>(page) >= x.page_limit) {
        s.fail_with(std::string(name) + ".table names a page that is not among its pages: " + std::to_string(page));
      }
    }
  }
}

}  // namespace detail::inline HEADWAVE_ABI
}  // namespace headwave
