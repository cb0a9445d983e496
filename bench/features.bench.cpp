// SPDX-License-Identifier: MIT
// What rules, masks, options and storage cost beside plain attention.
#include "support/report.hpp"
#include "support/row.hpp"

#include <headwave/attention.hpp>
#include <headwave/kv_cache.hpp>
#include <headwave/masks.hpp>
#include <headwave/relative_position.hpp>

#include <vector>

namespace {

namespace hw = headwave;

enum class feature {
  plain,
  score_rule,
  visible_if,
  causal,
  causal_mask,
  window_or_global,
  block_sparse,
  alibi,
  t5,
  dropout,
  entropy
};

constexpr std::size_t length = 1024, heads = 8, head_dim = 64;
constexpr std::int64_t reach = 64, block = 128;

/// Attention of length x length, and which pairs of it a feature leaves.
template <class T>
class feature_problem {
 public:
  feature_problem(feature what, std::size_t)
      : what_(what),
        query_(bench::random_tensor<T>(1, {1, length, heads, head_dim})),
        key_(bench::random_tensor<T>(2, {1, length, heads, head_dim})),
        value_(bench::random_tensor<T>(3, {1, length, heads, head_dim})),
        out_(query_.extents()),
        slopes_(hw::alibi_slopes<T>(heads)),
        biases_(hw::t5_distance_bias(bench::random_tensor<T>(4, {32, heads}))),
        entropy_({1, heads, length}) {
    // Each row of blocks sees itself and the first.
    for (std::int64_t row = 0; row < static_cast<std::int64_t>(length) / block; ++row) {
      columns_.push_back(0);
      if (row > 0) {
        columns_.push_back(row);
      }
      offsets_.push_back(static_cast<std::int64_t>(columns_.size()));
    }
    options_.causal = what == feature::causal;
    if (what == feature::alibi) {
      options_.alibi_slopes = slopes_;
    }
    if (what == feature::t5) {
      options_.distance_bias = biases_;
    }
    if (what == feature::dropout) {
      options_.dropout = {.probability = 0.1, .seed = 5};
    }
    if (what == feature::entropy) {
      options_.entropy = entropy_;
    }
  }

  void run() {
    switch (what_) {
      case feature::score_rule:
        return attend([](T s, hw::score_position at) { return s - T(0.1) * static_cast<T>(at.query - at.key); });
      case feature::visible_if:
        return attend(hw::visible_if([](hw::score_position at) { return at.key % 4 != 3; }));
      case feature::causal_mask:
        return attend(hw::causal_mask{});
      case feature::window_or_global:
        return attend(hw::window_mask{.left = reach, .right = reach} || hw::global_mask{4});
      case feature::block_sparse:
        return attend(hw::block_sparse_mask(block, block, offsets_, columns_));
      default:
        return attend();
    }
  }
  std::span<const T> result() const { return {out_.begin(), out_.end()}; }

 private:
  template <class... Rules>
  void attend(const Rules&... rules) {
    hw::scaled_dot_product_attention_into(out_, query_, key_, value_, options_, rules...);
  }

  feature what_;
  hw::tensor<T, 4> query_, key_, value_, out_;
  hw::tensor<T, 1> slopes_;
  hw::tensor<T, 2> biases_;
  hw::tensor<T, 3> entropy_;
  std::vector<std::int64_t> offsets_{0}, columns_;
  hw::attention_options<T> options_;
};

/// pairs: visible ones of a head.
void add_feature(const char* name, feature what, double pairs) {
  bench::add<feature_problem>({name, bench::limit::fma, 4 * heads * head_dim * pairs}, what);
}

struct cache_shape {
  std::size_t keys = 4096, heads = 32, kv_heads = 8, head_dim = 128;
};

/// One query to caches that no processor cache holds together. The reference is a cache of double.
template <class Stored>
struct cached {
  template <class T>
  class problem {
    using stored_type = std::conditional_t<std::is_same_v<T, double>, double, Stored>;

   public:
    problem(const cache_shape& s, std::size_t copies)
        : query_(bench::random_tensor<T>(1, {1, 1, s.heads, s.head_dim})), out_(query_.extents()) {
      const auto keys = bench::random_tensor<T>(2, {1, s.keys, s.kv_heads, s.head_dim});
      const auto values = bench::random_tensor<T>(3, {1, s.keys, s.kv_heads, s.head_dim});
      hw::kv_cache<T, stored_type> cache({.capacity = s.keys, .kv_heads = s.kv_heads, .head_dim = s.head_dim});
      cache.append(keys, values);
      caches_.assign(copies, cache);
    }
    void run() {
      hw::scaled_dot_product_attention_into(out_, query_, caches_[next_]);
      next_ = (next_ + 1) % caches_.size();
    }
    std::span<const T> result() const { return {out_.begin(), out_.end()}; }

   private:
    hw::tensor<T, 4> query_, out_;
    std::vector<hw::kv_cache<T, stored_type>> caches_;
    std::size_t next_ = 0;
  };
};

template <class Stored>
void add_cache(const char* name) {
  const cache_shape s;
  const double bytes = static_cast<double>(2 * s.keys * s.kv_heads * s.head_dim * sizeof(Stored));
  bench::add<cached<Stored>::template problem>({name, bench::limit::cold_read, bytes}, s);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr double all = static_cast<double>(length * length), half = (all + static_cast<double>(length)) / 2;
  constexpr double near = static_cast<double>(length * (2 * reach + 1) - reach * (reach + 1));
  constexpr double sparse = static_cast<double>((2 * length / block - 1) * block * block);
  add_feature("L1024 H8 d64", feature::plain, all);
  add_feature("L1024 H8 d64 score rule", feature::score_rule, all);
  add_feature("L1024 H8 d64 visible_if, 3 of 4 keys", feature::visible_if, all * 3 / 4);
  add_feature("L1024 H8 d64 causal", feature::causal, half);
  add_feature("L1024 H8 d64 causal_mask", feature::causal_mask, half);
  add_feature("L1024 H8 d64 window 64 or 4 global", feature::window_or_global, near + 8 * (length - 2 * reach));
  add_feature("L1024 H8 d64 block_sparse 15 of 64", feature::block_sparse, sparse);
  add_feature("L1024 H8 d64 ALiBi", feature::alibi, all);
  add_feature("L1024 H8 d64 T5 biases", feature::t5, all);
  add_feature("L1024 H8 d64 dropout", feature::dropout, all);
  add_feature("L1024 H8 d64 entropy", feature::entropy, all);
  add_cache<float>("cache 1 x 4096 H32/8 d128");
  add_cache<hw::bfloat16>("cache 1 x 4096 H32/8 d128 bfloat16");
  add_cache<hw::float16>("cache 1 x 4096 H32/8 d128 float16");
  add_cache<std::int8_t>("cache 1 x 4096 H32/8 d128 int8");
  return bench::run(argc, argv);
}
