// SPDX-License-Identifier: MIT
#include <headwave/attention.hpp>

#include "support/attention_check.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/random_attention.hpp"
#include "support/random_rules.hpp"
#include "support/threads.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

/// \file
/// Sequences packed one behind the other have the bits of so many calls.

namespace hw = headwave;
using support::attention_outputs;
using support::error_of;
using support::lacks;
using support::problem_sizes;
using support::random_problem;
using support::random_source;
using support::same_bits;

namespace {

/// Asks for lse, or for all that packed sequences can give.
template <class T>
void ask(hw::attention_options<T>& options, const attention_outputs<T>& outputs, bool everything) {
  options.lse = outputs.lse.view();
  if (everything) {
    options.maximum = outputs.maximum.view();
    options.entropy = outputs.entropy.view();
    options.key_mass = outputs.key_mass.view();
  }
}

/// The n + 1 samples of a call that are all sequence n of packed ones: as rules and random numbers count samples, the
/// last one is that sequence.
template <class T>
struct repeated_sequence {
  std::size_t n, first_query, queries, first_key, keys;
  hw::tensor_view<const T, 4> q, k, v;
  std::vector<std::int64_t> query_lengths, key_lengths;
  hw::attention_options<T> options;

  repeated_sequence(const random_problem<T>& p, std::size_t sequence)
      : n(sequence),
        first_query(static_cast<std::size_t>(p.query_offsets[n])),
        queries(static_cast<std::size_t>(p.query_offsets[n + 1]) - first_query),
        first_key(static_cast<std::size_t>(p.key_offsets[n])),
        keys(static_cast<std::size_t>(p.key_offsets[n + 1]) - first_key),
        q(repeated(p.q, first_query, queries)),
        k(repeated(p.k, first_key, keys)),
        v(repeated(p.v, first_key, keys)),
        options(p.options) {
    options.query_offsets = {};
    options.key_offsets = {};
    const auto own = [&](auto& list, std::size_t count) { list = list.data() ? list.first(count) : list; };
    own(options.query_starts, n + 1);
    own(options.alibi_slopes, options.alibi_slopes.size() > p.shape.heads ? (n + 1) * p.shape.heads : p.shape.heads);
    const auto bounded = [&](auto& list, std::vector<std::int64_t>& memory, std::size_t most) {
      if (list.data()) {
        for (const std::int64_t length : list.first(n + 1)) {
          memory.push_back((std::min)(length, static_cast<std::int64_t>(most)));
        }
        list = memory;
      }
    };
    bounded(options.query_lengths, query_lengths, queries);
    bounded(options.key_lengths, key_lengths, keys);
  }
  repeated_sequence(const repeated_sequence&) = delete;

 private:
  hw::tensor_view<const T, 4> repeated(const hw::tensor<T, 4>& x, std::size_t first, std::size_t count) const {
    const auto own = x.view().slice(1, first, count);
    return {own.data(), {n + 1, count, own.extent(2), own.extent(3)}, {0, own.stride(1), own.stride(2), own.stride(3)}};
  }
};

template <class T, class... Rules>
std::string packed_faults(const random_problem<T>& p, bool everything, hw::executor_ref executor,
                          const Rules&... rules) {
  const attention_outputs<T> packed(p.q, p.k, p.v, p.options);
  hw::attention_options<T> options = p.options;
  options.executor = executor;
  ask(options, packed, everything);
  hw::scaled_dot_product_attention_into(packed.out.view(), p.q, p.k, p.v, options, rules...);
  std::string text = packed.intact() ? "" : "canaries overwritten\n";
  for (std::size_t n = 0; n < p.shape.sequences; ++n) {
    repeated_sequence<T> call(p, n);
    const attention_outputs<T> alone(call.q, call.k, call.v, call.options);
    ask(call.options, alone, everything);
    hw::scaled_dot_product_attention_into(alone.out.view(), call.q, call.k, call.v, call.options, rules...);
    const auto compare = [&](const char* name, const auto& from, const auto& expected, std::size_t axis,
                             std::size_t first, std::size_t count) {
      const std::string fault = same_bits(from.view().slice(axis, first, count), expected.view().slice(0, n, 1));
      text += fault.empty() ? fault : std::string(name) + " of sequence " + std::to_string(n) + ": " + fault + "\n";
    };
    compare("out", packed.out, alone.out, 1, call.first_query, call.queries);
    compare("lse", packed.lse, alone.lse, 2, call.first_query, call.queries);
    if (everything) {
      compare("maximum", packed.maximum, alone.maximum, 2, call.first_query, call.queries);
      compare("entropy", packed.entropy, alone.entropy, 2, call.first_query, call.queries);
      compare("key_mass", packed.key_mass, alone.key_mass, 2, call.first_key, call.keys);
    }
  }
  if (everything) {
    const auto last = static_cast<std::size_t>(p.key_offsets.back());
    const auto rest = packed.key_mass.view().slice(2, last, p.k.extent(1) - last);
    const std::string fault = support::within(rest, hw::tensor<T, 3>(rest.extents()), 0);
    text += fault.empty() ? fault : "key_mass of no sequence: " + fault + "\n";
  }
  return text;
}

}  // namespace

TEMPLATE_TEST_CASE("packed sequences have the bits of separate calls", "[attention][packed]", float, double) {
  random_source random(700 + sizeof(TestType));
  std::string failures;
  for (int n = 0; n < support::cases(40); ++n) {
    // Few queries and many, few keys and several blocks, and nothing at all.
    std::vector<std::int64_t> query_offsets{0}, key_offsets{0};
    const std::size_t sequences = random.integer(1, 7);
    for (std::size_t i = 0; i < sequences; ++i) {
      const std::size_t keys = random.pick({0, 1, 5, 16, 33, 255, 257, 300, 600});
      query_offsets.push_back(query_offsets.back() + static_cast<std::int64_t>(random.pick({0, 1, 1, 2, 4, 8, 9, 40})));
      key_offsets.push_back(key_offsets.back() + static_cast<std::int64_t>(n % 10 == 0 ? 900 + keys : keys));
    }
    problem_sizes s{};
    s.batch = 1;
    s.query_length = static_cast<std::size_t>(query_offsets.back());
    s.key_length = static_cast<std::size_t>(key_offsets.back()) + random.pick({0, 0, 3});
    s.kv_heads = random.integer(1, 3);
    s.heads = s.kv_heads * random.pick({1, 2, 4});
    s.head_dim = random.pick({1, 8, 16, 40});
    s.value_dim = random.pick({3, 8, 16, 33});
    s.sequences = sequences;
    random_problem<TestType> problem(s, random, random.chance(0.3) ? 0 : 0.25);
    problem.query_offsets = query_offsets;
    problem.key_offsets = key_offsets;
    problem.options.query_offsets = problem.query_offsets;
    problem.options.key_offsets = problem.key_offsets;
    support::mask_source masks(random, sequences, s.heads, 40);
    const support::any_mask mask = masks.draw(2);
    const auto rule = support::draw_score_rule<TestType>(random);
    const support::thread_executor two{2}, three{3};
    std::string faults;
    for (const bool everything : {false, true}) {
      faults += packed_faults(problem, everything, {});
      faults += n % 5 == 0 ? packed_faults(problem, everything, two) : "";
      faults += n % 5 == 1 ? packed_faults(problem, everything, three, rule, mask) : "";
      faults += n % 5 == 2 ? packed_faults(problem, everything, {}, rule, mask) : "";
    }
    if (!faults.empty()) {
      failures += "problem " + std::to_string(n) + ", sizes " + support::text_of_sizes(s) + "," +
                  support::text_of_options(problem.options) + "\n" + faults;
    }
  }
  CHECK(failures.substr(0, 3000) == "");
}

TEMPLATE_TEST_CASE("a packed sequence is the call of its own rows", "[attention][packed]", float, double) {
  random_source random(710 + sizeof(TestType));
  // One token for a cache, a prompt, a sequence without queries, one without keys, and again one token.
  const std::vector<std::int64_t> query_offsets{0, 1, 21, 21, 24, 25}, key_offsets{0, 300, 320, 350, 350, 351};
  const auto q = random.tensor<TestType>({1, 25, 4, 16});
  const auto k = random.tensor<TestType>({1, 351, 2, 16});
  const auto v = random.tensor<TestType>({1, 351, 2, 24});
  const auto out = hw::scaled_dot_product_attention(
      q, k, v, {.causal = true, .query_offsets = query_offsets, .key_offsets = key_offsets});
  for (std::size_t n = 0; n + 1 < query_offsets.size(); ++n) {
    const auto own = [n](const auto& x, const std::vector<std::int64_t>& offsets) {
      return x.view().slice(1, static_cast<std::size_t>(offsets[n]),
                            static_cast<std::size_t>(offsets[n + 1] - offsets[n]));
    };
    CAPTURE(n);
    CHECK(same_bits(own(out, query_offsets),
                    hw::scaled_dot_product_attention(own(q, query_offsets), own(k, key_offsets), own(v, key_offsets),
                                                     {.causal = true})) == "");
  }
}

TEST_CASE("no sequences at all", "[attention][packed]") {
  const std::vector<std::int64_t> none{0};
  const hw::tensor<float, 4> q({1, 0, 2, 8});
  const hw::tensor<float, 4> k({1, 3, 2, 8});
  auto mass = support::constant<float>({1, 2, 3}, 7);
  const auto out =
      hw::scaled_dot_product_attention(q, k, k, {.query_offsets = none, .key_offsets = none, .key_mass = mass.view()});
  CHECK(out.extents() == q.extents());
  CHECK(support::within(mass, std::vector<double>(6, 0.0), 0) == "");
}

TEST_CASE("offsets that are not offsets are errors", "[attention][packed][errors]") {
  const hw::tensor<float, 4> q({1, 5, 2, 8});
  const hw::tensor<float, 4> k({1, 7, 2, 8});
  const auto error = [&](const std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& keys,
                         hw::attention_options<float> options = {}) {
    options.query_offsets = queries;
    options.key_offsets = keys;
    return error_of([&] { hw::scaled_dot_product_attention(q, k, k, options); });
  };
  CHECK(error({0, 2, 5}, {0, 3, 7}) == "");
  CHECK(error({0, 2, 5}, {0, 3, 3}) == "");
  CHECK(lacks(error({0, 2, 5}, {0, 7}), {"query_offsets and key_offsets", "same number"}) == "");
  CHECK(lacks(error({0, 5}, {}), {"query_offsets and key_offsets", "same number"}) == "");
  CHECK(lacks(error({}, {0, 7}), {"query_offsets and key_offsets", "same number"}) == "");
  CHECK(lacks(error({1, 2, 5}, {0, 3, 7}), {"query_offsets must begin with 0"}) == "");
  CHECK(lacks(error({0, 3, 2, 5}, {0, 3, 4, 7}), {"query_offsets", "not decrease"}) == "");
  CHECK(lacks(error({0, 2, 5}, {0, 8, 7}), {"key_offsets", "not decrease"}) == "");
  CHECK(lacks(error({0, 2, 5}, {0, 3, 8}), {"key_offsets", "number of rows"}) == "");
  CHECK(lacks(error({0, 2, -5}, {0, 3, 7}), {"query_offsets"}) == "");
  CHECK(lacks(error({0, 2, 4}, {0, 3, 7}), {"query_offsets must end at query_length"}) == "");
  const std::vector<std::int64_t> one{1}, three{1, 1, 1};
  CHECK(lacks(error({0, 2, 5}, {0, 3, 7}, {.key_lengths = one}), {"key_lengths", "each sample"}) == "");
  CHECK(lacks(error({0, 2, 5}, {0, 3, 7}, {.query_lengths = three}), {"query_lengths", "each sample"}) == "");
  CHECK(lacks(error({0, 2, 5}, {0, 3, 7}, {.query_starts = three}), {"query_starts", "each sample"}) == "");
  const hw::tensor<float, 4> bias({1, 1, 1, 7});
  CHECK(lacks(error({0, 2, 5}, {0, 3, 7}, {.bias = bias}), {"with query_offsets", "bias"}) == "");
  hw::tensor<float, 4> weights({1, 2, 5, 7});
  CHECK(lacks(error({0, 2, 5}, {0, 3, 7}, {.weights = weights.view()}), {"with query_offsets", "weights"}) == "");
}
