// SPDX-License-Identifier: MIT
#include <headwave/positional_encoding.hpp>

#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <vector>

namespace hw = headwave;
using support::error_of;
using support::flat;
using support::lacks;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::window;
using support::within;

namespace {

constexpr hw::channel_layout layouts[] = {hw::channel_layout::interleaved, hw::channel_layout::halves};

/// The promised error of one element: half a unit in the last place below 1, and what the kernel adds.
template <class T>
double promised_error(double angle) {
  return sizeof(T) == 4 ? 3.1e-8 : 1e-15 + 0x1p-53 * std::fabs(angle);
}

/// Compares rows for positions, which are exact in long double, with the oracle. No angle is larger than scale *
/// |position|.
template <class T, class Positions>
std::string encoding_faults(const hw::tensor<T, 2>& table, const Positions& positions,
                            const hw::encoding_options& options) {
  std::string text;
  std::size_t row = 0;
  for (const auto position : positions) {
    const auto p = static_cast<long double>(position);
    oracle::estimate<1> expected = oracle::encoding_row(p, table.extent(1), options);
    for (std::size_t i = 0; i < table.extent(1); ++i) {
      expected.error(i) += static_cast<long double>(promised_error<T>(static_cast<double>(p) * options.scale));
    }
    const hw::tensor_view<const T, 1> actual(table.data() + row * table.extent(1), {table.extent(1)});
    if (const std::string fault = within(actual, expected); !fault.empty()) {
      text += "position " + support::text_of(p) + " " + fault + "\n";
    }
    ++row;
  }
  return text;
}

hw::encoding_options random_options(random_source& random) {
  hw::encoding_options options;
  options.base = random.chance(0.5) ? 10000 : random.uniform(2, 1e6);
  options.layout = layouts[random.integer(0, 1)];
  options.order = random.chance(0.5) ? hw::channel_order::sin_cos : hw::channel_order::cos_sin;
  options.odd = random.chance(0.5) ? hw::odd_channel::sine : hw::odd_channel::zero;
  return options;
}

}  // namespace

TEMPLATE_TEST_CASE("random widths, options and positions to 2^31", "[positional_encoding]", float, double) {
  random_source random(1);
  std::string failures;
  for (int n = 0; n < support::cases(400); ++n) {
    const std::size_t d_model = n % 8 == 0 ? random.integer(1, 1100) : random.integer(1, 70);
    hw::encoding_options options = random_options(random);
    if (d_model >= 4) {
      options.frequency_shift = static_cast<int>(random.integer(0, 1));
      options.scale = random.chance(0.3) ? random.uniform(0.01, 1) : 1;
    }
    std::vector<std::int64_t> positions;
    for (int i = 0; i < 4; ++i) {
      const double bits = random.uniform(0, 31);
      positions.push_back(static_cast<std::int64_t>(std::pow(2.0, bits)) * (random.chance(0.5) ? 1 : -1));
    }
    positions.push_back(std::int64_t{1} << 31);
    const auto table = hw::sinusoidal_encoding<TestType>(positions, d_model, options);
    const std::string faults = encoding_faults(table, positions, options);
    failures += faults.empty() ? "" : "d_model " + std::to_string(d_model) + ": " + faults;
  }
  CHECK(failures.substr(0, 2000) == "");
}

TEMPLATE_TEST_CASE("positions that are fractions", "[positional_encoding]", float, double) {
  random_source random(2);
  std::vector<double> positions = {0, 0.5, -0.5, 1e-9, -1e-300, 999.9, 1e9 + 0.25, -0x1p31, 5e-324};
  for (int i = 0; i < 200; ++i) {
    positions.push_back(random.uniform(-1, 1) * std::pow(2.0, random.uniform(-40, 31)));
  }
  for (const std::size_t d_model : sizes{2, 7, 64}) {
    const auto table = hw::sinusoidal_encoding<TestType>(positions, d_model);
    CHECK(encoding_faults(table, positions, {}).substr(0, 1000) == "");
  }
}

TEST_CASE("double: any integer position", "[positional_encoding]") {
  random_source random(3);
  std::vector<std::int64_t> positions = {(std::numeric_limits<std::int64_t>::min)(),
                                         (std::numeric_limits<std::int64_t>::max)()};
  for (int i = 0; i < 100; ++i) {
    positions.push_back(static_cast<std::int64_t>(random.bits()) >> random.integer(0, 60));
  }
  CHECK(encoding_faults(hw::sinusoidal_encoding<double>(positions, 64), positions, {}).substr(0, 1000) == "");
  const std::vector<std::uint64_t> far = {(std::numeric_limits<std::uint64_t>::max)(), std::uint64_t{1} << 63};
  CHECK(encoding_faults(hw::sinusoidal_encoding<double>(far, 64), far, {}) == "");
  // With one frequency of exactly 1 the oracle knows the angle exactly.
  const auto last = hw::sinusoidal_encoding<float>(far, 2);
  CHECK(encoding_faults(last, far, {}) == "");
}

TEMPLATE_TEST_CASE("position 0 is exact, and |values| <= 1", "[positional_encoding]", float, double) {
  const auto table = hw::sinusoidal_encoding<TestType>(3000, 64);
  for (std::size_t i = 0; i < 64; i += 2) {
    CHECK(table(0, i) == 0);
    CHECK(table(0, i + 1) == 1);
  }
  CHECK(std::all_of(table.begin(), table.end(), [](TestType x) { return std::fabs(x) <= 1; }));
}

TEMPLATE_TEST_CASE("a row's bits do not depend on how it is asked for", "[positional_encoding][bits]", float, double) {
  for (const std::size_t d_model : sizes{1, 6, 33, 128}) {
    for (const hw::channel_layout layout : layouts) {
      for (const std::int64_t start :
           {std::int64_t{0}, std::int64_t{-20}, std::int64_t{100'000'007}, std::int64_t{1} << 40}) {
        const hw::encoding_options options = {.first_position = start, .layout = layout};
        const auto whole = hw::sinusoidal_encoding<TestType>(50, d_model, options);
        std::string faults;
        for (const std::size_t first : sizes{1, 7, 31, 49}) {
          hw::encoding_options later = options;
          later.first_position += static_cast<std::int64_t>(first);
          faults += same_bits(hw::sinusoidal_encoding<TestType>(50 - first, d_model, later),
                              whole.view().slice(0, first, 50 - first));
        }
        std::vector<std::int64_t> positions(50);
        std::vector<double> real(50);
        for (std::size_t i = 0; i < 50; ++i) {
          positions[i] = start + static_cast<std::int64_t>(i);
          real[i] = static_cast<double>(positions[i]);
        }
        const hw::encoding_options listed = {.layout = layout};
        faults += same_bits(hw::sinusoidal_encoding<TestType>(positions, d_model, listed), whole);
        faults += same_bits(
            hw::sinusoidal_encoding<TestType>(std::span<const std::int64_t>(positions), d_model, listed), whole);
        faults += same_bits(hw::sinusoidal_encoding<TestType>(real, d_model, listed), whole);
        if (start >= 0) {
          const std::vector<std::uint64_t> natural(positions.begin(), positions.end());
          faults += same_bits(hw::sinusoidal_encoding<TestType>(natural, d_model, listed), whole);
        }
        if (start < 1 << 30) {
          std::array<std::int32_t, 50> narrow{};
          std::transform(positions.begin(), positions.end(), narrow.begin(),
                         [](std::int64_t p) { return static_cast<std::int32_t>(p); });
          faults += same_bits(hw::sinusoidal_encoding<TestType>(narrow, d_model, listed), whole);
        }
        std::reverse(positions.begin(), positions.end());
        const auto backwards = hw::sinusoidal_encoding<TestType>(positions, d_model, listed);
        for (std::size_t i = 0; i < 50; ++i) {
          faults += same_bits(backwards.view().slice(0, i, 1), whole.view().slice(0, 49 - i, 1));
        }
        CAPTURE(d_model, start);
        CHECK(faults == "");
      }
    }
  }
}

TEST_CASE("float is double, rounded", "[positional_encoding]") {
  // Both are within their bounds of the truth, so they differ by little more than half a unit in the last place of a
  // float.
  const auto narrow = hw::sinusoidal_encoding<float>(500, 96, {.first_position = 123456});
  const auto wide = hw::sinusoidal_encoding<double>(500, 96, {.first_position = 123456});
  CHECK(within(narrow, wide, 3.1e-8) == "");
}

TEMPLATE_TEST_CASE("halves are a permutation of interleaved", "[positional_encoding][bits]", float, double) {
  for (const std::size_t d_model : sizes{1, 2, 5, 8, 9, 31, 64, 130}) {
    const auto interleaved = hw::sinusoidal_encoding<TestType>(9, d_model, {.first_position = 3});
    const auto halves =
        hw::sinusoidal_encoding<TestType>(9, d_model, {.first_position = 3, .layout = hw::channel_layout::halves});
    hw::tensor<TestType, 2> permuted({9, d_model});
    for (std::size_t row = 0; row < 9; ++row) {
      for (std::size_t i = 0; i < d_model; ++i) {
        permuted(row, i) = interleaved(row, i < (d_model + 1) / 2 ? 2 * i : 2 * (i - (d_model + 1) / 2) + 1);
      }
    }
    CAPTURE(d_model);
    CHECK(same_bits(halves, permuted) == "");
  }
}

TEMPLATE_TEST_CASE("tables into strided windows", "[positional_encoding]", float, double) {
  for (const std::size_t d_model : sizes{1, 2, 3, 8, 15, 16, 17, 64, 65}) {
    const auto expected = hw::sinusoidal_encoding<TestType>(6, d_model);
    for (const hw::index last_stride : {1, 2, -1}) {
      window<TestType, 2> out({6, d_model}, {.last_stride = last_stride, .gap = 1, .reversed = last_stride == 2});
      hw::sinusoidal_encoding_into(out.view());
      CAPTURE(d_model, last_stride);
      CHECK(same_bits(out.view(), expected) == "");
      CHECK(out.intact());
      window<TestType, 2> listed({6, d_model}, {.last_stride = last_stride, .gap = 1});
      hw::sinusoidal_encoding_into(listed.view(), std::vector<int>{0, 1, 2, 3, 4, 5});
      CHECK(same_bits(listed.view(), expected) == "");
      CHECK(listed.intact());
    }
  }
}

TEMPLATE_TEST_CASE("adding in place is table + add", "[positional_encoding]", float, double) {
  random_source random(4);
  for (const std::size_t batch : sizes{1, 3, 11}) {
    for (const std::size_t d_model : sizes{1, 7, 11, 64}) {
      for (const hw::channel_layout layout : layouts) {
        const hw::encoding_options options = {.first_position = -5, .layout = layout};
        const auto x = random.tensor<TestType>({batch, 11, d_model});
        const auto table = hw::sinusoidal_encoding<TestType>(11, d_model, options);
        hw::tensor<TestType, 3> expected({batch, 11, d_model});
        support::for_each_index(x.extents(), [&](const auto& at) {
          expected(at[0], at[1], at[2]) = x(at[0], at[1], at[2]) + table(at[1], at[2]);
        });
        hw::tensor<TestType, 3> sum = x;
        hw::add_sinusoidal_encoding(sum, options);
        CAPTURE(batch, d_model);
        CHECK(same_bits(sum, expected) == "");
        for (const hw::index last_stride : {1, 2, -1}) {
          window<TestType, 3> strided(x, {.last_stride = last_stride, .gap = 2});
          hw::add_sinusoidal_encoding(strided.view(), options);
          CHECK(same_bits(strided.view(), expected) == "");
          CHECK(strided.intact());
        }
      }
    }
  }
}

TEST_CASE("presets", "[positional_encoding]") {
  namespace presets = hw::encoding_presets;
  const std::vector<int> positions = {0, 1, 2, 10, 999};
  const auto same = [&](const hw::encoding_options& preset, const hw::encoding_options& options) {
    return same_bits(hw::sinusoidal_encoding<double>(positions, 9, preset),
                     hw::sinusoidal_encoding<double>(positions, 9, options));
  };
  const hw::encoding_options shifted = {
      .layout = hw::channel_layout::halves, .odd = hw::odd_channel::zero, .frequency_shift = 1};
  CHECK(same(presets::vaswani, {}) == "");
  CHECK(same(presets::tensor2tensor, shifted) == "");
  CHECK(same(presets::fairseq, shifted) == "");
  CHECK(presets::fairseq.first_position == 2);
  CHECK(same(presets::ddpm, shifted) == "");
  CHECK(same(presets::stable_diffusion, {.layout = hw::channel_layout::halves,
                                         .order = hw::channel_order::cos_sin,
                                         .odd = hw::odd_channel::zero}) == "");
}

TEMPLATE_TEST_CASE("grids: the first half of the channels encodes the row", "[positional_encoding]", float, double) {
  for (const hw::channel_layout layout : layouts) {
    for (const bool columns_first : {false, true}) {
      hw::grid_encoding_options options;
      options.axis.layout = layout;
      options.columns_first = columns_first;
      const auto grid = hw::sinusoidal_encoding_2d<TestType>(3, 5, 12, options);
      const auto axis = hw::sinusoidal_encoding<TestType>(5, 6, options.axis);
      hw::tensor<TestType, 3> expected({3, 5, 12});
      support::for_each_index(expected.extents(), [&](const auto& at) {
        const bool row = (at[2] < 6) != columns_first;
        expected(at[0], at[1], at[2]) = axis(row ? at[0] : at[1], at[2] % 6);
      });
      CHECK(same_bits(grid, expected) == "");
      window<TestType, 3> strided({3, 5, 12}, {.last_stride = 2, .gap = 1});
      hw::sinusoidal_encoding_2d_into(strided.view(), options);
      CHECK(same_bits(strided.view(), expected) == "");
      CHECK(strided.intact());
    }
  }
}

TEST_CASE("grids of image models", "[positional_encoding]") {
  const auto faults = [](const hw::tensor<float, 3>& grid, const hw::grid_encoding_options& options, auto position_of) {
    std::string text;
    for (std::size_t axis = 0; axis < 2; ++axis) {
      for (std::size_t i = 0; i < grid.extent(axis); ++i) {
        oracle::estimate<1> expected = oracle::encoding_row(position_of(i, grid.extent(axis)), 16, options.axis);
        std::fill(expected.error.begin(), expected.error.end(), static_cast<oracle::real>(promised_error<float>(0)));
        const bool second_half = (axis == 0) == options.columns_first;
        const auto cell = grid.view().slice(axis, i, 1).slice(1 - axis, 1, 1).slice(2, second_half ? 16 : 0, 16);
        text += within(support::packed(cell).view().reshaped({16}), expected);
      }
    }
    return text;
  };
  const auto mae = hw::sinusoidal_encoding_2d<float>(14, 9, 32, hw::encoding_presets::mae);
  CHECK(hw::encoding_presets::mae.columns_first);
  CHECK(faults(mae, hw::encoding_presets::mae,
               [](std::size_t i, std::size_t) { return static_cast<long double>(i); }) == "");
  // Positions count from 1 and are scaled to 2 pi, with 1e-6 against a division by zero.
  const auto detr = hw::sinusoidal_encoding_2d<float>(14, 9, 32, hw::encoding_presets::detr);
  CHECK(faults(detr, hw::encoding_presets::detr, [](std::size_t i, std::size_t extent) {
          return (static_cast<long double>(i) + 1) / (static_cast<long double>(extent) + 1e-6L) * 2 *
                 std::numbers::pi_v<long double>;
        }) == "");
}

TEST_CASE("no rows", "[positional_encoding]") {
  CHECK(hw::sinusoidal_encoding<float>(0, 8).extents() == support::extents<2>{0, 8});
  CHECK(hw::sinusoidal_encoding<float>(std::vector<int>{}, 8).extents() == support::extents<2>{0, 8});
  CHECK(hw::sinusoidal_encoding_2d<float>(0, 4, 8).extents() == support::extents<3>{0, 4, 8});
  hw::tensor<float, 3> none({0, 4, 8});
  hw::add_sinusoidal_encoding(none);
}

TEST_CASE("encoding: errors name the function and the shapes", "[positional_encoding][errors]") {
  CHECK(lacks(error_of([] { hw::sinusoidal_encoding<float>(3, 0); }), {"sinusoidal_encoding", "d_model", "0"}) == "");
  CHECK(lacks(error_of([] { hw::sinusoidal_encoding<float>(3, 8, {.base = 0}); }), {"sinusoidal_encoding", "base"}) ==
        "");
  CHECK(lacks(error_of([] { hw::sinusoidal_encoding<float>(3, 8, {.base = -1}); }), {"sinusoidal_encoding", "base"}) ==
        "");
  CHECK(lacks(error_of([] { hw::sinusoidal_encoding<float>(3, 8, {.base = std::nan("")}); }),
              {"sinusoidal_encoding", "base"}) == "");
  CHECK(lacks(error_of([] { hw::sinusoidal_encoding_2d<float>(3, 4, 7); }), {"sinusoidal_encoding_2d", "[3, 4, 7]"}) ==
        "");
  CHECK(lacks(error_of([] { hw::sinusoidal_encoding_2d<float>(3, 4, 0); }),
              {"sinusoidal_encoding_2d", "d_model", "0"}) == "");
  CHECK(error_of([] { hw::sinusoidal_encoding<float>(SIZE_MAX / 4, 8); }) != "");

  window<float, 2> out({3, 8});
  CHECK(lacks(error_of([&] { hw::sinusoidal_encoding_into(out.view(), std::vector<int>{1, 2}); }),
              {"sinusoidal_encoding", "2", "[3, 8]"}) == "");
  CHECK(out.untouched());
  window<float, 3> odd({2, 3, 7});
  CHECK(error_of([&] { hw::sinusoidal_encoding_2d_into(odd.view()); }) != "");
  CHECK(odd.untouched());
  window<float, 3> empty({2, 3, 0});
  CHECK(lacks(error_of([&] { hw::add_sinusoidal_encoding(empty.view()); }),
              {"add_sinusoidal_encoding", "d_model", "0"}) == "");
}
