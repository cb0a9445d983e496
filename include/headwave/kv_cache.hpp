// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>

/// \file
/// Keys and values of what a model has already seen, so that the next tokens attend to them without computing them
/// again: append, then attend. A row of a result has the same bits as in one attention over all keys (for the cache's
/// element type).

namespace headwave {

struct kv_cache_options {
  std::size_t batch = 1;
  std::size_t capacity = 0;  ///< keys of a sample that are kept
  std::size_t kv_heads = 1;
  std::size_t head_dim = 0;
  std::size_t value_dim = 0;  ///< 0: head_dim
  /// A sample may grow past the capacity: then its oldest keys are forgotten, one for one, while positions go on. For
  /// windows: a query that is appended with n - 1 others sees window.left keys if the capacity is window.left + n.
  bool rolling = false;
};

namespace detail {

template <class T, class Stored>
inline constexpr bool is_cached_as =
    is_stored_as<Stored, T> || (std::is_same_v<T, float> && std::is_same_v<Stored, std::int8_t>);

/// What a cache holds.
template <class Stored>
struct cache_state {
  kv_cache_options shape;
  tensor<Stored, 4> keys, values;             // [batch, capacity, kv_heads, head_dim or value_dim]
  tensor<float, 3> key_scales, value_scales;  // [batch, capacity, kv_heads], of int8
  tensor<std::int64_t, 2> marks;              // [2][batch]: lengths, first keys that are kept

  HEADWAVE_INLINE explicit cache_state(const kv_cache_options& o)
      : shape(o),
        keys({o.batch, o.capacity, o.kv_heads, o.head_dim}, uninitialized),
        values({o.batch, o.capacity, o.kv_heads, o.value_dim}, uninitialized),
        key_scales({std::is_same_v<Stored, std::int8_t> ? o.batch : 0, o.capacity, o.kv_heads}, uninitialized),
        value_scales(key_scales.extents(), uninitialized),
        marks({2, o.batch}) {}
  HEADWAVE_INLINE cache_state(const cache_state&) = default;
  HEADWAVE_INLINE cache_state(cache_state&&) = default;
  HEADWAVE_INLINE cache_state& operator=(const cache_state& other) {
    return *this = cache_state(other);  // all of it or, without memory, nothing
  }
  HEADWAVE_INLINE cache_state& operator=(cache_state&&) = default;
  HEADWAVE_INLINE ~cache_state() = default;

  HEADWAVE_INLINE std::int64_t& length(std::size_t b) { return marks(0u, b); }
  HEADWAVE_INLINE std::int64_t length(std::size_t b) const { return marks(0u, b); }
  HEADWAVE_INLINE std::int64_t& start(std::size_t b) { return marks(1u, b); }
  HEADWAVE_INLINE std::int64_t start(std::size_t b) const { return marks(1u, b); }
};

}  // namespace detail

namespace detail::inline HEADWAVE_ABI {

/// Checked, with every default filled in.
inline kv_cache_options filled_in(kv_cache_options o) {
  o.value_dim = o.value_dim ? o.value_dim : o.head_dim;
  const std::size_t shape[] = {o.batch, o.capacity, o.kv_heads, o.head_dim, o.value_dim};
  if (o.capacity == 0 || o.kv_heads == 0) {
    fail("kv_cache", "capacity and kv_heads must be positive",
         {{"batch, capacity, kv_heads, head_dim, value_dim", shape, 5}});
  }
  checked_product("kv_cache", checked_product("kv_cache", o.batch ? o.batch : 1, o.capacity), o.kv_heads);
  return o;
}

/// A head's row in 8 bits: round(x / scale), scale = max |x| / 127. Returns the scale, which is NaN if an element is
/// not finite.
template <class T>
float store_row(std::int8_t* target, const T* source, index stride, std::size_t count) {
  T largest = 0;
  bool finite = true;
  for (std::size_t c = 0; c < count; ++c) {
    const T x = source[static_cast<index>(c) * stride];
    finite = finite && is_finite(x);
    largest = x > largest ? x : -x > largest ? -x : largest;
  }
  // The inverse of a tiny number is infinite.
  const T unit = largest < T(0x1p-100) ? T(0x1p100) : T(1);
  const T inverse = largest > 0 ? 127 / (largest * unit) : T(0);
  for (std::size_t c = 0; c < count; ++c) {
    const T x = finite ? source[static_cast<index>(c) * stride] * unit * inverse : T(0);
    const int whole = static_cast<int>(x);
    const T rest = x - static_cast<T>(whole);
    target[c] = static_cast<std::int8_t>(whole + (rest >= T(0.5) ? 1 : 0) - (rest <= T(-0.5) ? 1 : 0));
  }
  return finite ? static_cast<float>(largest / 127) : from_bits<float>(0x7fc00000);
}
template <class Stored, class T>
float store_row(Stored* target, const T* source, index stride, std::size_t count) {
  for (std::size_t c = 0; c < count; ++c) {
    target[c] = static_cast<Stored>(source[static_cast<index>(c) * stride]);
  }
  return 1;
}

/// Copies x(b, row, :, :) to the place of a position.
template <class Stored, class T>
void store_position(tensor<Stored, 4>& target, tensor<float, 3>& scales, const tensor_view<const T, 4>& x,
                    std::size_t b, std::size_t row, std::size_t place) {
  for (std::size_t h = 0; h < x.extent(2); ++h) {
    const T* const source = x.data() + static_cast<index>(b) * x.stride(0) + static_cast<index>(row) * x.stride(1) +
                            static_cast<index>(h) * x.stride(2);
    // Not an element's address: a row may have none.
    Stored* const row_of_head = target.data() + ((b * target.extent(1) + place) * x.extent(2) + h) * x.extent(3);
    const float scale = store_row(row_of_head, source, x.stride(3), x.extent(3));
    if (!scales.empty()) {
      scales(b, place, h) = scale;
    }
  }
}

template <class Stored, class T>
void append_to_cache(cache_state<Stored>& cache, const tensor_view<const T, 4>& keys,
                     const tensor_view<const T, 4>& values, std::span<const std::int64_t> counts) {
  const kv_cache_options& o = cache.shape;
  const std::size_t rows = keys.extent(1);
  const auto require = [&](bool holds, const std::string& rule) {
    if (!holds) {
      const std::size_t shape[] = {o.batch, o.capacity, o.kv_heads, o.head_dim, o.value_dim};
      fail("kv_cache::append", rule,
           {{"keys", keys.extents().data(), 4},
            {"values", values.extents().data(), 4},
            {"batch, capacity, kv_heads, head_dim, value_dim", shape, 5}});
    }
  };
  require(keys.extents() == std::array<std::size_t, 4>{o.batch, rows, o.kv_heads, o.head_dim},
          "keys must be [batch, length, kv_heads, head_dim]");
  require(values.extents() == std::array<std::size_t, 4>{o.batch, rows, o.kv_heads, o.value_dim},
          "values must be [batch, length, kv_heads, value_dim]");
  require(!counts.data() || counts.size() == o.batch, "counts must have one element for each sample");
  const auto count_of = [&](std::size_t b) { return counts.data() ? counts[b] : static_cast<std::int64_t>(rows); };
  const auto capacity = static_cast<std::int64_t>(o.capacity);
  for (std::size_t b = 0; b < o.batch; ++b) {
    const std::int64_t count = count_of(b);
    require(count >= 0 && static_cast<std::uint64_t>(count) <= rows, "counts must lie between 0 and length");
    require(o.rolling || count <= capacity - cache.length(b), "sample " + std::to_string(b) + " exceeds the capacity");
  }
  for (std::size_t b = 0; b < o.batch; ++b) {
    const std::int64_t count = count_of(b);
    // Of more rows than the capacity only the last stay.
    for (std::int64_t row = count > capacity ? count - capacity : 0; row < count; ++row) {
      const auto place = static_cast<std::size_t>((cache.length(b) + row) % capacity);
      store_position(cache.keys, cache.key_scales, keys, b, static_cast<std::size_t>(row), place);
      store_position(cache.values, cache.value_scales, values, b, static_cast<std::size_t>(row), place);
    }
    cache.length(b) += count;
    const std::int64_t oldest = cache.length(b) - capacity;
    cache.start(b) = cache.start(b) < oldest ? oldest : cache.start(b);
  }
}

/// Errors as of truncate.
template <class Stored>
void check_truncation(const cache_state<Stored>& cache, std::size_t b, std::int64_t length) {
  if (b >= cache.shape.batch) {
    fail("kv_cache::truncate", "no sample " + std::to_string(b) + " of " + std::to_string(cache.shape.batch));
  }
  if (length < cache.start(b) || length > cache.length(b)) {
    fail("kv_cache::truncate", "a length must lie between the first key that is kept and the present length: " +
                                   std::to_string(length) + ", sample " + std::to_string(b) + " has " +
                                   std::to_string(cache.start(b)) + " .. " + std::to_string(cache.length(b)));
  }
}

/// Every sample that is longer gets a length, or none does.
template <class Stored>
void truncate_cache(cache_state<Stored>& cache, std::int64_t length) {
  const auto shorter = [&](std::size_t b) { return length < cache.length(b) ? length : cache.length(b); };
  for (std::size_t b = 0; b < cache.shape.batch; ++b) {
    check_truncation(cache, b, shorter(b));
  }
  for (std::size_t b = 0; b < cache.shape.batch; ++b) {
    cache.length(b) = shorter(b);
  }
}

template <class X>
X samples_of(const X& x, std::span<const std::int64_t> sources) {
  X taken(x.extents(), uninitialized);
  const std::size_t sample = x.extent(0) ? x.size() / x.extent(0) : 0;
  for (std::size_t b = 0; b < x.extent(0); ++b) {
    std::copy_n(x.data() + static_cast<std::size_t>(sources[b]) * sample, sample, taken.data() + b * sample);
  }
  return taken;
}

template <class Stored>
void reorder_cache(cache_state<Stored>& cache, std::span<const std::int64_t> sources) {
  bool known = sources.size() == cache.shape.batch;
  for (const std::int64_t source : sources) {
    known = known && source >= 0 && static_cast<std::uint64_t>(source) < cache.shape.batch;
  }
  if (!known) {
    fail("kv_cache::reorder", "sources must name a sample of the cache for each sample");
  }
  // Memory that is missing is so before anything has changed.
  tensor<Stored, 4> keys = samples_of(cache.keys, sources), values = samples_of(cache.values, sources);
  tensor<float, 3> key_scales = samples_of(cache.key_scales, sources);
  tensor<float, 3> value_scales = samples_of(cache.value_scales, sources);
  tensor<std::int64_t, 2> marks({2, cache.shape.batch});
  for (std::size_t b = 0; b < cache.shape.batch; ++b) {
    marks(0u, b) = cache.length(static_cast<std::size_t>(sources[b]));
    marks(1u, b) = cache.start(static_cast<std::size_t>(sources[b]));
  }
  cache.keys = static_cast<tensor<Stored, 4>&&>(keys);
  cache.values = static_cast<tensor<Stored, 4>&&>(values);
  cache.key_scales = static_cast<tensor<float, 3>&&>(key_scales);
  cache.value_scales = static_cast<tensor<float, 3>&&>(value_scales);
  cache.marks = static_cast<tensor<std::int64_t, 2>&&>(marks);
}

/// Takes back what is appended during its life, unless it is told to keep it. What a rolling cache has forgotten for it
/// does not return.
template <class Stored>
class pending_append {
 public:
  /// lengths: those before.
  pending_append(cache_state<Stored>& cache, const std::int64_t* lengths) : cache_(cache), lengths_(lengths) {}
  pending_append(const pending_append&) = delete;
  pending_append& operator=(const pending_append&) = delete;
  ~pending_append() {
    for (std::size_t b = 0; !kept_ && b < cache_.shape.batch; ++b) {
      cache_.length(b) = lengths_[b];
      cache_.start(b) = cache_.start(b) < lengths_[b] ? cache_.start(b) : lengths_[b];
    }
  }
  void keep() { kept_ = true; }

 private:
  cache_state<Stored>& cache_;
  const std::int64_t* lengths_;
  bool kept_ = false;
};

template <class Stored>
attention_rows_view rows_of_cache(const tensor<Stored, 4>& x, const tensor<float, 3>& scales, std::size_t length,
                                  bool rolling) {
  attention_rows_view view = rows_of_keys(x);
  view.extents[1] = length;
  view.rows.ring = rolling ? static_cast<index>(x.extent(1)) : 0;
  if (!scales.empty()) {
    view.rows.scales = scales.data();
    view.rows.scale_batch = scales.stride(0);
    view.rows.scale_length = scales.stride(1);
    view.rows.scale_head = scales.stride(2);
  }
  return view;
}

/// Checks an attention call to a cache to which appended rows will have been added, and returns its shape.
template <class T, class Stored>
attention_shape check_cache_call(const char* function, const std::array<std::size_t, 4>& query,
                                 const cache_state<Stored>& cache, std::size_t appended,
                                 const attention_options<T>& options, std::size_t added_columns) {
  const kv_cache_options& o = cache.shape;
  std::int64_t longest = 0;
  for (std::size_t b = 0; b < o.batch; ++b) {
    const std::int64_t more = appended > 0 && b < options.query_lengths.size() ? options.query_lengths[b]
                                                                               : static_cast<std::int64_t>(appended);
    longest = cache.length(b) + more > longest ? cache.length(b) + more : longest;
  }
  const auto length = static_cast<std::size_t>(longest);
  const attention_shape s{
      function, query, {o.batch, length, o.kv_heads, o.head_dim}, {o.batch, length, o.kv_heads, o.value_dim}};
  check_shapes(s);
  if (options.key_lengths.data() || options.query_offsets.data() || options.key_offsets.data()) {
    s.fail_with("key_lengths, query_offsets and key_offsets cannot be given with a cache");
  }
  check_options(s, options, added_columns);
  return s;
}

/// Attention to what a cache holds, on checked arguments. query_starts are given.
template <class T, class Stored>
void attend_to_cache(const stored4<void>& out, const stored4<const void>& query, const attention_shape& shape,
                     const cache_state<Stored>& cache, attention_options<T> options, const rule_arguments<T>& rule,
                     const added_keys<T>& added = {}) {
  options.key_lengths = {cache.marks.data(), cache.shape.batch};
  attend({query, rows_of_cache(cache.keys, cache.key_scales, shape.key[1], cache.shape.rolling),
          rows_of_cache(cache.values, cache.value_scales, shape.key[1], cache.shape.rolling), out, shape},
         options, rule, added, cache.marks.data() + cache.shape.batch);
}

template <class T, class Stored>
void check_and_attend_to_cache(const stored4<void>& out, const std::array<std::size_t, 4>& out_extents,
                               const stored4<const void>& query, const std::array<std::size_t, 4>& query_extents,
                               const cache_state<Stored>& cache, attention_options<T> options,
                               const rule_arguments<T>& rule) {
  const attention_shape s = check_cache_call("scaled_dot_product_attention", query_extents, cache, 0, options, 0);
  s.require_shape<4>("out", out_extents, {s.query[0], s.query[1], s.query[2], s.value[3]});
  scratch_frame frame;
  if (!options.query_start && !options.query_starts.data()) {
    std::int64_t* const starts = frame.take<std::int64_t>(cache.shape.batch);
    for (std::size_t b = 0; b < cache.shape.batch; ++b) {
      starts[b] = cache.length(b) - static_cast<std::int64_t>(s.query_length());
    }
    options.query_starts = {starts, cache.shape.batch};
  }
  attend_to_cache(out, query, s, cache, options, rule);
}

}  // namespace detail::inline HEADWAVE_ABI

/// Keys and values of a batch of sequences. T: what attention computes in, float or double; Stored: what elements are
/// kept as, T, or for float also bfloat16, float16 or int8 (each row of a head times a factor of its own, so that its
/// largest element is 127). Const members may run at the same time.
template <class T, class Stored = T>
class kv_cache {
  static_assert(detail::is_cached_as<T, Stored>,
                "a cache of float holds float, bfloat16, float16 or int8; of double, double");

 public:
  /// An empty cache. Memory is asked for once. Errors: no capacity or heads; sizes that overflow.
  HEADWAVE_INLINE explicit kv_cache(const kv_cache_options& options) : state_(detail::filled_in(options)) {}
  HEADWAVE_INLINE kv_cache(const kv_cache&) = default;
  HEADWAVE_INLINE kv_cache(kv_cache&&) = default;
  HEADWAVE_INLINE kv_cache& operator=(const kv_cache&) = default;
  HEADWAVE_INLINE kv_cache& operator=(kv_cache&&) = default;
  HEADWAVE_INLINE ~kv_cache() = default;

  /// value_dim filled in.
  HEADWAVE_INLINE const kv_cache_options& options() const { return state_.shape; }

  /// How many keys each sample has seen, [batch]: the next one stands at that position.
  HEADWAVE_INLINE std::span<const std::int64_t> lengths() const { return {state_.marks.data(), state_.shape.batch}; }
  /// The first position of each sample whose key is still there, [batch]: 0 unless the cache has rolled.
  HEADWAVE_INLINE std::span<const std::int64_t> first_keys() const {
    return {state_.marks.data() + state_.shape.batch, state_.shape.batch};
  }

  /// Adds keys [batch, length, kv_heads, head_dim] and values [batch, length, kv_heads, value_dim] of T at the end of
  /// every sample. counts: how many of them a sample really gets, [batch]; default: all. Errors: other shapes; a sample
  /// that would exceed the capacity, unless the cache is rolling. Then nothing is added.
  template <class Keys, class Values>
    requires(tensor_like<const Keys, 4> && tensor_like<const Values, 4>)
  HEADWAVE_INLINE void append(const Keys& keys, const Values& values, std::span<const std::int64_t> counts = {}) {
    detail::append_to_cache<Stored, T>(state_, as_view(keys), as_view(values), counts);
  }

  /// Forgets the keys from a length on, of every sample or of one: drafts that were rejected. Errors: longer than the
  /// one sample, before the first key of any, or no such sample. Then nothing is forgotten.
  HEADWAVE_INLINE void truncate(std::int64_t length) { detail::truncate_cache(state_, length); }
  HEADWAVE_INLINE void truncate(std::size_t sample, std::int64_t length) {
    detail::check_truncation(state_, sample, length);
    state_.length(sample) = length;
  }

  /// Sample b becomes what sample sources[b] was, for beam search. sources: [batch], may repeat. Errors: a sample that
  /// does not exist.
  HEADWAVE_INLINE void reorder(std::span<const std::int64_t> sources) { detail::reorder_cache(state_, sources); }

  /// Empties every sample.
  HEADWAVE_INLINE void clear() {
    for (std::size_t b = 0; b < state_.shape.batch; ++b) {
      state_.length(b) = state_.start(b) = 0;
    }
  }

  /// For the functions below.
  HEADWAVE_INLINE const detail::cache_state<Stored>& state() const { return state_; }
  HEADWAVE_INLINE detail::cache_state<Stored>& state() { return state_; }

 private:
  detail::cache_state<Stored> state_;
};

inline namespace HEADWAVE_ABI {

/// Writes the attention of query [batch, query_length, heads, head_dim] to all that the cache holds to out
/// [batch, query_length, heads, value_dim]. The queries are those of the keys appended last: row i of sample b stands
/// at lengths()[b] - query_length + i, unless query_start or query_starts say otherwise; give causal with more than
/// one. Options and rules as in attention.hpp, key_length being the longest sample's; key_lengths and query_offsets
/// cannot be given. Errors: shapes or options that disagree.
template <class Out, class Query, class T, class Stored, class... Rules>
  requires(attention_output<Out, T> && attention_queries<Query, T> && (score_rule<Rules, T> && ...))
void scaled_dot_product_attention_into(Out&& out, const Query& query, const kv_cache<T, Stored>& cache,
                                       const std::type_identity_t<attention_options<T>>& options = {},
                                       const Rules&... rules) {
  const auto list = detail::list_rules(rules...);
  const auto q = as_view(query);
  const auto o = as_view(out);
  detail::check_and_attend_to_cache<T>(detail::stored<void>(o), o.extents(), detail::stored<const void>(q), q.extents(),
                                       cache.state(), options, detail::arguments_of<T>(list));
}

/// The same as a new tensor of the query's elements.
template <class Query, class T, class Stored, class... Rules>
  requires(attention_queries<Query, T> && (score_rule<Rules, T> && ...))
tensor<element_of<const Query>, 4> scaled_dot_product_attention(
    const Query& query, const kv_cache<T, Stored>& cache,
    const std::type_identity_t<attention_options<T>>& options = {}, const Rules&... rules) {
  const auto q = as_view(query);
  tensor<element_of<const Query>, 4> out({q.extent(0), q.extent(1), q.extent(2), cache.options().value_dim},
                                         uninitialized);
  scaled_dot_product_attention_into(out, query, cache, options, rules...);
  return out;
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
