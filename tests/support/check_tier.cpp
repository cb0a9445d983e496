// SPDX-License-Identifier: MIT
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <headwave/isa.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr int skipped = 77;  // ctest's SKIP_RETURN_CODE in tests/CMakeLists.txt

// Without this check a test would pass on another instruction set than its name says.
int check_tier(const std::string& wanted) {
  namespace hw = headwave;
  for (int number = 0; number < hw::detail::isa_count; ++number) {
    const hw::isa tier = static_cast<hw::isa>(number);
    if (hw::name(tier) == wanted && !hw::is_available(tier)) {
      std::printf("skipped: this machine has no %s\n", wanted.c_str());
      return skipped;
    }
  }
  if (hw::name(hw::active_isa()) != wanted) {
    std::printf("HEADWAVE_ISA=%s, but %s is active\n", wanted.c_str(), hw::name(hw::active_isa()));
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* wanted = std::getenv("HEADWAVE_ISA")) {
    if (const int status = check_tier(wanted); status != EXIT_SUCCESS) {
      return status;
    }
  }
  return Catch::Session().run(argc, argv);
}
