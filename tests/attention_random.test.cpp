// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>

#include "support/attention_check.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/random_attention.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace hw = headwave;
using support::attention_faults;
using support::problem_sizes;
using support::random_problem;
using support::random_source;
using support::sizes;
using support::spacing;
using support::text_of_options;
using support::text_of_sizes;
using support::window;

namespace {

template <class T>
std::string faults_of(const random_problem<T>& problem, spacing layout = {}) {
  const std::string faults = attention_faults(problem.q, problem.k, problem.v, problem.options, layout);
  return faults.empty() ? faults : text_of_options(problem.options) + "\n" + faults;
}

}  // namespace

TEMPLATE_TEST_CASE("small shapes with random options", "[attention][random]", float, double) {
  random_source random(100 + sizeof(TestType));
  std::string failures;
  std::size_t count = 0;
  for (int n = 0; n < support::cases(2000); ++n) {
    problem_sizes s{};
    s.batch = random.integer(1, 3);
    s.query_length = random.pick({0, 1, 1, 2, 3, 5, 7, 11, 17});
    s.key_length = random.pick({0, 1, 2, 3, 5, 8, 13, 16, 17, 31, 45});
    s.kv_heads = random.integer(1, 3);
    s.heads = s.kv_heads * random.integer(1, 3);
    s.head_dim = random.pick({0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24});
    s.value_dim = random.pick({0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24});
    const random_problem<TestType> problem(s, random, 0.3);
    const spacing layout = support::draw_spacing(random);
    const std::string faults = faults_of(problem, layout);
    if (!faults.empty() && ++count <= 5) {
      failures += "problem " + std::to_string(n) + ", sizes " + text_of_sizes(s) + "\n" + faults;
    }
  }
  CAPTURE(count);
  CHECK(failures == "");
}

TEMPLATE_TEST_CASE("every width of heads, several key blocks, with and without options", "[attention][random]", float,
                   double) {
  random_source random(200 + sizeof(TestType));
  // head_dim, value_dim, query_length, key_length: below, at and past the sizes of tiles and blocks.
  const std::size_t shapes[][4] = {{1, 3, 33, 700},     {5, 8, 17, 257},     {8, 5, 50, 300},    {32, 32, 16, 256},
                                   {40, 24, 15, 513},   {64, 64, 70, 700},   {72, 80, 9, 255},   {80, 72, 31, 129},
                                   {96, 96, 13, 640},   {128, 128, 4, 1300}, {160, 40, 6, 511},  {256, 256, 3, 300},
                                   {576, 512, 52, 100}, {64, 128, 1, 1300},  {128, 64, 400, 40}, {3, 2, 1400, 20}};
  for (const auto& [head_dim, value_dim, query_length, key_length] : shapes) {
    for (const double option_chance : {0.0, 0.35}) {
      const std::size_t group = query_length > 100 ? 1 : random.integer(1, 2);
      const problem_sizes s{1, query_length, key_length, 2 * group, 2, head_dim, value_dim};
      const random_problem<TestType> problem(s, random, option_chance);
      CAPTURE(text_of_sizes(s), option_chance);
      CHECK(faults_of(problem) == "");
    }
  }
}

TEMPLATE_TEST_CASE("one query against a cache, in groups", "[attention][random]", float, double) {
  random_source random(300 + sizeof(TestType));
  for (const std::size_t group : sizes{1, 4, 8}) {
    for (const std::size_t length : sizes{1, 63, 64, 65, 256, 257, 1025}) {
      const random_problem<TestType> problem({2, 1, length, 2 * group, 2, 64, 64}, random, 0.15);
      CAPTURE(group, length);
      CHECK(faults_of(problem) == "");
    }
  }
}

TEMPLATE_TEST_CASE("few queries against many keys, every width of heads", "[attention][random][decode]", float,
                   double) {
  random_source random(350 + sizeof(TestType));
  const sizes widths{1, 5, 8, 32, 40, 64, 72, 80, 96, 128, 160, 256, 576};
  std::string failures;
  for (std::size_t n = 0; n < 6 * widths.size(); ++n) {
    problem_sizes s{};
    const std::size_t group = random.pick({1, 1, 2, 3, 4, 8});
    s.batch = random.pick({1, 1, 2});
    s.query_length = random.integer(1, 8 / group);
    s.kv_heads = random.pick({1, 1, 2, 3});
    s.heads = group * s.kv_heads;
    s.head_dim = widths[n % widths.size()];
    s.value_dim = random.chance(0.5) ? s.head_dim : widths[random.integer(0, widths.size() - 1)];
    // A problem with wide heads has fewer keys, so that each takes the oracle about as long.
    s.key_length = s.head_dim + s.value_dim > 300 || random.chance(0.3)
                       ? random.pick({1, 15, 17, 63, 255, 256, 257, 300, 521})
                       : random.pick({513, 600, 768, 1025, 1300, 2050});
    const random_problem<TestType> problem(s, random, n % 4 == 0 ? 0.0 : 0.25);
    const std::string faults =
        faults_of(problem, {random.chance(0.7) ? 1 : 2, random.integer(0, 4), random.chance(0.3)});
    failures += faults.empty() ? faults : "sizes " + text_of_sizes(s) + "\n" + faults;
  }
  CHECK(failures.substr(0, 2000) == "");
}

TEST_CASE("double is right to 1e-13 of the size of the values", "[attention][random]") {
  random_source random(400);
  for (const std::size_t head_dim : sizes{1, 64, 576}) {
    const auto q = random.tensor<double>({1, 7, 4, head_dim});
    const auto k = random.tensor<double>({1, 600, 2, head_dim});
    const auto v = random.tensor<double>({1, 600, 2, 48});
    const hw::attention_options<double> options = {.causal = true};
    const oracle::attention_result expected = oracle::attention(q, k, v, options);
    CAPTURE(head_dim);
    CHECK(support::within(hw::scaled_dot_product_attention(q, k, v, options), expected.out.value, 1e-13) == "");
  }
}

TEMPLATE_TEST_CASE("inputs and outputs of any strides", "[attention][random]", float, double) {
  random_source random(500 + sizeof(TestType));
  std::string failures;
  for (int n = 0; n < 60; ++n) {
    const std::size_t kv_heads = random.integer(1, 2);
    const problem_sizes s{
        random.integer(1, 2),  random.integer(1, 20), random.integer(1, 70), kv_heads * random.integer(1, 2), kv_heads,
        random.integer(1, 40), random.integer(1, 40)};
    const random_problem<TestType> problem(s, random, 0.2);
    const auto any = [&] {
      return spacing{hw::index(random.integer(0, 6)) - 3, random.integer(0, 9), random.chance(0.5)};
    };
    const auto usable = [&] {
      spacing layout = any();
      layout.last_stride = layout.last_stride == 0 ? 1 : layout.last_stride;
      return layout;
    };
    // Every gap of an input holds NaN.
    const window<TestType, 4> q(problem.q, usable());
    const window<TestType, 4> k(problem.k, usable());
    const window<TestType, 4> v(problem.v, usable());
    std::string faults = attention_faults(q.view(), k.view(), v.view(), problem.options, usable());
    const auto expected = hw::scaled_dot_product_attention(problem.q, problem.k, problem.v, problem.options);
    faults +=
        support::same_bits(hw::scaled_dot_product_attention(q.view(), k.view(), v.view(), problem.options), expected);

    // [batch, heads, length, channels] memory, seen through transposed(1, 2).
    const auto turned = [](const hw::tensor<TestType, 4>& x) { return support::packed(x.view().transposed(1, 2)); };
    const auto turned_q = turned(problem.q);
    const auto turned_k = turned(problem.k);
    const auto turned_v = turned(problem.v);
    hw::tensor<TestType, 4> out({s.batch, s.heads, s.query_length, s.value_dim});
    hw::scaled_dot_product_attention_into(out.view().transposed(1, 2), turned_q.view().transposed(1, 2),
                                          turned_k.view().transposed(1, 2), turned_v.view().transposed(1, 2),
                                          problem.options);
    faults += support::same_bits(out.view().transposed(1, 2), expected);
    if (!faults.empty()) {
      failures += "sizes " + text_of_sizes(s) + "\n" + faults;
    }
  }
  CHECK(failures == "");
}

TEMPLATE_TEST_CASE("inputs whose strides are zero", "[attention][random]", float, double) {
  random_source random(600 + sizeof(TestType));
  const auto one_query = random.tensor<TestType>({1, 1, 4, 8});
  const auto one_key = random.tensor<TestType>({1, 70, 1, 8});
  const hw::tensor_view<const TestType, 4> q(one_query.data(), {3, 6, 4, 8}, {0, 0, 8, 1});
  const hw::tensor_view<const TestType, 4> k(one_key.data(), {3, 70, 2, 8}, {0, 8, 0, 1});
  const hw::tensor_view<const TestType, 4> v(one_key.data(), {3, 70, 2, 8}, {0, 8, 0, 0});
  CHECK(attention_faults(q, k, v, {.causal = true}) == "");
}
