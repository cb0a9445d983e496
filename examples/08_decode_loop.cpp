// SPDX-License-Identifier: MIT
// A decoder's loop: a prompt, then token after token, with a cache; drafts that are taken back; a window that rolls.
#include <headwave/multi_head_attention.hpp>

#include <cstdio>
#include <cstring>

namespace hw = headwave;

int main() {
  constexpr std::size_t d_model = 64, prompt = 20, steps = 12;
  hw::multi_head_attention<float> layer({.d_model = d_model,
                                         .heads = 8,
                                         .kv_heads = 2,
                                         .qk_norm = true,
                                         .rotary = hw::rotary_options{.layout = hw::channel_layout::halves}});
  layer.init_xavier(/*seed=*/7);

  // Stands for the tokens of a text.
  hw::tensor<float, 3> text({1, prompt + steps, d_model});
  hw::add_sinusoidal_encoding(text);
  const auto tokens = [&](std::size_t first, std::size_t count) { return text.view().slice(1, first, count); };

  // The prompt at once, then one token a time: each attends to all before it, which the cache keeps.
  auto cache = layer.make_cache(/*batch=*/1, /*capacity=*/64);
  const auto whole = layer(text, {.causal = true});
  layer(tokens(0, prompt), cache, {.causal = true});
  bool same = true;
  for (std::size_t i = prompt; i < prompt + steps; ++i) {
    const auto y = layer(tokens(i, 1), cache);
    same = same && std::memcmp(y.data(), &whole(0, i, 0), d_model * sizeof(float)) == 0;
  }
  std::printf("%d tokens in the cache, bits of the whole text: %s\n", static_cast<int>(cache.lengths()[0]),
              same ? "yes" : "no");

  // Four drafts, two of which are wrong: they are forgotten, and the cache goes on from there.
  layer(tokens(3, 4), cache, {.causal = true});
  cache.truncate(static_cast<std::int64_t>(prompt + steps + 2));
  std::printf("after two rejected drafts: %d\n", static_cast<int>(cache.lengths()[0]));

  // Half the memory, and a window of 8 tokens, of which no more are kept.
  auto small = layer.make_cache<hw::bfloat16>(1, /*capacity=*/8, /*rolling=*/true);
  float largest = 0;
  const auto windowed = layer(text, {.causal = true, .window = {.left = 7}});
  for (std::size_t i = 0; i < prompt + steps; ++i) {
    const auto y = layer(tokens(i, 1), small, {.causal = true, .window = {.left = 7}});
    for (std::size_t c = 0; c < d_model; ++c) {
      const float difference = y(0, 0, c) - windowed(0, i, c);
      largest = difference > largest ? difference : -difference > largest ? -difference : largest;
    }
  }
  std::printf("rolling, in bfloat16: keys %d to %d are left, the largest difference is below 0.02: %s\n",
              static_cast<int>(small.first_keys()[0]), static_cast<int>(small.lengths()[0]) - 1,
              largest < 0.02f ? "yes" : "no");
}
