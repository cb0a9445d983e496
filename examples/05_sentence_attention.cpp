// SPDX-License-Identifier: MIT
// Which words the 12 heads of a trained sentence encoder look at, and how exactly its reference output is reproduced.
#include "support/heat_map.hpp"
#include "support/minilm.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

int main() {
  const support::minilm minilm;
  const auto input = minilm.file.read<float, 3>("input");
  const std::size_t batch = input.extent(0);
  const std::size_t length = input.extent(1);
  const std::size_t heads = 12;
  headwave::tensor<float, 4> weights({batch, heads, length, length});
  const auto output = minilm.attention()(input, {.key_lengths = minilm.lengths, .weights = weights});

  // Heads rest on the markers [CLS] and [SEP] when they have nothing to say, so only the words between them are asked.
  for (std::size_t sentence : {std::size_t{4}, std::size_t{5}}) {
    const auto& tokens = minilm.tokens[sentence];
    const auto bank = static_cast<std::size_t>(std::find(tokens.begin(), tokens.end(), "bank") - tokens.begin());
    std::printf("\"%s\": what \"bank\" looks at\n", minilm.sentences[sentence].c_str());
    for (std::size_t head = 0; head < heads; ++head) {
      const float* row = &weights(sentence, head, bank, 0);
      const auto most = static_cast<std::size_t>(std::max_element(row + 1, row + tokens.size() - 1) - row);
      std::printf("  head %2zu  %-9s  %.2f\n", head, tokens[most].c_str(), static_cast<double>(row[most]));
    }
  }

  const std::size_t drawn = 5;
  const std::size_t words = minilm.tokens[drawn].size();
  std::vector<support::panel> panels;
  for (std::size_t head = 0; head < heads; ++head) {
    panels.push_back(
        {"head " + std::to_string(head), {&weights(drawn, head, 0, 0), {words, words}, {weights.stride(2), 1}}});
  }
  support::write_heat_map("sentence_attention.png", panels,
                          {.title = "What each word looks at, in the 12 heads of MiniLM's first layer",
                           .x = {"looked at", minilm.tokens[drawn]},
                           .y = {"looking", minilm.tokens[drawn]},
                           .value_label = "attention weight",
                           .cell_width = 22,
                           .cell_height = 22,
                           .panels_per_row = 4});

  const auto reference = minilm.file.read<float, 3>("output");
  float largest = 0;
  bool close = true;
  for (std::size_t i = 0; i < output.size(); ++i) {
    const float difference = std::abs(output.data()[i] - reference.data()[i]);
    largest = std::max(largest, difference);
    close = close && difference <= 2e-6f;
  }
  std::fprintf(stderr, "largest difference from the reference output: %g\n", static_cast<double>(largest));
  std::printf("largest difference from the reference output <= 2e-6: %s\n", close ? "yes" : "no");
}
