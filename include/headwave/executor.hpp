// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/config.hpp>

#include <concepts>
#include <new>
#include <type_traits>

#if HEADWAVE_USE_EXCEPTIONS
#include <atomic>
#endif

/// \file
/// Who runs the parts of a call. headwave starts no threads: a call is serial unless it is given an executor, and its
/// results do not depend on which.
///
/// An executor is anything that can be called as executor(count, task), with count a headwave::index, and then calls
/// task(i) once for each i = 0 .. count-1, on any threads and in any order, and returns when all of them have returned.
/// task is a small object that may be copied; it does not throw. An executor may tell by a member concurrency() how
/// many tasks it runs at a time. Small calls run on the calling thread alone.

namespace headwave {

/// What an executor is given to call.
class executor_task {
 public:
  HEADWAVE_INLINE executor_task(void (*call)(void*, index), void* context) : call_(call), context_(context) {}
  HEADWAVE_INLINE void operator()(index i) const { call_(context_, i); }

 private:
  void (*call_)(void*, index);
  void* context_;
};

/// An executor, as headwave calls it.
template <class Executor>
concept executor = std::invocable<const Executor&, index, executor_task>;

/// Runs one task after the other on the calling thread.
struct serial_executor {
  HEADWAVE_INLINE index concurrency() const { return 1; }
  template <class Task>
  HEADWAVE_INLINE void operator()(index count, const Task& task) const {
    for (index i = 0; i < count; ++i) {
      task(i);
    }
  }
};

#if defined(_OPENMP)
/// Runs tasks on a team of at most so many OpenMP threads. Inside a parallel region it is serial, unless nested
/// parallelism is on. Exists where the compiler is told to use OpenMP (-fopenmp).
class openmp_executor {
 public:
  HEADWAVE_INLINE explicit openmp_executor(int threads) : threads_(threads < 1 ? 1 : threads) {}
  HEADWAVE_INLINE index concurrency() const { return threads_; }
  template <class Task>
  HEADWAVE_INLINE void operator()(index count, const Task& task) const {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads_)
    for (index i = 0; i < count; ++i) {
      task(i);
    }
  }

 private:
  int threads_;
};
#endif

namespace detail::inline HEADWAVE_ABI {

template <class Executor>
void run_on(const void* executor, index count, executor_task task) {
  (*static_cast<const Executor*>(executor))(count, task);
}

template <class Executor>
index concurrency_of([[maybe_unused]] const Executor& executor) {
  if constexpr (requires { executor.concurrency(); }) {
    return static_cast<index>(executor.concurrency());
  } else {
    return 8;
  }
}

}  // namespace detail::inline HEADWAVE_ABI

/// A reference to an executor, which has to outlive it; by default none, which is serial.
class executor_ref {
 public:
  HEADWAVE_INLINE executor_ref() = default;
  template <executor Executor>
    requires(!std::is_same_v<Executor, executor_ref>)
  HEADWAVE_INLINE executor_ref(const Executor& executor)
      : object_(&executor), run_(detail::run_on<Executor>), concurrency_(detail::concurrency_of(executor)) {}

  /// How many tasks may run at a time.
  HEADWAVE_INLINE index concurrency() const { return concurrency_; }
  HEADWAVE_INLINE void operator()(index count, executor_task task) const {
    if (run_) {
      run_(object_, count, task);
    } else {
      serial_executor{}(count, task);
    }
  }

 private:
  const void* object_ = nullptr;
  void (*run_)(const void*, index, executor_task) = nullptr;
  index concurrency_ = 1;
};

namespace detail {

/// Below so many operations a call is over before other threads have woken up.
inline constexpr double parallel_cost = 4e6;

/// Into about how many tasks a call of so many operations is cut: some for each thread, so that an uneven load evens
/// out.
HEADWAVE_INLINE index wanted_tasks(const executor_ref& executor, double cost) {
  return executor.concurrency() > 1 && cost >= parallel_cost ? 4 * executor.concurrency() : 1;
}

}  // namespace detail

namespace detail::inline HEADWAVE_ABI {

/// Calls task(i) for i = 0 .. count-1, on the calling thread alone unless several tasks are wanted. Memory that a task
/// did not get is reported on the calling thread.
template <class Task>
void run_tasks(const executor_ref& executor, index wanted, index count, const Task& task) {
  if (count <= 1 || wanted <= 1) {
    serial_executor{}(count, task);
    return;
  }
#if HEADWAVE_USE_EXCEPTIONS
  struct guarded {
    const Task& task;
    std::atomic<bool> failed{false};
  } shared{task};
  executor(count, executor_task(
                      [](void* context, index i) {
                        auto& guard = *static_cast<guarded*>(context);
                        try {
                          guard.task(i);
                        } catch (const std::bad_alloc&) {
                          guard.failed.store(true, std::memory_order_relaxed);
                        }
                      },
                      &shared));
  if (shared.failed.load(std::memory_order_relaxed)) {
    throw std::bad_alloc();
  }
#else
  executor(count, executor_task([](void* context, index i) { (*static_cast<const Task*>(context))(i); },
                                const_cast<Task*>(&task)));
#endif
}

/// Calls task(first, last) for ranges that make up 0 .. count-1: one for each task wanted, of about equal length.
template <class Task>
void run_ranges(const executor_ref& executor, index wanted, index count, const Task& task) {
  const index tasks = wanted < count ? wanted : count;
  run_tasks(executor, wanted, tasks, [&task, count, tasks](index i) {
    // In two steps: count * i may not fit.
    const index each = count / tasks, left = count % tasks;
    const index first = each * i + (i < left ? i : left);
    task(first, first + each + (i < left ? 1 : 0));
  });
}

}  // namespace detail::inline HEADWAVE_ABI
}  // namespace headwave
