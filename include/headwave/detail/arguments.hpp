// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/config.hpp>

#include <cstdint>

// What a kernel is told: pointers, strides and counts, resolved and checked by the public headers. All strides are in
// elements.

namespace headwave::detail {

/// Elements of a vec<T> on every tier: one cache line.
template <class T>
inline constexpr index vec_lanes = static_cast<index>(64 / sizeof(T));

HEADWAVE_INLINE constexpr index round_up(index n, index multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Consecutive rows of sines and cosines.
template <class T>
struct sinusoid_arguments {
  std::uint64_t* phases;       ///< of the first row, padded to whole vecs; written
  const std::uint64_t* steps;  ///< what a row adds to them, padded likewise
  T* out;
  index row_stride, rows;
  index firsts, seconds, channels;  ///< channels of the first and second function; the rest up to channels is zero
  bool interleaved, cosine_first;
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

/// Rows of A are packed in blocks of so many k, each packed_stride long: detail/kernels/gemm.inl.
inline constexpr index depth_block = 256;

/// Half a cache line more than a block of floats, so that the rows of a tile lie in different sets and banks of the
/// cache.
template <class T>
inline constexpr index packed_stride = depth_block + static_cast<index>(32 / sizeof(T));

/// Elements of count packed rows.
template <class T>
HEADWAVE_INLINE index packed_rows_size(index count, index depth) {
  return count * packed_stride<T> * ((depth + depth_block - 1) / depth_block);
}

/// At most so many rows of A are packed at a time: they share the L2 cache with the panels that pass.
template <class T>
HEADWAVE_INLINE index gemm_block_rows(const gemm_arguments<T>& product) {
  const index fitting = static_cast<index>(448 * 1024 / sizeof(T)) / (product.depth + 1);
  return fitting < 48 ? 48 : fitting < 144 ? fitting : 144;
}

template <class T>
HEADWAVE_INLINE index gemm_workspace(const gemm_arguments<T>& product) {
  const index rows = gemm_block_rows(product);
  return packed_rows_size<T>(product.rows < rows ? product.rows : rows, product.depth);
}

/// A four-dimensional operand: data + b * batch + h * head + l * length + c * channel.
template <class T>
struct strided4 {
  T* data;
  index batch, head, length, channel;
};

template <class T>
struct attention_arguments {
  strided4<const T> query, key, value;
  strided4<T> out;
  index batch, query_length, key_length, heads, kv_heads, head_dim, value_dim;

  T scale;
  T softcap;                              ///< 0: none
  strided4<const T> bias;                 ///< [b][h][query = length][key = channel]; null: none
  strided4<const unsigned char> visible;  ///< likewise
  bool causal;
  std::int64_t query_start;                ///< position of query row 0
  const std::int64_t* query_starts;        ///< one per sample, instead of query_start; null: none
  std::int64_t window_left, window_right;  ///< PTRDIFF_MAX: unlimited
  const std::int64_t* key_lengths;         ///< one per sample; null: none
  const T* alibi_slopes;                   ///< one per head; null: none
  const T* sinks;                          ///< one per head; null: none
  const T* bias_key;                       ///< [kv_heads][head_dim], a key that every query sees; null: none
  const T* bias_value;                     ///< [kv_heads][value_dim]
  bool zero_key;                           ///< one more such key whose score and value are zero

  strided4<T> lse;      ///< channel unused; null: not wanted
  strided4<T> weights;  ///< [b][h][query = length][key = channel], the two keys above last; null: not wanted
};

/// Keys first .. last-1.
struct key_range {
  index first, last;
};

/// What an attention task knows of one of its rows.
struct attention_row {
  index query, head;
  std::int64_t position;
  key_range keys;  ///< that causality, window and key length leave to it
};

/// Keys between two fixed boundaries, whose contribution is summed from zero before it joins the output. A change of
/// this number changes the last bits of every result.
inline constexpr index key_block = depth_block;

/// At most so many rows of queries form a tile on any tier.
inline constexpr index largest_tile = 16;

/// How an attention call is cut into tasks, and where the parts of a task's workspace lie, in elements from its start.
template <class T>
struct attention_workspace {
  index all_rows;     ///< query rows that read one key/value head
  index rows;         ///< of them, at most so many in a task
  index blocks;       ///< tasks of one key/value head
  index tasks;        ///< of the whole call
  index value_width;  ///< value_dim, rounded up to whole vecs
  index keys, values, queries, output, sums, references, row_facts, scores, hidden, size;

  HEADWAVE_INLINE explicit attention_workspace(const attention_arguments<T>& a) {
    constexpr index lanes = vec_lanes<T>;
    all_rows = a.query_length * (a.heads / a.kv_heads);
    value_width = round_up(a.value_dim, lanes);
    // Queries and outputs of a task take about 128 KiB, so that they share the L2 cache with a block of keys and
    // values.
    const index budget = static_cast<index>(128 * 1024 / sizeof(T)) / (a.head_dim + value_width + lanes);
    rows = budget < 48 ? 48 : budget;
    blocks = (all_rows + rows - 1) / rows;
    rows = (all_rows + blocks - 1) / blocks;
    tasks = a.batch * a.kv_heads * blocks;
    index next = 0;
    keys = take(next, key_block * a.head_dim);
    values = take(next, key_block * value_width);
    queries = take(next, packed_rows_size<T>(rows, a.head_dim));
    output = take(next, rows * value_width);
    sums = take(next, rows * lanes);
    references = take(next, rows);
    row_facts = take(next, rows * static_cast<index>(sizeof(attention_row) / sizeof(T)));
    scores = take(next, largest_tile * packed_stride<T>);
    hidden = take(next, largest_tile * key_block / static_cast<index>(sizeof(T)));
    size = next;
  }

 private:
  HEADWAVE_INLINE static index take(index& next, index count) {
    const index start = next;
    next += round_up(count, vec_lanes<T>);
    return start;
  }
};

}  // namespace headwave::detail
