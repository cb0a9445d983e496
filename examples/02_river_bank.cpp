// SPDX-License-Identifier: MIT
// The encoding of a phrase of two words in six dimensions, small enough to check by hand: PE1 = sin(position),
// PE2 = cos(position), and each pair after it turns 10000^(2/6), about 21.5, times slower than the one before.
#include <headwave/positional_encoding.hpp>

#include <array>
#include <cstdio>

int main() {
  const std::array<const char*, 2> phrase = {"river", "bank"};
  const std::size_t d_model = 6;
  const auto encoding = headwave::sinusoidal_encoding<double>(phrase.size(), d_model);

  std::printf("position  word ");
  for (std::size_t dimension = 0; dimension < d_model; ++dimension) {
    std::printf("     PE%zu", dimension + 1);
  }
  for (std::size_t position = 0; position < phrase.size(); ++position) {
    std::printf("\n%8zu  %-5s", position, phrase[position]);
    for (std::size_t dimension = 0; dimension < d_model; ++dimension) {
      std::printf("  %6.4f", encoding(position, dimension));
    }
  }
  std::printf("\n");
}
