// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

/// \file
/// Comparisons of whole tensors. Each returns a text, empty if all is well, so that a test spends one assertion on a
/// tensor and its failure shows the worst element: CHECK(within(out, expected, bound) == "").

namespace support {

namespace hw = headwave;

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

template <std::size_t Rank>
using extents = std::array<std::size_t, Rank>;

/// For loops over a few sizes.
using sizes = std::vector<std::size_t>;

/// Calls visit(index) for all indices of a shape in row-major order.
template <std::size_t Rank, class Visit>
void for_each_index(const extents<Rank>& shape, Visit visit) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) {
    count *= extent;
  }
  extents<Rank> at{};
  for (std::size_t n = 0; n < count; ++n) {
    visit(at);
    for (std::size_t axis = Rank; axis-- > 0 && ++at[axis] == shape[axis];) {
      at[axis] = 0;
    }
  }
}

/// The element's distance from data(), in elements, computed here and not by the view.
template <std::size_t Rank>
hw::index offset_of(const std::array<hw::index, Rank>& strides, const extents<Rank>& at) {
  hw::index offset = 0;
  for (std::size_t axis = 0; axis < Rank; ++axis) {
    offset += static_cast<hw::index>(at[axis]) * strides[axis];
  }
  return offset;
}

template <class T, std::size_t Rank>
T& element(const hw::tensor_view<T, Rank>& view, const extents<Rank>& at) {
  return view.data()[offset_of(view.strides(), at)];
}

/// The elements in row-major order.
template <class X>
auto flat(const X& x) {
  const auto view = hw::as_view(x);
  std::vector<hw::element_of<const X>> values;
  for_each_index(view.extents(), [&](const auto& at) { values.push_back(element(view, at)); });
  return values;
}

/// A tensor of given numbers, in row-major order.
template <class T, std::size_t Rank>
hw::tensor<T, Rank> tensor_of(const std::size_t (&shape)[Rank], const std::vector<double>& values) {
  hw::tensor<T, Rank> result(std::to_array(shape));
  if (result.size() != values.size()) {
    throw std::invalid_argument("tensor_of: " + std::to_string(values.size()) + " numbers");
  }
  std::transform(values.begin(), values.end(), result.begin(), [](double x) { return static_cast<T>(x); });
  return result;
}

/// A tensor of one number.
template <class T, std::size_t Rank>
hw::tensor<T, Rank> constant(const std::size_t (&shape)[Rank], double value) {
  hw::tensor<T, Rank> result(std::to_array(shape));
  std::fill(result.begin(), result.end(), static_cast<T>(value));
  return result;
}

/// A row-major copy.
template <class X>
auto packed(const X& x) {
  const auto view = hw::as_view(x);
  hw::tensor<hw::element_of<const X>, decltype(view)::rank()> result(view.extents());
  for_each_index(view.extents(), [&](const auto& at) { element(result.view(), at) = element(view, at); });
  return result;
}

// What only a failure needs is no template and never inlined: there are hundreds of comparisons to compile.

[[gnu::noinline]] inline std::string text_of(std::span<const std::size_t> at) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    text += (axis ? ", " : "") + std::to_string(at[axis]);
  }
  return text + "]";
}

[[gnu::noinline]] inline std::string text_of(long double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.12Lg", value);
  return buffer;
}

/// "extents [2, 3], expected [3, 2]"; empty if they agree.
[[gnu::noinline]] inline std::string other_extents(std::span<const std::size_t> actual,
                                                   std::span<const std::size_t> expected) {
  return std::ranges::equal(actual, expected) ? std::string()
                                              : "extents " + text_of(actual) + ", expected " + text_of(expected);
}

/// The worst of the elements that failed.
struct worst_fault {
  std::string text;
  long double quotient = 0;
  std::size_t count = 0;

  [[gnu::noinline]] void add(std::span<const std::size_t> at, std::span<const std::size_t> shape, long double actual,
                             long double expected, long double bound) {
    const long double error = std::fabs(actual - expected);
    const long double next =
        std::isfinite(error) && bound > 0 ? error / bound : std::numeric_limits<long double>::infinity();
    if (count++ == 0 || next > quotient) {
      quotient = next;
      text = "at " + text_of(at) + " of " + text_of(shape) + ": " + text_of(actual) + ", expected " +
             text_of(expected) + ", error " + text_of(error) + " > " + text_of(bound);
    }
  }

  [[gnu::noinline]] std::string report() const {
    return count == 0 ? text : text + " (" + std::to_string(count) + " bad elements)";
  }
};

/// The worst element of actual by |actual - expected| / bound, where expected(at) and bound(at) give an element's
/// values. A NaN or an infinity is met by its like only. Empty where every quotient is at most 1.
template <class Actual, class Expected, class Bound>
std::string worst_element(const Actual& actual_elements, Expected expected_at, Bound bound_at) {
  const auto view = hw::as_view(actual_elements);
  worst_fault worst;
  for_each_index(view.extents(), [&](const auto& at) {
    const long double actual = static_cast<long double>(element(view, at));
    const long double expected = static_cast<long double>(expected_at(at));
    const long double bound = static_cast<long double>(bound_at(at));
    const bool good =
        actual == expected || std::fabs(actual - expected) <= bound || (std::isnan(actual) && std::isnan(expected));
    if (!good) {
      worst.add(at, view.extents(), actual, expected, bound);
    }
  });
  return worst.report();
}

/// |actual - expected| <= bound, with a tensor of expected values and one bound, or one for each element.
template <class Actual, class Expected>
std::string within(const Actual& actual, const Expected& expected, double bound) {
  const auto view = hw::as_view(expected);
  if (const std::string fault = other_extents(hw::as_view(actual).extents(), view.extents()); !fault.empty()) {
    return fault;
  }
  return worst_element(actual, [&](const auto& at) { return element(view, at); }, [&](const auto&) { return bound; });
}

/// The same with the expected values in row-major order.
template <class Actual>
std::string within(const Actual& actual, const std::vector<double>& expected, double bound) {
  const auto view = hw::as_view(actual);
  if (view.size() != expected.size()) {
    return "extents " + text_of(view.extents()) + ", expected " + std::to_string(expected.size()) + " elements";
  }
  std::size_t next = 0;
  return worst_element(actual, [&](const auto&) { return expected[next++]; }, [&](const auto&) { return bound; });
}

/// The same with an oracle's estimate: expected values and a bound for each element.
template <class Actual, class Estimate>
  requires requires(const Estimate& estimate) {
    estimate.value.extents();
    estimate.error.extents();
  }
std::string within(const Actual& actual, const Estimate& estimate) {
  if (const std::string fault = other_extents(hw::as_view(actual).extents(), estimate.value.extents());
      !fault.empty()) {
    return fault;
  }
  return worst_element(
      actual, [&](const auto& at) { return element(estimate.value.view(), at); },
      [&](const auto& at) { return element(estimate.error.view(), at); });
}

template <class T>
auto bits_of(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value;
  } else {
    return std::bit_cast<std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>>(value);
  }
}

/// Equal bit for bit: a NaN equals itself, and -0 differs from 0.
template <class A, class B>
std::string same_bits(const A& a, const B& b) {
  static_assert(std::is_same_v<hw::element_of<const A>, hw::element_of<const B>>);
  const auto x = hw::as_view(a);
  const auto y = hw::as_view(b);
  if (const std::string fault = other_extents(x.extents(), y.extents()); !fault.empty()) {
    return fault;
  }
  // The bound of 0 makes every difference an infinite quotient, so the first is reported.
  worst_fault worst;
  for_each_index(x.extents(), [&](const auto& at) {
    if (bits_of(element(x, at)) != bits_of(element(y, at))) {
      worst.add(at, x.extents(), static_cast<long double>(element(x, at)), static_cast<long double>(element(y, at)), 0);
    }
  });
  return worst.report();
}

/// How a window lies in its memory.
struct spacing {
  hw::index last_stride = 1;  ///< of the last axis; negative reads it backwards
  std::size_t gap = 3;        ///< elements between the blocks of each outer axis
  bool reversed = false;      ///< outer axes have negative strides
};

/// A strided view into memory of its own that is full of canaries. Every canary is a NaN: what reads one shows it in
/// its result, and what writes one is found by intact().
template <class T, std::size_t Rank>
class window {
 public:
  explicit window(const extents<Rank>& shape, spacing layout = {}) {
    std::array<hw::index, Rank> strides{};
    hw::index lowest = 0;
    hw::index stride = layout.last_stride;
    for (std::size_t axis = Rank; axis-- > 0;) {
      const hw::index count = static_cast<hw::index>(shape[axis]);
      strides[axis] = stride;
      lowest += stride < 0 && count > 0 ? stride * (count - 1) : 0;
      stride = std::abs(stride) * (count > 0 ? count : 1) + static_cast<hw::index>(layout.gap);
      stride = layout.reversed ? -stride : stride;
    }
    constexpr hw::index margin = 21;
    memory_.assign(static_cast<std::size_t>(std::abs(stride) + 2 * margin), canary());
    view_ = hw::tensor_view<T, Rank>(memory_.data() + margin - lowest, shape, strides);
  }

  /// A window that holds the elements of a tensor or view.
  template <class X>
    requires hw::tensor_like<const X, Rank>
  explicit window(const X& x, spacing layout = {}) : window(hw::as_view(x).extents(), layout) {
    const auto source = hw::as_view(x);
    for_each_index(source.extents(), [&](const auto& at) { element(view_, at) = element(source, at); });
  }

  window(const window&) = delete;
  window& operator=(const window&) = delete;

  const hw::tensor_view<T, Rank>& view() const { return view_; }

  /// Whether everything around the view's elements is as it was.
  bool intact() const {
    std::vector<bool> inside(memory_.size(), false);
    for_each_index(view_.extents(), [&](const auto& at) {
      inside[static_cast<std::size_t>(&element(view_, at) - memory_.data())] = true;
    });
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (!inside[i] && bits_of(memory_[i]) != bits_of(canary())) {
        return false;
      }
    }
    return true;
  }

  /// Whether nothing has been written, neither around the elements nor into them.
  bool untouched() const {
    return std::all_of(memory_.begin(), memory_.end(), [](T x) { return bits_of(x) == bits_of(canary()); });
  }

 private:
  static T canary() {
    if constexpr (sizeof(T) == 8) {
      return std::bit_cast<T>(std::uint64_t{0x7ff8'0000'dead'beef});
    } else {
      return std::bit_cast<T>(std::uint32_t{0x7fc0'beef});
    }
  }

  std::vector<T> memory_;
  hw::tensor_view<T, Rank> view_;
};

/// The text of the shape_error that an action throws; empty if it throws none.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const hw::shape_error& error) {
    return error.what();
  }
  return {};
}

/// Whether a text has all of the parts; on failure the text itself, so that the assertion shows it.
inline std::string lacks(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      return "no '" + part + "' in '" + text + "'";
    }
  }
  return {};
}

}  // namespace support
