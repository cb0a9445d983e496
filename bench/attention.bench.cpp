// SPDX-License-Identifier: MIT
#include "support/report.hpp"
#include "support/row.hpp"

#include <headwave/attention.hpp>

#include <vector>

namespace {

namespace hw = headwave;

struct attention_shape {
  std::size_t batch, query_length, key_length, heads, kv_heads, head_dim;
  bool causal = false;

  /// The sum over the query rows of the keys that a row sees. The last row stands at the last key.
  double visible_pairs() const {
    const double pairs = static_cast<double>(query_length * key_length);
    return causal ? pairs - static_cast<double>(query_length * (query_length - 1)) / 2 : pairs;
  }
  double operations() const { return 4 * static_cast<double>(batch * heads * head_dim) * visible_pairs(); }
  double key_value_elements() const { return 2 * static_cast<double>(batch * key_length * kv_heads * head_dim); }
};

template <class T>
class attention_problem {
 public:
  attention_problem(const attention_shape& s, std::size_t copies)
      : query_(bench::random_tensor<T>(1, {s.batch, s.query_length, s.heads, s.head_dim})),
        keys_(copies, bench::random_tensor<T>(2, {s.batch, s.key_length, s.kv_heads, s.head_dim})),
        values_(copies, bench::random_tensor<T>(3, {s.batch, s.key_length, s.kv_heads, s.head_dim})),
        out_(query_.extents()),
        options_{.causal = s.causal} {}
  void run() {
    hw::scaled_dot_product_attention_into(out_, query_, keys_[next_], values_[next_], options_);
    next_ = (next_ + 1) % keys_.size();
  }
  std::span<const T> result() const { return {out_.begin(), out_.end()}; }

 private:
  hw::tensor<T, 4> query_;
  std::vector<hw::tensor<T, 4>> keys_, values_;
  hw::tensor<T, 4> out_;
  hw::attention_options<T> options_;
  std::size_t next_ = 0;
};

template <class T = float>
void add_attention(const char* name, const attention_shape& s, std::optional<double> goal = {},
                   std::optional<double> model = {}) {
  bench::add<attention_problem, T>({name, bench::limit::fma, s.operations(), goal, model}, s);
}

/// A new token against a cache of keys and values, which comes from memory once for each token.
void add_decode(const char* name, const attention_shape& s, double goal) {
  bench::add<attention_problem>({name, bench::limit::cold_read, sizeof(float) * s.key_value_elements(), goal, 100}, s);
}

}  // namespace

int main(int argc, char** argv) {
  add_attention("L2048 H8 d64", {1, 2048, 2048, 8, 8, 64}, 86, 93);
  add_attention("L2048 H8 d64 causal", {1, 2048, 2048, 8, 8, 64, true}, 82, 92);
  add_attention("L1024 H8 d128", {1, 1024, 1024, 8, 8, 128}, 89, 96);
  add_attention("L1024 H32/8 d128 causal", {1, 1024, 1024, 32, 8, 128, true}, 84, 95);
  add_attention("BERT-base L512 H12 d64", {1, 512, 512, 12, 12, 64}, 84, 92);
  add_attention("ViT-B/16 B4 L197 H12 d64", {4, 197, 197, 12, 12, 64}, 80, 89);
  add_attention("MiniLM L128 H12 d32", {1, 128, 128, 12, 12, 32}, 74, 86);
  add_attention("L32 H8 d64", {1, 32, 32, 8, 8, 64}, 62, 83);
  add_attention("phi L512 H32 d80", {1, 512, 512, 32, 32, 80});
  add_attention("chunk 256 of 2048 H32/8 d128 causal", {1, 256, 2048, 32, 8, 128, true});
  add_attention<double>("BERT-base L512 H12 d64", {1, 512, 512, 12, 12, 64});
  add_attention<double>("L1024 H8 d128 causal", {1, 1024, 1024, 8, 8, 128, true});
  add_decode("decode 1 x 1024 H12 d64", {1, 1, 1024, 12, 12, 64, true}, 90);
  add_decode("decode 1 x 4096 H32/8 d128", {1, 1, 4096, 32, 8, 128, true}, 85);
  return bench::run(argc, argv);
}
