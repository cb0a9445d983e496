// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/dispatch.hpp>
#include <headwave/detail/rotary_rates.hpp>
#include <headwave/detail/scratch.hpp>
#include <headwave/executor.hpp>
#include <headwave/positional_encoding.hpp>
#include <headwave/tensor.hpp>

#include <cstdint>
#include <optional>
#include <span>

/// \file
/// Rotary position embedding: queries and keys are rotated by angles that grow with the position, so that their product
/// depends on the distance of their positions alone.
///
/// At position p the pair i = 0 .. r/2-1 of channels (a, b), r being rotary_dim, becomes
///   a' = m (a cos(p w_i) - b sin(p w_i)),   b' = m (b cos(p w_i) + a sin(p w_i)),   w_i = base^(-2 i / r),
/// where a scaling, for lengths beyond those of training, changes w and m; m is 1 without one. Source: Su et al.,
/// "RoFormer" (2021), 3.2.2.
///
/// Angles are formed in integers, from frequencies of 128 bits, and only m cos and m sin are rounded. Their largest
/// error for m = 1: float 3.1e-8 for |p| <= 2^31, double 1e-15 + 2^-53 |p w_i|; otherwise half a unit in their last
/// place, and m times 1.2e-9 or that of double. The bits of a token depend on its values and its position alone: not on
/// how a sequence is cut into calls, on other tokens and heads, or on how positions are given.

namespace headwave {

/// Position interpolation: w_i / factor. Source: Chen et al. (2023).
struct linear_scaling {
  double factor = 1;
};

/// A larger base, base * factor^(r / (r-2)): the highest frequency stays, the lowest is divided by factor. Source:
/// bloc97, "NTK-aware scaled RoPE" (2023).
struct ntk_scaling {
  double factor = 1;
};

/// The same for one length of sequence, with factor * length / original_length - (factor - 1) for factor, and 1 up to
/// original_length. Source: emozilla, "Dynamically scaled RoPE" (2023), in the form of Peng et al. (2023), B.2, and of
/// Hugging Face. Keys in a cache keep the frequencies of the length at which they were rotated.
struct dynamic_ntk_scaling {
  double factor = 1;
  std::int64_t original_length = 0;  ///< length of training
  std::int64_t length = 0;           ///< of the sequence
};

/// YaRN: frequencies of which many turns fit into original_length stay, low ones are divided by factor:
///   d(n) = r ln(original_length / (2 pi n)) / (2 ln base),  low = floor d(beta_fast), high = ceil d(beta_slow),
///   ramp_i = (i - low) / max(high - low, 0.001), limited to [0, 1],  w'_i = w_i (1 - ramp_i) + ramp_i w_i / factor,
/// where low is at least 0 and high at most r - 1. m is yarn_magnitude(factor). Source: Peng et al., "YaRN" (2023), 3.
struct yarn_scaling {
  double factor = 1;
  std::int64_t original_length = 0;
  double beta_fast = 32, beta_slow = 1;  ///< turns
  bool truncate = true;                  ///< false: low and high are not rounded
};

/// w_i / short_factors[i], or / long_factors[i] where length > original_length; r/2 factors each.
/// m = (1 + ln factor / ln original_length)^(1/2), and 1 for factor <= 1, with factor = longest length /
/// original_length. Source: Ding et al., "LongRoPE" (2024), with the m of Microsoft's Phi-3.
struct longrope_scaling {
  std::span<const double> short_factors, long_factors;  ///< read by the constructor of rotary_embedding
  double factor = 1;
  std::int64_t original_length = 0;
  std::int64_t length = 0;  ///< of the sequence
};

/// Frequencies that turn less than low_frequency_factor times over original_length are divided by factor, those that
/// turn more than high_frequency_factor times stay; between them
///   w'_i = w_i ((1 - s) / factor + s),  s = (original_length w_i / (2 pi) - low) / (high - low).
/// Source: Llama 3.1's reference code (2024).
struct llama3_scaling {
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  std::int64_t original_length = 0;
};

/// w_i / factor for the first floor(fraction r/2) pairs, 0 for the others, which so stay as they are. Unlike a smaller
/// rotary_dim this leaves r, the exponents and the pairing alone. Source: Gemma 4 in Hugging Face.
struct proportional_scaling {
  double fraction = 1;
  double factor = 1;
};

/// One of the scalings above; by default none.
class rotary_scaling {
 public:
  HEADWAVE_INLINE rotary_scaling() = default;
  HEADWAVE_INLINE rotary_scaling(const linear_scaling& s)
      : fields_{.kind = detail::rotary_scaling_kind::linear, .factor = s.factor} {}
  HEADWAVE_INLINE rotary_scaling(const ntk_scaling& s)
      : fields_{.kind = detail::rotary_scaling_kind::ntk, .factor = s.factor} {}
  HEADWAVE_INLINE rotary_scaling(const dynamic_ntk_scaling& s)
      : fields_{.kind = detail::rotary_scaling_kind::dynamic_ntk,
                .factor = s.factor,
                .original_length = s.original_length,
                .length = s.length} {}
  HEADWAVE_INLINE rotary_scaling(const yarn_scaling& s)
      : fields_{.kind = detail::rotary_scaling_kind::yarn,
                .factor = s.factor,
                .low = s.beta_slow,
                .high = s.beta_fast,
                .original_length = s.original_length,
                .truncate = s.truncate} {}
  HEADWAVE_INLINE rotary_scaling(const longrope_scaling& s)
      : fields_{.kind = detail::rotary_scaling_kind::longrope,
                .factor = s.factor,
                .original_length = s.original_length,
                .length = s.length,
                .short_factors = s.short_factors,
                .long_factors = s.long_factors} {}
  HEADWAVE_INLINE rotary_scaling(const llama3_scaling& s)
      : fields_{.kind = detail::rotary_scaling_kind::llama3,
                .factor = s.factor,
                .low = s.low_frequency_factor,
                .high = s.high_frequency_factor,
                .original_length = s.original_length} {}
  HEADWAVE_INLINE rotary_scaling(const proportional_scaling& s)
      : fields_{.kind = detail::rotary_scaling_kind::proportional, .factor = s.factor, .fraction = s.fraction} {}

  HEADWAVE_INLINE const detail::rotary_scaling_fields& fields() const { return fields_; }

 private:
  detail::rotary_scaling_fields fields_{};
};

/// Which pairs the axes of multi-axis positions own.
enum class section_order {
  blocks,      ///< the first sections[0] pairs axis 0, the next sections[1] axis 1, ... Source: Qwen2-VL (2024), 2.1
  interleaved  ///< pair i axis a = i mod axes where i < axes * sections[a], axis 0 otherwise. Source: Qwen3-VL (2025)
};

/// How a rotary embedding rotates. Spans are read by the constructor of rotary_embedding and may go then.
struct rotary_options {
  std::size_t rotary_dim = 0;  ///< channels of a head that are rotated; even, at least 2
  double base = 10000;         ///< positive
  /// interleaved: pairs are channels 2 i and 2 i + 1, as in RoFormer; halves: i and i + r/2, as in Llama's published
  /// weights for Hugging Face ("NeoX", "rotate half"). Weights are made for one of them.
  channel_layout layout = channel_layout::interleaved;
  rotary_scaling scaling = {};
  std::size_t first_channel = 0;  ///< the rotated channels are first_channel .. first_channel + rotary_dim - 1
  /// w_i in radians per position, [rotary_dim / 2], of any sign, instead of base and scaling.
  std::span<const double> frequencies = {};
  /// m. Default: as the scaling says. Queries and keys both have it, so scores have its square.
  std::optional<double> magnitude = {};
  /// Multi-axis positions (time, height, width): pairs of each axis, together rotary_dim / 2. Default: one axis.
  std::span<const std::size_t> sections = {};
  section_order order = section_order::blocks;
};

namespace detail {

/// Position of a token: start, or data where there is any, and the token's number where step is 1.
struct position_list {
  const std::int64_t* data = nullptr;
  std::int64_t start = 0;
  index axis_stride = 0, sample_stride = 0, token_stride = 0, step = 0;
  std::array<std::size_t, 3> extents{};  ///< of what was given
  std::size_t rank = 0;                  ///< 0: a start
  bool per_sample = false;

  HEADWAVE_INLINE uint128 at(index axis, index sample, index token) const {
    const std::int64_t base = data ? data[axis * axis_stride + sample * sample_stride + token * token_stride] : start;
    return static_cast<uint128>(base) + static_cast<uint128>(token * step);
  }
};

/// A rotary embedding's tables, as the driver below sees them.
struct rotary_tables {
  const turn_rate* rates;     ///< [pairs]
  const double* turns;        ///< [turn_group][2][count] sines and cosines of 0, 1, ... positions
  const unsigned char* axes;  ///< [pairs] the axis of a pair; null: axis 0
  std::size_t axis_count, pairs, first_channel;
  bool interleaved;
  double magnitude;
};

}  // namespace detail

/// Where the tokens of a call stand, in one of these forms, each of which converts to this:
///   an integer                              token t at first + t, in every sample
///   a vector, span or array [length]        each token's position, in every sample
///   a tensor or view [length]               the same
///   a tensor or view [batch, length]        each token's position
///   a tensor or view [axes, batch, length]  likewise for each axis of sections
/// and starts(s), [batch]: token t of sample b at s[b] + t, for caches of different lengths. Elements are std::int64_t,
/// in any order and of any sign; only looked at during the call. One position stands for all axes.
class rotary_positions {
 public:
  template <class Integer>
    requires(std::is_integral_v<Integer> && !std::is_same_v<Integer, bool>)
  HEADWAVE_INLINE rotary_positions(Integer first) : list_{.start = static_cast<std::int64_t>(first), .step = 1} {}

  template <class Range>
    requires(std::is_convertible_v<const Range&, std::span<const std::int64_t>> &&
             !requires(const Range& x) { as_view(x); })
  HEADWAVE_INLINE rotary_positions(const Range& positions)
      : rotary_positions(tensor_view<const std::int64_t, 1>(std::data(positions), {std::size(positions)})) {}

  template <class X>
    requires(std::is_same_v<element_of<const X>, std::int64_t> &&
             (tensor_like<const X, 1> || tensor_like<const X, 2> || tensor_like<const X, 3>))
  HEADWAVE_INLINE rotary_positions(const X& positions) {
    const auto view = as_view(positions);
    constexpr std::size_t rank = decltype(view)::rank();
    list_.data = view.data();
    list_.token_stride = view.stride(rank - 1);
    if constexpr (rank >= 2) {
      list_.sample_stride = view.stride(rank - 2);
    }
    if constexpr (rank == 3) {
      list_.axis_stride = view.stride(0);
    }
    for (std::size_t axis = 0; axis < rank; ++axis) {
      list_.extents[axis] = view.extent(axis);
    }
    list_.rank = rank;
    list_.per_sample = rank >= 2;
  }

  HEADWAVE_INLINE static rotary_positions starts(std::span<const std::int64_t> starts) {
    rotary_positions result(0);
    result.list_.data = starts.data();
    result.list_.sample_stride = 1;
    result.list_.extents[0] = starts.size();
    result.list_.rank = 1;
    result.list_.per_sample = true;
    return result;
  }

  HEADWAVE_INLINE const detail::position_list& list() const { return list_; }

 private:
  detail::position_list list_{};
};

namespace detail::inline HEADWAVE_ABI {

inline void check_sections(const char* function, const rotary_options& options) {
  const std::size_t axes = options.sections.size(), pairs = options.rotary_dim / 2;
  std::size_t left = pairs;
  bool fits = axes <= 255;
  for (std::size_t axis = 0; fits && axis < axes; ++axis) {
    const std::size_t section = options.sections[axis];
    fits = section <= left;
    // Its last pair is number axis + axes * (section - 1).
    if (fits && options.order == section_order::interleaved && axis > 0 && section > 0) {
      fits = section - 1 <= (pairs - 1) / axes && axis + axes * (section - 1) < pairs;
    }
    left -= fits ? section : 0;
  }
  if (axes > 0 && !(fits && left == 0)) {
    fail(function, "sections must be rotary_dim / 2 pairs together, and fit: rotary_dim " +
                       std::to_string(options.rotary_dim) + ", sections " + shape_text(options.sections.data(), axes));
  }
}

/// Checks all options, and computes the turns per position of each pair.
inline tensor<turn_rate, 1> rotary_rates_of(const rotary_options& options) {
  constexpr const char* function = "rotary_embedding";
  const std::size_t pairs = options.rotary_dim / 2;
  const bool explicit_rates = options.frequencies.data() != nullptr;
  if (options.rotary_dim == 0 || options.rotary_dim % 2 != 0 ||
      options.rotary_dim > static_cast<std::size_t>(PTRDIFF_MAX) / (64 * sizeof(double))) {
    fail(function, "rotary_dim must be even and positive, and fit into memory: " + std::to_string(options.rotary_dim));
  }
  if (!is_finite(options.base) || !(options.base > 0)) {
    fail(function, "base must be positive and finite: " + std::to_string(options.base));
  }
  if (options.magnitude && !is_finite(*options.magnitude)) {
    fail(function, "magnitude must be finite");
  }
  check_sections(function, options);
  tensor<turn_rate, 1> rates({pairs}, uninitialized);
  if (!explicit_rates) {
    check_rotary_scaling(function, options.scaling.fields(), pairs, options.base);
    fill_rotary_rates(rates.data(), pairs, options.base, options.scaling.fields());
    return rates;
  }
  if (options.scaling.fields().kind != rotary_scaling_kind::none) {
    fail(function, "frequencies are given as they are to be, without a scaling");
  }
  if (options.frequencies.size() != pairs) {
    fail(function, differ("rotary_dim / 2 frequencies", options.frequencies.size(), pairs));
  }
  for (std::size_t i = 0; i < pairs; ++i) {
    const double frequency = options.frequencies[i];
    if (!is_finite(frequency)) {
      fail(function, "frequencies must be finite");
    }
    rates.data()[i] = fixed_point(multiply(widen(frequency), turns_per_radian), bits_of(frequency) >> 63);
  }
  return rates;
}

/// Pairs, padded to whole vecs of any element type.
inline index padded_pairs(std::size_t pairs) {
  return round_up(static_cast<index>(pairs), vec_lanes<float>);
}

/// [turn_group][2][padded pairs]: sines and cosines of 0, 1, ... positions.
inline tensor<double, 1> rotary_turns_of(const tensor<turn_rate, 1>& rates) {
  const auto count = static_cast<std::size_t>(padded_pairs(rates.size()));
  tensor<double, 1> turns({2 * turn_group * count}, uninitialized);
  scratch_frame frame;
  auto* const phases = frame.take<std::uint64_t>(count);
  for (std::size_t place = 0; place < turn_group; ++place) {
    for (std::size_t i = 0; i < count; ++i) {
      phases[i] = i < rates.size() ? place * phase_step(rates.data()[i]) : 0;
    }
    HEADWAVE_DISPATCH(sine_cosine_row(turns.data() + 2 * place * count, phases, static_cast<index>(count)))
  }
  return turns;
}

/// The axis of each pair; nothing without sections.
inline tensor<unsigned char, 1> rotary_axes_of(const rotary_options& options) {
  const std::size_t axes = options.sections.size(), pairs = options.rotary_dim / 2;
  if (axes == 0) {
    return {};
  }
  tensor<unsigned char, 1> result({pairs}, uninitialized);
  std::size_t axis = 0, end = options.sections[0];
  for (std::size_t i = 0; i < pairs; ++i) {
    if (options.order == section_order::interleaved) {
      axis = i / axes < options.sections[i % axes] ? i % axes : 0;
    } else {
      while (i >= end) {
        end += options.sections[++axis];
      }
    }
    result.data()[i] = static_cast<unsigned char>(axis);
  }
  return result;
}

inline double rotary_magnitude_of(const rotary_options& options) {
  const rotary_scaling_fields& s = options.scaling.fields();
  if (options.magnitude) {
    return *options.magnitude;
  }
  if (s.factor > 1 && s.kind == rotary_scaling_kind::yarn) {
    return yarn_magnitude_of(s.factor, 1);
  }
  return s.factor > 1 && s.kind == rotary_scaling_kind::longrope ? longrope_magnitude_of(s.factor, s.original_length)
                                                                 : 1;
}

/// Makes the factors of tokens, one after the other.
template <class T>
class rotary_row_maker {
 public:
  rotary_row_maker(const rotary_tables& tables, const position_list& positions, bool inverse, scratch_frame& frame)
      : tables_(tables), positions_(positions), count_(padded_pairs(tables.pairs)) {
    const auto count = static_cast<std::size_t>(count_);
    phases_ = frame.take<std::uint64_t>(count);
    anchor_ = frame.take<double>(2 * count);
    turn_ = tables.axes ? frame.take<double>(2 * count) : nullptr;
    anchors_ = frame.take<uint128>(tables.axis_count);
    for (std::size_t i = 0; i < count; ++i) {
      phases_[i] = 0;
      if (turn_) {
        turn_[i] = turn_[count + i] = 0;
      }
    }
    row_ = {.anchor = anchor_,
            .turn = turn_,
            .row = nullptr,
            .count = count_,
            .cosine_factor = tables.magnitude,
            .sine_factor = inverse ? -tables.magnitude : tables.magnitude,
            .interleaved = tables.interleaved};
  }

  void make(T* row, index sample, index token) {
    bool known = known_;
    for (std::size_t axis = 0; axis < tables_.axis_count; ++axis) {
      const uint128 position = positions_.at(static_cast<index>(axis), sample, token);
      const uint128 anchor = position / turn_group * turn_group;
      known = known && anchor == anchors_[axis];
      anchors_[axis] = anchor;
    }
    if (!known) {
      for (std::size_t i = 0; i < tables_.pairs; ++i) {
        phases_[i] = phase_at({anchors_[axis_of(i)], 0}, tables_.rates[i]);
      }
      HEADWAVE_DISPATCH(sine_cosine_row(anchor_, phases_, count_))
      known_ = true;
    }
    if (!turn_) {
      row_.turn = turn_of(0, sample, token);
    } else {
      for (std::size_t i = 0; i < tables_.pairs; ++i) {
        const double* const turn = turn_of(axis_of(i), sample, token) + i;
        turn_[i] = turn[0];
        turn_[count_ + static_cast<index>(i)] = turn[count_];
      }
    }
    row_.row = row;
    HEADWAVE_DISPATCH(rotary_row<T>(row_))
  }

 private:
  std::size_t axis_of(std::size_t pair) const { return tables_.axes ? tables_.axes[pair] : 0; }
  const double* turn_of(std::size_t axis, index sample, index token) const {
    const uint128 position = positions_.at(static_cast<index>(axis), sample, token);
    return tables_.turns + static_cast<index>(static_cast<std::uint64_t>(position) % turn_group) * 2 * count_;
  }

  const rotary_tables& tables_;
  const position_list& positions_;
  index count_;
  std::uint64_t* phases_;
  double *anchor_, *turn_;  // turn_: where the axes' places in their groups differ
  uint128* anchors_;        // of each axis, if known
  bool known_ = false;
  rotary_row_arguments<T> row_{};
};

template <class T>
void check_rotation(const tensor_view<T, 4>& q, const rotary_tables& tables, const position_list& positions) {
  constexpr const char* function = "rotary_embedding";
  const std::size_t end = tables.first_channel + 2 * tables.pairs;
  if (end < tables.first_channel || end > q.extent(3)) {
    fail(function,
         "head_dim must be at least first_channel + rotary_dim: " + std::to_string(tables.first_channel) + " + " +
             std::to_string(2 * tables.pairs),
         {{"q", q.extents().data(), 4}});
  }
  if (positions.rank == 0) {
    return;
  }
  const std::size_t expected[] = {tables.axis_count, q.extent(0), q.extent(1)};
  bool agree = true;
  for (std::size_t i = 0; i < positions.rank; ++i) {
    // Starts are the one form that ends with the batch.
    const std::size_t axis = positions.step ? 1 : 3 - positions.rank + i;
    agree = agree && positions.extents[i] == expected[axis];
  }
  if (!agree || (positions.rank == 3 && !tables.axes)) {
    fail(function,
         positions.step ? "starts must be [batch]"
                        : "positions must be [length], [batch, length], or, with sections, [axes, batch, length]",
         {{"q", q.extents().data(), 4}, {"positions", positions.extents.data(), positions.rank}});
  }
}

/// Rotates q, whose tokens are independent: tasks are runs of them, over all samples where these share positions.
template <class T>
void rotate(const tensor_view<T, 4>& q, const rotary_tables& tables, const position_list& positions, bool inverse,
            const executor_ref& executor) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "a rotary embedding rotates float or double");
  check_rotation(q, tables, positions);
  const auto batch = static_cast<index>(q.extent(0)), length = static_cast<index>(q.extent(1));
  const auto heads = static_cast<index>(q.extent(2));
  if (batch == 0 || length == 0 || heads == 0 || tables.pairs == 0) {
    return;
  }
  const index runs = positions.per_sample ? batch : 1, tokens = runs * length;
  // An element takes as long as some ten operations.
  const double cost = 20 * static_cast<double>(tables.pairs) * static_cast<double>(heads) * static_cast<double>(batch) *
                      static_cast<double>(length);
  run_ranges(executor, wanted_tasks(executor, cost), tokens, [&](index first, index last) {
    constexpr index block = 16;
    const index count = padded_pairs(tables.pairs), row_size = rotary_row_size(count, tables.interleaved);
    scratch_frame frame;
    rotary_row_maker<T> maker(tables, positions, inverse, frame);
    T* const rows = frame.take<T>(static_cast<std::uint64_t>(block * row_size));
    T* const buffer = frame.take<T>(static_cast<std::uint64_t>(2 * count));
    while (first < last) {
      const index sample = first / length, token = first % length;
      index size = block < last - first ? block : last - first;
      size = size < length - token ? size : length - token;
      for (index i = 0; i < size; ++i) {
        maker.make(rows + i * row_size, sample, token + i);
      }
      const rotary_arguments<T> arguments{.data = q.data() + sample * q.stride(0) + token * q.stride(1) +
                                                  static_cast<index>(tables.first_channel) * q.stride(3),
                                          .sample_stride = q.stride(0),
                                          .token_stride = q.stride(1),
                                          .head_stride = q.stride(2),
                                          .channel_stride = q.stride(3),
                                          .samples = positions.per_sample ? 1 : batch,
                                          .tokens = size,
                                          .heads = heads,
                                          .pairs = static_cast<index>(tables.pairs),
                                          .rows = rows,
                                          .count = count,
                                          .interleaved = tables.interleaved};
      HEADWAVE_DISPATCH(rotate_heads<T>(arguments, buffer))
      first += size;
    }
  });
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// 1 + mscale ln(factor) / 10, and 1 for factor <= 1: YaRN's m, for mscale = 1. Models with two such numbers, like
/// DeepSeek's mscale and mscale_all_dim, mean the quotient of the two magnitudes: give it as rotary_options::magnitude.
/// factor: finite; mscale: not negative.
inline double yarn_magnitude(double factor, double mscale = 1) {
  return factor > 1 ? detail::yarn_magnitude_of(factor, mscale) : 1;
}

}  // namespace HEADWAVE_ABI

/// A rotary embedding: the options' frequencies, computed once. Calls are const and may run at the same time.
class rotary_embedding {
 public:
  /// Rotates nothing.
  HEADWAVE_INLINE rotary_embedding() = default;
  /// Errors: rotary_dim zero or odd; numbers that are not finite, or not positive where they have to be; sections, or
  /// lists of frequencies and factors, that do not add up to rotary_dim / 2; a scaling beside frequencies.
  HEADWAVE_INLINE explicit rotary_embedding(const rotary_options& options)
      : rates_(detail::rotary_rates_of(options)),
        turns_(detail::rotary_turns_of(rates_)),
        axes_(detail::rotary_axes_of(options)),
        axis_count_(options.sections.empty() ? 1 : options.sections.size()),
        first_channel_(options.first_channel),
        layout_(options.layout),
        magnitude_(detail::rotary_magnitude_of(options)) {}
  HEADWAVE_INLINE rotary_embedding(const rotary_embedding&) = default;
  HEADWAVE_INLINE rotary_embedding(rotary_embedding&&) = default;
  HEADWAVE_INLINE rotary_embedding& operator=(const rotary_embedding& other) {
    return *this = rotary_embedding(other);  // all of it or, without memory, nothing
  }
  HEADWAVE_INLINE rotary_embedding& operator=(rotary_embedding&&) = default;
  HEADWAVE_INLINE ~rotary_embedding() = default;

  HEADWAVE_INLINE std::size_t rotary_dim() const { return 2 * rates_.size(); }
  /// w_i after scaling, in radians per position. i < rotary_dim / 2.
  HEADWAVE_INLINE double frequency(std::size_t i) const { return detail::radians_of(rates_(i)); }
  /// m.
  HEADWAVE_INLINE double magnitude() const { return magnitude_; }

  /// Rotates queries or keys in place. q: [batch, length, heads, head_dim], float or double, any strides that give each
  /// element its own place; channels outside of the rotated ones are neither read nor written. positions: any form of
  /// rotary_positions. executor runs the parts of the call (executor.hpp). Errors: head_dim < first_channel +
  /// rotary_dim; positions of another shape.
  template <class X>
    requires output_like<X, 4>
  HEADWAVE_INLINE void apply(X&& q, const rotary_positions& positions, const executor_ref& executor = {}) const {
    detail::rotate(as_view(q), tables(), positions.list(), false, executor);
  }

  /// Rotates back: the same with the opposite angles, and the same m. It undoes apply where m is 1, and is what turns
  /// the gradient of apply's result into that of its input for any m.
  template <class X>
    requires output_like<X, 4>
  HEADWAVE_INLINE void apply_inverse(X&& q, const rotary_positions& positions,
                                     const executor_ref& executor = {}) const {
    detail::rotate(as_view(q), tables(), positions.list(), true, executor);
  }

 private:
  HEADWAVE_INLINE detail::rotary_tables tables() const {
    return {rates_.data(),
            turns_.data(),
            axes_.data(),
            axis_count_,
            rates_.size(),
            first_channel_,
            layout_ == channel_layout::interleaved,
            magnitude_};
  }

  tensor<detail::turn_rate, 1> rates_;
  tensor<double, 1> turns_;
  tensor<unsigned char, 1> axes_;
  std::size_t axis_count_ = 1, first_channel_ = 0;
  channel_layout layout_ = channel_layout::interleaved;
  double magnitude_ = 1;
};

}  // namespace headwave
