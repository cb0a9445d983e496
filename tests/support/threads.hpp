// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/executor.hpp>

#include <atomic>
#include <thread>
#include <vector>

namespace support {

namespace hw = headwave;

enum class order { forwards, backwards, scrambled };

/// The number of the n-th task in an order.
inline hw::index task_at(order by, hw::index n, hw::index count) {
  if (by == order::backwards) {
    return count - 1 - n;
  }
  constexpr hw::index step = 7919;  // a prime, so that every number comes up once
  return by == order::scrambled && count % step != 0 ? (n * step + count / 3) % count : n;
}

/// Threads of its own, new ones for each call. The calling thread only waits.
struct thread_executor {
  int threads = 2;
  order by = order::scrambled;

  hw::index concurrency() const { return threads; }
  template <class Task>
  void operator()(hw::index count, const Task& task) const {
    std::atomic<hw::index> next{0};
    const auto work = [&] {
      for (hw::index n = next++; n < count; n = next++) {
        task(task_at(by, n, count));
      }
    };
    std::vector<std::thread> team;
    for (int i = 0; i < threads; ++i) {
      team.emplace_back(work);
    }
    for (std::thread& thread : team) {
      thread.join();
    }
  }
};

}  // namespace support
