// SPDX-License-Identifier: MIT
// Scaled dot-product attention with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022). Compiled once per
// tier; see detail/tiers.hpp.
//
// A task is one sample, one key/value head and a block of the query rows that read it, (query, head in group) with the
// head running fastest, so that grouped heads share every key and value. Keys are taken in blocks of key_block at fixed
// boundaries:
//   S = scaled Q K^T    -> final scores (soft cap, bias, ALiBi, visibility)   -> P = e^(S - reference)   -> O += P V
// What a row gets from a block depends on the row's own query and visible keys only: each score and each output is one
// chain of FMAs in index order, row sums are kept lane by lane, and the reference is raised by the row's own visible
// scores only.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// A reference is raised when a score exceeds it by more than this: e^8 leaves ample room, and most blocks raise
/// nothing.
inline constexpr int reference_slack = 8;

struct key_range {
  index first, last;  ///< keys first .. last-1
};

HEADWAVE_INLINE index smaller(index a, index b) {
  return a < b ? a : b;
}
HEADWAVE_INLINE index larger(index a, index b) {
  return a > b ? a : b;
}
HEADWAVE_INLINE std::int64_t saturated_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? INT64_MIN : INT64_MAX) : sum;
}

template <class T>
struct attention_task {
  static constexpr index lanes = vec<T>::lanes;
  static constexpr index score_stride = attention_workspace<T>::score_stride;

  const attention_arguments<T>& a;
  const attention_workspace<T>& parts;
  T* workspace;
  index batch, kv_head, group, first_row, rows;

  // The block of keys at hand, and whether its values can be multiplied by zero.
  index block_first = 0;
  bool values_finite = true;

  HEADWAVE_INLINE T* keys() const { return workspace + parts.keys; }
  HEADWAVE_INLINE T* values() const { return workspace + parts.values; }
  HEADWAVE_INLINE T* queries(index row) const { return workspace + parts.queries + row * a.head_dim; }
  HEADWAVE_INLINE T* output(index row) const { return workspace + parts.output + row * parts.value_width; }
  HEADWAVE_INLINE T* sums(index row) const { return workspace + parts.sums + row * lanes; }
  HEADWAVE_INLINE T& reference(index row) const { return workspace[parts.references + row]; }
  HEADWAVE_INLINE T* scores(int tile_row) const { return workspace + parts.scores + tile_row * score_stride; }
  HEADWAVE_INLINE unsigned char* hidden(int tile_row) const {
    return reinterpret_cast<unsigned char*>(workspace + parts.hidden) + tile_row * key_block;
  }

  HEADWAVE_INLINE index query_of(index row) const { return (first_row + row) / group; }
  HEADWAVE_INLINE index head_of(index row) const { return kv_head * group + (first_row + row) % group; }
  HEADWAVE_INLINE std::int64_t position_of(index row) const {
    return saturated_sum(a.query_starts ? a.query_starts[batch] : a.query_start, query_of(row));
  }

  /// The keys that causality, window and key length leave to a row.
  HEADWAVE_INLINE key_range keys_of(index row) const {
    const std::int64_t position = position_of(row);
    std::int64_t first = 0, last = a.key_length;
    if (a.key_lengths) {
      last = smaller(last, a.key_lengths[batch]);
    }
    if (a.causal) {
      last = smaller(last, saturated_sum(position, 1));
    }
    if (a.window_left != INT64_MAX) {
      first = larger(first, saturated_sum(position, -a.window_left));
    }
    if (a.window_right != INT64_MAX) {
      last = smaller(last, saturated_sum(saturated_sum(position, a.window_right), 1));
    }
    return first < last ? key_range{first, last} : key_range{0, 0};
  }

  /// The smallest range that holds the keys of count rows.
  key_range keys_of_rows(index row, index count) const {
    key_range all{a.key_length, 0};
    for (index r = row; r < row + count; ++r) {
      const key_range own = keys_of(r);
      if (own.first < own.last) {
        all.first = smaller(all.first, own.first);
        all.last = larger(all.last, own.last);
      }
    }
    return all;
  }

  /// The first lane of e^(x - reference), by the same operations as every other power.
  HEADWAVE_INLINE static T power_of(T x, T reference) {
    T powers[64 / sizeof(T)];
    store(powers, exponential(broadcast(x - reference)));
    return powers[0];
  }

  HEADWAVE_INLINE const T* query_row(index row) const {
    return a.query.data + batch * a.query.batch + head_of(row) * a.query.head + query_of(row) * a.query.length;
  }

  HEADWAVE_INLINE vec<T> soft_capped(vec<T> score) const {
    if (bits_of(a.softcap) == 0) {
      return score;
    }
    const vec<T> cap = broadcast(a.softcap);
    return multiply(cap, hyperbolic_tangent(divide(score, cap)));
  }

  /// The score of the key that every query sees. Bias, ALiBi and masks do not reach it.
  T bias_key_score(index row) const {
    const T* const query = query_row(row);
    vec<T> sum = broadcast(T(0));
    for (index c = 0; c < a.head_dim; ++c) {
      sum = multiply_add(broadcast(query[c * a.query.channel] * a.scale),
                         broadcast(a.bias_key[kv_head * a.head_dim + c]), sum);
    }
    T score[64 / sizeof(T)];
    store(score, soft_capped(sum));
    return score[0];
  }

  /// A row begins with what is not in the key tensor: its sink, which is a score without a value, the bias key and the
  /// zero key.
  void start_rows() const {
    for (index r = 0; r < rows; ++r) {
      const T sink = a.sinks ? a.sinks[head_of(r)] : negative_infinity<T>();
      const bool has_sink = bits_of(sink) != negative_infinity_bits<T>;
      const T bias_score = a.bias_key ? bias_key_score(r) : T(0);
      T start = has_sink ? sink : lowest_finite<T>();
      start = a.bias_key && !(bias_score < start) ? bias_score : start;
      start = a.zero_key && start < T(0) ? T(0) : start;
      const T of_bias = a.bias_key ? power_of(bias_score, start) : T(0);
      reference(r) = start;
      store(sums(r), broadcast(T(0)));
      sums(r)[0] = (has_sink ? power_of(sink, start) : T(0)) + of_bias + (a.zero_key ? power_of(T(0), start) : T(0));
      for (index c = 0; c < parts.value_width; c += lanes) {
        const vec<T> value =
            a.bias_key ? load_first(a.bias_value + kv_head * a.value_dim + c, 1, a.value_dim - c) : broadcast(T(0));
        store(output(r) + c, multiply(broadcast(of_bias), value));
      }
      if (a.weights.data) {
        for (index key = 0; key < a.key_length; key += lanes) {
          store_first(weights_of(r) + key * a.weights.channel, a.weights.channel, broadcast(negative_infinity<T>()),
                      a.key_length - key);
        }
        index key = a.key_length;
        if (a.bias_key) {
          weights_of(r)[key++ * a.weights.channel] = bias_score;
        }
        if (a.zero_key) {
          weights_of(r)[key * a.weights.channel] = T(0);
        }
      }
    }
  }

  HEADWAVE_INLINE T* weights_of(index row) const {
    return a.weights.data + batch * a.weights.batch + head_of(row) * a.weights.head + query_of(row) * a.weights.length;
  }

  /// Scaled queries as [tile][channel][row].
  void pack_queries(index tiles) const {
    for (index t = 0; t < tiles; ++t) {
      const index first = t * rows / tiles;
      const int count = balanced_rows(rows, tiles, t);
      for (int r = 0; r < count; ++r) {
        const T* source = query_row(first + r);
        T* target = queries(first) + r;
        for (index c = 0; c < a.head_dim; ++c) {
          target[c * count] = source[c * a.query.channel] * a.scale;
        }
      }
    }
  }

  /// Keys as panels [group of keys][channel][key]; keys of a group that are not in the range are zero, and are not
  /// read.
  void pack_keys(key_range range) const {
    const T* source = a.key.data + batch * a.key.batch + kv_head * a.key.head;
    for (index first = range.first - range.first % lanes; first < range.last; first += lanes) {
      T* panel = keys() + (first - block_first) * a.head_dim;
      for (index lane = 0; lane < lanes; ++lane) {
        const index key = first + lane;
        const bool present = key >= range.first && key < range.last;
        for (index c = 0; c < a.head_dim; ++c) {
          panel[c * lanes + lane] = present ? source[key * a.key.length + c * a.key.channel] : T(0);
        }
      }
    }
  }

  /// Values as panels [group of channels][key][channel]. Returns whether all of them are finite.
  bool pack_values(key_range range) const {
    bool finite = true;
    for (index key = range.first; key < range.last; ++key) {
      const T* source = a.value.data + batch * a.value.batch + kv_head * a.value.head + key * a.value.length;
      T* target = values() + (key - block_first) * lanes;
      for (index c = 0; c < a.value_dim; c += lanes) {
        const vec<T> chunk = load_first(source + c * a.value.channel, a.value.channel, a.value_dim - c);
        finite = finite && all_finite(chunk);
        store(target + c * key_block, chunk);
      }
    }
    return finite;
  }

  /// Soft cap, bias, ALiBi and visibility, in this order, on a row's scores of the keys first .. last-1, both multiples
  /// of lanes. What the row must not see becomes -infinity, whatever the score was. own: the row's keys_of().
  void finish_scores(index row, key_range own, T* s, index first, index last) const {
    const index head = head_of(row), query = query_of(row);
    const std::int64_t position = position_of(row);
    const vec<T> nothing = broadcast(negative_infinity<T>());
    const vec<T> lane_numbers = load(lane_numbers_of<T>);
    for (index key = first; key < last; key += lanes) {
      vec<T> score = soft_capped(load(s + key - block_first));
      lane_mask<T> blocked = less(nothing, nothing);
      if (a.bias.data) {
        const T* source =
            a.bias.data + batch * a.bias.batch + head * a.bias.head + query * a.bias.length + key * a.bias.channel;
        const vec<T> bias = load_first(source, a.bias.channel, a.key_length - key);
        blocked = is_negative_infinity(bias);
        // A finite bias never blocks, not even where the sum overflows.
        score = maximum(broadcast(lowest_finite<T>()), add(score, bias));
      }
      if (a.alibi_slopes) {
        const vec<T> distance = absolute(subtract(broadcast(static_cast<T>(position - key)), lane_numbers));
        score = multiply_add(distance, broadcast(-a.alibi_slopes[head]), score);
      }
      score = select(blocked, nothing, score);
      if (a.visible.data) {
        const unsigned char* source = a.visible.data + batch * a.visible.batch + head * a.visible.head +
                                      query * a.visible.length + key * a.visible.channel;
        unsigned char bytes[64 / sizeof(T)];
        if (a.visible.channel != 1 || key + lanes > a.key_length) {
          for (index lane = 0; lane < lanes; ++lane) {
            bytes[lane] = key + lane < a.key_length ? source[lane * a.visible.channel] : 0;
          }
          source = bytes;
        }
        lane_mask<T> seen;
        load_mask(source, seen);
        score = select(seen, score, nothing);
      }
      if (own.first > key || own.last < key + lanes) {
        score = select(less(lane_numbers, broadcast(static_cast<T>(own.last - key))), score, nothing);
        score = select(not_less(lane_numbers, broadcast(static_cast<T>(own.first - key))), score, nothing);
      }
      store(s + key - block_first, score);
    }
  }

  /// Turns a row's scores of the keys first .. last-1, both multiples of lanes, into powers, and brings reference, sum
  /// and output of the row up to date.
  void softmax_scores(index row, int tile_row, index first, index last) const {
    T* const s = scores(tile_row);
    const key_range own = keys_of(row);
    if (a.bias.data || a.visible.data || a.alibi_slopes || bits_of(a.softcap) != 0 || own.first > first ||
        own.last < last) {
      finish_scores(row, own, s, first, last);
    }
    if (a.weights.data) {
      for (index key = first; key < last; key += lanes) {
        store_first(weights_of(row) + key * a.weights.channel, a.weights.channel, load(s + key - block_first),
                    a.key_length - key);
      }
    }
    if (!values_finite) {
      for (index key = first - block_first; key < last - block_first; ++key) {
        hidden(tile_row)[key] = bits_of(s[key]) == negative_infinity_bits<T>;
      }
    }
    vec<T> largest = broadcast(lowest_finite<T>());
    for (index key = first - block_first; key < last - block_first; key += lanes) {
      largest = maximum(largest, load(s + key));
    }
    const T block_largest = reduce_maximum(largest);
    if (block_largest > reference(row) + T(reference_slack)) {
      const vec<T> factor = exponential(broadcast(reference(row) - block_largest));
      store(sums(row), multiply(load(sums(row)), factor));
      for (index i = 0; i < parts.value_width; i += lanes) {
        store(output(row) + i, multiply(load(output(row) + i), factor));
      }
      reference(row) = block_largest;
    }
    const vec<T> subtrahend = broadcast(reference(row));
    vec<T> sum = load(sums(row));
    for (index key = first - block_first; key < last - block_first; key += lanes) {
      const vec<T> power = exponential(subtract(load(s + key), subtrahend));
      sum = add(sum, power);
      store(s + key, power);
    }
    store(sums(row), sum);
  }

  /// One tile of rows against the block's keys range.first .. range.last-1.
  struct tile_step {
    const attention_task& task;
    index first_row;
    key_range range;

    template <int Rows, int Panels>
    HEADWAVE_INLINE void score(index key) const {
      tile<T, Rows, Panels> c;
      clear(c);
      const index offset = key - task.block_first;
      multiply_tile<1, Rows>(c, task.queries(first_row), task.keys() + offset * task.a.head_dim,
                             task.a.head_dim * lanes, task.a.head_dim);
      HEADWAVE_UNROLL
      for (int r = 0; r < Rows; ++r) {
        HEADWAVE_UNROLL
        for (int p = 0; p < Panels; ++p) {
          store(task.scores(r) + offset + p * lanes, c.at[r][p]);
        }
      }
    }

    /// O += P V for the channels of Panels panels; the block's own sum starts at zero.
    template <int Rows, int Panels>
    HEADWAVE_INLINE void accumulate(index channel) const {
      tile<T, Rows, Panels> c;
      clear(c);
      const index offset = range.first - task.block_first;
      multiply_tile<score_stride, 1>(c, task.scores(0) + offset, task.values() + channel * key_block + offset * lanes,
                                     key_block * lanes, range.last - range.first);
      HEADWAVE_UNROLL
      for (int r = 0; r < Rows; ++r) {
        HEADWAVE_UNROLL
        for (int p = 0; p < Panels; ++p) {
          T* const o = task.output(first_row + r) + channel + p * lanes;
          store(o, add(load(o), c.at[r][p]));
        }
      }
    }

    /// The same sum for one row, without the keys it must not see: their values may be infinite or NaN.
    void accumulate_visible(int tile_row) const {
      for (index channel = 0; channel < task.a.value_dim; channel += lanes) {
        vec<T> sum = broadcast(T(0));
        for (index key = range.first - task.block_first; key < range.last - task.block_first; ++key) {
          if (!task.hidden(tile_row)[key]) {
            const vec<T> value = load(task.values() + channel * key_block + key * lanes);
            sum = multiply_add(broadcast(task.scores(tile_row)[key]), value, sum);
          }
        }
        T* const o = task.output(first_row + tile_row) + channel;
        store(o, add(load(o), sum));
      }
    }

    template <int Rows>
    void run() const {
      const index first = range.first - range.first % lanes, last = round_up(range.last, lanes);
      index key = first;
      for (; key + tile_panels * lanes <= last; key += tile_panels * lanes) {
        score<Rows, tile_panels>(key);
      }
      if constexpr (tile_panels > 1) {
        for (; key < last; key += lanes) {
          score<Rows, 1>(key);
        }
      }
      for (int r = 0; r < Rows; ++r) {
        task.softmax_scores(first_row + r, r, first, last);
      }
      if (!task.values_finite) {
        for (int r = 0; r < Rows; ++r) {
          accumulate_visible(r);
        }
        return;
      }
      index channel = 0;
      for (; channel + tile_panels * lanes <= task.parts.value_width; channel += tile_panels * lanes) {
        accumulate<Rows, tile_panels>(channel);
      }
      if constexpr (tile_panels > 1) {
        for (; channel < task.parts.value_width; channel += lanes) {
          accumulate<Rows, 1>(channel);
        }
      }
    }
  };

  void finish_row(index row) const {
    const T sum = reduce_add(load(sums(row)));
    const bool empty = bits_of(sum) == 0;
    const vec<T> divisor = broadcast(empty ? T(1) : sum);
    T* const out = a.out.data + batch * a.out.batch + head_of(row) * a.out.head + query_of(row) * a.out.length;
    for (index c = 0; c < a.value_dim; c += lanes) {
      store_first(out + c * a.out.channel, a.out.channel, divide(load(output(row) + c), divisor), a.value_dim - c);
    }
    if (a.lse.data) {
      a.lse.data[batch * a.lse.batch + head_of(row) * a.lse.head + query_of(row) * a.lse.length] =
          empty ? negative_infinity<T>()
                : static_cast<T>(static_cast<double>(reference(row)) + __builtin_log(static_cast<double>(sum)));
    }
    if (a.weights.data) {
      const vec<T> subtrahend = broadcast(reference(row));
      const index count = a.key_length + (a.bias_key ? 1 : 0) + (a.zero_key ? 1 : 0);
      for (index key = 0; key < count; key += lanes) {
        T* const w = weights_of(row) + key * a.weights.channel;
        const vec<T> score = load_first(w, a.weights.channel, count - key);
        const vec<T> weight = divide(exponential(subtract(score, subtrahend)), divisor);
        // A hidden key has weight 0 in a row that is NaN, too.
        store_first(w, a.weights.channel, select(is_negative_infinity(score), broadcast(T(0)), weight), count - key);
      }
    }
  }

  void run() {
    const index tiles = tile_count(rows);
    start_rows();
    pack_queries(tiles);
    const key_range all = keys_of_rows(0, rows);
    for (block_first = all.first - all.first % key_block; block_first < all.last; block_first += key_block) {
      const key_range block{larger(all.first, block_first), smaller(all.last, block_first + key_block)};
      pack_keys(block);
      values_finite = pack_values(block);
      for (index t = 0; t < tiles; ++t) {
        const index first = t * rows / tiles;
        const int count = balanced_rows(rows, tiles, t);
        const key_range wanted = keys_of_rows(first, count);
        const key_range range{larger(wanted.first, block.first), smaller(wanted.last, block.last)};
        if (range.first < range.last) {
          tile_step step{*this, first, range};
          with_rows(count, step);
        }
      }
    }
    for (index r = 0; r < rows; ++r) {
      finish_row(r);
    }
  }
};

/// Task number task of parts.tasks: its rows of out, lse and weights. workspace: parts.size elements.
template <class T>
void attention(const attention_arguments<T>& a, const attention_workspace<T>& parts, index task, T* workspace) {
  const index block = task % parts.blocks, kv_task = task / parts.blocks;
  const index first_row = block * parts.rows;
  attention_task<T>{.a = a,
                    .parts = parts,
                    .workspace = workspace,
                    .batch = kv_task / a.kv_heads,
                    .kv_head = kv_task % a.kv_heads,
                    .group = a.heads / a.kv_heads,
                    .first_row = first_row,
                    .rows = smaller(parts.rows, parts.all_rows - first_row)}
      .run();
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
