// SPDX-License-Identifier: MIT
#include <headwave/isa.hpp>
#include <headwave/rotary.hpp>

#include "support/catch.hpp"
#include "support/oracle_rotary.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace hw = headwave;
using oracle::real;
using support::error_of;
using support::lacks;
using support::random_source;
using support::same_bits;
using support::sizes;
using support::window;
using support::within;

namespace {

constexpr hw::channel_layout layouts[] = {hw::channel_layout::interleaved, hw::channel_layout::halves};
using positions_of = std::vector<std::int64_t>;

/// Token t at first + t.
auto from(std::int64_t first) {
  return [first](std::size_t, std::size_t, std::size_t token) { return first + static_cast<std::int64_t>(token); };
}

/// The oracle's rotation for options without scaling.
oracle::rotation plain_rotation(const hw::rotary_options& options, std::int64_t first = 0) {
  return {.frequencies = oracle::plain_frequencies(options.rotary_dim, static_cast<real>(options.base)),
          .layout = options.layout,
          .first_channel = options.first_channel,
          .position = from(first)};
}

/// The largest difference of the embedding's frequencies from others, relative, in units of 2^-53.
double frequency_ulps(const hw::rotary_embedding& rope, const oracle::rotary_frequencies& expected) {
  real worst = expected.radians.size() == rope.rotary_dim() / 2 ? 0 : 1e30L;
  for (std::size_t i = 0; i < expected.radians.size(); ++i) {
    const real w = expected.radians[i];
    const real error = std::fabs(static_cast<real>(rope.frequency(i)) - w) / (w == 0 ? 1 : std::fabs(w));
    worst = (std::max)(worst, error / oracle::unit<double>);
  }
  return static_cast<double>(worst);
}

template <class T>
hw::tensor<T, 4> applied(const hw::rotary_embedding& rope, hw::tensor<T, 4> q, const hw::rotary_positions& positions) {
  rope.apply(q, positions);
  return q;
}

std::int64_t random_position(random_source& random) {
  const double magnitude = std::pow(2.0, random.uniform(0, 31));
  return static_cast<std::int64_t>(magnitude) * (random.chance(0.5) ? 1 : -1);
}

}  // namespace

TEMPLATE_TEST_CASE("rotary: random shapes, strides, layouts and positions to 2^31", "[rotary]", float, double) {
  using T = TestType;
  random_source random(1);
  std::string failures;
  for (int n = 0; n < support::cases(300); ++n) {
    hw::rotary_options options;
    options.rotary_dim = 2 * (n % 8 == 0 ? random.integer(1, 150) : random.integer(1, 36));
    options.first_channel = random.chance(0.5) ? 0 : random.integer(1, 9);
    options.base = random.chance(0.5) ? 10000 : random.uniform(2, 1e6);
    options.layout = layouts[random.integer(0, 1)];
    const std::size_t head_dim = options.first_channel + options.rotary_dim + random.pick({0, 0, 1, 20});
    const auto x = random.tensor<T>({random.integer(1, 2), random.integer(1, 5), random.integer(1, 3), head_dim});
    const std::int64_t first = random_position(random);
    auto expected = plain_rotation(options, first);
    expected.inverse = random.chance(0.3);
    const hw::index last_stride = random.chance(0.7) ? 1 : random.chance(0.5) ? 2 : -1;
    window<T, 4> q(x, {.last_stride = last_stride, .gap = random.integer(0, 3), .reversed = random.chance(0.3)});
    const hw::rotary_embedding rope(options);
    expected.inverse ? rope.apply_inverse(q.view(), first) : rope.apply(q.view(), first);
    const std::string fault = within(q.view(), oracle::rotated<T>(oracle::exact(x), expected));
    failures += fault.empty() ? "" : "rotary_dim " + std::to_string(options.rotary_dim) + ": " + fault + "\n";
    failures += q.intact() ? "" : "wrote past the view\n";
  }
  CHECK(failures.substr(0, 2000) == "");
}

TEMPLATE_TEST_CASE("rotary: far positions and large bases", "[rotary]", float, double) {
  using T = TestType;
  random_source random(2);
  const auto x = random.tensor<T>({1, 20, 2, 128});
  for (const double base : {1e4, 5e5, 1e6}) {
    for (const std::int64_t first : {std::int64_t{1} << 20, (std::int64_t{1} << 31) - 19, -(std::int64_t{1} << 31)}) {
      for (const hw::channel_layout layout : layouts) {
        const hw::rotary_options options = {.rotary_dim = 128, .base = base, .layout = layout};
        CAPTURE(base, first);
        CHECK(within(applied(hw::rotary_embedding(options), x, first),
                     oracle::rotated<T>(oracle::exact(x), plain_rotation(options, first))) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("rotary: position 0 leaves everything as it is", "[rotary][bits]", float, double) {
  random_source random(3);
  for (const hw::channel_layout layout : layouts) {
    const auto x = random.tensor<TestType>({2, 1, 3, 80});
    CHECK(same_bits(applied(hw::rotary_embedding({.rotary_dim = 80, .layout = layout}), x, 0), x) == "");
  }
}

TEMPLATE_TEST_CASE("rotary: the layouts are a permutation of each other", "[rotary][bits]", float, double) {
  using T = TestType;
  random_source random(4);
  for (const std::size_t r : sizes{2, 4, 10, 16, 30, 32, 34, 64, 66, 128, 192}) {
    const auto x = random.tensor<T>({2, 5, 3, r});
    hw::tensor<T, 4> halves(x.extents());
    const auto pair_of = [&](std::size_t c) { return c % 2 * (r / 2) + c / 2; };
    support::for_each_index(x.extents(), [&](const auto& at) {
      halves(at[0], at[1], at[2], pair_of(at[3])) = x(at[0], at[1], at[2], at[3]);
    });
    const auto interleaved = applied(hw::rotary_embedding({.rotary_dim = r}), x, 1'000'003);
    hw::rotary_embedding({.rotary_dim = r, .layout = hw::channel_layout::halves}).apply(halves, 1'000'003);
    hw::tensor<T, 4> back(x.extents());
    support::for_each_index(x.extents(), [&](const auto& at) {
      back(at[0], at[1], at[2], at[3]) = halves(at[0], at[1], at[2], pair_of(at[3]));
    });
    CAPTURE(r);
    CHECK(same_bits(back, interleaved) == "");
  }
}

TEMPLATE_TEST_CASE("rotary: a token's bits do not depend on how it is asked for", "[rotary][bits]", float, double) {
  using T = TestType;
  random_source random(5);
  for (const std::size_t r : sizes{6, 32, 72}) {
    for (const hw::channel_layout layout : layouts) {
      const hw::rotary_embedding rope({.rotary_dim = r, .layout = layout, .first_channel = 3});
      const auto x = random.tensor<T>({2, 50, 3, r + 5});
      for (const std::int64_t start : {std::int64_t{0}, std::int64_t{-20}, std::int64_t{100'000'007}}) {
        const auto whole = applied(rope, x, start);
        CAPTURE(r, start);
        std::string faults;
        for (const std::size_t chunk : sizes{1, 7, 16, 33}) {
          auto chunked = x;
          for (std::size_t first = 0; first < 50; first += chunk) {
            const auto part = chunked.view().slice(1, first, (std::min)(chunk, 50 - first));
            rope.apply(part, start + static_cast<std::int64_t>(first));
          }
          faults += same_bits(chunked, whole);
        }
        // One sample, one head, and memory in another order.
        auto alone = x;
        for (std::size_t b = 0; b < 2; ++b) {
          for (std::size_t h = 0; h < 3; ++h) {
            rope.apply(alone.view().slice(0, b, 1).slice(2, h, 1), start);
          }
        }
        faults += same_bits(alone, whole);
        hw::tensor<T, 4> heads_outside({2, 3, 50, r + 5});
        const auto transposed = heads_outside.view().transposed(1, 2);
        support::for_each_index(
            x.extents(), [&](const auto& at) { support::element(transposed, at) = support::element(x.view(), at); });
        rope.apply(transposed, start);
        faults += same_bits(transposed, whole);
        for (const hw::index last_stride : {2, -1}) {
          window<T, 4> strided(x, {.last_stride = last_stride, .gap = 1});
          rope.apply(strided.view(), start);
          faults += same_bits(strided.view(), whole);
          faults += strided.intact() ? "" : "not intact";
        }
        // The forms of positions.
        positions_of list(50);
        hw::tensor<std::int64_t, 2> each({2, 50});
        for (std::size_t t = 0; t < 50; ++t) {
          list[t] = each(0, t) = each(1, t) = start + static_cast<std::int64_t>(t);
        }
        faults += same_bits(applied(rope, x, list), whole);
        faults += same_bits(applied(rope, x, std::span<const std::int64_t>(list)), whole);
        faults += same_bits(applied(rope, x, hw::tensor_view<std::int64_t, 1>(list, {50})), whole);
        faults += same_bits(applied(rope, x, each), whole);
        faults +=
            same_bits(applied(rope, x, hw::tensor_view<const std::int64_t, 2>(list.data(), {2, 50}, {0, 1})), whole);
        faults += same_bits(applied(rope, x, hw::rotary_positions::starts(positions_of{start, start})), whole);
        CHECK(faults == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("rotary: positions in any order, and per sample", "[rotary][bits]", float, double) {
  using T = TestType;
  random_source random(6);
  const hw::rotary_embedding rope({.rotary_dim = 24, .layout = hw::channel_layout::halves});
  const auto x = random.tensor<T>({3, 20, 2, 24});
  hw::tensor<std::int64_t, 2> each({3, 20});
  for (std::int64_t& p : each) {
    p = random_position(random);
  }
  const auto one_by_one = [&](const auto& position_of) {
    auto result = x;
    for (std::size_t b = 0; b < 3; ++b) {
      for (std::size_t t = 0; t < 20; ++t) {
        rope.apply(result.view().slice(0, b, 1).slice(1, t, 1), position_of(b, t));
      }
    }
    return result;
  };
  CHECK(same_bits(applied(rope, x, each), one_by_one([&](std::size_t b, std::size_t t) { return each(b, t); })) == "");
  const auto column = each.view().slice(0, 1, 1).reshaped({20});
  CHECK(same_bits(applied(rope, x, column), one_by_one([&](std::size_t, std::size_t t) { return each(1, t); })) == "");
  const positions_of starts = {5, -1'000'000'000, 77};
  CHECK(same_bits(applied(rope, x, hw::rotary_positions::starts(starts)), one_by_one([&](std::size_t b, std::size_t t) {
                    return starts[b] + static_cast<std::int64_t>(t);
                  })) == "");
  // The last positions there are; the next would be past an int64.
  const std::int64_t last = (std::numeric_limits<std::int64_t>::max)();
  const auto far = applied(rope, x, last - 19);
  auto single = x;
  rope.apply(single.view().slice(1, 19, 1), last);
  CHECK(same_bits(far.view().slice(1, 19, 1), single.view().slice(1, 19, 1)) == "");
}

TEMPLATE_TEST_CASE("rotary: the inverse of the rotation is the identity", "[rotary]", float, double) {
  using T = TestType;
  random_source random(7);
  for (const hw::channel_layout layout : layouts) {
    for (const std::int64_t first : {std::int64_t{3}, std::int64_t{1} << 20, std::int64_t{1} << 31}) {
      const hw::rotary_options options = {.rotary_dim = 64, .base = 5e5, .layout = layout, .first_channel = 8};
      const auto x = random.tensor<T>({2, 9, 3, 80});
      const hw::rotary_embedding rope(options);
      auto y = applied(rope, x, first);
      rope.apply_inverse(y, first);
      auto there = plain_rotation(options, first), back = there;
      back.inverse = true;
      const auto bound = oracle::rotated<T>(oracle::rotated<T>(oracle::exact(x), there), back);
      const auto error_at = [&](const auto& at) { return bound.error(at[0], at[1], at[2], at[3]); };
      CHECK(support::worst_element(y, [&](const auto& at) { return support::element(x.view(), at); }, error_at) == "");
    }
  }
}

TEMPLATE_TEST_CASE("rotary: products depend on the distance of the positions", "[rotary]", float, double) {
  using T = TestType;
  random_source random(8);
  const auto q = random.tensor<T>({1, 1, 1, 64}), k = random.tensor<T>({1, 1, 1, 64});
  for (const hw::channel_layout layout : layouts) {
    const hw::rotary_options options = {.rotary_dim = 64, .base = 1e6, .layout = layout};
    const hw::rotary_embedding rope(options);
    const auto product = [&](std::int64_t query, std::int64_t key, real& bound) {
      const auto a = applied(rope, q, query), b = applied(rope, k, key);
      const auto ea = oracle::rotated<T>(oracle::exact(q), plain_rotation(options, query));
      const auto eb = oracle::rotated<T>(oracle::exact(k), plain_rotation(options, key));
      real sum = 0;
      for (std::size_t i = 0; i < 64; ++i) {
        const real x = static_cast<real>(a(0, 0, 0, i)), y = static_cast<real>(b(0, 0, 0, i));
        sum += x * y;
        bound += std::fabs(x) * eb.error(0, 0, 0, i) + (std::fabs(y) + eb.error(0, 0, 0, i)) * ea.error(0, 0, 0, i);
      }
      return sum;
    };
    for (const std::int64_t distance : {0, 1, 17, 5000}) {
      real near_bound = 0;
      const real near_product = product(distance, 0, near_bound);
      for (const std::int64_t key : {std::int64_t{1}, std::int64_t{1} << 20, (std::int64_t{1} << 31) - 5000}) {
        real bound = near_bound;
        const real other = product(key + distance, key, bound);
        CAPTURE(distance, key);
        CHECK(std::fabs(other - near_product) <= bound);
      }
    }
  }
}

TEST_CASE("rotary: scalings against the papers' formulas", "[rotary][scaling]") {
  random_source random(9);
  std::string faults;
  const auto compare = [&](const char* name, std::size_t r, double base, const auto& scaling) {
    const hw::rotary_embedding rope({.rotary_dim = r, .base = base, .scaling = scaling});
    const auto expected = oracle::scaled_frequencies(r, static_cast<real>(base), scaling);
    // Two units for the conversion to radians in double.
    const double ulps = frequency_ulps(rope, expected);
    const bool magnitude =
        std::fabs(static_cast<real>(rope.magnitude()) - expected.magnitude) <= 2 * oracle::unit<double>;
    if (!(ulps <= 2) || !magnitude) {
      faults += std::string(name) + " r " + std::to_string(r) + ": " + std::to_string(ulps) + " ulps, magnitude " +
                std::to_string(rope.magnitude()) + "\n";
    }
  };
  for (const std::size_t r : sizes{2, 6, 80}) {
    for (const double base : {1.5, 1e4, 5e5}) {
      for (const double factor : {0.5, 1.0, 1.7, 40.0}) {
        for (const std::int64_t length : {1, 30, 4096, 131072}) {
          compare("linear", r, base, hw::linear_scaling{factor});
          compare("ntk", r, base, hw::ntk_scaling{factor});
          if (factor >= 1) {
            compare("dynamic ntk", r, base, hw::dynamic_ntk_scaling{factor, 4096, length});
          }
          compare("yarn", r, base, hw::yarn_scaling{factor, length});
          compare("yarn", r, base, hw::yarn_scaling{factor, length, 8, 0.5, false});
          compare("llama3", r, base, hw::llama3_scaling{factor, 1, 4, length});
          compare("proportional", r, base, hw::proportional_scaling{0.25, factor});
          std::vector<double> narrow(r / 2), wide(r / 2);
          for (std::size_t i = 0; i < r / 2; ++i) {
            narrow[i] = random.uniform(1, 3);
            wide[i] = random.uniform(1, 60);
          }
          if (length > 1) {
            compare("longrope", r, base, hw::longrope_scaling{narrow, wide, factor, length, 4096});
          }
        }
      }
    }
  }
  CHECK(faults.substr(0, 1000) == "");
}

TEST_CASE("rotary: scalings by hand", "[rotary][scaling]") {
  const auto near = [](double a, double b) { return std::fabs(a - b) <= 4e-16 * std::fabs(b); };
  // base 10000 and r = 8: 1, 0.1, 0.01, 0.001.
  const auto frequency = [](const hw::rotary_scaling& scaling, std::size_t i) {
    return hw::rotary_embedding({.rotary_dim = 8, .scaling = scaling}).frequency(i);
  };
  CHECK(near(frequency({}, 1), 0.1));
  CHECK(near(frequency(hw::linear_scaling{4}, 3), 0.00025));
  CHECK(near(frequency(hw::ntk_scaling{4}, 0), 1));
  CHECK(near(frequency(hw::ntk_scaling{4}, 3), 0.00025));
  CHECK(near(frequency(hw::ntk_scaling{8}, 1), 0.05));
  // 2 * 6000 / 2000 - (2 - 1) = 5.
  CHECK(near(frequency(hw::dynamic_ntk_scaling{2, 2000, 6000}, 3), 0.0002));
  CHECK(near(frequency(hw::dynamic_ntk_scaling{2, 2000, 2000}, 3), 0.001));
  // d(n) = 4 ln(L / (2 pi n)) / ln 10000: for L = 6283 it is about 3 at n = 1 and about 1 at n = 100.
  const hw::yarn_scaling yarn = {16, 6283, 99, 1.001};
  CHECK(near(frequency(yarn, 1), 0.1));
  CHECK(near(frequency(yarn, 2), 0.01 * 0.5 + 0.01 / 16 * 0.5));
  CHECK(near(frequency(yarn, 3), 0.001 / 16));
  // Turns over 2000 pi positions: 1000, 100, 10 and 1.
  const hw::llama3_scaling llama = {8, 2, 50, 6283};
  CHECK(near(frequency(llama, 1), 0.1));
  CHECK(near(frequency(llama, 3), 0.000125));
  const double smooth = (62.83 / (2 * std::numbers::pi) - 2) / 48;
  CHECK(std::fabs(frequency(llama, 2) - (smooth * 0.01 + (1 - smooth) * 0.00125)) < 1e-17);
  CHECK(near(frequency(hw::proportional_scaling{0.5, 2}, 1), 0.05));
  CHECK(frequency(hw::proportional_scaling{0.5, 2}, 2) == 0);
  CHECK(frequency(hw::proportional_scaling{0}, 0) == 0);
  const std::vector<double> narrow = {1, 2, 4, 8}, wide = {1, 10, 100, 1000};
  CHECK(near(frequency(hw::longrope_scaling{narrow, wide, 2, 4096, 4096}, 3), 0.000125));
  CHECK(near(frequency(hw::longrope_scaling{narrow, wide, 2, 4096, 4097}, 3), 0.000001));

  // ln 16 = 2.77258872224; ln 32 / ln 4096 = 5 / 12.
  CHECK(near(hw::yarn_magnitude(16), 1.2772588722239782));
  CHECK(near(hw::yarn_magnitude(16, 0.707), 1 + 0.0707 * 2.772588722239781));
  CHECK(hw::yarn_magnitude(1) == 1);
  CHECK(hw::yarn_magnitude(0.5) == 1);
  CHECK(hw::yarn_magnitude(40, 0) == 1);
  const auto magnitude = [](const hw::rotary_options& options) { return hw::rotary_embedding(options).magnitude(); };
  CHECK(magnitude({.rotary_dim = 8}) == 1);
  CHECK(magnitude({.rotary_dim = 8, .scaling = hw::linear_scaling{16}}) == 1);
  CHECK(near(magnitude({.rotary_dim = 8, .scaling = hw::yarn_scaling{16, 4096}}), 1.2772588722239782));
  CHECK(magnitude({.rotary_dim = 8, .scaling = hw::yarn_scaling{16, 4096}, .magnitude = 0}) == 0);
  CHECK(near(magnitude({.rotary_dim = 8, .scaling = hw::longrope_scaling{narrow, wide, 32, 4096, 0}}),
             std::sqrt(17.0 / 12)));
}

TEMPLATE_TEST_CASE("rotary: scaled rotations at far positions", "[rotary][scaling]", float, double) {
  using T = TestType;
  random_source random(10);
  const auto x = random.tensor<T>({1, 3, 2, 128});
  const auto check = [&](const auto& scaling) {
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{131071}, (std::int64_t{1} << 31) - 2}) {
      for (const hw::channel_layout layout : layouts) {
        const hw::rotary_options options = {.rotary_dim = 128, .base = 5e5, .layout = layout, .scaling = scaling};
        auto expected = plain_rotation(options, first);
        expected.frequencies = oracle::scaled_frequencies(128, 5e5L, scaling);
        CAPTURE(first);
        CHECK(within(applied(hw::rotary_embedding(options), x, first),
                     oracle::rotated<T>(oracle::exact(x), expected)) == "");
      }
    }
  };
  std::vector<double> factors(64, 1.37);
  check(hw::linear_scaling{2.7});
  check(hw::ntk_scaling{3});
  check(hw::dynamic_ntk_scaling{2, 4096, 30000});
  check(hw::yarn_scaling{16, 4096});
  check(hw::llama3_scaling{8, 1, 4, 8192});
  check(hw::proportional_scaling{0.3, 2});
  check(hw::longrope_scaling{factors, factors, 32, 4096, 1});
}

TEMPLATE_TEST_CASE("rotary: explicit frequencies and magnitude", "[rotary]", float, double) {
  using T = TestType;
  random_source random(11);
  const std::vector<double> frequencies = {0.3, -2.5, 0, 7.25, 1e-9};
  const hw::rotary_embedding rope({.rotary_dim = 10, .frequencies = frequencies, .magnitude = 1.5L});
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(std::fabs(rope.frequency(i) - frequencies[i]) <= 3e-16 * std::fabs(frequencies[i]));
  }
  const auto x = random.tensor<T>({2, 3, 2, 10});
  std::vector<oracle::real> radians;
  for (const double frequency : frequencies) {
    radians.push_back(static_cast<oracle::real>(frequency));
  }
  const oracle::rotation expected = {.frequencies = {.radians = radians, .magnitude = 1.5L},
                                     .position = from(1'000'000'000)};
  CHECK(within(applied(rope, x, 1'000'000'000), oracle::rotated<T>(oracle::exact(x), expected)) == "");
}

TEMPLATE_TEST_CASE("rotary: multi-axis positions", "[rotary][sections]", float, double) {
  using T = TestType;
  random_source random(12);
  struct sectioned {
    std::size_t rotary_dim;
    std::vector<std::size_t> sections;
    hw::section_order order;
  };
  const std::vector<sectioned> cases = {
      {16, {2, 3, 3}, hw::section_order::blocks},      {16, {3, 3, 2}, hw::section_order::interleaved},
      {128, {16, 24, 24}, hw::section_order::blocks},  {128, {24, 20, 20}, hw::section_order::interleaved},
      {64, {8, 0, 12, 12}, hw::section_order::blocks}, {12, {6}, hw::section_order::interleaved}};
  for (const sectioned& item : cases) {
    for (const hw::channel_layout layout : layouts) {
      const std::size_t axes = item.sections.size(), pairs = item.rotary_dim / 2;
      // The rules of Qwen2-VL and Qwen3-VL: blocks one after the other; or axis 1 writes over every third pair from 1
      // on, axis 2 from 2 on.
      std::vector<std::size_t> axis_of(pairs, 0);
      std::size_t next = 0;
      for (std::size_t axis = 0; axis < axes; ++axis) {
        for (std::size_t n = 0; n < item.sections[axis]; ++n) {
          if (item.order == hw::section_order::blocks) {
            axis_of[next++] = axis;
          } else if (axis > 0) {
            axis_of[axis + axes * n] = axis;
          }
        }
      }
      hw::tensor<std::int64_t, 3> positions({axes, 2, 40});
      for (std::int64_t& p : positions) {
        p = random.chance(0.5) ? static_cast<std::int64_t>(random.integer(0, 40)) : random_position(random);
      }
      const hw::rotary_options options = {
          .rotary_dim = item.rotary_dim, .layout = layout, .sections = item.sections, .order = item.order};
      const hw::rotary_embedding rope(options);
      const auto x = random.tensor<T>({2, 40, 2, item.rotary_dim});
      auto expected = plain_rotation(options);
      expected.position = [&](std::size_t pair, std::size_t sample, std::size_t token) {
        return positions(axis_of[pair], sample, token);
      };
      CAPTURE(item.rotary_dim, axes);
      const auto y = applied(rope, x, positions);
      CHECK(within(y, oracle::rotated<T>(oracle::exact(x), expected)) == "");
      // One by one, and where all axes agree, as without sections.
      auto single = x;
      for (std::size_t b = 0; b < 2; ++b) {
        for (std::size_t t = 0; t < 40; ++t) {
          rope.apply(single.view().slice(0, b, 1).slice(1, t, 1), positions.view().slice(1, b, 1).slice(2, t, 1));
        }
      }
      CHECK(same_bits(single, y) == "");
      const hw::rotary_embedding plain({.rotary_dim = item.rotary_dim, .layout = layout});
      CHECK(same_bits(applied(rope, x, 1000), applied(plain, x, 1000)) == "");
      const hw::tensor_view<const std::int64_t, 3> same(positions.data(), {axes, 2, 40}, {0, 40, 1});
      const hw::tensor_view<const std::int64_t, 2> of_all(positions.data(), {2, 40});
      CHECK(same_bits(applied(rope, x, same), applied(plain, x, of_all)) == "");
      CHECK(same_bits(applied(rope, x, of_all), applied(plain, x, of_all)) == "");
    }
  }
}

TEMPLATE_TEST_CASE("rotary: NaN and infinity stay in their pair", "[rotary]", float, double) {
  using T = TestType;
  for (const hw::channel_layout layout : layouts) {
    const hw::rotary_embedding rope({.rotary_dim = 64, .layout = layout, .first_channel = 2});
    for (const std::size_t pair : sizes{0, 5, 17, 31}) {
      hw::tensor<T, 4> x({1, 2, 2, 70});
      std::fill(x.begin(), x.end(), T(1));
      const std::size_t channel = 2 + (layout == hw::channel_layout::halves ? pair : 2 * pair);
      const std::size_t other = layout == hw::channel_layout::halves ? channel + 32 : channel + 1;
      x(0, 1, 0, channel) = std::numeric_limits<T>::quiet_NaN();
      x(0, 1, 1, channel) = std::numeric_limits<T>::infinity();
      x(0, 1, 1, 0) = x(0, 1, 1, 69) = std::numeric_limits<T>::quiet_NaN();
      rope.apply(x, 3);
      std::string wrong;
      support::for_each_index(x.extents(), [&](const auto& at) {
        const bool here = at[1] == 1 && (at[3] == channel || at[3] == other);
        const bool outside = at[1] == 1 && at[2] == 1 && (at[3] == 0 || at[3] == 69);
        if (std::isfinite(support::element(x.view(), at)) == (here || outside)) {
          wrong += support::text_of(at) + " ";
        }
      });
      CHECK(wrong == "");
    }
  }
}

TEMPLATE_TEST_CASE("rotary: extents of zero", "[rotary]", float, double) {
  const hw::rotary_embedding rope({.rotary_dim = 8});
  for (const std::size_t empty : sizes{0, 1, 2}) {
    std::array<std::size_t, 4> shape = {2, 3, 4, 8};
    shape[empty] = 0;
    hw::tensor<TestType, 4> q(shape);
    rope.apply(q, 0);
    rope.apply(q, positions_of(shape[1]));
    rope.apply(q, hw::tensor<std::int64_t, 2>({shape[0], shape[1]}));
    rope.apply_inverse(q, hw::rotary_positions::starts(positions_of(shape[0])));
  }
}

TEST_CASE("rotary: errors name the function and the rule, before anything is written", "[rotary][errors]") {
  const auto refused = [](const hw::rotary_options& options, const std::vector<std::string>& parts) {
    const std::string text = error_of([&] { hw::rotary_embedding rope(options); });
    return lacks(text, {"rotary_embedding"}) + lacks(text, parts);
  };
  const double nan = support::not_a_number, infinity = support::infinity;
  CHECK(refused({}, {"rotary_dim", "0"}) == "");
  CHECK(refused({.rotary_dim = 7}, {"rotary_dim", "even", "7"}) == "");
  CHECK(refused({.rotary_dim = std::size_t{1} << 62}, {"rotary_dim", "memory"}) == "");
  for (const double base : {0.0, -1.0, nan, infinity}) {
    CHECK(refused({.rotary_dim = 8, .base = base}, {"base"}) == "");
  }
  for (const double factor : {0.0, -2.0, nan, infinity}) {
    CHECK(refused({.rotary_dim = 8, .scaling = hw::linear_scaling{factor}}, {"factor"}) == "");
    CHECK(refused({.rotary_dim = 8, .scaling = hw::ntk_scaling{factor}}, {"factor"}) == "");
    CHECK(refused({.rotary_dim = 8, .scaling = hw::dynamic_ntk_scaling{factor, 4, 8}}, {"factor"}) == "");
    CHECK(refused({.rotary_dim = 8, .scaling = hw::yarn_scaling{factor, 4}}, {"factor"}) == "");
    CHECK(refused({.rotary_dim = 8, .scaling = hw::llama3_scaling{factor, 1, 4, 8}}, {"factor"}) == "");
    CHECK(refused({.rotary_dim = 8, .scaling = hw::proportional_scaling{1, factor}}, {"factor"}) == "");
  }
  CHECK(refused({.rotary_dim = 8, .scaling = hw::dynamic_ntk_scaling{2}}, {"original_length"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::yarn_scaling{2}}, {"original_length"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::llama3_scaling{2}}, {"original_length"}) == "");
  CHECK(refused({.rotary_dim = 8, .base = 1, .scaling = hw::yarn_scaling{2, 4096}}, {"base"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::yarn_scaling{2, 4096, 1, 32}}, {"beta_fast"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::yarn_scaling{2, 4096, 32, 0}}, {"beta_slow"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::llama3_scaling{8, 4, 4, 8192}}, {"high_frequency_factor"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::proportional_scaling{1.5}}, {"fraction"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::proportional_scaling{nan}}, {"fraction"}) == "");
  const std::vector<double> four(4, 1.0), three(3, 1.0), zero(4, 0.0), not_numbers(4, nan);
  CHECK(refused({.rotary_dim = 8, .scaling = hw::longrope_scaling{four, three, 2, 4096}}, {"longrope"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::longrope_scaling{four, zero, 2, 4096}}, {"longrope"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::longrope_scaling{four, four, 2, 1}}, {"original_length"}) == "");
  CHECK(refused({.rotary_dim = 8, .frequencies = three}, {"frequencies", "3 != 4"}) == "");
  CHECK(refused({.rotary_dim = 8, .frequencies = not_numbers}, {"frequencies", "finite"}) == "");
  CHECK(refused({.rotary_dim = 8, .scaling = hw::linear_scaling{2}, .frequencies = four}, {"frequencies", "scaling"}) ==
        "");
  CHECK(refused({.rotary_dim = 8, .magnitude = nan}, {"magnitude"}) == "");
  const sizes short_sections = {1, 2}, long_sections = {2, 3}, huge = {SIZE_MAX, 5}, uneven = {0, 4}, many(300, 0);
  for (const sizes& sections : {short_sections, long_sections, huge, many}) {
    CHECK(refused({.rotary_dim = 8, .sections = sections}, {"sections"}) == "");
  }
  CHECK(refused({.rotary_dim = 8, .sections = uneven, .order = hw::section_order::interleaved},
                {"sections", "[0, 4]"}) == "");

  const sizes sections = {2, 2};
  const hw::rotary_embedding rope({.rotary_dim = 8, .first_channel = 3}),
      sectioned({.rotary_dim = 8, .sections = sections});
  window<float, 4> small({2, 3, 4, 10}), q({2, 3, 4, 12});
  CHECK(lacks(error_of([&] { rope.apply(small.view(), 0); }), {"rotary_embedding", "3 + 8", "[2, 3, 4, 10]"}) == "");
  CHECK(small.untouched());
  const hw::rotary_embedding overflowing({.rotary_dim = 8, .first_channel = SIZE_MAX - 3});
  CHECK(error_of([&] { overflowing.apply(q.view(), 0); }) != "");
  CHECK(lacks(error_of([&] { rope.apply(q.view(), positions_of(2)); }),
              {"rotary_embedding", "positions [2]", "[2, 3, 4, 12]"}) == "");
  CHECK(lacks(error_of([&] { rope.apply(q.view(), hw::tensor<std::int64_t, 2>({3, 2})); }), {"positions [3, 2]"}) ==
        "");
  CHECK(error_of([&] { rope.apply(q.view(), hw::tensor<std::int64_t, 2>({1, 3})); }) != "");
  CHECK(error_of([&] { rope.apply(q.view(), hw::tensor<std::int64_t, 3>({1, 2, 3})); }) != "");
  CHECK(error_of([&] { sectioned.apply(q.view(), hw::tensor<std::int64_t, 3>({3, 2, 3})); }) != "");
  CHECK(lacks(error_of([&] { rope.apply_inverse(q.view(), hw::rotary_positions::starts(positions_of(3))); }),
              {"starts", "[3]"}) == "");
  CHECK(q.untouched());
}
