// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/dispatch.hpp>
#include <headwave/detail/phase.hpp>
#include <headwave/detail/scratch.hpp>
#include <headwave/tensor.hpp>

#include <numbers>

/// \file
/// Sinusoidal positional encoding.
///
/// Position p has the channels sin(p w_i) and cos(p w_i) for i = 0 .. ceil(d/2)-1, where
///   w_i = scale * base^(-i / (d/2 - frequency_shift)).
/// Source: Vaswani et al., "Attention Is All You Need" (2017), 3.5; the defaults are that paper's.
///
/// The angle is formed in integers and is exact to 2^-57 turns at any position; only its sine and cosine are rounded.
/// Largest error: float 3.1e-8 for |p| <= 2^31, double 1e-15 + 2^-53 |p w_i|. The bits of a row depend on its position
/// and the options alone: not on how many rows a call asks for, where it starts, or the type of the positions.

namespace headwave {

/// Where the two functions of a frequency stand in a row.
enum class channel_layout {
  interleaved,  ///< channels 2i and 2i + 1
  halves        ///< all of the first function, then all of the second
};

/// Which of the two functions comes first.
enum class channel_order { sin_cos, cos_sin };

/// What an odd number of channels ends in.
enum class odd_channel {
  sine,  ///< one frequency more of the first function: ceil(d/2) and floor(d/2) channels
  zero   ///< floor(d/2) frequencies, then a channel of zeros; d/2 in the exponent is floor(d/2) too
};

/// How positions are encoded. All angles are in radians.
struct encoding_options {
  double base = 10000;              ///< ratio of the highest to about the lowest frequency; positive
  std::int64_t first_position = 0;  ///< position of row 0, where positions are not given one by one
  channel_layout layout = channel_layout::interleaved;
  channel_order order = channel_order::sin_cos;
  odd_channel odd = odd_channel::sine;
  int frequency_shift = 0;  ///< subtracted from d/2 in the exponent; 1 makes the lowest frequency exactly scale / base
  double scale = 1;         ///< factor of every angle
};

/// How the cells of a grid are encoded: half of the channels tell the row, half the column.
struct grid_encoding_options {
  encoding_options axis = {};  ///< applied to d_model / 2 channels for each axis
  bool columns_first = false;  ///< channels 0 .. d_model/2-1 tell the column instead of the row
  bool normalize = false;      ///< position p of an axis becomes 2 pi p / (last p + 1e-6)
};

/// The encodings of well-known models, as options. Those with odd_channel::zero end a row of odd width with a zero.
namespace encoding_presets {

/// "Attention Is All You Need": the defaults.
inline constexpr encoding_options vaswani{};
/// tensor2tensor's get_timing_signal_1d: halves, lowest frequency exactly 1/base; an odd row ends with zero.
inline constexpr encoding_options tensor2tensor{
    .layout = channel_layout::halves, .odd = odd_channel::zero, .frequency_shift = 1};
/// fairseq: as tensor2tensor, the first token at position 2 (padding index 1, plus 1).
inline constexpr encoding_options fairseq{
    .first_position = 2, .layout = channel_layout::halves, .odd = odd_channel::zero, .frequency_shift = 1};
/// Time steps of denoising diffusion (DDPM): as tensor2tensor.
inline constexpr encoding_options ddpm = tensor2tensor;
/// Time steps of Stable Diffusion: halves, cosines first, no shift; an odd row ends with zero.
inline constexpr encoding_options stable_diffusion{
    .layout = channel_layout::halves, .order = channel_order::cos_sin, .odd = odd_channel::zero};
/// DETR's image encoding: row then column, interleaved, counted from 1 and normalised to 2 pi.
inline constexpr grid_encoding_options detr{.axis = {.first_position = 1}, .normalize = true};
/// MAE's image encoding: column then row, halves.
inline constexpr grid_encoding_options mae{.axis = {.layout = channel_layout::halves}, .columns_first = true};

}  // namespace encoding_presets

namespace detail {

/// A contiguous range of integers or floating-point numbers.
template <class Range>
concept position_range = requires(const Range& range) {
  { std::size(range) } -> std::convertible_to<std::size_t>;
  requires std::is_arithmetic_v<std::remove_cvref_t<decltype(*std::data(range))>>;
  requires !std::is_same_v<std::remove_cvref_t<decltype(*std::data(range))>, bool>;
};

}  // namespace detail

namespace detail::inline HEADWAVE_ABI {

/// The rows of one encoding: checks the options, works out the frequencies, and writes rows of contiguous channels.
template <class T>
class row_encoder {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "an encoding holds float or double");

 public:
  row_encoder(const char* function, std::size_t d_model, const encoding_options& options) {
    const std::size_t half = d_model / 2;
    const bool pads = options.odd == odd_channel::zero;
    const std::size_t firsts = pads ? half : d_model - half;
    const std::size_t shown[] = {d_model};
    const auto denominator =
        static_cast<std::int64_t>(pads ? 2 * half : d_model) - 2 * std::int64_t{options.frequency_shift};
    if (d_model == 0 || d_model > static_cast<std::size_t>(PTRDIFF_MAX) / sizeof(turn_rate)) {
      fail(function, "d_model must be at least 1, and fit into memory", {{"d_model", shown, 1}});
    }
    if (!is_finite(options.base) || !(options.base > 0) || !is_finite(options.scale)) {
      fail(function, "base must be positive and finite, and scale finite: base " + std::to_string(options.base) +
                         ", scale " + std::to_string(options.scale));
    }
    if (firsts > 1 && denominator <= 0) {
      fail(function, "d_model / 2 must exceed frequency_shift: " + std::to_string(options.frequency_shift),
           {{"d_model", shown, 1}});
    }
    count_ = static_cast<index>(firsts);
    const index padded = round_up(count_, vec_lanes<double>);
    const auto padded_count = static_cast<std::size_t>(padded);
    rates_ = frame_.take<turn_rate>(firsts);
    phases_ = frame_.take<std::uint64_t>(padded_count);
    auto* const steps = frame_.take<std::uint64_t>(padded_count);
    fill_turn_rates(rates_, firsts, options.base, static_cast<std::uint64_t>(firsts > 1 ? denominator : 1),
                    options.scale);
    for (std::size_t i = 0; i < padded_count; ++i) {
      steps[i] = i < firsts ? phase_step(rates_[i]) : 0;
      phases_[i] = 0;
    }
    row_ = {.phases = phases_,
            .steps = steps,
            .turned = frame_.take<std::uint64_t>(padded_count),
            .anchor = frame_.take<double>(2 * padded_count),
            .turns = frame_.take<double>(checked_product(function, 2 * turn_group, padded_count)),
            .known = 0,
            .count = padded,
            .out = nullptr,
            .row_stride = 0,
            .first_row = 0,
            .rows = 0,
            .firsts = count_,
            .seconds = static_cast<index>(half),
            .channels = static_cast<index>(d_model),
            .interleaved = options.layout == channel_layout::interleaved,
            .cosine_first = options.order == channel_order::cos_sin};
  }

  /// The place of a position in its group, and how many of the rows from there on belong to the group.
  static index place_in_group(wide_position position) {
    return static_cast<index>(static_cast<std::uint64_t>(position.whole) % turn_group);
  }
  static index rows_of_group(wide_position first, index rows) {
    const index left = turn_group - place_in_group(first);
    return rows < left ? rows : left;
  }

  /// Rows of consecutive positions at out, row_stride apart.
  void write(T* out, index row_stride, wide_position first, index rows) {
    while (rows > 0) {
      const index count = rows_of_group(first, rows);
      row_.first_row = place_in_group(first);
      const wide_position anchor{first.whole - static_cast<uint128>(row_.first_row), first.fraction};
      for (index i = 0; i < count_; ++i) {
        phases_[i] = phase_at(anchor, rates_[i]);
      }
      row_.out = out;
      row_.row_stride = row_stride;
      row_.rows = count;
      HEADWAVE_DISPATCH(sinusoid_rows<T>(row_))
      out += count * row_stride;
      first.whole += static_cast<uint128>(count);
      rows -= count;
    }
  }

  /// The same for rows whose channels lie channel_stride apart.
  void write(T* out, index row_stride, index channel_stride, wide_position first, index rows) {
    if (channel_stride == 1 || row_.channels == 1) {
      write(out, row_stride, first, rows);
      return;
    }
    for_each_row(first, rows, [&](index row, const T* encoded) {
      for (index channel = 0; channel < row_.channels; ++channel) {
        out[row * row_stride + channel * channel_stride] = encoded[channel];
      }
    });
  }

  /// Calls visit(row, its contiguous channels) for rows of consecutive positions; the channels are valid during the
  /// call.
  template <class Visit>
  void for_each_row(wide_position first, index rows, Visit visit) {
    // All at once: memory that is missing is so before the first visit.
    const index most = rows < turn_group ? rows : turn_group;
    if (most > buffered_) {
      buffer_ = frame_.take<T>(checked_product("sinusoidal_encoding", static_cast<std::size_t>(most),
                                               static_cast<std::size_t>(row_.channels)));
      buffered_ = most;
    }
    index done = 0;
    while (done < rows) {
      const index count = rows_of_group(first, rows - done);
      write(buffer_, row_.channels, first, count);
      for (index row = 0; row < count; ++row) {
        visit(done + row, static_cast<const T*>(buffer_ + row * row_.channels));
      }
      first.whole += static_cast<uint128>(count);
      done += count;
    }
  }

 private:
  scratch_frame frame_;
  index count_ = 0;
  turn_rate* rates_ = nullptr;
  std::uint64_t* phases_ = nullptr;
  T* buffer_ = nullptr;
  index buffered_ = 0;  // rows that the buffer holds
  sinusoid_arguments<T> row_{};
};

/// Positions must be finite; integers are.
template <class Position>
void check_position(const char* function, Position position) {
  if constexpr (std::is_floating_point_v<Position>) {
    if (!is_finite(static_cast<double>(position))) {
      fail(function, "positions must be finite");
    }
  }
}

template <class Position>
wide_position wide(Position position) {
  if constexpr (std::is_integral_v<Position>) {
    return exact_position(position);
  } else {
    return exact_position(static_cast<double>(position));
  }
}

template <class T>
void encode(tensor_view<T, 2> out, const encoding_options& options) {
  row_encoder<T> encoder("sinusoidal_encoding", out.extent(1), options);
  encoder.write(out.data(), out.stride(0), out.stride(1), exact_position(options.first_position),
                static_cast<index>(out.extent(0)));
}

template <class T, class Position>
void encode(tensor_view<T, 2> out, const Position* positions, std::size_t count, const encoding_options& options) {
  constexpr const char* function = "sinusoidal_encoding";
  row_encoder<T> encoder(function, out.extent(1), options);
  if (count != out.extent(0)) {
    fail(function, differ("one row for each position", count, out.extent(0)), {{"out", out.extents().data(), 2}});
  }
  for (std::size_t row = 0; row < count; ++row) {
    check_position(function, positions[row]);
  }
  for (std::size_t row = 0; row < count; ++row) {
    encoder.write(out.data() + static_cast<index>(row) * out.stride(0), out.stride(0), out.stride(1),
                  wide(positions[row]), 1);
  }
}

template <class T>
void encode_and_add(tensor_view<T, 3> x, const encoding_options& options) {
  row_encoder<T> encoder("add_sinusoidal_encoding", x.extent(2), options);
  const auto channels = static_cast<index>(x.extent(2));
  encoder.for_each_row(exact_position(options.first_position), static_cast<index>(x.extent(1)),
                       [&](index row, const T* encoded) {
                         for (index sample = 0; sample < static_cast<index>(x.extent(0)); ++sample) {
                           T* const target = x.data() + sample * x.stride(0) + row * x.stride(1);
                           if (x.stride(2) == 1) {
                             HEADWAVE_DISPATCH(add_row<T>(target, encoded, channels))
                           } else {
                             for (index channel = 0; channel < channels; ++channel) {
                               target[channel * x.stride(2)] += encoded[channel];
                             }
                           }
                         }
                       });
}

/// Position number i of an axis of a grid.
inline wide_position grid_position(std::size_t i, std::size_t extent, const grid_encoding_options& options) {
  const auto first = static_cast<uint128>(options.axis.first_position);
  if (!options.normalize) {
    return {first + i, 0};
  }
  const double start = static_cast<double>(options.axis.first_position);
  const double last = start + static_cast<double>(extent - 1);
  return exact_position((start + static_cast<double>(i)) / (last + 1e-6) * (2 * std::numbers::pi));
}

template <class T>
void encode_grid(tensor_view<T, 3> out, const grid_encoding_options& options) {
  constexpr const char* function = "sinusoidal_encoding_2d";
  const std::size_t half = out.extent(2) / 2;
  if (out.extent(2) % 2 != 0) {
    fail(function, "d_model must be even", {{"out", out.extents().data(), 3}});
  }
  row_encoder<T> encoder(function, half, options.axis);
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const index first_channel = (axis == 0) == options.columns_first ? static_cast<index>(half) : 0;
    for (std::size_t i = 0; i < out.extent(axis); ++i) {
      encoder.for_each_row(grid_position(i, out.extent(axis), options), 1, [&](index, const T* encoded) {
        for (std::size_t j = 0; j < out.extent(1 - axis); ++j) {
          T* const cell = out.data() + static_cast<index>(i) * out.stride(axis) +
                          static_cast<index>(j) * out.stride(1 - axis) + first_channel * out.stride(2);
          for (index channel = 0; channel < static_cast<index>(half); ++channel) {
            cell[channel * out.stride(2)] = encoded[channel];
          }
        }
      });
    }
  }
}

}  // namespace detail::inline HEADWAVE_ABI

inline namespace HEADWAVE_ABI {

/// Writes the encoding of the positions first_position, first_position + 1, ... to the rows of out.
/// out: [length, d_model], float or double, any strides.
/// Errors: d_model = 0; base not positive; d_model / 2 <= frequency_shift where there is more than one frequency.
template <class Out>
  requires output_like<Out, 2>
void sinusoidal_encoding_into(Out&& out, const encoding_options& options = {}) {
  detail::encode(as_view(out), options);
}

/// Writes the encoding of each of the positions to its row of out.
/// out: [number of positions, d_model]; positions: a vector, span or array of integers or floating-point numbers, in
/// any order, first_position not added. Errors: as above; a number of rows that differs from the number of positions;
/// NaN and infinity.
template <class Out, class Positions>
  requires(output_like<Out, 2> && detail::position_range<Positions>)
void sinusoidal_encoding_into(Out&& out, const Positions& positions, const encoding_options& options = {}) {
  detail::encode(as_view(out), std::data(positions), std::size(positions), options);
}

/// The encoding of the positions first_position .. first_position + length - 1 as a new tensor [length, d_model].
template <class T>
tensor<T, 2> sinusoidal_encoding(std::size_t length, std::size_t d_model, const encoding_options& options = {}) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "an encoding holds float or double");
  tensor<T, 2> out({length, d_model}, uninitialized);
  sinusoidal_encoding_into(out, options);
  return out;
}

/// The encoding of each of the positions as a new tensor [number of positions, d_model].
template <class T, class Positions>
  requires detail::position_range<Positions>
tensor<T, 2> sinusoidal_encoding(const Positions& positions, std::size_t d_model,
                                 const encoding_options& options = {}) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "an encoding holds float or double");
  tensor<T, 2> out({std::size(positions), d_model}, uninitialized);
  sinusoidal_encoding_into(out, positions, options);
  return out;
}

/// x(b, l, c) += encoding of position first_position + l, for every sample b, without a table in memory.
/// x: [batch, length, d_model], in place, any strides; each sum is rounded once after the encoding is rounded, so the
/// bits are those of adding sinusoidal_encoding's rows. Errors: as sinusoidal_encoding_into.
template <class X>
  requires output_like<X, 3>
void add_sinusoidal_encoding(X&& x, const encoding_options& options = {}) {
  detail::encode_and_add(as_view(x), options);
}

/// Writes the encoding of each cell of a grid: half of the channels encode its row, half its column.
/// out: [height, width, d_model], d_model even. Errors: as sinusoidal_encoding_into; an odd d_model.
template <class Out>
  requires output_like<Out, 3>
void sinusoidal_encoding_2d_into(Out&& out, const grid_encoding_options& options = {}) {
  detail::encode_grid(as_view(out), options);
}

/// The encoding of each cell of a grid as a new tensor [height, width, d_model].
template <class T>
tensor<T, 3> sinusoidal_encoding_2d(std::size_t height, std::size_t width, std::size_t d_model,
                                    const grid_encoding_options& options = {}) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "an encoding holds float or double");
  tensor<T, 3> out({height, width, d_model}, uninitialized);
  sinusoidal_encoding_2d_into(out, options);
  return out;
}

}  // namespace HEADWAVE_ABI
}  // namespace headwave
