// SPDX-License-Identifier: MIT
// Every kernel, in the order in which they build on each other.
// clang-format off
#include <headwave/detail/kernels/gemm.inl>
#include <headwave/detail/kernels/sinusoid.inl>
#include <headwave/detail/kernels/rotary.inl>
#include <headwave/detail/kernels/softmax.inl>
#include <headwave/detail/kernels/stored.inl>
#include <headwave/detail/kernels/pack.inl>
#include <headwave/detail/kernels/rule.inl>
#include <headwave/detail/kernels/scores.inl>
#include <headwave/detail/kernels/dropout.inl>
#include <headwave/detail/kernels/merge.inl>
#include <headwave/detail/kernels/attention.inl>
#include <headwave/detail/kernels/attention_tile.inl>
#include <headwave/detail/kernels/decode.inl>
#include <headwave/detail/kernels/layer.inl>
// clang-format on
