// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/executor.hpp>

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

/// \file
/// An executor on oneAPI Threading Building Blocks (Debian: libtbb-dev; link with -ltbb). headwave.hpp does not include
/// it.

namespace headwave {

/// Runs tasks in an arena of at most so many threads of TBB's pool.
class tbb_executor {
 public:
  HEADWAVE_INLINE explicit tbb_executor(int threads) : arena_(threads < 1 ? 1 : threads) {}
  HEADWAVE_INLINE index concurrency() const { return arena_.max_concurrency(); }
  template <class Task>
  HEADWAVE_INLINE void operator()(index count, const Task& task) const {
    arena_.execute([&] { tbb::parallel_for(index(0), count, [&](index i) { task(i); }, tbb::simple_partitioner()); });
  }

 private:
  mutable tbb::task_arena arena_;
};

}  // namespace headwave
