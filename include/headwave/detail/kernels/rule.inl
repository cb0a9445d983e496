// SPDX-License-Identifier: MIT
// A caller's score rules and masks, compiled for the tier. Compiled once per tier; see detail/tiers.hpp.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

/// Applies rules to the scores of the keys at.key, at.key + 1, ...: Count of them, or if that is 0, count. A constant
/// count makes loops that compilers turn into vectors. What a mask hides becomes -infinity, by its bits.
template <index Count, class T, class Rules>
HEADWAVE_INLINE void apply_rules(const Rules& rules, T* scores, const score_position& at, index count) {
  const index n = Count ? Count : count;
  if constexpr (Rules::has_scores) {
    for (index i = 0; i < n; ++i) {
      scores[i] = rules.score(scores[i], {at.batch, at.head, at.query, at.key + i});
    }
  }
  if constexpr (Rules::has_masks) {
    for (index i = 0; i < n; ++i) {
      const bool seen = rules.is_visible({at.batch, at.head, at.query, at.key + i});
      scores[i] = from_bits<T>(seen ? bits_of(scores[i]) : negative_infinity_bits<T>);
    }
  }
}

/// Applies a rule_list to a row's scores of the keys keys.first .. keys.last-1; what its masks hide becomes -infinity.
/// scores[0] is that of keys.first.
template <class T, class Rules>
void finish_by_rules(const void* object, T* scores, const score_position& row, position_range keys) {
  const Rules& rules = *static_cast<const Rules*>(object);
  constexpr index lanes = vec<T>::lanes, region = 4 * lanes;
  for (index first = keys.first; first < keys.last; first += region) {
    const index last = smaller(keys.last, first + region);
    T* const s = scores + (first - keys.first);
    if constexpr (Rules::has_regions) {
      const visibility seen =
          rules.sees({row.batch, {row.head, row.head + 1}, {row.query, saturated_sum(row.query, 1)}, {first, last}});
      if (seen == visibility::none) {
        for (index key = first; key < last; ++key) {
          s[key - first] = negative_infinity<T>();
        }
        continue;
      }
      if (seen == visibility::all && !Rules::has_scores) {
        continue;
      }
    }
    index key = first;
    for (; key + lanes <= last; key += lanes) {
      apply_rules<lanes>(rules, s + (key - first), {row.batch, row.head, row.query, key}, lanes);
    }
    apply_rules<0>(rules, s + (key - first), {row.batch, row.head, row.query, key}, last - key);
  }
}

template <class T, class Rules>
void set_rules(rule_arguments<T>& rules) {
  rules.finish = finish_by_rules<T, Rules>;
}

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
