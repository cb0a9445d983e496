// SPDX-License-Identifier: MIT
// Runs a fuzz target on kept inputs, where no fuzzer is linked: arguments are files, and folders of them.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::size_t count = 0;
  const auto replay = [&](const std::filesystem::path& path) {
    std::fprintf(stderr, "%s\n", path.string().c_str());
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    ++count;
  };
  for (int n = 1; n < argc; ++n) {
    if (std::filesystem::is_directory(argv[n])) {
      for (const auto& entry : std::filesystem::directory_iterator(argv[n])) {
        replay(entry.path());
      }
    } else {
      replay(argv[n]);
    }
  }
  return count > 0 ? 0 : 1;
}
