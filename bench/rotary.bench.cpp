// SPDX-License-Identifier: MIT
#include "support/report.hpp"
#include "support/row.hpp"

#include <headwave/rotary.hpp>

namespace {

namespace hw = headwave;

struct rotation_shape {
  std::size_t length, heads, head_dim;
  hw::channel_layout layout;
  bool heads_outside = false;

  double elements() const { return static_cast<double>(length * heads * head_dim); }
};

/// Rotates back and forth in turn, so that values stay as they are.
template <class T>
class rotation_problem {
 public:
  rotation_problem(const rotation_shape& s, std::size_t)
      : rope_({.rotary_dim = s.head_dim, .base = 5e5, .layout = s.layout}),
        q_(bench::random_tensor<T>(
            1, {1, s.heads_outside ? s.heads : s.length, s.heads_outside ? s.length : s.heads, s.head_dim})),
        heads_outside_(s.heads_outside) {}
  void run() {
    const hw::tensor_view<T, 4> q = heads_outside_ ? q_.view().transposed(1, 2) : q_.view();
    back_ ? rope_.apply_inverse(q, 1000) : rope_.apply(q, 1000);
    back_ = !back_;
  }
  std::span<const T> result() const { return {q_.begin(), q_.end()}; }

 private:
  hw::rotary_embedding rope_;
  hw::tensor<T, 4> q_;
  bool heads_outside_, back_ = false;
};

template <class T = float>
void add(const rotation_shape& s) {
  const std::string name = std::string(s.layout == hw::channel_layout::halves ? "halves " : "interleaved ") +
                           std::to_string(s.length) + " H" + std::to_string(s.heads) + " d" +
                           std::to_string(s.head_dim) + (s.heads_outside ? " heads outside" : "");
  bench::add<rotation_problem, T>({name, bench::limit::copy, 2 * sizeof(T) * s.elements()}, s);
}

}  // namespace

int main(int argc, char** argv) {
  for (const hw::channel_layout layout : {hw::channel_layout::halves, hw::channel_layout::interleaved}) {
    for (const std::size_t length : std::initializer_list<std::size_t>{1, 512, 4096}) {
      add({length, 32, 128, layout});
    }
  }
  add({512, 32, 128, hw::channel_layout::halves, true});
  add({4096, 32, 128, hw::channel_layout::halves, true});
  add({512, 1, 64, hw::channel_layout::halves});
  add<double>({512, 32, 128, hw::channel_layout::halves});
  return bench::run(argc, argv);
}
