// SPDX-License-Identifier: MIT
// Names that <windows.h>, <complex.h> and <cmath> make macros of. The standard headers come first, because the test is
// about headwave and not about them.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <new>
#include <numbers>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#undef M_PI
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define I 1i
#define M_PI 3

#include <headwave/headwave.hpp>

#if !defined(min) || !defined(max)
#error "a standard header has removed min or max: include it at the top of this file"
#endif
