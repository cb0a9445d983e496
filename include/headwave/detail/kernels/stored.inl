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

/// count elements, stride apart, as vecs of T, step apart, the last one filled up with zeros.
template <class T, class Stored>
void read_elements(T* out, index step, const Stored* p, index stride, index count, T factor) {
  constexpr index lanes = vec<T>::lanes;
  for (index c = 0; c < count; c += lanes) {
    const Stored* source = p + c * stride;
    Stored few[static_cast<std::size_t>(lanes)];
    if (stride != 1 || count - c < lanes) {
      __builtin_memset(static_cast<void*>(few), 0, sizeof(few));
      for (index i = 0; i < smaller(count - c, lanes); ++i) {
        few[i] = source[i * stride];
      }
      source = few;
    }
    if constexpr (sizeof(Stored) == sizeof(T)) {
      store(out, load(source));
    } else if constexpr (sizeof(Stored) == 1) {
      store(out, multiply(load_converted(source), broadcast(factor)));
    } else {
      store(out, load_converted(source));
    }
    out += step;
  }
}
template <class T, class Stored>
void write_elements(Stored* p, index stride, const T* row, index count) {
  constexpr index lanes = vec<T>::lanes;
  for (index c = 0; c < count; c += lanes) {
    Stored few[static_cast<std::size_t>(lanes)];
    const bool whole = stride == 1 && count - c >= lanes;
    Stored* const target = whole ? p + c : few;
    if constexpr (sizeof(Stored) == sizeof(T)) {
      store(target, load(row + c));
    } else {
      store_converted(target, load(row + c));
    }
    for (index i = 0; !whole && i < smaller(count - c, lanes); ++i) {
      p[(c + i) * stride] = few[i];
    }
  }
}

/// The channels channel .. channel + count-1 of a row as vecs of T, step apart, the last one filled up with zeros.
template <class T>
void read_row(T* out, index step, const stored4<const void>& x, const stored_row<T>& row, index channel, index count) {
  const index place = channel * x.channel;
  if constexpr (sizeof(T) == sizeof(float)) {
    switch (x.format) {
      case element_format::bfloat16:
        return read_elements(out, step, reinterpret_cast<const bfloat16*>(row.data) + place, x.channel, count, T(1));
      case element_format::float16:
        return read_elements(out, step, reinterpret_cast<const float16*>(row.data) + place, x.channel, count, T(1));
      case element_format::int8:
        return read_elements(out, step, reinterpret_cast<const std::int8_t*>(row.data) + place, x.channel, count,
                             row.factor);
      case element_format::own:
        break;
    }
  }
  read_elements(out, step, reinterpret_cast<const T*>(row.data) + place, x.channel, count, T(1));
}
/// Writes a row of count channels, which may be read in whole vecs.
template <class T>
void write_row(const stored4<void>& x, void* out, const T* row, index count) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (x.format == element_format::bfloat16) {
      return write_elements(static_cast<bfloat16*>(out), x.channel, row, count);
    }
    if (x.format == element_format::float16) {
      return write_elements(static_cast<float16*>(out), x.channel, row, count);
    }
  }
  write_elements(static_cast<T*>(out), x.channel, row, count);
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

/// The rows of one head, the usual ones by the shortest way: their place and length are copies, since what stands
/// behind a reference is read again after each store.
template <class T>
struct head_rows {
  const stored_rows& x;
  index batch, head;
  const T* plain;
  index length;

  HEADWAVE_INLINE head_rows(const stored_rows& rows, index b, index h)
      : x(rows),
        batch(b),
        head(h),
        plain(is_plain<T>(rows) ? static_cast<const T*>(rows.data) + b * rows.batch + h * rows.head : nullptr),
        length(rows.length) {}
  HEADWAVE_INLINE stored_row<T> operator[](index row) const {
    return plain ? stored_row<T>{bytes_of(plain + row * length), T(1)} : row_at<T>(x, batch, head, row);
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

/// Fetches keys or values that are wanted later, a row of one head at a time: in the order of memory, or, where they
/// are not wanted before the last one is there, from several places of it in turn, which is read faster than one. Where
/// a page or a ring ends, the wrong lines are fetched, which changes no result.
struct rows_ahead {
  const unsigned char* at;
  index places, place_step, inner_count, inner_step, outer_step, lines, line_step, left;
  index place = 0, inner = 0, due = 0;
  index loops = 1;  ///< so many loops over the same keys share the fetching

  HEADWAVE_INLINE void fetch_row() {
    if (left > 0) {
      const unsigned char* line = at;
      HEADWAVE_UNROLL_FOUR
      for (index i = 0; i < lines; ++i) {
        __builtin_prefetch(line, 0, 2);
        line += line_step;
      }
      --left;
      at += place_step;
      if (++place == places) {
        place = 0;
        at += inner_step;
        if (++inner == inner_count) {
          inner = 0;
          at += outer_step;
        }
      }
    }
  }
  /// In one of so many steps that are to fetch so many rows together: many lines at once would have to wait.
  HEADWAVE_INLINE void fetch_share(index rows, index steps) {
    for (due += rows; due >= steps; due -= steps) {
      fetch_row();
    }
  }
};
/// Those of heads heads from head on, rows first .. last-1, of which there may be none, from at most so many places.
template <class T>
HEADWAVE_INLINE rows_ahead rows_to_fetch(const stored_rows& x, index batch, index head, index heads, index width,
                                         index first, index last, index places) {
  const index count = first < last ? last - first : 0, size = element_size<T>(x.format);
  const index head_step = x.head * size, row_step = x.length * size, stride = x.channel < 0 ? -x.channel : x.channel;
  // Either the heads of a key or the keys of a head lie side by side.
  const bool heads_inside = head_step < row_step;
  const index inner_count = heads_inside ? heads : count, outer_count = heads_inside ? count : heads;
  const index inner_step = heads_inside ? head_step : row_step, outer_step = heads_inside ? row_step : head_step;
  while (outer_count % places != 0) {
    places /= 2;
  }
  const index place_step = outer_count / places * outer_step;
  return {.at = row_at<T>(x, batch, head, count > 0 ? first : 0).data,
          .places = places,
          .place_step = place_step,
          .inner_count = inner_count,
          .inner_step = inner_step - places * place_step,
          .outer_step = outer_step - inner_count * inner_step,
          .lines = (width * size + 63) / 64,
          .line_step = stride * 64,
          .left = count * heads};
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
