// SPDX-License-Identifier: MIT
// A tile of an attention task's rows against a block of keys. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// One tile of rows against the block's keys range.first .. range.last-1.
template <class T>
struct attention_tile {
  static constexpr index lanes = vec<T>::lanes;

  const attention_task<T>& task;
  index first_row;
  int rows;
  key_range range;
  typename attention_task<T>::key_runs runs;
  bool empty;  // nothing has been added to the rows

  template <int Rows, int Panels>
  HEADWAVE_INLINE void score(index key) const {
    task.template score<Rows, Panels>(first_row, 0, key, task.key_panels + (key - task.block_first) * task.a.head_dim);
  }

  /// O += P V for the channels of Panels panels; the block's own sum starts at zero. What is computed for rows that do
  /// not exist is dropped: it comes from whatever lies behind the others.
  template <int Rows, int Panels>
  HEADWAVE_INLINE void accumulate(index channel) const {
    tile<T, Rows, Panels> c;
    clear(c);
    for (index i = 0; i < runs.count; ++i) {
      const index offset = runs.run[i].first - task.block_first;
      multiply_tile<packed_rows<T>>(c, task.scores(0) + offset,
                                    task.value_panels + channel * key_block + offset * lanes, key_block * lanes,
                                    runs.run[i].last - runs.run[i].first);
    }
    HEADWAVE_UNROLL
    for (int r = 0; r < Rows; ++r) {
      HEADWAVE_UNROLL
      for (int p = 0; p < Panels; ++p) {
        T* const o = task.output(first_row + r) + channel + p * lanes;
        if (r < rows) {
          store(o, add(load(o), c.at[r][p]));
        }
      }
    }
  }

  /// The same sum for one row, without the keys it must not see: their values may be infinite or NaN.
  void accumulate_visible(int tile_row) const {
    for (index channel = 0; channel < task.a.value_dim; channel += lanes) {
      vec<T> sum = broadcast(T(0));
      for (index key = range.first - task.block_first; key < range.last - task.block_first; ++key) {
        if (!task.hidden(tile_row)[key]) {
          const vec<T> value = load(task.value_panels + channel * key_block + key * lanes);
          sum = multiply_add(broadcast(task.scores(tile_row)[key]), value, sum);
        }
      }
      T* const o = task.output(first_row + tile_row) + channel;
      store(o, add(load(o), sum));
    }
  }

  template <int Rows>
  void run() const {
    constexpr int panels = panels_of<Rows>;
    const index first = range.first - range.first % lanes, last = round_up(range.last, lanes);
    if (task.a.rule.sees) {
      task.hide_scores(rows, first, last);
    }
    for (index i = 0; i < runs.count; ++i) {
      const index run_last = round_up(runs.run[i].last, lanes);
      index key = runs.run[i].first - runs.run[i].first % lanes;
      for (; key + panels * lanes <= run_last; key += panels * lanes) {
        score<Rows, panels>(key);
      }
      if constexpr (panels > 1) {
        for (; key < run_last; key += lanes) {
          score<Rows, 1>(key);
        }
      }
    }
    take_powers_of_rows(first, last);
    if (!task.values_finite) {
      for (int r = 0; r < rows; ++r) {
        accumulate_visible(r);
      }
      return;
    }
    index channel = 0;
    for (; channel + panels * lanes <= task.parts.value_width; channel += panels * lanes) {
      accumulate<Rows, panels>(channel);
    }
    if constexpr (panels > 1) {
      for (; channel < task.parts.value_width; channel += lanes) {
        accumulate<Rows, 1>(channel);
      }
    }
  }

  /// From products to powers.
  void take_powers_of_rows(index first, index last) const {
    for (int r = 0; r < rows; ++r) {
      task.prepare_scores(first_row + r, r, first, last);
    }
    int r = 0;
    for (; r + interleaved <= rows; r += interleaved) {
      task.template softmax_rows<interleaved>(first_row + r, r, first - task.block_first, last - task.block_first,
                                              empty);
    }
    if constexpr (interleaved > 1) {
      for (; r < rows; ++r) {
        task.template softmax_rows<1>(first_row + r, r, first - task.block_first, last - task.block_first, empty);
      }
    }
    if (task.a.dropout > 0) {
      for (r = 0; r < rows; ++r) {
        task.drop_powers(first_row + r, r, range);
      }
    }
  }
};

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
