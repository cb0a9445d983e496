// SPDX-License-Identifier: MIT
// One program of files with all tiers and with one only: each uses its own, and equal tiers give equal bits.
#include "static_isa.hpp"

#if defined(STATIC_ISA_SCALAR)
result_of_file with_scalar_only() {
  return attend_here(headwave::isa::avx2);
}
#elif defined(STATIC_ISA_AVX2)
result_of_file with_avx2_only() {
  return attend_here(headwave::isa::scalar);
}
#else

#include <cstdio>

result_of_file with_all_tiers(headwave::isa tier) {
  headwave::set_isa(tier);
  return attend_here(headwave::isa::scalar);
}

int main() {
  const auto check = [](bool holds, const char* what) {
    if (!holds) {
      std::printf("does not hold: %s\n", what);
    }
    return holds;
  };
  using headwave::isa;
  const result_of_file all = with_all_tiers(isa::scalar), scalar = with_scalar_only();
  bool right = check(all.tier == isa::scalar && all.others_available, "a file with all tiers uses the one that is set");
  right &=
      check(scalar.tier == isa::scalar && !scalar.others_available, "a file for any x86-64 has the scalar tier only");
  right &= check(scalar.out == all.out, "both scalar tiers give the same");
  if (headwave::is_available(isa::avx2)) {
    const result_of_file avx2 = with_avx2_only();
    right &= check(avx2.tier == isa::avx2 && !avx2.others_available, "a file for AVX2 has that tier only");
    right &= check(avx2.out == with_all_tiers(isa::avx2).out, "both AVX2 tiers give the same");
    right &= check(avx2.out != scalar.out, "the tiers differ");
  }
  return right ? 0 : 1;
}
#endif
