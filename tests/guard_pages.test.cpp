// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/guarded.hpp"
#include "support/layer.hpp"
#include "support/random.hpp"
#include "support/random_attention.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

/// \file
/// Every operand of every function lies against an inaccessible page, first with its end, then with its beginning, and
/// the results are those of the same call on ordinary memory. What the library allocates lies against one, too, but for
/// the bytes that alignment takes; tensors whose size is a multiple of 64 bytes lie against it exactly.

namespace hw = headwave;
using support::layer_parameters;
using support::operand_memory;
using support::place;
using support::random_problem;
using support::random_source;
using support::result_bytes;
using support::same_bits;
using support::sizes;
using support::spacing;

void* operator new(std::size_t size, std::align_val_t alignment) {
  return support::allocate_guarded(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory, std::align_val_t) noexcept {
  support::release_guarded(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  support::release_guarded(memory);
}

namespace {

/// Runs a call with its operands in ordinary memory, then between inaccessible pages in several layouts. Empty if all
/// results are the same.
template <class Run>
std::string faults_of(const Run& run,
                      std::vector<spacing> layouts = {{.gap = 0},
                                                      {.gap = 3},
                                                      {.last_stride = 2, .gap = 0},
                                                      {.last_stride = -1, .gap = 1, .reversed = true}}) {
  operand_memory ordinary(place::ordinary);
  const result_bytes expected = run(ordinary);
  for (const spacing& layout : layouts) {
    for (const place where : {place::end, place::beginning}) {
      operand_memory guarded(where, layout);
      const std::string fault = run(guarded).differs_from(expected);
      if (!fault.empty()) {
        return fault + (where == place::end ? ", end" : ", beginning") + ", stride " +
               std::to_string(layout.last_stride);
      }
    }
  }
  return {};
}

template <class... X>
result_bytes results(const X&... x) {
  result_bytes bytes;
  (bytes.add(x), ...);
  return bytes;
}

template <class T, std::size_t Rank>
hw::tensor<T, Rank> unwritten(const std::size_t (&shape)[Rank]) {
  return support::constant<T>(shape, -7);
}

}  // namespace

TEST_CASE("memory up to an inaccessible page is aligned, and ends there", "[guard]") {
  for (const std::size_t count : sizes{16, 1024, 4096, 1u << 20}) {
    const hw::tensor<float, 1> x({count});
    CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 64 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(x.end()) % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) == 0);
  }
  operand_memory memory(place::end);
  const auto view = memory.input(hw::tensor<double, 2>({3, 5}));
  CHECK(reinterpret_cast<std::uintptr_t>(&view(2, 4) + 1) % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) == 0);
  operand_memory other(place::beginning, {.last_stride = -1, .gap = 1, .reversed = true});
  const auto reversed = other.input(hw::tensor<double, 2>({3, 5}));
  CHECK(reversed.strides() == std::array<hw::index, 2>{-6, -1});
  CHECK(reinterpret_cast<std::uintptr_t>(&reversed(2, 4)) % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) == 0);
}

TEMPLATE_TEST_CASE("encodings between inaccessible pages", "[guard]", float, double) {
  using T = TestType;
  random_source random(1);
  for (const std::size_t width : sizes{1, 2, 5, 8, 31, 33, 48, 67}) {
    for (const std::size_t length : sizes{0, 1, 3, 40}) {
      CAPTURE(width, length);
      const auto x = random.tensor<T>({2, length, width});
      std::vector<double> positions(length);
      std::generate(positions.begin(), positions.end(), [&] { return random.uniform(-1e6, 1e6); });
      const std::vector<std::int64_t> rows(length, 3);
      const auto table = random.tensor<T>({4, width});
      hw::encoding_options options;
      options.layout = random.chance(0.5) ? hw::channel_layout::halves : hw::channel_layout::interleaved;
      options.order = random.chance(0.5) ? hw::channel_order::cos_sin : hw::channel_order::sin_cos;
      options.odd = random.chance(0.5) ? hw::odd_channel::zero : hw::odd_channel::sine;
      options.first_position = static_cast<std::int64_t>(random.integer(0, 100));
      CHECK(faults_of([&](operand_memory& m) {
              const auto out = m.output(unwritten<T>({length, width}));
              const auto at = m.output(unwritten<T>({length, width}));
              const auto sum = m.output(x), learned = m.output(x), chosen = m.output(x);
              const auto grid = m.output(unwritten<T>({3, length, 2 * width}));
              hw::sinusoidal_encoding_into(out, options);
              hw::sinusoidal_encoding_into(at, m.list(positions), options);
              hw::add_sinusoidal_encoding(sum, options);
              hw::sinusoidal_encoding_2d_into(grid, {.axis = options, .normalize = true});
              if (length <= 4) {
                hw::add_learned_encoding(learned, m.input(table));
              }
              hw::add_learned_encoding(chosen, m.input(table), m.list(rows));
              return results(out, at, sum, grid, learned, chosen);
            }) == "");
    }
  }
  for (const std::size_t heads : sizes{0, 1, 3, 12, 20}) {
    const auto table = random.tensor<T>({32, heads});
    CHECK(faults_of([&](operand_memory& m) {
            const auto slopes = m.output(unwritten<T>({heads}));
            hw::alibi_slopes_into(slopes);
            return results(slopes, hw::t5_distance_bias(m.input(table)));
          }) == "");
  }
}

TEMPLATE_TEST_CASE("rotations between inaccessible pages", "[guard]", float, double) {
  using T = TestType;
  random_source random(2);
  for (const std::size_t head_dim : sizes{2, 31, 40}) {
    for (const std::size_t length : sizes{0, 1, 19}) {
      for (const auto layout : {hw::channel_layout::interleaved, hw::channel_layout::halves}) {
        CAPTURE(head_dim, length, layout);
        const std::size_t pairs = random.integer(1, head_dim / 2);
        const std::vector<std::size_t> sections{pairs / 2, pairs - pairs / 2};
        const std::vector<double> frequencies(pairs, 0.25);
        const std::vector<std::int64_t> starts{5, -3}, positions(length, 77);
        hw::rotary_options options{
            .rotary_dim = 2 * pairs, .layout = layout, .first_channel = random.chance(0.5) ? head_dim - 2 * pairs : 0};
        hw::tensor<std::int64_t, 2> by_sample({2, length});
        hw::tensor<std::int64_t, 3> by_axis({2, 2, length});
        std::fill(by_sample.begin(), by_sample.end(), 12);
        std::fill(by_axis.begin(), by_axis.end(), 4321);
        const auto q = random.tensor<T>({2, length, 3, head_dim});
        CHECK(faults_of([&](operand_memory& m) {
                result_bytes all;
                const hw::rotary_embedding rope(options);
                const auto rotate = [&](const hw::rotary_embedding& embedding, const hw::rotary_positions& at) {
                  const auto x = m.output(q), y = m.output(q);
                  embedding.apply(x, at);
                  embedding.apply_inverse(y, at);
                  all.add(x);
                  all.add(y);
                };
                rotate(rope, 9);
                rotate(rope, m.list(positions));
                rotate(rope, m.input(by_sample));
                rotate(rope, hw::rotary_positions::starts(m.list(starts)));
                hw::rotary_options with_axes = options, explicit_rates = options;
                with_axes.sections = m.list(sections);
                explicit_rates.frequencies = m.list(frequencies);
                rotate(hw::rotary_embedding(with_axes), m.input(by_axis));
                rotate(hw::rotary_embedding(explicit_rates), -4);
                return all;
              }) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("softmax, projections and merges between inaccessible pages", "[guard]", float, double) {
  using T = TestType;
  random_source random(3);
  for (const std::size_t width : sizes{0, 1, 5, 16, 31, 33, 70}) {
    for (const std::size_t length : sizes{0, 1, 6, 13}) {
      CAPTURE(width, length);
      const auto x = random.tensor<T>({2, length, width});
      CHECK(faults_of([&](operand_memory& m) {
              const auto out = m.output(unwritten<T>({2, length, width})), in_place = m.output(x);
              hw::softmax_into(out, m.input(x));
              hw::softmax_into(in_place, in_place);
              return results(out, in_place);
            }) == "");

      const std::size_t outputs = random.pick({0, 1, 17, 32, 45});
      const auto weight = random.tensor<T>({outputs, width});
      const auto bias = random.tensor<T>({outputs});
      CHECK(faults_of([&](operand_memory& m) {
              const auto out = m.output(unwritten<T>({2, length, outputs}));
              const hw::linear<T> projection(m.input(weight), m.input(bias));
              projection.apply_into(out, m.input(x));
              return results(out);
            }) == "");

      const auto a = random.tensor<T>({2, length, 3, width}), b = random.tensor<T>({2, length, 3, width});
      auto lse_a = random.tensor<T>({2, 3, length}), lse_b = random.tensor<T>({2, 3, length});
      if (length > 1) {
        lse_a(0u, 0u, 0u) = lse_b(1u, 2u, length - 1) = -std::numeric_limits<T>::infinity();
      }
      CHECK(faults_of([&](operand_memory& m) {
              const auto out = m.output(a);
              const auto lse = m.output(lse_a);
              hw::merge_attention(out, lse, m.input(b), m.input(lse_b));
              return results(out, lse);
            }) == "");
    }
  }
}

namespace {

/// What attention is asked for beside its output.
struct wanted_outputs {
  bool lse = false, maximum = false, entropy = false, weights = false, mean_weights = false, key_mass = false;
};

/// The options of a problem, with all that they look at in other memory.
template <class T>
hw::attention_options<T> options_in(operand_memory& m, const random_problem<T>& p) {
  hw::attention_options<T> o = p.options;
  const auto move_list = [&](auto& list, const auto& x) {
    if (list.data()) {
      list = m.list(x);
    }
  };
  move_list(o.head_scales, p.head_scales);
  move_list(o.query_starts, p.query_starts);
  move_list(o.query_lengths, p.query_lengths);
  move_list(o.key_lengths, p.key_lengths);
  move_list(o.query_offsets, p.query_offsets);
  move_list(o.key_offsets, p.key_offsets);
  move_list(o.alibi_slopes, p.slopes);
  move_list(o.sinks, p.sinks);
  move_list(o.weight_rows, p.weight_rows);
  if (o.bias.view().data()) {
    o.bias = m.input(p.bias);
  }
  if (o.visible.view().data()) {
    o.visible = m.input(p.visible);
  }
  if (o.distance_bias.data()) {
    o.distance_bias = m.input(p.distance_bias);
  }
  return o;
}

/// Every output that is wanted, in that memory.
template <class T>
struct attention_outputs {
  hw::tensor_view<T, 3> lse, maximum, entropy, mean_weights, key_mass;
  hw::tensor_view<T, 4> weights;

  attention_outputs(operand_memory& m, const support::problem_sizes& s, std::size_t columns,
                    const wanted_outputs& wanted, hw::attention_options<T>& o) {
    const auto give = [&](bool is_wanted, auto& view, auto& option, const auto& shape) {
      if (is_wanted) {
        view = m.output(unwritten<T>(shape));
        option = view;
      }
    };
    const std::size_t rows[] = {s.batch, s.heads, s.query_length}, means[] = {s.batch, s.query_length, columns},
                      sums[] = {s.batch, s.heads, columns},
                      pairs[] = {s.batch, s.heads, o.weight_rows.data() ? o.weight_rows.size() : s.query_length,
                                 columns};
    give(wanted.lse, lse, o.lse, rows);
    give(wanted.maximum, maximum, o.maximum, rows);
    give(wanted.entropy, entropy, o.entropy, rows);
    give(wanted.mean_weights, mean_weights, o.mean_weights, means);
    give(wanted.key_mass, key_mass, o.key_mass, sums);
    give(wanted.weights, weights, o.weights, pairs);
  }
  void add_to(result_bytes& all) const {
    for (const auto& view : {lse, maximum, entropy, mean_weights, key_mass}) {
      all.add(view);
    }
    all.add(weights);
  }
};

template <class Stored, class T>
hw::tensor<Stored, 4> stored(const hw::tensor<T, 4>& x) {
  hw::tensor<Stored, 4> result(x.extents());
  std::transform(x.begin(), x.end(), result.begin(), [](T number) { return static_cast<Stored>(number); });
  return result;
}

/// Queries and outputs of one element type, keys and values of another.
template <class Query, class Key, class T>
std::string faults_of_attention(const random_problem<T>& p, const wanted_outputs& wanted,
                                const std::vector<spacing>& layouts) {
  const auto q = stored<Query>(p.q);
  const auto k = stored<Key>(p.k), v = stored<Key>(p.v);
  const support::problem_sizes& s = p.shape;
  const hw::tensor<Query, 4> nothing({s.batch, s.query_length, s.heads, s.value_dim});
  return faults_of(
      [&](operand_memory& m) {
        hw::attention_options<T> options = options_in(m, p);
        const attention_outputs<T> outputs(m, s, s.key_length, wanted, options);
        const auto out = m.output(nothing);
        hw::scaled_dot_product_attention_into(out, m.input(q), m.input(k), m.input(v), options);
        result_bytes all = results(out);
        outputs.add_to(all);
        return all;
      },
      layouts);
}

std::vector<spacing> plain_and_another(random_source& random) {
  const hw::index stride = random.chance(0.5) ? 1 : random.chance(0.5) ? 3 : -1;
  return {{.gap = 0}, {.last_stride = stride, .gap = random.integer(0, 5), .reversed = random.chance(0.3)}};
}

}  // namespace

TEMPLATE_TEST_CASE("attention between inaccessible pages", "[guard]", float, double) {
  using T = TestType;
  random_source random(4);
  for (int round = 0; round < 90; ++round) {
    const bool few_rows = random.chance(0.4);
    const std::size_t kv_heads = random.integer(1, 2), group = random.integer(1, 2);
    const support::problem_sizes s{.batch = random.integer(1, 2),
                                   .query_length = few_rows ? random.integer(1, 8 / group) : random.integer(9, 30),
                                   .key_length = random.pick({1, 7, 15, 16, 17, 31, 33, 65, 257, 300}),
                                   .heads = group * kv_heads,
                                   .kv_heads = kv_heads,
                                   .head_dim = random.pick({1, 5, 31, 33, 40}),
                                   .value_dim = random.pick({1, 5, 16, 31, 33, 40})};
    const random_problem<T> p(s, random, random.chance(0.3) ? 0 : 0.4);
    wanted_outputs wanted{.lse = random.chance(0.5)};
    if (random.chance(0.5)) {
      wanted = {random.chance(0.5), random.chance(0.5), random.chance(0.5),
                random.chance(0.5), random.chance(0.3), random.chance(0.3)};
    }
    CAPTURE(round, support::text_of_sizes(s), support::text_of_options(p.options));
    const std::vector<spacing> layouts = plain_and_another(random);
    CHECK(faults_of_attention<T, T>(p, wanted, layouts) == "");
    if constexpr (std::is_same_v<T, float>) {
      CHECK(faults_of_attention<hw::bfloat16, hw::bfloat16>(p, wanted, layouts) == "");
      CHECK(faults_of_attention<hw::float16, hw::float16>(p, wanted, layouts) == "");
      CHECK(faults_of_attention<T, hw::bfloat16>(p, wanted, layouts) == "");
    }
  }
}

TEMPLATE_TEST_CASE("packed sequences and masks over a caller's memory between inaccessible pages", "[guard]", float,
                   double) {
  using T = TestType;
  random_source random(5);
  for (int round = 0; round < 30; ++round) {
    const support::problem_sizes s{.batch = 1,
                                   .query_length = random.integer(1, 40),
                                   .key_length = random.pick({1, 33, 65, 270}),
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .head_dim = random.pick({1, 5, 33}),
                                   .value_dim = random.pick({1, 31, 40}),
                                   .sequences = random.integer(1, 4)};
    const random_problem<T> p(s, random, 0.3);
    CAPTURE(round, support::text_of_sizes(s), support::text_of_options(p.options));
    CHECK(faults_of_attention<T, T>(p, {.lse = true, .key_mass = random.chance(0.5)}, plain_and_another(random)) == "");
  }
  std::vector<std::int64_t> ids(33);
  std::generate(ids.begin(), ids.end(), [&] { return static_cast<std::int64_t>(random.integer(0, 2)); });
  for (const std::size_t rows : sizes{1, 4, 33}) {
    const auto q = random.tensor<T>({1, rows, 2, 5}), k = random.tensor<T>({1, 33, 1, 5});
    CHECK(faults_of([&](operand_memory& m) {
            const auto out = m.output(q);
            hw::scaled_dot_product_attention_into(out, m.input(q), m.input(k), m.input(k), {},
                                                  hw::document_mask(m.list(ids)));
            return results(out);
          }) == "");
  }
}

namespace {

/// A cache that is filled up, so that the last key it holds ends its memory, and queries of its last rows.
template <class Stored, class T>
std::string faults_of_cache(std::size_t head_dim, std::size_t value_dim, bool rolling, random_source& random) {
  constexpr std::size_t capacity = 64, kv_heads = 2;
  const std::size_t length = rolling ? capacity + 10 : capacity;
  const auto k = random.tensor<T>({2, length, kv_heads, head_dim}),
             v = random.tensor<T>({2, length, kv_heads, value_dim});
  const auto q = random.tensor<T>({2, 20, 4, head_dim});
  const std::vector<std::int64_t> counts{3, 1}, samples{1, 0};
  return faults_of([&](operand_memory& m) {
    hw::kv_cache<T, Stored> cache({.batch = 2,
                                   .capacity = capacity,
                                   .kv_heads = kv_heads,
                                   .head_dim = head_dim,
                                   .value_dim = value_dim,
                                   .rolling = rolling});
    const auto append = [&](std::size_t first, std::size_t count, std::span<const std::int64_t> counts_of = {}) {
      cache.append(m.input(k.view().slice(1, first, count)), m.input(v.view().slice(1, first, count)), counts_of);
    };
    append(0, 5, m.list(counts));
    cache.truncate(1);
    append(1, length - 1);
    cache.reorder(m.list(samples));
    result_bytes all;
    for (const std::size_t rows : sizes{1, 3, 20}) {
      const auto out = m.output(unwritten<T>({2, rows, 4, value_dim}));
      const auto lse = m.output(unwritten<T>({2, 4, rows}));
      hw::scaled_dot_product_attention_into(out, m.input(q.view().slice(1, 0, rows)), cache,
                                            {.causal = true, .lse = lse});
      all.add(out);
      all.add(lse);
    }
    return all;
  });
}

}  // namespace

TEST_CASE("caches between inaccessible pages", "[guard]") {
  random_source random(6);
  for (const std::size_t head_dim : sizes{5, 33, 40}) {
    for (const bool rolling : {false, true}) {
      const std::size_t value_dim = random.pick({1, 16, 31, 33});
      CAPTURE(head_dim, value_dim, rolling);
      CHECK(faults_of_cache<float, float>(head_dim, value_dim, rolling, random) == "");
      CHECK(faults_of_cache<hw::bfloat16, float>(head_dim, value_dim, rolling, random) == "");
      CHECK(faults_of_cache<hw::float16, float>(head_dim, value_dim, rolling, random) == "");
      CHECK(faults_of_cache<std::int8_t, float>(head_dim, value_dim, rolling, random) == "");
      CHECK(faults_of_cache<double, double>(head_dim, value_dim, rolling, random) == "");
    }
  }
}

TEMPLATE_TEST_CASE("pages of keys between inaccessible pages", "[guard]", float, hw::bfloat16, hw::float16) {
  random_source random(7);
  for (const std::size_t page_size : sizes{1, 7, 16}) {
    for (const std::size_t head_dim : sizes{1, 33, 40}) {
      CAPTURE(page_size, head_dim);
      const auto k = stored<TestType>(random.tensor<float>({6, page_size, 2, head_dim}));
      const auto v = stored<TestType>(random.tensor<float>({6, page_size, 2, 31}));
      hw::tensor<std::int32_t, 2> table({2, 3});
      std::copy_n(std::array{0, 3, 1, 4, 2, 5}.begin(), 6, table.begin());  // the last page is the last
      const std::vector<std::int64_t> lengths{static_cast<std::int64_t>(2 * page_size),
                                              static_cast<std::int64_t>(3 * page_size)};
      for (const std::size_t rows : sizes{1, 3, 11}) {
        const auto q = random.tensor<float>({2, rows, 4, head_dim});
        CHECK(faults_of([&](operand_memory& m) {
                const auto out = m.output(unwritten<float>({2, rows, 4, 31}));
                const auto pages = m.input(table);
                hw::scaled_dot_product_attention_into(out, m.input(q), hw::paged_view<TestType>{m.input(k), pages},
                                                      hw::paged_view<TestType>{m.input(v), pages},
                                                      {.key_lengths = m.list(lengths)});
                return results(out);
              }) == "");
      }
    }
  }
}

namespace {

template <class T>
hw::multi_head_attention_weights<T> weights_in(operand_memory& m, const layer_parameters<T>& p) {
  hw::multi_head_attention_weights<T> w = p.weights();
  const auto move_all = [&](auto&... views) { ((views.data() ? void(views = m.input(views)) : void()), ...); };
  move_all(w.in_proj_weight, w.q_proj_weight, w.k_proj_weight, w.v_proj_weight, w.in_proj_bias, w.bias_k, w.bias_v,
           w.q_norm_weight, w.k_norm_weight, w.gate_proj_weight, w.gate_proj_bias, w.out_proj_weight, w.out_proj_bias);
  return w;
}

}  // namespace

TEMPLATE_TEST_CASE("layers between inaccessible pages", "[guard]", float, double) {
  using T = TestType;
  random_source random(8);
  for (int round = 0; round < 12; ++round) {
    hw::multi_head_attention_options o{.d_model = random.pick({5, 31, 33, 40}),
                                       .heads = 4,
                                       .kv_heads = random.pick({1, 2, 4}),
                                       .head_dim = random.pick({2, 5, 9}),
                                       .bias = random.chance(0.5),
                                       .add_bias_kv = random.chance(0.5),
                                       .add_zero_attention = random.chance(0.5),
                                       .qk_norm = random.chance(0.5)};
    if (random.chance(0.5)) {
      o.rotary = hw::rotary_options{.rotary_dim = 2};
    }
    o.gate = random.chance(0.3)   ? hw::output_gate::heads
             : random.chance(0.5) ? hw::output_gate::channels
                                  : hw::output_gate::none;
    const layer_parameters<T> p(o, random);
    const std::size_t rows = random.pick({1, 3, 17}), keys = random.pick({1, 7, 33});
    CAPTURE(round, o.d_model, o.kv_heads, o.head_dim, rows, keys);
    const auto x = random.tensor<T>({2, rows, o.d_model}), y = random.tensor<T>({2, keys, o.d_model});
    const std::size_t added = std::size_t{o.add_bias_kv} + std::size_t{o.add_zero_attention};
    const auto heads = [&](std::size_t key_length) {
      return support::problem_sizes{2, rows, key_length, o.heads, 1, 1, 1};
    };
    CHECK(faults_of([&](operand_memory& m) {
            hw::multi_head_attention<T> layer(o);
            layer.set_weights(weights_in(m, p));
            result_bytes all;
            for (const wanted_outputs& wanted :
                 {wanted_outputs{}, wanted_outputs{true, true, true, true, true, true}}) {
              const auto out = m.output(x), crossed = m.output(x);
              hw::attention_options<T> to_itself{.causal = true}, to_other;
              const attention_outputs<T> own(m, heads(rows), rows + added, wanted, to_itself);
              const attention_outputs<T> others(m, heads(keys), keys + added, wanted, to_other);
              layer.apply_into(out, m.input(x), to_itself);
              const auto other = m.input(y);
              layer.apply_into(crossed, m.input(x), other, other, to_other);
              all.add(out);
              all.add(crossed);
              own.add_to(all);
              others.add_to(all);
            }
            auto cache = layer.make_cache(2, 64);
            const auto first = m.output(x), second = m.output(x);
            layer.apply_into(first, m.input(x), cache);
            layer.apply_into(second, m.input(x), cache, {.causal = true});
            all.add(first);
            all.add(second);
            return all;
          }) == "");
  }
}

TEMPLATE_TEST_CASE("attention with an extent of zero touches nothing that is not there", "[guard][B25]", float,
                   double) {
  using T = TestType;
  random_source random(9);
  constexpr double none = -std::numeric_limits<double>::infinity();
  for (const std::size_t rows : sizes{0, 2, 12}) {
    for (const char* const empty : {"batch", "keys", "head_dim", "value_dim"}) {
      CAPTURE(rows, empty);
      const std::string name = empty;
      const support::problem_sizes s{.batch = name == "batch" ? 0u : 2u,
                                     .query_length = rows,
                                     .key_length = name == "keys" ? 0u : 20u,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = name == "head_dim" ? 0u : 5u,
                                     .value_dim = name == "value_dim" ? 0u : 3u};
      const random_problem<T> p(s, random, 0);
      for (const wanted_outputs& wanted :
           {wanted_outputs{.lse = true}, wanted_outputs{true, true, true, true, true, true}}) {
        CHECK(faults_of_attention<T, T>(p, wanted, {{.gap = 0}, {.last_stride = -1, .gap = 2, .reversed = true}}) ==
              "");
      }
      hw::attention_options<T> options;
      operand_memory memory(place::end);
      const attention_outputs<T> outputs(memory, s, s.key_length, {true, true, true, true, true, true}, options);
      const auto out = hw::scaled_dot_product_attention(p.q, p.k, p.v, options);
      if (s.key_length == 0) {
        CHECK(same_bits(out, hw::tensor<T, 4>(out.extents())) == "");
        CHECK(same_bits(outputs.entropy, hw::tensor<T, 3>(outputs.entropy.extents())) == "");
        for (const auto& view : {outputs.lse, outputs.maximum}) {
          CHECK(same_bits(view, support::constant<T>({s.batch, s.heads, rows}, none)) == "");
        }
      }
      if (rows == 0) {
        CHECK(same_bits(outputs.key_mass, hw::tensor<T, 3>(outputs.key_mass.extents())) == "");
      }
    }
  }
}
