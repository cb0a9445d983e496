// SPDX-License-Identifier: MIT
#include "support/report.hpp"
#include "support/row.hpp"

#include <headwave/multi_head_attention.hpp>

#include <vector>

namespace {

namespace hw = headwave;

struct layer_shape {
  std::size_t length, d_model, heads;

  double weights() const { return 4 * static_cast<double>(d_model * d_model); }
  double operations() const {
    const double rows = static_cast<double>(length);
    return 2 * rows * weights() + 4 * rows * rows * static_cast<double>(d_model);
  }
  std::string name() const {
    return "L" + std::to_string(length) + " d" + std::to_string(d_model) + " H" + std::to_string(heads);
  }
};

template <class T>
class layer_problem {
 public:
  layer_problem(const layer_shape& s, std::size_t copies)
      : x_(bench::random_tensor<T>(1, {1, s.length, s.d_model})), out_(x_.extents()) {
    const double scale = 1 / std::sqrt(static_cast<double>(s.d_model));
    const auto in_weight = bench::random_tensor<T>(2, {3 * s.d_model, s.d_model}, scale);
    const auto in_bias = bench::random_tensor<T>(3, {3 * s.d_model});
    const auto out_weight = bench::random_tensor<T>(4, {s.d_model, s.d_model}, scale);
    const auto out_bias = bench::random_tensor<T>(5, {s.d_model});
    hw::multi_head_attention<T> layer({.d_model = s.d_model, .heads = s.heads});
    hw::multi_head_attention_weights<T> weights;
    weights.in_proj_weight = in_weight;
    weights.in_proj_bias = in_bias;
    weights.out_proj_weight = out_weight;
    weights.out_proj_bias = out_bias;
    layer.set_weights(weights);
    layers_.assign(copies, layer);
  }
  void run() {
    layers_[next_].apply_into(out_, x_);
    next_ = (next_ + 1) % layers_.size();
  }
  std::span<const T> result() const { return {out_.begin(), out_.end()}; }

 private:
  hw::tensor<T, 3> x_, out_;
  std::vector<hw::multi_head_attention<T>> layers_;
  std::size_t next_ = 0;
};

template <class T = float>
void add_layer(const layer_shape& s, std::optional<double> goal = {}, std::optional<double> model = {}) {
  bench::add<layer_problem, T>({s.name(), bench::limit::fma, s.operations(), goal, model}, s);
}

/// A single row reads each weight for one multiply-add, so its limit is memory.
void add_single_row(const layer_shape& s, double goal) {
  bench::add<layer_problem>({s.name(), bench::limit::cold_read, sizeof(float) * s.weights(), goal, 100}, s);
}

}  // namespace

int main(int argc, char** argv) {
  add_layer({128, 768, 12}, 92, 95);
  add_layer({512, 512, 8}, 90, 95);
  add_layer({2048, 512, 8}, 87, 94);
  add_layer({16, 768, 12}, 80, 90);
  add_layer<double>({128, 768, 12});
  add_single_row({1, 768, 12}, 90);
  return bench::run(argc, argv);
}
