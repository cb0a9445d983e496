// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/target.hpp>
#include <headwave/detail/tiers.hpp>
#include <headwave/isa.hpp>

// The switch between public functions and kernels: HEADWAVE_DISPATCH(kernel<T>(arguments)) runs the kernel of the tier
// in use. A new tier adds one line to each of the two lists here.
#define HEADWAVE_CASE(tier, ...) \
  case ::headwave::isa::tier: \
    ::headwave::detail::tier::__VA_ARGS__; \
    break;
#if defined(HEADWAVE_WITH_AVX512)
#define HEADWAVE_CASES(...) HEADWAVE_CASE(avx512, __VA_ARGS__) HEADWAVE_CASE(avx2, __VA_ARGS__)
#elif defined(HEADWAVE_WITH_AVX2)
// Another file of the program, which has the AVX-512 kernels, may have chosen them.
#define HEADWAVE_CASES(...) \
  case ::headwave::isa::avx512: \
    HEADWAVE_CASE(avx2, __VA_ARGS__)
#elif defined(HEADWAVE_WITH_NEON)
#define HEADWAVE_CASES(...) HEADWAVE_CASE(neon, __VA_ARGS__)
#else
#define HEADWAVE_CASES(...)
#endif
#if defined(HEADWAVE_ONLY_TIER)
#define HEADWAVE_DISPATCH(...) ::headwave::detail::HEADWAVE_ONLY_TIER::__VA_ARGS__;
#else
#define HEADWAVE_DISPATCH(...) \
  switch (::headwave::active_isa()) { \
    HEADWAVE_CASES(__VA_ARGS__) \
    default: \
      ::headwave::detail::scalar::__VA_ARGS__; \
  }
#endif

// A big project can compile the kernels once: with HEADWAVE_EXTERN_KERNELS a translation unit only declares them, and
// one that defines HEADWAVE_INSTANTIATE_KERNELS, built with the same flags, holds them all.
#if defined(HEADWAVE_EXTERN_KERNELS) || defined(HEADWAVE_INSTANTIATE_KERNELS)

#if defined(HEADWAVE_INSTANTIATE_KERNELS)
#define HEADWAVE_EXTERN
#else
#define HEADWAVE_EXTERN extern
#endif

#define HEADWAVE_KERNELS_OF_TYPE(tier, T) \
  HEADWAVE_EXTERN template void tier::gemm<T>(const gemm_arguments<T>&, T*); \
  HEADWAVE_EXTERN template void tier::sinusoid_rows<T>(sinusoid_arguments<T>&); \
  HEADWAVE_EXTERN template void tier::add_row<T>(T*, const T*, index); \
  HEADWAVE_EXTERN template void tier::rotary_row<T>(const rotary_row_arguments<T>&); \
  HEADWAVE_EXTERN template void tier::rotate_heads<T>(const rotary_arguments<T>&, T*); \
  HEADWAVE_EXTERN template void tier::softmax_row<T>(T*, index, const T*, index, index); \
  HEADWAVE_EXTERN template void tier::normalize_row<T>(T*, const T*, index, double); \
  HEADWAVE_EXTERN template void tier::gate_row<T>(T*, const T*, index, index); \
  HEADWAVE_EXTERN template void tier::merge_rows<T>(const merge_arguments<T>&, index, index); \
  HEADWAVE_EXTERN template void tier::attention<T>(const attention_arguments<T>&, const attention_plan<T>&, index, \
                                                   T*); \
  HEADWAVE_EXTERN template void tier::decode<T>(const attention_arguments<T>&, const decode_plan<T>&, decode_pass, \
                                                index, T*, T*);
#define HEADWAVE_KERNELS(tier) \
  HEADWAVE_KERNELS_OF_TYPE(tier, float) \
  HEADWAVE_KERNELS_OF_TYPE(tier, double)

namespace headwave::detail::inline HEADWAVE_ABI {
#if defined(HEADWAVE_WITH_SCALAR)
HEADWAVE_KERNELS(scalar)
#endif
#if defined(HEADWAVE_WITH_AVX2)
HEADWAVE_KERNELS(avx2)
#endif
#if defined(HEADWAVE_WITH_AVX512)
HEADWAVE_KERNELS(avx512)
#endif
#if defined(HEADWAVE_WITH_NEON)
HEADWAVE_KERNELS(neon)
#endif
}  // namespace headwave::detail::inline HEADWAVE_ABI

#undef HEADWAVE_KERNELS
#undef HEADWAVE_KERNELS_OF_TYPE
#undef HEADWAVE_EXTERN
#endif
