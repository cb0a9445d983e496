// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/config.hpp>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#if !defined(HEADWAVE_THROW) && !HEADWAVE_USE_EXCEPTIONS
#include <cstdio>
#include <cstdlib>
#endif

namespace headwave {

/// The one exception of the library: an argument that no result can be computed from.
///
/// what() names the function, the rule that does not hold, and the shapes of all arguments that take part in it, as in
///   scaled_dot_product_attention: keys and values must agree in extent(1): 5 != 6; key [2, 5, 4, 8], value [2, 6, 4,
///   8]
/// It is thrown before anything is written, so outputs are untouched. With -fno-exceptions the text goes to stderr and
/// the program aborts; define HEADWAVE_THROW(error) to do something else.
class shape_error : public std::invalid_argument {
 public:
  HEADWAVE_INLINE explicit shape_error(const std::string& text) : std::invalid_argument(text) {}
};

namespace detail::inline HEADWAVE_ABI {

/// One argument in an error's text: its name and its extents.
struct named_shape {
  const char* name;
  const std::size_t* extents;
  std::size_t rank;
};

inline std::string shape_text(const std::size_t* extents, std::size_t rank) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank; ++axis) {
    text += (axis ? ", " : "") + std::to_string(extents[axis]);
  }
  return text + "]";
}

/// Throws shape_error("function: rule; name [extents], ...").
[[noreturn]] __attribute__((noinline, cold)) inline void fail(const char* function, const std::string& rule,
                                                              std::initializer_list<named_shape> shapes = {}) {
  std::string text = std::string(function) + ": " + rule;
  const char* separator = "; ";
  for (const named_shape& shape : shapes) {
    text += separator + std::string(shape.name) + " " + shape_text(shape.extents, shape.rank);
    separator = ", ";
  }
#if defined(HEADWAVE_THROW)
  HEADWAVE_THROW(shape_error(text));
  __builtin_abort();
#elif HEADWAVE_USE_EXCEPTIONS
  throw shape_error(text);
#else
  std::fprintf(stderr, "headwave: %s\n", text.c_str());
  std::abort();
#endif
}

/// "rule: a != b", the form in which two disagreeing numbers are reported.
inline std::string differ(const char* rule, std::size_t a, std::size_t b) {
  return std::string(rule) + ": " + std::to_string(a) + " != " + std::to_string(b);
}

/// a * b, or an error where the product does not fit the signed type of that size.
template <class Size>
constexpr Size checked_product_of(const char* function, Size a, Size b) {
  Size product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > static_cast<Size>(-1) / 2) {
    fail(function, "size overflows: " + std::to_string(a) + " * " + std::to_string(b));
  }
  return product;
}
constexpr std::size_t checked_product(const char* function, std::size_t a, std::size_t b) {
  return checked_product_of<std::size_t>(function, a, b);
}

/// a + b likewise.
constexpr std::size_t checked_sum(const char* function, std::size_t a, std::size_t b) {
  std::size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > static_cast<std::size_t>(PTRDIFF_MAX)) {
    fail(function, "size overflows: " + std::to_string(a) + " + " + std::to_string(b));
  }
  return sum;
}

/// The number of elements of a shape. An extent of zero makes any shape empty, whatever the other extents are.
constexpr std::size_t checked_size(const char* function, const std::size_t* extents, std::size_t rank) {
  std::size_t size = 1;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    if (extents[axis] == 0) {
      return 0;
    }
  }
  for (std::size_t axis = 0; axis < rank; ++axis) {
    size = checked_product(function, size, extents[axis]);
  }
  return size;
}

}  // namespace detail::inline HEADWAVE_ABI
}  // namespace headwave
