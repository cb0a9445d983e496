// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/masks.hpp>
#include <headwave/score_rule.hpp>

#include "support/oracle_attention.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

/// \file
/// Rules of a caller's own, drawn at random. Their types are few, so that a test compiles few kernels: what a rule does
/// is chosen when it is called.

namespace support {

/// A mask of any type, which tells what that tells, and may know what it means by a formula apart from the library's.
class any_mask {
 public:
  using formula = std::function<bool(hw::score_position)>;

  template <hw::score_mask Mask>
  any_mask(std::string text, const Mask& mask, formula meaning = {})
      : text_(std::move(text)), seen_(mask), meaning_(std::move(meaning)) {
    if constexpr (requires { mask.keys_for(std::int64_t{}); }) {
      keys_for_ = [mask](std::int64_t query) { return mask.keys_for(query); };
    }
    if constexpr (requires(const hw::score_region& region) { mask.sees(region); }) {
      sees_ = [mask](const hw::score_region& region) { return mask.sees(region); };
    }
  }

  const std::string& text() const { return text_; }

  bool meaning(hw::score_position at) const { return meaning_ ? meaning_(at) : seen_(at); }

  bool operator()(hw::score_position at) const { return seen_(at); }
  hw::position_range keys_for(std::int64_t query) const {
    return keys_for_
               ? keys_for_(query)
               : hw::position_range{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  }
  hw::visibility sees(const hw::score_region& region) const { return sees_ ? sees_(region) : hw::visibility::some; }

 private:
  std::string text_;
  formula seen_, meaning_;
  std::function<hw::position_range(std::int64_t)> keys_for_;
  std::function<hw::visibility(const hw::score_region&)> sees_;
};

/// The same masks, telling less about themselves.
struct silent_mask {
  any_mask mask;
  bool operator()(hw::score_position at) const { return mask(at); }
};
struct bounded_mask {
  any_mask mask;
  bool operator()(hw::score_position at) const { return mask(at); }
  hw::position_range keys_for(std::int64_t query) const { return mask.keys_for(query); }
};
struct region_mask {
  any_mask mask;
  bool operator()(hw::score_position at) const { return mask(at); }
  hw::visibility sees(const hw::score_region& region) const { return mask.sees(region); }
};

/// Draws masks for positions about 0 .. length-1, and keeps the memory that they look at.
class mask_source {
 public:
  /// extreme: numbers of masks are also any that these may have.
  mask_source(random_source& random, std::size_t samples, std::size_t heads, std::size_t length, bool extreme = false)
      : random_(random), samples_(samples), heads_(heads), length_(length), extreme_(extreme) {}
  mask_source(const mask_source&) = delete;

  /// A ready-made mask, or a combination of at most 2^depth of them.
  any_mask draw(int depth) {
    if (depth == 0 || random_.chance(0.3)) {
      return draw_one();
    }
    const any_mask a = draw(depth - 1);
    if (random_.chance(0.25)) {
      const auto not_a = [a](hw::score_position at) { return !a.meaning(at); };
      return random_.chance(0.8) ? any_mask("!" + a.text(), !hw::visible_if(a), not_a)
                                 : any_mask("!silent " + a.text(), !hw::visible_if(silent_mask{a}), not_a);
    }
    const any_mask b = draw(depth - 1);
    const auto text = [&](const char* by) { return "(" + a.text() + by + b.text() + ")"; };
    const auto both = [a, b](hw::score_position at) { return a.meaning(at) && b.meaning(at); };
    const auto either = [a, b](hw::score_position at) { return a.meaning(at) || b.meaning(at); };
    switch (random_.integer(0, 7)) {
      case 0:
        return {text(" && silent "), hw::visible_if(a) && silent_mask{b}, both};
      case 1:
        return {text(" || silent "), silent_mask{b} || hw::visible_if(a), either};
      case 2:
        return {text(" && bounded "), bounded_mask{b} && hw::visible_if(a), both};
      case 3:
        return {text(" || bounded "), hw::visible_if(bounded_mask{a}) || bounded_mask{b}, either};
      case 4:
      case 5:
        return {text(" && "), hw::visible_if(a) && b, both};
      default:
        return {text(" || "), hw::visible_if(a) || b, either};
    }
  }

  /// A ready-made mask.
  any_mask draw_one() { return draw_one(random_.integer(0, kinds - 1)); }
  any_mask draw_one(std::size_t kind);

  static constexpr std::size_t kinds = 13;

 private:
  std::int64_t integer(std::size_t low, std::size_t high) {
    return static_cast<std::int64_t>(random_.integer(low, high));
  }
  /// A number of a mask, which must not be less than least.
  std::int64_t number(std::size_t low, std::size_t high, std::int64_t least) {
    return extreme_ && random_.chance(0.5) ? (std::max)(least, random_.extreme()) : integer(low, high);
  }
  any_mask draw_tree();
  any_mask draw_blocks();

  random_source& random_;
  std::size_t samples_, heads_, length_;
  bool extreme_;
  std::deque<std::vector<std::int64_t>> lists_;
  std::deque<hw::tensor<std::int64_t, 2>> ids_;
  std::deque<hw::tensor<std::uint64_t, 4>> words_;
};

// Formulas of positions are computed in oracle::real, in which sums of 64-bit integers are exact.
inline any_mask mask_source::draw_one(std::size_t kind) {
  using oracle::real;
  const auto rest = [](real a, real b) { return std::fmod(a, b) < 0 ? std::fmod(a, b) + b : std::fmod(a, b); };
  switch (kind) {
    case 0:
      return {"causal", hw::causal_mask{}};
    case 1: {
      const std::int64_t left = random_.chance(0.3) ? hw::unlimited : number(0, length_, 0);
      const std::int64_t right = random_.chance(0.3) ? hw::unlimited : number(0, length_, 0);
      return {"window(" + std::to_string(left) + ", " + std::to_string(right) + ")", hw::window_mask{left, right},
              [=](hw::score_position at) {
                const real distance = real(at.key) - real(at.query);
                return (left == hw::unlimited || -distance <= real(left)) &&
                       (right == hw::unlimited || distance <= real(right));
              }};
    }
    case 2: {
      const std::int64_t length = number(0, length_ + 1, INT64_MIN);
      return {"prefix(" + std::to_string(length) + ")", hw::prefix_mask{length}};
    }
    case 3: {
      const std::int64_t count = number(0, length_ / 2 + 1, INT64_MIN);
      return {"global(" + std::to_string(count) + ")", hw::global_mask{count}};
    }
    case 4: {
      const std::int64_t size = number(1, length_ + 1, 1);
      return {"chunk(" + std::to_string(size) + ")", hw::chunk_mask{size}, [=](hw::score_position at) {
                return real(at.query) - rest(real(at.query), real(size)) ==
                       real(at.key) - rest(real(at.key), real(size));
              }};
    }
    case 5: {
      const std::int64_t stride = number(1, 5, 1);
      return {"dilated(" + std::to_string(stride) + ")", hw::dilated_mask{stride},
              [=](hw::score_position at) { return rest(real(at.query) - real(at.key), real(stride)) == 0; }};
    }
    case 6: {
      const std::int64_t period = integer(1, 40), seen = integer(0, 40);
      return {"distance",
              hw::distance_mask{[=](std::int64_t distance) { return (distance % period + period) % period <= seen; }}};
    }
    case 7: {
      const std::size_t rows = random_.chance(0.5) ? 1 : samples_;
      auto& ids = ids_.emplace_back(extents<2>{rows, random_.chance(0.7) ? length_ : random_.integer(0, length_)});
      for (std::size_t row = 0; row < rows; ++row) {
        std::int64_t id = -1;
        for (std::size_t i = 0; i < ids.extent(1); ++i) {
          id = random_.chance(0.1) ? integer(0, 3) : id;
          ids(row, i) = id;
        }
      }
      return {"document", hw::document_mask(hw::tensor_view<const std::int64_t, 2>(ids.view()))};
    }
    case 8: {
      const auto either = [&](std::size_t n) { return random_.chance(0.5) ? 1 : n; };
      const std::size_t columns = (length_ + 63) / 64;
      auto& words = words_.emplace_back(
          extents<4>{either(samples_), either(heads_), length_, random_.chance(0.8) ? columns : columns / 2});
      const double density = random_.uniform(0, 1);
      random_.in_bulk([&](random_source& source) {
        for (std::uint64_t& word : words) {
          word = source.chance(density) ? (source.chance(0.3) ? ~std::uint64_t{0} : source.bits()) : 0;
        }
      });
      return {"bits", hw::bit_mask(words.view(), number(0, 2, INT64_MIN))};
    }
    case 9:
      return draw_tree();
    case 10:
      return draw_blocks();
    case 11: {
      const std::uint64_t seed = random_.bits() | 1;
      return {"scattered", hw::visible_if([seed](hw::score_position at) {
                const auto of = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
                const std::uint64_t bits = of(at.batch) * 31 + of(at.head) * 7 + of(at.query) * 3 + of(at.key);
                return (bits * seed >> 61) != 0;
              })};
    }
    default: {
      const bool all = random_.chance(0.5);
      return {all ? "all" : "none", hw::visible_if([all](hw::score_position) { return all; })};
    }
  }
}

inline any_mask mask_source::draw_tree() {
  auto& parents = lists_.emplace_back();
  const std::size_t nodes = random_.integer(0, length_);
  for (std::size_t n = 0; n < nodes; ++n) {
    parents.push_back(integer(0, n) - 1);
  }
  return {"tree", hw::tree_mask(parents, number(0, length_, 0))};
}

inline any_mask mask_source::draw_blocks() {
  auto& offsets = lists_.emplace_back(1, 0);
  auto& columns = lists_.emplace_back();
  const std::int64_t query_block = number(1, 9, 1), key_block = number(1, 20, 1);
  const std::size_t rows = random_.integer(0, length_ / static_cast<std::size_t>(query_block) + 1);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < (static_cast<std::int64_t>(length_) + 2) / key_block + 1; ++column) {
      if (random_.chance(0.5)) {
        columns.push_back(column);
      }
    }
    offsets.push_back(static_cast<std::int64_t>(columns.size()));
  }
  return {"blocks", hw::block_sparse_mask(query_block, key_block, offsets, columns)};
}

inline oracle::rule meaning_of(const any_mask& mask) {
  return {.visible = [mask](const hw::score_position& at) { return mask.meaning(at); }};
}

/// A score rule in T, and what it means.
template <class T>
struct position_rule {
  enum class kind { add, scale, hide, at_least };

  kind what = kind::add;
  T size = 0;  ///< a multiple of 1/16, so that small multiples of it are exact
  std::int64_t period = 1;

  /// A small integer of every coordinate.
  std::int64_t phase(const hw::score_position& at) const {
    return (at.batch * 5 + at.head * 3 + at.query % period * 2 + at.key) % period;
  }

  T operator()(T score, hw::score_position at) const {
    switch (what) {
      case kind::add:
        return score + size * static_cast<T>(phase(at));
      case kind::scale:
        return score * (T(1) + size * static_cast<T>(at.head % 4 + at.batch % 2));
      case kind::hide:
        return phase(at) == 0 ? -std::numeric_limits<T>::infinity() : score;
      case kind::at_least:
        return score < size ? size : score;
    }
    return score;
  }

  oracle::rule meaning() const {
    const position_rule rule = *this;
    return {.score = [rule](oracle::real& score, oracle::real& error, const hw::score_position& at) {
      using oracle::real;
      const real amount = static_cast<real>(rule.size);
      const auto rounded = [&](real value) {
        score = value;
        error += std::isfinite(value) ? oracle::unit<T> * std::fabs(value) : 0;
      };
      switch (rule.what) {
        case kind::add:
          rounded(score + amount * static_cast<real>(rule.phase(at)));
          break;
        case kind::scale: {
          const real factor = 1 + amount * static_cast<real>(at.head % 4 + at.batch % 2);
          error *= factor;
          rounded(score * factor);
          break;
        }
        case kind::hide:
          score = rule.phase(at) == 0 ? -std::numeric_limits<real>::infinity() : score;
          break;
        case kind::at_least:
          score = (std::max)(score, amount);
          break;
      }
    }};
  }

  std::string text() const {
    static constexpr const char* names[] = {"add", "scale", "hide", "at_least"};
    return std::string(names[static_cast<int>(what)]) + "(" + std::to_string(static_cast<double>(size)) + ", " +
           std::to_string(period) + ")";
  }
};

/// after_hide: a rule before this one may hide keys, which this one must leave hidden.
template <class T>
position_rule<T> draw_score_rule(random_source& random, bool after_hide = false) {
  using kind = typename position_rule<T>::kind;
  const kind kinds[] = {kind::add, kind::scale, kind::hide, kind::at_least};
  return {kinds[random.integer(0, after_hide ? 2 : 3)], static_cast<T>(random.integer(0, 16)) / 16,
          static_cast<std::int64_t>(random.integer(1, 12))};
}

}  // namespace support
