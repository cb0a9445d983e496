// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/numeric.hpp>
#include <headwave/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace support {

namespace hw = headwave;

/// What a cache that stores a row as Stored gives back: the row's own rounding, worked out apart from the library's.
template <class Stored, class T>
hw::tensor<T, 4> stored_and_read(const hw::tensor<T, 4>& x) {
  hw::tensor<T, 4> result(x.extents());
  const std::size_t width = x.extent(3);
  for (std::size_t row = 0; row < x.size() / (std::max<std::size_t>)(width, 1); ++row) {
    const T* const source = x.data() + row * width;
    T* const target = result.data() + row * width;
    T largest = 0;
    for (std::size_t c = 0; c < width; ++c) {
      largest = (std::max)(largest, std::fabs(source[c]));
    }
    for (std::size_t c = 0; c < width; ++c) {
      if constexpr (std::is_same_v<Stored, std::int8_t>) {
        const T inverse = largest > 0 ? 127 / largest : T(0);
        target[c] = std::round(source[c] * inverse) * (largest / 127);
      } else {
        target[c] = static_cast<T>(static_cast<Stored>(source[c]));
      }
    }
  }
  return result;
}

}  // namespace support
