// SPDX-License-Identifier: MIT
// The one register kernel, and the product of a matrix with packed panels. Compiled once per tier; see
// detail/tiers.hpp.
//
// A packed matrix B[depth x columns] is cut into panels of one vec of columns each: panel p holds, for k = 0 ..
// depth-1, the row B[k][p*lanes .. p*lanes + lanes-1]; the last panel is padded with zeros.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

template <class T, int Rows, int Panels>
struct tile {
  vec<T> at[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(Panels)];
};

template <class T, int Rows, int Panels>
HEADWAVE_INLINE void clear(tile<T, Rows, Panels>& c) {
  const vec<T> zero = broadcast(T(0));
  HEADWAVE_UNROLL
  for (int r = 0; r < Rows; ++r) {
    HEADWAVE_UNROLL
    for (int p = 0; p < Panels; ++p) {
      c.at[r][p] = zero;
    }
  }
}

/// c[r][p] += sum over k = 0 .. depth-1 of a[r * RowStride + k * DepthStride] * panel p's row k.
/// Each element is one chain of FMAs in the order of k, so its bits do not depend on Rows, Panels or its neighbours.
template <int RowStride, int DepthStride, class T, int Rows, int Panels>
HEADWAVE_INLINE void multiply_tile(tile<T, Rows, Panels>& c, const T* a, const T* panel, index panel_stride,
                                   index depth) {
  for (index k = 0; k < depth; ++k) {
    vec<T> b[static_cast<std::size_t>(Panels)];
    HEADWAVE_UNROLL
    for (int p = 0; p < Panels; ++p) {
      b[p] = load(panel + p * panel_stride);
    }
    HEADWAVE_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const vec<T> x = broadcast(a[r * RowStride]);
      HEADWAVE_UNROLL
      for (int p = 0; p < Panels; ++p) {
        c.at[r][p] = multiply_add(x, b[p], c.at[r][p]);
      }
    }
    a += DepthStride;
    panel += vec<T>::lanes;
  }
}

/// Calls step.template run<Rows>() for the Rows = count, 1 <= count <= Rows: a run-time count of rows made a
/// compile-time one.
template <int Rows = tile_rows, class Step>
HEADWAVE_INLINE void with_rows(int count, Step& step) {
  if constexpr (Rows == 1) {
    step.template run<1>();
  } else {
    if (count == Rows) {
      step.template run<Rows>();
    } else {
      with_rows<Rows - 1>(count, step);
    }
  }
}

/// Cuts rows into tiles of at most tile_rows whose sizes differ by one at most: the size of tile number t.
HEADWAVE_INLINE int balanced_rows(index rows, index tiles, index t) {
  return static_cast<int>((t + 1) * rows / tiles - t * rows / tiles);
}
HEADWAVE_INLINE index tile_count(index rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

/// Rows of a strided matrix as [k][row]: what a tile reads in order.
template <class T>
void pack_rows(T* packed, const T* a, index row_stride, index column_stride, int rows, index depth) {
  for (int r = 0; r < rows; ++r) {
    const T* source = a + r * row_stride;
    for (index k = 0; k < depth; ++k) {
      packed[k * rows + r] = source[k * column_stride];
    }
  }
}

/// Writes the first count lanes; stride is the distance of neighbouring elements.
template <class T>
HEADWAVE_INLINE void store_first(T* p, index stride, vec<T> v, index count) {
  if (count >= vec<T>::lanes && stride == 1) {
    store(p, v);
    return;
  }
  T lanes[64 / sizeof(T)];
  store(lanes, v);
  for (index i = 0; i < count && i < vec<T>::lanes; ++i) {
    p[i * stride] = lanes[i];
  }
}

/// Reads count elements, zeros for the rest; stride is the distance of neighbouring elements.
template <class T>
HEADWAVE_INLINE vec<T> load_first(const T* p, index stride, index count) {
  if (count >= vec<T>::lanes && stride == 1) {
    return load(p);
  }
  T lanes[64 / sizeof(T)];
  for (index i = 0; i < vec<T>::lanes; ++i) {
    lanes[i] = i < count ? p[i * stride] : T(0);
  }
  return load(lanes);
}

/// One tile of C = A B + bias: Rows rows against the panels first_panel .. first_panel + Panels - 1.
template <class T, int Panels>
struct product_step {
  const gemm_arguments<T>& product;
  const T* packed_rows;
  index first_row;
  index first_panel;

  template <int Rows>
  void run() const {
    constexpr index lanes = vec<T>::lanes;
    const index panel_size = product.depth * lanes;
    tile<T, Rows, Panels> c;
    clear(c);
    multiply_tile<1, Rows>(c, packed_rows, product.panels + first_panel * panel_size, panel_size, product.depth);
    HEADWAVE_UNROLL
    for (int p = 0; p < Panels; ++p) {
      const index column = (first_panel + p) * lanes;
      const vec<T> bias = product.bias ? load(product.bias + column) : broadcast(T(0));
      HEADWAVE_UNROLL
      for (int r = 0; r < Rows; ++r) {
        store_first(product.c + (first_row + r) * product.c_row_stride + column * product.c_column_stride,
                    product.c_column_stride, product.bias ? add(c.at[r][p], bias) : c.at[r][p],
                    product.columns - column);
      }
    }
  }
};

/// C[rows x columns] = A[rows x depth] B + bias, B packed in panels and bias padded to whole panels.
///
/// A block of rows is packed first and stays in the L2 cache; each group of panels is read once per block and
/// multiplies all of its tiles. workspace: gemm_workspace() elements.
template <class T>
void gemm(const gemm_arguments<T>& product, T* workspace) {
  const index panels = (product.columns + vec<T>::lanes - 1) / vec<T>::lanes;
  for (index block = 0; block < product.rows; block += gemm_row_block) {
    const index rows = product.rows - block < gemm_row_block ? product.rows - block : gemm_row_block;
    const index tiles = tile_count(rows);
    for (index t = 0; t < tiles; ++t) {
      const index first = t * rows / tiles;
      pack_rows(workspace + first * product.depth, product.a + (block + first) * product.a_row_stride,
                product.a_row_stride, product.a_column_stride, balanced_rows(rows, tiles, t), product.depth);
    }
    for (index panel = 0; panel < panels;) {
      const bool whole = panel + tile_panels <= panels;
      for (index t = 0; t < tiles; ++t) {
        const index first = t * rows / tiles;
        if (whole) {
          product_step<T, tile_panels> step{product, workspace + first * product.depth, block + first, panel};
          with_rows(balanced_rows(rows, tiles, t), step);
        } else {
          product_step<T, 1> step{product, workspace + first * product.depth, block + first, panel};
          with_rows(balanced_rows(rows, tiles, t), step);
        }
      }
      panel += whole ? tile_panels : 1;
    }
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
