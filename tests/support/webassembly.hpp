// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the tests use of the standard library and emscripten 3.1 does not have yet; included before all else by the
/// option -include. headwave itself needs none of it.

#include <algorithm>
#include <bit>

namespace std {

#if !defined(__cpp_lib_bit_cast)
template <class To, class From>
constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}
#endif

#if !defined(__cpp_lib_ranges)
namespace ranges {
template <class A, class B>
constexpr bool equal(const A& a, const B& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}
}  // namespace ranges
#endif

}  // namespace std
