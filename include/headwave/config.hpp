// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/abi_tag.hpp>
#include <headwave/version.hpp>

#include <cstddef>
#include <cstdint>

// Settings, each of which a user may define before the first include:
//   HEADWAVE_THROW(error)      what reports bad input. Default: throw, or without exceptions print to stderr and abort.
//   HEADWAVE_ASSERT(condition) checks element access. Default: on without NDEBUG and with _GLIBCXX_ASSERTIONS.
//   HEADWAVE_STATIC_ISA        compiles the kernels of one instruction set only, the widest that the command line
//                              allows: less to compile, and nothing is chosen at run time. -march=x86-64-v3 and
//                              -march=native allow more than the default, which is slow on x86-64.
//   HEADWAVE_NO_AVX512         leaves out the AVX-512 kernels.

#if !defined(__GNUC__)
#error "headwave needs g++ 12 or clang 14, or a later version of either"
#endif

#if defined(__cpp_exceptions)
#define HEADWAVE_USE_EXCEPTIONS 1
#else
#define HEADWAVE_USE_EXCEPTIONS 0
#endif

#if !defined(HEADWAVE_ASSERT)
#if !defined(NDEBUG) || defined(_GLIBCXX_ASSERTIONS)
#define HEADWAVE_ASSERT(condition) ((condition) ? void(0) : __builtin_trap())
#else
#define HEADWAVE_ASSERT(condition) void(0)
#endif
#endif

// Every function of namespace headwave is either HEADWAVE_INLINE (it leaves no symbol in the object file) or lives in
// the inline namespace HEADWAVE_ABI, whose name spells the command line's code generation flags. So two translation
// units compiled with different -march, exceptions or NDEBUG never share a function, while they do share the types.
#define HEADWAVE_INLINE inline __attribute__((always_inline))
#define HEADWAVE_NOINLINE __attribute__((noinline))

namespace headwave {

/// Signed type of every stride, position and offset: differences of positions never wrap.
using index = std::int64_t;

}  // namespace headwave
