// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/dispatch.hpp>
#include <headwave/detail/phase.hpp>
#include <headwave/detail/scratch.hpp>
#include <headwave/positional_encoding.hpp>
#include <headwave/tensor.hpp>

#include <utility>

/// \file
/// Positions that are not sinusoids: the slopes of ALiBi, the buckets of T5, and learned tables of positions.

namespace headwave {

/// How T5 puts distances into buckets.
struct t5_bucket_options {
  int buckets = 32;                 ///< of both directions together
  std::int64_t max_distance = 128;  ///< from here on all distances are in the last bucket
  bool bidirectional = true;        ///< half of the buckets for keys after the query; false: such keys are in bucket 0
};

namespace detail::inline HEADWAVE_ABI {

/// A natural number in limbs of 64 bits, the lowest first, in somebody else's memory.
class natural_number {
 public:
  explicit natural_number(std::uint64_t* limbs) : limbs_(limbs) { limbs_[0] = 1; }

  void multiply(std::uint64_t factor, int times) {
    for (int i = 0; i < times; ++i) {
      uint128 carry = 0;
      for (std::size_t limb = 0; limb < size_; ++limb) {
        carry += static_cast<uint128>(limbs_[limb]) * factor;
        limbs_[limb] = static_cast<std::uint64_t>(carry);
        carry >>= 64;
      }
      if (carry) {
        limbs_[size_++] = static_cast<std::uint64_t>(carry);
      }
    }
  }

  /// For numbers that are not zero, so that the top limb is not either.
  bool less_than(const natural_number& other) const {
    if (size_ != other.size_) {
      return size_ < other.size_;
    }
    for (std::size_t limb = size_; limb-- > 0;) {
      if (limbs_[limb] != other.limbs_[limb]) {
        return limbs_[limb] < other.limbs_[limb];
      }
    }
    return false;
  }

 private:
  std::uint64_t* limbs_;
  std::size_t size_ = 1;
};

/// The buckets of one direction. With exact = count / 2, each distance below exact has a bucket of its own; the others
/// are cut at the distances n where log(n / exact) / log(max_distance / exact) * (count - exact) is a whole number.
class t5_buckets {
 public:
  t5_buckets(const char* function, const t5_bucket_options& options)
      : count_(options.bidirectional ? options.buckets / 2 : options.buckets), exact_(count_ / 2), limit_(0) {
    if (count_ < 1) {
      fail(function, "each direction needs a bucket: buckets = " + std::to_string(options.buckets));
    }
    if (options.max_distance <= exact_) {
      fail(function, "max_distance must exceed the distances that have a bucket of their own: " +
                         std::to_string(options.max_distance) + " <= " + std::to_string(exact_));
    }
    limit_ = static_cast<std::uint64_t>(options.max_distance);
    // No product below has more factors than that, each of one limb.
    const auto limbs = static_cast<std::size_t>(count_ - exact_) + 1;
    power_ = frame_.take<std::uint64_t>(limbs);
    border_ = frame_.take<std::uint64_t>(limbs);
  }

  int count() const { return count_; }

  int bucket_of(std::uint64_t distance) const {
    if (distance < static_cast<std::uint64_t>(exact_)) {
      return static_cast<int>(distance);
    }
    int low = exact_, high = count_ - 1;
    if (distance >= limit_) {
      return high;
    }
    while (low < high) {
      const int middle = low + (high - low + 1) / 2;
      if (reaches(distance, middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  /// The smallest distance in a bucket or a later one.
  std::uint64_t first_distance(int bucket) const {
    if (bucket <= exact_) {
      return static_cast<std::uint64_t>(bucket);
    }
    auto low = static_cast<std::uint64_t>(exact_), high = limit_;
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (reaches(middle, bucket)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

 private:
  /// Whether a distance n from exact to max_distance is in a bucket exact + b or a later one: without the logarithms,
  /// whether n^k >= max_distance^b exact^(k - b), k = count - exact.
  bool reaches(std::uint64_t distance, int bucket) const {
    const int wide = count_ - exact_, step = bucket - exact_;
    natural_number power(power_), border(border_);
    power.multiply(distance, wide);
    border.multiply(limit_, step);
    border.multiply(static_cast<std::uint64_t>(exact_), wide - step);
    return !power.less_than(border);
  }

  int count_, exact_;
  std::uint64_t limit_;
  scratch_frame frame_;
  std::uint64_t* power_ = nullptr;
  std::uint64_t* border_ = nullptr;
};

/// Elements of clipped_biases for so many heads.
inline std::size_t clipped_biases_size(const char* function, std::size_t heads, std::int64_t max_distance) {
  // What no std::size_t counts is too much below.
  const auto distances = static_cast<std::size_t>(max_distance < 0             ? 0
                                                  : max_distance < PTRDIFF_MAX ? max_distance
                                                                               : PTRDIFF_MAX);
  return checked_product(function, heads, checked_product(function, 2, distances) + 1);
}

/// biases[head][max_distance + d] = table(bucket of d, head) for the distances d = key - query from -max_distance to
/// max_distance; farther ones have the biases of these. table: [buckets, heads], as T5 stores it. biases:
/// clipped_biases_size elements.
template <class T>
void clipped_biases(const char* function, T* biases, const tensor_view<const T, 2>& table,
                    const t5_bucket_options& options) {
  const t5_buckets buckets(function, options);
  if (table.extent(0) != static_cast<std::size_t>(options.buckets)) {
    fail(
        function,
        differ("the table must have a row for each bucket", table.extent(0), static_cast<std::size_t>(options.buckets)),
        {{"table", table.extents().data(), 2}});
  }
  const auto farthest = static_cast<index>(options.max_distance);
  index first = 0;
  for (int bucket = 0; bucket < buckets.count(); ++bucket) {
    const bool last = bucket + 1 == buckets.count();
    const index next = last ? farthest + 1 : static_cast<index>(buckets.first_distance(bucket + 1));
    const int after = options.bidirectional ? buckets.count() + bucket : 0;
    T* centre = biases + farthest;
    for (std::size_t head = 0; head < table.extent(1); ++head, centre += 2 * farthest + 1) {
      for (index distance = first; distance < next; ++distance) {
        centre[distance] = table(after, head);
        centre[-distance] = table(bucket, head);  // last, because 0 is no key after the query
      }
    }
    first = next;
  }
}

/// x to the nearest T, for x from 2^-62 to 2^62.
template <class T>
T narrow(const wide_float& x) {
  // Half of the mantissa, because 2^128, to which it may round, is no float.
  const T half = static_cast<T>(x.mantissa >> 1) * T(0x1p-126);
  const T power = static_cast<T>(std::uint64_t(1) << (x.exponent < 0 ? -x.exponent : x.exponent));
  return x.exponent < 0 ? half / power : half * power;
}

template <class T>
void fill_alibi_slopes(const tensor_view<T, 1>& slopes) {
  const std::size_t heads = slopes.extent(0);
  std::size_t whole = 1;  // the largest power of two that is at most heads
  while (whole <= heads / 2) {
    whole *= 2;
  }
  // In integers of 128 bits, so that powers of two are exact and the bits do not depend on a machine's exp2.
  const wide_float ratio = frequency_ratio(widen(16), whole);  // 2^(-8 / whole)
  wide_float slope = ratio;
  for (std::size_t head = 0; head < heads; ++head) {
    if (head == whole) {
      slope = frequency_ratio(widen(4), whole);  // 2^(-4 / whole)
    }
    slopes(head) = narrow<T>(slope);
    slope = multiply(slope, ratio);
  }
}

/// x(b, l, :) += table(rows[l], :), the rows being known to exist.
template <class T, class Row>
void add_table_rows(const tensor_view<T, 3>& x, const tensor_view<const T, 2>& table, Row row_of) {
  if (x.size() == 0) {
    return;
  }
  const auto channels = static_cast<index>(x.extent(2));
  for (index sample = 0; sample < static_cast<index>(x.extent(0)); ++sample) {
    for (index i = 0; i < static_cast<index>(x.extent(1)); ++i) {
      T* const target = x.data() + sample * x.stride(0) + i * x.stride(1);
      const T* const row = table.data() + row_of(i) * table.stride(0);
      if (channels == 1 || (x.stride(2) == 1 && table.stride(1) == 1)) {
        HEADWAVE_DISPATCH(add_row<T>(target, row, channels))
      } else {
        for (index channel = 0; channel < channels; ++channel) {
          target[channel * x.stride(2)] += row[channel * table.stride(1)];
        }
      }
    }
  }
}

template <class T>
void check_learned_table(const tensor_view<T, 3>& x, const tensor_view<const T, 2>& table) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "learned positions are float or double");
  if (table.extent(1) != x.extent(2)) {
    fail("add_learned_encoding", differ("table and x must agree in d_model", table.extent(1), x.extent(2)),
         {{"x", x.extents().data(), 3}, {"table", table.extents().data(), 2}});
  }
}

template <class T>
[[noreturn]] void fail_position(const tensor_view<T, 3>& x, const tensor_view<const T, 2>& table,
                                const std::string& positions) {
  fail("add_learned_encoding", "the table has no row for " + positions,
       {{"x", x.extents().data(), 3}, {"table", table.extents().data(), 2}});
}

template <class T>
void add_learned(const tensor_view<T, 3>& x, const tensor_view<const T, 2>& table, std::int64_t first_position) {
  check_learned_table(x, table);
  const std::size_t rows = table.extent(0), length = x.extent(1);
  if (first_position < 0 || length > rows || static_cast<std::uint64_t>(first_position) > rows - length) {
    fail_position(x, table, "all of " + std::to_string(length) + " positions from " + std::to_string(first_position));
  }
  add_table_rows(x, table, [first_position](index i) { return static_cast<index>(first_position) + i; });
}

template <class T, class Position>
void add_learned(const tensor_view<T, 3>& x, const tensor_view<const T, 2>& table, const Position* positions,
                 std::size_t count) {
  check_learned_table(x, table);
  if (count != x.extent(1)) {
    fail("add_learned_encoding", differ("one position for each row of x", count, x.extent(1)),
         {{"x", x.extents().data(), 3}});
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (std::cmp_less(positions[i], 0) || std::cmp_greater_equal(positions[i], table.extent(0))) {
      fail_position(x, table, "position " + std::to_string(positions[i]));
    }
  }
  add_table_rows(x, table, [positions](index i) { return static_cast<index>(positions[i]); });
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// The slopes of attention with linear biases, one for each head, for attention_options::alibi_slopes: with n the
/// largest power of two that is at most the number of heads, heads h = 0 .. n-1 have 2^(-8 (h + 1) / n), the following
/// ones 2^(-4 (2 (h - n) + 1) / n). A head adds -slope |query position - key position| to its scores.
/// slopes: [heads], float or double; each is rounded to nearest. Any number of heads.
/// Source: Press, Smith and Lewis, "Train Short, Test Long" (2022), 3, and the authors' program for other numbers of
/// heads than powers of two.
template <class Out>
  requires output_like<Out, 1>
void alibi_slopes_into(Out&& slopes) {
  using T = element_of<Out>;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "slopes are float or double");
  detail::fill_alibi_slopes<T>(as_view(slopes));
}

/// The slopes as a new tensor [heads].
template <class T>
tensor<T, 1> alibi_slopes(std::size_t heads) {
  tensor<T, 1> slopes({heads}, uninitialized);
  alibi_slopes_into(slopes);
  return slopes;
}

/// The bucket, 0 to buckets - 1, of a key that stands relative_position = key - query positions after the query.
///
/// With N = buckets, or half of them (rounded down) if bidirectional, E = N / 2 rounded down, D = max_distance and the
/// distance n = -relative_position, or |relative_position| if bidirectional:
///   n < 0: 0     n < E: n     otherwise: min(N - 1, E + floor(log(n / E) / log(D / E) (N - E)))
/// to which N is added for keys after the query if bidirectional.
///
/// The formula is evaluated in integers and holds exactly, at any distance. So a distance on a border, where the
/// logarithms have a rational quotient, is in the upper bucket; programs that compute them in float may put it into the
/// lower one. By default the distances 16, 32 and 64 are such, in the buckets 10, 12 and 14.
/// Errors: no bucket for each direction; max_distance <= E.
/// Source: Raffel et al., "Exploring the Limits of Transfer Learning" (2020), 2.1, and the authors' program.
inline int t5_bucket(std::int64_t relative_position, const t5_bucket_options& options = {}) {
  const detail::t5_buckets buckets("t5_bucket", options);
  const auto ahead = static_cast<std::uint64_t>(relative_position);
  if (relative_position <= 0) {
    return buckets.bucket_of(0 - ahead);
  }
  return options.bidirectional ? buckets.count() + buckets.bucket_of(ahead) : 0;
}

/// T5's biases by distance, for attention_options::distance_bias: [heads, 2 max_distance + 1], the element of distance
/// d = key - query at d + max_distance being table(t5_bucket(d), head). Computed once for a table; attention then adds
/// them without a matrix of biases, at any length.
/// table: [buckets, heads], as T5 stores it, float or double, any strides. Errors: as t5_bucket; a table with another
/// number of rows than buckets. Source: Raffel et al. (2020), 2.1.
template <class Table>
  requires tensor_like<const Table, 2>
tensor<element_of<const Table>, 2> t5_distance_bias(const Table& table, const t5_bucket_options& options = {}) {
  using T = element_of<const Table>;
  const tensor_view<const T, 2> view = as_view(table);
  const std::size_t heads = view.extent(1);
  const std::size_t count = detail::clipped_biases_size("t5_distance_bias", heads, options.max_distance);
  tensor<T, 2> biases({heads, heads ? count / heads : 0}, uninitialized);
  detail::clipped_biases("t5_distance_bias", biases.data(), view, options);
  return biases;
}

/// x(b, i, c) += table(first_position + i, c) for every sample b: learned positions, as in BERT and GPT-2.
/// x: [batch, length, d_model], in place; table: [positions, d_model], of the same type, float or double; any strides.
/// Errors: widths that differ; a position that the table does not have.
template <class X, class Table>
  requires(output_like<X, 3> && tensor_like<const Table, 2>)
void add_learned_encoding(X&& x, const Table& table, std::int64_t first_position = 0) {
  detail::add_learned<element_of<X>>(as_view(x), as_view(table), first_position);
}

/// x(b, i, c) += table(positions[i], c). positions: a vector, span or array of integers, one for each i, in any order.
/// Errors: as above; a number of positions that differs from length.
template <class X, class Table, class Positions>
  requires(output_like<X, 3> && tensor_like<const Table, 2> && detail::position_range<Positions> &&
           std::is_integral_v<std::remove_cvref_t<decltype(*std::data(std::declval<const Positions&>()))>>)
void add_learned_encoding(X&& x, const Table& table, const Positions& positions) {
  detail::add_learned<element_of<X>>(as_view(x), as_view(table), std::data(positions), std::size(positions));
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
