// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/masks.hpp>
#include <headwave/score_rule.hpp>

#include "support/oracle_attention.hpp"
#include "support/random.hpp"

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

/// A mask of any type, which tells what that tells.
class any_mask {
 public:
  template <hw::score_mask Mask>
  any_mask(std::string text, const Mask& mask) : text_(std::move(text)), seen_(mask) {
    if constexpr (requires { mask.keys_for(std::int64_t{}); }) {
      keys_for_ = [mask](std::int64_t query) { return mask.keys_for(query); };
    }
    if constexpr (requires(const hw::score_region& region) { mask.sees(region); }) {
      sees_ = [mask](const hw::score_region& region) { return mask.sees(region); };
    }
  }

  const std::string& text() const { return text_; }

  bool operator()(hw::score_position at) const { return seen_(at); }
  hw::position_range keys_for(std::int64_t query) const {
    return keys_for_
               ? keys_for_(query)
               : hw::position_range{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  }
  hw::visibility sees(const hw::score_region& region) const { return sees_ ? sees_(region) : hw::visibility::some; }

 private:
  std::string text_;
  std::function<bool(hw::score_position)> seen_;
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
  mask_source(random_source& random, std::size_t samples, std::size_t heads, std::size_t length)
      : random_(random), samples_(samples), heads_(heads), length_(length) {}
  mask_source(const mask_source&) = delete;

  /// A ready-made mask, or a combination of at most 2^depth of them.
  any_mask draw(int depth) {
    if (depth == 0 || random_.chance(0.3)) {
      return draw_one();
    }
    const any_mask a = draw(depth - 1);
    if (random_.chance(0.25)) {
      return random_.chance(0.8) ? any_mask("!" + a.text(), !hw::visible_if(a))
                                 : any_mask("!silent " + a.text(), !hw::visible_if(silent_mask{a}));
    }
    const any_mask b = draw(depth - 1);
    const auto text = [&](const char* by) { return "(" + a.text() + by + b.text() + ")"; };
    switch (random_.integer(0, 7)) {
      case 0:
        return {text(" && silent "), hw::visible_if(a) && silent_mask{b}};
      case 1:
        return {text(" || silent "), silent_mask{b} || hw::visible_if(a)};
      case 2:
        return {text(" && bounded "), bounded_mask{b} && hw::visible_if(a)};
      case 3:
        return {text(" || bounded "), hw::visible_if(bounded_mask{a}) || bounded_mask{b}};
      case 4:
      case 5:
        return {text(" && "), hw::visible_if(a) && b};
      default:
        return {text(" || "), hw::visible_if(a) || b};
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
  any_mask draw_tree();
  any_mask draw_blocks();

  random_source& random_;
  std::size_t samples_, heads_, length_;
  std::deque<std::vector<std::int64_t>> lists_;
  std::deque<hw::tensor<std::int64_t, 2>> ids_;
  std::deque<hw::tensor<std::uint64_t, 4>> words_;
};

inline any_mask mask_source::draw_one(std::size_t kind) {
  switch (kind) {
    case 0:
      return {"causal", hw::causal_mask{}};
    case 1:
      return {"window", hw::window_mask{random_.chance(0.3) ? hw::unlimited : integer(0, length_),
                                        random_.chance(0.3) ? hw::unlimited : integer(0, length_)}};
    case 2:
      return {"prefix", hw::prefix_mask{integer(0, length_ + 1)}};
    case 3:
      return {"global", hw::global_mask{integer(0, length_ / 2 + 1)}};
    case 4:
      return {"chunk", hw::chunk_mask{integer(1, length_ + 1)}};
    case 5:
      return {"dilated", hw::dilated_mask{integer(1, 5)}};
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
      for (std::uint64_t& word : words) {
        word = random_.chance(density) ? (random_.chance(0.3) ? ~std::uint64_t{0} : random_.bits()) : 0;
      }
      return {"bits", hw::bit_mask(words.view(), integer(0, 2))};
    }
    case 9:
      return draw_tree();
    case 10:
      return draw_blocks();
    case 11: {
      const std::uint64_t seed = random_.bits() | 1;
      return {"scattered", hw::visible_if([seed](hw::score_position at) {
                const auto bits = static_cast<std::uint64_t>(at.batch * 31 + at.head * 7 + at.query * 3 + at.key);
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
  return {"tree", hw::tree_mask(parents, integer(0, length_))};
}

inline any_mask mask_source::draw_blocks() {
  auto& offsets = lists_.emplace_back(1, 0);
  auto& columns = lists_.emplace_back();
  const std::int64_t query_block = integer(1, 9), key_block = integer(1, 20);
  const std::size_t rows = random_.integer(0, length_ / static_cast<std::size_t>(query_block) + 1);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column * key_block < static_cast<std::int64_t>(length_) + 3; ++column) {
      if (random_.chance(0.5)) {
        columns.push_back(column);
      }
    }
    offsets.push_back(static_cast<std::int64_t>(columns.size()));
  }
  return {"blocks", hw::block_sparse_mask(query_block, key_block, offsets, columns)};
}

inline oracle::rule meaning_of(const any_mask& mask) {
  return {.visible = [mask](const hw::score_position& at) { return mask(at); }};
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
    return (at.batch * 5 + at.head * 3 + at.query * 2 + at.key) % period;
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
