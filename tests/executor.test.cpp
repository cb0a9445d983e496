// SPDX-License-Identifier: MIT
#include <headwave/executor.hpp>
#include <headwave/headwave.hpp>

#if defined(HEADWAVE_TEST_TBB)
#include <headwave/tbb_executor.hpp>

#include <tbb/global_control.h>
#endif

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/layer.hpp"
#include "support/ordered_executor.hpp"
#include "support/random.hpp"
#include "support/threads.hpp"

// The thread sanitizer has an operator new of its own.
#if !defined(SUPPORT_THREAD_SANITIZER)
#include "support/allocations.hpp"
#endif

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// \file
/// A call has the same bits on any executor, which is asked once for each task and only where it is worth it.

namespace hw = headwave;
using support::layer_parameters;
using support::order;
using support::ordered_executor;
using support::random_source;
using support::sizes;
using support::task_at;
using support::thread_executor;
using support::window;

namespace {

/// The calling thread alone, though it promises more.
struct pretending_executor {
  int threads = 8;
  order by = order::backwards;

  hw::index concurrency() const { return threads; }
  template <class Task>
  void operator()(hw::index count, const Task& task) const {
    for (hw::index n = 0; n < count; ++n) {
      task(task_at(by, n, count));
    }
  }
};

/// Another executor, with a count of how often each task of each call runs.
template <class Executor>
class counting_executor {
 public:
  explicit counting_executor(const Executor& executor) : executor_(executor) {}

  hw::index concurrency() const { return executor_.concurrency(); }
  template <class Task>
  void operator()(hw::index count, const Task& task) const {
    ++calls;
    tasks += count;
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
    ordered_executor{executor_}(count, [&](hw::index i) {
      ++runs[static_cast<std::size_t>(i)];
      task(i);
    });
    once = once && std::all_of(runs.begin(), runs.end(), [](const auto& n) { return n == 1; });
  }

  mutable int calls = 0;
  mutable hw::index tasks = 0;
  mutable bool once = true;

 private:
  const Executor& executor_;
};

/// A call and, as a list of numbers, all that it writes.
template <class T>
struct problem {
  std::string name;
  bool split;  ///< has to be cut into tasks
  std::function<std::vector<T>(const hw::executor_ref&)> run;
};

template <class T>
using problems = std::vector<problem<T>>;

struct attention_sizes {
  std::size_t batch, query_length, key_length, heads, kv_heads, head_dim, value_dim;
};

/// What an attention call looks at.
template <class T>
struct attention_inputs {
  hw::tensor<T, 4> q, k, v;
  hw::tensor<T, 4> bias;
  hw::tensor<bool, 4> visible;
  std::vector<std::int64_t> lengths;
  std::vector<T> slopes, sinks;

  attention_inputs(const attention_sizes& s, random_source& random)
      : q(random.tensor<T>({s.batch, s.query_length, s.heads, s.head_dim})),
        k(random.tensor<T>({s.batch, s.key_length, s.kv_heads, s.head_dim})),
        v(random.tensor<T>({s.batch, s.key_length, s.kv_heads, s.value_dim})),
        bias(random.tensor<T>({1, s.heads, s.query_length, s.key_length})),
        visible(random.mask({s.batch, 1, s.query_length, s.key_length}, 0.8)),
        slopes(s.heads, T(0.03)),
        sinks(s.heads, T(0.5)) {
    for (std::size_t b = 0; b < s.batch; ++b) {
      lengths.push_back(static_cast<std::int64_t>(s.key_length - s.key_length / 7 * b));
    }
  }
};

template <class T>
void append(std::vector<T>& list, const std::vector<T>& values) {
  list.insert(list.end(), values.begin(), values.end());
}

/// Problems without options, with all of them, and with one: a problem for each number of which. All on the same
/// inputs.
template <class T>
void add_attention(problems<T>& list, const std::string& name, const attention_sizes& s, random_source& random,
                   const sizes& which = {0, 1, 2, 3, 4}) {
  const auto in = std::make_shared<const attention_inputs<T>>(s, random);
  const std::pair<const char*, hw::attention_options<T>> options[] = {
      {"causal", {.causal = true}},
      {"bias", {.bias = in->bias}},
      {"mask", {.visible = in->visible}},
      {"window", {.causal = true, .window = {.left = static_cast<std::int64_t>(s.key_length / 2)}}},
      {"key lengths", {.key_lengths = in->lengths}},
      {"plain", {}},
      {"all",
       {.softcap = 4,
        .bias = in->bias,
        .visible = in->visible,
        .causal = true,
        .key_lengths = in->lengths,
        .alibi_slopes = in->slopes,
        .sinks = in->sinks}}};
  sizes numbers = which;
  numbers.insert(numbers.end(), {5, 6});
  for (const std::size_t number : numbers) {
    const auto& [option, given] = options[number];
    list.push_back({name + ", " + option, true, [in, s, chosen = given](const hw::executor_ref& executor) {
                      hw::attention_options<T> with = chosen;
                      window<T, 3> lse({s.batch, s.heads, s.query_length});
                      window<T, 4> out({s.batch, s.query_length, s.heads, s.value_dim});
                      with.lse = lse.view();
                      with.executor = executor;
                      hw::scaled_dot_product_attention_into(out.view(), in->q, in->k, in->v, with);
                      std::vector<T> all = support::flat(out.view());
                      append(all, support::flat(lse.view()));
                      all.push_back(T(out.intact() && lse.intact()));
                      return all;
                    }});
  }
}

template <class T>
problems<T> prefill_problems() {
  random_source random(1);
  problems<T> list;
  add_attention<T>(list, "grouped heads", {2, 70, 300, 4, 2, 24, 24}, random);
  add_attention<T>(list, "many queries of one head", {1, 530, 150, 1, 1, 20, 9}, random, {0});
  add_attention<T>(list, "samples of few queries", {5, 13, 600, 3, 3, 16, 40}, random, {4});
  const auto in = std::make_shared<const attention_inputs<T>>(attention_sizes{1, 60, 300, 4, 2, 64, 24}, random);
  list.push_back(
      {"weights", true, [in](const hw::executor_ref& executor) {
         hw::tensor<T, 4> weights({1, 4, 60, 300});
         hw::tensor<T, 3> mean({1, 60, 300});
         std::vector<T> all = support::flat(hw::scaled_dot_product_attention(
             in->q, in->k, in->v, {.causal = true, .weights = weights, .mean_weights = mean, .executor = executor}));
         append(all, support::flat(weights));
         append(all, support::flat(mean));
         return all;
       }});
  return list;
}

template <class T>
problems<T> decode_problems() {
  random_source random(2);
  problems<T> list;
  for (const std::size_t rows : sizes{1, 2, 3, 4, 5, 6, 7, 8}) {
    // Few heads and many keys, which are split among the tasks.
    const auto name = std::to_string(rows) + (rows == 1 ? " row" : " rows");
    const std::size_t keys = rows == 1 ? 6100 : 3000;
    add_attention<T>(list, "many keys, " + name, {1, rows, keys, 1, 1, 24, 20}, random, {rows % 5});
  }
  add_attention<T>(list, "many keys of a group", {1, 1, 2000, 8, 1, 40, 33}, random, {});
  add_attention<T>(list, "many keys, some samples", {3, 2, 1500, 6, 3, 16, 16}, random);
  add_attention<T>(list, "many heads", {1, 1, 250, 40, 40, 32, 32}, random, {});
  add_attention<T>(list, "many heads in groups", {2, 2, 300, 48, 24, 16, 24}, random, {4});
  return list;
}

template <class T>
problems<T> linear_problems() {
  random_source random(3);
  problems<T> list;
  for (const std::size_t rows : sizes{1, 3, 16, 200}) {
    for (const std::size_t columns : sizes{33, 64, 70, 200, 333, 1000}) {
      const std::size_t in = 4'100'000 / ((2 * rows + 10) * columns) + 1;
      const auto project =
          std::make_shared<const hw::linear<T>>(random.tensor<T>({columns, in}), random.tensor<T>({columns}));
      const auto x = std::make_shared<const hw::tensor<T, 3>>(random.tensor<T>({1, rows, in}));
      const hw::index stride = columns % 4 == 0 ? 1 : -2;
      list.push_back({std::to_string(rows) + " x " + std::to_string(in) + " x " + std::to_string(columns),
                      columns >= 64, [=](const hw::executor_ref& executor) {
                        window<T, 3> out({1, rows, columns}, {.last_stride = stride});
                        project->apply_into(out.view(), *x, executor);
                        std::vector<T> all = support::flat(out.view());
                        all.push_back(T(out.intact()));
                        return all;
                      }});
    }
  }
  return list;
}

template <class T>
problems<T> layer_problems() {
  random_source random(4);
  problems<T> list;
  for (const bool added : {false, true}) {
    const hw::multi_head_attention_options shape{
        .d_model = 96, .heads = 6, .kv_heads = 3, .add_bias_kv = added, .add_zero_attention = added};
    const auto layer = std::make_shared<const hw::multi_head_attention<T>>(layer_parameters<T>(shape, random).layer());
    const auto x = std::make_shared<const hw::tensor<T, 3>>(random.tensor<T>({2, 120, 96}));
    const auto memory = std::make_shared<const hw::tensor<T, 3>>(random.tensor<T>({2, 900, 96}));
    const std::string name = added ? "layer with added keys, " : "layer, ";
    for (const bool causal : {false, true}) {
      list.push_back({name + (causal ? "causal" : "plain"), true, [=](const hw::executor_ref& executor) {
                        return support::flat((*layer)(*x, {.causal = causal, .executor = executor}));
                      }});
    }
    list.push_back({name + "two words", true, [=](const hw::executor_ref& executor) {
                      return support::flat(
                          (*layer)(x->view().slice(1, 0, 2), *memory, *memory, {.executor = executor}));
                    }});
  }
  return list;
}

template <class T>
problems<T> rotary_problems() {
  random_source random(5);
  problems<T> list;
  const auto x = std::make_shared<const hw::tensor<T, 4>>(random.tensor<T>({3, 181, 8, 100}));
  for (const hw::channel_layout layout : {hw::channel_layout::interleaved, hw::channel_layout::halves}) {
    const auto rope =
        std::make_shared<const hw::rotary_embedding>(hw::rotary_options{.rotary_dim = 96, .layout = layout});
    for (const bool per_sample : {false, true}) {
      const std::string name = layout == hw::channel_layout::halves ? "rotation in halves" : "rotation of neighbours";
      list.push_back({name + (per_sample ? ", starts" : ""), true, [=](const hw::executor_ref& executor) {
                        window<T, 4> q(*x, {.gap = 3});
                        const std::vector<std::int64_t> starts = {5, 1000, -7};
                        rope->apply(q.view(), per_sample ? hw::rotary_positions::starts(starts) : 77, executor);
                        std::vector<T> all = support::flat(q.view());
                        all.push_back(T(q.intact()));
                        return all;
                      }});
    }
  }
  return list;
}

template <class T>
const problems<T>& all_problems() {
  static const problems<T> list = [] {
    problems<T> all;
    for (problems<T>& some : std::vector<problems<T>>{prefill_problems<T>(), decode_problems<T>(), linear_problems<T>(),
                                                      layer_problems<T>(), rotary_problems<T>()}) {
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return list;
}

/// What the calling thread alone gives for a list of problems.
template <class T>
std::vector<std::vector<T>> results_of(const problems<T>& list) {
  std::vector<std::vector<T>> results;
  for (const problem<T>& p : list) {
    results.push_back(p.run({}));
  }
  return results;
}
template <class T>
const std::vector<std::vector<T>>& serial_results() {
  static const std::vector<std::vector<T>> results = results_of(all_problems<T>());
  return results;
}

template <class T>
std::string differences(const std::vector<T>& a, const std::vector<T>& b) {
  return support::same_bits(hw::tensor_view<const T, 1>(a, {a.size()}), hw::tensor_view<const T, 1>(b, {b.size()}));
}

/// Runs all problems on an executor. Empty if all is well.
template <class T, class Executor>
std::string faults_of(const Executor& executor) {
  std::string faults;
  const auto& list = all_problems<T>();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const counting_executor<Executor> counting(executor);
    const std::string fault = differences(list[i].run(counting), serial_results<T>()[i]);
    const auto note = [&](const std::string& text) { faults += list[i].name + ": " + text + "\n"; };
    if (!fault.empty()) {
      note(fault);
    }
    if (!counting.once) {
      note("a task did not run once");
    }
    if (executor.concurrency() == 1 ? counting.calls != 0 : list[i].split && counting.tasks < 2) {
      note("was given " + std::to_string(counting.tasks) + " tasks");
    }
  }
  return faults.substr(0, 2000);
}

constexpr int thread_counts[] = {1, 2, 3, 8};

/// A call too large to stay on the calling thread, as a function of its executor.
template <class T>
const problem<T>& large_problem(const std::string& name) {
  const auto& list = all_problems<T>();
  return *std::find_if(list.begin(), list.end(), [&](const problem<T>& p) { return p.name == name; });
}
template <class T>
std::vector<const problem<T>*> a_problem_of_each_kind() {
  return {&large_problem<T>("grouped heads, all"), &large_problem<T>("many keys, 3 rows, all"),
          &large_problem<T>("many heads, plain"), &large_problem<T>("16 x 489 x 200"),
          &large_problem<T>("layer with added keys, causal")};
}

}  // namespace

TEMPLATE_TEST_CASE("serial_executor: the same bits", "[executor]", float, double) {
  CHECK(faults_of<TestType>(hw::serial_executor{}) == "");
}

TEMPLATE_TEST_CASE("threads: the same bits", "[executor]", float, double) {
  for (const int threads : thread_counts) {
    CAPTURE(threads);
    CHECK(faults_of<TestType>(thread_executor{threads, threads == 2 ? order::backwards : order::scrambled}) == "");
  }
}

TEMPLATE_TEST_CASE("one thread, tasks in any order: the same bits", "[executor]", float, double) {
  for (const order by : {order::backwards, order::scrambled}) {
    CAPTURE(by == order::backwards);
    CHECK(faults_of<TestType>(pretending_executor{8, by}) == "");
  }
}

#if defined(_OPENMP)
TEMPLATE_TEST_CASE("openmp_executor: the same bits", "[executor]", float, double) {
  for (const int threads : thread_counts) {
    CAPTURE(threads);
    CHECK(hw::openmp_executor(threads).concurrency() == threads);
    CHECK(faults_of<TestType>(hw::openmp_executor(threads)) == "");
  }
  CHECK(hw::openmp_executor(0).concurrency() == 1);
}
#endif

#if defined(HEADWAVE_TEST_TBB)
TEMPLATE_TEST_CASE("tbb_executor: the same bits", "[executor]", float, double) {
  const tbb::global_control threads_on_any_machine(tbb::global_control::max_allowed_parallelism, 8);
  for (const int threads : thread_counts) {
    CAPTURE(threads);
    CHECK(hw::tbb_executor(threads).concurrency() == threads);
    CHECK(faults_of<TestType>(hw::tbb_executor(threads)) == "");
  }
  CHECK(hw::tbb_executor(0).concurrency() == 1);
}
#endif

TEMPLATE_TEST_CASE("forms of executors", "[executor]", float, double) {
  using T = TestType;
  random_source random(5);
  const attention_inputs<T> in({1, 60, 300, 4, 2, 64, 24}, random);
  const auto expected = hw::scaled_dot_product_attention(in.q, in.k, in.v);
  const hw::linear<T> project(random.tensor<T>({200, 300}), {});
  const auto x = random.tensor<T>({1, 100, 300});
  const auto projected = project(x);

  // A temporary in the options' braces.
  CHECK(support::same_bits(hw::scaled_dot_product_attention(in.q, in.k, in.v, {.executor = thread_executor{3}}),
                           expected) == "");
  CHECK(support::same_bits(project(x, thread_executor{3}), projected) == "");

  // A lambda, which has no concurrency().
  int calls = 0;
  hw::index tasks = 0;
  const auto backwards = [&](hw::index count, hw::executor_task task) {
    ++calls;
    tasks += count;
    for (hw::index i = count; i-- > 0;) {
      task(i);
    }
  };
  CHECK(hw::executor_ref(backwards).concurrency() == 8);
  CHECK(support::same_bits(hw::scaled_dot_product_attention(in.q, in.k, in.v, {.executor = backwards}), expected) ==
        "");
  CHECK(calls == 1);
  CHECK(tasks > 1);
  CHECK(support::same_bits(project(x, backwards), projected) == "");
  CHECK(calls == 2);

  // An executor that takes tasks by value, and a reference to another reference.
  const hw::executor_ref reference(backwards);
  const hw::executor_ref copy = reference;
  CHECK(support::same_bits(project(x, copy), projected) == "");
  CHECK(calls == 3);
  CHECK(hw::executor_ref().concurrency() == 1);
  CHECK(hw::executor_ref(hw::serial_executor{}).concurrency() == 1);
}

TEST_CASE("executors by themselves run each task once", "[executor]") {
#if defined(HEADWAVE_TEST_TBB)
  const tbb::global_control threads_on_any_machine(tbb::global_control::max_allowed_parallelism, 8);
#endif
  const auto runs_of = [](const hw::executor_ref& executor, hw::index count) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
    executor(count,
             hw::executor_task([](void* all, hw::index i) { ++static_cast<std::atomic<int>*>(all)[i]; }, runs.data()));
    return std::vector<int>(runs.begin(), runs.end());
  };
  for (const hw::index count : {0, 1, 2, 100}) {
    const std::vector<int> once(static_cast<std::size_t>(count), 1);
    CHECK(runs_of({}, count) == once);
    CHECK(runs_of(hw::serial_executor{}, count) == once);
    CHECK(runs_of(thread_executor{3}, count) == once);
#if defined(_OPENMP)
    CHECK(runs_of(ordered_executor(hw::openmp_executor(3)), count) == once);
#endif
#if defined(HEADWAVE_TEST_TBB)
    CHECK(runs_of(ordered_executor(hw::tbb_executor(3)), count) == once);
#endif
  }
}

TEMPLATE_TEST_CASE("small calls stay on the calling thread", "[executor]", float, double) {
  using T = TestType;
  int calls = 0;
  const auto counting = [&](hw::index, hw::executor_task) { ++calls; };
  random_source random(6);
  for (const std::size_t rows : sizes{1, 3, 20}) {
    const attention_inputs<T> in({1, rows, 50, 4, 2, 16, 16}, random);
    const hw::attention_options<T> options{.executor = counting};
    CHECK(support::same_bits(hw::scaled_dot_product_attention(in.q, in.k, in.v, options),
                             hw::scaled_dot_product_attention(in.q, in.k, in.v)) == "");
    const hw::linear<T> project(random.tensor<T>({70, 40}), {});
    const auto x = random.tensor<T>({1, rows, 40});
    CHECK(support::same_bits(project(x, counting), project(x)) == "");
    const auto layer = layer_parameters<T>({.d_model = 24, .heads = 3}, random).layer();
    const auto words = random.tensor<T>({2, rows, 24});
    CHECK(support::same_bits(layer(words, options), layer(words)) == "");
  }
  // Nor is there anything to do for a call without rows or keys.
  const hw::tensor<T, 4> nothing({1, 0, 4, 16}), no_keys({1, 0, 2, 16});
  const auto many = random.tensor<T>({1, 9000, 4, 16});
  CHECK(hw::scaled_dot_product_attention(nothing, many, many, {.executor = counting}).empty());
  const auto out = hw::scaled_dot_product_attention(many, no_keys, no_keys, {.executor = counting});
  CHECK(std::all_of(out.begin(), out.end(), [](T y) { return y == 0; }));
  CHECK(calls == 0);
}

#if !defined(SUPPORT_THREAD_SANITIZER)

namespace {

/// Threads that get no memory while they run the tasks of odd numbers, or any.
struct starving_executor {
  bool all;

  hw::index concurrency() const { return 3; }
  template <class Task>
  void operator()(hw::index count, const Task& task) const {
    for (hw::index i = 0; i < count; ++i) {
      // A new thread, which has no scratch memory yet.
      std::thread([&] {
        support::allocations_refused = all || i % 2 == 1;
        task(i);
        support::allocations_refused = false;
      }).join();
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("memory that a task does not get is the caller's bad_alloc", "[executor]", float, double) {
  for (const problem<TestType>* p : a_problem_of_each_kind<TestType>()) {
    CAPTURE(p->name);
    const auto expected = p->run({});
    for (const bool all : {true, false}) {
      const starving_executor starving{all};
      const counting_executor<starving_executor> counting(starving);
      CHECK_THROWS_AS(p->run(counting), std::bad_alloc);
      // The other tasks have run all the same.
      CHECK(counting.once);
    }
    // And the next call is as good as any.
    CHECK(differences(p->run({}), expected) == "");
    CHECK(differences(p->run(thread_executor{3}), expected) == "");
  }
}

#endif

namespace {

/// Runs, between the tasks of a call and on the same thread, another call from its beginning to its end.
template <class T>
struct nesting_executor {
  const problem<T>& inner;
  const std::vector<T>& expected;
  std::string& faults;

  hw::index concurrency() const { return 3; }
  template <class Task>
  void operator()(hw::index count, const Task& task) const {
    for (hw::index i = count; i-- > 0;) {
      // A whole call for each task would take long.
      if (i % 5 == 0) {
        faults += differences(inner.run(pretending_executor{}), expected);
      }
      task(i);
    }
    faults += differences(inner.run({}), expected);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("calls between the tasks of a call", "[executor]", float, double) {
  for (const problem<TestType>* outer : a_problem_of_each_kind<TestType>()) {
    const auto expected = outer->run({});
    for (const problem<TestType>* inner : a_problem_of_each_kind<TestType>()) {
      const auto inner_expected = inner->run({});
      std::string faults;
      const nesting_executor<TestType> nesting{*inner, inner_expected, faults};
      CAPTURE(outer->name, inner->name);
      CHECK(differences(outer->run(nesting), expected) == "");
      CHECK(faults == "");
    }
  }
}

namespace {

/// Calls within the tasks of an executor, which get the same executor. Empty if all is well.
template <class T, class Executor>
std::string nested_faults(const Executor& executor) {
  const auto list = a_problem_of_each_kind<T>();
  std::vector<std::vector<T>> expected;
  for (const problem<T>* p : list) {
    expected.push_back(p->run({}));
  }
  std::vector<std::string> faults(2 * list.size());
  executor(static_cast<hw::index>(faults.size()), [&](hw::index i) {
    const auto n = static_cast<std::size_t>(i);
    faults[n] = differences(list[n % list.size()]->run(executor), expected[n % list.size()]);
  });
  std::string text;
  for (const std::string& fault : faults) {
    text += fault;
  }
  return text;
}

}  // namespace

TEMPLATE_TEST_CASE("calls within the tasks of an executor", "[executor]", float, double) {
  CHECK(nested_faults<TestType>(thread_executor{3}) == "");
  CHECK(nested_faults<TestType>(pretending_executor{}) == "");
#if defined(_OPENMP)
  CHECK(nested_faults<TestType>(ordered_executor(hw::openmp_executor(3))) == "");
#endif
#if defined(HEADWAVE_TEST_TBB)
  const tbb::global_control threads_on_any_machine(tbb::global_control::max_allowed_parallelism, 8);
  CHECK(nested_faults<TestType>(ordered_executor(hw::tbb_executor(3))) == "");
#endif
}
