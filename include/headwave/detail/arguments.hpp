// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/score_rule.hpp>

// What a kernel is told: pointers, strides and counts, resolved and checked by the public headers. All strides are in
// elements.

namespace headwave::detail {

/// Elements of a vec<T> on every tier: one cache line.
template <class T>
inline constexpr index vec_lanes = static_cast<index>(64 / sizeof(T));

HEADWAVE_INLINE constexpr index round_up(index n, index multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

HEADWAVE_INLINE constexpr index smaller(index a, index b) {
  return a < b ? a : b;
}
HEADWAVE_INLINE constexpr index larger(index a, index b) {
  return a > b ? a : b;
}

/// Positions are taken in groups from a multiple of this number: the sines and cosines of a row are those of the
/// group's first row, turned by the row's place in the group.
inline constexpr int turn_group = 16;

/// Consecutive rows of sines and cosines, all of one group. count frequencies, padded to whole vecs.
template <class T>
struct sinusoid_arguments {
  const std::uint64_t* phases;  ///< [count] of the group's first row
  const std::uint64_t* steps;   ///< [count] what a row adds to them
  std::uint64_t* turned;        ///< [count] workspace
  double* anchor;               ///< [2][count] workspace: sines and cosines of the group's first row
  double* turns;                ///< [turn_group][2][count] sines and cosines of 0, 1, ... steps, where known
  std::uint32_t known;          ///< bit r: turns r is known
  index count;
  T* out;
  index row_stride;
  index first_row, rows;            ///< of the group
  index firsts, seconds, channels;  ///< channels of the first and second function; the rest up to channels is zero
  bool interleaved, cosine_first;
};

/// What one token's pairs of channels are multiplied by. count pairs, padded to whole vecs.
template <class T>
struct rotary_row_arguments {
  const double* anchor;  ///< [2][count] sines and cosines of the first position of the token's group
  const double* turn;    ///< [2][count] of the token's place in the group
  T* row;                ///< [rotary_row_size]
  index count;
  double cosine_factor, sine_factor;
  bool interleaved;
};

/// halves: cosines and sines, count of each. Interleaved: each cosine twice, then minus and plus each sine.
HEADWAVE_INLINE constexpr index rotary_row_size(index count, bool interleaved) {
  return interleaved ? 4 * count : 2 * count;
}

/// A block of tokens, of which every head of every sample is rotated: channels 0 .. 2 * pairs - 1 behind
/// data + sample * sample_stride + token * token_stride + head * head_stride.
template <class T>
struct rotary_arguments {
  T* data;
  index sample_stride, token_stride, head_stride, channel_stride;
  index samples, tokens, heads, pairs;
  const T* rows;  ///< [tokens][rotary_row_size(count)]
  index count;    ///< pairs, padded
  bool interleaved;
};

/// C[rows x columns] = A[rows x depth] B + bias.
template <class T>
struct gemm_arguments {
  const T* a;
  index a_row_stride, a_column_stride;
  const T* panels;  ///< B, packed
  const T* bias;    ///< padded to whole panels; null: none
  T* c;
  index c_row_stride, c_column_stride;
  index rows, depth, columns;
};

/// A tile of A lies in blocks of so many k: detail/kernels/gemm.inl.
inline constexpr index depth_block = 256;

/// So many products of a sum over k follow each other in one chain; the chains' results are added in order. A change of
/// this number changes the last bits of every result.
inline constexpr index sum_block = 128;

/// Half a cache line more than a block of floats, so that the rows of a tile lie in different sets and banks of the
/// cache.
template <class T>
inline constexpr index packed_stride = depth_block + static_cast<index>(32 / sizeof(T));

/// Elements of count packed rows.
template <class T>
HEADWAVE_INLINE index packed_rows_size(index count, index depth) {
  return count * packed_stride<T> * ((depth + depth_block - 1) / depth_block);
}

/// At most so many rows of queries form a tile on any tier.
inline constexpr index largest_tile = 16;

/// Rows are cut into parts at multiples of this number, in which most tiers' tiles are whole.
inline constexpr index row_unit = 12;
/// Where part number n of so many parts of about the same size begins; parts <= rows / row_unit, rounded up.
HEADWAVE_INLINE constexpr index first_of_part(index rows, index parts, index n) {
  return n < parts ? (rows + row_unit - 1) / row_unit * n / parts * row_unit : rows;
}
/// No part has more rows than this.
HEADWAVE_INLINE constexpr index largest_part(index rows, index parts) {
  const index units = (rows + row_unit - 1) / row_unit;
  return smaller(rows, (units + parts - 1) / parts * row_unit);
}

/// At most so many rows of A are packed at a time, about 896 KiB: a panel is read from far away once for all of them,
/// and they are read in order, which a cache beyond L2 can feed.
template <class T>
HEADWAVE_INLINE index gemm_block_rows(const gemm_arguments<T>& product) {
  const index fitting = static_cast<index>(896 * 1024 / sizeof(T)) / (product.depth + 1);
  return fitting < 48 ? 48 : fitting < 288 ? fitting - fitting % row_unit : 288;
}

template <class T>
HEADWAVE_INLINE index gemm_workspace(const gemm_arguments<T>& product) {
  // The last tile may be higher than its rows.
  return (smaller(product.rows, gemm_block_rows(product)) + largest_tile / 2) * product.depth;
}

/// A four-dimensional operand: data + b * batch + h * head + l * length + c * channel.
template <class T>
struct strided4 {
  T* data;
  index batch, head, length, channel;
};

/// How elements are stored: as what is computed with (float or double), or in fewer bits, which are widened to float.
enum class element_format : unsigned char { own, bfloat16, float16, int8 };

template <class T>
HEADWAVE_INLINE constexpr index element_size(element_format format) {
  return format == element_format::own ? static_cast<index>(sizeof(T)) : format == element_format::int8 ? 1 : 2;
}

/// A strided4 of stored elements; Data is void or const void.
template <class Data>
struct stored4 {
  Data* data;
  index batch, head, length, channel;
  element_format format;
};

/// Keys or values. Row j of a sample lies at length * j, or in pages, page_size rows each: page pages[j / page_size] of
/// those of the sample, its row j mod page_size; or in a ring, at length * (j mod ring).
struct stored_rows : stored4<const void> {
  const std::int32_t* pages;  ///< null: none
  index pages_batch, pages_step, page_size, page_stride;
  index ring;           ///< 0: none
  const float* scales;  ///< int8: what a row of a head is multiplied by
  index scale_batch, scale_head, scale_length, scale_page;
};

/// A caller's rules: an object, and what is done with it. Null where there is nothing to do.
template <class T>
struct rule_arguments {
  const void* object;
  /// Brings a row's scores of some keys into their final form: kernels/rule.inl, of the tier in use.
  void (*finish)(const void* object, T* scores, const score_position& row, position_range keys);
  /// Bounds the keys that a position sees.
  position_range (*keys_for)(const void* object, std::int64_t query);
  visibility (*sees)(const void* object, const score_region& region);
};

/// Two attentions of the same queries, the first of which becomes that over both sets of keys.
template <class T>
struct merge_arguments {
  strided4<T> out_a;
  strided4<const T> out_b;
  strided4<T> lse_a;  ///< channel unused, here and below
  strided4<const T> lse_b;
  index query_length, heads, value_dim;
};

template <class T>
struct attention_arguments {
  stored4<const void> query;
  stored_rows key, value;
  stored4<void> out;
  index batch, query_length, key_length, heads, kv_heads, head_dim, value_dim;

  T scale;
  const T* head_scales;                   ///< one per head, instead of scale; null: none
  T softcap;                              ///< 0: none
  strided4<const T> bias;                 ///< [b][h][query = length][key = channel]; null: none
  strided4<const unsigned char> visible;  ///< likewise
  bool causal;
  std::int64_t query_start;                ///< position of query row 0
  const std::int64_t* query_starts;        ///< one per sample, instead of query_start; null: none
  std::int64_t window_left, window_right;  ///< INT64_MAX: unlimited
  const std::int64_t* query_lengths;       ///< one per sample; null: none
  const std::int64_t* key_starts;          ///< one per sample: earlier keys are hidden; null: none
  const std::int64_t* key_lengths;         ///< one per sample; null: none
  const T* alibi_slopes;                   ///< one per head; null: none
  index alibi_batch_stride;                ///< 0: the same for every sample
  const T* distance_bias;                  ///< one row of distance_columns() per head; null: none
  std::int64_t distance_limit;
  const T* sinks;       ///< one per head; null: none
  const T* bias_key;    ///< [kv_heads][head_dim], a key that every query sees; null: none
  const T* bias_value;  ///< [kv_heads][value_dim]
  bool zero_key;        ///< one more such key whose score and value are zero

  rule_arguments<T> rule;
  index first_sample;   ///< what sample 0 is called before rules and random numbers
  position_range seen;  ///< no row of a decode call sees a key outside of it
  double dropout;       ///< probability; 0: none
  std::uint64_t dropout_seed;

  strided4<T> lse, maximum, entropy;  ///< channel unused; null: not wanted
  strided4<T> weights;       ///< [b][h][query = length][key = channel], the two keys above last; null: not wanted
  const index* weight_rows;  ///< [query_length] the row of weights that receives a query's, -1: none; null: its own
};

/// Biases by distance key - query: of -limit - lanes .. limit + lanes, those beyond limit being that of limit, so that
/// a vec of keys is one load wherever it lies.
template <class T>
HEADWAVE_INLINE index distance_columns(std::int64_t limit) {
  return 2 * static_cast<index>(limit) + 1 + 2 * vec_lanes<T>;
}

using key_range = position_range;

/// The keys that lengths, causality, the window and the bounds of rules leave to a query at a position.
template <class T>
HEADWAVE_INLINE key_range keys_at(const attention_arguments<T>& a, index batch, std::int64_t position) {
  key_range keys{0, a.key_length};
  if (a.key_starts) {
    keys.first = larger(keys.first, a.key_starts[batch]);
  }
  if (a.key_lengths) {
    keys.last = smaller(keys.last, a.key_lengths[batch]);
  }
  if (a.causal) {
    keys.last = smaller(keys.last, saturated_sum(position, 1));
  }
  if (a.window_left != INT64_MAX) {
    keys.first = larger(keys.first, saturated_sum(position, -a.window_left));
  }
  if (a.window_right != INT64_MAX) {
    keys.last = smaller(keys.last, saturated_sum(saturated_sum(position, a.window_right), 1));
  }
  if (a.rule.keys_for) {
    keys = both(keys, a.rule.keys_for(a.rule.object, position_for_rules(position)));
  }
  return keys.first < keys.last ? keys : key_range{0, 0};
}

/// What an attention task knows of one of its rows.
struct attention_row {
  index query, head, weights;  ///< weights: the row that receives them, -1: none
  std::int64_t position;
  key_range keys;  ///< that lengths, causality, window and the bounds of masks leave to it
};

/// Keys between two fixed boundaries, whose contribution is summed from zero before it joins the output. A change of
/// this number changes the last bits of every result.
inline constexpr index key_block = depth_block;

/// Attention of so few rows for each key/value head reads every key and value once, as they come: a decode call. Others
/// pack them first.
inline constexpr index decode_rows = 8;
/// A decode call goes through so many keys, or values, of one head before the next head's turn: few enough that memory
/// is read about in order.
inline constexpr index decode_step = 16;

template <class T>
HEADWAVE_INLINE bool has_rows(const attention_arguments<T>& a) {
  return a.batch > 0 && a.query_length > 0;
}

template <class T>
HEADWAVE_INLINE bool is_decode(const attention_arguments<T>& a) {
  return a.query_length * (a.heads / a.kv_heads) <= decode_rows && !a.weights.data && !a.maximum.data &&
         !a.entropy.data && !(a.dropout > 0);
}

/// Hands out parts of a workspace, in elements from its start, each aligned to a vec.
template <class T>
struct workspace_parts {
  index size = 0;

  HEADWAVE_INLINE index take(index count) {
    const index start = size;
    size += round_up(count, vec_lanes<T>);
    return start;
  }
};

/// What an attention task keeps for the rows of one key/value head.
template <class T>
struct attention_rows {
  index value_width;  ///< value_dim, rounded up to whole vecs
  index queries, output, sums, references, facts, hidden, maxima, moments;

  HEADWAVE_INLINE attention_rows(const attention_arguments<T>& a, index rows, workspace_parts<T>& parts)
      : value_width(round_up(a.value_dim, vec_lanes<T>)),
        queries(parts.take(packed_rows_size<T>(rows, a.head_dim))),
        output(parts.take(rows * value_width)),
        sums(parts.take(rows * vec_lanes<T>)),
        references(parts.take(rows)),
        facts(parts.take(rows * static_cast<index>(sizeof(attention_row) / sizeof(T)))),
        hidden(parts.take(largest_tile * key_block / static_cast<index>(sizeof(T)))),
        maxima(parts.take(a.maximum.data ? rows : 0)),
        moments(parts.take(a.entropy.data ? rows * vec_lanes<T> : 0)) {}
};

/// How an attention call is cut into tasks, and where the parts of a task's workspace lie.
template <class T>
struct attention_plan {
  index all_rows;  ///< query rows that read one key/value head
  index blocks;    ///< tasks of one key/value head
  index rows;      ///< at most so many rows in a task
  index tasks;     ///< of the whole call
  workspace_parts<T> parts;
  attention_rows<T> row_parts;
  index keys, values, scores;

  /// wanted: about so many tasks, if that does not make them too small.
  HEADWAVE_INLINE attention_plan(const attention_arguments<T>& a, index wanted)
      : all_rows(a.query_length * (a.heads / a.kv_heads)),
        blocks(block_count(a, all_rows, wanted)),
        rows(largest_part(all_rows, blocks)),
        tasks(a.batch * a.kv_heads * blocks),
        row_parts(a, rows, parts),
        keys(parts.take(key_block * a.head_dim)),
        values(parts.take(key_block * row_parts.value_width)),
        scores(parts.take(largest_tile * packed_stride<T>)) {}

 private:
  HEADWAVE_INLINE static index block_count(const attention_arguments<T>& a, index rows, index wanted) {
    // Queries and outputs of a task take about 128 KiB, so that they share the L2 cache with a block of keys and
    // values.
    const index row_size = a.head_dim + a.value_dim + 2 * vec_lanes<T>;
    const index fitting = static_cast<index>(128 * 1024 / sizeof(T)) / row_size;
    const index most = fitting < 48 ? 48 : fitting;
    const index by_size = (rows + most - 1) / most;
    const index heads = a.batch * a.kv_heads;
    const index by_wish = (wanted + heads - 1) / heads, largest = (rows + 23) / 24;
    const index more = by_wish < largest ? by_wish : largest;
    return by_size < more ? more : by_size;
  }
};

/// The passes of a decode call, one after the other: kernels/decode.inl.
enum class decode_pass { scores, values, finish };

/// How a decode call is cut into tasks: some heads of a sample, and some of the blocks of keys. Scores, and what each
/// block adds, are kept in memory that all tasks share.
template <class T>
struct decode_plan {
  index rows;                       ///< query rows of a key/value head
  index first_block, blocks;        ///< key blocks that some row sees
  index task_heads, head_groups;    ///< key/value heads of a task
  index task_blocks, block_groups;  ///< key blocks of a task
  index tasks;                      ///< of the first two passes; the last has one for each sample and group of heads

  workspace_parts<T> head_parts;  ///< for each head of a task
  attention_rows<T> row_parts;
  index keys, values, task_size;  ///< behind the heads' parts, and size of it all

  index score_size, output_size, sum_size;  ///< of a block
  index scores, outputs, sums, maxima;      ///< of a head, for all blocks
  index head_size, shared_size;             ///< of a head and of the call

  HEADWAVE_INLINE decode_plan(const attention_arguments<T>& a, index wanted)
      : rows(a.query_length * (a.heads / a.kv_heads)),
        first_block(a.seen.first / key_block),
        blocks((a.seen.last + key_block - 1) / key_block - first_block),
        row_parts(a, rows, head_parts) {
    // A task reads at least a KiB at a time, and two blocks.
    const index smallest = (static_cast<index>(1024 / sizeof(T)) + a.head_dim) / (a.head_dim + 1);
    const index for_sample = (wanted + a.batch - 1) / a.batch;
    const index fair = (a.kv_heads + for_sample - 1) / for_sample;
    task_heads = fair < smallest ? smallest : fair;
    task_heads = a.kv_heads < task_heads ? a.kv_heads : task_heads;
    head_groups = (a.kv_heads + task_heads - 1) / task_heads;
    const index for_group = (for_sample + head_groups - 1) / head_groups;
    const index fair_blocks = (blocks + for_group - 1) / for_group;
    task_blocks = fair_blocks < 2 ? 2 : fair_blocks;
    block_groups = (blocks + task_blocks - 1) / task_blocks;
    tasks = a.batch * head_groups * block_groups;

    workspace_parts<T> task{task_heads * head_parts.size};
    keys = task.take(decode_step * a.head_dim);
    values = task.take(decode_step * row_parts.value_width);
    task_size = task.size;

    score_size = rows * packed_stride<T>;
    output_size = rows * row_parts.value_width;
    sum_size = rows * vec_lanes<T>;
    workspace_parts<T> head{};
    scores = head.take(blocks * score_size);
    outputs = head.take(blocks * output_size);
    sums = head.take(blocks * sum_size);
    maxima = head.take(blocks * rows);
    head_size = head.size;
    shared_size = a.batch * a.kv_heads * head_size;
  }
};

}  // namespace headwave::detail
