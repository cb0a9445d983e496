// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/score_rule.hpp>
#include <headwave/tensor.hpp>

#include <span>

/// \file
/// Masks that are often wanted, to be given to attention as they are or combined by &&, || and !: see score_rule.hpp.
/// Each says by its formula which key j a query at position i sees, for positions i up to 2^62 on both sides of 0 and
/// keys j from 0 to 2^62 - 1. What a mask hides is skipped in groups of keys where the mask can tell, and where all is
/// visible nothing is asked.
///
/// A count, size or stride that is too small, such as a chunk_mask of 0, is an error (shape_error).

namespace headwave {

namespace detail {

HEADWAVE_INLINE constexpr visibility some_of(bool none, bool all) {
  return none ? visibility::none : all ? visibility::all : visibility::some;
}

/// Rounds towards minus infinity.
HEADWAVE_INLINE constexpr std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

/// From 0 to b - 1: what floor_divide leaves.
HEADWAVE_INLINE constexpr std::int64_t floor_rest(std::int64_t a, std::int64_t b) {
  return a % b < 0 ? a % b + b : a % b;
}

/// A number of a mask that is not less than Least.
template <std::int64_t Least>
class mask_count {
 public:
  HEADWAVE_INLINE constexpr mask_count(std::int64_t value) : value_(value) {
    if (value < Least) [[unlikely]] {
      fail("mask", "a window must be at least 0, a size or stride at least 1: " + std::to_string(value));
    }
  }
  HEADWAVE_INLINE constexpr operator std::int64_t() const { return value_; }

 private:
  std::int64_t value_;
};

HEADWAVE_INLINE void require_mask(bool holds, const char* mask, const char* rule) {
  if (!holds) [[unlikely]] {
    fail(mask, rule);
  }
}

}  // namespace detail

/// j <= i.
struct causal_mask {
  HEADWAVE_INLINE constexpr bool operator()(score_position at) const { return at.key <= at.query; }
  HEADWAVE_INLINE constexpr position_range keys_for(std::int64_t query) const {
    return {INT64_MIN, detail::saturated_sum(query, 1)};
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& r) const {
    return detail::some_of(r.keys.first >= r.queries.last, r.keys.last - 1 <= r.queries.first);
  }
};

/// i - left <= j <= i + right. left and right are not negative; INT64_MAX is no bound.
struct window_mask {
  detail::mask_count<0> left = INT64_MAX, right = INT64_MAX;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const {
    return at.key >= detail::saturated_sum(at.query, -left) && at.key <= detail::saturated_sum(at.query, right);
  }
  HEADWAVE_INLINE constexpr position_range keys_for(std::int64_t query) const {
    return {detail::saturated_sum(query, -left), detail::saturated_sum(detail::saturated_sum(query, right), 1)};
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& r) const {
    const std::int64_t last_query = r.queries.last - 1, last_key = r.keys.last - 1;
    return detail::some_of(last_key < detail::saturated_sum(r.queries.first, -left) ||
                               r.keys.first > detail::saturated_sum(last_query, right),
                           r.keys.first >= detail::saturated_sum(last_query, -left) &&
                               last_key <= detail::saturated_sum(r.queries.first, right));
  }
};

/// j < length or j <= i: a prefix that everybody sees, then causal. Source: Raffel et al. (2020), 3.2.1.
struct prefix_mask {
  std::int64_t length = 0;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const { return at.key < length || at.key <= at.query; }
  HEADWAVE_INLINE constexpr position_range keys_for(std::int64_t query) const {
    const std::int64_t own = detail::saturated_sum(query, 1);
    return {INT64_MIN, own > length ? own : length};
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& r) const {
    return detail::some_of(r.keys.first >= r.queries.last && r.keys.first >= length,
                           r.keys.last - 1 <= r.queries.first || r.keys.last <= length);
  }
};

/// i < count or j < count: the first tokens see all and are seen by all. With a window: Beltagy et al. (2020).
struct global_mask {
  std::int64_t count = 0;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const { return at.query < count || at.key < count; }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& r) const {
    return detail::some_of(r.queries.first >= count && r.keys.first >= count,
                           r.queries.last <= count || r.keys.last <= count);
  }
};

/// floor(i / size) = floor(j / size): only the query's own chunk. size is positive.
struct chunk_mask {
  detail::mask_count<1> size = 1;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const {
    return detail::floor_divide(at.query, size) == detail::floor_divide(at.key, size);
  }
  HEADWAVE_INLINE constexpr position_range keys_for(std::int64_t query) const {
    const std::int64_t before = detail::floor_rest(query, size);
    return {detail::saturated_sum(query, -before), detail::saturated_sum(query, size - before)};
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& r) const {
    const std::int64_t first_query = detail::floor_divide(r.queries.first, size),
                       last_query = detail::floor_divide(r.queries.last - 1, size),
                       first_key = detail::floor_divide(r.keys.first, size),
                       last_key = detail::floor_divide(r.keys.last - 1, size);
    return detail::some_of(last_key < first_query || first_key > last_query,
                           first_query == last_query && first_key == last_key && first_query == first_key);
  }
};

/// i - j is a multiple of stride. stride is positive. Source: Child et al. (2019).
struct dilated_mask {
  detail::mask_count<1> stride = 1;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const {
    return (at.query % stride - at.key % stride) % stride == 0;
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& r) const {
    const std::int64_t nearest = r.queries.first - r.keys.last + 1, farthest = r.queries.last - 1 - r.keys.first;
    const bool any = detail::floor_divide(farthest, stride) > detail::floor_divide(nearest - 1, stride);
    return detail::some_of(!any, stride == 1 || (any && nearest == farthest));
  }
};

/// A function of the distance alone: visible(j - i). Groups of keys that no query of a tile sees are skipped.
template <class F>
struct distance_mask {
  F visible;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const {
    return visible(detail::saturated_difference(at.key, at.query));
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& r) const {
    // The range of the last position that there is has no end.
    const std::int64_t last_query = r.queries.last > r.queries.first ? r.queries.last - 1 : r.queries.first;
    const std::int64_t nearest = detail::saturated_difference(r.keys.last - 1, r.queries.first);
    bool any = false, all = true;
    for (std::int64_t d = detail::saturated_difference(r.keys.first, last_query) - 1; d < nearest;) {
      const bool seen = visible(++d);
      any = any || seen;
      all = all && seen;
    }
    return detail::some_of(!any, all);
  }
};
template <class F>
distance_mask(F) -> distance_mask<F>;

/// Query and key belong to the same document: ids[i] = ids[j]. Positions without an id see nothing and are not seen.
/// ids: [length] for all samples, or [batch, length], or [1, length]; they have to outlive the mask.
class document_mask {
 public:
  HEADWAVE_INLINE explicit document_mask(std::span<const std::int64_t> ids)
      : ids_(ids.data(), {1, ids.size()}, {0, 1}) {}
  HEADWAVE_INLINE explicit document_mask(const tensor_view<const std::int64_t, 2>& ids)
      : ids_(ids.data(), ids.extents(), {ids.extent(0) == 1 ? 0 : ids.stride(0), ids.stride(1)}) {}

  HEADWAVE_INLINE bool operator()(score_position at) const {
    return has_sample(at.batch) && known(at.query) && known(at.key) && id(at.batch, at.query) == id(at.batch, at.key);
  }
  HEADWAVE_INLINE visibility sees(const score_region& r) const {
    const position_range with_id{0, static_cast<std::int64_t>(ids_.extent(1))};
    const position_range queries = detail::both(r.queries, with_id), keys = detail::both(r.keys, with_id);
    if (!has_sample(r.batch) || queries.first >= queries.last || keys.first >= keys.last) {
      return visibility::none;
    }
    const position_range of_queries = ids_between(r.batch, queries), of_keys = ids_between(r.batch, keys);
    const bool same = of_queries.first == of_queries.last && of_keys.first == of_keys.last;
    return detail::some_of(
        of_queries.last < of_keys.first || of_keys.last < of_queries.first,
        same && known(r.queries.first) && known(r.queries.last - 1) && known(r.keys.first) && known(r.keys.last - 1));
  }

 private:
  HEADWAVE_INLINE bool has_sample(std::int64_t batch) const {
    return ids_.extent(0) == 1 || static_cast<std::uint64_t>(batch) < ids_.extent(0);
  }
  HEADWAVE_INLINE bool known(std::int64_t position) const {
    return position >= 0 && static_cast<std::uint64_t>(position) < ids_.extent(1);
  }
  HEADWAVE_INLINE std::int64_t id(std::int64_t batch, std::int64_t position) const {
    return ids_.data()[batch * ids_.stride(0) + position * ids_.stride(1)];
  }
  /// The smallest and the largest.
  HEADWAVE_INLINE position_range ids_between(std::int64_t batch, position_range positions) const {
    position_range ids{INT64_MAX, INT64_MIN};
    for (std::int64_t position = positions.first; position < positions.last; ++position) {
      const std::int64_t here = id(batch, position);
      ids = {here < ids.first ? here : ids.first, here > ids.last ? here : ids.last};
    }
    return ids;
  }

  tensor_view<const std::int64_t, 2> ids_;
};

/// One bit for each pair: bit j mod 64 of words(b, h, i - first_query, j / 64). words: [batch or 1, heads or 1,
/// queries, words of a row]; it has to outlive the mask. Pairs without a bit are hidden.
class bit_mask {
 public:
  HEADWAVE_INLINE explicit bit_mask(const tensor_view<const std::uint64_t, 4>& words, std::int64_t first_query = 0)
      : words_(words), first_query_(first_query) {}

  HEADWAVE_INLINE bool operator()(score_position at) const {
    const std::int64_t row = detail::saturated_difference(at.query, first_query_);
    return has(0, at.batch) && has(1, at.head) && has_row(row) && at.key >= 0 && at.key < keys() &&
           (word(at.batch, at.head, row, at.key / 64) >> (at.key % 64) & 1) != 0;
  }
  HEADWAVE_INLINE visibility sees(const score_region& r) const {
    const position_range with_bits = detail::both(r.keys, {0, keys()});
    if (!has(0, r.batch) || with_bits.first >= with_bits.last) {
      return visibility::none;
    }
    bool any = false, all = with_bits.first == r.keys.first && with_bits.last == r.keys.last;
    const std::int64_t heads = words_.extent(1) == 1 ? r.heads.first + 1 : r.heads.last;
    for (std::int64_t head = r.heads.first; head < heads; ++head) {
      for (std::int64_t query = r.queries.first; query < r.queries.last; ++query) {
        const std::int64_t row = detail::saturated_difference(query, first_query_);
        if (!has(1, head) || !has_row(row)) {
          all = false;
          continue;
        }
        for (std::int64_t w = with_bits.first / 64; w <= (with_bits.last - 1) / 64; ++w) {
          const std::int64_t first = with_bits.first > 64 * w ? with_bits.first - 64 * w : 0;
          const std::int64_t last = with_bits.last < 64 * w + 64 ? with_bits.last - 64 * w : 64;
          const std::uint64_t wanted = (~std::uint64_t{0} >> (64 - (last - first))) << first;
          const std::uint64_t bits = word(r.batch, head, row, w) & wanted;
          any = any || bits != 0;
          all = all && bits == wanted;
        }
      }
    }
    return detail::some_of(!any, all);
  }

 private:
  /// Whether an axis has an index, or repeats its only one.
  HEADWAVE_INLINE bool has(std::size_t axis, std::int64_t i) const {
    return words_.extent(axis) == 1 || static_cast<std::uint64_t>(i) < words_.extent(axis);
  }
  HEADWAVE_INLINE bool has_row(std::int64_t row) const {
    return row >= 0 && static_cast<std::uint64_t>(row) < words_.extent(2);
  }
  HEADWAVE_INLINE std::int64_t keys() const { return static_cast<std::int64_t>(words_.extent(3)) * 64; }
  HEADWAVE_INLINE std::uint64_t word(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t w) const {
    return words_
        .data()[(words_.extent(0) == 1 ? 0 : batch * words_.stride(0)) +
                (words_.extent(1) == 1 ? 0 : head * words_.stride(1)) + row * words_.stride(2) + w * words_.stride(3)];
  }

  tensor_view<const std::uint64_t, 4> words_;
  std::int64_t first_query_;
};

/// Drafts of a tree behind a common prefix: position prefix + n is node n, which sees the prefix, itself and its
/// ancestors. A position that is no node sees the prefix alone, all of it. parents: [nodes] the parent of each node, -1
/// for none; a parent comes before its children; they have to outlive the mask. A question takes as long as the tree is
/// deep. For speculative decoding; source: Miao et al. (2024).
class tree_mask {
 public:
  /// Errors: a negative prefix, or a parent that does not come before its child.
  HEADWAVE_INLINE tree_mask(std::span<const std::int64_t> parents, std::int64_t prefix)
      : parents_(parents), prefix_(prefix) {
    detail::require_mask(prefix >= 0, "tree_mask", "the prefix must not be negative");
    for (std::size_t n = 0; n < parents.size(); ++n) {
      detail::require_mask(parents[n] >= -1 && parents[n] < static_cast<std::int64_t>(n), "tree_mask",
                           "a parent must be -1 or come before its child");
    }
  }

  HEADWAVE_INLINE bool operator()(score_position at) const {
    std::int64_t node = detail::saturated_difference(at.query, prefix_);
    const std::int64_t other = at.key - prefix_;
    if (other < 0 || !is_node(node)) {
      return other < 0 && at.key >= 0;
    }
    while (node > other) {
      node = parents_[static_cast<std::size_t>(node)];
    }
    return node == other;
  }
  HEADWAVE_INLINE position_range keys_for(std::int64_t query) const {
    const std::int64_t own = detail::saturated_sum(query, 1);
    return {0, own > prefix_ ? own : prefix_};
  }
  HEADWAVE_INLINE visibility sees(const score_region& r) const {
    const bool behind_all = r.keys.first >= r.queries.last || !is_node(r.keys.first - prefix_);
    return detail::some_of(r.keys.last <= 0 || (r.keys.first >= prefix_ && behind_all),
                           r.keys.first >= 0 && r.keys.last <= prefix_);
  }

 private:
  HEADWAVE_INLINE bool is_node(std::int64_t n) const {
    return n >= 0 && static_cast<std::uint64_t>(n) < parents_.size();
  }

  std::span<const std::int64_t> parents_;
  std::int64_t prefix_;
};

/// A list of visible blocks of query_block x key_block pairs: row r of blocks holds the positions r * query_block ..,
/// and sees the blocks of keys columns[offsets[r]] .. columns[offsets[r + 1] - 1], in rising order. Both spans have to
/// outlive the mask. Rows of blocks that are not listed see nothing. Source: block-sparse rows as in Gray et al.
/// (2017).
class block_sparse_mask {
 public:
  /// Errors: blocks without size, offsets or columns that do not rise.
  HEADWAVE_INLINE block_sparse_mask(std::int64_t query_block, std::int64_t key_block,
                                    std::span<const std::int64_t> offsets, std::span<const std::int64_t> columns)
      : query_block_(query_block), key_block_(key_block), offsets_(offsets), columns_(columns) {
    const auto require = [](bool holds, const char* rule) { detail::require_mask(holds, "block_sparse_mask", rule); };
    require(query_block > 0 && key_block > 0, "blocks must not be empty");
    require(!offsets.empty() && offsets.front() == 0 && static_cast<std::uint64_t>(offsets.back()) == columns.size(),
            "offsets must begin with 0 and end with the number of columns");
    for (std::size_t r = 0; r + 1 < offsets.size(); ++r) {
      require(offsets[r] <= offsets[r + 1], "offsets must not decrease");
    }
    for (std::size_t r = 0; r + 1 < offsets.size(); ++r) {
      for (std::int64_t i = offsets[r] + 1; i < offsets[r + 1]; ++i) {
        require(column(i - 1) < column(i), "columns of a row must rise");
      }
    }
  }

  HEADWAVE_INLINE bool operator()(score_position at) const { return blocks_between(at.query, at.key, at.key) > 0; }
  HEADWAVE_INLINE visibility sees(const score_region& r) const {
    bool any = false, all = true;
    const std::int64_t blocks =
        detail::floor_divide(r.keys.last - 1, key_block_) - detail::floor_divide(r.keys.first, key_block_) + 1;
    for (std::int64_t query = r.queries.first; query < r.queries.last;) {
      const std::int64_t seen = blocks_between(query, r.keys.first, r.keys.last - 1);
      any = any || seen > 0;
      all = all && seen == blocks;
      query = detail::saturated_sum(query, query_block_ - detail::floor_rest(query, query_block_));
    }
    return detail::some_of(!any, all);
  }

 private:
  HEADWAVE_INLINE std::int64_t column(std::int64_t i) const { return columns_[static_cast<std::size_t>(i)]; }
  /// How many visible blocks of a query lie between those of two keys, both included.
  HEADWAVE_INLINE std::int64_t blocks_between(std::int64_t query, std::int64_t first_key, std::int64_t last_key) const {
    const std::int64_t row = detail::floor_divide(query, query_block_);
    if (row < 0 || static_cast<std::uint64_t>(row) + 1 >= offsets_.size()) {
      return 0;
    }
    const auto place = static_cast<std::size_t>(row);
    return first_not_below(offsets_[place], offsets_[place + 1], detail::floor_divide(last_key, key_block_) + 1) -
           first_not_below(offsets_[place], offsets_[place + 1], detail::floor_divide(first_key, key_block_));
  }
  HEADWAVE_INLINE std::int64_t first_not_below(std::int64_t first, std::int64_t last, std::int64_t block) const {
    while (first < last) {
      const std::int64_t middle = first + (last - first) / 2;
      if (column(middle) < block) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  }

  std::int64_t query_block_, key_block_;
  std::span<const std::int64_t> offsets_, columns_;
};

}  // namespace headwave
