// SPDX-License-Identifier: MIT
#include "../examples/support/safetensors.hpp"
#include "support/catch.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

using support::safetensors;

/// The eight bytes of a header's length, and room for more_bytes of value zero.
std::vector<char> header_length(std::uint64_t length, std::size_t more_bytes = 0) {
  std::vector<char> bytes(sizeof(length) + more_bytes);
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

/// A file of a header's text and data_size bytes of value zero.
std::vector<char> file_of(const std::string& header, std::size_t data_size = 0) {
  std::vector<char> bytes = header_length(header.size(), header.size() + data_size);
  header.copy(bytes.data() + sizeof(std::uint64_t), header.size());
  return bytes;
}

template <class T, std::size_t Count>
std::vector<char> file_of(const std::string& header, const std::array<T, Count>& data) {
  std::vector<char> bytes = file_of(header, sizeof(data));
  std::memcpy(bytes.data() + bytes.size() - sizeof(data), data.data(), sizeof(data));
  return bytes;
}

/// The header's text for one tensor.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                const std::string& name = "x") {
  return "\"" + name + "\": {\"dtype\": \"" + dtype + "\", \"shape\": " + shape + ", \"data_offsets\": " + offsets +
         "}";
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(std::vector<char> bytes) {
  return error_of([&] { safetensors("f", std::move(bytes)); });
}

std::string error_of(const std::string& members, std::size_t data_size) {
  return error_of(file_of("{" + members + "}", data_size));
}

/// A file that is deleted with this object.
class temporary_file {
 public:
  explicit temporary_file(const std::vector<char>& bytes)
      : path_(std::filesystem::temp_directory_path() /
              ("headwave_" + std::to_string(std::random_device()()) + ".safetensors")) {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("safetensors: tensors and metadata of a hand-made file", "[safetensors]") {
  // 8 bytes of I64, 16 of F64, 8 of F32, 3 of BOOL; the header names them in another order and ends in padding.
  const std::string header =
      "{" + one("F64", "[2, 1]", "[8, 24]", "double") + "," + one("BOOL", "[3]", "[32, 35]", "bool") + "," +
      "\"__metadata__\": {\"heads\": \"12\", \"words\": \"[\\\"caf\u00e9\\\"]\"}," +
      one("I64", "[1]", "[0, 8]", "integer") + "," + one("F32", "[1, 2, 1]", "[24, 32]", "float") + "," +
      one("F32", "[0, 4]", "[35, 35]", "empty") + "}   ";
  std::array<char, 35> data{};
  const std::int64_t integer = -(std::int64_t{1} << 53) - 1;
  const double doubles[] = {0.1, -std::numeric_limits<double>::infinity()};
  const float floats[] = {0.1f, -3e38f};
  std::memcpy(data.data(), &integer, 8);
  std::memcpy(data.data() + 8, doubles, 16);
  std::memcpy(data.data() + 24, floats, 8);
  data[33] = 1;
  const temporary_file written(file_of(header, data));
  const safetensors file(written.path());

  CHECK(file.names() == std::vector<std::string>{"bool", "double", "empty", "float", "integer"});
  CHECK(file.contains("float"));
  CHECK_FALSE(file.contains("__metadata__"));
  CHECK(file.dtype("bool") == "BOOL");
  CHECK(file.shape("float") == std::vector<std::size_t>{1, 2, 1});
  CHECK(file.metadata().size() == 2);
  CHECK(file.metadata("heads") == "12");
  CHECK(file.metadata("words") == "[\"caf\u00e9\"]");

  CHECK(file.read<std::int64_t, 1>("integer")(0) == integer);
  const auto as_double = file.read<double, 2>("double");
  CHECK(as_double.extents() == std::array<std::size_t, 2>{2, 1});
  CHECK((as_double(0, 0) == doubles[0] && as_double(1, 0) == doubles[1]));
  const auto as_float = file.read<float, 3>("float");
  CHECK((as_float(0, 0, 0) == floats[0] && as_float(0, 1, 0) == floats[1]));
  const auto as_bool = file.read<bool, 1>("bool");
  CHECK((!as_bool(0) && as_bool(1) && !as_bool(2)));
  CHECK(file.read<float, 2>("empty").extents() == std::array<std::size_t, 2>{0, 4});
}

TEST_CASE("safetensors: conversion rounds to floating point and is exact to integers", "[safetensors]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::array<double, 8> data = {0.1, 1, 0, -0x1p63, 0x1p63, 2, nan, 255};
  const safetensors file(
      "f", file_of("{" + one("F64", "[1]", "[0, 8]", "tenth") + "," + one("F64", "[2]", "[8, 24]", "bits") + "," +
                       one("F64", "[1]", "[24, 32]", "low") + "," + one("F64", "[1]", "[32, 40]", "high") + "," +
                       one("F64", "[1]", "[40, 48]", "two") + "," + one("F64", "[1]", "[48, 56]", "nan") + "," +
                       one("F64", "[1]", "[56, 64]", "byte") + "}",
                   data));
  CHECK(file.convert<float, 1>("tenth")(0) == 0.1f);
  CHECK(file.convert<double, 1>("tenth")(0) == 0.1);
  CHECK(file.convert<std::int64_t, 1>("low")(0) == std::numeric_limits<std::int64_t>::min());
  CHECK(file.convert<std::uint8_t, 1>("byte")(0) == 255);
  CHECK((file.convert<bool, 1>("bits")(0) && !file.convert<bool, 1>("bits")(1)));
  CHECK(std::isnan(file.convert<float, 1>("nan")(0)));

  CHECK(error_of([&] { file.convert<std::int64_t, 1>("tenth"); }) ==
        "f: tensor \"tenth\": element 0, 0.100000, does not fit I64");
  CHECK(error_of([&] { file.convert<std::int64_t, 1>("high"); }) ==
        "f: tensor \"high\": element 0, 9223372036854775808.000000, does not fit I64");
  CHECK(error_of([&] { file.convert<std::int64_t, 1>("nan"); }) ==
        "f: tensor \"nan\": element 0, nan, does not fit I64");
  CHECK(error_of([&] { file.convert<bool, 1>("two"); }) == "f: tensor \"two\": element 0, 2.000000, does not fit BOOL");
  CHECK(error_of([&] { file.convert<std::int8_t, 1>("byte"); }) ==
        "f: tensor \"byte\": element 0, 255.000000, does not fit I8");
  CHECK(error_of([&] { file.convert<std::uint64_t, 1>("low"); }) ==
        "f: tensor \"low\": element 0, -9223372036854775808.000000, does not fit U64");

  const safetensors integers("f",
                             file_of("{" + one("I64", "[2]", "[0, 16]") + "}", std::array<std::int64_t, 2>{300, -1}));
  CHECK(integers.convert<double, 1>("x")(0) == 300);
  CHECK(error_of([&] { integers.convert<std::uint8_t, 1>("x"); }) ==
        "f: tensor \"x\": element 0, 300, does not fit U8");
  const safetensors bools("f", file_of("{" + one("BOOL", "[2]", "[0, 2]") + "}", std::array<char, 2>{0, 1}));
  CHECK(bools.convert<float, 1>("x")(1) == 1.0f);
  const safetensors halves("f", file_of("{" + one("BF16", "[1]", "[0, 2]") + "}", 2));
  CHECK(error_of([&] { halves.convert<float, 1>("x"); }) == "f: tensor \"x\": dtype BF16 cannot be converted to F32");
}

TEST_CASE("safetensors: wrong access names the tensor and what it holds", "[safetensors]") {
  const safetensors file(
      "f", file_of("{" + one("F32", "[2]", "[0, 8]", "w") + "," + one("BOOL", "[2]", "[8, 10]", "b") + "}",
                   std::array<char, 10>{0, 0, 0, 0, 0, 0, 0, 0, 1, 7}));
  CHECK(error_of([&] { file.read<float, 1>("v"); }) == "f: no tensor \"v\"");
  CHECK(error_of([&] { file.shape("v"); }) == "f: no tensor \"v\"");
  CHECK(error_of([&] { file.metadata("heads"); }) == "f: no metadata \"heads\"");
  CHECK(error_of([&] { file.read<float, 2>("w"); }) == "f: tensor \"w\": rank is 1, not 2");
  CHECK(error_of([&] { file.convert<double, 2>("w"); }) == "f: tensor \"w\": rank is 1, not 2");
  CHECK(error_of([&] { file.read<double, 1>("w"); }) == "f: tensor \"w\": dtype is F32, not F64");
  CHECK(error_of([&] { file.read<std::uint32_t, 1>("w"); }) == "f: tensor \"w\": dtype is F32, not U32");
  CHECK(error_of([&] { file.read<bool, 1>("b"); }) == "f: tensor \"b\": BOOL element 1 is neither 0 nor 1");
}

TEST_CASE("safetensors: files that are not there, truncated or oversized", "[safetensors]") {
  const auto missing = std::filesystem::temp_directory_path() / "headwave_no_such_file.safetensors";
  CHECK(error_of([&] { safetensors{missing}; }) == missing.string() + ": cannot be opened as a file");
  const auto folder = std::filesystem::temp_directory_path();
  CHECK(error_of([&] { safetensors{folder}; }) == folder.string() + ": cannot be opened as a file");

  CHECK(error_of(std::vector<char>()) == "f: truncated: the header length takes 8 bytes, the file has 0");
  CHECK(error_of(std::vector<char>(7)) == "f: truncated: the header length takes 8 bytes, the file has 7");
  CHECK(error_of(header_length(1)) == "f: header length 1 is past the end of the file, 8 bytes");
  CHECK(error_of(header_length(std::numeric_limits<std::uint64_t>::max())) ==
        "f: header length 18446744073709551615 is past the end of the file, 8 bytes");
  CHECK(error_of(one("F32", "[2]", "[0, 8]"), 7) ==
        "f: tensor \"x\": data_offsets [0, 8] are past the end of the data, 7 bytes");
  CHECK(error_of(one("F32", "[2]", "[0, 8]"), 9) == "f: bytes after the last tensor: 1");
  CHECK(error_of(file_of("{}", 3)) == "f: bytes after the last tensor: 3");

  // Every prefix of a good file is refused, and nothing else than an error comes of it.
  const std::vector<char> good = file_of("{" + one("F32", "[2]", "[0, 8]") + "}", 8);
  CHECK(error_of(good) == "no error");
  std::size_t accepted = 0;
  for (std::size_t size = 0; size < good.size(); ++size) {
    accepted += error_of(std::vector<char>(good.data(), good.data() + size)) == "no error";
  }
  CHECK(accepted == 0);
}

TEST_CASE("safetensors: one wrong byte gives an error of the reader's own or another good file", "[safetensors]") {
  const std::vector<char> good = file_of("{\"__metadata__\": {\"a\": \"b\"}, " + one("F32", "[2]", "[0, 8]") + "," +
                                             one("I64", "[1]", "[8, 16]", "y") + "}",
                                         16);
  std::size_t refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const char value : std::string_view("\0\1 \"-.059AFez[]{},:\x7f\x80\xff", 22)) {
      std::vector<char> changed = good;
      changed[at] = value;
      refused +=
          error_of(std::move(changed)).rfind("f: ", 0) == 0;  // any other exception than a runtime_error ends the test
    }
  }
  CHECK(refused > good.size());
}

TEST_CASE("safetensors: the reference files of this folder", "[safetensors]") {
  const std::filesystem::path folder = HEADWAVE_TEST_DATA;
  const auto cases = [&](const char* name) { return safetensors(folder / name).metadata().size(); };
  CHECK(cases("sinusoidal.safetensors") == 24);
  CHECK(cases("rotary.safetensors") == 8);
  CHECK(cases("attention.safetensors") == 23);
  CHECK(cases("multi_head_attention.safetensors") == 13);
  const safetensors minilm(folder / "minilm_layer0.safetensors");
  CHECK(minilm.read<float, 4>("weights").extents() == std::array<std::size_t, 4>{6, 12, 13, 13});
  CHECK(minilm.read<std::int64_t, 1>("lengths")(5) == 13);
}

TEST_CASE("safetensors: headers that are not what they should be", "[safetensors]") {
  CHECK(error_of(file_of("")).rfind("f: header is not JSON: ", 0) == 0);
  CHECK(error_of(file_of("{\"x\": ")).rfind("f: header is not JSON: ", 0) == 0);
  CHECK(error_of(file_of("{} {}")).rfind("f: header is not JSON: ", 0) == 0);
  CHECK(error_of(file_of("{\"x\": 1e999}")).rfind("f: header is not JSON: ", 0) == 0);
  CHECK(error_of(file_of("{\"\xff\": 1}")).rfind("f: header is not JSON: ", 0) == 0);
  for (const std::size_t depth : {std::size_t{5}, std::size_t{1'000'000}}) {
    CHECK(error_of("\"x\": " + std::string(depth, '[') + std::string(depth, ']'), 0) ==
          "f: header is nested too deeply");
  }
  CHECK(error_of(file_of(std::string(1'000'000, '['))) == "f: header is nested too deeply");
  CHECK(error_of(file_of("[1]")) == "f: header is a JSON array, not an object");
  CHECK(error_of(file_of("null")) == "f: header is a JSON null, not an object");
  CHECK(error_of("\"__metadata__\": 1", 0) == "f: __metadata__ is not an object");
  CHECK(error_of("\"__metadata__\": {\"heads\": 12}", 0) == "f: metadata \"heads\" is not a string");
  CHECK(error_of(one("F32", "[1]", "[0, 4]") + "," + one("F32", "[1]", "[4, 8]"), 8) ==
        "f: tensor \"x\": named twice in the header");
}

TEST_CASE("safetensors: mistyped tensors", "[safetensors]") {
  CHECK(error_of("\"x\": 1", 0) == "f: tensor \"x\": dtype is not a string");
  CHECK(error_of("\"x\": {}", 0) == "f: tensor \"x\": dtype is not a string");
  CHECK(error_of("\"x\": {\"dtype\": \"F32\"}", 0) == "f: tensor \"x\": shape is not an array of unsigned integers");
  CHECK(error_of("\"x\": {\"dtype\": \"F32\", \"shape\": []}", 0) ==
        "f: tensor \"x\": data_offsets are not two unsigned integers");
  CHECK(error_of(one("F33", "[1]", "[0, 4]"), 4) == "f: tensor \"x\": unknown dtype \"F33\"");
  CHECK(error_of(one("f32", "[1]", "[0, 4]"), 4) == "f: tensor \"x\": unknown dtype \"f32\"");
  for (const char* shape : {"1", "[-1]", "[1.0]", "[\"1\"]", "[[1]]", "[18446744073709551616]", "null"}) {
    CHECK(error_of(one("F32", shape, "[0, 4]"), 4) == "f: tensor \"x\": shape is not an array of unsigned integers");
  }
  for (const char* offsets : {"4", "[0]", "[0, 4, 8]", "[0, -4]", "[0.0, 4.0]", "{}"}) {
    CHECK(error_of(one("F32", "[1]", offsets), 4) == "f: tensor \"x\": data_offsets are not two unsigned integers");
  }
}

TEST_CASE("safetensors: offsets and sizes that disagree", "[safetensors]") {
  CHECK(error_of(one("F32", "[1]", "[4, 0]"), 4) == "f: tensor \"x\": data_offsets [4, 0] are out of order");
  CHECK(error_of(one("F32", "[1]", "[18446744073709551612, 18446744073709551615]"), 4) ==
        "f: tensor \"x\": data_offsets [18446744073709551612, 18446744073709551615] are past the end of the data, 4 "
        "bytes");
  CHECK(error_of(one("F32", "[3]", "[0, 8]"), 8) ==
        "f: tensor \"x\": data_offsets [0, 8] hold 8 bytes, shape and dtype need 12");
  CHECK(error_of(one("F64", "[]", "[0, 4]"), 4) ==
        "f: tensor \"x\": data_offsets [0, 4] hold 4 bytes, shape and dtype need 8");
  CHECK(error_of(one("F32", "[4611686018427387904]", "[0, 0]"), 0) == "f: tensor \"x\": size in bytes overflows");
  CHECK(error_of(one("BOOL", "[4294967296, 4294967297]", "[0, 0]"), 0) == "f: tensor \"x\": size in bytes overflows");
  CHECK(error_of(one("F32", "[4611686018427387904, 4, 0]", "[0, 0]"), 0) == "no error");

  const std::string first = one("F32", "[2]", "[0, 8]", "a") + ",";
  CHECK(error_of(first + one("F32", "[2]", "[4, 12]", "b"), 12) == "f: tensor \"b\": overlaps tensor \"a\"");
  CHECK(error_of(first + one("F32", "[2]", "[0, 8]", "b"), 8) == "f: tensor \"b\": overlaps tensor \"a\"");
  CHECK(error_of(first + one("F32", "[1]", "[4, 8]", "b"), 8) == "f: tensor \"b\": overlaps tensor \"a\"");
  CHECK(error_of(first + one("F32", "[1]", "[9, 13]", "b"), 13) ==
        "f: tensor \"b\": bytes before it that belong to no tensor: 1");
  CHECK(error_of(first + one("F32", "[0]", "[4, 4]", "b"), 8) == "f: tensor \"b\": overlaps tensor \"a\"");
  CHECK(error_of(one("F32", "[1]", "[4, 8]", "a"), 8) ==
        "f: tensor \"a\": bytes before it that belong to no tensor: 4");
}
