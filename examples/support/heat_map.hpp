// SPDX-License-Identifier: MIT
#pragma once

#include "canvas.hpp"

#include <headwave/tensor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

/// \file
/// Draws matrices as coloured cells: one panel or a grid of panels that share axes, colours and a colour bar.

namespace support {

/// Colours of a range of numbers, in which equal steps of a number look like equal steps of colour: sequential runs
/// from near-white to dark blue, diverging from blue through near-white, the middle of the range, to red.
enum class colours { sequential, diverging };

/// What is written along an axis: its label, and at every cell a word or, without words, round numbers at some cells.
struct axis {
  std::string label;
  std::vector<std::string> words;
};

/// One matrix [rows, columns]: the rows run along y, downwards, and the columns along x.
struct panel {
  std::string title;
  headwave::tensor_view<const float, 2> values;
};

/// What all panels of a picture have in common. Values outside of low..high have the colour of the nearer end, NaN that
/// of low.
struct heat_map_options {
  std::string title;
  axis x;
  axis y;
  std::string value_label;
  double low = 0;
  double high = 1;
  colours palette = colours::sequential;
  int cell_width = 8;
  int cell_height = 8;
  std::size_t panels_per_row = 1;
};

namespace detail {

/// A colour by lightness 0..1, chroma and hue in degrees of the Oklab space, where distances are those that the eye
/// sees.
struct oklch {
  double lightness, chroma, hue;
};

inline unsigned char gamma_encoded(double linear) {
  const double clipped = std::clamp(linear, 0.0, 1.0);
  const double value = clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * std::pow(clipped, 1 / 2.4) - 0.055;
  return static_cast<unsigned char>(std::lround(255 * value));
}

/// The colour at a share of the way from one to another.
inline colour mixed(const oklch& from, const oklch& to, double share) {
  constexpr double degree = std::numbers::pi / 180;
  const auto mix = [share](double a, double b) { return a + share * (b - a); };
  const double lightness = mix(from.lightness, to.lightness);
  const double a = mix(from.chroma * std::cos(from.hue * degree), to.chroma * std::cos(to.hue * degree));
  const double b = mix(from.chroma * std::sin(from.hue * degree), to.chroma * std::sin(to.hue * degree));
  // Oklab to the responses of the eye's three cones, and from these to linear sRGB (B. Ottosson, 2020).
  const double l = std::pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
  const double m = std::pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
  const double s = std::pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3);
  return {gamma_encoded(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          gamma_encoded(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          gamma_encoded(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

/// The colour at a share 0..1 of the range.
inline colour colour_at(colours palette, double share) {
  static constexpr std::array<oklch, 5> sequential = {
      {{0.985, 0.012, 105}, {0.86, 0.085, 185}, {0.68, 0.120, 230}, {0.48, 0.145, 262}, {0.26, 0.100, 280}}};
  static constexpr std::array<oklch, 5> diverging = {
      {{0.38, 0.130, 260}, {0.68, 0.115, 250}, {0.97, 0.004, 90}, {0.68, 0.140, 38}, {0.38, 0.135, 25}}};
  const auto& anchors = palette == colours::sequential ? sequential : diverging;
  const double place = (share > 0 ? std::min(share, 1.0) : 0.0) * static_cast<double>(anchors.size() - 1);
  const std::size_t from = std::min(static_cast<std::size_t>(place), anchors.size() - 2);
  return mixed(anchors[from], anchors[from + 1], place - static_cast<double>(from));
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... (and their tenths, hundredths, ...) that is at least a given number.
inline double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= least * (1 - 1e-9)) {
      return digit * power;
    }
  }
  return 10 * power;
}

inline std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", number);
  return text;
}

struct tick {
  int offset;  // of the tick's middle from the start of the axis, in pixels
  std::string text;
};

/// One tick per word, or at the cells of round numbers, far enough apart to be read.
inline std::vector<tick> axis_ticks(const axis& along, std::size_t cells, int cell_size) {
  const double apart = std::max(1.0, 2.0 * canvas::line_height / cell_size);
  const std::size_t step = along.words.empty() ? static_cast<std::size_t>(round_step(apart)) : 1;
  std::vector<tick> result;
  for (std::size_t cell = 0; cell < cells; cell += step) {
    result.push_back({static_cast<int>(cell) * cell_size + cell_size / 2,
                      along.words.empty() ? std::to_string(cell) : along.words.at(cell)});
  }
  return result;
}

inline std::vector<tick> bar_ticks(double low, double high, int length) {
  const double step = round_step((high - low) * 3 * canvas::line_height / length);
  std::vector<tick> result;
  for (double place = std::ceil(low / step - 1e-9); place * step <= high + 1e-9 * step; ++place) {
    const double share = (place * step - low) / (high - low);
    result.push_back({static_cast<int>(std::lround((1 - share) * (length - 1))), number_text(place * step + 0.0)});
  }
  return result;
}

inline int longest(const std::vector<tick>& ticks) {
  int result = 0;
  for (const tick& at : ticks) {
    result = std::max(result, canvas::text_length(at.text));
  }
  return result;
}

/// Where everything of a picture lies.
class heat_map_layout {
 public:
  static constexpr int margin = 20;
  static constexpr int tick_length = 6;
  static constexpr int text_gap = 6;
  static constexpr int panel_gap = 22;
  static constexpr int bar_width = 20;

  heat_map_layout(const std::vector<panel>& panels, const heat_map_options& options)
      : panels_(panels), options_(options), extents_(panels.at(0).values.extents()) {
    for (const panel& each : panels) {
      if (each.values.empty() || each.values.extents() != extents_) {
        throw std::invalid_argument("write_heat_map: panels must have cells, and all the same extents");
      }
    }
    if (!(options.low < options.high)) {
      throw std::invalid_argument("write_heat_map: low must be less than high");
    }
    columns_ = std::clamp(options.panels_per_row, std::size_t{1}, panels.size());
    rows_ = (panels.size() + columns_ - 1) / columns_;
    panel_width_ = static_cast<int>(extents_[1]) * options.cell_width;
    panel_height_ = static_cast<int>(extents_[0]) * options.cell_height;
    x_ticks_ = axis_ticks(options.x, extents_[1], options.cell_width);
    y_ticks_ = axis_ticks(options.y, extents_[0], options.cell_height);
    panel_title_ = panels[0].title.empty() ? 0 : canvas::line_height;
    left_ = margin + line_of(options.y.label) + longest(y_ticks_) + text_gap + tick_length;
    top_ = margin + line_of(options.title) + (options.title.empty() ? 0 : text_gap) + panel_title_;
    width_ = span(columns_, panel_width_);
    height_ = span(rows_, panel_height_ + panel_title_) - panel_title_;
    bar_ticks_ = bar_ticks(options.low, options.high, height_);
  }

  canvas drawn() const {
    const int below = tick_length + text_gap + x_text_height() + text_gap + line_of(options_.x.label);
    const int beside =
        panel_gap + bar_width + tick_length + text_gap + longest(bar_ticks_) + text_gap + line_of(options_.value_label);
    canvas picture(left_ + width_ + beside + margin, top_ + height_ + below + margin);
    const int middle_x = left_ + width_ / 2;
    const int middle_y = top_ + height_ / 2;
    picture.text(middle_x, margin + canvas::capital_height / 2, options_.title, anchor::middle);
    picture.text(middle_x, top_ + height_ + below - canvas::line_height / 2, options_.x.label, anchor::middle);
    picture.text(margin + canvas::capital_height / 2, middle_y, options_.y.label, anchor::middle, reading::upwards);
    for (std::size_t index = 0; index < panels_.size(); ++index) {
      draw_panel(picture, index);
    }
    draw_bar(picture, left_ + width_ + panel_gap, beside, middle_y);
    return picture;
  }

 private:
  static int line_of(const std::string& label) { return label.empty() ? 0 : canvas::line_height; }
  static int span(std::size_t count, int each) { return static_cast<int>(count) * (each + panel_gap) - panel_gap; }
  int x_text_height() const { return options_.x.words.empty() ? canvas::capital_height : longest(x_ticks_); }

  void draw_panel(canvas& picture, std::size_t index) const {
    const int x = left_ + static_cast<int>(index % columns_) * (panel_width_ + panel_gap);
    const int y = top_ + static_cast<int>(index / columns_) * (panel_height_ + panel_title_ + panel_gap);
    picture.text(x + panel_width_ / 2, y - canvas::line_height / 2, panels_[index].title, anchor::middle);
    picture.frame(x, y, panel_width_, panel_height_, ink);
    const auto& values = panels_[index].values;
    for (std::size_t row = 0; row < extents_[0]; ++row) {
      for (std::size_t column = 0; column < extents_[1]; ++column) {
        const double share = (static_cast<double>(values(row, column)) - options_.low) / (options_.high - options_.low);
        picture.fill(x + static_cast<int>(column) * options_.cell_width,
                     y + static_cast<int>(row) * options_.cell_height, options_.cell_width, options_.cell_height,
                     colour_at(options_.palette, share));
      }
    }
    // Only the outer panels carry ticks: the inner ones share them.
    if (index % columns_ == 0) {
      draw_y_ticks(picture, x - 1, y);
    }
    if (index + columns_ >= panels_.size()) {
      draw_x_ticks(picture, x, y + panel_height_ + 1);
    }
  }

  void draw_x_ticks(canvas& picture, int x, int y) const {
    for (const tick& at : x_ticks_) {
      picture.fill(x + at.offset, y, 1, tick_length, ink);
      const int text_y = y + tick_length + text_gap;
      if (options_.x.words.empty()) {
        picture.text(x + at.offset, text_y + canvas::capital_height / 2, at.text, anchor::middle);
      } else {
        picture.text(x + at.offset, text_y, at.text, anchor::end, reading::upwards);
      }
    }
  }

  void draw_y_ticks(canvas& picture, int x, int y) const {
    for (const tick& at : y_ticks_) {
      picture.fill(x - tick_length, y + at.offset, tick_length, 1, ink);
      picture.text(x - tick_length - text_gap, y + at.offset, at.text, anchor::end);
    }
  }

  void draw_bar(canvas& picture, int x, int beside, int middle_y) const {
    picture.frame(x, top_, bar_width, height_, ink);
    for (int row = 0; row < height_; ++row) {
      picture.fill(x, top_ + row, bar_width, 1, colour_at(options_.palette, 1 - row / (height_ - 1.0)));
    }
    for (const tick& at : bar_ticks_) {
      picture.fill(x + bar_width + 1, top_ + at.offset, tick_length, 1, ink);
      picture.text(x + bar_width + tick_length + text_gap, top_ + at.offset, at.text, anchor::start);
    }
    picture.text(x - panel_gap + beside - canvas::capital_height / 2, middle_y, options_.value_label, anchor::middle,
                 reading::upwards);
  }

  const std::vector<panel>& panels_;
  const heat_map_options& options_;
  std::array<std::size_t, 2> extents_;
  std::size_t columns_ = 1;
  std::size_t rows_ = 1;
  int panel_width_ = 0;
  int panel_height_ = 0;
  int panel_title_ = 0;
  int left_ = 0;
  int top_ = 0;
  int width_ = 0;
  int height_ = 0;
  std::vector<tick> x_ticks_;
  std::vector<tick> y_ticks_;
  std::vector<tick> bar_ticks_;
};

}  // namespace detail

/// Writes the panels, at least one and all of the same extents, row by row as one PNG.
/// Errors (std::logic_error): no panel, no cells, extents that differ, an empty range of values, fewer words than
/// cells; and a file that cannot be written (std::runtime_error).
inline void write_heat_map(const std::string& path, const std::vector<panel>& panels, const heat_map_options& options) {
  detail::heat_map_layout(panels, options).drawn().save(path);
}

}  // namespace support
