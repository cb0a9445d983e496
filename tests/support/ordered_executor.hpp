// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/executor.hpp>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define SUPPORT_THREAD_SANITIZER
#endif
#endif

namespace support {

/// Another executor, about which the thread sanitizer is told what every executor promises: tasks begin after the call
/// and end before it returns. It does not see how OpenMP and TBB keep that, since they are compiled without it; what
/// of them is in headers, and this file, are left out by thread_sanitizer.ignored.
template <class Executor>
class ordered_executor {
 public:
  explicit ordered_executor(const Executor& executor) : executor_(executor) {}

  headwave::index concurrency() const { return executor_.concurrency(); }
  template <class Task>
  void operator()(headwave::index count, const Task& task) const {
#if defined(SUPPORT_THREAD_SANITIZER)
    char begin = 0, end = 0;
    __tsan_release(&begin);
    executor_(count, [&](headwave::index i) {
      __tsan_acquire(&begin);
      task(i);
      __tsan_release(&end);
    });
    __tsan_acquire(&end);
#else
    executor_(count, task);
#endif
  }

 private:
  const Executor& executor_;
};

}  // namespace support
