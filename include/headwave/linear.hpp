// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/dispatch.hpp>
#include <headwave/detail/scratch.hpp>
#include <headwave/executor.hpp>
#include <headwave/tensor.hpp>

namespace headwave {

namespace detail {

/// Some of the panels of a packed weight matrix: y = x W^T + b for in_features inputs and columns outputs.
template <class T>
struct packed_columns {
  const T* panels = nullptr;
  const T* bias = nullptr;  ///< padded to whole panels; null: none
  std::size_t in_features = 0, columns = 0;
};

}  // namespace detail

namespace detail::inline HEADWAVE_ABI {

template <class T>
std::size_t padded_columns(std::size_t columns) {
  constexpr auto lanes = static_cast<std::size_t>(vec_lanes<T>);
  return (columns + lanes - 1) / lanes * lanes;
}

/// Elements of a packed [out_features, in_features] matrix.
template <class T>
std::size_t packed_size(const char* function, std::size_t out_features, std::size_t in_features) {
  checked_sum(function, out_features, static_cast<std::size_t>(vec_lanes<T>));
  return checked_product(function, padded_columns<T>(out_features), in_features);
}

/// Packs weight [out_features, in_features] into panels: [group of outputs][input][output], padded with zeros.
template <class T>
void pack_weight(T* panels, const tensor_view<const T, 2>& weight) {
  const auto lanes = static_cast<std::size_t>(vec_lanes<T>);
  for (std::size_t first = 0; first < weight.extent(0); first += lanes) {
    for (std::size_t k = 0; k < weight.extent(1); ++k) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        *panels++ = first + lane < weight.extent(0) ? weight(first + lane, k) : T(0);
      }
    }
  }
}

/// Copies bias [out_features], padded with zeros to whole panels.
template <class T>
void pack_bias(T* padded, const tensor_view<const T, 1>& bias) {
  for (std::size_t i = 0; i < padded_columns<T>(bias.extent(0)); ++i) {
    padded[i] = i < bias.extent(0) ? bias(i) : T(0);
  }
}

/// The part of a product that task number task of row_groups * column_groups computes.
template <class T>
gemm_arguments<T> part_of_product(gemm_arguments<T> product, index row_groups, index column_groups, index task) {
  constexpr index lanes = vec_lanes<T>;
  const index rows = task % row_groups, columns = task / row_groups;
  const index first_row = rows * product.rows / row_groups;
  product.rows = (rows + 1) * product.rows / row_groups - first_row;
  product.a += first_row * product.a_row_stride;
  // Columns in pairs of panels, which is what the widest tile takes.
  const index pairs = (product.columns + 2 * lanes - 1) / (2 * lanes);
  const index first_column = columns * pairs / column_groups * 2 * lanes;
  const index last_column = (columns + 1) * pairs / column_groups * 2 * lanes;
  product.columns = (last_column < product.columns ? last_column : product.columns) - first_column;
  product.panels += first_column * product.depth;
  product.bias += product.bias ? first_column : 0;
  product.c += first_row * product.c_row_stride + first_column * product.c_column_stride;
  return product;
}

template <class T>
void run_product(const gemm_arguments<T>& product, const executor_ref& executor) {
  const double weights = static_cast<double>(product.depth) * static_cast<double>(product.columns);
  // Reading a weight takes as long as some ten operations.
  const index wanted = wanted_tasks(executor, (2 * static_cast<double>(product.rows) + 10) * weights);
  index row_groups = 1, column_groups = 1;
  if (wanted > 1) {
    const index block = gemm_block_rows(product), pairs = product.columns / (2 * vec_lanes<T>);
    row_groups = (product.rows + block - 1) / block;
    column_groups = (wanted + row_groups - 1) / row_groups;
    column_groups = column_groups < pairs ? column_groups : pairs;
    column_groups = column_groups < 1 ? 1 : column_groups;
  }
  run_tasks(executor, wanted, row_groups * column_groups, [&product, row_groups, column_groups](index task) {
    const gemm_arguments<T> part = part_of_product(product, row_groups, column_groups, task);
    scratch_frame frame;
    T* const workspace = frame.take<T>(static_cast<std::uint64_t>(gemm_workspace(part)));
    HEADWAVE_DISPATCH(gemm<T>(part, workspace))
  });
}

/// out(b, l, :) = x(b, l, :) W^T + bias.
template <class T>
void project(const tensor_view<T, 3>& out, const tensor_view<const T, 3>& x, const packed_columns<T>& weight,
             const executor_ref& executor) {
  const index batch = static_cast<index>(x.extent(0)), length = static_cast<index>(x.extent(1));
  if (x.extent(0) == 0 || x.extent(1) == 0) {
    return;
  }
  gemm_arguments<T> product{.a = x.data(),
                            .a_row_stride = x.stride(1),
                            .a_column_stride = x.stride(2),
                            .panels = weight.panels,
                            .bias = weight.bias,
                            .c = out.data(),
                            .c_row_stride = out.stride(1),
                            .c_column_stride = out.stride(2),
                            .rows = length,
                            .depth = static_cast<index>(weight.in_features),
                            .columns = static_cast<index>(weight.columns)};
  // Samples that follow each other at the distance of their rows are one matrix.
  index products = batch;
  if (batch == 1 || (x.stride(0) == length * x.stride(1) && out.stride(0) == length * out.stride(1))) {
    product.rows = batch * length;
    products = 1;
  }
  for (index sample = 0; sample < products; ++sample) {
    product.a = x.data() + sample * x.stride(0);
    product.c = out.data() + sample * out.stride(0);
    run_product(product, executor);
  }
}

template <class T>
tensor<T, 1> pack_linear(const tensor_view<const T, 2>& weight, const tensor_view<const T, 1>& bias) {
  if (bias.data() && bias.extent(0) != weight.extent(0)) {
    fail("linear", differ("bias must have one element for each output", bias.extent(0), weight.extent(0)),
         {{"weight", weight.extents().data(), 2}, {"bias", bias.extents().data(), 1}});
  }
  const std::size_t panels = packed_size<T>("linear", weight.extent(0), weight.extent(1));
  const std::size_t padded_bias = bias.data() ? padded_columns<T>(weight.extent(0)) : 0;
  tensor<T, 1> packed({checked_sum("linear", panels, padded_bias)}, uninitialized);
  pack_weight(packed.data(), weight);
  if (bias.data()) {
    pack_bias(packed.data() + panels, bias);
  }
  return packed;
}

template <class T>
void apply_linear(const tensor_view<T, 3>& out, const tensor_view<const T, 3>& x, const packed_columns<T>& weight,
                  const executor_ref& executor) {
  if (x.extent(2) != weight.in_features || out.extent(0) != x.extent(0) || out.extent(1) != x.extent(1) ||
      out.extent(2) != weight.columns) {
    const std::size_t shape[] = {weight.columns, weight.in_features};
    fail("linear", "x must be [batch, length, in_features] and out [batch, length, out_features]",
         {{"out", out.extents().data(), 3}, {"x", x.extents().data(), 3}, {"weight", shape, 2}});
  }
  project(out, x, weight, executor);
}

}  // namespace detail::inline HEADWAVE_ABI

/// A linear layer y = x W^T + b. The weights are packed once, in the constructor, in the order in which the kernel
/// reads them; the tensors given may go. Calls are const and may run at the same time.
template <class T>
class linear {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "a layer computes in float or double");

 public:
  /// weight: [out_features, in_features], as in PyTorch; bias: [out_features], or {} for none. Any strides.
  /// Errors: a bias of another length.
  HEADWAVE_INLINE explicit linear(const tensor_view<const T, 2>& weight, const tensor_view<const T, 1>& bias = {})
      : packed_(detail::pack_linear(weight, bias)),
        in_features_(weight.extent(1)),
        out_features_(weight.extent(0)),
        has_bias_(bias.data() != nullptr) {}
  HEADWAVE_INLINE linear(const linear&) = default;
  HEADWAVE_INLINE linear(linear&&) = default;
  HEADWAVE_INLINE linear& operator=(const linear&) = default;
  HEADWAVE_INLINE linear& operator=(linear&&) = default;
  HEADWAVE_INLINE ~linear() = default;

  HEADWAVE_INLINE std::size_t in_features() const { return in_features_; }
  HEADWAVE_INLINE std::size_t out_features() const { return out_features_; }

  /// Writes y to out. x: [batch, length, in_features], out: [batch, length, out_features], any strides. executor runs
  /// the parts of the call (executor.hpp). Errors: other shapes.
  template <class Out, class X>
    requires(output_like<Out, 3> && tensor_like<const X, 3>)
  HEADWAVE_INLINE void apply_into(Out&& out, const X& x, const executor_ref& executor = {}) const {
    detail::apply_linear<T>(as_view(out), as_view(x), columns(), executor);
  }

  /// y as a new tensor [batch, length, out_features].
  template <class X>
    requires tensor_like<const X, 3>
  HEADWAVE_INLINE tensor<T, 3> operator()(const X& x, const executor_ref& executor = {}) const {
    tensor<T, 3> out({as_view(x).extent(0), as_view(x).extent(1), out_features_}, uninitialized);
    apply_into(out, x, executor);
    return out;
  }

 private:
  HEADWAVE_INLINE detail::packed_columns<T> columns() const {
    const T* const end_of_panels = packed_.data() + detail::packed_size<T>("linear", out_features_, in_features_);
    return {packed_.data(), has_bias_ ? end_of_panels : nullptr, in_features_, out_features_};
  }

  tensor<T, 1> packed_;
  std::size_t in_features_, out_features_;
  bool has_bias_;
};

}  // namespace headwave
