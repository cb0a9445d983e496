// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/tensor.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

/// \file
/// Reads safetensors, the format in which most transformer weights are published:
///   8 bytes   length of the header, unsigned, little-endian
///   header    a JSON object: tensor name -> {"dtype", "shape", "data_offsets": [begin, end]}, and "__metadata__" ->
///   strings data      the tensors, row-major and little-endian, side by side without gaps; offsets count from here
/// A file from elsewhere is not to be trusted: nothing is read before every rule of the format is known to hold.

namespace support {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is not swapped here");

/// The tensors and the metadata of one file, held in memory.
///
/// Every error is a std::runtime_error whose text names the file, the tensor and the rule that does not hold, as in
///   weights.safetensors: tensor "bias": rank is 1, not 2
class safetensors {
 public:
  /// Reads and checks a file.
  explicit safetensors(const std::filesystem::path& path) : safetensors(path.string(), bytes_of(path)) {}

  /// Checks a file that is already in memory; name stands for the path in errors.
  safetensors(std::string name, std::vector<char> bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {
    const nlohmann::json header = parsed_header();
    for (const auto& [key, value] : header.items()) {
      if (key == "__metadata__") {
        read_metadata(value);
      } else {
        entries_.emplace(key, checked_entry(key, value));
      }
    }
    check_layout();
  }

  bool contains(const std::string& tensor) const { return entries_.count(tensor) != 0; }
  const std::string& dtype(const std::string& tensor) const { return entry_of(tensor).dtype; }
  const std::vector<std::size_t>& shape(const std::string& tensor) const { return entry_of(tensor).shape; }

  /// The names of all tensors, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [tensor, source] : entries_) {
      result.push_back(tensor);
    }
    return result;
  }

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& metadata(const std::string& key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) {
      fail("no metadata " + quoted(key));
    }
    return found->second;
  }

  /// A tensor in the file's own element type: float is F32, double F64, std::int64_t I64, bool BOOL and so on.
  /// Errors: no such tensor, another dtype, another rank, a BOOL that is neither 0 nor 1.
  template <class T, std::size_t Rank>
  headwave::tensor<T, Rank> read(const std::string& tensor) const {
    const entry& source = entry_of(tensor);
    if (source.dtype != dtype_of<T>()) {
      fail(tensor, "dtype is " + source.dtype + ", not " + dtype_of<T>());
    }
    return elements<T, T, Rank>(tensor, source);
  }

  /// A tensor in an element type of the caller's choice. Floating-point values are rounded to the nearest; bool and
  /// integers take only values they hold exactly. Errors: as read, and an element that does not fit.
  template <class T, std::size_t Rank>
  headwave::tensor<T, Rank> convert(const std::string& tensor) const {
    const entry& source = entry_of(tensor);
    headwave::tensor<T, Rank> result;
    if (!convert_from<float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                      std::uint32_t, std::uint64_t, bool>(result, tensor, source)) {
      fail(tensor, "dtype " + source.dtype + " cannot be converted to " + dtype_of<T>());
    }
    return result;
  }

 private:
  struct entry {
    std::string dtype;
    std::vector<std::size_t> shape;
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  static std::string quoted(const std::string& text) { return '"' + text + '"'; }
  [[noreturn]] void fail(const std::string& rule) const { throw std::runtime_error(name_ + ": " + rule); }
  [[noreturn]] void fail(const std::string& tensor, const std::string& rule) const {
    fail("tensor " + quoted(tensor) + ": " + rule);
  }

  static std::vector<char> bytes_of(const std::filesystem::path& path) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    std::ifstream file(path, std::ios::binary);
    if (error || !file) {
      throw std::runtime_error(path.string() + ": cannot be opened as a file");
    }
    std::vector<char> bytes(static_cast<std::size_t>(size));
    if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) {
      throw std::runtime_error(path.string() + ": cannot be read to its end");
    }
    return bytes;
  }

  template <class T>
  static const char* dtype_of() {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "no dtype holds this type");
    if constexpr (std::is_same_v<T, bool>) {
      return "BOOL";
    } else if constexpr (std::is_floating_point_v<T>) {
      return sizeof(T) == 4 ? "F32" : "F64";
    } else if constexpr (std::is_signed_v<T>) {
      return sizeof(T) == 1 ? "I8" : sizeof(T) == 2 ? "I16" : sizeof(T) == 4 ? "I32" : "I64";
    } else {
      return sizeof(T) == 1 ? "U8" : sizeof(T) == 2 ? "U16" : sizeof(T) == 4 ? "U32" : "U64";
    }
  }

  /// Bytes per element of every dtype of the format; 0 for an unknown one.
  static std::size_t size_of(const std::string& dtype) {
    static const std::map<std::string, std::size_t> known = {
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
        {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
    const auto found = known.find(dtype);
    return found == known.end() ? 0 : found->second;
  }

  nlohmann::json parsed_header() {
    std::uint64_t length = 0;
    if (bytes_.size() < sizeof(length)) {
      fail("truncated: the header length takes 8 bytes, the file has " + std::to_string(bytes_.size()));
    }
    std::memcpy(&length, bytes_.data(), sizeof(length));
    if (length > bytes_.size() - sizeof(length)) {
      fail("header length " + std::to_string(length) + " is past the end of the file, " +
           std::to_string(bytes_.size()) + " bytes");
    }
    const char* const first = bytes_.data() + sizeof(length);
    data_start_ = sizeof(length) + static_cast<std::size_t>(length);
    // JSON lets a later member replace an earlier one of the same name; here that would silently lose a tensor.
    std::set<std::string> seen;
    // What is nested is copied and destroyed by recursion, so that its depth is bounded here.
    constexpr int most_depth = 4;
    const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
      if (depth > most_depth) {
        fail("header is nested too deeply");
      }
      if (depth == 1 && event == nlohmann::json::parse_event_t::key && !seen.insert(parsed.get<std::string>()).second) {
        fail(parsed.get<std::string>(), "named twice in the header");
      }
      return true;
    };
    try {
      nlohmann::json header = nlohmann::json::parse(first, first + length, check);
      if (!header.is_object()) {
        fail(std::string("header is a JSON ") + header.type_name() + ", not an object");
      }
      return header;
    } catch (const nlohmann::json::exception& error) {
      fail(std::string("header is not JSON: ") + error.what());
    }
  }

  void read_metadata(const nlohmann::json& values) {
    if (!values.is_object()) {
      fail("__metadata__ is not an object");
    }
    for (const auto& [key, value] : values.items()) {
      if (!value.is_string()) {
        fail("metadata " + quoted(key) + " is not a string");
      }
      metadata_.emplace(key, value.get<std::string>());
    }
  }

  static bool are_sizes(const nlohmann::json& values) {
    return values.is_array() &&
           std::all_of(values.begin(), values.end(), [](const auto& v) { return v.is_number_unsigned(); });
  }

  entry checked_entry(const std::string& tensor, const nlohmann::json& value) const {
    const auto member = [&](const char* key) {
      return value.is_object() && value.contains(key) ? value.at(key) : nlohmann::json();
    };
    const nlohmann::json dtype = member("dtype");
    const nlohmann::json shape = member("shape");
    const nlohmann::json offsets = member("data_offsets");
    if (!dtype.is_string()) {
      fail(tensor, "dtype is not a string");
    }
    if (!are_sizes(shape)) {
      fail(tensor, "shape is not an array of unsigned integers");
    }
    if (!are_sizes(offsets) || offsets.size() != 2) {
      fail(tensor, "data_offsets are not two unsigned integers");
    }
    const entry result{dtype.get<std::string>(), shape.get<std::vector<std::size_t>>(), offsets[0].get<std::size_t>(),
                       offsets[1].get<std::size_t>()};
    if (size_of(result.dtype) == 0) {
      fail(tensor, "unknown dtype " + quoted(result.dtype));
    }
    const std::string range = "data_offsets [" + std::to_string(result.begin) + ", " + std::to_string(result.end) + "]";
    const std::size_t data_size = bytes_.size() - data_start_;
    if (result.begin > result.end) {
      fail(tensor, range + " are out of order");
    }
    if (result.end > data_size) {
      fail(tensor, range + " are past the end of the data, " + std::to_string(data_size) + " bytes");
    }
    const std::size_t needed = checked_size(tensor, result);
    if (needed != result.end - result.begin) {
      fail(tensor, range + " hold " + std::to_string(result.end - result.begin) + " bytes, shape and dtype need " +
                       std::to_string(needed));
    }
    return result;
  }

  /// The bytes that shape and dtype ask for.
  std::size_t checked_size(const std::string& tensor, const entry& of) const {
    if (std::count(of.shape.begin(), of.shape.end(), std::size_t{0})) {
      return 0;
    }
    std::size_t size = size_of(of.dtype);
    for (const std::size_t extent : of.shape) {
      if (extent > std::numeric_limits<std::size_t>::max() / size) {
        fail(tensor, "size in bytes overflows");
      }
      size *= extent;
    }
    return size;
  }

  /// Tensors must fill the data exactly: bytes shared by two, or belonging to none, mean that an offset is wrong.
  void check_layout() const {
    std::vector<std::pair<std::pair<std::size_t, std::size_t>, std::string>> ranges;
    for (const auto& [tensor, source] : entries_) {
      ranges.push_back({{source.begin, source.end}, tensor});
    }
    std::sort(ranges.begin(), ranges.end());
    std::size_t covered = 0;
    std::string previous;
    for (const auto& [range, tensor] : ranges) {
      if (range.first < covered) {
        fail(tensor, "overlaps tensor " + quoted(previous));
      }
      if (range.first > covered) {
        fail(tensor, "bytes before it that belong to no tensor: " + std::to_string(range.first - covered));
      }
      covered = range.second;
      previous = tensor;
    }
    if (covered != bytes_.size() - data_start_) {
      fail("bytes after the last tensor: " + std::to_string(bytes_.size() - data_start_ - covered));
    }
  }

  const entry& entry_of(const std::string& tensor) const {
    const auto found = entries_.find(tensor);
    if (found == entries_.end()) {
      fail("no tensor " + quoted(tensor));
    }
    return found->second;
  }

  /// Converts from whichever of the types is the file's own; false where none is.
  template <class... Stored, class T, std::size_t Rank>
  bool convert_from(headwave::tensor<T, Rank>& result, const std::string& tensor, const entry& source) const {
    return ((source.dtype == dtype_of<Stored>() && (result = elements<Stored, T, Rank>(tensor, source), true)) || ...);
  }

  template <class Stored, class T, std::size_t Rank>
  headwave::tensor<T, Rank> elements(const std::string& tensor, const entry& source) const {
    if (source.shape.size() != Rank) {
      fail(tensor, "rank is " + std::to_string(source.shape.size()) + ", not " + std::to_string(Rank));
    }
    std::array<std::size_t, Rank> extents{};
    std::copy(source.shape.begin(), source.shape.end(), extents.begin());
    headwave::tensor<T, Rank> result(extents, headwave::uninitialized);
    const char* const data = bytes_.data() + data_start_ + source.begin;
    for (std::size_t i = 0; i < result.size(); ++i) {
      result.data()[i] = element<Stored, T>(tensor, data, i);
    }
    return result;
  }

  template <class Stored, class T>
  T element(const std::string& tensor, const char* data, std::size_t i) const {
    // A bool object may hold no other byte than 0 and 1, so BOOL is looked at as a number first.
    std::conditional_t<std::is_same_v<Stored, bool>, std::uint8_t, Stored> value{};
    std::memcpy(&value, data + i * sizeof(value), sizeof(value));
    if (std::is_same_v<Stored, bool> && value > 1) {
      fail(tensor, "BOOL element " + std::to_string(i) + " is neither 0 nor 1");
    }
    if (!fits<T>(value)) {
      fail(tensor, "element " + std::to_string(i) + ", " + std::to_string(value) + ", does not fit " + dtype_of<T>());
    }
    return static_cast<T>(value);
  }

  template <class T, class Value>
  static bool fits(Value value) {
    if constexpr (std::is_same_v<T, Value> || std::is_floating_point_v<T>) {
      return true;
    } else if constexpr (std::is_same_v<T, bool>) {
      return value == Value(0) || value == Value(1);
    } else if constexpr (std::is_floating_point_v<Value>) {
      // The bounds are powers of two, exact in any floating-point type, where the greatest integer itself is not.
      const Value bound = std::ldexp(Value(1), std::numeric_limits<T>::digits);
      return value >= (std::is_signed_v<T> ? -bound : Value(0)) && value < bound && std::trunc(value) == value;
    } else {
      return std::in_range<T>(value);
    }
  }

  std::string name_;
  std::vector<char> bytes_;
  std::size_t data_start_ = 0;
  std::map<std::string, entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace support
