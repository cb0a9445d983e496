// SPDX-License-Identifier: MIT
#include <headwave/headwave.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>

#include "support/catch.hpp"

namespace hw = headwave;

namespace {

using hw::detail::cpu_words;
using hw::detail::supports;

// CPUID and XCR0 of a machine with everything that a tier needs, and nothing else.
cpu_words avx2_machine() {
  cpu_words cpu;
  cpu.leaf1_ecx = (1u << 12) | (1u << 27) | (1u << 28) | (1u << 29);  // FMA, OSXSAVE, AVX, F16C
  cpu.leaf7_ebx = 1u << 5;                                            // AVX2
  cpu.xcr0 = 0x6;                                                     // XMM and YMM state
  return cpu;
}
cpu_words avx512_machine() {
  cpu_words cpu = avx2_machine();
  cpu.leaf7_ebx |= (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);  // AVX-512 F, DQ, BW, VL
  cpu.xcr0 |= 0xe0;                                                    // opmask, upper halves of ZMM0-15, ZMM16-31
  return cpu;
}

// The bits of a machine whose loss, one at a time, leaves it without a tier.
cpu_words needed_bits(const cpu_words& machine, hw::isa tier) {
  cpu_words needed;
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t one = std::uint64_t{1} << bit;
    const auto low = static_cast<std::uint32_t>(one);
    cpu_words cpu = machine;
    cpu.leaf1_ecx &= ~low;
    needed.leaf1_ecx |= supports(cpu, tier) ? 0 : low;
    cpu = machine;
    cpu.leaf7_ebx &= ~low;
    needed.leaf7_ebx |= supports(cpu, tier) ? 0 : low;
    cpu = machine;
    cpu.xcr0 &= ~one;
    needed.xcr0 |= supports(cpu, tier) ? 0 : one;
  }
  return needed;
}

constexpr hw::isa all_tiers[] = {hw::isa::scalar, hw::isa::avx2, hw::isa::avx512, hw::isa::neon};

}  // namespace

TEST_CASE("a tier needs every feature it uses and an operating system that saves its registers", "[B34]") {
  cpu_words everything;
  everything.leaf1_ecx = everything.leaf7_ebx = ~0u;
  everything.xcr0 = ~std::uint64_t{0};

  SECTION("each bit alone, on a machine that has everything") {
    for (const hw::isa tier : {hw::isa::avx2, hw::isa::avx512}) {
      const cpu_words minimum = tier == hw::isa::avx2 ? avx2_machine() : avx512_machine();
      CAPTURE(hw::name(tier));
      CHECK(supports(everything, tier));
      CHECK(supports(minimum, tier));
      const cpu_words needed = needed_bits(everything, tier);
      CHECK(needed.leaf1_ecx == minimum.leaf1_ecx);
      CHECK(needed.leaf7_ebx == minimum.leaf7_ebx);
      CHECK(needed.xcr0 == minimum.xcr0);
    }
  }
  SECTION("an AVX2 machine has no AVX-512, with its state saved or not") {
    auto cpu = avx2_machine();
    CHECK_FALSE(supports(cpu, hw::isa::avx512));
    cpu.xcr0 |= 0xe0;
    CHECK_FALSE(supports(cpu, hw::isa::avx512));
  }
  SECTION("an operating system that saves YMM registers only leaves AVX2 of an AVX-512 machine") {
    auto cpu = avx512_machine();
    for (const std::uint64_t xcr0 : {0x7u, 0x27u, 0x47u, 0x67u, 0xc7u}) {
      cpu.xcr0 = xcr0;
      CHECK(supports(cpu, hw::isa::avx2));
      CHECK_FALSE(supports(cpu, hw::isa::avx512));
    }
  }
  SECTION("the scalar tier needs nothing") {
    CHECK(supports({}, hw::isa::scalar));
  }
  SECTION("NEON is a matter of the architecture, not of these words") {
#if defined(__aarch64__)
    CHECK(supports({}, hw::isa::neon));
    CHECK(hw::is_available(hw::isa::neon));
#else
    CHECK_FALSE(supports(everything, hw::isa::neon));
#endif
  }
}

TEST_CASE("the tier in use is the one asked for, else the widest", "[B34]") {
  CHECK(hw::is_available(hw::isa::scalar));
  const char* const asked = std::getenv("HEADWAVE_ISA");
  hw::isa expected = hw::isa::scalar;
  for (const hw::isa tier : all_tiers) {
    const bool is_asked_for = asked && std::string(asked) == hw::name(tier);
    if (hw::is_available(tier)) {
      expected = tier;
      if (is_asked_for) {
        break;
      }
    }
  }
  CHECK(hw::active_isa() == expected);
  CHECK(std::size(all_tiers) == hw::detail::isa_count);
  std::string names;
  for (const hw::isa tier : all_tiers) {
    names += hw::name(tier) + std::string(" ");
  }
  CHECK(names == "scalar avx2 avx512 neon ");
}

TEST_CASE("set_isa changes the tier, or says that the machine does not have it") {
  const hw::isa before = hw::active_isa();
  for (const hw::isa tier : all_tiers) {
    CAPTURE(hw::name(tier));
    if (hw::is_available(tier)) {
      hw::set_isa(tier);
      CHECK(hw::active_isa() == tier);
    } else {
      CHECK_THROWS_AS(hw::set_isa(tier), hw::shape_error);
    }
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
