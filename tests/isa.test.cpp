// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "support/catch.hpp"

namespace hw = headwave;

namespace {

// CPUID and XCR0 of a machine with everything that the AVX2 tier needs.
hw::detail::cpu_words complete_machine() {
  hw::detail::cpu_words cpu;
  cpu.leaf1_ecx = (1u << 12) | (1u << 27) | (1u << 28) | (1u << 29);  // FMA, OSXSAVE, AVX, F16C
  cpu.leaf7_ebx = 1u << 5;                                            // AVX2
  cpu.xcr0 = 0x7;                                                     // x87, XMM and YMM state
  return cpu;
}

bool runs_avx2(const hw::detail::cpu_words& cpu) {
  return hw::detail::supports(cpu, hw::isa::avx2);
}

}  // namespace

TEST_CASE("a tier needs every feature it uses and an operating system that saves its registers", "[B34]") {
  CHECK(runs_avx2(complete_machine()));

  SECTION("AVX-512 state or features in addition change nothing") {
    auto cpu = complete_machine();
    cpu.leaf7_ebx |= 1u << 16;
    CHECK(runs_avx2(cpu));
    cpu.xcr0 |= 0xe0;
    CHECK(runs_avx2(cpu));
  }
  SECTION("AVX2 without FMA, without F16C, without AVX, without OSXSAVE") {
    for (const unsigned bit : {12u, 27u, 28u, 29u}) {
      auto cpu = complete_machine();
      cpu.leaf1_ecx &= ~(1u << bit);
      CHECK_FALSE(runs_avx2(cpu));
    }
  }
  SECTION("FMA without AVX2") {
    auto cpu = complete_machine();
    cpu.leaf7_ebx = ~(1u << 5);
    CHECK_FALSE(runs_avx2(cpu));
  }
  SECTION("an operating system that saves no YMM registers") {
    for (const std::uint64_t xcr0 : {0x0u, 0x1u, 0x3u, 0x5u, 0xe3u}) {
      auto cpu = complete_machine();
      cpu.xcr0 = xcr0;
      CHECK_FALSE(runs_avx2(cpu));
    }
  }
  SECTION("the scalar tier needs nothing") {
    CHECK(hw::detail::supports({}, hw::isa::scalar));
  }
}

TEST_CASE("the tier in use is the one asked for, else the widest", "[B34]") {
  const char* const asked = std::getenv("HEADWAVE_ISA");
  const bool asks_for_scalar = asked && std::string(asked) == "scalar";
  const bool wide = hw::is_available(hw::isa::avx2) && !asks_for_scalar;
  CHECK(hw::active_isa() == (wide ? hw::isa::avx2 : hw::isa::scalar));
  CHECK(hw::is_available(hw::isa::scalar));
  CHECK(std::string(hw::name(hw::isa::scalar)) == "scalar");
  CHECK(std::string(hw::name(hw::isa::avx2)) == "avx2");
}

TEST_CASE("set_isa changes the tier, or says that the machine does not have it") {
  const hw::isa before = hw::active_isa();
  hw::set_isa(hw::isa::scalar);
  CHECK(hw::active_isa() == hw::isa::scalar);
  if (hw::is_available(hw::isa::avx2)) {
    hw::set_isa(hw::isa::avx2);
    CHECK(hw::active_isa() == hw::isa::avx2);
  } else {
    CHECK_THROWS_AS(hw::set_isa(hw::isa::avx2), hw::shape_error);
  }
  hw::set_isa(before);
}

TEST_CASE("every tier gives the same encoding up to its last bit") {
  const hw::isa before = hw::active_isa();
  hw::set_isa(hw::isa::scalar);
  const auto reference = hw::sinusoidal_encoding<float>(100, 37);
  hw::set_isa(before);
  const auto encoding = hw::sinusoidal_encoding<float>(100, 37);
  double worst = 0;
  for (std::size_t i = 0; i < encoding.size(); ++i) {
    worst =
        std::max(worst, std::abs(static_cast<double>(encoding.data()[i]) - static_cast<double>(reference.data()[i])));
  }
  CHECK(worst <= 6e-8);
}
