// SPDX-License-Identifier: MIT
#include <headwave/positional_encoding.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

/// \file
/// Faults that people have met in other implementations of sinusoidal encoding. The numbers were computed with 30
/// digits.

namespace hw = headwave;
using support::error_of;
using support::flat;
using support::lacks;
using support::same_bits;
using support::sizes;
using support::window;
using support::within;

namespace {

constexpr double float_bound = 3.1e-8;
const std::vector<double> nine_of_four = {0.412118485242, -0.911130261885, 0.089878549198, 0.995952733012};

template <class T>
auto row(std::int64_t position, std::size_t d_model, hw::encoding_options options = {}) {
  options.first_position = position;
  return hw::sinusoidal_encoding<T>(1, d_model, options);
}

}  // namespace

TEST_CASE("odd width: one sine more than cosines, and nothing past the row", "[B01]") {
  const std::vector<double> three_of_five = {0.14112000806, -0.9899924966, 0.0752852929989, 0.997162035307,
                                             0.00189287090309};
  const std::vector<double> two_of_seven = {0.909297426826,  -0.416146836547, 0.143440636703,   0.989658922934,
                                            0.0103587640934, 0.999946346564,  0.000745518675003};
  CHECK(within(row<float>(3, 5), three_of_five, float_bound) == "");
  CHECK(within(row<double>(3, 5), three_of_five, 1e-12) == "");
  CHECK(within(row<float>(2, 7), two_of_seven, float_bound) == "");
  CHECK(within(row<float>(2, 1), {0.909297426826}, float_bound) == "");
  for (const std::size_t d_model : sizes{1, 5, 7, 9, 15, 17, 31, 33}) {
    for (const hw::channel_layout layout : {hw::channel_layout::interleaved, hw::channel_layout::halves}) {
      window<float, 2> table({4, d_model}, {.last_stride = 1, .gap = 5});
      hw::sinusoidal_encoding_into(table.view(), {.layout = layout});
      CAPTURE(d_model);
      CHECK(table.intact());
      CHECK(same_bits(table.view(), hw::sinusoidal_encoding<float>(4, d_model, {.layout = layout})) == "");
    }
  }
  CHECK(lacks(error_of([] { hw::sinusoidal_encoding<float>(3, 0); }), {"sinusoidal_encoding", "d_model", "0"}) == "");
}

TEST_CASE("the encoding varies along the length axis and along no other", "[B02]") {
  const std::vector<double> table = {0, 1, 0, 1, 0.841470984808, 0.540302305868, 0.00999983333417, 0.999950000417};
  for (const std::size_t batch : sizes{1, 2, 3, 7}) {
    hw::tensor<float, 3> x({batch, 2, 4});
    hw::add_sinusoidal_encoding(x);
    for (std::size_t b = 0; b < batch; ++b) {
      CAPTURE(batch, b);
      CHECK(within(x.view().slice(0, b, 1), table, float_bound) == "");
    }
  }
}

TEST_CASE("both channel layouts exist by name and hold the same bits", "[B03]") {
  const std::vector<double> interleaved = {0.909297426826, -0.416146836547,  0.0926985007787,
                                           0.995694224124, 0.00430885604674, 0.999990716837};
  std::vector<double> halves;
  for (const std::size_t column : sizes{0, 2, 4, 1, 3, 5}) {
    halves.push_back(interleaved[column]);
  }
  CHECK(within(row<float>(2, 6), interleaved, float_bound) == "");
  CHECK(within(row<float>(2, 6, {.layout = hw::channel_layout::halves}), halves, float_bound) == "");

  for (const hw::channel_layout layout : {hw::channel_layout::interleaved, hw::channel_layout::halves}) {
    const auto p = row<double>(7, 6, {.layout = layout});
    const auto q = row<double>(4, 6, {.layout = layout});
    double dot = 0;
    for (std::size_t i = 0; i < 6; ++i) {
      dot += p(0, i) * q(0, i);
    }
    CHECK(std::fabs(dot - 1.00030731546) < 1e-11);
  }
}

TEST_CASE("the exponent's denominator is d_model / 2; the variant is an option", "[B04]") {
  CHECK(std::fabs(row<double>(1000, 8)(0, 6) - 0.841470984808) < 1e-12);
  CHECK(std::fabs(row<double>(1000, 8, {.frequency_shift = 1})(0, 6) - 0.0998334166468) < 1e-12);
  const std::vector<double> single_pair = {0.14112000806, -0.9899924966};
  CHECK(within(row<double>(3, 2), single_pair, 1e-11) == "");
  CHECK(within(row<double>(3, 2, {.frequency_shift = 1}), single_pair, 1e-11) == "");
}

TEST_CASE("angles do not pass through a narrow type", "[B05]") {
  CHECK(std::fabs(static_cast<double>(row<float>(1000, 2)(0, 0)) - 0.826879540532) <= float_bound);
  CHECK(std::fabs(static_cast<double>(row<float>(1001, 2)(0, 0)) - 0.919990597586) <= float_bound);
  CHECK(std::fabs(static_cast<double>(row<float>(3001, 64)(0, 3)) - 0.495676942095) <= float_bound);
  for (const float x : row<float>(70000, 64)) {
    CHECK(std::fabs(x) <= 1);
  }
}

TEST_CASE("the type of a position does not choose the type of the result", "[B06]") {
  const std::vector<double> five_of_four = {-0.958924274663, 0.283662185463, 0.0499791692707, 0.998750260395};
  CHECK(within(hw::sinusoidal_encoding<float>(std::vector<std::int32_t>{5}, 4), five_of_four, float_bound) == "");
  CHECK(within(hw::sinusoidal_encoding<float>(std::vector<std::int64_t>{5}, 4), five_of_four, float_bound) == "");
  CHECK(within(hw::sinusoidal_encoding<float>(std::vector<std::uint64_t>{5}, 4), five_of_four, float_bound) == "");
  CHECK(within(hw::sinusoidal_encoding<float>(std::vector<double>{5}, 4), five_of_four, float_bound) == "");
}

TEST_CASE("any position is computed; sizes that overflow are refused", "[B07]") {
  CHECK(within(row<float>(210, 4), {0.467718518343, -0.883877473182, 0.863209366649, -0.5048461046}, float_bound) ==
        "");
  CHECK(within(row<float>(-3, 4), {-0.14112000806, -0.9899924966, -0.0299955002025, 0.999550033749}, float_bound) ==
        "");
  const auto table = hw::sinusoidal_encoding<float>(210, 4);
  CHECK(same_bits(table.view().slice(0, 209, 1), row<float>(209, 4)) == "");
  const auto past_the_table = hw::sinusoidal_encoding<float>(6, 4, {.first_position = 205});
  CHECK(same_bits(past_the_table.view().slice(0, 0, 5), table.view().slice(0, 205, 5)) == "");
  CHECK(same_bits(past_the_table.view().slice(0, 5, 1), row<float>(210, 4)) == "");
  CHECK(error_of([] { hw::sinusoidal_encoding<float>(std::size_t{1} << 62, 8); }) != "");
  CHECK(error_of([] { hw::sinusoidal_encoding_2d<float>(std::size_t{1} << 31, std::size_t{1} << 31, 8); }) != "");
}

TEST_CASE("a row decoded alone has the bits of the same row of a long table", "[B08]") {
  const auto whole = hw::sinusoidal_encoding<float>(10, 4);
  CHECK(within(whole.view().slice(0, 9, 1), nine_of_four, float_bound) == "");
  CHECK(same_bits(whole.view().slice(0, 9, 1), row<float>(9, 4)) == "");
  CHECK(same_bits(whole.view().slice(0, 0, 9), hw::sinusoidal_encoding<float>(9, 4)) == "");

  hw::tensor<float, 3> tokens({1, 10, 4});
  hw::add_sinusoidal_encoding(tokens);
  hw::tensor<float, 3> last({1, 1, 4});
  hw::add_sinusoidal_encoding(last, {.first_position = 9});
  hw::add_sinusoidal_encoding(hw::tensor_view<float, 3>(last.data(), {0, 1, 4}), {.first_position = 9});
  CHECK(same_bits(tokens.view().slice(1, 9, 1), last) == "");
}

TEST_CASE("a longer table has the type and the rows of a shorter one", "[E08]") {
  const auto short_table = hw::sinusoidal_encoding<double>(20, 10);
  auto table = hw::sinusoidal_encoding<double>(20, 10);
  table = hw::sinusoidal_encoding<double>(300, 10);
  CHECK(same_bits(table.view().slice(0, 0, 20), short_table) == "");
  static_assert(std::is_same_v<decltype(hw::sinusoidal_encoding<float>(300, 10)), hw::tensor<float, 2>>);
}

TEST_CASE("encoding positions and adding to tokens have names of their own", "[E10]") {
  // A [2, 3] list of numbers is no list of positions; rows of tokens get the encoding of their place added.
  const std::vector<std::int64_t> positions = {0, 1};
  CHECK(hw::sinusoidal_encoding<float>(positions, 4).extents() == support::extents<2>{2, 4});
  auto tokens = support::constant<float>({1, 2, 4}, 5);
  hw::add_sinusoidal_encoding(tokens);
  const auto table = hw::sinusoidal_encoding<float>(2, 4);
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t c = 0; c < 4; ++c) {
      CHECK(tokens(0, row, c) == 5 + table(row, c));
    }
  }
}
