// SPDX-License-Identifier: MIT
#pragma once

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#include <stb/stb_easy_font.h>
#include <stb/stb_image_write.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

/// \file
/// A picture of rectangles and words, written as a PNG. Coordinates are pixels from the top left corner.

namespace support {

struct colour {
  unsigned char red, green, blue;
};

inline constexpr colour white{255, 255, 255};
inline constexpr colour ink{38, 38, 44};

/// Which part of a text stands at the point it is written to: along the line, and always the middle of it across.
enum class anchor { start, middle, end };
/// Whether a text is read from left to right or from the bottom to the top.
enum class reading { rightwards, upwards };

class canvas {
 public:
  /// Height of a line of text, and of its capital letters.
  static constexpr int line_height = 24;
  static constexpr int capital_height = 14;

  canvas(int width, int height)
      : width_(width),
        height_(height),
        pixels_(static_cast<std::size_t>(width) * static_cast<std::size_t>(height), white) {}

  /// Paints a rectangle; what is outside of the picture is left out.
  void fill(int x, int y, int width, int height, colour paint) {
    const int left = std::max(x, 0);
    const int right = std::min(x + width, width_);
    for (int row = std::max(y, 0); row < std::min(y + height, height_) && left < right; ++row) {
      std::fill_n(pixels_.begin() + row * width_ + left, right - left, paint);
    }
  }

  /// Paints the frame of a rectangle, one pixel wide, just outside of it.
  void frame(int x, int y, int width, int height, colour paint) {
    fill(x - 1, y - 1, width + 2, 1, paint);
    fill(x - 1, y + height, width + 2, 1, paint);
    fill(x - 1, y, 1, height, paint);
    fill(x + width, y, 1, height, paint);
  }

  /// Length of a line of text.
  static int text_length(std::string words) {
    replace_unprintable(words);
    return words.empty() ? 0 : scale * (stb_easy_font_width(words.data()) - letter_gap);
  }

  void text(int x, int y, std::string words, anchor at, reading direction = reading::rightwards) {
    replace_unprintable(words);
    const int length = text_length(words);
    const int along = at == anchor::start ? 0 : at == anchor::middle ? length / 2 : length;
    const int across = capital_height / 2;
    std::vector<corner> corners(4 * (most_quads_per_letter * words.size() + 1));
    const int quads = stb_easy_font_print(0, 0, words.data(), nullptr, corners.data(),
                                          static_cast<int>(corners.size() * sizeof(corner)));
    for (int quad = 0; quad < quads; ++quad) {
      const corner& first = corners[static_cast<std::size_t>(4 * quad)];
      const corner& last = corners[static_cast<std::size_t>(4 * quad + 2)];
      const int u = scale * static_cast<int>(first.x) - along;
      const int v = scale * static_cast<int>(first.y) - across;
      const int length_u = scale * static_cast<int>(last.x - first.x);
      const int length_v = scale * static_cast<int>(last.y - first.y);
      if (direction == reading::rightwards) {
        fill(x + u, y + v, length_u, length_v, ink);
      } else {
        fill(x + v, y - u - length_u, length_v, length_u, ink);
      }
    }
  }

  /// Errors: the file cannot be written (std::runtime_error).
  void save(const std::string& path) const {
    if (!stbi_write_png(path.c_str(), width_, height_, sizeof(colour), pixels_.data(), 0)) {
      throw std::runtime_error(path + ": cannot be written");
    }
  }

 private:
  /// What stb_easy_font writes for each corner of a rectangle of a letter.
  struct corner {
    float x, y, z;
    unsigned char rgba[4];
  };
  static constexpr int scale = 2;
  static constexpr int letter_gap = 2;
  static constexpr std::size_t most_quads_per_letter = 16;

  /// The font has the printable characters of ASCII and reads past its tables for others.
  static void replace_unprintable(std::string& words) {
    std::replace_if(words.begin(), words.end(), [](char letter) { return letter < ' ' || letter > '~'; }, '?');
  }

  int width_;
  int height_;
  std::vector<colour> pixels_;
};

}  // namespace support
