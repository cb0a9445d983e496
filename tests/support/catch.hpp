// SPDX-License-Identifier: MIT
#pragma once

// Catch2 3, or Debian's 2.13: include this, and use only what both have (no Approx, no SKIP).

// An unexpected exception fails its test case, not the one assertion; a try block for each is much to compile.
#define CATCH_CONFIG_FAST_COMPILE

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_all.hpp>
#else
#include <catch2/catch.hpp>

namespace Catch::Matchers {
// The name that Catch2 3 gives to Contains for strings.
inline StdString::ContainsMatcher ContainsSubstring(const std::string& text) {
  return Contains(text);
}
}  // namespace Catch::Matchers
#endif
