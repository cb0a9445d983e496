// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/config.hpp>

#include <concepts>
#include <cstdint>
#include <type_traits>

/// \file
/// A caller's own rules for attention: what becomes of a score, and which keys a query sees.
///
/// A score rule is anything that can be called as rule(score, score_position) and returns the new score, in the type
/// that attention computes in (float or double). A mask is anything that can be called as mask(score_position) and
/// returns whether the query sees the key: true where it does. Both follow the options:
///
///   const auto nearer = [](float s, score_position at) { return s - 0.1f * float(at.query - at.key); };
///   const auto no_third = visible_if([](score_position at) { return at.key != 3; });
///   scaled_dot_product_attention(q, k, v, {}, nearer, causal_mask{} && no_third);
///
/// Several rules apply in the order in which they are written, after soft cap, biases and ALiBi. Every mask applies,
/// with those of the options, whatever score a rule gives; a score of -infinity hides the key, too.
///
/// Rules are compiled into the kernels of every instruction set, and are called on any thread and in any order, so they
/// must depend on their arguments alone. They are asked about keys of the key tensor only, and only about those that
/// lengths, causality, the window and the bounds below leave to a row; a rule may be asked about a key that a mask
/// hides, with a score that means nothing.
///
/// A mask may tell more about itself:
///   position_range keys_for(std::int64_t query) const
///     no key outside of it is seen from that position; these are neither read nor computed
///   visibility sees(const score_region& region) const
///     whether none, some or all of a region is visible; groups of keys that no query of a tile sees are not computed

namespace headwave {

/// Where a score stands: its sample, query head, position of the query (query_start + row) and index of the key. Rules
/// see positions past 2^62 on either side of 0 as 2^62 on that side, so that a difference does not overflow.
struct score_position {
  std::int64_t batch, head, query, key;
};

/// first .. last-1; empty if last <= first.
struct position_range {
  std::int64_t first, last;
};

/// All scores of some heads, queries and keys of a sample. No range is empty.
struct score_region {
  std::int64_t batch;
  position_range heads, queries, keys;
};

/// How much of a region is visible. some is always a true answer.
enum class visibility { none, some, all };

/// Says whether a query sees a key. What returns a floating-point number is no mask, but a score rule that forgets the
/// score.
template <class M>
concept score_mask = std::is_invocable_r_v<bool, const M&, score_position> &&
                     !std::is_floating_point_v<std::remove_cvref_t<std::invoke_result_t<const M&, score_position>>>;

/// Says what becomes of a score of type T, or is a mask. What returns a bool is no score rule, but a mask that is given
/// a score.
template <class R, class T>
concept score_rule =
    score_mask<R> || (std::is_invocable_r_v<T, const R&, T, score_position> &&
                      !std::is_same_v<std::remove_cvref_t<std::invoke_result_t<const R&, T, score_position>>, bool>);

namespace detail {

template <class M>
inline constexpr bool bounds_keys = requires(const M& mask, std::int64_t query) {
  { mask.keys_for(query) } -> std::convertible_to<position_range>;
};

template <class M>
inline constexpr bool knows_regions = requires(const M& mask, const score_region& region) {
  { mask.sees(region) } -> std::convertible_to<visibility>;
};

/// a + b and a - b, or the bound that they would pass.
HEADWAVE_INLINE constexpr std::int64_t saturated_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? INT64_MIN : INT64_MAX) : sum;
}
HEADWAVE_INLINE constexpr std::int64_t saturated_difference(std::int64_t a, std::int64_t b) {
  std::int64_t difference = 0;
  return __builtin_sub_overflow(a, b, &difference) ? (b > 0 ? INT64_MIN : INT64_MAX) : difference;
}

inline constexpr position_range every_position{INT64_MIN, INT64_MAX};

/// The position of a query as rules see it.
HEADWAVE_INLINE constexpr std::int64_t position_for_rules(std::int64_t position) {
  constexpr std::int64_t most = std::int64_t{1} << 62;
  return position < -most ? -most : position > most ? most : position;
}

template <class M>
HEADWAVE_INLINE constexpr position_range keys_for(const M& mask, std::int64_t query) {
  if constexpr (bounds_keys<M>) {
    return mask.keys_for(query);
  } else {
    return every_position;
  }
}

template <class M>
HEADWAVE_INLINE constexpr visibility sees(const M& mask, const score_region& region) {
  if constexpr (knows_regions<M>) {
    return mask.sees(region);
  } else {
    return visibility::some;
  }
}

HEADWAVE_INLINE constexpr position_range both(position_range a, position_range b) {
  return {a.first > b.first ? a.first : b.first, a.last < b.last ? a.last : b.last};
}

/// The smallest range that holds two, of which either may be empty.
HEADWAVE_INLINE constexpr position_range either(position_range a, position_range b) {
  if (a.last <= a.first || b.last <= b.first) {
    return a.last <= a.first ? b : a;
  }
  return {a.first < b.first ? a.first : b.first, a.last > b.last ? a.last : b.last};
}

HEADWAVE_INLINE constexpr visibility both(visibility a, visibility b) {
  return a == visibility::none || b == visibility::none ? visibility::none : a == visibility::all ? b : a;
}

HEADWAVE_INLINE constexpr visibility opposite(visibility a) {
  return a == visibility::none ? visibility::all : a == visibility::all ? visibility::none : a;
}

}  // namespace detail

/// A mask that is visible where its function says so, with what the function tells about itself. See visible_if.
template <score_mask F>
struct function_mask {
  F function;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const { return function(at); }
  HEADWAVE_INLINE constexpr position_range keys_for(std::int64_t query) const
    requires detail::bounds_keys<F>
  {
    return function.keys_for(query);
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& region) const
    requires detail::knows_regions<F>
  {
    return function.sees(region);
  }
};

/// The mask of a function bool(score_position): true where the query sees the key. With it a lambda can be combined by
/// &&, || and !.
template <score_mask F>
HEADWAVE_INLINE constexpr function_mask<F> visible_if(F function) {
  return {static_cast<F&&>(function)};
}

/// Visible where both masks are.
template <score_mask A, score_mask B>
struct and_mask {
  A a;
  B b;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const { return a(at) && b(at); }
  HEADWAVE_INLINE constexpr position_range keys_for(std::int64_t query) const
    requires(detail::bounds_keys<A> || detail::bounds_keys<B>)
  {
    return detail::both(detail::keys_for(a, query), detail::keys_for(b, query));
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& region) const
    requires(detail::knows_regions<A> || detail::knows_regions<B>)
  {
    return detail::both(detail::sees(a, region), detail::sees(b, region));
  }
};

/// Visible where one of two masks is, or both.
template <score_mask A, score_mask B>
struct or_mask {
  A a;
  B b;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const { return a(at) || b(at); }
  HEADWAVE_INLINE constexpr position_range keys_for(std::int64_t query) const
    requires(detail::bounds_keys<A> && detail::bounds_keys<B>)
  {
    return detail::either(a.keys_for(query), b.keys_for(query));
  }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& region) const
    requires(detail::knows_regions<A> || detail::knows_regions<B>)
  {
    return detail::opposite(
        detail::both(detail::opposite(detail::sees(a, region)), detail::opposite(detail::sees(b, region))));
  }
};

/// Visible where a mask is not.
template <score_mask A>
struct not_mask {
  A a;

  HEADWAVE_INLINE constexpr bool operator()(score_position at) const { return !a(at); }
  HEADWAVE_INLINE constexpr visibility sees(const score_region& region) const
    requires detail::knows_regions<A>
  {
    return detail::opposite(a.sees(region));
  }
};

namespace detail {

/// What can be true or false by itself, as a std::function can, keeps its own !, && and ||.
template <class M>
inline constexpr bool is_condition = std::is_constructible_v<bool, const M&>;

}  // namespace detail

template <score_mask A, score_mask B>
  requires(!detail::is_condition<A> || !detail::is_condition<B>)
HEADWAVE_INLINE constexpr and_mask<A, B> operator&&(A a, B b) {
  return {static_cast<A&&>(a), static_cast<B&&>(b)};
}
template <score_mask A, score_mask B>
  requires(!detail::is_condition<A> || !detail::is_condition<B>)
HEADWAVE_INLINE constexpr or_mask<A, B> operator||(A a, B b) {
  return {static_cast<A&&>(a), static_cast<B&&>(b)};
}
template <score_mask A>
  requires(!detail::is_condition<A>)
HEADWAVE_INLINE constexpr not_mask<A> operator!(A a) {
  return {static_cast<A&&>(a)};
}

namespace detail {

/// The rules of a call, by reference, in their order.
template <class... Rules>
struct rule_list {
  static constexpr bool has_masks = false, has_scores = false, has_bounds = false, has_regions = false;

  HEADWAVE_INLINE position_range keys_for(std::int64_t) const { return every_position; }
  HEADWAVE_INLINE visibility sees(const score_region&) const { return visibility::all; }
  HEADWAVE_INLINE bool is_visible(score_position) const { return true; }
  template <class T>
  HEADWAVE_INLINE T score(T s, score_position) const {
    return s;
  }
};

template <class First, class... Rest>
struct rule_list<First, Rest...> {
  static constexpr bool is_mask = score_mask<First>;
  static constexpr bool has_masks = is_mask || rule_list<Rest...>::has_masks;
  static constexpr bool has_scores = !is_mask || rule_list<Rest...>::has_scores;
  static constexpr bool has_bounds = (is_mask && bounds_keys<First>) || rule_list<Rest...>::has_bounds;
  static constexpr bool has_regions = (is_mask && knows_regions<First>) || rule_list<Rest...>::has_regions;

  const First& first;
  rule_list<Rest...> rest;

  HEADWAVE_INLINE position_range keys_for(std::int64_t query) const {
    if constexpr (is_mask) {
      return both(detail::keys_for(first, query), rest.keys_for(query));
    } else {
      return rest.keys_for(query);
    }
  }

  /// Whether the masks let a region be seen.
  HEADWAVE_INLINE visibility sees(const score_region& region) const {
    if constexpr (is_mask) {
      return both(detail::sees(first, region), rest.sees(region));
    } else {
      return rest.sees(region);
    }
  }

  /// Whether every mask lets a position be seen.
  HEADWAVE_INLINE bool is_visible(score_position at) const {
    if constexpr (is_mask) {
      return first(at) && rest.is_visible(at);
    } else {
      return rest.is_visible(at);
    }
  }

  // A rule may take and return another type than attention computes in.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wfloat-conversion"
#pragma GCC diagnostic ignored "-Wdouble-promotion"
  /// What every score rule, in order, makes of a score.
  template <class T>
  HEADWAVE_INLINE T score(T s, score_position at) const {
    if constexpr (is_mask) {
      return rest.score(s, at);
    } else {
      return rest.score(static_cast<T>(first(s, at)), at);
    }
  }
#pragma GCC diagnostic pop
};

HEADWAVE_INLINE rule_list<> list_rules() {
  return {};
}
template <class First, class... Rest>
HEADWAVE_INLINE rule_list<First, Rest...> list_rules(const First& first, const Rest&... rest) {
  return {first, list_rules(rest...)};
}

}  // namespace detail
}  // namespace headwave
