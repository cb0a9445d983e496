// SPDX-License-Identifier: MIT
// Part of every test: before main(), and so before any test case, it looks whether the instruction set that
// HEADWAVE_ISA names is the one in use. Without that a test would pass on another instruction set than its name says.
#include <headwave/isa.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

namespace hw = headwave;

constexpr int skipped = 77;  // ctest's SKIP_RETURN_CODE in tests/CMakeLists.txt

bool check_tier() {
  const char* const asked = std::getenv("HEADWAVE_ISA");
  if (!asked) {
    return false;
  }
  const std::string wanted = asked;
  for (int number = 0; number < hw::detail::isa_count; ++number) {
    const hw::isa tier = static_cast<hw::isa>(number);
    if (hw::name(tier) == wanted && !hw::is_available(tier)) {
      std::printf("skipped: this machine has no %s\n", wanted.c_str());
      std::exit(skipped);
    }
  }
  if (hw::name(hw::active_isa()) != wanted) {
    std::printf("HEADWAVE_ISA=%s, but %s is active\n", wanted.c_str(), hw::name(hw::active_isa()));
    std::exit(EXIT_FAILURE);
  }
  return true;
}

[[maybe_unused]] const bool tier_is_checked = check_tier();

}  // namespace
