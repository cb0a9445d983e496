// SPDX-License-Identifier: MIT
#include "../examples/support/safetensors.hpp"
#include "finding.hpp"

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> bytes(data, data + size);
  read_all(bytes);
  // The same as a header, which ends before the first byte of value zero, and data, with the length that is right.
  const auto end = std::find(bytes.begin(), bytes.end(), '\0');
  const std::uint64_t length = static_cast<std::uint64_t>(end - bytes.begin());
  std::vector<char> file(sizeof(length));
  std::memcpy(file.data(), &length, sizeof(length));
  file.insert(file.end(), bytes.begin(), bytes.end());
  read_all(std::move(file));
  return 0;
}
