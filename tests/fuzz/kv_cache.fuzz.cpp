// SPDX-License-Identifier: MIT
#include <headwave/kv_cache.hpp>

#include "finding.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/stored.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

/// \file
/// Caches that are appended to, truncated, reordered, cleared, copied and attended to in any order, rightly and
/// wrongly, beside a model that keeps all rows of each sample. What a cache tells and gives is the model's, bit for
/// bit, and what it refuses is what its documentation says, after which it is as it was.

namespace hw = headwave;
using support::random_source;
using support::same_bits;

namespace {

/// A sample: the rows that it has seen, [head][channel] each, and the first one that is still there.
struct sample {
  std::vector<std::vector<float>> keys, values;
  std::int64_t first = 0;

  std::int64_t length() const { return static_cast<std::int64_t>(keys.size()); }
};

template <class Stored>
class cache_beside_model {
 public:
  explicit cache_beside_model(random_source& random)
      : random_(random), options_(draw_options(random)), cache_(options_), samples_(options_.batch) {
    options_ = cache_.options();
  }

  void run() {
    for (std::size_t n = random_.integer(0, 63); n > 0; --n) {
      switch (random_.integer(0, 8)) {
        case 0:
        case 1:
        case 2:
          append();
          break;
        case 3:
          truncate_sample();
          break;
        case 4:
          truncate();
          break;
        case 5:
          reorder();
          break;
        case 6:
          clear_or_copy();
          break;
        default:
          attend();
          break;
      }
      check_marks();
    }
  }

 private:
  static hw::kv_cache_options draw_options(random_source& random) {
    hw::kv_cache_options o;
    o.batch = random.integer(1, 3);
    o.capacity = random.chance(0.1) ? random.pick({255, 256, 257, 300}) : random.integer(1, 24);
    o.kv_heads = random.integer(1, 2);
    o.head_dim = random.integer(0, 9);
    o.value_dim = random.integer(0, 9);
    o.rolling = random.chance(0.5);
    return o;
  }

  void require(bool holds, const std::string& what) { fuzz::require_none(holds ? std::string() : text_ + what); }

  /// Runs an action, which must be refused if it is wrong, and only then. Returns whether it has been done.
  template <class Action>
  bool done(bool right, const std::string& name, Action action) {
    text_ += name + "\n";
    const std::string error = support::error_of(action);
    require(error.empty() == right, right ? "refused: " + error : "done, though it is wrong");
    return right;
  }

  void append() {
    const std::size_t rows =
        random_.chance(0.05) ? random_.integer(1, 2 * options_.capacity + 1) : random_.integer(0, 6);
    const bool misshapen = random_.chance(0.03), counted = random_.chance(0.4);
    const auto keys =
        random_.tensor<float>({options_.batch, rows, options_.kv_heads + (misshapen ? 1 : 0), options_.head_dim});
    const auto values = random_.tensor<float>({options_.batch, rows, options_.kv_heads, options_.value_dim});
    std::vector<std::int64_t> counts(options_.batch, static_cast<std::int64_t>(rows));
    bool right = !misshapen;
    for (std::int64_t& count : counts) {
      count = !counted               ? count
              : random_.chance(0.03) ? random_.extreme()
                                     : static_cast<std::int64_t>(random_.integer(0, rows));
      const std::int64_t held = samples_[static_cast<std::size_t>(&count - counts.data())].length();
      right = right && count >= 0 && count <= static_cast<std::int64_t>(rows) &&
              (options_.rolling || count + held <= static_cast<std::int64_t>(options_.capacity));
    }
    const bool missing = counted && random_.chance(0.02);
    const std::span<const std::int64_t> given(counts.data(), missing ? options_.batch - 1 : options_.batch);
    right = right && !missing;
    if (!done(right, "append " + std::to_string(rows), [&] {
          if (counted) {
            cache_.append(keys, values, given);
          } else {
            cache_.append(keys, values);
          }
        })) {
      return;
    }
    const auto read_keys = support::stored_and_read<Stored>(keys),
               read_values = support::stored_and_read<Stored>(values);
    const auto row_of = [](const hw::tensor<float, 4>& x, std::size_t b, std::size_t row) {
      const std::size_t size = x.extent(2) * x.extent(3);
      const float* const first = x.data() + (b * x.extent(1) + row) * size;
      return std::vector<float>(first, first + size);
    };
    for (std::size_t b = 0; b < options_.batch; ++b) {
      sample& s = samples_[b];
      for (std::size_t row = 0; row < static_cast<std::size_t>(counts[b]); ++row) {
        s.keys.push_back(row_of(read_keys, b, row));
        s.values.push_back(row_of(read_values, b, row));
      }
      s.first = (std::max)(s.first, s.length() - static_cast<std::int64_t>(options_.capacity));
    }
  }

  /// A length that a sample may be truncated to, or one that is not.
  std::int64_t draw_length() {
    return random_.chance(0.05) ? random_.extreme()
                                : static_cast<std::int64_t>(random_.integer(0, options_.capacity + 3));
  }
  static bool may_have(const sample& s, std::int64_t length) { return length >= s.first && length <= s.length(); }
  static void cut(sample& s, std::int64_t length) {
    s.keys.resize(static_cast<std::size_t>(length));
    s.values.resize(static_cast<std::size_t>(length));
  }

  void truncate_sample() {
    const std::size_t b = random_.integer(0, options_.batch - (random_.chance(0.05) ? 0 : 1));
    const std::int64_t length = draw_length();
    if (done(b < options_.batch && may_have(samples_[b], length),
             "truncate sample " + std::to_string(b) + " to " + std::to_string(length),
             [&] { cache_.truncate(b, length); })) {
      cut(samples_[b], length);
    }
  }

  void truncate() {
    const std::int64_t length = draw_length();
    const auto own = [&](const sample& s) { return (std::min)(length, s.length()); };
    const bool right =
        std::all_of(samples_.begin(), samples_.end(), [&](const sample& s) { return may_have(s, own(s)); });
    if (done(right, "truncate to " + std::to_string(length), [&] { cache_.truncate(length); })) {
      for (sample& s : samples_) {
        cut(s, own(s));
      }
    }
  }

  void reorder() {
    std::vector<std::int64_t> sources;
    bool right = true;
    for (std::size_t b = 0; b < options_.batch; ++b) {
      const bool wrong = random_.chance(0.05);
      sources.push_back(wrong ? (random_.chance(0.5) ? -1 : static_cast<std::int64_t>(options_.batch))
                              : static_cast<std::int64_t>(random_.integer(0, options_.batch - 1)));
      right = right && !wrong;
    }
    if (random_.chance(0.03)) {
      sources.push_back(0);
      right = false;
    }
    if (done(right, "reorder", [&] { cache_.reorder(sources); })) {
      std::vector<sample> samples;
      for (const std::int64_t source : sources) {
        samples.push_back(samples_[static_cast<std::size_t>(source)]);
      }
      samples_ = std::move(samples);
    }
  }

  void clear_or_copy() {
    if (random_.chance(0.3)) {
      text_ += "clear\n";
      cache_.clear();
      samples_.assign(options_.batch, {});
      return;
    }
    text_ += "copy\n";
    hw::kv_cache<float, Stored> copy(cache_);
    cache_.clear();
    cache_ = random_.chance(0.5) ? copy : std::move(copy);
  }

  void attend() {
    const std::size_t rows = random_.integer(0, 12), group = random_.pick({1, 2, 3});
    const bool misshapen = random_.chance(0.03);
    const auto q = random_.tensor<float>(
        {options_.batch, rows, group * options_.kv_heads, options_.head_dim + (misshapen ? 1 : 0)});
    hw::attention_options<float> options{.causal = random_.chance(0.5)};
    if (random_.chance(0.3)) {
      options.window.left = static_cast<std::int64_t>(random_.integer(0, options_.capacity));
    }
    if (random_.chance(0.2)) {
      options.window.right = static_cast<std::int64_t>(random_.integer(0, 5));
    }
    std::vector<std::int64_t> starts;
    for (const sample& s : samples_) {
      starts.push_back(s.length() - static_cast<std::int64_t>(rows));
    }
    if (random_.chance(0.2)) {
      for (std::int64_t& start : starts) {
        start = random_.chance(0.1) ? random_.extreme() : start - static_cast<std::int64_t>(random_.integer(0, 9));
      }
      options.query_starts = starts;
    }
    const std::vector<std::int64_t> lengths(options_.batch, 0);
    const bool with_lengths = random_.chance(0.03);
    options.key_lengths = with_lengths ? std::span<const std::int64_t>(lengths) : std::span<const std::int64_t>();
    support::window<float, 4> out({options_.batch, rows, q.extent(2), options_.value_dim});
    support::window<float, 3> lse({options_.batch, q.extent(2), rows}), maximum(lse.view().extents());
    options.lse = lse.view();
    if (random_.chance(0.5)) {
      options.maximum = maximum.view();  // and so no decode call
    }
    if (!done(!misshapen && !with_lengths, "attend " + std::to_string(rows),
              [&] { hw::scaled_dot_product_attention_into(out.view(), q, cache_, options); })) {
      require(out.untouched() && lse.untouched() && maximum.untouched(), "written before the error");
      return;
    }
    require(out.intact() && lse.intact() && maximum.intact(), "written around the results");
    for (std::size_t b = 0; b < options_.batch; ++b) {
      const sample& s = samples_[b];
      hw::attention_options<float> alone{.causal = options.causal, .query_start = starts[b], .window = options.window};
      hw::tensor<float, 3> lse_alone({1, q.extent(2), rows});
      alone.lse = lse_alone;
      // Rows that are no longer there may be anything, for all that a query sees.
      hw::tensor<bool, 1> visible({s.keys.size()});
      for (std::size_t j = 0; j < s.keys.size(); ++j) {
        visible(j) = static_cast<std::int64_t>(j) >= s.first;
      }
      alone.visible = visible;
      const auto expected =
          hw::scaled_dot_product_attention(q.view().slice(0, b, 1), rows_of(s, s.keys, options_.head_dim),
                                           rows_of(s, s.values, options_.value_dim), alone);
      const std::string fault =
          same_bits(out.view().slice(0, b, 1), expected) + same_bits(lse.view().slice(0, b, 1), lse_alone);
      require(fault.empty(), "sample " + std::to_string(b) + ": " + fault);
    }
  }

  hw::tensor<float, 4> rows_of(const sample& s, const std::vector<std::vector<float>>& rows, std::size_t width) const {
    hw::tensor<float, 4> x({1, rows.size(), options_.kv_heads, width});
    float* to = x.data();
    for (std::size_t j = 0; j < rows.size(); ++j) {
      const bool kept = static_cast<std::int64_t>(j) >= s.first;
      to = std::transform(rows[j].begin(), rows[j].end(), to,
                          [&](float y) { return kept ? y : std::numeric_limits<float>::quiet_NaN(); });
    }
    return x;
  }

  void check_marks() {
    for (std::size_t b = 0; b < options_.batch; ++b) {
      require(cache_.lengths()[b] == samples_[b].length(), "another length, sample " + std::to_string(b));
      require(cache_.first_keys()[b] == samples_[b].first, "another first key, sample " + std::to_string(b));
    }
  }

  random_source& random_;
  hw::kv_cache_options options_;
  hw::kv_cache<float, Stored> cache_;
  std::vector<sample> samples_;
  std::string text_;  ///< what has been done
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  random_source random({data, size});
  switch (random.integer(0, 3)) {
    case 0:
      cache_beside_model<float>(random).run();
      break;
    case 1:
      cache_beside_model<hw::bfloat16>(random).run();
      break;
    case 2:
      cache_beside_model<hw::float16>(random).run();
      break;
    default:
      cache_beside_model<std::int8_t>(random).run();
      break;
  }
  return 0;
}
