// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/guarded.hpp"
#include "support/layer.hpp"
#include "support/random.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <vector>

/// \file
/// Small stacks, sizes that no index counts, and elements past the 2^32nd.

namespace hw = headwave;
using support::constant;
using support::element;
using support::error_of;
using support::layer_parameters;
using support::random_source;
using support::result_bytes;
using support::same_bits;
using support::sizes;

namespace {

/// Runs a call on a thread with a stack of 128 KiB.
template <class Call>
void on_small_stack(Call call) {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, 128 * 1024) == 0);
  pthread_t thread{};
  const auto run = [](void* context) -> void* {
    (*static_cast<Call*>(context))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, &call) == 0);
  REQUIRE(pthread_join(thread, nullptr) == 0);
  pthread_attr_destroy(&attributes);
}

/// Empty if a call has the same results on a small stack as on this thread's.
template <class Results>
std::string faults_on_small_stack(const Results& results) {
  const result_bytes expected = results();
  result_bytes actual;
  on_small_stack([&] { actual = results(); });
  return actual.differs_from(expected);
}

template <class... X>
result_bytes bytes_of(const X&... x) {
  result_bytes all;
  (all.add(x), ...);
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("attention and layers on stacks of 128 KiB", "[limits][stack]", float, double) {
  using T = TestType;
  random_source random(1);
  const auto check = [&](std::size_t rows, const auto& q, const auto& k, const auto& v) {
    const std::size_t keys = k.extent(1), heads = q.extent(2);
    CAPTURE(rows, keys, q.extent(3));
    const std::vector<T> slopes(heads, T(0.01)), sinks(heads, T(1));
    const auto distance_bias = random.tensor<T>({heads, 301});
    const auto visible = random.mask({1, keys}, 0.8);
    const std::vector<std::int64_t> lengths{static_cast<std::int64_t>(keys - 3)};
    CHECK(faults_on_small_stack([&] { return bytes_of(hw::scaled_dot_product_attention(q, k, v)); }) == "");
    CHECK(faults_on_small_stack([&] {
            hw::tensor<T, 3> lse({1, heads, rows});
            const auto out = hw::scaled_dot_product_attention(q, k, v,
                                                              {.softcap = 5,
                                                               .distance_bias = distance_bias,
                                                               .visible = visible,
                                                               .causal = true,
                                                               .window = {.left = 100'000},
                                                               .key_lengths = lengths,
                                                               .alibi_slopes = slopes,
                                                               .sinks = sinks,
                                                               .lse = lse},
                                                              hw::window_mask{.left = 90'000} || hw::global_mask{4});
            return bytes_of(out, lse);
          }) == "");
    CHECK(faults_on_small_stack([&] {
            hw::tensor<T, 3> maximum({1, heads, rows}), entropy({1, heads, rows}), mass({1, heads, keys});
            const auto out = hw::scaled_dot_product_attention(
                q, k, v, {.dropout = {0.5, 1}, .maximum = maximum, .entropy = entropy, .key_mass = mass});
            return bytes_of(out, maximum, entropy, mass);
          }) == "");
  };
  const auto k = random.tensor<T>({1, 131'072, 1, 2}), v = random.tensor<T>({1, 131'072, 1, 3});
  const auto wide_k = random.tensor<T>({1, 40, 1, 4097}), wide_v = random.tensor<T>({1, 40, 1, 4097});
  for (const std::size_t rows : {1u, 9u}) {
    check(rows, random.tensor<T>({1, rows, 1, 2}), k, v);
    check(rows, random.tensor<T>({1, rows, 1, 4097}), wide_k, wide_v);
  }

  hw::multi_head_attention_options o{.d_model = 96, .heads = 6, .kv_heads = 3, .qk_norm = true};
  o.rotary = hw::rotary_options{};
  o.gate = hw::output_gate::channels;
  const layer_parameters<T> parameters(o, random);
  const auto x = random.tensor<T>({2, 40, 96});
  CHECK(faults_on_small_stack([&] {
          hw::multi_head_attention<T> layer(o);
          layer.set_weights(parameters.weights());
          auto cache = layer.make_cache(2, 80);
          const auto own = layer(x, {.causal = true});
          const auto first = layer(x, cache), second = layer(x.view().slice(1, 0, 2), cache);
          layer.init_xavier(7);
          return bytes_of(own, first, second, layer(x, x, x));
        }) == "");
  CHECK(faults_on_small_stack([&] {
          auto q = random_source(3).tensor<T>({1, 40, 1, 4096});
          hw::rotary_embedding({.rotary_dim = 4096, .scaling = hw::yarn_scaling{8, 1000}}).apply(q, 1000);
          return bytes_of(q, hw::sinusoidal_encoding<T>(40, 8193), hw::alibi_slopes<T>(1000), hw::softmax(wide_k));
        }) == "");
}

namespace {

constexpr std::size_t huge = std::size_t{1} << 62;

/// A view of one number, repeated.
template <class T, std::size_t Rank>
hw::tensor_view<const T, Rank> repeated(const std::size_t (&extents)[Rank]) {
  static const T number{};
  return {&number, std::to_array(extents), {}};
}

/// Empty if an action throws a shape_error that says that a size is too large.
template <class Action>
std::string too_large(Action action) {
  const std::string text = error_of(action);
  for (const char* const part : {"size overflows", "fit into memory"}) {
    if (text.find(part) != std::string::npos) {
      return "";
    }
  }
  return "error: '" + text + "'";
}

}  // namespace

TEMPLATE_TEST_CASE("sizes that no index counts are errors", "[limits][overflow][B24]", float, double) {
  using T = TestType;
  CHECK(too_large([] { hw::sinusoidal_encoding<T>(huge, 4); }) == "");
  CHECK(too_large([] { hw::sinusoidal_encoding<T>(1, huge); }) == "");
  CHECK(too_large([] { hw::sinusoidal_encoding<T>(std::array{1, 2}, huge); }) == "");
  CHECK(too_large([] { hw::sinusoidal_encoding_2d<T>(1u << 31, 1u << 31, 4); }) == "");
  for (const std::size_t width : {huge, huge + 1, SIZE_MAX, SIZE_MAX - 7}) {
    CAPTURE(width);
    T number = 0;
    CHECK(too_large([&] { hw::sinusoidal_encoding_into(hw::tensor_view<T, 2>(&number, {1, width}, {0, 0})); }) == "");
    CHECK(too_large([&] { hw::add_sinusoidal_encoding(hw::tensor_view<T, 3>(&number, {1, 1, width}, {0, 0, 0})); }) ==
          "");
    CHECK(too_large([&] { hw::rotary_embedding({.rotary_dim = width / 2 * 2}); }) == "");
    CHECK(too_large([&] { hw::alibi_slopes<T>(width); }) == "");
    CHECK(too_large([&] { hw::softmax(repeated<T>({4, width})); }) == "");
    CHECK(too_large([&] { hw::linear<T>(repeated<T>({width, 4})); }) == "");
    CHECK(too_large([&] { hw::linear<T>(repeated<T>({width, 1}), repeated<T>({width})); }) == "");
    CHECK(too_large([&] { hw::linear<T>(repeated<T>({4, width})); }) == "");
    CHECK(too_large([&] { hw::linear<T>(repeated<T>({4, 3}))(repeated<T>({width, 4, 3})); }) == "");
    CHECK(too_large([&] { hw::kv_cache<T>({.capacity = width, .head_dim = 4}); }) == "");
    CHECK(too_large([&] { hw::kv_cache<T>({.batch = 4, .capacity = width}); }) == "");
    CHECK(too_large([&] { hw::kv_cache<T>({.batch = width, .capacity = 4}); }) == "");
    CHECK(too_large([&] { hw::kv_cache<T>({.capacity = 4, .kv_heads = width, .head_dim = 4}); }) == "");
  }
  CHECK(too_large([] { hw::linear<T>(repeated<T>({SIZE_MAX, 0})); }) == "");
  CHECK(too_large([] { hw::t5_distance_bias(repeated<T>({32, 4}), {.max_distance = std::int64_t{1} << 62}); }) == "");
  const std::vector<std::int32_t> table{0};
  const hw::paged_view<T> pages{repeated<T>({1, huge, 1, 4}), {table.data(), {1, 4}, {0, 0}}};
  CHECK(too_large([&] { hw::scaled_dot_product_attention(repeated<T>({1, 1, 1, 4}), pages, pages); }) == "");
}

TEMPLATE_TEST_CASE("attention of sizes that no index counts is an error", "[limits][overflow][B24]", float, double) {
  using T = TestType;
  const auto attend = [](const std::array<std::size_t, 4>& q, const std::array<std::size_t, 3>& k,
                         std::size_t value_dim, const hw::attention_options<T>& options = {}) {
    T number = 0;
    return too_large([&] {
      hw::scaled_dot_product_attention_into(hw::tensor_view<T, 4>(&number, {q[0], q[1], q[2], value_dim}, {}),
                                            hw::tensor_view<const T, 4>(&number, q, {}),
                                            hw::tensor_view<const T, 4>(&number, {q[0], k[0], k[1], q[3]}, {}),
                                            hw::tensor_view<const T, 4>(&number, {q[0], k[0], k[1], value_dim}, {}),
                                            options);
    });
  };
  for (int shift = 50; shift < 64; ++shift) {
    const std::size_t size = std::size_t{1} << shift;
    CAPTURE(shift);
    for (const std::size_t rows : sizes{1, 20}) {
      CHECK(attend({1, rows, 1, size}, {4, 1}, 4) == "");
      CHECK(attend({1, rows, 1, size - 1}, {4, 1}, size - 1) == "");
      CHECK(attend({1, rows, 1, 4}, {4, 1}, size) == "");
      CHECK(attend({1, rows, 1, 4}, {size, 1}, 4) == "");
      CHECK(attend({1, rows, 1, 0}, {size, 1}, 0) == "");
      CHECK(attend({size, rows, 1, 4}, {4, 1}, 4) == "");
    }
    CHECK(attend({1, size, 1, 4}, {4, 1}, 4) == "");
    CHECK(attend({1, 1, size, 4}, {4, 1}, 4) == "");
    CHECK(attend({1, 1, size, 4}, {4, size}, 4) == "");
    // Smaller ones fit an index, but no memory.
    if (shift >= 60) {
      CHECK(attend({1, 1, 4, 4}, {4, 4}, 4, {.distance_bias = repeated<T>({1, size - 1})}) == "");
    }
  }
  // Each of these fits by itself.
  const std::size_t half = std::size_t{1} << 32;
  T number = 0;
  CHECK(attend({1, 1, half, 1}, {half, 1}, 1, {.key_mass = {&number, {1, half, half}, {}}}) == "");
  CHECK(attend({1, 1, half, 1}, {half, 1}, 1, {.mean_weights = {&number, {1, 1, half}, {}}}) == "");
  CHECK(attend({half, 1, 1, 1}, {half, 1}, 1) == "");
}

TEMPLATE_TEST_CASE("layers of sizes that no index counts are errors", "[limits][overflow][B24]", float, double) {
  using T = TestType;
  CHECK(too_large([] { hw::multi_head_attention<T>({.d_model = 4, .heads = huge, .head_dim = 4}); }) == "");
  CHECK(too_large([] {
          hw::multi_head_attention<T> layer({.d_model = huge, .heads = 4, .head_dim = 4, .bias = false});
          layer.init_xavier(1);
        }) == "");
  // Four matrices of 2^62 numbers, which a sum of 64 bits takes for none.
  const std::size_t width = std::size_t{1} << 31;
  CHECK(too_large([&] {
          hw::multi_head_attention<T> layer({.d_model = width, .heads = 1, .bias = false});
          layer.set_weights({.q_proj_weight = repeated<T>({width, width}),
                             .k_proj_weight = repeated<T>({width, width}),
                             .v_proj_weight = repeated<T>({width, width}),
                             .out_proj_weight = repeated<T>({width, width})});
        }) == "");
  hw::multi_head_attention<T> layer({.d_model = 4, .heads = 2});
  layer.init_xavier(1);
  const auto x = repeated<T>({width, width, 4});
  T number = 0;
  const hw::tensor_view<T, 3> out(&number, x.extents(), {});
  CHECK(too_large([&] { layer(x); }) == "");
  CHECK(too_large([&] { layer.apply_into(out, x); }) == "");
  CHECK(too_large([&] { layer.apply_into(out, x, repeated<T>({width, 1, 4}), repeated<T>({width, 1, 4})); }) == "");
  CHECK(too_large([&] { layer.make_cache(huge, 4); }) == "");
}

namespace {

/// Memory of which only the pages that are written exist.
template <class T>
class sparse_memory {
 public:
  explicit sparse_memory(std::size_t count) : bytes_(count * sizeof(T)) {
    void* const memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    data_ = static_cast<T*>(memory);
  }
  sparse_memory(const sparse_memory&) = delete;
  sparse_memory& operator=(const sparse_memory&) = delete;
  ~sparse_memory() { munmap(data_, bytes_); }

  T* data() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_;
};

/// A tensor whose axis has so large a stride that it reaches past 2^32 elements.
template <class T, std::size_t Rank>
class far_apart {
 public:
  template <class X>
  far_apart(const X& x, std::size_t axis)
      : memory_((std::size_t{1} << 32) + (std::size_t{1} << 31)), view_(memory_.data(), hw::as_view(x).extents(), {}) {
    const auto source = hw::as_view(x);
    auto strides = hw::detail::row_major(source.extents());
    const auto count = static_cast<hw::index>(source.extent(axis));
    strides[axis] = count > 1 ? ((hw::index{1} << 32) + (hw::index{1} << 30)) / (count - 1) : 0;
    view_ = {memory_.data(), source.extents(), strides};
    support::for_each_index(source.extents(), [&](const auto& at) { element(view_, at) = element(source, at); });
  }
  const hw::tensor_view<T, Rank>& view() const { return view_; }

 private:
  sparse_memory<T> memory_;
  hw::tensor_view<T, Rank> view_;
};
template <class T, std::size_t Rank>
far_apart<T, Rank> spread(const hw::tensor<T, Rank>& x, std::size_t axis) {
  return {x, axis};
}

}  // namespace

TEMPLATE_TEST_CASE("attention to elements past the 2^32nd", "[limits][B24]", float, double) {
  using T = TestType;
  random_source random(4);
  for (const std::size_t rows : sizes{2, 12}) {
    CAPTURE(rows);
    const auto q = random.tensor<T>({2, rows, 2, 20}), k = random.tensor<T>({2, 300, 2, 20}),
               v = random.tensor<T>({2, 300, 2, 18}), bias = random.tensor<T>({2, 2, rows, 300});
    const auto visible = random.mask({2, 2, rows, 300}, 0.7);
    const auto nothing = constant<T>({2, rows, 2, 18}, 0);
    const auto no_weights = constant<T>({2, 2, rows, 300}, 0);
    const auto no_lse = constant<T>({2, 2, rows}, 0);
    hw::tensor<T, 3> lse({2, 2, rows});
    hw::tensor<T, 4> weights({2, 2, rows, 300});
    const auto expected = hw::scaled_dot_product_attention(q, k, v, {.bias = bias, .visible = visible, .lse = lse});
    hw::scaled_dot_product_attention(q, k, v, {.bias = bias, .visible = visible, .weights = weights});
    for (std::size_t axis = 0; axis < 4; ++axis) {
      CAPTURE(axis);
      // Weights and biases have the head before the row.
      const std::size_t scores_axis = std::array<std::size_t, 4>{0, 2, 1, 3}[axis], lse_axis = scores_axis % 3;
      const auto far_q = spread(q, axis), far_k = spread(k, axis), far_v = spread(v, axis),
                 far_out = spread(nothing, axis);
      const auto far_bias = spread(bias, scores_axis);
      const auto far_visible = spread(visible, scores_axis);
      const auto far_weights = spread(no_weights, scores_axis);
      const auto far_lse = spread(no_lse, lse_axis);
      hw::scaled_dot_product_attention_into(
          far_out.view(), far_q.view(), far_k.view(), far_v.view(),
          {.bias = far_bias.view(), .visible = far_visible.view(), .lse = far_lse.view()});
      CHECK(same_bits(far_out.view(), expected) == "");
      CHECK(same_bits(far_lse.view(), lse) == "");
      hw::scaled_dot_product_attention_into(
          far_out.view(), far_q.view(), far_k.view(), far_v.view(),
          {.bias = far_bias.view(), .visible = far_visible.view(), .weights = far_weights.view()});
      CHECK(same_bits(far_weights.view(), weights) == "");
    }
  }
}

TEMPLATE_TEST_CASE("more than 2^31 keys, of which few are visible", "[limits][B24]", float, double) {
  using T = TestType;
  random_source random(5);
  constexpr std::size_t before = std::size_t{1} << 31, count = 300, all = before + count;
  const sparse_memory<T> memory(all * 2);
  const hw::tensor_view<T, 4> keys(memory.data(), {1, all, 1, 2});
  const auto near = keys.slice(1, 0, count), far = keys.slice(1, before, count);
  support::for_each_index(far.extents(), [&](const auto& at) {
    element(far, at) = static_cast<T>(random.bell());
    element(near, at) = static_cast<T>(random.bell());
  });
  const T number = 1;
  const hw::tensor_view<const T, 4> bias(&number, {1, 1, 1, all}, {});
  const bool yes = true;
  const hw::tensor_view<const bool, 4> visible(&yes, {1, 1, 1, all}, {});
  const std::vector<T> slopes{T(0.1)};
  for (const std::size_t rows : sizes{1, 3, 20}) {
    CAPTURE(rows);
    const auto q = random.tensor<T>({1, rows, 1, 2});
    hw::tensor<T, 3> lse({1, 1, rows}), far_lse({1, 1, rows});
    using options = hw::attention_options<T>;
    // The block of 256 keys that a key is in, and its place there, are those of the few.
    const auto expected = hw::scaled_dot_product_attention(
        q, far, far, options{.causal = true, .window = {.left = 200}, .alibi_slopes = slopes, .lse = lse});
    CHECK(same_bits(hw::scaled_dot_product_attention(
                        q, keys, keys,
                        options{.causal = true, .window = {.left = 200}, .alibi_slopes = slopes, .lse = far_lse}),
                    expected) == "");
    CHECK(same_bits(far_lse, lse) == "");
    CHECK(same_bits(hw::scaled_dot_product_attention(q, keys, keys, options{.alibi_slopes = slopes},
                                                     hw::window_mask{.left = 200, .right = 0}),
                    expected) == "");
    const std::vector<std::int64_t> lengths{count};
    const options few{.query_start = 280, .key_lengths = lengths};
    CHECK(same_bits(
              hw::scaled_dot_product_attention(
                  q, keys, keys, options{.bias = bias, .visible = visible, .query_start = 280, .key_lengths = lengths}),
              hw::scaled_dot_product_attention(q, near, near,
                                               options{.bias = bias.slice(3, 0, count), .query_start = 280})) == "");
    CHECK(same_bits(hw::scaled_dot_product_attention(q, keys, keys, few),
                    hw::scaled_dot_product_attention(q, near, near, options{.query_start = 280})) == "");
  }
}

TEMPLATE_TEST_CASE("other calls on elements past the 2^32nd", "[limits][B24]", float, double) {
  using T = TestType;
  random_source random(6);
  for (std::size_t axis = 0; axis < 4; ++axis) {
    CAPTURE(axis);
    auto q = random.tensor<T>({3, 4, 5, 6}), a = q;
    const auto b = random.tensor<T>({3, 4, 5, 6});
    auto lse_a = random.tensor<T>({3, 5, 4});
    const auto lse_b = random.tensor<T>({3, 5, 4});
    const auto far_q = spread(q, axis), far_a = spread(a, axis), far_b = spread(b, axis);
    const auto far_lse = spread(lse_a, axis % 3), other_lse = spread(lse_b, axis % 3);
    const hw::rotary_embedding rope({.rotary_dim = 6});
    rope.apply(q, 3);
    rope.apply(far_q.view(), 3);
    CHECK(same_bits(far_q.view(), q) == "");
    hw::merge_attention(a, lse_a, b, lse_b);
    hw::merge_attention(far_a.view(), far_lse.view(), far_b.view(), other_lse.view());
    CHECK(same_bits(far_a.view(), a) == "");
    CHECK(same_bits(far_lse.view(), lse_a) == "");
    CHECK(same_bits(hw::softmax(far_q.view()), hw::softmax(q)) == "");

    hw::tensor<T, 3> x = random.tensor<T>({3, 4, 5});
    const auto far_x = spread(x, axis % 3);
    hw::add_sinusoidal_encoding(x);
    hw::add_sinusoidal_encoding(far_x.view());
    CHECK(same_bits(far_x.view(), x) == "");
    const hw::tensor<T, 2> weight = random.tensor<T>({7, 5}), table = hw::sinusoidal_encoding<T>(7, 5);
    const auto far_table = spread(table, axis % 2);
    std::fill_n(far_table.view().data(), 1, T(-7));
    hw::sinusoidal_encoding_into(far_table.view());
    CHECK(same_bits(far_table.view(), table) == "");
    const auto out = hw::linear<T>(weight)(x);
    const auto far_out = spread(hw::tensor<T, 3>({3, 4, 7}), axis % 3), far_in = spread(x, axis % 3);
    const auto far_weight = spread(weight, axis % 2);
    hw::linear<T>(far_weight.view()).apply_into(far_out.view(), far_in.view());
    CHECK(same_bits(far_out.view(), out) == "");

    hw::add_learned_encoding(x, table);
    hw::add_learned_encoding(far_in.view(), far_table.view());
    CHECK(same_bits(far_in.view(), x) == "");
  }
}

TEST_CASE("a cache of more than 2^31 elements", "[limits][kv_cache][B24]") {
  random_source random(7);
  constexpr std::size_t samples = 5;
  hw::kv_cache<float, std::int8_t> cache({.batch = samples, .capacity = 1u << 21, .head_dim = 256, .value_dim = 4}),
      small({.batch = samples, .capacity = 40, .head_dim = 256, .value_dim = 4});
  const auto k = random.tensor<float>({samples, 30, 1, 256}), v = random.tensor<float>({samples, 30, 1, 4});
  cache.append(k, v);
  small.append(k, v);
  for (const std::size_t rows : sizes{1, 20}) {
    const auto q = random.tensor<float>({samples, rows, 1, 256});
    CHECK(same_bits(hw::scaled_dot_product_attention(q, cache), hw::scaled_dot_product_attention(q, small)) == "");
  }
}
