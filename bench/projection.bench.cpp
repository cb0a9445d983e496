// SPDX-License-Identifier: MIT
#include "support/report.hpp"
#include "support/row.hpp"

#include <headwave/linear.hpp>

#include <initializer_list>
#include <vector>

namespace {

namespace hw = headwave;

struct product_shape {
  std::size_t rows, in_features, out_features;
};

template <class T>
class projection_problem {
 public:
  projection_problem(const product_shape& s, std::size_t copies)
      : x_(bench::random_tensor<T>(1, {1, s.rows, s.in_features})), out_({1, s.rows, s.out_features}) {
    const double scale = 1 / std::sqrt(static_cast<double>(s.in_features));
    const auto weight = bench::random_tensor<T>(2, {s.out_features, s.in_features}, scale);
    const auto bias = bench::random_tensor<T>(3, {s.out_features});
    layers_.assign(copies, hw::linear<T>(weight, bias));
  }
  void run() {
    layers_[next_].apply_into(out_, x_);
    next_ = (next_ + 1) % layers_.size();
  }
  std::span<const T> result() const { return {out_.begin(), out_.end()}; }

 private:
  hw::tensor<T, 3> x_, out_;
  std::vector<hw::linear<T>> layers_;
  std::size_t next_ = 0;
};

/// One row reads each weight for a single multiply-add, so its limit is memory.
template <class T = float>
void add_projection(const product_shape& s) {
  const double weights = static_cast<double>(s.in_features * s.out_features);
  bench::row row{
      std::to_string(s.rows) + " x " + std::to_string(s.in_features) + " -> " + std::to_string(s.out_features),
      bench::limit::fma, 2 * static_cast<double>(s.rows) * weights};
  if (s.rows == 1) {
    row.against = bench::limit::cold_read;
    row.amount = sizeof(T) * weights;
  }
  bench::add<projection_problem, T>(row, s);
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::size_t rows : std::initializer_list<std::size_t>{1, 8, 64, 128, 512}) {
    add_projection({rows, 512, 1536});
    add_projection({rows, 768, 2304});
    add_projection({rows, 768, 768});
  }
  add_projection<double>({128, 768, 768});
  return bench::run(argc, argv);
}
