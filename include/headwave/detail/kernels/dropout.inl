// SPDX-License-Identifier: MIT
// Dropout of attention weights. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// Philox4x32-10 (Salmon et al. 2011) on the counters (block + i, query, head, sample), i = 0 .. 7, with the seed as
/// key: words[w][i], one in the lower half of each element.
HEADWAVE_INLINE void draw(std::uint64_t (&words)[4][8], std::uint32_t block, std::uint32_t query, std::uint32_t head,
                          std::uint32_t sample, std::uint64_t seed) {
  for (std::uint32_t i = 0; i < 8; ++i) {
    words[0][i] = block + i;
  }
  vec<std::uint64_t> a = load(words[0]), b = broadcast(std::uint64_t{query}), c = broadcast(std::uint64_t{head}),
                     d = broadcast(std::uint64_t{sample});
  auto low_key = static_cast<std::uint32_t>(seed), high_key = static_cast<std::uint32_t>(seed >> 32);
  // Upper halves need no cleaning: nothing but the lower ones is multiplied or compared.
  for (int round = 0; round < 10; ++round) {
    const vec<std::uint64_t> of_a = multiply_lower(a, broadcast(std::uint64_t{0xd2511f53}));
    const vec<std::uint64_t> of_c = multiply_lower(c, broadcast(std::uint64_t{0xcd9e8d57}));
    a = bit_xor(bit_xor(shift_right<32>(of_c), b), broadcast(std::uint64_t{low_key}));
    c = bit_xor(bit_xor(shift_right<32>(of_a), d), broadcast(std::uint64_t{high_key}));
    b = of_c;
    d = of_a;
    low_key += 0x9e3779b9;
    high_key += 0xbb67ae85;
  }
  store(words[0], a);
  store(words[1], b);
  store(words[2], c);
  store(words[3], d);
}

/// Drops the powers of the keys keys.first .. keys.last-1 of a row, the first of which is at powers: the power of key j
/// is 0 if word j mod 4 of block j / 4 is below probability * 2^32, else it is divided by 1 - probability.
template <class T>
void drop(T* powers, key_range keys, double probability, std::uint64_t seed, std::uint32_t query, std::uint32_t head,
          std::uint32_t sample) {
  const auto threshold = static_cast<std::uint64_t>(probability * 0x1p32);
  const T factor = probability < 1 ? static_cast<T>(1 / (1 - probability)) : T(0);
  std::uint64_t words[4][8];
  for (index first = keys.first - keys.first % 32; first < keys.last; first += 32) {
    draw(words, static_cast<std::uint32_t>(first / 4), query, head, sample, seed);
    for (index key = larger(first, keys.first); key < smaller(first + 32, keys.last); ++key) {
      const index place = key - first;
      // By a mask of bits: a branch would often be mispredicted.
      const bool kept = static_cast<std::uint32_t>(words[place % 4][place / 4]) >= threshold;
      T& power = powers[key - keys.first];
      power = from_bits<T>(bits_of(power * factor) & (bits_type<T>(0) - bits_type<T>(kept)));
    }
  }
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
