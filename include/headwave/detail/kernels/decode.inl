// SPDX-License-Identifier: MIT
// Attention of a few rows, whose time is that of reading keys and values once. Compiled once per tier; see
// detail/tiers.hpp.
//
// A task takes some heads and some blocks of keys, and goes through the keys in steps, with all heads in each step: the
// heads of a key lie side by side, and a page of memory is opened once. Blocks are independent but for the softmax
// reference, which a row's largest scores of the blocks before decide. Hence two passes, both of which can be split
// over heads and keys:
//   score_blocks:               final scores of every block, and their maxima
//   multiply_blocks_by_values:  powers, their sums, and the product with V of every block
// and finish, which adds the blocks' sums in order: the very operations of kernels/attention.inl, and the same bits.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

template <class T>
struct decode_task {
  static constexpr index lanes = vec<T>::lanes;
  static constexpr int largest_rows = tile_rows < decode_rows ? tile_rows : static_cast<int>(decode_rows);

  const attention_arguments<T>& a;
  const decode_plan<T>& plan;
  T *shared, *workspace;
  index batch, first_head, heads;

  HEADWAVE_INLINE T* of_head(index h) const { return shared + (batch * a.kv_heads + first_head + h) * plan.head_size; }
  HEADWAVE_INLINE T* scores(index h, index block) const {
    return of_head(h) + plan.scores + (block - plan.first_block) * plan.score_size;
  }
  HEADWAVE_INLINE T* output(index h, index block) const {
    return of_head(h) + plan.outputs + (block - plan.first_block) * plan.output_size;
  }
  HEADWAVE_INLINE T* sums(index h, index block) const {
    return of_head(h) + plan.sums + (block - plan.first_block) * plan.sum_size;
  }
  HEADWAVE_INLINE T& maximum_of(index h, index block, index row) const {
    return of_head(h)[plan.maxima + (block - plan.first_block) * plan.rows + row];
  }

  /// The rows of a head, at a block of keys.
  HEADWAVE_INLINE attention_task<T> head(index h, index block) const {
    return {.a = a,
            .parts = plan.row_parts,
            .workspace = workspace + h * plan.head_parts.size,
            .key_panels = workspace + plan.keys,
            .value_panels = workspace + plan.values,
            .score_rows = scores(h, block),
            .batch = batch,
            .kv_head = first_head + h,
            .group = a.heads / a.kv_heads,
            .first_row = 0,
            .rows = plan.rows,
            .block_first = block * key_block};
  }

  /// The keys of a block that some row sees; the same for every head.
  HEADWAVE_INLINE key_range keys_of_block(key_range all, index block) const {
    return both(all, {block * key_block, (block + 1) * key_block});
  }

  /// Calls step.run<Rows>() for each tile of the rows.
  template <class Step>
  HEADWAVE_INLINE void with_tiles(Step step) const {
    for (int height = 0; step.first_row < plan.rows; step.first_row += height) {
      // There is no memory for rows that do not exist.
      height = filled_height(smaller(plan.rows - step.first_row, largest_rows));
      with_rows<largest_rows>(height, step);
    }
  }

  /// Fetches the keys or values of the next step.
  HEADWAVE_INLINE rows_ahead rows_after(const stored_rows& x, index width, index last, index end) const {
    return rows_to_fetch<T>(x, batch, first_head, heads, width, last, smaller(end, last + decode_step), 4);
  }

  /// Whether masks may let some row of some head see one of the keys.
  bool sees(key_range keys) const {
    const attention_task<T> any = head(0, plan.first_block);
    return any.score_stages().sees({first_head * any.group, (first_head + heads) * any.group}, any.row_of(0),
                                   any.row_of(plan.rows - 1), keys);
  }

  /// Fetches a share of the next step's rows before each part of a product.
  template <index Depth>
  struct fetch_before {
    static constexpr index depth = Depth;
    rows_ahead& ahead;
    index rows, parts;
    HEADWAVE_INLINE void operator()() const { ahead.fetch_share(rows, parts); }
  };

  struct score_step {
    const attention_task<T>& task;
    index key, panels;  // the panels of keys at hand, the first of which holds key
    rows_ahead& ahead;
    index first_row;

    template <int Rows, int Panels>
    HEADWAVE_INLINE void multiply(index panel) const {
      constexpr index depth = 32;
      const index parts = (task.a.head_dim + depth - 1) / depth;
      const fetch_before<depth> before{ahead, Panels * lanes, ahead.loops * parts};
      task.template score<Rows, Panels>(first_row, first_row, key + panel * lanes,
                                        task.key_panels + panel * task.a.head_dim * lanes, before);
    }
    template <int Rows>
    void run() const {
      with_panels<Rows>(*this, 0, panels);
    }
  };

  void score_blocks(index first_block, index last_block) const {
    for (index h = 0; h < heads; ++h) {
      head(h, first_block).place_rows();
      head(h, first_block).pack_queries();
    }
    const key_range all = head(0, first_block).keys_of_rows(0, plan.rows);
    for (index block = first_block; block < last_block; ++block) {
      const key_range range = keys_of_block(all, block);
      if (range.first >= range.last) {
        continue;
      }
      const index start = range.first - range.first % lanes;
      for (index key = start; key < range.last; key += decode_step) {
        const index last = smaller(range.last, key + decode_step);
        const bool seen = sees({larger(range.first, key), last});
        rows_ahead ahead = rows_after(a.key, a.head_dim, last, all.last);
        ahead.loops = 2;  // half while the keys are packed, half while they are multiplied
        for (index h = 0; h < heads; ++h) {
          const attention_task<T> task = head(h, block);
          if (!seen) {
            task.hide_scores(plan.rows, key, last);
            continue;
          }
          task.pack_keys({larger(range.first, key), last}, key, ahead);
          with_tiles(score_step{task, key, (last - key + lanes - 1) / lanes, ahead, 0});
        }
      }
      for (index h = 0; h < heads; ++h) {
        const attention_task<T> task = head(h, block);
        for (index r = 0; r < plan.rows; ++r) {
          task.prepare_scores(r, r, start, round_up(range.last, lanes));
          vec<T> largest = broadcast(lowest_finite<T>());
          for (index key = start; key < range.last; key += lanes) {
            largest = maximum(largest, load(task.scores(r) + key - task.block_first));
          }
          maximum_of(h, block, r) = reduce_maximum(largest);
        }
      }
    }
  }

  /// Goes on with a block's product with V, over a few of its keys.
  struct value_step {
    const attention_task<T>& task;
    T* sum;  // the block's, of row 0
    const T* values;
    index value_stride;  // of two keys
    key_range keys;
    rows_ahead& ahead;
    index first_row;

    template <int Rows, int Panels>
    HEADWAVE_INLINE void multiply(index panel) const {
      const index width = task.parts.value_width, channel = panel * lanes;
      tile<T, Rows, Panels> c;
      T* const s = sum + first_row * width + channel;
      HEADWAVE_UNROLL
      for (int i = 0; i < Rows * Panels; ++i) {
        c.at[i / Panels][i % Panels] = load(s + i / Panels * width + i % Panels * lanes);
      }
      constexpr index depth = decode_step / Panels;
      const fetch_before<depth> before{ahead, depth * Panels, width / lanes};
      multiply_parts<packed_rows<T>>(c, task.scores(first_row) + keys.first - task.block_first, values + channel, lanes,
                                     keys.last - keys.first, value_stride, before);
      HEADWAVE_UNROLL
      for (int i = 0; i < Rows * Panels; ++i) {
        store(s + i / Panels * width + i % Panels * lanes, c.at[i / Panels][i % Panels]);
      }
    }
    template <int Rows>
    void run() const {
      with_panels<Rows>(*this, 0, task.parts.value_width / lanes);
    }
  };

  HEADWAVE_INLINE stored_row<T> value_row(index h, index key) const {
    return row_at<T>(a.value, batch, first_head + h, key);
  }

  /// Values are read where they are if a row is whole vecs, else copied with zeros behind them.
  HEADWAVE_INLINE bool in_place() const {
    return is_plain<T>(a.value) && a.value.channel == 1 && a.value_dim % lanes == 0;
  }
  void copy_values(T* target, index h, key_range keys) const {
    for (index key = keys.first; key < keys.last; ++key) {
      read_row(target, lanes, a.value, value_row(h, key), 0, a.value_dim);
      target += plan.row_parts.value_width;
    }
  }

  void multiply_values(const attention_task<T>& task, index h, T* sum, key_range keys, rows_ahead& ahead) const {
    if (in_place()) {
      const T* const values = reinterpret_cast<const T*>(value_row(h, keys.first).data);
      with_tiles(value_step{task, sum, values, a.value.length, keys, ahead, 0});
    } else {
      copy_values(task.value_panels, h, keys);
      with_tiles(value_step{task, sum, task.value_panels, plan.row_parts.value_width, keys, ahead, 0});
    }
  }

  /// Powers of a block's scores, and their sums.
  void take_block_powers(index h, index block, index first, index last) const {
    const attention_task<T> task = head(h, block);
    for (index r = 0; r < plan.rows; ++r) {
      if (task.score_stages().hides_some(task.row_of(r), first, last)) {
        task.note_hidden(r, first, last);
      } else {
        __builtin_memset(task.hidden(r), 0, static_cast<std::size_t>(key_block));
      }
      task.advance_reference(r, maximum_of(h, block, r));
      T* const s = task.scores(r);
      take_powers_of_row(sums(h, block) + r * lanes, task.reference(r), s, s, first - task.block_first,
                         last - task.block_first);
    }
  }

  /// A block's product is not finite: hidden values that are infinite or NaN may have met a power of zero. Sums again
  /// without them.
  void multiply_visible_values(index h, index block, key_range range) const {
    const attention_task<T> task = head(h, block);
    for (index r = 0; r < plan.rows; ++r) {
      for (index c = 0; c < a.value_dim; c += lanes) {
        vec<T> sum = broadcast(T(0));
        for (index key = range.first; key < range.last; ++key) {
          if (!task.hidden(r)[key - task.block_first]) {
            T value[64 / sizeof(T)] = {};
            read_row(value, lanes, a.value, value_row(h, key), c, smaller(a.value_dim - c, lanes));
            sum = multiply_add(broadcast(task.scores(r)[key - task.block_first]), load(value), sum);
          }
        }
        store(output(h, block) + r * plan.row_parts.value_width + c, sum);
      }
    }
  }

  HEADWAVE_INLINE bool is_finite_output(index h, index block) const {
    for (index i = 0; i < plan.output_size; i += lanes) {
      if (!all_finite(load(output(h, block) + i))) {
        return false;
      }
    }
    return true;
  }

  void multiply_blocks_by_values(index first_block, index last_block) const {
    for (index h = 0; h < heads; ++h) {
      head(h, first_block).place_rows();
      head(h, first_block).start_rows();
    }
    const key_range all = head(0, first_block).keys_of_rows(0, plan.rows);
    for (index block = plan.first_block; block < last_block; ++block) {
      const key_range range = keys_of_block(all, block);
      if (range.first >= range.last) {
        continue;
      }
      if (block < first_block) {
        for (index h = 0; h < heads; ++h) {
          const attention_task<T> task = head(h, block);
          for (index r = 0; r < plan.rows; ++r) {
            task.advance_reference(r, maximum_of(h, block, r));
          }
        }
        continue;
      }
      const index start = range.first - range.first % lanes;
      for (index h = 0; h < heads; ++h) {
        take_block_powers(h, block, start, round_up(range.last, lanes));
        clear_elements(output(h, block), plan.output_size);
      }
      for (index key = range.first; key < range.last; key += decode_step) {
        const key_range step{key, smaller(range.last, key + decode_step)};
        if (!sees(step)) {
          continue;
        }
        rows_ahead ahead = rows_after(a.value, a.value_dim, step.last, all.last);
        for (index h = 0; h < heads; ++h) {
          multiply_values(head(h, block), h, output(h, block), step, ahead);
        }
      }
      for (index h = 0; h < heads; ++h) {
        if (!is_finite_output(h, block)) {
          multiply_visible_values(h, block, range);
        }
      }
    }
  }

  void finish() const {
    for (index h = 0; h < heads; ++h) {
      const attention_task<T> rows = head(h, plan.first_block);
      rows.place_rows();
      rows.start_rows();
      const key_range all = rows.keys_of_rows(0, plan.rows);
      for (index block = plan.first_block; block < plan.first_block + plan.blocks; ++block) {
        const key_range range = keys_of_block(all, block);
        for (index r = 0; range.first < range.last && r < plan.rows; ++r) {
          const attention_task<T> task = head(h, block);
          task.raise_reference(r, maximum_of(h, block, r));
          store(task.sums(r), add(load(task.sums(r)), load(sums(h, block) + r * lanes)));
          for (index i = 0; i < plan.row_parts.value_width; i += lanes) {
            store(task.output(r) + i,
                  add(load(task.output(r) + i), load(output(h, block) + r * plan.row_parts.value_width + i)));
          }
        }
      }
      rows.finish_rows();
    }
  }
};

/// Task number task of a pass; workspace: plan.task_size elements; shared: plan.shared_size.
template <class T>
void decode(const attention_arguments<T>& a, const decode_plan<T>& plan, decode_pass pass, index task, T* shared,
            T* workspace) {
  const bool last = pass == decode_pass::finish;
  const index blocks = last ? 0 : task % plan.block_groups, rest = last ? task : task / plan.block_groups;
  const index heads = rest % plan.head_groups * plan.task_heads;
  const decode_task<T> part{.a = a,
                            .plan = plan,
                            .shared = shared,
                            .workspace = workspace,
                            .batch = rest / plan.head_groups,
                            .first_head = heads,
                            .heads = smaller(plan.task_heads, a.kv_heads - heads)};
  const index first_block = plan.first_block + blocks * plan.task_blocks;
  const index last_block = smaller(first_block + plan.task_blocks, plan.first_block + plan.blocks);
  switch (pass) {
    case decode_pass::scores:
      part.score_blocks(first_block, last_block);
      break;
    case decode_pass::values:
      part.multiply_blocks_by_values(first_block, last_block);
      break;
    case decode_pass::finish:
      part.finish();
      break;
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
