// SPDX-License-Identifier: MIT
// The one register kernel, and the product of a matrix with packed panels. Compiled once per tier; see
// detail/tiers.hpp.
//
// A packed matrix B[depth x columns] is cut into panels of one vec of columns each: panel p holds, for k = 0 ..
// depth-1, the row B[k][p*lanes .. p*lanes + lanes-1]; the last panel is padded with zeros.
//
// A tile of A lies in one of two ways. For a product with a matrix it is packed [k][row], the order in which the kernel
// reads it: its rows come from the L2 cache, and one stream is fetched ahead of time where six are not. Queries and
// powers stay in the L1 cache and are computed along k, so they are rows, in depth blocks: [block of
// depth_block][row][k], a row being packed_stride long, so that rows do not share cache sets.

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

/// How a tile of A lies: rows row apart, k step apart.
template <index Row, index Step>
struct tile_layout {
  static constexpr index row = Row, step = Step;
};
template <int Rows>
using packed_tile = tile_layout<1, Rows>;
template <class T>
using packed_rows = tile_layout<packed_stride<T>, 1>;

template <class Layout, class T, int Rows, int Panels>
HEADWAVE_INLINE void multiply_step(tile<T, Rows, Panels>& c, const T* a, const T* panel, index panel_stride) {
  vec<T> b[static_cast<std::size_t>(Panels)];
  HEADWAVE_UNROLL
  for (int p = 0; p < Panels; ++p) {
    b[p] = load(panel + p * panel_stride);
  }
  HEADWAVE_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const vec<T> x = broadcast(a[r * Layout::row]);
    HEADWAVE_UNROLL
    for (int p = 0; p < Panels; ++p) {
      c.at[r][p] = multiply_add(x, b[p], c.at[r][p]);
    }
  }
}

/// What a loop fetches while it computes: by default nothing.
struct nothing_ahead {
  HEADWAVE_INLINE void operator()() {}
};

/// c[r][p] += sum over k = 0 .. depth-1 of a[r][k] * panel p's row k, within one depth block of A. The rows of a panel
/// lie panel_step apart; ahead() is called for each of them. Each element is one chain of FMAs in the order of k, so
/// its bits do not depend on Rows, Panels or its neighbours.
template <class Layout, class T, int Rows, int Panels, class Ahead = nothing_ahead>
HEADWAVE_INLINE void multiply_tile(tile<T, Rows, Panels>& c, const T* a, const T* panel, index panel_stride,
                                   index depth, index panel_step = vec<T>::lanes, Ahead ahead = {}) {
  HEADWAVE_UNROLL_FOUR
  for (index k = 0; k < depth; ++k) {
    ahead();
    multiply_step<Layout>(c, a, panel, panel_stride);
    a += Layout::step;
    panel += panel_step;
  }
}

/// The same for any depth, where A's depth blocks lie block_stride apart: the sum, in order, of the sums over sum_block
/// elements of k, each of which starts at zero. The error of one long chain would grow with its length.
template <class Layout, class T, int Rows, int Panels>
HEADWAVE_INLINE void multiply_blocks(tile<T, Rows, Panels>& c, const T* a, index block_stride, const T* panel,
                                     index panel_stride, index depth) {
  clear(c);
  for (index first = 0; first < depth; first += sum_block) {
    tile<T, Rows, Panels> sum;
    clear(sum);
    multiply_tile<Layout>(sum, a + first / depth_block * block_stride + first % depth_block * Layout::step,
                          panel + first * vec<T>::lanes, panel_stride, smaller(depth - first, sum_block));
    HEADWAVE_UNROLL
    for (int r = 0; r < Rows; ++r) {
      HEADWAVE_UNROLL
      for (int p = 0; p < Panels; ++p) {
        c.at[r][p] = first == 0 ? sum.at[r][p] : add(c.at[r][p], sum.at[r][p]);
      }
    }
  }
}

/// How many panels a tile of so many rows takes at a time: a chain of FMAs waits for its last one, so there must be
/// tile_chains of them.
template <int Rows>
inline constexpr int panels_of = Rows * tile_panels < tile_chains ? tile_chains / Rows : tile_panels;

/// Calls step.template multiply<Rows, Panels>(i) for the panels i = first .. last-1, panels_of<Rows> at a time as long
/// as there are so many.
template <int Rows, class Step>
HEADWAVE_INLINE void with_panels(const Step& step, index first, index last) {
  for (; first + panels_of<Rows> <= last; first += panels_of<Rows>) {
    step.template multiply<Rows, panels_of<Rows>>(first);
  }
  if constexpr (panels_of<Rows> > 1) {
    for (; first < last; ++first) {
      step.template multiply<Rows, 1>(first);
    }
  }
}

/// Calls step.template run<Rows>() for the Rows = count, 1 <= count <= Rows: a run-time count of rows made a
/// compile-time one.
template <int Rows = tile_rows, class Step>
HEADWAVE_INLINE void with_rows(int count, const Step& step) {
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

/// Packs a tile of A.
template <class T>
struct pack_step {
  T* packed;
  const T* a;
  index row_stride, column_stride, depth;

  template <int Rows>
  HEADWAVE_INLINE void run() const {
    T* target = packed;
    const T* source = a;
    for (index k = 0; k < depth; ++k) {
      HEADWAVE_UNROLL
      for (int r = 0; r < Rows; ++r) {
        target[r] = source[r * row_stride];
      }
      target += Rows;
      source += column_stride;
    }
  }
};

/// One tile of C = A B + bias: Rows rows against the panels first_panel .. last_panel-1.
template <class T>
struct product_step {
  const gemm_arguments<T>& product;
  const T* a;
  index first_row;
  index first_panel, last_panel;

  template <int Rows, int Panels>
  HEADWAVE_INLINE void multiply(index panel) const {
    constexpr index lanes = vec<T>::lanes;
    const index panel_size = product.depth * lanes;
    const T* const panels = product.panels + panel * panel_size;
    tile<T, Rows, Panels> c;
    multiply_blocks<packed_tile<Rows>>(c, a, depth_block * Rows, panels, panel_size, product.depth);
    HEADWAVE_UNROLL
    for (int p = 0; p < Panels; ++p) {
      const index column = (panel + p) * lanes;
      const vec<T> bias = product.bias ? load(product.bias + column) : broadcast(T(0));
      HEADWAVE_UNROLL
      for (int r = 0; r < Rows; ++r) {
        store_first(product.c + (first_row + r) * product.c_row_stride + column * product.c_column_stride,
                    product.c_column_stride, product.bias ? add(c.at[r][p], bias) : c.at[r][p],
                    product.columns - column);
      }
    }
  }

  template <int Rows>
  void run() const {
    with_panels<Rows>(*this, first_panel, last_panel);
  }
};

/// C[rows x columns] = A[rows x depth] B + bias, B packed in panels and bias padded to whole panels.
///
/// A block of rows is packed first and stays in the L2 cache; each group of panels is read once per block and
/// multiplies all of its tiles. workspace: gemm_workspace() elements.
template <class T>
void gemm(const gemm_arguments<T>& product, T* workspace) {
  const index panels = (product.columns + vec<T>::lanes - 1) / vec<T>::lanes;
  const index blocks = (product.rows + gemm_block_rows(product) - 1) / gemm_block_rows(product);
  for (index block = 0; block < blocks; ++block) {
    const index first_row = block * product.rows / blocks;
    const index rows = (block + 1) * product.rows / blocks - first_row;
    const index tiles = tile_count(rows);
    for (index t = 0; t < tiles; ++t) {
      const index first = t * rows / tiles;
      const pack_step<T> step{workspace + first * product.depth, product.a + (first_row + first) * product.a_row_stride,
                              product.a_row_stride, product.a_column_stride, product.depth};
      with_rows(balanced_rows(rows, tiles, t), step);
    }
    // A single tile goes through all panels by itself.
    const index group = tiles == 1 ? panels : tile_panels;
    for (index panel = 0; panel < panels; panel += group) {
      for (index t = 0; t < tiles; ++t) {
        const index first = t * rows / tiles;
        const product_step<T> step{product, workspace + first * product.depth, first_row + first, panel,
                                   smaller(panel + group, panels)};
        with_rows(balanced_rows(rows, tiles, t), step);
      }
    }
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
