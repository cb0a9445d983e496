// SPDX-License-Identifier: MIT
// Queries as packed rows, keys and values of one head as panels. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// Packs count channels of a row, times factor, so that its depth blocks lie block_stride apart.
template <class T>
void pack_row(T* packed, index block_stride, const stored4<const void>& x, const stored_row<T>& row, index count,
              T factor) {
  constexpr index lanes = vec<T>::lanes;
  const vec<T> factors = broadcast(factor);
  const T* const plain = reinterpret_cast<const T*>(row.data);
  const index whole = whole_vecs<T>(x, count);
  for (index block = 0; block < count; block += depth_block) {
    const index last = smaller(count, block + depth_block), last_plain = smaller(last, whole);
    if (last_plain < last) {
      const index first = larger(block, last_plain);
      read_row(packed + first - block, lanes, x, row, first, last - first);
    }
    for (index c = block; c < last; c += lanes) {
      store(packed + c - block, multiply(load(c < last_plain ? plain + c : packed + c - block), factors));
    }
    packed += block_stride;
  }
}

/// Keys as panels [group of keys][channel][key], the first of which begins at key base; keys of a group that are not in
/// the range are zero, and are not read. Fetches as many rows ahead.
template <class T>
void pack_head_keys(T* panels, const head_rows<T>& rows, index width, key_range range, index base, rows_ahead& ahead) {
  constexpr index lanes = vec<T>::lanes, staged_channels = 4 * lanes, staged_stride = staged_channels + lanes / 2;
  const bool direct = rows.plain && rows.x.channel == 1 && width % lanes == 0;
  for (index first = range.first - range.first % lanes; first < range.last; first += lanes) {
    T* const panel = panels + (first - base) * width;
    if (direct && first >= range.first && first + lanes <= range.last) {
      for (index channel = 0; channel < width; channel += lanes) {
        ahead.fetch_share(lanes, ahead.loops * (width / lanes));
        transpose(panel + channel * lanes, rows.plain + first * rows.x.length + channel, rows.x.length);
      }
      continue;
    }
    for (index channel = 0; channel < width; channel += staged_channels) {
      // Keys often lie a multiple of a page apart, in one set of the cache. So each line is read once, in order.
      T staged[static_cast<std::size_t>(lanes * staged_stride)];
      const index channels = smaller(width - channel, staged_channels);
      for (index lane = 0; lane < lanes; ++lane) {
        const index key = first + lane;
        const bool present = key >= range.first && key < range.last;
        const stored_row<T> row = rows[present ? key : range.first];
        if (channel == 0) {
          ahead.fetch_share(1, ahead.loops);
        }
        T* const target = staged + lane * staged_stride;
        if (present) {
          read_row(target, lanes, rows.x, row, channel, channels);
        }
        for (index c = 0; !present && c < channels; c += lanes) {
          store(target + c, broadcast(T(0)));
        }
      }
      for (index c = 0; c < channels; c += lanes) {
        if (channels - c >= lanes) {
          transpose(panel + (channel + c) * lanes, staged + c, staged_stride);
        } else {
          T turned[static_cast<std::size_t>(lanes * lanes)];
          transpose(turned, staged + c, staged_stride);
          for (index i = 0; i < channels - c; ++i) {
            store(panel + (channel + c + i) * lanes, load(turned + i * lanes));
          }
        }
      }
    }
  }
}

/// Values as panels [group of channels][key][channel], the first key being base. Returns whether all of them are
/// finite.
template <class T>
bool pack_head_values(T* panels, head_rows<T> rows, index width, key_range range, index base) {
  constexpr index lanes = vec<T>::lanes;
  const index whole = whole_vecs<T>(rows.x, width), stride = rows.x.channel;
  const element_format format = rows.x.format;
  bool finite = true;
  for (index key = range.first; key < range.last; ++key) {
    const stored_row<T> row = rows[key];
    fetch<0, T>(rows[smaller(key + fetch_distance, range.last - 1)].data, format, stride, width);
    T* const target = panels + (key - base) * lanes;
    for (index c = 0; c < whole; c += lanes) {
      const vec<T> chunk = load(reinterpret_cast<const T*>(row.data) + c);
      finite = finite && all_finite(chunk);
      store(target + c * key_block, chunk);
    }
    if (whole < width) {
      read_row(target + whole * key_block, key_block * lanes, rows.x, row, whole, width - whole);
      for (index c = whole; c < width; c += lanes) {
        finite = finite && all_finite(load(target + c * key_block));
      }
    }
  }
  return finite;
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
