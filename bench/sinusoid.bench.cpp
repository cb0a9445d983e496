// SPDX-License-Identifier: MIT
#include "support/report.hpp"
#include "support/row.hpp"

#include <headwave/positional_encoding.hpp>

namespace {

namespace hw = headwave;

struct encoding_shape {
  std::size_t batch, length, d_model;

  double elements() const { return static_cast<double>(batch * length * d_model); }
};

template <class T>
class table_problem {
 public:
  table_problem(const encoding_shape& s, std::size_t) : out_({s.length, s.d_model}) {}
  void run() { hw::sinusoidal_encoding_into(out_); }
  std::span<const T> result() const { return {out_.begin(), out_.end()}; }

 private:
  hw::tensor<T, 2> out_;
};

template <class T>
class add_problem {
 public:
  add_problem(const encoding_shape& s, std::size_t) : x_(bench::random_tensor<T>(1, {s.batch, s.length, s.d_model})) {}
  void run() { hw::add_sinusoidal_encoding(x_); }
  std::span<const T> result() const { return {x_.begin(), x_.end()}; }

 private:
  hw::tensor<T, 3> x_;
};

template <class T = float>
void add_table(std::size_t length, std::size_t d_model, std::optional<double> goal = {},
               std::optional<double> model = {}) {
  const encoding_shape shape{1, length, d_model};
  bench::add<table_problem, T>({"table " + std::to_string(length) + " x " + std::to_string(d_model),
                                bench::limit::write, sizeof(T) * shape.elements(), goal, model},
                               shape);
}

void add_in_place(const encoding_shape& s) {
  bench::add<add_problem>(
      {"add " + std::to_string(s.batch) + " x " + std::to_string(s.length) + " x " + std::to_string(s.d_model),
       bench::limit::copy, 2 * sizeof(float) * s.elements()},
      s);
}

}  // namespace

int main(int argc, char** argv) {
  add_table(4096, 1024, 80, 100);
  add_table(512, 512);
  add_table<double>(4096, 1024);
  add_in_place({1, 4096, 1024});
  add_in_place({8, 512, 768});
  return bench::run(argc, argv);
}
