// SPDX-License-Identifier: MIT
#include "support/report.hpp"
#include "support/row.hpp"

#include <headwave/softmax.hpp>

#include <initializer_list>

namespace {

namespace hw = headwave;

constexpr std::size_t elements = 1 << 20;

template <class T>
class softmax_problem {
 public:
  softmax_problem(std::size_t width, std::size_t)
      : x_(bench::random_tensor<T>(1, {elements / width, width}, 3)), out_(x_.extents()) {}
  void run() { hw::softmax_into(out_, x_); }
  std::span<const T> result() const { return {out_.begin(), out_.end()}; }

 private:
  hw::tensor<T, 2> x_, out_;
};

template <class T>
void add_softmax(std::size_t width) {
  bench::add<softmax_problem, T>({"softmax " + std::to_string(elements / width) + " rows of " + std::to_string(width),
                                  bench::limit::copy, 2 * sizeof(T) * static_cast<double>(elements)},
                                 width);
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::size_t width : std::initializer_list<std::size_t>{32, 128, 512, 2048, 8192, 65536}) {
    add_softmax<float>(width);
  }
  add_softmax<double>(512);
  return bench::run(argc, argv);
}
