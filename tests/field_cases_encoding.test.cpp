// SPDX-License-Identifier: MIT
#include <headwave/positional_encoding.hpp>
#include <headwave/relative_position.hpp>
#include <headwave/rotary.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

/// \file
/// Faults that people have met in other implementations of sinusoidal and rotary encoding. The numbers were computed
/// with 30 digits.

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
  CHECK(error_of([] { hw::sinusoidal_encoding<float>(SIZE_MAX / 4, 8); }) != "");
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

TEST_CASE("buckets of relative positions: the logarithm's quotient is real, the last bucket the last", "[E02]") {
  const std::vector<std::int64_t> positions = {-7, -8, -15, -63, -65, -90, -91, -128, -200, 7, 8, 128};
  const std::vector<int> expected = {7, 8, 9, 13, 14, 14, 15, 15, 15, 23, 24, 31};
  for (std::size_t i = 0; i < positions.size(); ++i) {
    CAPTURE(positions[i]);
    CHECK(hw::t5_bucket(positions[i]) == expected[i]);
  }
  for (std::int64_t distance = -1000; distance <= 1000; ++distance) {
    const int bucket = hw::t5_bucket(distance);
    CHECK((bucket >= 0 && bucket < 32 && (bucket >= 16) == (distance > 0)));
  }
  // The borders themselves, where a logarithm in float may fall short.
  CHECK(hw::t5_bucket(-16) == 10);
  CHECK(hw::t5_bucket(-32) == 12);
  CHECK(hw::t5_bucket(-64) == 14);
  CHECK(hw::t5_bucket(-99, {.max_distance = 100}) == 15);
  CHECK(hw::t5_bucket(99, {.max_distance = 100}) == 31);
}

TEST_CASE("rotary: frequencies and rotation pair the same channels", "[B09]") {
  const auto rotated = [](std::vector<double> channels, std::int64_t position, hw::channel_layout layout) {
    const hw::rotary_embedding rope({.rotary_dim = 4, .layout = layout});
    rope.apply(hw::tensor_view<double, 4>(channels, {1, 1, 1, 4}), position);
    return channels;
  };
  const auto product = [](const std::vector<double>& q, const std::vector<double>& k) {
    double sum = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      sum += q[i] * k[i];
    }
    return sum;
  };
  const std::vector<double> q = {1, 2, 3, 4}, k = {4, 3, 2, 1};
  for (const auto& [p, s] : {std::pair{5, 3}, std::pair{12, 10}}) {
    constexpr auto interleaved = hw::channel_layout::interleaved, halves = hw::channel_layout::halves;
    CHECK(std::fabs(product(rotated(q, p, interleaved), rotated(k, s, interleaved)) - 1.1900512336) < 1e-10);
    CHECK(std::fabs(product(rotated(q, p, halves), rotated(k, s, halves)) + 3.456429234) < 1e-9);
    for (const hw::channel_layout layout : {interleaved, halves}) {
      CHECK(std::fabs(product(rotated(q, p, layout), rotated(q, p, layout)) - 30) < 1e-13);
      CHECK(std::fabs(product(rotated(k, s, layout), rotated(k, s, layout)) - 30) < 1e-13);
    }
    // The permutation 0, 2, 1, 3 makes one of the other.
    const auto permuted = [](const std::vector<double>& x) { return std::vector<double>{x[0], x[2], x[1], x[3]}; };
    CHECK(permuted(rotated(permuted(q), p, halves)) == rotated(q, p, interleaved));
  }
}

TEST_CASE("rotary scalings: the factor once, outside the power, and the magnitude as said", "[E01]") {
  const auto embedding = [](const hw::rotary_options& options) { return hw::rotary_embedding(options); };
  const auto near = [](double a, double b) { return std::fabs(a - b) <= 1e-15 * std::fabs(b); };
  // Factor 4 on 100^(-i / 2): a second division gives 1/16; in the power, 400^(-i / 2).
  const auto linear = embedding({.rotary_dim = 4, .base = 100, .scaling = hw::linear_scaling{4}});
  CHECK(near(linear.frequency(0), 0.25));
  CHECK(near(linear.frequency(1), 0.025));
  // A larger factor than 1 does not add a magnitude to a linear scaling.
  CHECK(linear.magnitude() == 1);

  // YaRN's bounds for r = 128, base 10000 and 4096 positions are 20.94 and 45.03, rounded outwards 20 and 46: pair 20
  // is the last that keeps its frequency, 46 the first that is divided.
  const auto yarn = embedding({.rotary_dim = 128, .scaling = hw::yarn_scaling{16, 4096}});
  const auto plain = embedding({.rotary_dim = 128});
  CHECK(near(yarn.frequency(20), plain.frequency(20)));
  CHECK(near(yarn.frequency(21), plain.frequency(21) * (1 - 15.0 / 16 / 26)));
  CHECK(near(yarn.frequency(45), plain.frequency(45) * (1 - 15.0 / 16 * 25 / 26)));
  CHECK(near(yarn.frequency(46), plain.frequency(46) / 16));
  const auto exact = embedding({.rotary_dim = 128, .scaling = hw::yarn_scaling{16, 4096, 32, 1, false}});
  const double low = 20.94448162063605, high = 45.02688127375455;
  CHECK(near(exact.frequency(21), plain.frequency(21) * (1 - 15.0 / 16 * (21 - low) / (high - low))));

  // Both views of the magnitude for mscale = mscale_all_dim = 1: each has to be asked for.
  CHECK(std::fabs(yarn.magnitude() - 1.27725887222) < 1e-11);
  const double quotient = hw::yarn_magnitude(16, 1) / hw::yarn_magnitude(16, 1);
  CHECK(embedding({.rotary_dim = 128, .scaling = hw::yarn_scaling{16, 4096}, .magnitude = quotient}).magnitude() == 1);
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
