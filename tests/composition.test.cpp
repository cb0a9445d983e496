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
#include <functional>
#include <string>
#include <vector>

/// \file
/// Everything that attention can be asked for, in random combinations: each option, each output, rules and masks of a
/// caller's own, packed sequences, many queries and few, whole and in parts, one thread and several.

namespace hw = headwave;
using support::any_mask;
using support::attention_outputs;
using support::mask_source;
using support::position_rule;
using support::problem_sizes;
using support::random_problem;
using support::random_source;
using support::same_bits;
using support::spacing;

namespace {

/// The options of the rows first .. first + count-1 of a call.
template <class T>
struct rows_of_options {
  std::vector<std::int64_t> starts, lengths;
  hw::attention_options<T> options;

  rows_of_options(const random_problem<T>& p, std::size_t first, std::size_t count) : options(p.options) {
    const auto rows = [&](auto view) { return view.extent(2) > 1 ? view.slice(2, first, count) : view; };
    const auto moved = static_cast<std::int64_t>(first);
    if (options.bias.view().data()) {
      options.bias = rows(options.bias.view());
    }
    if (options.visible.view().data()) {
      options.visible = rows(options.visible.view());
    }
    if (options.query_starts.data()) {
      for (const std::int64_t start : options.query_starts) {
        starts.push_back(start + moved);
      }
      options.query_starts = starts;
    } else {
      const auto missing = static_cast<std::int64_t>(p.k.extent(1)) - static_cast<std::int64_t>(p.q.extent(1));
      options.query_start = options.query_start.value_or(missing) + moved;
    }
    if (options.query_lengths.data()) {
      for (const std::int64_t length : options.query_lengths) {
        lengths.push_back(std::clamp<std::int64_t>(length - moved, 0, static_cast<std::int64_t>(count)));
      }
      options.query_lengths = lengths;
    }
    options.weight_rows = {};
  }
  rows_of_options(const rows_of_options&) = delete;
};

/// Asks for everything but sums over rows.
template <class T>
void ask(hw::attention_options<T>& options, const attention_outputs<T>& outputs) {
  options.lse = outputs.lse.view();
  options.maximum = outputs.maximum.view();
  options.entropy = outputs.entropy.view();
  options.weights = outputs.weights.view();
}

/// Attention with some rules to the keys and values of a problem.
template <class T>
using query_call = std::function<void(hw::tensor_view<T, 4> out, hw::tensor_view<const T, 4> q,
                                      const hw::attention_options<T>& options)>;

/// A call in parts, some rows each, has the bits of the whole.
template <class T>
std::string chunk_faults(const query_call<T>& call, const random_problem<T>& p, random_source& random) {
  hw::attention_options<T> options = p.options;
  options.weight_rows = {};
  const attention_outputs<T> whole(p.q, p.k, p.v, options);
  ask(options, whole);
  call(whole.out.view(), p.q, options);
  std::string text;
  const std::size_t length = p.q.extent(1);
  for (std::size_t first = 0; first < length;) {
    const std::size_t count = random.integer(1, length - first);
    const auto q = p.q.view().slice(1, first, count);
    rows_of_options<T> part(p, first, count);
    const attention_outputs<T> outputs(q, p.k, p.v, part.options);
    if (random.chance(0.5)) {
      part.options.lse = outputs.lse.view();
    } else {
      ask(part.options, outputs);
    }
    call(outputs.out.view(), q, part.options);
    const auto compare = [&](const char* name, const auto& actual, const auto& expected, std::size_t axis) {
      const std::string fault = same_bits(actual.view(), expected.view().slice(axis, first, count));
      if (!fault.empty()) {
        text += std::string(name) + " of rows " + std::to_string(first) + " + " + std::to_string(count) + ": " + fault +
                "\n";
      }
    };
    compare("out", outputs.out, whole.out, 1);
    compare("lse", outputs.lse, whole.lse, 2);
    if (part.options.weights.data()) {
      compare("maximum", outputs.maximum, whole.maximum, 2);
      compare("entropy", outputs.entropy, whole.entropy, 2);
      compare("weights", outputs.weights, whole.weights, 2);
    }
    first += count;
  }
  return text;
}

/// Several threads give the bits of one, with every output that the call may have, and without.
template <class T>
std::string thread_faults(const query_call<T>& call, const random_problem<T>& p, random_source& random) {
  const support::thread_executor team{static_cast<int>(random.integer(2, 3))};
  std::string text;
  for (const bool everything : {false, true}) {
    const auto run = [&](const attention_outputs<T>& outputs, hw::executor_ref executor) {
      hw::attention_options<T> options = p.options;
      options.executor = executor;
      options.lse = outputs.lse.view();
      if (everything) {
        options.maximum = outputs.maximum.view();
        options.entropy = outputs.entropy.view();
        options.key_mass = outputs.key_mass.view();
        if (!p.shape.sequences) {
          options.weights = outputs.weights.view();
          options.mean_weights = outputs.mean_weights.view();
        }
      }
      call(outputs.out.view(), p.q, options);
    };
    const attention_outputs<T> alone(p.q, p.k, p.v, p.options), together(p.q, p.k, p.v, p.options);
    run(alone, {});
    run(together, team);
    text += same_bits(together.out.view(), alone.out.view()) + same_bits(together.lse.view(), alone.lse.view()) +
            same_bits(together.maximum.view(), alone.maximum.view()) +
            same_bits(together.entropy.view(), alone.entropy.view()) +
            same_bits(together.key_mass.view(), alone.key_mass.view()) +
            same_bits(together.weights.view(), alone.weights.view()) +
            same_bits(together.mean_weights.view(), alone.mean_weights.view());
  }
  return text.empty() ? text : "threads: " + text + "\n";
}

/// Draws rules, and hands them and what they mean to visit(text, meanings, rules...).
template <class T, class Visit>
std::string with_rules(mask_source& masks, random_source& random, Visit visit) {
  const any_mask mask = masks.draw(3), other = masks.draw(2);
  const auto meanings = [](const auto&... rules) {
    [[maybe_unused]] const auto meaning = [](const auto& rule) {
      if constexpr (requires { rule.meaning(); }) {
        return rule.meaning();
      } else if constexpr (requires { rule.mask; }) {
        return meaning_of(rule.mask);
      } else {
        return meaning_of(rule);
      }
    };
    return std::vector<oracle::rule>{meaning(rules)...};
  };
  const auto text = [](const auto&... rules) {
    [[maybe_unused]] const auto name = [](const auto& rule) -> std::string {
      if constexpr (requires { rule.mask; }) {
        return rule.mask.text();
      } else {
        return rule.text();
      }
    };
    return (std::string() + ... + (name(rules) + "; "));
  };
  const auto with = [&](const auto&... rules) { return visit(text(rules...), meanings(rules...), rules...); };
  const position_rule<T> first = support::draw_score_rule<T>(random);
  const position_rule<T> second = support::draw_score_rule<T>(random, first.what == position_rule<T>::kind::hide);
  switch (random.integer(0, 11)) {
    case 0:
    case 1:
      return with(mask);
    case 2:
      return with(support::silent_mask{mask});
    case 3:
      return with(support::bounded_mask{mask});
    case 4:
      return with(support::region_mask{mask});
    case 5:
      return with(first);
    case 6:
      return with(first, second);
    case 7:
      return with(mask, first);
    case 8:
      return with(first, support::bounded_mask{mask}, second);
    case 9:
      return with(support::region_mask{mask}, other);
    case 10:
      return with(first, support::silent_mask{mask}, second, other);
    default:
      return with();
  }
}

}  // namespace

TEMPLATE_TEST_CASE("random compositions of everything", "[attention][composition]", float, double) {
  std::string failures;
  int count = 0;
  for (int n = 0; n < support::cases(10'000); ++n) {
    // Each composition has a seed of its own, so that it can be run alone.
    random_source random(1'000'000 * sizeof(TestType) + static_cast<std::uint64_t>(n));
    const problem_sizes s = support::draw_sizes(random, n);
    const random_problem<TestType> problem(s, random, random.uniform(0, 0.4));
    mask_source masks(random, s.sequences ? s.sequences : s.batch, s.heads, (std::max)(s.query_length, s.key_length));
    const spacing layout = support::draw_spacing(random);
    const std::string faults = with_rules<TestType>(
        masks, random, [&](const std::string& text, const std::vector<oracle::rule>& meanings, const auto&... rules) {
          const query_call<TestType> call = [&](const auto& out, const auto& q, const auto& options) {
            hw::scaled_dot_product_attention_into(out, q, problem.k, problem.v, options, rules...);
          };
          std::string found = support::faults_of_call<hw::tensor<TestType, 4>>(
              [&](const auto& out, const auto& options) { call(out, problem.q, options); }, problem.q, problem.k,
              problem.v, problem.options, layout, meanings);
          if (!s.sequences && random.chance(0.5)) {
            found += chunk_faults(call, problem, random);
          }
          if (n % 300 == 2) {
            found += thread_faults(call, problem, random);
          }
          return found.empty() ? found : "rules: " + text + "\n" + found;
        });
    if (!faults.empty() && ++count <= 5) {
      failures += "composition " + std::to_string(n) + ", sizes " + support::text_of_sizes(s) + "," +
                  support::text_of_options(problem.options) + "\n" + faults;
    }
  }
  CAPTURE(count);
  CHECK(failures == "");
}
