// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <exception>

/// \file
/// The C interface by which compare.py calls a C++ library: a problem is made once, run many times, and released.

namespace compare {

/// A computation that is ready to run: its inputs, its packed weights and the memory of its result.
class problem {
 public:
  problem() = default;
  problem(const problem&) = delete;
  problem& operator=(const problem&) = delete;
  virtual ~problem() = default;

  virtual void run() = 0;
};

/// What make() returns, or null if it throws: Python sees no exceptions.
template <class Make>
problem* made(const Make& make) noexcept {
  try {
    return make();
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace compare

extern "C" {

[[gnu::used]] inline void run_problem(compare::problem* p) {
  p->run();
}
[[gnu::used]] inline void release_problem(compare::problem* p) {
  delete p;
}

}  // extern "C"
