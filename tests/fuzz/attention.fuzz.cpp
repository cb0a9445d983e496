// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>

#include "finding.hpp"
#include "support/attention_check.hpp"
#include "support/random.hpp"
#include "support/random_attention.hpp"
#include "support/random_rules.hpp"
#include "wrong_calls.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

/// \file
/// Calls of attention with any shapes, strides, options, rules and storage. One that is right gives what the oracle
/// says, whatever lies in what no query sees, and the same bits from operands that are stored otherwise; one that is
/// wrong throws shape_error before anything is written.

namespace hw = headwave;
using support::attention_outputs;
using support::element;
using support::extents;
using support::random_problem;
using support::random_source;
using support::same_bits;
using support::spacing;
using support::window;

namespace {

/// Runs the tasks of a call on the calling thread, the last one first.
struct backwards {
  static hw::index concurrency() { return 3; }
  template <class Task>
  void operator()(hw::index count, const Task& task) const {
    while (count > 0) {
      task(--count);
    }
  }
};

/// Keys and values that no query sees become NaN.
template <class T>
void spoil_unseen(random_problem<T>& p, const std::vector<oracle::rule>& rules) {
  const oracle::estimate<4> q(p.q.extents()), k(p.k.extents()), v(p.v.extents());
  const oracle::attention_problem<T> problem{.q = q, .k = k, .v = v, .options = p.options, .rules = rules};
  const std::size_t group = p.shape.heads / p.shape.kv_heads;
  support::for_each_index(extents<3>{p.shape.batch, p.shape.key_length, p.shape.kv_heads}, [&](const extents<3>& row) {
    const auto [b, j, g] = row;
    bool seen = false;
    for (std::size_t h = g * group; h < (g + 1) * group; ++h) {
      for (std::size_t i = 0; i < p.shape.query_length && !seen; ++i) {
        seen = problem.visible({b, h, i, j});
      }
    }
    for (hw::tensor<T, 4>* const x : {&p.k, &p.v}) {
      for (std::size_t c = 0; !seen && c < x->extent(3); ++c) {
        (*x)(b, j, g, c) = std::numeric_limits<T>::quiet_NaN();
      }
    }
  });
}

template <class To, class From>
hw::tensor<To, 4> converted(const hw::tensor<From, 4>& x) {
  hw::tensor<To, 4> result(x.extents());
  std::transform(x.begin(), x.end(), result.begin(), [](From y) { return static_cast<To>(y); });
  return result;
}

/// Operands of 16 bits have the bits of floats of the same value; a result of 16 bits is rounded once.
template <class Stored, class... Rules>
std::string storage_faults(const random_problem<float>& p, const Rules&... rules) {
  const auto q = converted<Stored>(p.q), k = converted<Stored>(p.k), v = converted<Stored>(p.v);
  const auto wide_k = converted<float>(k), wide_v = converted<float>(v);
  const hw::tensor<float, 4> mixed = hw::scaled_dot_product_attention(p.q, k, v, p.options, rules...);
  const hw::tensor<float, 4> wide = hw::scaled_dot_product_attention(p.q, wide_k, wide_v, p.options, rules...);
  const hw::tensor<Stored, 4> narrow = hw::scaled_dot_product_attention(q, k, v, p.options, rules...);
  const hw::tensor<float, 4> all =
      hw::scaled_dot_product_attention(converted<float>(q), wide_k, wide_v, p.options, rules...);
  return same_bits(mixed, wide) + same_bits(converted<float>(narrow), converted<float>(converted<Stored>(all)));
}

/// Keys and values in pages have the bits of one piece; pages that lengths do not reach may be missing.
template <class T, class... Rules>
std::string page_faults(const random_problem<T>& p, random_source& random, const Rules&... rules) {
  const std::size_t page_size = random.integer(1, 20), batch = p.shape.batch;
  const std::size_t pages = (p.shape.key_length + page_size - 1) / page_size;
  const std::size_t first = random.integer(0, 3), step = random.chance(0.5) ? 1 : 2;
  hw::tensor<std::int32_t, 2> table({batch, pages});
  hw::tensor<T, 4> k({step * batch * pages + first, page_size, p.shape.kv_heads, p.shape.head_dim});
  hw::tensor<T, 4> v({k.extent(0), page_size, p.shape.kv_heads, p.shape.value_dim});
  for (hw::tensor<T, 4>* const x : {&k, &v}) {
    std::fill(x->begin(), x->end(), std::numeric_limits<T>::quiet_NaN());
  }
  // Lengths that are no whole pages need key_lengths.
  std::vector<std::int64_t> lengths(p.options.key_lengths.begin(), p.options.key_lengths.end());
  lengths.resize(batch, static_cast<std::int64_t>(p.shape.key_length));
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t n = 0; n < pages; ++n) {
      const std::size_t page = first + step * (batch * n + b);
      const bool used = n * page_size < static_cast<std::size_t>(lengths[b]);
      table(b, n) = used ? static_cast<std::int32_t>(page) : -1;
      for (std::size_t j = n * page_size; used && j < (std::min)((n + 1) * page_size, p.shape.key_length); ++j) {
        for (std::size_t g = 0; g < p.shape.kv_heads; ++g) {
          for (std::size_t c = 0; c < p.shape.head_dim; ++c) {
            k(page, j % page_size, g, c) = p.k(b, j, g, c);
          }
          for (std::size_t c = 0; c < p.shape.value_dim; ++c) {
            v(page, j % page_size, g, c) = p.v(b, j, g, c);
          }
        }
      }
    }
  }
  hw::attention_options<T> options = p.options;
  // What has an element for each key has none for those of the last page that are behind key_length.
  options.bias = {};
  options.visible = {};
  options.key_lengths = lengths;
  if (!options.query_start && !options.query_starts.data()) {
    options.query_start =
        static_cast<std::int64_t>(p.shape.key_length) - static_cast<std::int64_t>(p.shape.query_length);
  }
  const hw::paged_view<T> paged_k{k, table}, paged_v{v, table};
  return same_bits(hw::scaled_dot_product_attention(p.q, paged_k, paged_v, options, rules...),
                   hw::scaled_dot_product_attention(p.q, p.k, p.v, options, rules...));
}

template <class T, class... Rules>
std::string faults(random_problem<T>& p, random_source& random, const std::vector<oracle::rule>& meanings,
                   const Rules&... rules) {
  const spacing layout = support::draw_spacing(random);
  static constexpr backwards executor;
  if (random.chance(0.3)) {
    p.options.executor = executor;
  }
  switch (random.integer(0, 5)) {
    case 0:
    case 1:
      return fuzz::wrong_call_faults(p, random, layout, rules...);
    case 2:
      return p.shape.sequences ? std::string() : page_faults(p, random, rules...);
    case 3:
      if constexpr (std::is_same_v<T, float>) {
        return random.chance(0.5) ? storage_faults<hw::bfloat16>(p, rules...)
                                  : storage_faults<hw::float16>(p, rules...);
      }
      [[fallthrough]];
    default: {
      if (!p.shape.sequences) {
        spoil_unseen(p, meanings);
      }
      const window<T, 4> q(p.q, support::draw_spacing(random)), k(p.k, support::draw_spacing(random)),
          v(p.v, support::draw_spacing(random));
      return support::attention_faults(q.view(), k.view(), v.view(), p.options, layout, meanings, rules...);
    }
  }
}

template <class T>
void run(random_source& random) {
  const support::problem_sizes s = support::draw_sizes(random, static_cast<int>(random.integer(0, 299)));
  random_problem<T> problem(s, random, random.uniform(0, 0.5), true);
  std::string text;
  if (random.chance(0.5)) {
    text = faults(problem, random, {});
  } else {
    support::mask_source masks(random, s.sequences ? s.sequences : s.batch, s.heads,
                               (std::max)(s.query_length, s.key_length), true);
    const support::any_mask mask = masks.draw(3), other = masks.draw(1);
    const auto first = support::draw_score_rule<T>(random);
    const auto second = support::draw_score_rule<T>(random, first.what == support::position_rule<T>::kind::hide);
    text = faults(problem, random, {meaning_of(mask), first.meaning(), second.meaning(), meaning_of(other)}, mask,
                  first, second, other);
    text +=
        text.empty() ? "" : "rules: " + mask.text() + "; " + first.text() + "; " + second.text() + "; " + other.text();
  }
  fuzz::require_none(text.empty()
                         ? text
                         : std::string(sizeof(T) == 4 ? "float" : "double") + ", sizes " + support::text_of_sizes(s) +
                               "," + support::text_of_options(problem.options) + "\n" + text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  random_source random({data, size});
  if (random.chance(0.3)) {
    run<double>(random);
  } else {
    run<float>(random);
  }
  return 0;
}
