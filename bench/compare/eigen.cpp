// SPDX-License-Identifier: MIT

// Eigen's projections as a shared library for compare.py.

#include "problem.hpp"

#include <Eigen/Core>

#include <vector>

namespace {

using compare::problem;
using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using column_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic>;
using Eigen::Index;

/// y = x weight^T + bias, with the weight [out_features, in_features] stored in either order.
template <class Weight>
class projection final : public problem {
 public:
  projection(Index rows, Index in_features, Index out_features, const float* x, const float* weight, const float* bias,
             float* out, std::size_t copies)
      : x_(x, rows, in_features),
        weights_(copies, Eigen::Map<const row_major>(weight, out_features, in_features)),
        bias_(Eigen::Map<const Eigen::RowVectorXf>(bias, out_features)),
        out_(out, rows, out_features) {}

  void run() override {
    if (out_.rows() == 1) {  // known to be a vector when it is compiled, so that Eigen takes its gemv
      out_.row(0) = bias_;
      out_.row(0).noalias() += x_.row(0) * weights_[next_].transpose();
    } else {
      out_.rowwise() = bias_;
      out_.noalias() += x_ * weights_[next_].transpose();
    }
    next_ = (next_ + 1) % weights_.size();
  }

 private:
  Eigen::Map<const row_major> x_;
  std::vector<Weight> weights_;
  Eigen::RowVectorXf bias_;
  Eigen::Map<row_major> out_;
  std::size_t next_ = 0;
};

}  // namespace

extern "C" {

/// The ways to compute a projection; null at the end.
const char* const* projection_ways(bool) {
  static const char* const ways[] = {"weight row-major", "weight column-major", nullptr};
  return ways;
}

problem* make_linear(int how, std::size_t rows, std::size_t in_features, std::size_t out_features, const float* x,
                     const float* weight, const float* bias, float* out, std::size_t copies, int threads) {
  return compare::made([&]() -> problem* {
    Eigen::setNbThreads(threads);
    const auto m = static_cast<Index>(rows), k = static_cast<Index>(in_features), n = static_cast<Index>(out_features);
    if (how == 0) {
      return new projection<row_major>(m, k, n, x, weight, bias, out, copies);
    }
    return new projection<column_major>(m, k, n, x, weight, bias, out, copies);
  });
}

#define HEADWAVE_COMPARE_TEXT_OF(x) #x
#define HEADWAVE_COMPARE_TEXT(x) HEADWAVE_COMPARE_TEXT_OF(x)

const char* version() {
  return HEADWAVE_COMPARE_TEXT(EIGEN_WORLD_VERSION) "." HEADWAVE_COMPARE_TEXT(
      EIGEN_MAJOR_VERSION) "." HEADWAVE_COMPARE_TEXT(EIGEN_MINOR_VERSION);
}

/// The instruction sets that it was compiled for.
const char* kernels() {
  return Eigen::SimdInstructionSetsInUse();
}

}  // extern "C"
