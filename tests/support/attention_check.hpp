// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/attention.hpp>

#include "support/compare.hpp"
#include "support/oracle_attention.hpp"

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace support {

/// Options of the element type of a tensor.
template <class X>
using options_for = hw::attention_options<hw::element_of<const X>>;

/// Everything that an attention call writes, each in a window with canaries around it. Packed sequences have no weights
/// and mean_weights.
template <class T>
class attention_outputs {
 public:
  template <class Q, class K, class V>
  attention_outputs(const Q& q, const K& k, const V& v, const hw::attention_options<T>& options, spacing layout = {})
      : attention_outputs(hw::as_view(q).extents(), hw::as_view(k).extent(1), hw::as_view(v).extent(3), options,
                          layout) {}

  bool intact() const {
    return out.intact() && lse.intact() && maximum.intact() && entropy.intact() && weights.intact() &&
           mean_weights.intact() && key_mass.intact();
  }

  bool untouched() const {
    return out.untouched() && lse.untouched() && maximum.untouched() && entropy.untouched() && weights.untouched() &&
           mean_weights.untouched() && key_mass.untouched();
  }

  /// Makes options ask for all of them.
  void ask(hw::attention_options<T>& options) const {
    options.lse = lse.view();
    options.maximum = maximum.view();
    options.entropy = entropy.view();
    options.key_mass = key_mass.view();
    if (!options.query_offsets.data()) {
      options.weights = weights.view();
      options.mean_weights = mean_weights.view();
    }
  }

  window<T, 4> out;
  window<T, 3> lse, maximum, entropy;
  window<T, 4> weights;
  window<T, 3> mean_weights, key_mass;

 private:
  attention_outputs(const extents<4>& q, std::size_t keys, std::size_t value_dim,
                    const hw::attention_options<T>& options, spacing layout)
      : out({q[0], q[1], q[2], value_dim}, layout),
        lse({q[0], q[2], q[1]}, layout),
        maximum({q[0], q[2], q[1]}, layout),
        entropy({q[0], q[2], q[1]}, layout),
        weights({q[0], q[2], options.weight_rows.data() ? options.weight_rows.size() : q[1], keys}, layout),
        mean_weights({q[0], q[1], keys}, layout),
        key_mass({q[0], q[2], keys}, layout) {}
};

/// The rows of weights that an option asks for.
inline oracle::estimate<4> wanted_rows(const oracle::estimate<4>& weights, std::span<const std::int64_t> rows) {
  if (!rows.data()) {
    return weights;
  }
  extents<4> shape = weights.value.extents();
  shape[2] = rows.size();
  oracle::estimate<4> result(shape);
  for_each_index(shape, [&](const extents<4>& at) {
    const extents<4> from{at[0], at[1], static_cast<std::size_t>(rows[at[2]]), at[3]};
    element(result.value.view(), at) = element(weights.value.view(), from);
    element(result.error.view(), at) = element(weights.error.view(), from);
  });
  return result;
}

/// An attention call, without its rules: so what checks calls is compiled once, whatever the rules.
template <class T>
using attention_call = std::function<void(hw::tensor_view<T, 4> out, const hw::attention_options<T>& options)>;

/// Makes a call with every output asked for, each into a window with canaries around it, and compares them with the
/// oracle; then makes it again for some of the outputs only, which must have the same bits: few queries take another
/// path for out and lse alone, and weights that are only wanted as sums are computed some rows at a time. meanings: of
/// the rules, for the oracle. Empty if all is well.
template <class Q, class K, class V>
std::string faults_of_call(const attention_call<hw::element_of<const Q>>& call, const Q& q, const K& k, const V& v,
                           options_for<Q> options, spacing layout, const std::vector<oracle::rule>& meanings) {
  using value_type = hw::element_of<const Q>;
  const options_for<Q> bare = options;
  const bool packed_sequences = options.query_offsets.data() != nullptr;
  const auto run = [&](const attention_outputs<value_type>& outputs) { call(outputs.out.view(), options); };
  attention_outputs<value_type> all(q, k, v, options, layout);
  all.ask(options);
  run(all);
  const oracle::attention_result expected = oracle::attention(q, k, v, bare, meanings);

  std::string text;
  const auto note = [&](const char* name, const std::string& fault) {
    text += fault.empty() ? fault : std::string(name) + ": " + fault + "\n";
  };
  note("out", within(all.out.view(), expected.out));
  note("lse", within(all.lse.view(), expected.lse));
  note("maximum", within(all.maximum.view(), expected.maximum));
  note("entropy", within(all.entropy.view(), expected.entropy));
  note("key_mass", within(all.key_mass.view(), expected.key_mass));
  if (!packed_sequences) {
    note("weights", within(all.weights.view(), wanted_rows(expected.weights, bare.weight_rows)));
    note("mean_weights", within(all.mean_weights.view(), expected.mean_weights));
  }
  note("canaries", all.intact() ? "" : "overwritten");

  attention_outputs<value_type> alone(q, k, v, bare, layout);
  options = bare;
  run(alone);
  note("out alone", same_bits(alone.out.view(), all.out.view()));
  options.lse = alone.lse.view();
  run(alone);
  note("out with lse", same_bits(alone.out.view(), all.out.view()));
  note("lse alone", same_bits(alone.lse.view(), all.lse.view()));
  options.maximum = alone.maximum.view();
  options.entropy = alone.entropy.view();
  if (!packed_sequences) {
    options.weights = alone.weights.view();
  }
  run(alone);
  note("out without sums", same_bits(alone.out.view(), all.out.view()));
  note("lse without sums", same_bits(alone.lse.view(), all.lse.view()));
  note("maximum without sums", same_bits(alone.maximum.view(), all.maximum.view()));
  note("entropy without sums", same_bits(alone.entropy.view(), all.entropy.view()));
  note("weights without sums", packed_sequences ? "" : same_bits(alone.weights.view(), all.weights.view()));
  note("canaries of some outputs", alone.intact() ? "" : "overwritten");
  return text;
}

/// The same for scaled_dot_product_attention with these arguments.
template <class Q, class K, class V, class... Rules>
std::string attention_faults(const Q& q, const K& k, const V& v, options_for<Q> options, spacing layout = {},
                             const std::vector<oracle::rule>& meanings = {}, const Rules&... rules) {
  using value_type = hw::element_of<const Q>;
  const auto call = [&](hw::tensor_view<value_type, 4> out, const hw::attention_options<value_type>& wanted) {
    hw::scaled_dot_product_attention_into(out, q, k, v, wanted, rules...);
  };
  return faults_of_call(call, q, k, v, options, layout, meanings);
}

}  // namespace support
