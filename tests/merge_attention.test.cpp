// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>
#include <headwave/merge_attention.hpp>

#include "support/catch.hpp"
#include "support/oracle_attention.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace hw = headwave;
using oracle::estimate;
using oracle::real;
using support::bits_of;
using support::constant;
using support::element;
using support::error_of;
using support::extents;
using support::flat;
using support::for_each_index;
using support::infinity;
using support::lacks;
using support::not_a_number;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::tensor_of;
using support::window;
using support::within;

namespace {

/// An attention's results, and how far they may be off.
struct side {
  estimate<4> out;
  estimate<3> lse;
};

/// The definition. With shares p and q of a and b, whose errors are those of a logarithm of their quotient:
///   |error| <= p da + q db + p q (dla + dlb) |a - b| growth + roundings,
/// where a share has (|lse_a - lse_b| + 6) units of double, and an output four roundings in T more. Of lse: the larger
/// of both errors, four roundings of the logarithm of at most 2, and one of the result.
template <class T>
side merged(const side& a, const side& b) {
  constexpr real u = oracle::unit<T>;
  constexpr real smallest = static_cast<real>((std::numeric_limits<T>::min)());
  side result{estimate<4>(a.out.value.extents()), estimate<3>(a.lse.value.extents())};
  for_each_index(a.lse.value.extents(), [&](const extents<3>& row) {
    const real la = element(a.lse.value.view(), row), lb = element(b.lse.value.view(), row);
    const bool a_is_empty = la == -std::numeric_limits<real>::infinity();
    const bool b_is_empty = lb == -std::numeric_limits<real>::infinity();
    const real largest = (std::max)(la, lb);
    const real total = a_is_empty && b_is_empty ? 1 : std::exp(la - largest) + std::exp(lb - largest);
    const real p = a_is_empty ? 0 : std::exp(la - largest) / total, q = b_is_empty ? 0 : std::exp(lb - largest) / total;
    const bool one_side = a_is_empty || b_is_empty;
    const real of_lse = one_side ? 0 : element(a.lse.error.view(), row) + element(b.lse.error.view(), row);
    const real of_shares = one_side ? 0 : of_lse * std::exp(of_lse) + (std::fabs(la - lb) + 6) * oracle::unit<double>;
    element(result.lse.value.view(), row) = one_side ? largest : largest + std::log(total);
    element(result.lse.error.view(), row) =
        (std::max)(element(a.lse.error.view(), row), element(b.lse.error.view(), row)) +
        (one_side ? 0 : 4 * oracle::unit<double> + u * std::fabs(largest + std::log(total)));
    for (std::size_t c = 0; c < a.out.value.extent(3); ++c) {
      const extents<4> at{row[0], row[2], row[1], c};
      const real x = a_is_empty ? 0 : element(a.out.value.view(), at);
      const real y = b_is_empty ? 0 : element(b.out.value.view(), at);
      element(result.out.value.view(), at) = p * x + q * y;
      // Of shares that are off by their own roundings, not only in proportion to each other.
      const real shares = p * q * of_lse * std::exp(of_lse) * std::fabs(x - y) +
                          (of_shares + 4 * u) * (q * std::fabs(y) + p * std::fabs(x));
      element(result.out.error.view(), at) = p * (a_is_empty ? 0 : element(a.out.error.view(), at)) +
                                             q * (b_is_empty ? 0 : element(b.out.error.view(), at)) +
                                             (one_side ? 0 : shares + 2 * smallest);
    }
  });
  return result;
}

template <class T>
struct part {
  hw::tensor<T, 4> out;
  hw::tensor<T, 3> lse;

  side exact() const { return {oracle::exact(out), oracle::exact(lse)}; }
};

template <class T>
part<T> random_part(random_source& random, std::size_t batch, std::size_t queries, std::size_t heads,
                    std::size_t value_dim, double spread) {
  return {random.tensor<T>({batch, queries, heads, value_dim}), random.tensor<T>({batch, heads, queries}, spread)};
}

template <class T>
part<T> merge(part<T> a, const part<T>& b) {
  hw::merge_attention(a.out, a.lse, b.out, b.lse);
  return a;
}

/// One row of one channel.
template <class T>
part<T> single(double out, double lse) {
  return {constant<T>({1, 1, 1, 1}, out), constant<T>({1, 1, 1}, lse)};
}

template <class T>
std::vector<T> numbers(const part<T>& x) {
  return {x.out(0, 0, 0, 0), x.lse(0, 0, 0)};
}

}  // namespace

TEMPLATE_TEST_CASE("merged attentions of random rows", "[merge]", float, double) {
  random_source random(1);
  for (std::size_t value_dim = 0; value_dim <= 40; ++value_dim) {
    for (const double spread : {0.1, 3.0, 300.0}) {
      const std::size_t batch = random.integer(1, 2), queries = random.integer(1, 7), heads = random.integer(1, 3);
      CAPTURE(value_dim, spread, batch, queries, heads);
      const auto a = random_part<TestType>(random, batch, queries, heads, value_dim, spread);
      const auto b = random_part<TestType>(random, batch, queries, heads, value_dim, spread);
      const auto result = merge(a, b);
      const side expected = merged<TestType>(a.exact(), b.exact());
      CHECK(within(result.out, expected.out) == "");
      CHECK(within(result.lse, expected.lse) == "");
    }
  }
}

TEMPLATE_TEST_CASE("attention over parts of the keys, merged, is attention over all keys", "[merge]", float, double) {
  random_source random(2);
  for (int round = 0; round < 40; ++round) {
    const std::size_t batch = random.integer(1, 2), queries = random.integer(1, 9), kv_heads = random.integer(1, 2);
    const std::size_t heads = kv_heads * random.integer(1, 3), head_dim = random.integer(1, 20);
    const std::size_t value_dim = random.integer(1, 36), keys = random.integer(2, 60);
    const std::size_t border = random.integer(0, keys), second_border = random.integer(border, keys);
    CAPTURE(round, batch, queries, heads, kv_heads, head_dim, value_dim, keys, border, second_border);
    const auto q = random.tensor<TestType>({batch, queries, heads, head_dim}, 2);
    const auto k = random.tensor<TestType>({batch, keys, kv_heads, head_dim}, 2);
    const auto v = random.tensor<TestType>({batch, keys, kv_heads, value_dim});
    // Few enough that some rows see nothing in a part, or at all.
    const auto visible = random.mask({queries, keys}, round % 2 ? 0.8 : 0.1);
    std::vector<TestType> sinks(heads, TestType(0.5));
    const bool with_sinks = round % 3 == 0;

    side all;
    const auto attend = [&](std::size_t first, std::size_t last, bool sink, auto& result) {
      hw::attention_options<TestType> options;
      const auto part_of_mask = visible.view().slice(1, first, last - first);
      options.visible = part_of_mask;
      if (sink) {
        options.sinks = sinks;
      }
      const auto part_k = k.view().slice(1, first, last - first), part_v = v.view().slice(1, first, last - first);
      if constexpr (std::is_same_v<std::remove_reference_t<decltype(result)>, side>) {
        auto computed = oracle::attention(q, part_k, part_v, options);
        result = {std::move(computed.out), std::move(computed.lse)};
      } else {
        options.lse = result.lse;
        hw::scaled_dot_product_attention_into(result.out, q, part_k, part_v, options);
      }
    };
    const std::size_t borders[] = {0, border, second_border, keys};
    part<TestType> parts[3];
    side bounds[3];
    for (std::size_t i = 0; i < 3; ++i) {
      parts[i] = {hw::tensor<TestType, 4>({batch, queries, heads, value_dim}),
                  hw::tensor<TestType, 3>({batch, heads, queries})};
      attend(borders[i], borders[i + 1], with_sinks && i == 1, parts[i]);
      attend(borders[i], borders[i + 1], with_sinks && i == 1, bounds[i]);
    }
    attend(0, keys, with_sinks, all);

    // In either order of merging; the bound is that of the merges, around the value of the whole.
    const auto check = [&](const part<TestType>& result, side bound) {
      bound.out.value = all.out.value;
      bound.lse.value = all.lse.value;
      CHECK(within(result.out, bound.out) == "");
      CHECK(within(result.lse, bound.lse) == "");
    };
    check(merge(merge(parts[0], parts[1]), parts[2]),
          merged<TestType>(merged<TestType>(bounds[0], bounds[1]), bounds[2]));
    check(merge(parts[0], merge(parts[1], parts[2])),
          merged<TestType>(bounds[0], merged<TestType>(bounds[1], bounds[2])));
  }
}

TEMPLATE_TEST_CASE("merging a side that sees nothing", "[merge][empty]", float, double) {
  random_source random(3);
  const auto full = random_part<TestType>(random, 2, 3, 2, 19, 5);
  for (const double rubbish : {not_a_number, infinity, 7.0}) {
    const part<TestType> empty = {constant<TestType>({2, 3, 2, 19}, rubbish), constant<TestType>({2, 2, 3}, -infinity)};
    const auto left = merge(empty, full), right = merge(full, empty), none = merge(empty, empty);
    CHECK(same_bits(left.out, full.out) == "");
    CHECK(same_bits(left.lse, full.lse) == "");
    CHECK(same_bits(right.out, full.out) == "");
    CHECK(same_bits(right.lse, full.lse) == "");
    CHECK(same_bits(none.out, constant<TestType>({2, 3, 2, 19}, 0)) == "");
    CHECK(same_bits(none.lse, empty.lse) == "");
  }
  // Some rows of a group.
  part<TestType> a = full, b = random_part<TestType>(random, 2, 3, 2, 19, 5);
  a.lse(1, 1, 2) = b.lse(0, 1, 1) = static_cast<TestType>(-infinity);
  const auto mixed = merge(a, b);
  CHECK(same_bits(mixed.out.view().slice(0, 1, 1).slice(1, 2, 1).slice(2, 1, 1),
                  b.out.view().slice(0, 1, 1).slice(1, 2, 1).slice(2, 1, 1)) == "");
  CHECK(same_bits(mixed.out.view().slice(0, 0, 1).slice(1, 1, 1).slice(2, 1, 1),
                  a.out.view().slice(0, 0, 1).slice(1, 1, 1).slice(2, 1, 1)) == "");
}

TEMPLATE_TEST_CASE("merging special numbers", "[merge]", float, double) {
  using values = std::vector<TestType>;
  constexpr double largest = static_cast<double>((std::numeric_limits<TestType>::max)());
  const auto merge_numbers = [](double out_a, double lse_a, double out_b, double lse_b) {
    const values ab = numbers(merge(single<TestType>(out_a, lse_a), single<TestType>(out_b, lse_b)));
    const values ba = numbers(merge(single<TestType>(out_b, lse_b), single<TestType>(out_a, lse_a)));
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK((bits_of(ab[i]) == bits_of(ba[i]) || (std::isnan(ab[i]) && std::isnan(ba[i]))));
    }
    return ab;
  };
  CHECK(merge_numbers(3, 0, 5, 0) == values{4, static_cast<TestType>(std::log(2.0L))});
  CHECK(merge_numbers(3, 1e30, 5, -1e30) == values{3, static_cast<TestType>(1e30)});
  CHECK(merge_numbers(3, largest, 5, largest) == values{4, static_cast<TestType>(largest)});
  CHECK(merge_numbers(3, largest, 5, -largest) == values{3, static_cast<TestType>(largest)});
  CHECK(merge_numbers(3, -largest, 5, -largest) == values{4, static_cast<TestType>(-largest)});
  CHECK(merge_numbers(3, infinity, 5, 2) == values{3, static_cast<TestType>(infinity)});
  CHECK(merge_numbers(3, infinity, 5, -infinity) == values{3, static_cast<TestType>(infinity)});
  CHECK(merge_numbers(infinity, 0, 5, 0)[0] == static_cast<TestType>(infinity));
  CHECK(std::isnan(merge_numbers(not_a_number, 0, 5, 0)[0]));
  CHECK(std::isnan(merge_numbers(not_a_number, 0, 5, 2000)[0]));
  CHECK(merge_numbers(not_a_number, 0, 5, 2000)[1] == TestType(2000));
  const values undecided = merge_numbers(3, infinity, 5, infinity);
  CHECK(std::isnan(undecided[0]));
  CHECK(undecided[1] == static_cast<TestType>(infinity));
  for (const double lse : {0.0, infinity, largest}) {
    const values unknown = merge_numbers(3, not_a_number, 5, lse);
    CHECK(std::isnan(unknown[0]));
    CHECK(std::isnan(unknown[1]));
  }
}

TEMPLATE_TEST_CASE("a mean of the largest numbers is finite", "[merge]", float, double) {
  constexpr TestType largest = (std::numeric_limits<TestType>::max)();
  // The four roundings.
  constexpr TestType least = largest * (1 - 2 * std::numeric_limits<TestType>::epsilon());
  random_source random(4);
  const hw::tensor<TestType, 4> out = constant<TestType>({1, 5000, 1, 1}, static_cast<double>(largest));
  const auto result = merge(part<TestType>{out, random.tensor<TestType>({1, 1, 5000}, 9)},
                            part<TestType>{out, random.tensor<TestType>({1, 1, 5000}, 9)});
  CHECK(std::all_of(result.out.begin(), result.out.end(), [](TestType x) { return x <= largest && x >= least; }));
}

TEMPLATE_TEST_CASE("merging: strides and canaries", "[merge]", float, double) {
  random_source random(5);
  for (const std::size_t value_dim : sizes{1, 3, 8, 16, 33}) {
    auto a = random_part<TestType>(random, 2, 5, 3, value_dim, 4);
    const auto b = random_part<TestType>(random, 2, 5, 3, value_dim, 4);
    a.lse(0, 2, 1) = static_cast<TestType>(-infinity);
    const auto expected = merge(a, b);
    for (const hw::index last_stride : {1, 2, -1}) {
      CAPTURE(value_dim, last_stride);
      const window<TestType, 4> out_a(a.out, {.last_stride = last_stride, .gap = 2});
      const window<TestType, 3> lse_a(a.lse, {.last_stride = last_stride, .gap = 1, .reversed = true});
      const window<TestType, 4> out_b(b.out, {.last_stride = last_stride, .reversed = true});
      const window<TestType, 3> lse_b(b.lse, {.last_stride = last_stride});
      hw::merge_attention(out_a.view(), lse_a.view(), out_b.view(), lse_b.view());
      CHECK(same_bits(out_a.view(), expected.out) == "");
      CHECK(same_bits(lse_a.view(), expected.lse) == "");
      CHECK((out_a.intact() && lse_a.intact() && out_b.intact() && lse_b.intact()));
    }
    // Heads outside, as many models store them.
    const auto turned = [](const hw::tensor<TestType, 4>& x) { return support::packed(x.view().transposed(1, 2)); };
    auto turned_a = turned(a.out);
    auto lse = a.lse;
    hw::merge_attention(turned_a.view().transposed(1, 2), lse, turned(b.out).view().transposed(1, 2), b.lse);
    CHECK(same_bits(turned_a.view().transposed(1, 2), expected.out) == "");
  }
}

TEMPLATE_TEST_CASE("a row's merge depends on nothing else, whoever runs it", "[merge][bits]", float, double) {
  random_source random(6);
  // Long enough to be cut into tasks.
  const auto a = random_part<TestType>(random, 2, 311, 5, 333, 4), b = random_part<TestType>(random, 2, 311, 5, 333, 4);
  const auto expected = merge(a, b);
  std::size_t tasks = 0;
  const auto backwards = [&tasks](hw::index count, const auto& task) {
    tasks = static_cast<std::size_t>(count);
    for (hw::index i = count; i-- > 0;) {
      task(i);
    }
  };
  auto result = a;
  hw::merge_attention(result.out, result.lse, b.out, b.lse, backwards);
  CHECK(tasks > 1);
  CHECK(same_bits(result.out, expected.out) == "");
  CHECK(same_bits(result.lse, expected.lse) == "");
  for (const std::size_t row : sizes{0, 1, 9, 310}) {
    auto alone = a;
    const auto out = alone.out.view().slice(1, row, 1);
    const auto lse = alone.lse.view().slice(2, row, 1);
    hw::merge_attention(out, lse, b.out.view().slice(1, row, 1), b.lse.view().slice(2, row, 1));
    CHECK(same_bits(out, expected.out.view().slice(1, row, 1)) == "");
    CHECK(same_bits(lse, expected.lse.view().slice(2, row, 1)) == "");
  }
}

TEST_CASE("merging: extents of zero, and errors", "[merge][errors]") {
  const auto zero = [](std::size_t batch, std::size_t queries, std::size_t heads, std::size_t value_dim) {
    part<float> a{hw::tensor<float, 4>({batch, queries, heads, value_dim}),
                  hw::tensor<float, 3>({batch, heads, queries})};
    return merge(a, a).out.extents() == extents<4>{batch, queries, heads, value_dim};
  };
  CHECK((zero(0, 2, 3, 4) && zero(1, 0, 3, 4) && zero(1, 2, 0, 4) && zero(1, 2, 3, 0)));

  const window<float, 4> out({1, 2, 3, 4});
  const window<float, 3> lse({1, 3, 2});
  const auto other_out = constant<float>({1, 2, 3, 5}, 0);
  const auto other_lse = constant<float>({1, 2, 3}, 0);
  const auto right_lse = constant<float>({1, 3, 2}, 0);
  CHECK(lacks(error_of([&] { hw::merge_attention(out.view(), lse.view(), other_out, right_lse); }),
              {"merge_attention", "out_a [1, 2, 3, 4]", "lse_a [1, 3, 2]", "out_b [1, 2, 3, 5]"}) == "");
  CHECK(lacks(error_of([&] { hw::merge_attention(out.view(), lse.view(), out.view(), other_lse); }),
              {"merge_attention", "lse_b [1, 2, 3]"}) == "");
  CHECK(lacks(error_of([&] { hw::merge_attention(out.view(), lse.view().slice(2, 0, 1), out.view(), right_lse); }),
              {"merge_attention", "lse_a [1, 3, 1]"}) == "");
  CHECK(out.untouched());
  CHECK(lse.untouched());
}
