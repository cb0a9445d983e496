// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>

#include "support/attention_check.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/random_attention.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

/// \file
/// Attention calls that are right but for one thing.

namespace fuzz {

namespace hw = headwave;
using support::random_source;

/// An extent that is not the present one: one more, one less, or one whose products with others overflow.
inline std::size_t other_extent(random_source& random, std::size_t extent) {
  return random.pick({extent + 1, extent - 1, std::size_t{1} << 63, std::size_t{1} << 32 | extent});
}

/// The view with one extent changed. Nothing must be read or written through it.
template <class T, std::size_t Rank>
hw::tensor_view<T, Rank> misshapen(const hw::tensor_view<T, Rank>& x, random_source& random) {
  auto extents = x.extents();
  const std::size_t axis = random.integer(0, Rank - 1);
  extents[axis] = other_extent(random, extents[axis]);
  return {x.data(), extents, x.strides()};
}

/// Everything that a call is given.
template <class T>
struct attention_call {
  hw::tensor_view<const T, 4> q, k, v;
  hw::tensor_view<T, 4> out;
  hw::attention_options<T> options;
};

/// What wrong options look at.
template <class T>
struct wrong_arrays {
  // More elements than any option needs, so that none of the spans is empty by chance.
  std::vector<T> numbers = std::vector<T>(4096, T(1));
  std::vector<std::int64_t> integers = std::vector<std::int64_t>(4096);
  bool flags[1] = {true};

  std::span<const T> wrong_count(random_source& random, std::size_t right, std::size_t right_too) const {
    std::size_t count = random.pick({right + 1, right_too + 1, right - 1, 0});
    while (count == right || count == right_too) {
      ++count;
    }
    return {numbers.data(), count};
  }

  /// As many as samples, of which one is as it must not be: below 0, or more than most.
  std::span<const std::int64_t> wrong_lengths(random_source& random, std::size_t samples, std::size_t most) {
    if (samples == 0 || random.chance(0.3)) {
      return {integers.data(), samples + (random.chance(0.5) || samples == 0 ? 1 : std::size_t{0} - 1)};
    }
    const std::int64_t past = static_cast<std::int64_t>(most) + 1;
    const std::int64_t wrong[] = {-1, past, std::numeric_limits<std::int64_t>::min(),
                                  std::numeric_limits<std::int64_t>::max()};
    integers[random.integer(0, samples - 1)] = wrong[random.integer(0, 3)];
    return {integers.data(), samples};
  }
};

/// A number that an option of a given range must not be.
inline double wrong_number(random_source& random, double beyond) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double wrong[] = {-1, beyond, std::numeric_limits<double>::quiet_NaN(), infinity, -infinity};
  return wrong[random.integer(0, 4)];
}

/// A broadcast operand of the scores with one axis that is neither 1 nor that of the scores.
template <class X>
hw::tensor_view<X, 4> wrong_scores(X* data, const std::array<std::size_t, 4>& scores, random_source& random) {
  std::array<std::size_t, 4> extents{1, 1, 1, 1};
  const std::size_t axis = random.integer(0, 3);
  extents[axis] = scores[axis] + 1 == 1 ? 2 : scores[axis] + 1;
  return {data, extents, {0, 0, 0, 0}};
}

/// Spoils operands or outputs of a call.
template <class T>
void spoil_shapes(attention_call<T>& call, random_source& random) {
  const auto spoil = [&](auto& x) { x = misshapen(x, random); };
  hw::attention_options<T>& o = call.options;
  switch (random.integer(0, o.weights.data() ? 9 : 7)) {
    case 0:
      return spoil(call.q);
    case 1:
      return spoil(call.k);
    case 2:
      return spoil(call.v);
    case 3:
      return spoil(call.out);
    case 4:
      return spoil(o.lse);
    case 5:
      return spoil(o.maximum);
    case 6:
      return spoil(o.entropy);
    case 7:
      return spoil(o.key_mass);
    case 8:
      return spoil(o.weights);
    default:
      return spoil(o.mean_weights);
  }
}

/// Spoils one of the options that say what a score is.
template <class T>
void spoil_scores(attention_call<T>& call, wrong_arrays<T>& arrays, random_source& random) {
  hw::attention_options<T>& o = call.options;
  const std::size_t heads = call.q.extent(2);
  const std::array<std::size_t, 4> scores{call.q.extent(0), heads, call.q.extent(1), call.k.extent(1)};
  const std::size_t samples = o.query_offsets.data() ? o.query_offsets.size() - 1 : scores[0];
  switch (random.integer(0, 8)) {
    case 0:
      o.bias = wrong_scores<const T>(arrays.numbers.data(), scores, random);
      return;
    case 1:
      o.visible = wrong_scores<const bool>(arrays.flags, scores, random);
      return;
    case 2: {
      const bool even = random.chance(0.5);
      o.distance_bias = {arrays.numbers.data(), {even ? 1 : heads + 1, even ? 2 * random.integer(0, 3) : 3}, {0, 0}};
      return;
    }
    case 3:
      o.softcap = wrong_number(random, -1e-300);
      return;
    case 4:
      o.scale = {};
      o.head_scales = arrays.wrong_count(random, heads, heads);
      return;
    case 5:
      o.scale = 1;
      o.head_scales = {arrays.numbers.data(), heads};
      return;
    case 6:
      o.softmax_plus_one = false;
      o.sinks = arrays.wrong_count(random, heads, heads);
      return;
    case 7:
      o.softmax_plus_one = true;
      o.sinks = {arrays.numbers.data(), heads};
      return;
    default:
      o.alibi_slopes = arrays.wrong_count(random, heads, samples * heads);
      return;
  }
}

/// Spoils one of the options that say which keys are seen, or which weights are wanted.
template <class T>
void spoil_positions(attention_call<T>& call, wrong_arrays<T>& arrays, random_source& random) {
  hw::attention_options<T>& o = call.options;
  const std::size_t queries = call.q.extent(1), keys = call.k.extent(1);
  const bool packed = o.query_offsets.data() != nullptr;
  const std::size_t samples = packed ? o.query_offsets.size() - 1 : call.q.extent(0);
  const auto negative = [&] { return (std::min)(std::int64_t{-1}, random.extreme()); };
  switch (random.integer(0, 8)) {
    case 0:
      o.window.left = negative();
      return;
    case 1:
      o.window.right = negative();
      return;
    case 2:
      o.dropout.probability = wrong_number(random, 1.5);
      return;
    case 3:
      o.query_start = 0;
      o.query_starts = {arrays.integers.data(), samples};
      return;
    case 4:
      o.query_start = {};
      o.query_starts = {arrays.integers.data(), random.pick({0, samples + 1})};
      return;
    case 5:
      o.query_lengths = arrays.wrong_lengths(random, samples, queries);
      return;
    case 6:
      o.key_lengths = arrays.wrong_lengths(random, samples, keys);
      return;
    case 7: {
      // A row that does not exist, or one twice.
      const bool twice = queries > 0 && random.chance(0.5);
      arrays.integers[0] = random.chance(0.5) ? -1 : static_cast<std::int64_t>(queries);
      o.weight_rows = {arrays.integers.data(), twice ? std::size_t{2} : std::size_t{1}};
      arrays.integers[0] = twice ? static_cast<std::int64_t>(queries) - 1 : arrays.integers[0];
      arrays.integers[1] = arrays.integers[0];
      // Then weights have the shape that is asked for.
      if (o.weights.data()) {
        auto extents = o.weights.extents();
        extents[2] = o.weight_rows.size();
        o.weights = {o.weights.data(), extents, o.weights.strides()};
      }
      return;
    }
    default: {
      const auto last_query = static_cast<std::int64_t>(queries), last_key = static_cast<std::int64_t>(keys);
      std::int64_t* const offsets = arrays.integers.data();
      o.query_offsets = {offsets, 3};
      o.key_offsets = {offsets + 3, 3};
      const std::int64_t right[] = {0, last_query / 2, last_query, 0, last_key / 2, last_key};
      std::copy_n(right, 6, offsets);
      switch (random.integer(0, 6)) {
        case 0:
          o.query_offsets = {};
          return;
        case 1:
          o.key_offsets = {};
          return;
        case 2:
          o.key_offsets = {offsets + 3, random.pick({0, 1, 2})};
          return;
        case 3:
          o.query_offsets = {offsets, std::size_t{0}};
          o.key_offsets = {offsets + 3, std::size_t{0}};
          return;
        case 4:
          offsets[random.pick({0, 3})] = random.chance(0.5) ? 1 : -1;
          return;
        case 5:
          offsets[random.pick({1, 4})] = random.chance(0.5) ? -1 : INT64_MAX;
          return;
        default:
          offsets[random.pick({2, 5})] += 1;
          return;
      }
    }
  }
}

/// Asks for everything, with one thing that is wrong. Empty if the call throws shape_error and nothing is written.
template <class T, class... Rules>
std::string wrong_call_faults(const support::random_problem<T>& p, random_source& random, support::spacing layout,
                              const Rules&... rules) {
  const support::attention_outputs<T> outputs(p.q, p.k, p.v, p.options, layout);
  attention_call<T> call{p.q, p.k, p.v, outputs.out.view(), p.options};
  outputs.ask(call.options);
  wrong_arrays<T> arrays;
  switch (random.integer(0, 2)) {
    case 0:
      spoil_shapes(call, random);
      break;
    case 1:
      spoil_scores(call, arrays, random);
      break;
    default:
      spoil_positions(call, arrays, random);
      break;
  }
  const std::string error = support::error_of(
      [&] { hw::scaled_dot_product_attention_into(call.out, call.q, call.k, call.v, call.options, rules...); });
  const std::string text = "wrong call: q" + support::text_of(call.q.extents()) + " k" +
                           support::text_of(call.k.extents()) + " v" + support::text_of(call.v.extents()) + " out" +
                           support::text_of(call.out.extents()) + support::text_of_options(call.options);
  return error.rfind("scaled_dot_product_attention: ", 0) != 0 ? text + ": no error, or another: " + error
         : outputs.untouched()                                 ? std::string()
                                                               : text + ": written before the error: " + error;
}

}  // namespace fuzz
