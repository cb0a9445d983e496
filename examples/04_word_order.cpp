// SPDX-License-Identifier: MIT
// "dog bites man" and "man bites dog" are the same bag of words. Attention alone cannot tell them apart: each word's
// output is the same in both. With positions added to the words it can.
#include "support/minilm.hpp"

#include <headwave/positional_encoding.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace {

/// The Euclidean distance between the outputs of a word in the first two sentences.
double distance(const headwave::tensor<float, 3>& outputs, std::size_t place_in_first, std::size_t place_in_second) {
  double sum = 0;
  for (std::size_t channel = 0; channel < outputs.extent(2); ++channel) {
    sum += std::pow(outputs(0, place_in_first, channel) - outputs(1, place_in_second, channel), 2);
  }
  return std::sqrt(sum);
}

}  // namespace

int main() {
  const support::minilm minilm;
  const auto attention = minilm.attention();
  // Scaled as in "Attention Is All You Need", section 3.4, so that words and positions weigh alike.
  auto words = minilm.file.read<float, 3>("token_embeddings");
  for (float& channel : words) {
    channel *= std::sqrt(static_cast<float>(words.extent(2)));
  }
  const auto without_positions = attention(words, {.key_lengths = minilm.lengths});
  headwave::add_sinusoidal_encoding(words);
  const auto with_positions = attention(words, {.key_lengths = minilm.lengths});

  std::printf("How far each word's output moves from \"%s\" to \"%s\":\n", minilm.sentences[0].c_str(),
              minilm.sentences[1].c_str());
  std::printf("word   without positions  with positions\n");
  for (std::size_t place = 0; place < minilm.tokens[0].size(); ++place) {
    const auto& second = minilm.tokens[1];
    const auto found = std::find(second.begin(), second.end(), minilm.tokens[0][place]);
    const auto other = static_cast<std::size_t>(found - second.begin());
    std::printf("%-5s  %17.4f  %14.2f\n", found->c_str(), distance(without_positions, place, other),
                distance(with_positions, place, other));
  }
}
