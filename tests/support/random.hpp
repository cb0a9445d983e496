// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/tensor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>

namespace support {

namespace hw = headwave;

/// Seeded random numbers that are the same with every compiler and standard library: the engine is fixed by the
/// standard, and the distributions, which are not, are written here.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : engine_(seed) {}

  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(engine_() >> 11) * 0x1p-53);
  }

  /// An integer of [low, high], both ends included.
  std::size_t integer(std::size_t low, std::size_t high) {
    return low + static_cast<std::size_t>(engine_() % (high - low + 1));
  }

  /// Any of the 2^64 patterns.
  std::uint64_t bits() { return engine_(); }

  bool chance(double probability) { return uniform(0, 1) < probability; }

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
    for (T& x : result) {
      x = static_cast<T>(scale * bell());
    }
    return result;
  }

  template <std::size_t Rank>
  hw::tensor<bool, Rank> mask(const std::size_t (&shape)[Rank], double probability_of_true) {
    hw::tensor<bool, Rank> result(std::to_array(shape));
    for (bool& x : result) {
      x = chance(probability_of_true);
    }
    return result;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace support
