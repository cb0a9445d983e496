// SPDX-License-Identifier: MIT
// From scaled products to final scores. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// What happens to the scores of a sample's row, in this order: soft cap, biases, ALiBi, the caller's rules,
/// visibility. What the row must not see becomes -infinity, whatever the score was.
template <class T>
struct score_stage {
  static constexpr index lanes = vec<T>::lanes;

  const attention_arguments<T>& a;
  index batch;

  HEADWAVE_INLINE vec<T> soft_capped(vec<T> score) const {
    if (bits_of(a.softcap) == 0) {
      return score;
    }
    const vec<T> cap = broadcast(a.softcap);
    return multiply(cap, hyperbolic_tangent(divide(score, cap)));
  }

  /// Bias of the keys key .. key + lanes-1; 0 past the last key.
  HEADWAVE_INLINE vec<T> bias_of(const attention_row& row, index key) const {
    const T* const source = a.bias.data + batch * a.bias.batch + row.head * a.bias.head + row.query * a.bias.length;
    return load_first(source + key * a.bias.channel, a.bias.channel, a.key_length - key);
  }
  HEADWAVE_INLINE vec<T> distance_bias_of(const attention_row& row, index key) const {
    const std::int64_t lowest = -a.distance_limit - lanes, highest = a.distance_limit + 1;
    const std::int64_t distance = saturated_difference(key, row.position);
    const std::int64_t place = distance < lowest ? lowest : distance > highest ? highest : distance;
    return load(a.distance_bias + row.head * distance_columns<T>(a.distance_limit) + (place - lowest));
  }

  /// A finite bias never hides, not even where the sum overflows.
  HEADWAVE_INLINE static vec<T> biased(vec<T> score, vec<T> bias) {
    return maximum(broadcast(lowest_finite<T>()), add(score, bias));
  }

  /// Soft cap, biases and ALiBi on the scores of the keys first .. last-1, both multiples of lanes; s[0] is that of
  /// first.
  void shape(const attention_row& row, T* s, index first, index last) const {
    for (index key = first; key < last; key += lanes) {
      vec<T> score = soft_capped(load(s + key - first));
      if (a.bias.data) {
        score = biased(score, bias_of(row, key));
      }
      if (a.distance_bias) {
        score = biased(score, distance_bias_of(row, key));
      }
      if (a.alibi_slopes) {
        const vec<T> distance = absolute(
            subtract(broadcast(static_cast<T>(saturated_difference(row.position, key))), load(lane_numbers_of<T>)));
        const T slope = a.alibi_slopes[batch * a.alibi_batch_stride + row.head];
        score = multiply_add(distance, broadcast(-slope), score);
      }
      store(s + key - first, score);
    }
  }

  /// Hides what the row must not see.
  void hide(const attention_row& row, T* s, index first, index last) const {
    const vec<T> nothing = broadcast(negative_infinity<T>());
    const vec<T> lane_numbers = load(lane_numbers_of<T>);
    for (index key = first; key < last; key += lanes) {
      vec<T> score = load(s + key - first);
      if (a.bias.data) {
        score = select(is_negative_infinity(bias_of(row, key)), nothing, score);
      }
      if (a.distance_bias) {
        score = select(is_negative_infinity(distance_bias_of(row, key)), nothing, score);
      }
      if (a.visible.data) {
        const unsigned char* source = a.visible.data + batch * a.visible.batch + row.head * a.visible.head +
                                      row.query * a.visible.length + key * a.visible.channel;
        unsigned char bytes[64 / sizeof(T)];
        if (a.visible.channel != 1 || key + lanes > a.key_length) {
          for (index lane = 0; lane < lanes; ++lane) {
            bytes[lane] = key + lane < a.key_length ? source[lane * a.visible.channel] : 0;
          }
          source = bytes;
        }
        lane_mask<T> seen;
        load_mask(source, seen);
        score = select(seen, score, nothing);
      }
      if (row.keys.first > key || row.keys.last < key + lanes) {
        score = select(less(lane_numbers, broadcast(static_cast<T>(row.keys.last - key))), score, nothing);
        score = select(not_less(lane_numbers, broadcast(static_cast<T>(row.keys.first - key))), score, nothing);
      }
      store(s + key - first, score);
    }
  }

  /// Whether options and ranges may hide some of the keys first .. last-1; whether a rule may, too.
  HEADWAVE_INLINE bool options_hide(const attention_row& row, index first, index last) const {
    return a.bias.data || a.visible.data || a.distance_bias || row.keys.first > first || row.keys.last < last;
  }
  HEADWAVE_INLINE bool hides_some(const attention_row& row, index first, index last) const {
    return a.rule.finish || options_hide(row, first, last);
  }

  /// Whether the masks may let some heads see some of the keys, from the position of row first to that of row last.
  HEADWAVE_INLINE bool sees(position_range heads, const attention_row& first, const attention_row& last,
                            key_range keys) const {
    const position_range positions{position_for_rules(first.position), position_for_rules(last.position) + 1};
    return !a.rule.sees ||
           a.rule.sees(a.rule.object, {a.first_sample + batch, heads, positions, keys}) != visibility::none;
  }

  HEADWAVE_INLINE void finish(const attention_row& row, T* s, index first, index last) const {
    if (a.alibi_slopes || a.bias.data || a.distance_bias || bits_of(a.softcap) != 0) {
      shape(row, s, first, last);
    }
    if (a.rule.finish) {
      // A rule is not asked about keys that do not exist.
      const key_range keys{larger(first, row.keys.first), smaller(last, row.keys.last)};
      if (keys.first < keys.last) {
        a.rule.finish(a.rule.object, s + (keys.first - first),
                      {a.first_sample + batch, row.head, position_for_rules(row.position), 0}, keys);
      }
    }
    if (options_hide(row, first, last)) {
      hide(row, s, first, last);
    }
  }
};

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
