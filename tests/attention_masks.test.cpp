// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/masks.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// \file
/// Attention with masks: against attention with the same visibility as a tensor, and what it asks masks and reads.

namespace hw = headwave;
using hw::score_position;
using support::calls;
using support::infinity;
using support::not_a_number;
using support::random_source;
using support::random_words;
using support::same_bits;

namespace {

/// Attention on some shape, with a mask and with its visibility as a tensor: prefills and few rows.
template <class T>
struct masked_problem {
  using operand = hw::tensor<T, 4>;
  using attention =
      std::function<operand(const operand& q, const operand& k, const operand& v, const hw::attention_options<T>&)>;

  std::size_t query_length, key_length, heads, kv_heads, head_dim;
  std::vector<std::int64_t> starts = {};  ///< of the two samples; none: key_length - query_length

  template <class... Masks>
  std::string faults(const Masks&... masks) const {
    return faults_of_call([&](const score_position& at) { return (masks(at) && ...); },
                          [&](const auto& q, const auto& k, const auto& v, const hw::attention_options<T>& options) {
                            return hw::scaled_dot_product_attention(q, k, v, options, masks...);
                          });
  }

  /// Compiled once, whatever the masks.
  std::string faults_of_call(const std::function<bool(const score_position&)>& sees, const attention& masked) const {
    random_source random(query_length * 1000 + key_length);
    const auto q = random.tensor<T>({2, query_length, heads, head_dim});
    auto k = random.tensor<T>({2, key_length, kv_heads, head_dim});
    auto v = random.tensor<T>({2, key_length, kv_heads, 5});
    hw::tensor<bool, 4> visible({2, heads, query_length, key_length});
    support::for_each_index(visible.extents(), [&](const auto& at) {
      const std::int64_t start = starts.empty()
                                     ? static_cast<std::int64_t>(key_length) - static_cast<std::int64_t>(query_length)
                                     : starts[at[0]];
      const score_position position{static_cast<std::int64_t>(at[0]), static_cast<std::int64_t>(at[1]),
                                    start + static_cast<std::int64_t>(at[2]), static_cast<std::int64_t>(at[3])};
      support::element(visible.view(), at) = sees(position);
    });
    // The first block of keys has numbers only, unless it is the last.
    const std::size_t group = heads / kv_heads, first_poison = key_length > 256 ? 256 : 0;
    support::for_each_index(support::extents<3>{2, key_length - first_poison, kv_heads}, [&](auto at) {
      at[1] += first_poison;
      bool seen = false;
      for (std::size_t n = 0; n < group * query_length; ++n) {
        seen = seen || visible(at[0], at[2] * group + n % group, n / group, at[1]);
      }
      for (std::size_t c = 0; !seen && c < head_dim; ++c) {
        k(at[0], at[1], at[2], c) = static_cast<T>(c % 2 ? not_a_number : infinity);
      }
      for (std::size_t c = 0; !seen && c < 5; ++c) {
        v(at[0], at[1], at[2], c) = static_cast<T>(c % 2 ? not_a_number : -infinity);
      }
      // Seen by some rows only.
      if (seen && at[1] % 41 == 7) {
        v(at[0], at[1], at[2], 3) = static_cast<T>(infinity);
      }
    });
    const auto run = [&](const hw::attention_options<T>& given, const attention& attend) {
      hw::attention_options<T> options = given;
      options.query_starts = starts;
      hw::tensor<T, 3> lse({2, heads, query_length});
      hw::tensor<T, 4> weights({2, heads, query_length, key_length});
      options.lse = lse;
      const auto out = attend(q, k, v, options);
      const auto lse_alone = lse;
      options.weights = weights;
      const auto with_weights = attend(q, k, v, options);
      return std::vector<std::vector<T>>{support::flat(out), support::flat(lse_alone), support::flat(weights),
                                         support::flat(with_weights), support::flat(lse)};
    };
    const auto plain = [](const operand& a, const operand& b, const operand& c,
                          const hw::attention_options<T>& options) {
      return hw::scaled_dot_product_attention(a, b, c, options);
    };
    const auto expected = run({.visible = visible}, plain), actual = run({}, masked);
    std::string text;
    const char* const names[] = {"out", "lse", "weights", "out with weights", "lse with weights"};
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const hw::tensor_view<const T, 1> a(actual[n], {actual[n].size()}), e(expected[n], {expected[n].size()});
      const std::string fault = same_bits(a, e);
      text += fault.empty() ? "" : std::string(names[n]) + ": " + fault + "\n";
    }
    return text;
  }
};

template <class T>
void check_attention(const masked_problem<T>& problem) {
  CAPTURE(problem.query_length, problem.key_length, problem.heads, problem.kv_heads, problem.starts);
  const auto check = [&](const char* name, const auto&... masks) {
    CAPTURE(name);
    CHECK(problem.faults(masks...) == "");
  };
  const auto n = static_cast<std::int64_t>(problem.key_length);
  std::vector<std::int64_t> ids(problem.key_length);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i / 37);
  }
  const auto words = random_words(2, problem.heads, problem.query_length, (problem.key_length + 63) / 64);
  const std::int64_t first_query = problem.starts.empty() ? n - static_cast<std::int64_t>(problem.query_length) : 0;
  std::vector<std::int64_t> offsets = {0}, columns;
  for (std::int64_t row = 0; row * 5 < n; ++row) {
    for (std::int64_t column = row % 3; column * 16 < n; column += 1 + row % 4) {
      columns.push_back(column);
    }
    offsets.push_back(static_cast<std::int64_t>(columns.size()));
  }
  std::vector<std::int64_t> drafts(problem.query_length + 3);
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    drafts[i] = static_cast<std::int64_t>(i) / 2 - 1;
  }
  check("causal", hw::causal_mask{});
  check("window", hw::window_mask{20, 3});
  check("wide window", hw::window_mask{.left = 270});
  check("prefix", hw::prefix_mask{n / 2});
  check("window and global", hw::window_mask{9, 9} || hw::global_mask{3});
  check("chunk", hw::chunk_mask{50});
  check("dilated", hw::dilated_mask{17});
  check("distance", hw::distance_mask{[](std::int64_t d) { return d < -100 || d == 0; }});
  check("documents", hw::document_mask(ids));
  check("bits", hw::bit_mask(words, first_query));
  check("tree",
        hw::tree_mask(drafts, (std::max)(std::int64_t{0}, n - static_cast<std::int64_t>(problem.query_length))));
  check("blocks", hw::block_sparse_mask(5, 16, offsets, columns));
  check("nothing seen", hw::causal_mask{} && !hw::causal_mask{});
  check("all seen", hw::causal_mask{} || !hw::causal_mask{});
  check("two masks", hw::causal_mask{}, !hw::dilated_mask{2});
  check("heads", hw::visible_if([](score_position at) { return (at.head + at.batch + at.key) % 3 != 0; }),
        hw::prefix_mask{n - 20});
  check("nested", (hw::chunk_mask{30} || hw::document_mask(ids)) && !(hw::window_mask{2, 2} && hw::dilated_mask{3}));
}

}  // namespace

TEMPLATE_TEST_CASE("attention with a mask has the bits of attention with its visibility as a tensor",
                   "[masks][attention][bits]", float, double) {
  check_attention<TestType>({20, 300, 4, 2, 8});
  check_attention<TestType>({3, 300, 4, 2, 8, {297, 40}});
  check_attention<TestType>({1, 530, 3, 3, 9});
  check_attention<TestType>({2, 280, 4, 1, 16});
}

TEMPLATE_TEST_CASE("masks at positions before the first key and past the last", "[masks][attention][bits]", float,
                   double) {
  check_attention<TestType>({30, 20, 2, 1, 4, {-12, 7}});
  check_attention<TestType>({2, 20, 2, 1, 4, {-1, 19}});
  check_attention<TestType>({3, 0, 2, 1, 4});
}

TEMPLATE_TEST_CASE("masks at extreme positions", "[masks][attention][bits]", float, double) {
  random_source random(62);
  const auto q = random.tensor<TestType>({1, 4, 1, 4});
  const auto k = random.tensor<TestType>({1, 5, 1, 4});
  const auto v = random.tensor<TestType>({1, 5, 1, 4});
  const auto all = hw::scaled_dot_product_attention(q, k, v);
  const hw::tensor<TestType, 4> none({1, 4, 1, 4});
  const auto check = [&](std::int64_t start, const auto& mask, const hw::tensor<TestType, 4>& expected) {
    CAPTURE(start);
    for (const std::size_t rows : {4u, 1u}) {
      hw::tensor<TestType, 3> maximum({1, 1, rows});  // with it, another path is taken
      const auto few = q.view().slice(1, 0, rows);
      CHECK(same_bits(hw::scaled_dot_product_attention(few, k, v, hw::attention_options<TestType>{.query_start = start},
                                                       mask),
                      expected.view().slice(1, 0, rows)) == "");
      CHECK(same_bits(hw::scaled_dot_product_attention(
                          few, k, v, hw::attention_options<TestType>{.query_start = start, .maximum = maximum}, mask),
                      expected.view().slice(1, 0, rows)) == "");
    }
  };
  const hw::distance_mask ahead{[](std::int64_t d) { return d > 0; }};
  const std::vector<std::int64_t> document_ids = {0, 0, 0, 1, 1, 7, 7, 7, 2, 0, 0};
  for (const std::int64_t start : {INT64_MAX, INT64_MAX - 2, INT64_MAX / 2 + 1}) {
    check(start, hw::causal_mask{}, all);
    check(start, hw::window_mask{.left = 3}, none);
    check(start, hw::window_mask{}, all);
    check(start, hw::window_mask{0, INT64_MAX}, none);
    check(start, hw::chunk_mask{INT64_MAX}, all);
    check(start, hw::chunk_mask{7}, none);
    check(start, ahead, none);
    check(start, !ahead, all);
    check(start, hw::dilated_mask{1}, all);
    check(start, hw::global_mask{2},
          hw::scaled_dot_product_attention(q, k.view().slice(1, 0, 2), v.view().slice(1, 0, 2)));
  }
  for (const std::int64_t start : {INT64_MIN, INT64_MIN + 1, INT64_MIN / 2 - 9}) {
    check(start, hw::causal_mask{}, none);
    check(start, hw::window_mask{.right = 3}, none);
    check(start, hw::window_mask{INT64_MAX, INT64_MAX}, all);
    check(start, hw::chunk_mask{INT64_MAX}, none);
    check(start, hw::chunk_mask{7}, none);
    check(start, ahead, all);
    check(start, !ahead, none);
    check(start, hw::global_mask{2}, all);
    check(start, hw::document_mask(document_ids), none);
  }
}

namespace {

/// Keys, or values, each on a page of its own; pages can be closed, so that reading one ends the program.
template <class T>
class pages {
 public:
  pages(std::size_t count, std::size_t width) : size_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), count_(count) {
    memory_ =
        static_cast<char*>(mmap(nullptr, count * size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory_ != MAP_FAILED);
    view_ = {reinterpret_cast<const T*>(memory_),
             {1, count, 1, width},
             {0, static_cast<hw::index>(size_ / sizeof(T)), 0, 1}};
    random_source random(count);
    for (std::size_t key = 0; key < count; ++key) {
      for (std::size_t c = 0; c < width; ++c) {
        reinterpret_cast<T*>(memory_ + key * size_)[c] = static_cast<T>(random.bell());
      }
    }
  }
  pages(const pages&) = delete;
  pages& operator=(const pages&) = delete;
  ~pages() { munmap(memory_, count_ * size_); }

  void close(std::size_t key) { REQUIRE(mprotect(memory_ + key * size_, size_, PROT_NONE) == 0); }
  const hw::tensor_view<const T, 4>& view() const { return view_; }

 private:
  std::size_t size_, count_;
  char* memory_;
  hw::tensor_view<const T, 4> view_;
};

}  // namespace

TEMPLATE_TEST_CASE("keys and values outside of a mask's bounds are not read", "[masks][attention]", float, double) {
  const auto check = [](std::size_t rows, std::size_t count, const auto& mask, auto is_bounded) {
    CAPTURE(rows, count);
    pages<TestType> k(count, 6), v(count, 9);
    random_source random(rows);
    const auto q = random.tensor<TestType>({1, rows, 1, 6});
    const auto expected = hw::scaled_dot_product_attention(q, k.view(), v.view(), {}, mask);
    for (std::size_t key = 0; key < count; ++key) {
      if (is_bounded(static_cast<std::int64_t>(key))) {
        k.close(key);
        v.close(key);
      }
    }
    CHECK(same_bits(hw::scaled_dot_product_attention(q, k.view(), v.view(), {}, mask), expected) == "");
  };
  for (const std::size_t rows : {1u, 3u, 20u}) {
    const std::int64_t first = 300 - static_cast<std::int64_t>(rows);
    check(rows, 300, hw::window_mask{20, 0}, [=](std::int64_t key) { return key < first - 20; });
    check(rows, 300, hw::chunk_mask{100}, [](std::int64_t key) { return key < 200; });
    check(rows, 300, hw::visible_if([](score_position at) { return at.key != 299; }) && hw::window_mask{7, 0},
          [=](std::int64_t key) { return key < first - 7; });
    check(rows, 300, hw::chunk_mask{50} || hw::window_mask{9, 3}, [](std::int64_t key) { return key < 250; });
  }
  // Few rows skip groups of keys that the mask knows to be hidden, wherever they lie.
  check(1, 600, hw::window_mask{20, 0} || hw::global_mask{16}, [](std::int64_t key) { return key >= 16 && key < 576; });
  std::vector<std::int64_t> ids(600);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i < 32 || i >= 320 ? 1 : i < 64 ? 2 : 3;
  }
  check(3, 600, hw::document_mask(ids), [](std::int64_t key) { return key >= 32 && key < 320; });
}

TEMPLATE_TEST_CASE("masks are asked about the keys that are left, and not where all is known", "[masks][attention]",
                   float, double) {
  random_source random(7);
  const auto q = random.tensor<TestType>({1, 20, 1, 4});
  const auto k = random.tensor<TestType>({1, 400, 1, 4});
  const auto v = random.tensor<TestType>({1, 400, 1, 4});
  const auto count = [&](const hw::attention_options<TestType>& options, auto make_mask) {
    calls asked;
    hw::scaled_dot_product_attention(q, k, v, options, make_mask(asked));
    return asked.count;
  };
  const auto plain = [](calls& asked) {
    return hw::visible_if([&asked](score_position) { return ++asked.count > 0; });
  };
  CHECK(count({}, plain) == 20 * 400);
  CHECK(count({.causal = true}, plain) == 20 * 381 + 190);
  CHECK(count({.window = {3, 2}}, plain) == 18 * 6 + 5 + 4);
  const std::vector<std::int64_t> keys = {33}, queries = {7};
  CHECK(count({.query_lengths = queries, .key_lengths = keys}, plain) == 7 * 33);
  CHECK(count({}, [](calls& asked) {
          return hw::window_mask{4, 0} && hw::visible_if([&asked](score_position) { return ++asked.count > 0; });
        }) == 20 * 5);

  // One answer for a region, and none for its pairs.
  struct knowing {
    calls& asked;
    hw::visibility answer;
    bool operator()(score_position) const {
      ++asked.count;
      return answer == hw::visibility::all;
    }
    hw::visibility sees(const hw::score_region& region) const {
      ++asked.regions;
      asked.bad_regions += region.heads.first >= region.heads.last || region.queries.first >= region.queries.last ||
                           region.keys.first >= region.keys.last || region.keys.first < 0 || region.keys.last > 400 ||
                           region.queries.first < 380 || region.queries.last > 400 || region.batch != 0;
      return answer;
    }
  };
  for (const hw::visibility answer : {hw::visibility::all, hw::visibility::none}) {
    for (const std::size_t rows : {20u, 2u}) {
      calls asked;
      const auto last = q.view().slice(1, 20 - rows, rows);
      const auto out = hw::scaled_dot_product_attention(last, k, v, {}, knowing{asked, answer});
      CHECK(asked.count == 0);
      CHECK(asked.regions > 0);
      CHECK(asked.bad_regions == 0);
      CHECK(same_bits(out, answer == hw::visibility::all ? hw::scaled_dot_product_attention(last, k, v)
                                                         : hw::tensor<TestType, 4>({1, rows, 1, 4})) == "");
    }
  }
}
