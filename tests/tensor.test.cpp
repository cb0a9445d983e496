// SPDX-License-Identifier: MIT
// Element access is checked in this file whatever the build type, and a fault can be caught.
struct outside {};
#define HEADWAVE_ASSERT(condition) ((condition) ? void(0) : throw outside())
#include <headwave/tensor.hpp>

#include "support/catch.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hw = headwave;

namespace {

constexpr std::size_t huge = std::size_t{1} << 62;

std::vector<float> counted(std::size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  return numbers;
}

template <class T>
std::vector<T> elements(const hw::tensor_view<T, 2>& view) {
  std::vector<T> result;
  for (std::size_t i = 0; i < view.extent(0); ++i) {
    for (std::size_t j = 0; j < view.extent(1); ++j) {
      result.push_back(view(i, j));
    }
  }
  return result;
}

/// The text of the shape_error that a call throws, or "" if it throws none.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const hw::shape_error& error) {
    return error.what();
  }
  return "";
}

// An overload set like a library function's: takes tensors and views of any element type, by the rules of as_view.
template <hw::tensor_like<2> X>
hw::element_of<X> first_element(X&& x) {
  return hw::as_view(x)(0, 0);
}

template <class X>
constexpr bool is_output = hw::output_like<X, 2>;

}  // namespace

TEST_CASE("a view of constants is usable in constant expressions") {
  static constexpr float numbers[] = {0, 1, 2, 3, 4, 5};
  constexpr hw::tensor_view<const float, 2> view(numbers, {2, 3});
  STATIC_REQUIRE(&view(1, 2) == numbers + 5);
  STATIC_REQUIRE(&view.transposed(0, 1)(2, 0) == numbers + 2);
  STATIC_REQUIRE(&view.slice(0, 1, 1)(0, 0) == numbers + 3);
  STATIC_REQUIRE(&view.reshaped({6})(4) == numbers + 4);
  STATIC_REQUIRE(view.size() == 6);
}

TEST_CASE("a view is three plain arrays, copied as bytes", "[tensor_view]") {
  STATIC_REQUIRE(std::is_trivially_copyable_v<hw::tensor_view<float, 3>>);
  STATIC_REQUIRE(std::is_standard_layout_v<hw::tensor_view<float, 3>>);
  STATIC_REQUIRE(sizeof(hw::tensor_view<float, 1>) == 24);
  STATIC_REQUIRE(sizeof(hw::tensor_view<float, 3>) == 56);
  STATIC_REQUIRE(sizeof(hw::tensor_view<const double, 4>) == 72);
  STATIC_REQUIRE(sizeof(hw::tensor<float, 3>) == 32);
  STATIC_REQUIRE(hw::tensor_view<float, 3>::rank() == 3);
  STATIC_REQUIRE(hw::tensor<float, 4>::rank() == 4);
  STATIC_REQUIRE(std::is_same_v<hw::tensor_view<const float, 2>::value_type, float>);
  STATIC_REQUIRE(std::is_same_v<hw::tensor_view<const float, 2>::element_type, const float>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<hw::tensor<float, 3>>);
  STATIC_REQUIRE(std::is_nothrow_move_assignable_v<hw::tensor<float, 3>>);
  STATIC_REQUIRE(std::is_base_of_v<std::invalid_argument, hw::shape_error>);
}

TEST_CASE("a default view means not given", "[tensor_view]") {
  const hw::tensor_view<float, 3> none;
  CHECK(none.data() == nullptr);
  CHECK(none.empty());
  CHECK(none.size() == 0);
  CHECK(none.extents() == std::array<std::size_t, 3>{0, 0, 0});
}

TEST_CASE("elements are in row-major order, the last axis side by side", "[tensor_view]") {
  std::vector<float> numbers = counted(24);
  const hw::tensor_view<float, 3> view(numbers, {2, 3, 4});
  CHECK(view.extents() == std::array<std::size_t, 3>{2, 3, 4});
  CHECK(view.strides() == std::array<hw::index, 3>{12, 4, 1});
  CHECK(view.extent(1) == 3);
  CHECK(view.stride(0) == 12);
  CHECK(view.size() == 24);
  CHECK_FALSE(view.empty());
  CHECK(view.is_contiguous());
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      for (std::size_t k = 0; k < 4; ++k) {
        CHECK(view(i, j, k) == static_cast<float>(12 * i + 4 * j + k));
      }
    }
  }
  view(1, 2, 3) = -1;
  CHECK(numbers[23] == -1);
}

TEST_CASE("any integer is an index", "[tensor_view]") {
  std::vector<float> numbers = counted(6);
  const hw::tensor_view<float, 2> view(numbers, {2, 3});
  CHECK(view(1, std::size_t{2}) == 5);
  CHECK(view(std::int64_t{1}, std::uint8_t{2}) == 5);
  CHECK(view(short{1}, 2u) == 5);
}

TEST_CASE("HEADWAVE_ASSERT sees an index outside its axis", "[tensor_view]") {
  std::vector<float> numbers = counted(6);
  const hw::tensor_view<float, 2> view(numbers, {2, 3});
  const hw::tensor<float, 2> owner({2, 3});
  CHECK_THROWS_AS(view(2, 0), outside);
  CHECK_THROWS_AS(view(0, 3), outside);  // the element exists, in the next row
  CHECK_THROWS_AS(view(1, -1), outside);
  CHECK_THROWS_AS(owner(0, 3), outside);
  CHECK_THROWS_AS((hw::tensor_view<float, 1>()(0)), outside);
}

TEST_CASE("views of a pointer, an array, a vector and a span", "[tensor_view]") {
  float array[6] = {0, 1, 2, 3, 4, 5};
  std::array<float, 6> standard_array{0, 1, 2, 3, 4, 5};
  std::vector<float> vector = counted(6);
  const std::vector<float> constant = vector;
  float* const pointer = vector.data();

  CHECK(hw::tensor_view<float, 2>(array, {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<float, 2>(standard_array, {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<float, 2>(vector, {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<float, 2>(pointer, {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<float, 2>(vector.data(), {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<float, 2>(std::span(vector), {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<const float, 2>(vector, {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<const float, 2>(constant, {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<const float, 2>(constant.data(), {2, 3})(1, 1) == 4);
  CHECK(hw::tensor_view<const float, 2>(std::span(constant), {2, 3})(1, 1) == 4);
  // A temporary lends its elements to the end of the expression, for reading.
  CHECK(hw::tensor_view<const float, 2>(counted(6), {2, 3})(1, 1) == 4);
}

TEST_CASE("what a view does not convert from", "[tensor_view]") {
  using view = hw::tensor_view<float, 2>;
  using const_view = hw::tensor_view<const float, 2>;
  using extents = std::array<std::size_t, 2>;
  STATIC_REQUIRE(std::is_convertible_v<view, const_view>);
  STATIC_REQUIRE(std::is_convertible_v<hw::tensor<float, 2>&, view>);
  STATIC_REQUIRE(std::is_convertible_v<hw::tensor<float, 2>&, const_view>);
  STATIC_REQUIRE(std::is_convertible_v<const hw::tensor<float, 2>&, const_view>);
  STATIC_REQUIRE(std::is_convertible_v<hw::tensor<float, 2>, const_view>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<const_view, view>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<const hw::tensor<float, 2>&, view>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<hw::tensor<float, 2>, view>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<view, hw::tensor_view<float, 3>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<const_view, hw::tensor_view<double, 2>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<view, const std::vector<float>&, extents>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<view, std::vector<float>, extents>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<view, std::span<const float>, extents>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<const_view, std::vector<double>&, extents>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<hw::tensor_view<const bool, 2>, std::vector<bool>&, extents>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<view, const float*, extents>);
}

TEST_CASE("a range must have enough elements, and may have more", "[tensor_view]") {
  std::vector<float> numbers = counted(3000);
  CHECK(hw::tensor_view<float, 2>(numbers, {2, 3})(1, 2) == 5);
  CHECK(error_of([&] { hw::tensor_view<float, 3>(numbers, {2, 30, 64}); }) ==
        "tensor_view: needs 3840 elements, the range has 3000; extents [2, 30, 64]");
  CHECK(error_of([&] { hw::tensor_view<const float, 1>(std::span(numbers), {3001}); }) ==
        "tensor_view: needs 3001 elements, the range has 3000; extents [3001]");
}

TEST_CASE("strides may skip, repeat and run backwards", "[tensor_view]") {
  std::vector<float> numbers = counted(12);
  SECTION("rows longer than their visible part") {
    const hw::tensor_view<float, 2> padded(numbers.data(), {3, 2}, {4, 1});
    CHECK(elements(padded) == std::vector<float>{0, 1, 4, 5, 8, 9});
    CHECK_FALSE(padded.is_contiguous());
  }
  SECTION("every second column") {
    const hw::tensor_view<float, 2> sparse(numbers.data(), {3, 2}, {4, 2});
    CHECK(elements(sparse) == std::vector<float>{0, 2, 4, 6, 8, 10});
  }
  SECTION("one row repeated") {
    const hw::tensor_view<float, 2> repeated(numbers.data(), {3, 2}, {0, 1});
    CHECK(elements(repeated) == std::vector<float>{0, 1, 0, 1, 0, 1});
    CHECK(repeated.size() == 6);
    CHECK_FALSE(repeated.is_contiguous());
    repeated(2, 1) = 7;
    CHECK(repeated(0, 1) == 7);
  }
  SECTION("backwards along both axes") {
    const hw::tensor_view<float, 2> reversed(numbers.data() + 11, {3, 4}, {-4, -1});
    CHECK(elements(reversed) == std::vector<float>{11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
    CHECK_FALSE(reversed.is_contiguous());
    CHECK(elements(reversed.slice(0, 1, 1)) == std::vector<float>{7, 6, 5, 4});
    CHECK(elements(reversed.transposed(0, 1).slice(0, 3, 1)) == std::vector<float>{8, 4, 0});
  }
}

TEST_CASE("transposed exchanges two axes without moving elements", "[tensor_view]") {
  std::vector<float> numbers = counted(2 * 3 * 4 * 5);
  const hw::tensor_view<float, 4> heads_first(numbers, {2, 3, 4, 5});
  const hw::tensor_view<float, 4> length_first = heads_first.transposed(1, 2);
  CHECK(length_first.extents() == std::array<std::size_t, 4>{2, 4, 3, 5});
  CHECK(length_first.strides() == std::array<hw::index, 4>{60, 5, 20, 1});
  CHECK(length_first.data() == numbers.data());
  CHECK(length_first(1, 3, 2, 4) == heads_first(1, 2, 3, 4));
  CHECK_FALSE(length_first.is_contiguous());
  CHECK(length_first.transposed(2, 1).is_contiguous());
  CHECK(heads_first.transposed(2, 2).extents() == heads_first.extents());

  CHECK(error_of([&] { heads_first.transposed(1, 4); }) == "transposed: no such axis: 4; view [2, 3, 4, 5]");
  CHECK(error_of([&] { heads_first.transposed(7, 0); }) == "transposed: no such axis: 7; view [2, 3, 4, 5]");
}

TEST_CASE("reshaped keeps the elements and their order", "[tensor_view]") {
  std::vector<float> numbers = counted(24);
  const hw::tensor_view<float, 3> view(numbers, {2, 3, 4});
  CHECK(view.reshaped({6, 4})(5, 3) == 23);
  CHECK(view.reshaped({24})(17) == 17);
  CHECK(view.reshaped({2, 2, 2, 3})(1, 0, 1, 2) == 17);
  CHECK(view.reshaped({6, 4}).strides() == std::array<hw::index, 2>{4, 1});

  CHECK(error_of([&] { view.reshaped({5, 5}); }) ==
        "reshaped: the number of elements must stay the same; view [2, 3, 4], new extents [5, 5]");
  CHECK(error_of([&] { view.transposed(0, 1).reshaped({24}); }) ==
        "reshaped: the view must be contiguous; view [3, 2, 4]");
  CHECK(error_of([&] { view.reshaped({huge, 4}); }) == "reshaped: size overflows: 4611686018427387904 * 4");

  SECTION("an axis of one element may have any stride") {
    const hw::tensor_view<float, 3> one(numbers.data(), {2, 1, 4}, {4, -77, 1});
    CHECK(one.is_contiguous());
    CHECK(one.reshaped({8})(7) == 7);
  }
  SECTION("no elements, no gaps") {
    const hw::tensor_view<float, 2> none(numbers.data(), {0, 4}, {99, 3});
    CHECK(none.is_contiguous());
    CHECK(none.reshaped({5, 0, 2}).size() == 0);
  }
}

TEST_CASE("slice takes a range of one axis", "[tensor_view]") {
  std::vector<float> numbers = counted(24);
  const hw::tensor_view<float, 2> view(numbers, {4, 6});
  CHECK(elements(view.slice(0, 1, 2).slice(1, 4, 2)) == std::vector<float>{10, 11, 16, 17});
  CHECK(view.slice(0, 1, 2).is_contiguous());
  CHECK_FALSE(view.slice(1, 4, 2).is_contiguous());
  CHECK(view.slice(0, 4, 0).empty());
  CHECK(view.slice(0, 0, 4).extents() == view.extents());

  CHECK(error_of([&] { view.slice(0, 3, 2); }) == "slice: no elements 3 to 3 + 2 on axis 0; view [4, 6]");
  CHECK(error_of([&] { view.slice(1, 7, 0); }) == "slice: no elements 7 to 7 + 0 on axis 1; view [4, 6]");
  CHECK(error_of([&] { view.slice(2, 0, 1); }) == "slice: no elements 0 to 0 + 1 on axis 2; view [4, 6]");
  // first + count wraps to 2, which exists.
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  CHECK(error_of([&] { view.slice(0, 3, most); }) ==
        "slice: no elements 3 to 3 + 18446744073709551615 on axis 0; view [4, 6]");
}

TEST_CASE("a view works in a constant expression", "[tensor_view]") {
  constexpr auto sum_of_a_column = [] {
    int numbers[6] = {0, 1, 2, 3, 4, 5};
    const hw::tensor_view<int, 2> view(numbers, {2, 3}, {3, 1});
    const hw::tensor_view<const int, 2> column = view.transposed(0, 1).slice(0, 2, 1);
    return column(0, 0) + column(0, 1);
  };
  STATIC_REQUIRE(sum_of_a_column() == 2 + 5);
  constexpr hw::tensor_view<const float, 2> none;
  STATIC_REQUIRE(none.size() == 0);
}

TEST_CASE("offsets and sizes are 64 bits wide", "[tensor_view][B24]") {
  // Nothing is read: the address of an element is formed, from a base of which only numbers are known.
  const auto offset_in = [](const hw::tensor_view<std::uint8_t, 2>& view, auto row, auto column) {
    return reinterpret_cast<std::uintptr_t>(&view(row, column)) - reinterpret_cast<std::uintptr_t>(view.data());
  };
  auto* const base = reinterpret_cast<std::uint8_t*>(std::uintptr_t{1} << 40);

  SECTION("a row far down, 32-bit indices") {
    const std::size_t rows = 4096 * 4097 + 1;
    const hw::tensor_view<std::uint8_t, 2> view(base, {rows, 128});
    CHECK(offset_in(view, 4096 * 4097, 0) == 2'148'007'936u);
    CHECK(offset_in(view, 16'781'312u, std::uint8_t{127}) == 2'148'008'063u);
    CHECK(view.size() == 2'148'008'064u);
    CHECK(view.slice(0, rows - 1, 1).data() - base == 2'148'007'936);
  }
  SECTION("the first square past 2^31") {
    const hw::tensor_view<std::uint8_t, 2> view(base, {46'342, 46'341});
    CHECK(offset_in(view, 46'341, 0) == 2'147'488'281u);
    CHECK(view.stride(0) == 46'341);
  }
  SECTION("a square past 2^32") {
    const hw::tensor_view<std::uint8_t, 3> view(base, {2, 65'536, 65'536});
    CHECK(view.stride(0) == hw::index{1} << 32);
    CHECK(view.size() == std::size_t{1} << 33);
    CHECK(&view(1, 65'535, 65'535) - base == (std::ptrdiff_t{1} << 33) - 1);
  }
  SECTION("backwards") {
    const hw::tensor_view<std::uint8_t, 2> view(base, {65'536, 65'536}, {-65'536, -1});
    CHECK(base - &view(65'535, 65'535) == (std::ptrdiff_t{1} << 32) - 1);
  }
}

TEST_CASE("sizes that do not fit are reported before anything is allocated", "[tensor][B24]") {
  CHECK(error_of([] { hw::tensor<float, 2>({huge, 4}); }) == "tensor: size overflows: 4611686018427387904 * 4");
  CHECK(error_of([] { hw::tensor<float, 1>({huge}); }) == "tensor: size overflows: 4611686018427387904 * 4");
  CHECK(error_of([] { hw::tensor<float, 4>({65'536, 65'536, 65'536, 65'536}); }) ==
        "tensor: size overflows: 281474976710656 * 65536");
  CHECK(error_of([] { hw::tensor_view<float, 2>(static_cast<float*>(nullptr), {huge, huge}); }) ==
        "tensor_view: size overflows: 4611686018427387904 * 4611686018427387904");
  // 2^64 elements would wrap to none, which any range has.
  std::vector<float> numbers(1);
  CHECK(error_of([&] { hw::tensor_view<float, 2>(numbers, {std::size_t{1} << 32, std::size_t{1} << 32}); }) ==
        "tensor_view: size overflows: 4294967296 * 4294967296");
}

TEST_CASE("an extent of zero makes any shape empty", "[tensor][B25]") {
  const hw::tensor<float, 3> none({2, 0, 4});
  CHECK(none.size() == 0);
  CHECK(none.empty());
  CHECK(none.begin() == none.end());
  CHECK(none.extents() == std::array<std::size_t, 3>{2, 0, 4});
  CHECK(none.view().transposed(0, 1).extent(0) == 0);
  CHECK(hw::tensor<float, 3>({huge, huge, 0}).empty());
  const hw::tensor<float, 3> copy = none;
  CHECK(copy.extents() == none.extents());
  std::vector<float> no_numbers;
  CHECK(hw::tensor_view<float, 2>(no_numbers, {0, 7}).empty());
}

TEST_CASE("a new tensor holds zeros and is 64-byte aligned", "[tensor]") {
  for (const std::size_t width : {1u, 3u, 16u, 1000u}) {
    const hw::tensor<float, 2> x({7, width});
    CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 64 == 0);
    CHECK(std::vector<float>(x.begin(), x.end()) == std::vector<float>(7 * width));
    CHECK(x.size() == 7 * width);
    CHECK(x.stride(0) == static_cast<hw::index>(width));
  }
  const hw::tensor<double, 1> uninitialized({9}, hw::uninitialized);
  CHECK(reinterpret_cast<std::uintptr_t>(uninitialized.data()) % 64 == 0);
  CHECK(uninitialized.size() == 9);
  CHECK(hw::tensor<bool, 2>({2, 2})(1, 1) == false);
  CHECK(hw::tensor<float, 2>().empty());
  CHECK(hw::tensor<float, 2>().data() == nullptr);
}

TEST_CASE("constness of a tensor is deep, that of a view is not", "[tensor]") {
  hw::tensor<float, 2> x({2, 3});
  const hw::tensor<float, 2>& constant = x;
  const hw::tensor_view<float, 2> view = x;
  STATIC_REQUIRE(std::is_same_v<decltype(x(0, 0)), float&>);
  STATIC_REQUIRE(std::is_same_v<decltype(constant(0, 0)), const float&>);
  STATIC_REQUIRE(std::is_same_v<decltype(view(0, 0)), float&>);
  STATIC_REQUIRE(std::is_same_v<decltype(x.view()), hw::tensor_view<float, 2>>);
  STATIC_REQUIRE(std::is_same_v<decltype(constant.view()), hw::tensor_view<const float, 2>>);
  STATIC_REQUIRE(std::is_same_v<decltype(hw::tensor<float, 2>().view()), hw::tensor_view<const float, 2>>);
  STATIC_REQUIRE(std::is_same_v<decltype(x.data()), float*>);
  STATIC_REQUIRE(std::is_same_v<decltype(constant.data()), const float*>);
  x(1, 2) = 6;
  view(0, 1) = 2;
  CHECK(std::vector<float>(constant.begin(), constant.end()) == std::vector<float>{0, 2, 0, 0, 0, 6});
}

TEST_CASE("a copy is deep", "[tensor]") {
  hw::tensor<float, 2> x({2, 2});
  x(1, 1) = 4;
  hw::tensor<float, 2> copy = x;
  CHECK(copy.data() != x.data());
  CHECK(copy(1, 1) == 4);
  copy(1, 1) = 5;
  CHECK(x(1, 1) == 4);

  hw::tensor<float, 2> assigned({7, 7});
  assigned = x;
  CHECK(assigned.extents() == x.extents());
  CHECK(assigned(1, 1) == 4);
  CHECK(assigned.data() != x.data());

  hw::tensor<float, 2>& same = x;
  x = same;
  CHECK(x.extents() == std::array<std::size_t, 2>{2, 2});
  CHECK(x(1, 1) == 4);

  x = hw::tensor<float, 2>();
  CHECK(x.empty());
}

TEST_CASE("a move hands the elements over and leaves nothing", "[tensor]") {
  hw::tensor<float, 2> x({2, 2});
  x(1, 0) = 3;
  const float* const address = x.data();
  hw::tensor<float, 2> moved = std::move(x);
  CHECK(moved.data() == address);
  CHECK(moved(1, 0) == 3);
  CHECK(x.data() == nullptr);  // NOLINT(bugprone-use-after-move): the state after a move is part of the contract
  CHECK(x.size() == 0);

  hw::tensor<float, 2> target({5, 5});
  target = std::move(moved);
  CHECK(target.data() == address);
  CHECK(target.extent(0) == 2);
  CHECK(moved.empty());  // NOLINT(bugprone-use-after-move)

  hw::tensor<float, 2>& same = target;
  target = std::move(same);
  CHECK(target.data() == address);
  CHECK(target(1, 0) == 3);

  std::swap(target, moved);
  CHECK(moved.data() == address);
  CHECK(target.empty());

  moved = hw::tensor<float, 2>({1, 3});
  CHECK(moved.size() == 3);
  std::vector<hw::tensor<float, 2>> several;
  for (std::size_t i = 1; i < 6; ++i) {
    several.emplace_back(std::array<std::size_t, 2>{i, i});
  }
  CHECK(several[4].size() == 25);
}

TEST_CASE("functions take tensors and views alike", "[tensor]") {
  hw::tensor<double, 2> x({2, 3});
  x(0, 0) = 9;
  const hw::tensor<double, 2>& constant = x;
  CHECK(first_element(x) == 9);
  CHECK(first_element(constant) == 9);
  CHECK(first_element(x.view()) == 9);
  CHECK(first_element(constant.view()) == 9);
  CHECK(first_element(hw::tensor<double, 2>({1, 1})) == 0);
  STATIC_REQUIRE(std::is_same_v<hw::element_of<const hw::tensor<double, 2>>, double>);
  STATIC_REQUIRE(std::is_same_v<hw::element_of<hw::tensor_view<const float, 1>>, float>);
  STATIC_REQUIRE(hw::tensor_like<hw::tensor_view<const float, 3>, 3>);
  STATIC_REQUIRE_FALSE(hw::tensor_like<hw::tensor_view<const float, 3>, 2>);
  STATIC_REQUIRE_FALSE(hw::tensor_like<std::vector<float>, 1>);
  STATIC_REQUIRE_FALSE(hw::tensor_like<int, 1>);
  STATIC_REQUIRE(is_output<hw::tensor<float, 2>>);
  STATIC_REQUIRE(is_output<hw::tensor_view<float, 2>>);
  STATIC_REQUIRE(is_output<const hw::tensor_view<float, 2>>);
  STATIC_REQUIRE_FALSE(is_output<const hw::tensor<float, 2>>);
  STATIC_REQUIRE_FALSE(is_output<hw::tensor_view<const float, 2>>);
}
