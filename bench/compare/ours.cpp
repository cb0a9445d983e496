// SPDX-License-Identifier: MIT

// headwave as a shared library for compare.py, and what the machine can do at best.

#include "../support/machine.hpp"
#include "problem.hpp"

#include <headwave/headwave.hpp>

#include <omp.h>

#include <vector>

namespace {

namespace hw = headwave;
using compare::problem;

/// How many threads a call may use: the one place where they are given to headwave. It outlives the options it makes.
class calling {
 public:
  explicit calling(int threads) : executor_(threads) {}

  const hw::openmp_executor& executor() const { return executor_; }
  hw::attention_options<float> attention(bool causal) const { return {.causal = causal, .executor = executor_}; }

 private:
  hw::openmp_executor executor_;
};

class attention_problem final : public problem {
 public:
  struct shape {
    std::size_t batch, query_length, key_length, heads, kv_heads, head_dim;
  };

  attention_problem(const shape& s, bool causal, const float* query, const float* key, const float* value, float* out,
                    std::size_t copies, const calling& how)
      : query_(query, {s.batch, s.query_length, s.heads, s.head_dim}),
        keys_(copies, copy_of(key, s)),
        values_(copies, copy_of(value, s)),
        out_(out, query_.extents()),
        how_(how),
        options_(how_.attention(causal)) {}

  void run() override {
    hw::scaled_dot_product_attention_into(out_, query_, keys_[next_], values_[next_], options_);
    next_ = (next_ + 1) % keys_.size();
  }

 private:
  static hw::tensor<float, 4> copy_of(const float* data, const shape& s) {
    hw::tensor<float, 4> copy({s.batch, s.key_length, s.kv_heads, s.head_dim}, hw::uninitialized);
    std::copy_n(data, copy.size(), copy.data());
    return copy;
  }

  hw::tensor_view<const float, 4> query_;
  std::vector<hw::tensor<float, 4>> keys_, values_;
  hw::tensor_view<float, 4> out_;
  calling how_;
  hw::attention_options<float> options_;
  std::size_t next_ = 0;
};

class linear_problem final : public problem {
 public:
  linear_problem(std::size_t rows, const hw::linear<float>& layer, const float* x, float* out, std::size_t copies,
                 const calling& how)
      : x_(x, {1, rows, layer.in_features()}),
        out_(out, {1, rows, layer.out_features()}),
        layers_(copies, layer),
        how_(how) {}

  void run() override {
    layers_[next_].apply_into(out_, x_, how_.executor());
    next_ = (next_ + 1) % layers_.size();
  }

 private:
  hw::tensor_view<const float, 3> x_;
  hw::tensor_view<float, 3> out_;
  std::vector<hw::linear<float>> layers_;
  calling how_;
  std::size_t next_ = 0;
};

class layer_problem final : public problem {
 public:
  layer_problem(std::size_t length, const hw::multi_head_attention<float>& layer, const float* x, float* out,
                std::size_t copies, const calling& how)
      : x_(x, {1, length, layer.options().d_model}),
        out_(out, x_.extents()),
        layers_(copies, layer),
        how_(how),
        options_(how_.attention(false)) {}

  void run() override {
    layers_[next_].apply_into(out_, x_, options_);
    next_ = (next_ + 1) % layers_.size();
  }

 private:
  hw::tensor_view<const float, 3> x_;
  hw::tensor_view<float, 3> out_;
  std::vector<hw::multi_head_attention<float>> layers_;
  calling how_;
  hw::attention_options<float> options_;
  std::size_t next_ = 0;
};

class table_problem final : public problem {
 public:
  table_problem(std::size_t length, std::size_t d_model, float* out, const calling&) : out_(out, {length, d_model}) {}

  void run() override { hw::sinusoidal_encoding_into(out_); }

 private:
  hw::tensor_view<float, 2> out_;
};

/// The best rate at which all threads together do part(thread), which moves or computes amount in all.
template <class Part>
double best_rate_of_all(double amount, int threads, const Part& part) {
  return bench::best_rate(amount, [&] {
#pragma omp parallel num_threads(threads)
    part(static_cast<std::size_t>(omp_get_thread_num()));
  });
}

/// The bytes of one thread's share: whole blocks of 512, as the reading probe wants them.
std::size_t share(std::size_t bytes, int threads) {
  return bytes / static_cast<std::size_t>(threads) / 512 * 512;
}

}  // namespace

extern "C" {

// All arrays are row-major float32 that Python keeps alive. Keys, values and weights are copied, `copies` times, and
// the calls go through the copies in turn.

problem* make_attention(std::size_t batch, std::size_t query_length, std::size_t key_length, std::size_t heads,
                        std::size_t kv_heads, std::size_t head_dim, bool causal, const float* query, const float* key,
                        const float* value, float* out, std::size_t copies, int threads) {
  return compare::made([&] {
    return new attention_problem({batch, query_length, key_length, heads, kv_heads, head_dim}, causal, query, key,
                                 value, out, copies, calling(threads));
  });
}

/// y = x weight^T + bias; weight [out_features, in_features].
problem* make_linear(std::size_t rows, std::size_t in_features, std::size_t out_features, const float* x,
                     const float* weight, const float* bias, float* out, std::size_t copies, int threads) {
  return compare::made([&] {
    const hw::tensor_view<const float, 2> weights(weight, {out_features, in_features});
    const hw::tensor_view<const float, 1> biases(bias, {out_features});
    return new linear_problem(rows, hw::linear<float>(weights, biases), x, out, copies, calling(threads));
  });
}

/// A self-attention layer with the weights of torch.nn.MultiheadAttention.
problem* make_layer(std::size_t length, std::size_t d_model, std::size_t heads, const float* x, const float* in_weight,
                    const float* in_bias, const float* out_weight, const float* out_bias, float* out,
                    std::size_t copies, int threads) {
  return compare::made([&] {
    hw::multi_head_attention<float> layer({.d_model = d_model, .heads = heads});
    layer.set_weights({.in_proj_weight = {in_weight, {3 * d_model, d_model}},
                       .in_proj_bias = {in_bias, {3 * d_model}},
                       .out_proj_weight = {out_weight, {d_model, d_model}},
                       .out_proj_bias = {out_bias, {d_model}}});
    return new layer_problem(length, layer, x, out, copies, calling(threads));
  });
}

problem* make_table(std::size_t length, std::size_t d_model, float* out, int threads) {
  return compare::made([&] { return new table_problem(length, d_model, out, calling(threads)); });
}

const char* instruction_set() {
  return name(hw::active_isa());
}

std::size_t cold_bytes() {
  return bench::cold_bytes();
}

/// GFLOP/s of multiply-adds in registers, all threads together. Rounds enough that starting the threads costs nothing.
double fma_peak(int threads) {
  constexpr int rounds = 200000;
  const bench::probes<float> probe = bench::active_probes<float>();
  return best_rate_of_all(static_cast<double>(threads) * rounds * probe.operations, threads, [&](std::size_t) {
    float factor = 0.5f, addend = 1;
    benchmark::DoNotOptimize(factor);
    benchmark::DoNotOptimize(probe.multiply_add(factor, addend, rounds));
  });
}

/// GB/s of reading what no cache holds.
double read_bandwidth(int threads) {
  const bench::probes<float> probe = bench::active_probes<float>();
  const unsigned char* const data = bench::test_memory();
  const std::size_t part = share(bench::cold_bytes(), threads);
  return best_rate_of_all(static_cast<double>(part) * threads, threads, [&](std::size_t thread) {
    benchmark::DoNotOptimize(probe.read(data + thread * part, part));
  });
}

/// GB/s of memset over so many bytes, at most cold_bytes().
double write_bandwidth(std::size_t bytes, int threads) {
  unsigned char* const data = bench::test_memory();
  const std::size_t part = share(bytes, threads);
  return best_rate_of_all(static_cast<double>(part) * threads, threads, [&](std::size_t thread) {
    std::memset(data + thread * part, 1, part);
    benchmark::ClobberMemory();
  });
}

}  // extern "C"
