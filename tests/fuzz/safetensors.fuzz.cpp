// SPDX-License-Identifier: MIT
#include "../examples/support/safetensors.hpp"
#include "finding.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// \file
/// Any bytes, taken as a file of tensors: they are one and every tensor can be read, or the reader says what is wrong.

namespace {

using support::random_source;
using support::safetensors;

/// Whether an action succeeds; it may only fail as the reader says.
template <class Action>
bool succeeds(Action action) {
  try {
    action();
    return true;
  } catch (const std::runtime_error& error) {
    fuzz::require_none(std::string(error.what()).rfind("f: ", 0) == 0 ? "" : std::string("error: ") + error.what());
  } catch (const std::exception& error) {
    fuzz::require_none(std::string("exception: ") + error.what());
  }
  return false;
}

template <std::size_t Rank>
void read_as(const safetensors& file, const std::string& name) {
  const bool known = succeeds([&] { file.convert<double, Rank>(name); });
  succeeds([&] { file.convert<std::int8_t, Rank>(name); });
  const bool right = succeeds([&] { file.read<float, Rank>(name); });
  succeeds([&] { file.read<bool, Rank>(name); });
  const bool is_float = file.dtype(name) == "F32" && file.shape(name).size() == Rank;
  fuzz::require_none(
      right == is_float && (known || !is_float) ? "" : name + ": read and convert disagree with dtype, shape");
}

void read_all(std::vector<char> bytes) {
  const std::size_t size = bytes.size();
  succeeds([&] {
    const safetensors file("f", std::move(bytes));
    for (const std::string& name : file.names()) {
      std::size_t elements = 1;
      for (const std::size_t extent : file.shape(name)) {
        elements *= extent;
      }
      fuzz::require_none(elements <= size ? "" : name + ": more elements than the file has bytes");
      read_as<1>(file, name);
      read_as<2>(file, name);
    }
    for (const auto& [key, value] : file.metadata()) {
      fuzz::require_none(file.metadata(key) == value ? "" : "metadata");
    }
  });
}

/// A file with its header's length in front.
std::vector<char> file_of(const std::string& header_and_data, std::uint64_t header_length) {
  std::vector<char> file(sizeof(header_length));
  std::memcpy(file.data(), &header_length, sizeof(header_length));
  file.insert(file.end(), header_and_data.begin(), header_and_data.end());
  return file;
}

/// A file of some tensors, in which most things are as they should be.
std::vector<char> drawn_file(random_source& random) {
  const auto number = [&](std::uint64_t right) {
    const char* const odd[] = {"null", "-1", "1.5", "\"1\"", "[1]", "{}", "1e999", "18446744073709551616"};
    const std::uint64_t other[] = {right + 1, right - 1, 2 * right, 0, std::uint64_t{1} << 62, ~std::uint64_t{0}};
    return !random.chance(0.05) ? std::to_string(right)
           : random.chance(0.7) ? std::to_string(other[random.integer(0, 5)])
                                : std::string(odd[random.integer(0, 7)]);
  };
  std::string header = "{";
  std::uint64_t end = 0;
  for (std::size_t n = 0, count = random.integer(0, 4); n < count; ++n) {
    const char* const dtypes[] = {"F32", "BOOL", "I8", "F64", "I64", "U16", "BF16", "F33"};
    const std::uint64_t sizes[] = {4, 1, 1, 8, 8, 2, 2, 4};
    const std::size_t dtype = random.integer(0, 7);
    std::uint64_t size = sizes[dtype];
    std::string shape;
    for (std::size_t axis = 0, rank = random.integer(0, 3); axis < rank; ++axis) {
      const std::uint64_t extent = random.integer(0, 5);
      shape += (axis ? "," : "") + number(extent);
      size *= extent;
    }
    header += (n ? ",\"" : "\"") + std::string(1, static_cast<char>('a' + random.integer(0, 9))) + "\":{\"dtype\":\"" +
              dtypes[dtype] + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + number(end) + "," +
              number(end + size) + "]}";
    end += size;
  }
  header += "}";
  const std::uint64_t length = header.size();
  for (std::uint64_t n = 0; n < end; ++n) {
    header += static_cast<char>(random.integer(0, 2));
  }
  return file_of(header, length);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(data, data + size);
  read_all({bytes.begin(), bytes.end()});
  // The same as header, which ends before the first byte of value zero, and data.
  read_all(file_of(bytes, (std::min)(bytes.find('\0'), size)));
  random_source random({data, size});
  for (int n = 0; n < 4; ++n) {
    read_all(drawn_file(random));
  }
  return 0;
}
