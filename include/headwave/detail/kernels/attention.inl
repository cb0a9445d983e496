// SPDX-License-Identifier: MIT
// Scaled dot-product attention with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022). Compiled once per
// tier; see detail/tiers.hpp.
//
// A task is one sample, one key/value head and a block of the query rows that read it, (query, head in group) with the
// head running fastest, so that grouped heads share every key and value. Keys are taken in blocks of key_block at fixed
// boundaries:
//   S = scaled Q K^T    -> final scores (soft cap, bias, ALiBi, visibility)   -> P = e^(S - reference)   -> O += P V
// What a row gets from a block depends on the row's own query and visible keys only: each score and each output is
// summed in index order, in blocks at fixed places, row sums are kept lane by lane, and the reference is raised by the
// row's own visible scores only.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// A reference is raised when a score exceeds it by more than this: e^8 leaves ample room, and most blocks raise
/// nothing.
inline constexpr int reference_slack = 8;

/// A score that is so far below the reference has a power of 0. Farther, a product of both could be NaN.
inline constexpr int no_power = -1000;

template <class T>
struct attention_tile;

template <class T>
struct attention_task {
  static constexpr index lanes = vec<T>::lanes;

  const attention_arguments<T>& a;
  const attention_rows<T>& parts;
  T* workspace;                               // for the rows
  T *key_panels, *value_panels, *score_rows;  // for the block of keys at hand
  index batch, kv_head, group, first_row, rows;

  // The block of keys at hand, and whether its values can be multiplied by zero.
  index block_first = 0;
  bool values_finite = true;

  HEADWAVE_INLINE T* queries(index row) const { return workspace + parts.queries + row * packed_stride<T>; }
  HEADWAVE_INLINE T* output(index row) const { return workspace + parts.output + row * parts.value_width; }
  HEADWAVE_INLINE T* sums(index row) const { return workspace + parts.sums + row * lanes; }
  HEADWAVE_INLINE T& reference(index row) const { return workspace[parts.references + row]; }
  HEADWAVE_INLINE T& maximum_of(index row) const { return workspace[parts.maxima + row]; }
  /// Sum over keys of power * (score - reference), lane by lane.
  HEADWAVE_INLINE T* moments(index row) const { return workspace + parts.moments + row * lanes; }
  HEADWAVE_INLINE T* scores(index tile_row) const { return score_rows + tile_row * packed_stride<T>; }
  HEADWAVE_INLINE attention_row& row_of(index row) const {
    return reinterpret_cast<attention_row*>(workspace + parts.facts)[row];
  }
  HEADWAVE_INLINE unsigned char* hidden(index tile_row) const {
    return reinterpret_cast<unsigned char*>(workspace + parts.hidden) + tile_row * key_block;
  }

  /// Finds out what stands in row_of.
  void place_rows() const {
    const std::int64_t start = a.query_starts ? a.query_starts[batch] : a.query_start;
    index query = first_row / group, head = first_row % group;
    for (index r = 0; r < rows; ++r) {
      const std::int64_t position = saturated_sum(start, query);
      const bool present = !a.query_lengths || query < a.query_lengths[batch];
      const index weight_row = !a.weights.data ? -1 : a.weight_rows ? a.weight_rows[query] : query;
      row_of(r) = {query, kv_head * group + head, weight_row, position,
                   present ? keys_at(a, batch, position) : key_range{0, 0}};
      if (++head == group) {
        head = 0;
        ++query;
      }
    }
  }

  /// The smallest range that holds the keys of count rows.
  key_range keys_of_rows(index row, index count) const {
    key_range all{0, 0};
    for (index r = row; r < row + count; ++r) {
      all = either(all, row_of(r).keys);
    }
    return all;
  }

  /// The first lane of e^(x - reference), by the same operations as every other power.
  static T power_of(T x, T reference) {
    T powers[64 / sizeof(T)];
    store(powers, exponential(broadcast(x - reference)));
    return powers[0];
  }

  HEADWAVE_INLINE stored_row<T> query_row(index row) const {
    return row_at<T>(a.query, batch, row_of(row).head, row_of(row).query);
  }

  HEADWAVE_INLINE score_stage<T> score_stages() const { return {a, batch}; }
  HEADWAVE_INLINE T scale_of(index row) const { return a.head_scales ? a.head_scales[row_of(row).head] : a.scale; }

  /// The score of the key that every query sees. Bias, ALiBi and masks do not reach it.
  T bias_key_score(index row) const {
    const stored_row<T> query = query_row(row);
    vec<T> sum = broadcast(T(0));
    for (index c = 0; c < a.head_dim; ++c) {
      T channel[64 / sizeof(T)] = {};
      read_row(channel, lanes, a.query, query, c, 1);
      sum = multiply_add(broadcast(channel[0] * scale_of(row)), broadcast(a.bias_key[kv_head * a.head_dim + c]), sum);
    }
    T score[64 / sizeof(T)];
    store(score, score_stages().soft_capped(sum));
    return score[0];
  }

  /// -infinity is no sink; infinity counts as the largest finite number, by its bits.
  HEADWAVE_INLINE T sink_of(index row) const {
    const T sink = a.sinks ? a.sinks[row_of(row).head] : negative_infinity<T>();
    return bits_of(-sink) == negative_infinity_bits<T> ? -lowest_finite<T>() : sink;
  }

  /// Whether a row begins with nothing, not with what is not in the key tensor: its sink, which is a score without a
  /// value, the bias key and the zero key.
  HEADWAVE_INLINE bool starts_empty() const { return !a.sinks && !a.bias_key && !a.zero_key; }

  void start_rows() const {
    clear_elements(output(0), rows * parts.value_width);
    clear_elements(sums(0), rows * lanes);
    clear_elements(moments(0), a.entropy.data ? rows * lanes : 0);
    for (index r = 0; r < rows; ++r) {
      reference(r) = lowest_finite<T>();
    }
    for (index r = 0; a.maximum.data && r < rows; ++r) {
      maximum_of(r) = negative_infinity<T>();
    }
    for (index r = 0; !starts_empty() && r < rows; ++r) {
      start_with_extra_keys(r);
    }
    for (index r = 0; a.weights.data && r < rows; ++r) {
      start_weights(r);
    }
  }

  void start_with_extra_keys(index r) const {
    const T sink = sink_of(r);
    const bool has_sink = bits_of(sink) != negative_infinity_bits<T>;
    const T bias_score = a.bias_key ? bias_key_score(r) : T(0);
    T start = has_sink ? sink : lowest_finite<T>();
    start = a.bias_key && !(bias_score < start) ? bias_score : start;
    start = a.zero_key && start < T(0) ? T(0) : start;
    const T of_bias = a.bias_key ? power_of(bias_score, start) : T(0);
    reference(r) = start;
    const T of_sink = has_sink ? power_of(sink, start) : T(0), of_zero = a.zero_key ? power_of(T(0), start) : T(0);
    sums(r)[0] = of_sink + of_bias + of_zero;
    if (a.maximum.data) {
      const T largest = a.bias_key ? bias_score : negative_infinity<T>();
      maximum_of(r) = a.zero_key && largest < T(0) ? T(0) : largest;
    }
    if (a.entropy.data) {
      moments(r)[0] = (has_sink ? of_sink * (sink - start) : T(0)) + of_bias * (bias_score - start) - of_zero * start;
    }
    for (index c = 0; a.bias_key && c < parts.value_width; c += lanes) {
      const vec<T> value = load_first(a.bias_value + kv_head * a.value_dim + c, 1, a.value_dim - c);
      store(output(r) + c, multiply(broadcast(of_bias), value));
    }
  }

  /// Weights that are asked for hold scores until the row's sum is known.
  void start_weights(index r) const {
    if (row_of(r).weights < 0) {
      return;
    }
    for (index key = 0; key < a.key_length; key += lanes) {
      store_first(weights_of(r) + key * a.weights.channel, a.weights.channel, broadcast(negative_infinity<T>()),
                  a.key_length - key);
    }
    index key = a.key_length;
    if (a.bias_key) {
      weights_of(r)[key++ * a.weights.channel] = bias_key_score(r);
    }
    if (a.zero_key) {
      weights_of(r)[key * a.weights.channel] = T(0);
    }
  }

  HEADWAVE_INLINE T* weights_of(index row) const {
    return a.weights.data + batch * a.weights.batch + row_of(row).head * a.weights.head +
           row_of(row).weights * a.weights.length;
  }

  /// Scaled queries as packed rows.
  void pack_queries() const {
    for (index r = 0; r < rows; ++r) {
      fetch<0, T>(query_row(smaller(r + fetch_distance, rows - 1)).data, a.query.format, a.query.channel, a.head_dim);
      pack_row(queries(r), rows * packed_stride<T>, a.query, query_row(r), a.head_dim, scale_of(r));
    }
  }

  /// Keys and values of a range, as panels whose first key is base, or the block's. The latter returns whether all
  /// values are finite.
  HEADWAVE_INLINE void pack_keys(key_range range, index base, rows_ahead& ahead) const {
    pack_head_keys<T>(key_panels, {a.key, batch, kv_head}, a.head_dim, range, base, ahead);
  }
  HEADWAVE_INLINE bool pack_values(key_range range) const {
    return pack_head_values<T>(value_panels, {a.value, batch, kv_head}, a.value_dim, range, block_first);
  }

  /// Notes which of a row's keys first .. last-1 are hidden.
  HEADWAVE_INLINE void note_hidden(index tile_row, index first, index last) const {
    for (index key = first - block_first; key < last - block_first; ++key) {
      hidden(tile_row)[key] = bits_of(scores(tile_row)[key]) == negative_infinity_bits<T>;
    }
  }

  /// The largest of a row's scores so far and of count more; NaN if one of them is.
  T larger_score(T before, const T* s, index count) const {
    vec<T> largest = broadcast(before);
    bool finite = true;
    for (index i = 0; i < count; i += lanes) {
      const vec<T> score = load(s + i);
      // The order of the operands leaves a NaN that is in largest there, and lets no other one in.
      largest = maximum(score, largest);
      finite = finite && all_finite(select(is_negative_infinity(score), broadcast(T(0)), score));
    }
    for (index i = 0; !finite && i < count; ++i) {
      if (is_nan(s[i])) {
        return s[i];
      }
    }
    return reduce_maximum(largest);
  }

  /// Brings a row's scores of the keys first .. last-1, both multiples of lanes, into their final form, and notes what
  /// is asked about them.
  void prepare_scores(index row, index tile_row, index first, index last) const {
    T* const s = scores(tile_row) + (first - block_first);
    score_stages().finish(row_of(row), s, first, last);
    if (row_of(row).weights >= 0) {
      for (index key = first; key < last; key += lanes) {
        store_first(weights_of(row) + key * a.weights.channel, a.weights.channel, load(s + key - first),
                    a.key_length - key);
      }
    }
    if (a.maximum.data) {
      maximum_of(row) = larger_score(maximum_of(row), s, last - first);
    }
    if (!values_finite) {
      note_hidden(tile_row, first, last);
    }
  }

  /// Makes the largest score of a row in a block its reference, if it exceeds that by too much. Returns whether it did.
  HEADWAVE_INLINE bool advance_reference(index row, T largest) const {
    const bool exceeds = largest > reference(row) + T(reference_slack);
    reference(row) = exceeds ? largest : reference(row);
    return exceeds;
  }

  /// The same, with the row's sum and output, which are relative to the reference.
  void raise_reference(index row, T largest) const {
    const T before = reference(row);
    if (advance_reference(row, largest)) {
      const vec<T> factor = broadcast(power_of(before, largest));
      if (a.entropy.data) {
        // A row that has seen nothing yet has no moment to move.
        const T distance = before > lowest_finite<T>() ? before - largest : T(0);
        const T moved = distance < T(no_power) ? T(no_power) : distance;
        store(moments(row), multiply(multiply_add(load(sums(row)), broadcast(moved), load(moments(row))), factor));
      }
      store(sums(row), multiply(load(sums(row)), factor));
      for (index i = 0; i < parts.value_width; i += lanes) {
        store(output(row) + i, multiply(load(output(row) + i), factor));
      }
    }
  }

  /// Adds what some scores give to the row's moments.
  void add_moments(index row, const T* s, index first, index last) const {
    vec<T> sum = broadcast(T(0));
    for (index key = first; key < last; key += lanes) {
      const vec<T> score = load(s + key);
      const vec<T> x = maximum(broadcast(T(no_power)), subtract(score, broadcast(reference(row))));
      sum = add(sum, select(is_negative_infinity(score), broadcast(T(0)), multiply(exponential(x), x)));
    }
    store(moments(row), add(load(moments(row)), sum));
  }

  /// Turns the final scores of Rows rows of a tile into powers, and brings reference, sum and output of the rows up to
  /// date. first and last count from the block's first key. empty: sums and outputs are still zero.
  template <int Rows>
  void softmax_rows(index row, index tile_row, index first, index last, bool empty) const {
    T* const s = scores(tile_row);
    tile<T, Rows, 1> largest, subtrahend, sum;
    clear(sum);
    HEADWAVE_UNROLL
    for (int r = 0; r < Rows; ++r) {
      largest.at[r][0] = broadcast(lowest_finite<T>());
    }
    for (index key = first; key < last; key += lanes) {
      HEADWAVE_UNROLL
      for (int r = 0; r < Rows; ++r) {
        largest.at[r][0] = maximum(largest.at[r][0], load(s + r * packed_stride<T> + key));
      }
    }
    HEADWAVE_UNROLL
    for (int r = 0; r < Rows; ++r) {
      if (empty) {
        advance_reference(row + r, reduce_maximum(largest.at[r][0]));
      } else {
        raise_reference(row + r, reduce_maximum(largest.at[r][0]));
      }
      subtrahend.at[r][0] = broadcast(reference(row + r));
      if (a.entropy.data) {
        add_moments(row + r, s + r * packed_stride<T>, first, last);
      }
    }
    if constexpr (Rows == 1) {
      T row_sum[64 / sizeof(T)];
      take_powers_of_row(row_sum, reference(row), s, s, first, last);
      sum.at[0][0] = load(row_sum);
    } else {
      take_powers<Rows, 1>(sum, subtrahend, s, s, packed_stride<T>, first, last);
    }
    HEADWAVE_UNROLL
    for (int r = 0; r < Rows; ++r) {
      store(sums(row + r), add(load(sums(row + r)), sum.at[r][0]));
    }
  }

  /// Drops powers, whose sum is already taken.
  void drop_powers(index row, index tile_row, key_range keys) const {
    const attention_row& place = row_of(row);
    drop(scores(tile_row) + (keys.first - block_first), keys, a.dropout, a.dropout_seed,
         static_cast<std::uint32_t>(place.position), static_cast<std::uint32_t>(place.head),
         static_cast<std::uint32_t>(a.first_sample + batch));
  }

  /// Scores of the rows row .. row + Rows-1 and the keys of Panels panels, of which the first holds key; they go to the
  /// rows of scores() from tile_row on.
  template <int Rows, int Panels, class Before = nothing_before>
  HEADWAVE_INLINE void score(index row, index tile_row, index key, const T* panel, const Before& before = {}) const {
    tile<T, Rows, Panels> c;
    multiply_blocks<packed_rows<T>>(c, queries(row), rows * packed_stride<T>, panel, a.head_dim * lanes, a.head_dim,
                                    before);
    HEADWAVE_UNROLL
    for (int r = 0; r < Rows; ++r) {
      HEADWAVE_UNROLL
      for (int p = 0; p < Panels; ++p) {
        store(scores(tile_row + r) + key - block_first + p * lanes, c.at[r][p]);
      }
    }
  }

  /// Keys of a range in groups of lanes, less the groups that masks are known to hide from every row of a tile.
  struct key_runs {
    index count;
    key_range run[key_block / 8];
  };
  key_runs visible_runs(index row, index count, key_range range) const {
    key_runs runs;  // most of it stays unwritten
    runs.count = 1;
    runs.run[0] = range;
    if (a.rule.sees) {
      runs.count = 0;
      for (index key = range.first; key < range.last;) {
        const index last = smaller(range.last, key - key % lanes + lanes);
        if (sees(row, count, {key, last})) {
          const bool goes_on = runs.count > 0 && runs.run[runs.count - 1].last == key;
          runs.run[goes_on ? runs.count - 1 : runs.count++] = {goes_on ? runs.run[runs.count - 1].first : key, last};
        }
        key = last;
      }
    }
    return runs;
  }

  /// Whether the masks may let count rows see some of the keys.
  bool sees(index row, index count, key_range keys) const {
    const attention_row &first = row_of(row), &last = row_of(row + count - 1);
    const bool one_query = first.query == last.query;
    const position_range heads{one_query ? first.head : kv_head * group,
                               one_query ? last.head + 1 : (kv_head + 1) * group};
    return score_stages().sees(heads, first, last, keys);
  }

  /// Hides the keys from first, a multiple of lanes, to last-1 from the first count rows of scores().
  void hide_scores(index count, index first, index last) const {
    for (index r = 0; r < count; ++r) {
      for (index key = first; key < last; key += lanes) {
        store(scores(r) + key - block_first, broadcast(negative_infinity<T>()));
      }
    }
  }

  HEADWAVE_INLINE void* out_row(index row) const {
    const index place = batch * a.out.batch + row_of(row).head * a.out.head + row_of(row).query * a.out.length;
    return static_cast<unsigned char*>(a.out.data) + place * element_size<T>(a.out.format);
  }

  HEADWAVE_INLINE T& place(const strided4<T>& x, index row) const {
    return x.data[batch * x.batch + row_of(row).head * x.head + row_of(row).query * x.length];
  }

  /// Of the row's weights: -sum of p ln p = ln(sum) - moment / sum, less what the sink, which is no key, has in it.
  T entropy_of(index row, T sum) const {
    if (bits_of(sum) == 0) {
      return T(0);
    }
    const double all = static_cast<double>(sum), logarithm = __builtin_log(all);
    const double entropy = logarithm - static_cast<double>(reduce_add(load(moments(row)))) / all;
    const T sink = sink_of(row);
    if (bits_of(sink) == negative_infinity_bits<T>) {
      return static_cast<T>(entropy);
    }
    const double log_weight = static_cast<double>(sink) - (static_cast<double>(reference(row)) + logarithm);
    return static_cast<T>(entropy + __builtin_exp(log_weight) * log_weight);
  }

  /// Output, and what else is asked for. Fetches the place of a later row's output.
  void finish_rows() const {
    const index count = a.value_dim;
    const bool whole = whole_vecs<T>(a.out, count) == count;
    for (index r = 0; r < rows; ++r) {
      fetch<1, T>(out_row(smaller(r + fetch_distance, rows - 1)), a.out.format, a.out.channel, count);
      const T sum = reduce_add(load(sums(r)));
      const vec<T> divisor = broadcast(bits_of(sum) == 0 ? T(1) : sum);
      void* const out = out_row(r);
      T* const from = output(r);
      T* const to = whole ? static_cast<T*>(out) : from;
      for (index c = 0; c < count; c += lanes) {
        store(to + c, divide(load(from + c), divisor));
      }
      if (!whole) {
        write_row(a.out, out, from, count);
      }
      finish_outputs(r, sum, divisor);
    }
  }

  HEADWAVE_INLINE void finish_outputs(index row, T sum, vec<T> divisor) const {
    if (a.lse.data) {
      place(a.lse, row) =
          bits_of(sum) == 0
              ? negative_infinity<T>()
              : static_cast<T>(static_cast<double>(reference(row)) + __builtin_log(static_cast<double>(sum)));
    }
    if (a.maximum.data) {
      place(a.maximum, row) = maximum_of(row);
    }
    if (a.entropy.data) {
      place(a.entropy, row) = entropy_of(row, sum);
    }
    if (row_of(row).weights >= 0) {
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
    place_rows();
    start_rows();
    pack_queries();
    const key_range all = keys_of_rows(0, rows);
    for (block_first = all.first - all.first % key_block; block_first < all.last; block_first += key_block) {
      const key_range block = both(all, {block_first, block_first + key_block});
      rows_ahead ahead =
          rows_to_fetch<T>(a.key, batch, kv_head, 1, a.head_dim, block.first + fetch_distance, block.last, 1);
      pack_keys(block, block_first, ahead);
      values_finite = pack_values(block);
      int count = 0;
      for (index first = 0; first < rows; first += count) {
        count = rows_of_tile(rows, first);
        const key_range wanted = keys_of_rows(first, count);
        const key_range range = both(wanted, block);
        if (range.first < range.last) {
          const attention_tile<T> step{*this,
                                       first,
                                       count,
                                       range,
                                       visible_runs(first, count, range),
                                       starts_empty() && block_first <= wanted.first};
          if (step.runs.count > 0) {
            with_rows(count, step);
          }
        }
      }
    }
    finish_rows();
  }
};

/// Task number task of plan.tasks: its rows of out, lse and weights. workspace: plan.parts.size elements.
template <class T>
void attention(const attention_arguments<T>& a, const attention_plan<T>& plan, index task, T* workspace) {
  // The last rows first: with a causal mask they are the longest.
  const index kv_tasks = a.batch * a.kv_heads;
  const index block = plan.blocks - 1 - task / kv_tasks, kv_task = task % kv_tasks;
  const index first_row = first_of_part(plan.all_rows, plan.blocks, block);
  attention_task<T>{.a = a,
                    .parts = plan.row_parts,
                    .workspace = workspace,
                    .key_panels = workspace + plan.keys,
                    .value_panels = workspace + plan.values,
                    .score_rows = workspace + plan.scores,
                    .batch = kv_task / a.kv_heads,
                    .kv_head = kv_task % a.kv_heads,
                    .group = a.heads / a.kv_heads,
                    .first_row = first_row,
                    .rows = first_of_part(plan.all_rows, plan.blocks, block + 1) - first_row}
      .run();
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
