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

/// c[r][p] += sum over k = 0 .. depth-1 of a[r][k] * panel p's row k, within one depth block of A. The rows of a panel
/// lie panel_step apart. Each element is one chain of FMAs in the order of k, so its bits do not depend on Rows, Panels
/// or its neighbours.
template <class Layout, class T, int Rows, int Panels>
HEADWAVE_INLINE void multiply_tile(tile<T, Rows, Panels>& c, const T* a, const T* panel, index panel_stride,
                                   index depth, index panel_step = vec<T>::lanes) {
  HEADWAVE_UNROLL_FOUR
  for (index k = 0; k < depth; ++k) {
    multiply_step<Layout>(c, a, panel, panel_stride);
    a += Layout::step;
    panel += panel_step;
  }
}

/// The same in parts of Before::depth elements of k, before each of which before() does something else: it fetches what
/// is wanted later, of which the processor takes only so much at once.
template <class Layout, class T, int Rows, int Panels, class Before>
HEADWAVE_INLINE void multiply_parts(tile<T, Rows, Panels>& c, const T* a, const T* panel, index panel_stride,
                                    index depth, index panel_step, const Before& before) {
  for (index k = 0; k < depth; k += Before::depth) {
    before();
    multiply_tile<Layout>(c, a + k * Layout::step, panel + k * panel_step, panel_stride,
                          smaller(depth - k, Before::depth), panel_step);
  }
}

struct nothing_before {
  static constexpr index depth = sum_block;
  HEADWAVE_INLINE void operator()() const {}
};

/// The same for any depth, where A's depth blocks lie block_stride apart: the sum, in order, of the sums over sum_block
/// elements of k, each of which starts at zero. The error of one long chain would grow with its length.
template <class Layout, class T, int Rows, int Panels, class Before = nothing_before>
HEADWAVE_INLINE void multiply_blocks(tile<T, Rows, Panels>& c, const T* a, index block_stride, const T* panel,
                                     index panel_stride, index depth, const Before& before = {}) {
  clear(c);
  for (index first = 0; first < depth; first += sum_block) {
    tile<T, Rows, Panels> sum;
    clear(sum);
    multiply_parts<Layout>(sum, a + first / depth_block * block_stride + first % depth_block * Layout::step,
                           panel + first * vec<T>::lanes, panel_stride, smaller(depth - first, sum_block),
                           vec<T>::lanes, before);
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

/// Tiles are 1 to 6, 8 or 12 rows high, at most tile_rows. The largest of these heights that so many rows fill.
HEADWAVE_INLINE constexpr int filled_height(index rows) {
  return rows >= 12 ? 12 : rows >= 8 ? 8 : rows >= 6 ? 6 : static_cast<int>(rows);
}

/// Calls step.template run<Rows>() for the lowest height Rows that count rows fit under, 1 <= count <= tile_rows: a
/// run-time count made a compile-time one. Fewer heights than counts, because each of them is compiled.
template <int Rows = tile_rows, class Step>
HEADWAVE_INLINE void with_rows(int count, const Step& step) {
  if constexpr (Rows == 1) {
    step.template run<1>();
  } else {
    constexpr int lower = filled_height(Rows - 1);
    if (count > lower) {
      step.template run<Rows>();
    } else {
      with_rows<lower>(count, step);
    }
  }
}

/// Of so many rows, those in the tile that begins at row first. The last two tiles share their rows where the last one
/// would be low. No tile but the last is higher than its rows: packed tiles lie one behind the other.
HEADWAVE_INLINE int rows_of_tile(index rows, index first) {
  const index left = rows - first;
  if (left > tile_rows) {
    return left < tile_rows + tile_rows / 2 ? filled_height((left + 1) / 2) : tile_rows;
  }
  return static_cast<int>(left);
}

/// count: a multiple of lanes.
template <class T>
HEADWAVE_INLINE void clear_elements(T* p, index count) {
  for (index i = 0; i < count; i += vec<T>::lanes) {
    store(p + i, broadcast(T(0)));
  }
}

/// Copies count elements. Not inlined, as load_first and store_first stand in many places.
template <class T>
HEADWAVE_NOINLINE void copy_elements(T* to, index to_stride, const T* from, index from_stride, index count) {
  for (index i = 0; i < count; ++i) {
    to[i * to_stride] = from[i * from_stride];
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
  copy_elements(p, stride, lanes, 1, smaller(count, vec<T>::lanes));
}

/// Reads count elements, zeros for the rest; stride is the distance of neighbouring elements.
template <class T>
HEADWAVE_INLINE vec<T> load_first(const T* p, index stride, index count) {
  if (count >= vec<T>::lanes && stride == 1) {
    return load(p);
  }
  T lanes[64 / sizeof(T)];
  store(lanes, broadcast(T(0)));
  copy_elements(lanes, 1, p, stride, smaller(count, vec<T>::lanes));
  return load(lanes);
}

/// Packs a tile of A; rows that do not exist repeat the last one.
template <class T>
struct pack_step {
  T* packed;
  const T* a;
  index row_stride, column_stride, depth;
  int rows;

  template <int Rows>
  void run() const {
    const T* row[static_cast<std::size_t>(Rows)];
    for (int r = 0; r < Rows; ++r) {
      row[r] = a + (r < rows ? r : rows - 1) * row_stride;
    }
    T* target = packed;
    for (index k = 0; k < depth; ++k) {
      HEADWAVE_UNROLL
      for (int r = 0; r < Rows; ++r) {
        target[r] = row[r][k * column_stride];
      }
      target += Rows;
    }
  }
};

/// One tile of C = A B + bias: its rows against the panels first_panel .. last_panel-1.
template <class T>
struct product_step {
  const gemm_arguments<T>& product;
  const T* a;
  index first_row;
  int rows;
  index first_panel, last_panel;

  template <int Rows, int Panels>
  HEADWAVE_INLINE void multiply(index panel) const {
    constexpr index lanes = vec<T>::lanes;
    const index panel_size = product.depth * lanes;
    const T* const panels = product.panels + panel * panel_size;
    tile<T, Rows, Panels> c;
    multiply_blocks<packed_tile<Rows>>(c, a, depth_block * Rows, panels, panel_size, product.depth);
    T* const out = product.c + first_row * product.c_row_stride + panel * lanes * product.c_column_stride;
    const bool whole = product.c_column_stride == 1 && (panel + Panels) * lanes <= product.columns;
    T results[static_cast<std::size_t>(Rows * Panels * lanes)];
    HEADWAVE_UNROLL
    for (int p = 0; p < Panels; ++p) {
      const vec<T> bias = product.bias ? load(product.bias + (panel + p) * lanes) : broadcast(T(0));
      HEADWAVE_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const vec<T> result = product.bias ? add(c.at[r][p], bias) : c.at[r][p];
        if (whole) {
          // Rows that do not exist repeat the last one, here too.
          store(out + (r < rows ? r : rows - 1) * product.c_row_stride + p * lanes, result);
        } else {
          store(results + (r * Panels + p) * lanes, result);
        }
      }
    }
    if (!whole) {
      for (int r = 0; r < rows; ++r) {
        copy_elements(out + r * product.c_row_stride, product.c_column_stride, results + r * Panels * lanes, 1,
                      smaller(Panels * lanes, product.columns - panel * lanes));
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
    const index first_row = first_of_part(product.rows, blocks, block);
    const index rows = first_of_part(product.rows, blocks, block + 1) - first_row;
    int count = 0;
    for (index first = 0; first < rows; first += count) {
      count = rows_of_tile(rows, first);
      const pack_step<T> step{workspace + first * product.depth,
                              product.a + (first_row + first) * product.a_row_stride,
                              product.a_row_stride,
                              product.a_column_stride,
                              product.depth,
                              count};
      with_rows(count, step);
    }
    // A single tile goes through all panels by itself.
    const index group = rows <= tile_rows ? panels : tile_panels;
    for (index panel = 0; panel < panels; panel += group) {
      for (index first = 0; first < rows; first += count) {
        count = rows_of_tile(rows, first);
        const product_step<T> step{product, workspace + first * product.depth, first_row + first, count,
                                   panel,   smaller(panel + group, panels)};
        with_rows(count, step);
      }
    }
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
