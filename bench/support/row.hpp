// SPDX-License-Identifier: MIT
#pragma once

#include "../../tests/support/random.hpp"
#include "machine.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

/// \file
/// A row of the result: a problem of the library, timed, and set against what the machine can do at best.

namespace bench {

/// What a problem's time is set against.
enum class limit {
  fma,        ///< multiply-adds in registers
  cold_read,  ///< reading memory that no cache holds; the problem gets so many copies of its data that it does the same
  write,      ///< memset of as many bytes
  copy        ///< memcpy of as many bytes, read and written
};

struct row {
  std::string name;
  limit against;
  double amount;                     ///< useful floating-point operations (limit::fma) or bytes of one call
  std::optional<double> goal = {};   ///< per cent of the limit that we want
  std::optional<double> model = {};  ///< per cent of the limit that the kernel's instructions allow
};

/// Random numbers, about normal with variance 1. They fit a float, so that float and double get the same.
template <class T, std::size_t Rank>
hw::tensor<T, Rank> random_tensor(std::uint64_t seed, const std::size_t (&shape)[Rank], double scale = 1) {
  const auto source = support::random_source(seed).tensor<float>(shape, scale);
  hw::tensor<T, Rank> result(source.extents(), hw::uninitialized);
  std::copy(source.begin(), source.end(), result.begin());
  return result;
}

template <class T>
double largest_difference(std::span<const T> actual, std::span<const double> expected) {
  double largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (std::isnan(difference)) {
      return difference;
    }
    largest = std::max(largest, difference);
  }
  return largest;
}

/// A problem made ready: its inputs, and how far its result is from the same computation in double.
template <class Problem>
struct prepared {
  Problem problem;
  double error = 0;
};

/// The problem that ran last. A benchmark is called several times until its number of iterations is found, and for each
/// repetition; it makes its inputs for the first of these only, and those of the row before are let go.
struct last_prepared {
  std::string name;
  std::shared_ptr<void> data;
};
inline last_prepared last;

template <class T>
double measure(limit against, std::size_t bytes) {
  switch (against) {
    case limit::fma:
      return fma_peak<T>();
    case limit::cold_read:
      return read_bandwidth(cold_bytes());
    case limit::write:
      return write_bandwidth(bytes);
    case limit::copy:
      return copy_bandwidth(bytes);
  }
  return 0;
}

/// Adds a row. Problem<T>(shape, copies) makes the inputs, the same for float and double; run() computes once, going
/// through the copies in turn; result() is a span of what the last run() wrote.
template <template <class> class Problem, class T = float, class Shape>
void add(row r, const Shape& shape) {
  if (std::is_same_v<T, double>) {
    r.name += " double";
  }
  const auto body = [r, shape](benchmark::State& state) {
    const auto bytes = static_cast<std::size_t>(r.amount);
    if (last.name != r.name) {
      last = {};
      const std::size_t copies = r.against == limit::cold_read ? cold_bytes() / bytes + 1 : 1;
      const auto fresh = std::make_shared<prepared<Problem<T>>>(prepared<Problem<T>>{Problem<T>(shape, copies)});
      fresh->problem.run();
      if constexpr (!std::is_same_v<T, double>) {
        Problem<double> reference(shape, 1);
        reference.run();
        fresh->error = largest_difference<T>(fresh->problem.result(), reference.result());
      }
      last = {r.name, fresh};
    }
    auto& ready = *static_cast<prepared<Problem<T>>*>(last.data.get());

    double best = measure<T>(r.against, bytes);
    for (auto iteration : state) {
      ready.problem.run();
      benchmark::ClobberMemory();
    }
    best = std::max(best, measure<T>(r.against, bytes));

    using benchmark::Counter;
    const bool flops = r.against == limit::fma;
    state.counters[flops ? "GFLOP/s" : "GB/s"] = Counter(1e-9 * r.amount, Counter::kIsIterationInvariantRate);
    state.counters[flops ? "peak GFLOP/s" : "bandwidth GB/s"] = best;
    state.counters[flops ? "% peak" : "% bandwidth"] =
        Counter(1e-7 * r.amount / best, Counter::kIsIterationInvariantRate);
    if (r.goal) {
      state.counters["goal"] = *r.goal;
    }
    if (r.model) {
      state.counters["model"] = *r.model;
    }
    if (!std::is_same_v<T, double>) {
      state.counters["max error"] = ready.error;
    }
  };
  benchmark::RegisterBenchmark(r.name.c_str(), body)->UseRealTime();
}

}  // namespace bench
