// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/multi_head_attention.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/layer.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

/// \file
/// Few queries take another path through the kernels than many, and asking for weights takes them back. The bits are
/// those of the same rows among many.

namespace hw = headwave;
using support::layer_parameters;
using support::not_a_number;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::spacing;
using support::window;

namespace {

struct problem_sizes {
  std::size_t batch, rows, keys, kv_heads, group, head_dim, value_dim;
};

/// What a call is restricted or changed by.
enum class rule {
  none,
  causal,
  bias,
  blocking_bias,
  visible,
  window,
  wide_window,
  softcap,
  alibi,
  sinks,
  key_lengths,
  steep,  ///< scores so far apart that the softmax reference is raised in many blocks
  all
};
constexpr rule rules[] = {rule::none,        rule::causal,      rule::bias,    rule::blocking_bias, rule::visible,
                          rule::window,      rule::wide_window, rule::softcap, rule::alibi,         rule::sinks,
                          rule::key_lengths, rule::steep,       rule::all};

/// Queries at the end of the keys, as many as are surely not few.
template <class T>
struct problem {
  problem_sizes size;
  hw::tensor<T, 4> q, k, v, bias, blocking_bias;
  hw::tensor<bool, 4> visible;
  std::vector<std::int64_t> lengths;
  std::vector<T> slopes, sinks;

  problem(const problem_sizes& s, random_source& random) : size(s) {
    const std::size_t heads = s.kv_heads * s.group;
    q = random.tensor<T>({s.batch, s.rows, heads, s.head_dim});
    k = random.tensor<T>({s.batch, s.keys, s.kv_heads, s.head_dim});
    v = random.tensor<T>({s.batch, s.keys, s.kv_heads, s.value_dim});
    bias = random.tensor<T>({1, heads, s.rows, s.keys});
    blocking_bias = random.tensor<T>({s.batch, 1, s.rows, s.keys});
    for (T& x : blocking_bias) {
      x = random.chance(0.3) ? -std::numeric_limits<T>::infinity() : x;
    }
    visible = random.mask({s.batch, heads, s.rows, s.keys}, 0.7);
    for (std::size_t b = 0; b < s.batch; ++b) {
      lengths.push_back(static_cast<std::int64_t>(s.keys - s.keys * b / 3));
    }
    for (std::size_t h = 0; h < heads; ++h) {
      slopes.push_back(static_cast<T>(0.02 * static_cast<double>(h + 1)));
      sinks.push_back(static_cast<T>(random.uniform(-2, 4)));
    }
  }

  std::size_t heads() const { return size.kv_heads * size.group; }

  /// The options of a rule for some of the rows.
  hw::attention_options<T> options(rule which, std::size_t first, std::size_t count) const {
    hw::attention_options<T> o;
    o.query_start = static_cast<std::int64_t>(size.keys) - static_cast<std::int64_t>(size.rows - first);
    const auto is = [which](rule wanted) { return which == wanted || which == rule::all; };
    o.causal = is(rule::causal);
    if (is(rule::bias)) {
      o.bias = bias.view().slice(2, first, count);
    }
    if (which == rule::blocking_bias) {
      o.bias = blocking_bias.view().slice(2, first, count);
    }
    if (is(rule::visible)) {
      o.visible = visible.view().slice(2, first, count);
    }
    if (which == rule::window) {
      o.window = {.left = 9, .right = 3};
    }
    if (is(rule::wide_window)) {
      o.window = {.left = static_cast<std::int64_t>(size.keys * 2 / 3)};
    }
    o.softcap = is(rule::softcap) ? 2.5 : 0;
    if (is(rule::alibi)) {
      o.alibi_slopes = slopes;
    }
    if (is(rule::sinks)) {
      o.sinks = sinks;
    }
    if (is(rule::key_lengths)) {
      o.key_lengths = lengths;
    }
    if (which == rule::steep) {
      o.scale = 5;
    }
    return o;
  }
};

/// What a call gives.
template <class T>
struct result {
  hw::tensor<T, 4> out;
  hw::tensor<T, 3> lse;
  hw::tensor<T, 4> weights;  ///< none, if not asked for
};

/// Some of the rows in a call of their own, with any keys and values of the problem's shapes.
template <class T, class K, class V>
result<T> run(const problem<T>& p, const K& k, const V& v, hw::attention_options<T> options, std::size_t first,
              std::size_t count, bool with_weights = false) {
  result<T> r{hw::tensor<T, 4>({p.size.batch, count, p.heads(), p.size.value_dim}),
              hw::tensor<T, 3>({p.size.batch, p.heads(), count}),
              {}};
  options.lse = r.lse;
  if (with_weights) {
    r.weights = hw::tensor<T, 4>({p.size.batch, p.heads(), count, p.size.keys});
    options.weights = r.weights;
  }
  hw::scaled_dot_product_attention_into(r.out, p.q.view().slice(1, first, count), k, v, options);
  return r;
}

/// The last rows of a result are those of another one, bit for bit.
template <class T>
std::string last_rows_differ(const result<T>& part, const result<T>& whole) {
  const std::size_t count = part.out.extent(1), first = whole.out.extent(1) - count;
  std::string text = same_bits(part.out, whole.out.view().slice(1, first, count)) +
                     same_bits(part.lse, whole.lse.view().slice(2, first, count));
  if (!part.weights.empty()) {
    text += same_bits(part.weights, whole.weights.view().slice(2, first, count));
  }
  return text.empty() ? text : "last " + std::to_string(count) + " rows: " + text + "\n";
}

/// Each of some numbers of last rows, with and without weights, against all rows. Empty if all is well.
template <class T>
std::string decode_faults(const problem<T>& p, rule which, const sizes& counts) {
  const std::size_t rows = p.size.rows;
  const result<T> whole = run(p, p.k, p.v, p.options(which, 0, rows), 0, rows, true);
  std::string faults = last_rows_differ(run(p, p.k, p.v, p.options(which, 0, rows), 0, rows), whole);
  for (const std::size_t count : counts) {
    const auto options = p.options(which, rows - count, count);
    const result<T> part = run(p, p.k, p.v, options, rows - count, count);
    faults += last_rows_differ(part, whole);
    const result<T> with_weights = run(p, p.k, p.v, options, rows - count, count, true);
    const std::string fault = last_rows_differ(with_weights, whole);
    faults += fault.empty() ? fault : "with weights: " + fault;
  }
  return faults.substr(0, 1000);
}

/// Numbers of rows below, at and above those that take the path of few.
sizes counts_for(std::size_t group) {
  return group == 1   ? sizes{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
         : group == 2 ? sizes{1, 2, 3, 4, 5, 7, 12}
                      : sizes{1, 2, 3, 12};
}

}  // namespace

TEMPLATE_TEST_CASE("the last rows have the bits of a prefill", "[attention][decode][bits]", float, double) {
  random_source random(sizeof(TestType));
  for (const std::size_t keys : sizes{0, 1, 15, 16, 17, 255, 256, 257, 700}) {
    const problem_sizes shapes[] = {{2, 20, keys, 2, 1, 20, 13},
                                    {2, 13, keys, 3, 2, 9, 16},
                                    {1, 13, keys, 2, 4, 16, 32},
                                    {1, 13, keys, 1, 8, 24, 7}};
    for (const problem_sizes& shape : shapes) {
      const problem<TestType> p(shape, random);
      for (const rule which : rules) {
        CAPTURE(keys, shape.group, static_cast<int>(which));
        CHECK(decode_faults(p, which, counts_for(shape.group)) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("the last rows, every width of heads", "[attention][decode][bits]", float, double) {
  random_source random(10 + sizeof(TestType));
  const sizes widths{1, 5, 8, 32, 40, 64, 72, 80, 96, 128, 160, 256, 576};
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const sizes value_widths{widths[i], widths[(i * 5 + 3) % widths.size()]};
    for (const std::size_t value_dim : value_widths) {
      for (const std::size_t group : sizes{1, 4}) {
        const problem<TestType> p({1, 12, 270, 2, group, widths[i], value_dim}, random);
        for (const rule which : {rule::none, rule::steep, rule::all}) {
          CAPTURE(widths[i], value_dim, group, static_cast<int>(which));
          CHECK(decode_faults(p, which, group == 1 ? sizes{1, 3, 6, 8, 9} : sizes{1, 2, 3}) == "");
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("the last rows, many blocks and many heads", "[attention][decode][bits]", float, double) {
  random_source random(20 + sizeof(TestType));
  const problem<TestType> long_cache({1, 10, 3333, 1, 1, 16, 16}, random);
  const problem<TestType> many_heads({2, 5, 290, 70, 2, 3, 5}, random);
  for (const rule which : {rule::none, rule::wide_window, rule::steep, rule::all}) {
    CAPTURE(static_cast<int>(which));
    CHECK(decode_faults(long_cache, which, {1, 2, 8, 9}) == "");
    CHECK(decode_faults(many_heads, which, {1, 2, 3, 4}) == "");
  }
}

TEMPLATE_TEST_CASE("few rows of strided memory", "[attention][decode][bits]", float, double) {
  random_source random(30 + sizeof(TestType));
  const auto turned = [](const hw::tensor<TestType, 4>& x) { return support::packed(x.view().transposed(1, 2)); };
  for (const std::size_t width : sizes{5, 32, 72}) {
    for (const rule which : {rule::none, rule::all}) {
      const problem<TestType> p({2, 12, 300, 3, 2, width, width}, random);
      for (const std::size_t count : sizes{1, 3, 4, 6}) {
        const auto options = p.options(which, 12 - count, count);
        const auto expected = run(p, p.k, p.v, options, 12 - count, count);
        // [batch, heads, length, channels]: each head's keys lie side by side.
        const auto k = turned(p.k), v = turned(p.v);
        CAPTURE(width, static_cast<int>(which), count);
        CHECK(last_rows_differ(run(p, k.view().transposed(1, 2), v.view().transposed(1, 2), options, 12 - count, count),
                               expected) == "");
        // What lies between the elements is NaN.
        for (const spacing layout :
             {spacing{1, 5, false}, spacing{1, 7, true}, spacing{3, 2, false}, spacing{-1, 1, true}}) {
          const window<TestType, 4> keys(p.k, layout), values(p.v, layout);
          CAPTURE(layout.last_stride, layout.gap);
          CHECK(last_rows_differ(run(p, keys.view(), values.view(), options, 12 - count, count), expected) == "");
        }
        // Strided queries and outputs.
        const window<TestType, 4> queries(p.q.view().slice(1, 12 - count, count), {-2, 3, true});
        window<TestType, 4> out(expected.out.extents(), {2, 1, true});
        hw::scaled_dot_product_attention_into(out.view(), queries.view(), p.k, p.v, options);
        CHECK(same_bits(out.view(), expected.out) == "");
        CHECK(out.intact());
      }
    }
  }
}

TEMPLATE_TEST_CASE("what blocked keys and values hold does not reach few rows", "[attention][decode][bits]", float,
                   double) {
  random_source random(40 + sizeof(TestType));
  const std::size_t rows = 12, keys = 600;
  const problem<TestType> p({2, rows, keys, 2, 2, 24, 32}, random);
  // Every third key, all keys of the second block, and the last ones of each sample are blocked for everybody.
  const auto blocked = [&](std::size_t b, std::size_t j) {
    return j % 3 == 1 || (j >= 256 && j < 512) || j >= keys - 20 * (b + 1);
  };
  hw::tensor<bool, 4> visible({2, 1, 1, keys});
  hw::tensor<TestType, 4> bias({2, 1, 1, keys});
  for (std::size_t b = 0; b < 2; ++b) {
    for (std::size_t j = 0; j < keys; ++j) {
      visible(b, 0, 0, j) = !blocked(b, j);
      bias(b, 0, 0, j) = blocked(b, j) ? -std::numeric_limits<TestType>::infinity() : TestType(0);
    }
  }
  std::vector<hw::attention_options<TestType>> ways(2);
  ways[0].visible = visible;
  ways[1].bias = bias;
  for (const double poison : {not_a_number, support::infinity, -support::infinity}) {
    hw::tensor<TestType, 4> k = p.k, v = p.v;
    support::for_each_index(k.extents(), [&](const auto& at) {
      if (blocked(at[0], at[1])) {
        support::element(k.view(), at) = static_cast<TestType>(poison);
      }
    });
    support::for_each_index(v.extents(), [&](const auto& at) {
      if (blocked(at[0], at[1])) {
        support::element(v.view(), at) = static_cast<TestType>(poison);
      }
    });
    for (const hw::attention_options<TestType>& way : ways) {
      const auto clean = run(p, p.k, p.v, way, 0, rows);
      const auto whole = run(p, k, v, way, 0, rows);
      CAPTURE(poison, way.bias.view().data() != nullptr);
      CHECK(last_rows_differ(whole, clean) == "");
      for (const std::size_t count : sizes{1, 2, 3, 4, 5, 12}) {
        CHECK(last_rows_differ(run(p, k, v, way, rows - count, count), clean) == "");
        CHECK(last_rows_differ(run(p, p.k, p.v, way, rows - count, count), clean) == "");
      }
    }
  }
  // More keys behind the last ones, blocked by length or position.
  for (const std::size_t extra : sizes{1, 16, 300}) {
    const auto with_tail = [&](const hw::tensor<TestType, 4>& x) {
      auto result = support::constant<TestType>({2, keys + extra, x.extent(2), x.extent(3)}, not_a_number);
      support::for_each_index(
          x.extents(), [&](const auto& at) { support::element(result.view(), at) = support::element(x.view(), at); });
      return result;
    };
    const auto k = with_tail(p.k), v = with_tail(p.v);
    const std::vector<std::int64_t> lengths(2, static_cast<std::int64_t>(keys));
    for (const std::size_t count : sizes{1, 4}) {
      auto options = p.options(rule::causal, rows - count, count);
      const auto causal = run(p, p.k, p.v, options, rows - count, count);
      CAPTURE(extra, count);
      CHECK(last_rows_differ(run(p, k, v, options, rows - count, count), causal) == "");
      options = p.options(rule::none, rows - count, count);
      const auto plain = run(p, p.k, p.v, options, rows - count, count);
      options.key_lengths = lengths;
      CHECK(last_rows_differ(run(p, k, v, options, rows - count, count), plain) == "");
    }
  }
}

TEMPLATE_TEST_CASE("infinite values that few rows see", "[attention][decode]", float, double) {
  random_source random(50 + sizeof(TestType));
  const std::size_t rows = 12, keys = 700, value_dim = 32;
  const problem<TestType> p({1, rows, keys, 2, 2, 24, value_dim}, random);
  hw::tensor<TestType, 4> v = p.v;
  const auto inf = std::numeric_limits<TestType>::infinity();
  v(0, 300, 0, 2) = inf;
  v(0, 301, 0, 5) = -inf;
  v(0, 302, 0, 20) = inf;
  v(0, 650, 0, 20) = -inf;
  v(0, 30, 0, 31) = std::numeric_limits<TestType>::quiet_NaN();
  // Row i sees the infinite values if i is even; all rows see the other keys.
  hw::tensor<bool, 4> visible({1, 1, rows, keys});
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < keys; ++j) {
      visible(0, 0, i, j) = i % 2 == 0 || !(j == 30 || (j >= 300 && j <= 302) || j == 650);
    }
  }
  for (const std::size_t count : sizes{1, 2, 3, 4, 5, 12}) {
    hw::attention_options<TestType> options;
    options.visible = visible.view().slice(2, rows - count, count);
    const auto clean = run(p, p.k, p.v, options, rows - count, count);
    const auto got = run(p, p.k, v, options, rows - count, count);
    std::string faults;
    support::for_each_index(got.out.extents(), [&](const auto& at) {
      const auto [b, i, h, c] = at;
      const TestType value = support::element(got.out.view(), at);
      const bool sees = (rows - count + i) % 2 == 0 && h < 2;
      const bool good = !sees || !(c == 2 || c == 5 || c == 20 || c == 31)
                            ? support::bits_of(value) == support::bits_of(support::element(clean.out.view(), at))
                        : c == 2 ? value == inf
                        : c == 5 ? value == -inf
                                 : std::isnan(value);
      faults += good ? "" : support::text_of(at) + " is " + support::text_of(static_cast<long double>(value)) + "\n";
    });
    CAPTURE(count);
    CHECK(faults.substr(0, 500) == "");
    CHECK(same_bits(got.lse, clean.lse) == "");
  }
}

TEMPLATE_TEST_CASE("few rows of a layer with added keys", "[multi_head_attention][decode][bits]", float, double) {
  random_source random(60 + sizeof(TestType));
  for (const bool added : {false, true}) {
    const layer_parameters<TestType> p(
        {.d_model = 60, .heads = 6, .kv_heads = 3, .add_bias_kv = added, .add_zero_attention = added}, random);
    const auto layer = p.layer();
    const auto x = random.tensor<TestType>({2, 12, 60});
    const auto memory = random.tensor<TestType>({2, 600, 60});
    for (const bool causal : {false, true}) {
      const auto whole = layer(x, memory, memory, {.causal = causal});
      std::string faults;
      for (std::size_t count = 1; count <= 12; ++count) {
        faults += same_bits(layer(x.view().slice(1, 12 - count, count), memory, memory, {.causal = causal}),
                            whole.view().slice(1, 12 - count, count));
      }
      CAPTURE(added, causal);
      CHECK(faults == "");
    }
  }
}

TEMPLATE_TEST_CASE("a prompt in chunks, in groups and with options", "[attention][decode][bits]", float, double) {
  random_source random(70 + sizeof(TestType));
  const std::size_t length = 330;
  const problem<TestType> p({1, length, length, 2, 2, 20, 24}, random);
  for (const bool restricted : {false, true}) {
    const auto options = [&](std::size_t first, std::size_t count) {
      hw::attention_options<TestType> o{.causal = true};
      if (restricted) {
        o.bias = p.bias.view().slice(2, first, count).slice(3, 0, first + count);
        o.window.left = 200;
        o.sinks = p.sinks;
        o.alibi_slopes = p.slopes;
      }
      return o;
    };
    const auto whole = hw::scaled_dot_product_attention(p.q, p.k, p.v, options(0, length));
    for (const std::size_t chunk : sizes{1, 3, 7, 64}) {
      std::string faults;
      for (std::size_t first = 0; first < length; first += chunk) {
        const std::size_t count = std::min(chunk, length - first);
        const auto part =
            hw::scaled_dot_product_attention(p.q.view().slice(1, first, count), p.k.view().slice(1, 0, first + count),
                                             p.v.view().slice(1, 0, first + count), options(first, count));
        faults += same_bits(part, whole.view().slice(1, first, count));
      }
      CAPTURE(restricted, chunk);
      CHECK(faults.substr(0, 500) == "");
    }
  }
}
