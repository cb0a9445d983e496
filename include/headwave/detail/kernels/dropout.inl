// SPDX-License-Identifier: MIT
// Dropout of attention weights. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// So many blocks of random words are drawn side by side.
inline constexpr int drawn_blocks = 4;

/// Philox4x32-10 (Salmon et al. 2011) on the counters (block + i, query, head, sample), i = 0 .. drawn_blocks-1, with
/// the seed as key: words[w][i].
HEADWAVE_INLINE void draw(std::uint32_t (&words)[4][drawn_blocks], std::uint32_t block, std::uint32_t query,
                          std::uint32_t head, std::uint32_t sample, std::uint64_t seed) {
  std::uint32_t key[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(drawn_blocks); ++i) {
    words[0][i] = block + i;
    words[1][i] = query;
    words[2][i] = head;
    words[3][i] = sample;
  }
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < drawn_blocks; ++i) {
      const std::uint64_t a = std::uint64_t{0xd2511f53} * words[0][i], b = std::uint64_t{0xcd9e8d57} * words[2][i];
      words[0][i] = static_cast<std::uint32_t>(b >> 32) ^ words[1][i] ^ key[0];
      words[1][i] = static_cast<std::uint32_t>(b);
      words[2][i] = static_cast<std::uint32_t>(a >> 32) ^ words[3][i] ^ key[1];
      words[3][i] = static_cast<std::uint32_t>(a);
    }
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
}

/// Drops the powers of the keys keys.first .. keys.last-1 of a row, the first of which is at powers: the power of key j
/// is 0 if word j mod 4 of block j / 4 is below probability * 2^32, else it is divided by 1 - probability.
template <class T>
void drop(T* powers, key_range keys, double probability, std::uint64_t seed, std::uint32_t query, std::uint32_t head,
          std::uint32_t sample) {
  const auto threshold = static_cast<std::uint64_t>(probability * 0x1p32);
  const T factor = probability < 1 ? static_cast<T>(1 / (1 - probability)) : T(0);
  constexpr index step = 4 * drawn_blocks;
  std::uint32_t words[4][drawn_blocks];
  for (index first = keys.first - keys.first % step; first < keys.last; first += step) {
    draw(words, static_cast<std::uint32_t>(first / 4), query, head, sample, seed);
    for (index key = larger(first, keys.first); key < smaller(first + step, keys.last); ++key) {
      const index place = key - first;
      T& power = powers[key - keys.first];
      power = words[place % 4][place / 4] < threshold ? T(0) : power * factor;
    }
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
