// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/layer.hpp"
#include "support/random.hpp"
#include "support/threads.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

/// \file
/// Many threads at once: the first call of all, objects that they share, and a choice of instructions in the meantime.
/// The thread sanitizer (preset tsan) looks at the same calls.

namespace hw = headwave;
using support::layer_parameters;
using support::random_source;
using support::same_bits;

namespace {

constexpr std::size_t thread_count = 4;

/// Calls work(t) for t = 0 .. thread_count-1, on new threads that begin together.
template <class Work>
void at_once(const Work& work) {
  std::atomic<std::size_t> waiting{thread_count};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      --waiting;
      while (waiting > 0) {
        std::this_thread::yield();
      }
      work(t);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// The next call that asks for the tier is the first to do so.
void forget_tier() {
  hw::detail::chosen_isa = -1;
}

/// What the threads share, and only read.
template <class T>
struct shared_objects {
  random_source random{11};
  hw::tensor<T, 4> q = random.tensor<T>({2, 40, 4, 24}), k = random.tensor<T>({2, 300, 2, 24}),
                   v = random.tensor<T>({2, 300, 2, 24});
  hw::tensor<bool, 2> visible = random.mask({40, 300}, 0.7);
  std::vector<std::int64_t> query_offsets{0, 30, 40}, key_offsets{0, 200, 300};
  std::vector<T> slopes = std::vector<T>(4, T(0.1));
  hw::linear<T> projection{random.tensor<T>({70, 96}), random.tensor<T>({70})};
  hw::multi_head_attention<T> layer = layer_parameters<T>({.d_model = 96, .heads = 4, .kv_heads = 2}, random).layer();
  hw::tensor<T, 3> words = random.tensor<T>({2, 40, 96});
  hw::rotary_embedding rope{{.rotary_dim = 24, .layout = hw::channel_layout::halves}};
  hw::kv_cache<T> cache{{.batch = 2, .capacity = 320, .kv_heads = 2, .head_dim = 24}};

  shared_objects() { cache.append(k, v); }
};

/// One call of each kind, and all that they write.
template <class T>
std::vector<T> results_on(const shared_objects<T>& x, const hw::executor_ref& executor = {}) {
  std::vector<T> all;
  const auto append = [&all](const auto& result) {
    const auto values = support::flat(result);
    all.insert(all.end(), values.begin(), values.end());
  };
  auto encoded = x.words;
  hw::add_sinusoidal_encoding(encoded, {.first_position = 5});
  append(encoded);
  auto rotated = x.q;
  x.rope.apply(rotated, 9, executor);
  append(rotated);
  append(hw::softmax(x.words));
  append(x.projection(x.words, executor));
  hw::tensor<T, 4> weights({2, 4, 40, 300});
  hw::tensor<T, 3> lse({2, 4, 40}), entropy({2, 4, 40}), mean_weights({2, 40, 300}), key_mass({2, 4, 300});
  auto attended = hw::scaled_dot_product_attention(x.q, x.k, x.v,
                                                   {.visible = x.visible,
                                                    .causal = true,
                                                    .alibi_slopes = x.slopes,
                                                    .dropout = {0.2, 3},
                                                    .lse = lse,
                                                    .entropy = entropy,
                                                    .weights = weights,
                                                    .mean_weights = mean_weights,
                                                    .key_mass = key_mass,
                                                    .executor = executor});
  append(attended);
  append(entropy);
  append(weights);
  append(mean_weights);
  append(key_mass);
  const auto other = attended;
  const auto other_lse = lse;
  hw::merge_attention(attended, lse, other, other_lse, executor);
  append(attended);
  append(lse);
  append(hw::scaled_dot_product_attention(
      x.q.view().slice(0, 0, 1), x.k.view().slice(0, 0, 1), x.v.view().slice(0, 0, 1),
      {.query_offsets = x.query_offsets, .key_offsets = x.key_offsets, .executor = executor}));
  append(hw::scaled_dot_product_attention(x.q, x.k, x.v, {.executor = executor}, hw::window_mask{.left = 90},
                                          [](T score, hw::score_position at) { return score + T(at.key % 3); }));
  append(hw::scaled_dot_product_attention(x.q.view().slice(1, 0, 2), x.cache, {.causal = true, .executor = executor}));
  append(x.layer(encoded, {.causal = true, .executor = executor}));
  auto own = x.layer.make_cache(2, 40);
  append(x.layer(encoded, own, {.causal = true, .executor = executor}));
  return all;
}

template <class T>
std::string differences(const std::vector<T>& a, const std::vector<T>& b) {
  return same_bits(hw::tensor_view<const T, 1>(a, {a.size()}), hw::tensor_view<const T, 1>(b, {b.size()}));
}

}  // namespace

TEMPLATE_TEST_CASE("the first calls of a program, on many threads at once", "[concurrency][E07]", float, double) {
  const hw::isa tier = hw::active_isa();
  const shared_objects<TestType> shared;
  const auto expected = results_on(shared);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> faults(thread_count);
    forget_tier();
    at_once([&](std::size_t t) {
      // Odd threads on threads of their own: then all of it has another owner.
      const support::thread_executor team{.threads = 2};
      faults[t] = differences(t % 2 ? results_on(shared, team) : results_on(shared), expected);
    });
    CHECK(hw::active_isa() == tier);
    CHECK(faults == std::vector<std::string>(thread_count));
  }
}

TEST_CASE("objects are made on many threads at once", "[concurrency]") {
  const auto expected = results_on(shared_objects<float>());
  std::vector<std::string> faults(thread_count);
  forget_tier();
  at_once([&](std::size_t t) { faults[t] = differences(results_on(shared_objects<float>()), expected); });
  CHECK(faults == std::vector<std::string>(thread_count));
}

TEST_CASE("a tier that is set during another thread's first call stays set", "[concurrency]") {
  const hw::isa before = hw::active_isa();
  int lost = 0;
  for (int round = 0; round < 100; ++round) {
    forget_tier();
    at_once([](std::size_t t) {
      if (t == 0) {
        hw::set_isa(hw::isa::scalar);
      } else {
        static_cast<void>(hw::active_isa());
      }
    });
    lost += hw::active_isa() != hw::isa::scalar;
  }
  hw::set_isa(before);
  CHECK(lost == 0);
}

namespace {

/// Runs tasks one after the other, each on the next tier that the machine has.
struct alternating_executor {
  hw::index concurrency() const { return 3; }
  template <class Task>
  void operator()(hw::index count, const Task& task) const {
    for (hw::index i = 0; i < count; ++i) {
      hw::isa next = static_cast<hw::isa>((static_cast<int>(hw::active_isa()) + 1) % hw::detail::isa_count);
      while (!hw::is_available(next)) {
        next = static_cast<hw::isa>((static_cast<int>(next) + 1) % hw::detail::isa_count);
      }
      hw::set_isa(next);
      task(i);
    }
  }
};

}  // namespace

// All scores of a row agree and the values are small integers, as are the weights of projections: every sum is exact
// on every tier, and so is a mean over a power of two.
TEMPLATE_TEST_CASE("a call during which the tier changes", "[concurrency]", float, double) {
  using T = TestType;
  const hw::isa before = hw::active_isa();
  const alternating_executor alternating;
  random_source random(12);
  const auto whole_numbers = [&random](auto x) {
    for (T& value : x) {
      value = T(static_cast<int>(random.integer(0, 16)) - 8);
    }
    return x;
  };
  for (const std::size_t rows : {1u, 70u}) {
    CAPTURE(rows);
    const std::size_t keys = rows > 2 ? 512 : 2048;
    const hw::tensor<T, 4> q({2, rows, 4, 32});
    const auto k = whole_numbers(hw::tensor<T, 4>({2, keys, 2, 32}));
    const auto v = whole_numbers(hw::tensor<T, 4>({2, keys, 2, 24}));
    hw::tensor<T, 4> mean({2, rows, 4, 24});
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t h = 0; h < 4; ++h) {
        for (std::size_t c = 0; c < 24; ++c) {
          T sum = 0;
          for (std::size_t s = 0; s < keys; ++s) {
            sum += v(b, s, h / 2, c);
          }
          for (std::size_t r = 0; r < rows; ++r) {
            mean(b, r, h, c) = sum / static_cast<T>(keys);
          }
        }
      }
    }
    hw::tensor<T, 4> weights({2, 4, rows, keys});
    CHECK(same_bits(hw::scaled_dot_product_attention(q, k, v, {.executor = alternating}), mean) == "");
    CHECK(same_bits(hw::scaled_dot_product_attention(q, k, v, {.weights = weights, .executor = alternating},
                                                     [](T score, hw::score_position) { return score + T(2); }),
                    mean) == "");
    CHECK(std::all_of(weights.begin(), weights.end(), [&](T w) { return w == 1 / static_cast<T>(keys); }));
  }
  for (const std::size_t rows : {1u, 60u}) {
    CAPTURE(rows);
    const std::size_t inputs = rows == 1 ? 9000 : 300;
    const auto x = whole_numbers(hw::tensor<T, 3>({1, rows, inputs}));
    const auto weight = whole_numbers(hw::tensor<T, 2>({200, inputs}));
    const auto bias = whole_numbers(hw::tensor<T, 1>({200}));
    hw::tensor<T, 3> product({1, rows, 200});
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < 200; ++o) {
        product(0, r, o) = bias(o);
        for (std::size_t i = 0; i < inputs; ++i) {
          product(0, r, o) += x(0, r, i) * weight(o, i);
        }
      }
    }
    const hw::linear<T> project(weight, bias);
    CHECK(same_bits(project(x, alternating), product) == "");
  }
  hw::set_isa(before);
}
