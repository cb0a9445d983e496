// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>

#include "support/compare.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace support {

struct problem_sizes {
  std::size_t batch, query_length, key_length, heads, kv_heads, head_dim, value_dim;
  std::size_t sequences = 0;  ///< packed in the tensors of batch 1; 0: not packed
};

inline std::string text_of_sizes(const problem_sizes& s) {
  return text_of(
      extents<8>{s.batch, s.query_length, s.key_length, s.heads, s.kv_heads, s.head_dim, s.value_dim, s.sequences});
}

/// n: which of 300 kinds; few of them have more than one block of keys, or work for several threads.
inline problem_sizes draw_sizes(random_source& random, int n) {
  problem_sizes s{};
  s.batch = random.integer(1, 2);
  s.kv_heads = random.integer(1, 2);
  s.heads = s.kv_heads * random.pick({1, 1, 2, 3});
  s.head_dim = random.pick({0, 1, 2, 3, 7, 8, 9, 16, 17});
  s.value_dim = random.pick({0, 1, 2, 3, 7, 8, 9, 16, 17});
  s.query_length = random.pick({0, 1, 1, 2, 3, 5, 8, 13, 24});
  s.key_length = random.pick({0, 1, 2, 3, 7, 8, 15, 16, 17, 24});
  if (n % 30 == 1) {  // more than one block of keys, few queries or many
    s.key_length = random.pick({255, 256, 257, 300});
    s.query_length = random.pick({1, 2, 11});
    s.heads = s.kv_heads * random.pick({1, 2});
  }
  if (n % 300 == 2) {  // as much work as threads are asked for
    const bool decode = random.chance(0.5);
    s = {2, 24, 300, 6, 3, 17, 17};
    if (decode) {
      s.query_length = 2;
      s.key_length = 1000;
    }
  }
  if (random.chance(0.2)) {
    s.sequences = random.integer(1, 5);
    s.query_length *= s.batch;
    s.key_length *= s.batch;
    s.batch = 1;
  }
  return s;
}

/// How operands and results lie in memory.
inline spacing draw_spacing(random_source& random) {
  const hw::index last_stride = random.chance(0.5) ? 1 : random.chance(0.5) ? 2 : -1;
  const std::size_t gap = random.integer(0, 4);
  return {last_stride, gap, random.chance(0.3)};
}

/// Inputs and options drawn at random, with the memory that the options look at.
template <class T>
struct random_problem {
  problem_sizes shape;
  hw::tensor<T, 4> q, k, v, bias;
  hw::tensor<bool, 4> visible;
  hw::tensor<T, 2> distance_bias;
  std::vector<std::int64_t> query_starts, query_lengths, key_lengths, query_offsets, key_offsets, weight_rows;
  std::vector<T> slopes, sinks, head_scales;
  hw::attention_options<T> options;

  /// extreme: positions and windows are also any that these may be.
  random_problem(const problem_sizes& s, random_source& random, double option_chance, bool extreme = false)
      : shape(s), extreme_(extreme) {
    q = random.tensor<T>({s.batch, s.query_length, s.heads, s.head_dim});
    k = random.tensor<T>({s.batch, s.key_length, s.kv_heads, s.head_dim});
    v = random.tensor<T>({s.batch, s.key_length, s.kv_heads, s.value_dim});
    const auto wanted = [&] { return random.chance(option_chance); };
    draw_scores(random, wanted);
    draw_positions(random, wanted);
    draw_softmax(random, wanted);
  }
  random_problem(const random_problem&) = delete;

 private:
  bool extreme_;

  std::size_t samples() const { return shape.sequences ? shape.sequences : shape.batch; }

  /// 1, or an extent of the scores.
  static std::size_t broadcast(random_source& random, std::size_t extent) { return random.chance(0.5) ? extent : 1; }

  template <class Wanted>
  void draw_scores(random_source& random, Wanted wanted) {
    const problem_sizes& s = shape;
    const bool pairs_exist = !s.sequences && s.batch * s.heads * s.query_length * s.key_length > 0;
    constexpr T nothing = -std::numeric_limits<T>::infinity();
    if (wanted()) {
      options.scale = random.chance(0.2) ? 0 : random.uniform(-1, 1);
    } else if (wanted()) {
      for (std::size_t h = 0; h < s.heads; ++h) {
        head_scales.push_back(static_cast<T>(random.uniform(-1, 1)));
      }
      options.head_scales = head_scales;
    }
    if (wanted()) {
      options.softcap = random.uniform(0.5, 30);
    }
    if (wanted() && pairs_exist) {
      bias = random.tensor<T>({broadcast(random, s.batch), broadcast(random, s.heads),
                               broadcast(random, s.query_length), broadcast(random, s.key_length)});
      random.in_bulk([&](random_source& source) {
        for (T& x : bias) {
          x = source.chance(0.2) ? nothing : x;
        }
      });
      options.bias = bias;
    }
    if (wanted()) {
      distance_bias = random.tensor<T>({broadcast(random, s.heads), 2 * random.pick({0, 1, 2, 5, 9, 40}) + 1});
      if (random.chance(0.3)) {
        for (T& x : distance_bias) {
          x = random.chance(0.2) ? nothing : x;
        }
      }
      options.distance_bias = distance_bias;
    }
    if (wanted() && pairs_exist) {
      visible = random.mask({broadcast(random, s.batch), broadcast(random, s.heads), broadcast(random, s.query_length),
                             broadcast(random, s.key_length)},
                            random.uniform(0.1, 0.95));
      options.visible = visible;
    }
    if (wanted()) {
      const std::size_t count = s.heads * (random.chance(0.5) ? samples() : 1);
      for (std::size_t n = 0; n < count; ++n) {
        slopes.push_back(static_cast<T>(random.uniform(0.01, 0.5)));
      }
      options.alibi_slopes = slopes;
    }
  }

  template <class Wanted>
  void draw_positions(random_source& random, Wanted wanted) {
    const problem_sizes& s = shape;
    const auto integer = [&](std::size_t high) { return static_cast<std::int64_t>(random.integer(0, high)); };
    const auto position = [&] {
      if (extreme_ && random.chance(0.2)) {
        // So far from every key, penalties are too large to tell keys apart.
        options.alibi_slopes = {};
        return random.extreme();
      }
      return integer(s.key_length + s.query_length + 2) - static_cast<std::int64_t>(s.query_length) - 1;
    };
    const auto for_each_sample = [&](std::vector<std::int64_t>& values, auto draw) {
      for (std::size_t n = 0; n < samples(); ++n) {
        values.push_back(draw());
      }
      return std::span<const std::int64_t>(values);
    };
    if (s.sequences) {
      const auto offsets = [&](std::vector<std::int64_t>& values, std::size_t last) {
        values.push_back(0);
        for (std::size_t n = 1; n < s.sequences; ++n) {
          values.push_back(random.chance(0.2) ? values[random.integer(0, n - 1)] : integer(last));
        }
        values.push_back(static_cast<std::int64_t>(last));
        std::sort(values.begin(), values.end());
        return std::span<const std::int64_t>(values);
      };
      options.query_offsets = offsets(query_offsets, s.query_length);
      options.key_offsets = offsets(key_offsets, random.chance(0.8) ? s.key_length : random.integer(0, s.key_length));
    }
    options.causal = wanted();
    if (wanted()) {
      options.query_start = position();
    } else if (wanted()) {
      options.query_starts = for_each_sample(query_starts, position);
    }
    const auto distance = [&] {
      return extreme_ && random.chance(0.2) ? (std::max)(std::int64_t{0}, random.extreme()) : integer(s.key_length + 1);
    };
    if (wanted()) {
      options.window.left = distance();
    }
    if (wanted()) {
      options.window.right = distance();
    }
    if (wanted()) {
      options.query_lengths = for_each_sample(query_lengths, [&] { return integer(s.query_length); });
    }
    if (wanted()) {
      options.key_lengths = for_each_sample(key_lengths, [&] { return integer(s.key_length); });
    }
  }

  template <class Wanted>
  void draw_softmax(random_source& random, Wanted wanted) {
    if (wanted()) {
      for (std::size_t h = 0; h < shape.heads; ++h) {
        sinks.push_back(random.chance(0.1) ? -std::numeric_limits<T>::infinity()
                                           : static_cast<T>(random.uniform(-3, random.chance(0.1) ? 30 : 3)));
      }
      options.sinks = sinks;
    } else {
      options.softmax_plus_one = wanted();
    }
    if (wanted() && random.chance(0.7)) {
      options.dropout = {random.chance(0.1) ? 1 : random.uniform(0, 0.9), random.bits()};
    }
    if (wanted() && !shape.sequences && shape.query_length > 0) {
      for (std::size_t i = 0; i < shape.query_length; ++i) {
        if (random.chance(0.5)) {
          weight_rows.push_back(static_cast<std::int64_t>(i));
        }
      }
      for (std::size_t i = weight_rows.size(); i > 1; --i) {
        std::swap(weight_rows[i - 1], weight_rows[random.integer(0, i - 1)]);
      }
      options.weight_rows = weight_rows;
    }
  }
};

/// The options that are given, for the report of a failure.
template <class T>
std::string text_of_options(const hw::attention_options<T>& o) {
  std::string text;
  const auto add = [&](bool given, const std::string& part) { text += given ? " " + part : std::string(); };
  const auto list = [](std::span<const std::int64_t> values) {
    std::string joined = "=";
    for (const std::int64_t value : values) {
      joined += std::to_string(value) + ",";
    }
    return joined;
  };
  const auto extents_text = [](const auto& view) { return text_of(view.extents()); };
  add(o.scale.has_value(), "scale=" + std::to_string(o.scale.value_or(0)));
  add(o.head_scales.data(), "head_scales");
  add(o.softcap > 0, "softcap=" + std::to_string(o.softcap));
  add(o.bias.view().data(), "bias" + extents_text(o.bias.view()));
  add(o.distance_bias.data(), "distance_bias" + extents_text(o.distance_bias));
  add(o.visible.view().data(), "visible" + extents_text(o.visible.view()));
  add(o.causal, "causal");
  add(o.query_start.has_value(), "query_start=" + std::to_string(o.query_start.value_or(0)));
  add(o.query_starts.data(), "query_starts" + list(o.query_starts));
  add(o.window.left != hw::unlimited, "left=" + std::to_string(o.window.left));
  add(o.window.right != hw::unlimited, "right=" + std::to_string(o.window.right));
  add(o.query_lengths.data(), "query_lengths" + list(o.query_lengths));
  add(o.key_lengths.data(), "key_lengths" + list(o.key_lengths));
  add(o.query_offsets.data(), "query_offsets" + list(o.query_offsets));
  add(o.key_offsets.data(), "key_offsets" + list(o.key_offsets));
  add(o.alibi_slopes.data(), "alibi_slopes[" + std::to_string(o.alibi_slopes.size()) + "]");
  add(o.sinks.data(), "sinks");
  add(o.softmax_plus_one, "softmax_plus_one");
  add(o.dropout.probability > 0,
      "dropout=" + std::to_string(o.dropout.probability) + "/" + std::to_string(o.dropout.seed));
  add(o.weight_rows.data(), "weight_rows" + list(o.weight_rows));
  return text;
}

}  // namespace support
