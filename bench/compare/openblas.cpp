// SPDX-License-Identifier: MIT

// OpenBLAS's projections as a shared library for compare.py.

#include "problem.hpp"

#include <headwave/tensor.hpp>

#include <cblas.h>

#include <algorithm>
#include <vector>

namespace {

using compare::problem;

/// How the product is asked for; compare.py takes the fastest.
enum class way { weight_as_given, weight_transposed, vector };

/// y = x weight^T + bias. The bias is written to y first, and the product added to it.
class projection final : public problem {
 public:
  projection(way how, std::size_t rows, std::size_t in_features, std::size_t out_features, const float* x,
             const float* weight, const float* bias, float* out, std::size_t copies)
      : how_(how),
        rows_(static_cast<blasint>(rows)),
        in_(static_cast<blasint>(in_features)),
        out_features_(static_cast<blasint>(out_features)),
        x_(x),
        bias_(bias, bias + out_features),
        out_(out) {
    headwave::tensor<float, 1> stored({in_features * out_features});  // aligned to a cache line
    std::copy_n(weight, stored.size(), stored.data());
    if (how == way::weight_transposed) {
      for (std::size_t i = 0; i < out_features; ++i) {
        for (std::size_t k = 0; k < in_features; ++k) {
          stored(k * out_features + i) = weight[i * in_features + k];
        }
      }
    }
    weights_.assign(copies, stored);
  }

  void run() override {
    const float* const weight = weights_[next_].data();
    for (blasint row = 0; row < rows_; ++row) {
      std::copy(bias_.begin(), bias_.end(), out_ + row * out_features_);
    }
    if (how_ == way::vector) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, out_features_, in_, 1, weight, in_, x_, 1, 1, out_, 1);
    } else {
      const bool transposed = how_ == way::weight_transposed;
      cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasNoTrans : CblasTrans, rows_, out_features_, in_, 1, x_,
                  in_, weight, transposed ? out_features_ : in_, 1, out_, out_features_);
    }
    next_ = (next_ + 1) % weights_.size();
  }

 private:
  way how_;
  blasint rows_, in_, out_features_;
  const float* x_;
  std::vector<float> bias_;
  std::vector<headwave::tensor<float, 1>> weights_;
  float* out_;
  std::size_t next_ = 0;
};

}  // namespace

extern "C" {

/// The ways to compute a projection, for one row or for more; null at the end.
const char* const* projection_ways(bool one_row) {
  static const char* const ways[] = {"sgemm, weight as given", "sgemm, weight transposed before", nullptr};
  static const char* const vector_ways[] = {"sgemm, weight as given", "sgemm, weight transposed before", "sgemv",
                                            nullptr};
  return one_row ? vector_ways : ways;
}

problem* make_linear(int how, std::size_t rows, std::size_t in_features, std::size_t out_features, const float* x,
                     const float* weight, const float* bias, float* out, std::size_t copies, int threads) {
  return compare::made([&] {
    openblas_set_num_threads(threads);
    return new projection(static_cast<way>(how), rows, in_features, out_features, x, weight, bias, out, copies);
  });
}

/// The library's version, and the kernels that it has chosen for this machine.
const char* version() {
  return openblas_get_config();
}
const char* kernels() {
  return openblas_get_corename();
}

}  // extern "C"
