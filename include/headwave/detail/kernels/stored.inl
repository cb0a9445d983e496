// SPDX-License-Identifier: MIT
// Reading and writing rows that may be stored in fewer bits, in pages or in a ring. Compiled once per tier; see
// detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// A row: where it begins, and what its elements are multiplied by when they are read.
template <class T>
struct stored_row {
  const unsigned char* data;
  T factor;
};

HEADWAVE_INLINE const unsigned char* bytes_of(const void* data) {
  return static_cast<const unsigned char*>(data);
}

template <class T>
HEADWAVE_INLINE stored_row<T> row_at(const stored4<const void>& x, index batch, index head, index row) {
  return {bytes_of(x.data) + (batch * x.batch + head * x.head + row * x.length) * element_size<T>(x.format), T(1)};
}

template <class T>
HEADWAVE_INLINE stored_row<T> row_at(const stored_rows& x, index batch, index head, index row) {
  index place = batch * x.batch + head * x.head, scale = batch * x.scale_batch + head * x.scale_head;
  if (x.pages) {
    const index page = x.pages[batch * x.pages_batch + row / x.page_size * x.pages_step], rest = row % x.page_size;
    place += page * x.page_stride + rest * x.length;
    scale += page * x.scale_page + rest * x.scale_length;
  } else {
    const index rest = x.ring ? row % x.ring : row;
    place += rest * x.length;
    scale += rest * x.scale_length;
  }
  return {bytes_of(x.data) + place * element_size<T>(x.format), x.scales ? static_cast<T>(x.scales[scale]) : T(1)};
}

/// count elements that lie stride apart as floats, zeros for the rest.
template <class Stored>
HEADWAVE_INLINE vec<float> load_widened(const Stored* p, index stride, index count) {
  constexpr index lanes = vec<float>::lanes;
  if (count >= lanes && stride == 1) {
    return load_converted(p);
  }
  Stored few[static_cast<std::size_t>(lanes)];
  __builtin_memset(static_cast<void*>(few), 0, sizeof(few));
  for (index i = 0; i < count && i < lanes; ++i) {
    few[i] = p[i * stride];
  }
  return load_converted(few);
}
template <class Stored>
HEADWAVE_INLINE void store_narrowed(Stored* p, index stride, vec<float> v, index count) {
  constexpr index lanes = vec<float>::lanes;
  if (count >= lanes && stride == 1) {
    store_converted(p, v);
    return;
  }
  Stored few[static_cast<std::size_t>(lanes)];
  store_converted(few, v);
  for (index i = 0; i < count && i < lanes; ++i) {
    p[i * stride] = few[i];
  }
}

/// The channels channel .. channel + count-1 of a row, zeros for the rest of a vec.
template <class T>
HEADWAVE_INLINE vec<T> load_stored(const stored4<const void>& x, const stored_row<T>& row, index channel, index count) {
  const index place = channel * x.channel;
  if constexpr (sizeof(T) == sizeof(float)) {
    switch (x.format) {
      case element_format::bfloat16:
        return load_widened(reinterpret_cast<const bfloat16*>(row.data) + place, x.channel, count);
      case element_format::float16:
        return load_widened(reinterpret_cast<const float16*>(row.data) + place, x.channel, count);
      case element_format::int8:
        return multiply(load_widened(reinterpret_cast<const std::int8_t*>(row.data) + place, x.channel, count),
                        broadcast(row.factor));
      case element_format::own:
        break;
    }
  }
  return load_first(reinterpret_cast<const T*>(row.data) + place, x.channel, count);
}
template <class T>
HEADWAVE_INLINE void store_stored(const stored4<void>& x, void* row, index channel, vec<T> v, index count) {
  const index place = channel * x.channel;
  if constexpr (sizeof(T) == sizeof(float)) {
    if (x.format == element_format::bfloat16) {
      store_narrowed(static_cast<bfloat16*>(row) + place, x.channel, v, count);
      return;
    }
    if (x.format == element_format::float16) {
      store_narrowed(static_cast<float16*>(row) + place, x.channel, v, count);
      return;
    }
  }
  store_first(static_cast<T*>(row) + place, x.channel, v, count);
}

/// So many of the first count channels of a row can be read or written as whole vecs of T, where they are.
template <class T, class Data>
HEADWAVE_INLINE index whole_vecs(const stored4<Data>& x, index count) {
  return x.format == element_format::own && x.channel == 1 ? count - count % vec<T>::lanes : 0;
}

/// Whether rows can be read where they are, as T, without padding.
template <class T>
HEADWAVE_INLINE bool is_plain(const stored_rows& x) {
  return x.format == element_format::own && !x.pages && !x.ring;
}

/// The rows of one head, the usual ones by the shortest way.
template <class T>
struct head_rows {
  const stored_rows& x;
  index batch, head;
  const T* plain;

  HEADWAVE_INLINE head_rows(const stored_rows& rows, index b, index h)
      : x(rows),
        batch(b),
        head(h),
        plain(is_plain<T>(rows) ? static_cast<const T*>(rows.data) + b * rows.batch + h * rows.head : nullptr) {}
  HEADWAVE_INLINE stored_row<T> operator[](index row) const {
    return plain ? stored_row<T>{bytes_of(plain + row * x.length), T(1)} : row_at<T>(x, batch, head, row);
  }
};

/// Rows of queries, keys, values and outputs lie far apart, where no hardware looks ahead: so many rows before they are
/// wanted, they are fetched into the cache, to be read (0) or written (1).
inline constexpr index fetch_distance = 8;
template <int ForWriting, class T>
HEADWAVE_INLINE void fetch(const void* row, element_format format, index stride, index count) {
  const index size = element_size<T>(format), line = stride * 64;
  const unsigned char* at = bytes_of(row);
  for (index i = 0; i < count * size; i += 64) {
    __builtin_prefetch(at, ForWriting, 2);
    at += line;
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
