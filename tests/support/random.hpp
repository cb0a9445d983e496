// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/tensor.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <random>
#include <span>

namespace support {

namespace hw = headwave;

/// How many random cases a test tries: all of them, or the share that HEADWAVE_TEST_SHARE asks for where a build is
/// slow or is about something else.
inline int cases(int all) {
  const char* const share = std::getenv("HEADWAVE_TEST_SHARE");
  return share ? static_cast<int>(std::ceil(all * std::strtod(share, nullptr))) : all;
}

/// Choices of everything that tests draw. From a seed they are random numbers that are the same with every compiler and
/// standard library: the engine is fixed by the standard, and the distributions, which are not, are written here. From
/// bytes, which a fuzzer looks for, each choice takes one of them or a few. The first byte says what follows behind the
/// last: if it is even, every choice is the first that there is and every chance is missed; if it is odd, they are
/// random numbers whose seed is all bytes.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : engine_(seed) {}
  explicit random_source(std::span<const std::uint8_t> bytes)
      : engine_(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{14695981039346656037U},
                                [](std::uint64_t hash, std::uint8_t x) { return (hash ^ x) * 1099511628211U; })),
        bytes_(bytes.subspan(bytes.empty() ? 0 : 1)),
        from_bytes_(true),
        goes_on_(!bytes.empty() && bytes.front() % 2 == 1) {}

  double uniform(double low, double high) {
    const double share =
        from_bytes_ ? static_cast<double>(word(2)) * 0x1p-16 : static_cast<double>(engine_() >> 11) * 0x1p-53;
    return low + (high - low) * share;
  }

  /// An integer of [low, high], both ends included.
  std::size_t integer(std::size_t low, std::size_t high) {
    const std::uint64_t number =
        from_bytes_ ? word((static_cast<std::size_t>(std::bit_width(high - low)) + 7) / 8) : engine_();
    return low + static_cast<std::size_t>(number % (high - low + 1));
  }

  /// Any of the 2^64 patterns.
  std::uint64_t bits() { return from_bytes_ ? word(8) : engine_(); }

  bool chance(double probability) {
    return from_bytes_ ? static_cast<double>(word(1)) >= 256 * (1 - probability) : uniform(0, 1) < probability;
  }

  /// A number at which sums and differences of positions pass the ends of the integers, or nearly.
  std::int64_t extreme() {
    constexpr std::int64_t ends[] = {INT64_MIN, -(std::int64_t{1} << 62), -(std::int64_t{1} << 32),
                                     0,         std::int64_t{1} << 32,    std::int64_t{1} << 62,
                                     INT64_MAX};
    const std::int64_t end = ends[integer(0, std::size(ends) - 1)];
    const auto away = static_cast<std::int64_t>(integer(0, 40));
    return end == INT64_MAX || (end != INT64_MIN && chance(0.5)) ? end - away : end + away;
  }

  /// Calls fill with a source of what is too much to choose one by one, such as the elements of a tensor: this one, or,
  /// from bytes, one whose seed they give.
  template <class Fill>
  void in_bulk(Fill fill) {
    if (from_bytes_) {
      random_source seeded(word(2));
      fill(seeded);
    } else {
      fill(*this);
    }
  }

  std::size_t pick(std::initializer_list<std::size_t> choices) {
    return choices.begin()[integer(0, choices.size() - 1)];
  }

  /// Mean 0, variance 1, never past 3.5: a sum of four uniform numbers.
  double bell() {
    double sum = 0;
    for (int i = 0; i < 4; ++i) {
      sum += uniform(-1, 1);
    }
    return sum * 0.8660254037844386;
  }

  template <class T, std::size_t Rank>
  hw::tensor<T, Rank> tensor(const std::size_t (&shape)[Rank], double scale = 1) {
    hw::tensor<T, Rank> result(std::to_array(shape));
    in_bulk([&](random_source& source) {
      for (T& x : result) {
        x = static_cast<T>(scale * source.bell());
      }
    });
    return result;
  }

  template <std::size_t Rank>
  hw::tensor<bool, Rank> mask(const std::size_t (&shape)[Rank], double probability_of_true) {
    hw::tensor<bool, Rank> result(std::to_array(shape));
    in_bulk([&](random_source& source) {
      for (bool& x : result) {
        x = source.chance(probability_of_true);
      }
    });
    return result;
  }

 private:
  /// The next count bytes as a number.
  std::uint64_t word(std::size_t count) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < count; ++i) {
      number = number << 8 | (!bytes_.empty() ? bytes_.front() : goes_on_ ? engine_() >> 56 : 0);
      bytes_ = bytes_.subspan(bytes_.empty() ? 0 : 1);
    }
    return number;
  }

  std::mt19937_64 engine_;
  std::span<const std::uint8_t> bytes_;
  bool from_bytes_ = false, goes_on_ = false;
};

}  // namespace support
