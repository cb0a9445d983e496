// SPDX-License-Identifier: MIT
#include "../examples/support/safetensors.hpp"

#include <headwave/attention.hpp>
#include <headwave/isa.hpp>
#include <headwave/multi_head_attention.hpp>
#include <headwave/positional_encoding.hpp>
#include <headwave/rotary.hpp>

#include "support/catch.hpp"
#include "support/oracle_layer.hpp"
#include "support/oracle_rotary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

/// \file
/// Reference values computed elsewhere: PyTorch in float64, and sines of 50-digit arithmetic. tests/data/README.md
/// names the cases; every case of a file is run.

namespace hw = headwave;
using nlohmann::json;
using support::safetensors;
using support::within;

namespace {

safetensors open(const std::string& name) {
  std::string path = HEADWAVE_TEST_DATA "/";
  path.append(name).append(".safetensors");
  return safetensors(path);
}

/// A reference value, which was computed in double, and how far a result in T may be from it. In double both have an
/// error.
template <class T, std::size_t Rank>
struct reference {
  hw::tensor<double, Rank> value;
  hw::tensor<oracle::real, Rank> error;

  reference(hw::tensor<double, Rank> reference_value, const oracle::estimate<Rank>& expected)
      : value(std::move(reference_value)), error(expected.error) {
    for (oracle::real& x : error) {
      x *= sizeof(T) == sizeof(double) ? 2 : 1;
    }
  }
};

/// The tensors of one case.
class golden_case {
 public:
  golden_case(const safetensors& file, const std::string& name)
      : file_(file), name_(name), parameters_(json::parse(file.metadata(name))) {}

  const json& parameters() const { return parameters_; }
  bool has(const std::string& tensor) const { return file_.contains(name_ + "/" + tensor); }

  template <class T, std::size_t Rank>
  hw::tensor<T, Rank> get(const std::string& tensor) const {
    return has(tensor) ? file_.convert<T, Rank>(name_ + "/" + tensor) : hw::tensor<T, Rank>();
  }

  /// A tensor of any rank, as a vector.
  template <class T>
  hw::tensor<T, 1> flat(const std::string& tensor) const {
    if (!has(tensor)) {
      return {};
    }
    if (file_.shape(name_ + "/" + tensor).size() == 1) {
      return get<T, 1>(tensor);
    }
    const auto x = get<T, 3>(tensor);
    hw::tensor<T, 1> result({x.size()});
    std::copy(x.begin(), x.end(), result.begin());
    return result;
  }

 private:
  const safetensors& file_;
  std::string name_;
  json parameters_;
};

/// The options that a case's parameters and tensors ask for, with the memory that they look at.
template <class T>
struct golden_options {
  hw::tensor<T, 4> bias;
  hw::tensor<bool, 4> visible;
  hw::tensor<T, 1> slopes, sinks;
  std::vector<std::int64_t> key_lengths;
  hw::attention_options<T> options;

  explicit golden_options(const golden_case& c)
      : bias(c.get<T, 4>("bias")),
        visible(c.get<bool, 4>("visible")),
        slopes(c.get<T, 1>("alibi_slopes")),
        sinks(c.get<T, 1>("sinks")) {
    const json& p = c.parameters();
    if (p.contains("scale")) {
      options.scale = p["scale"].get<double>();
    }
    if (p.contains("q_start")) {
      options.query_start = p["q_start"].get<std::int64_t>();
    }
    if (p.contains("window")) {
      options.window = {.left = p["window"][0].get<std::int64_t>(), .right = p["window"][1].get<std::int64_t>()};
    }
    for (const char* key : {"kv_lengths", "pad"}) {
      if (p.contains(key)) {
        key_lengths = p[key].get<std::vector<std::int64_t>>();
      }
    }
    options.softcap = p.value("softcap", 0.0);
    options.causal = p.value("causal", false);
    options.bias = bias;
    options.visible = visible;
    options.key_lengths = key_lengths;
    options.alibi_slopes = {slopes.data(), slopes.size()};
    options.sinks = {sinks.data(), sinks.size()};
  }
  golden_options(const golden_options&) = delete;
};

hw::channel_layout layout_of(const json& p) {
  return p["layout"] == "halves" ? hw::channel_layout::halves : hw::channel_layout::interleaved;
}

hw::rotary_scaling scaling_of(const json& p) {
  if (!p.contains("scaling")) {
    return {};
  }
  const json& s = p["scaling"];
  const double factor = s["factor"].get<double>();
  const auto original_length = s.value("original_length", std::int64_t{0});
  if (s["type"] == "linear") {
    return hw::linear_scaling{factor};
  }
  if (s["type"] == "ntk") {
    return hw::ntk_scaling{factor};
  }
  if (s["type"] == "llama3") {
    return hw::llama3_scaling{factor, s["low_freq_factor"].get<double>(), s["high_freq_factor"].get<double>(),
                              original_length};
  }
  CHECK(s["type"] == "yarn");
  return hw::yarn_scaling{factor, original_length, s["beta_fast"].get<double>(), s["beta_slow"].get<double>()};
}

hw::encoding_options encoding_options_of(const json& p) {
  hw::encoding_options options;
  options.base = p.value("base", 10000.0);
  options.layout = layout_of(p);
  options.order = p.value("order", "sin_cos") == "cos_sin" ? hw::channel_order::cos_sin : hw::channel_order::sin_cos;
  options.odd = p.value("odd", "sin_last") == "zero_pad" ? hw::odd_channel::zero : hw::odd_channel::sine;
  options.frequency_shift = p.value("frequency_shift", 0);
  return options;
}

template <class T>
double encoding_bound(double position) {
  return sizeof(T) == 4 ? 3.1e-8 : 1e-15 + 0x1p-53 * std::fabs(position);
}

}  // namespace

TEST_CASE("HEADWAVE_ISA chooses the instructions", "[golden][isa]") {
  if (const char* wanted = std::getenv("HEADWAVE_ISA")) {
    CHECK(std::string(hw::name(hw::active_isa())) == wanted);
  }
  CHECK(hw::is_available(hw::isa::scalar));
  CHECK(hw::is_available(hw::active_isa()));
}

TEMPLATE_TEST_CASE("golden sinusoidal encodings", "[golden][positional_encoding]", float, double) {
  const safetensors file = open("sinusoidal");
  for (const auto& [name, text] : file.metadata()) {
    const golden_case c(file, name);
    const json& p = c.parameters();
    CAPTURE(name);
    if (p.contains("height")) {
      hw::grid_encoding_options options;
      options.axis = encoding_options_of(p);
      options.columns_first = p["first"] == "x";
      const auto grid = hw::sinusoidal_encoding_2d<TestType>(
          p["height"].get<std::size_t>(), p["width"].get<std::size_t>(), p["d_model"].get<std::size_t>(), options);
      CHECK(within(grid, c.get<double, 3>("table"), encoding_bound<TestType>(1)) == "");
      continue;
    }
    const auto positions = c.get<double, 1>("positions");
    const auto expected = c.get<double, 2>("table");
    const auto table = hw::sinusoidal_encoding<TestType>(std::vector<double>(positions.begin(), positions.end()),
                                                         p["d_model"].get<std::size_t>(), encoding_options_of(p));
    for (std::size_t row = 0; row < positions.size(); ++row) {
      CAPTURE(positions(row));
      CHECK(within(table.view().slice(0, row, 1), expected.view().slice(0, row, 1),
                   encoding_bound<TestType>(positions(row))) == "");
    }
  }
  CHECK(file.metadata().size() == 24);
}

TEMPLATE_TEST_CASE("golden rotary embeddings", "[golden][rotary]", float, double) {
  const safetensors file = open("rotary");
  for (const auto& [name, text] : file.metadata()) {
    const golden_case c(file, name);
    const json& p = c.parameters();
    hw::rotary_options options = {.rotary_dim = p.value("rotary_dim", p["head_dim"].get<std::size_t>()),
                                  .base = p["base"].get<double>(),
                                  .layout = layout_of(p),
                                  .scaling = scaling_of(p)};
    const hw::rotary_embedding rope(options);
    // The file's frequencies are doubles, of which the oracle computes with all digits.
    oracle::rotation expected = {
        .frequencies = oracle::plain_frequencies(options.rotary_dim, static_cast<oracle::real>(options.base)),
        .layout = options.layout};
    const auto frequencies = c.get<double, 1>("frequencies");
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      expected.frequencies.radians[i] = static_cast<oracle::real>(frequencies(i));
      CHECK(std::fabs(rope.frequency(i) - frequencies(i)) <= 1e-15 * frequencies(i));
    }
    expected.frequencies.magnitude = static_cast<oracle::real>(p.value("magnitude", 1.0));
    CHECK(std::fabs(rope.magnitude() - p.value("magnitude", 1.0)) <= 3e-16);

    const auto x = c.get<double, 3>("x"), out = c.get<double, 3>("out");
    const auto positions = c.get<double, 1>("positions");
    const std::vector<std::int64_t> places(positions.begin(), positions.end());
    expected.position = [&](std::size_t, std::size_t, std::size_t token) { return places[token]; };
    const support::extents<4> shape = {1, x.extent(0), x.extent(1), x.extent(2)};
    oracle::estimate<4> bound =
        oracle::rotated<TestType>(oracle::reshaped<4>(oracle::rounded<TestType>(x), shape), expected);
    // The file's frequencies were rounded three times, which moves the angle by at most 131071 * 3 u.
    const double largest =
        *std::max_element(x.begin(), x.end(), [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    for (oracle::real& error : bound.error) {
      error += 2 * static_cast<oracle::real>(std::fabs(largest)) * expected.frequencies.magnitude * 131071 * 3 *
               oracle::unit<double>;
    }
    hw::tensor<TestType, 4> q(shape);
    std::copy(x.begin(), x.end(), q.begin());
    rope.apply(q, places);
    hw::tensor<double, 4> golden(shape);
    std::copy(out.begin(), out.end(), golden.begin());
    CAPTURE(name);
    CHECK(within(q, reference<TestType, 4>(golden, bound)) == "");
  }
  CHECK(file.metadata().size() == 8);
}

TEMPLATE_TEST_CASE("golden attention", "[golden][attention]", float, double) {
  const safetensors file = open("attention");
  for (const auto& [name, text] : file.metadata()) {
    const golden_case c(file, name);
    const golden_options<TestType> given(c);
    const auto q = c.get<TestType, 4>("q");
    const auto k = c.get<TestType, 4>("k");
    const auto v = c.get<TestType, 4>("v");
    const auto rounded_q = oracle::rounded<TestType>(c.get<double, 4>("q"));
    const auto rounded_k = oracle::rounded<TestType>(c.get<double, 4>("k"));
    const auto rounded_v = oracle::rounded<TestType>(c.get<double, 4>("v"));
    const auto expected =
        oracle::attention<TestType>({.q = rounded_q, .k = rounded_k, .v = rounded_v, .options = given.options});
    hw::tensor<TestType, 4> weights(expected.weights.value.extents());
    hw::tensor<TestType, 3> lse(expected.lse.value.extents());
    hw::attention_options<TestType> options = given.options;
    options.lse = lse;
    options.weights = weights;
    CAPTURE(name);
    CHECK(within(hw::scaled_dot_product_attention(q, k, v, options),
                 reference<TestType, 4>(c.get<double, 4>("out"), expected.out)) == "");
    CHECK(within(weights, reference<TestType, 4>(c.get<double, 4>("weights"), expected.weights)) == "");
    CHECK(within(lse, reference<TestType, 3>(c.get<double, 3>("lse"), expected.lse)) == "");
    if (sizeof(TestType) == sizeof(double)) {
      // Is the oracle itself right?
      CHECK(within(expected.out.value, c.get<double, 4>("out"), 1e-14) == "");
      CHECK(within(expected.weights.value, c.get<double, 4>("weights"), 1e-14) == "");
      CHECK(within(expected.lse.value, c.get<double, 3>("lse"), 1e-14) == "");
    }
  }
  CHECK(file.metadata().size() == 23);
}

TEMPLATE_TEST_CASE("golden multi-head attention", "[golden][multi_head_attention]", float, double) {
  const safetensors file = open("multi_head_attention");
  for (const auto& [name, text] : file.metadata()) {
    const golden_case c(file, name);
    const json& p = c.parameters();
    const golden_options<TestType> given(c);
    hw::attention_options<TestType> options = given.options;
    const auto mask = c.get<TestType, 2>("mask");
    options.bias = mask;

    hw::multi_head_attention_options layer_options;
    layer_options.d_model = p["E"].get<std::size_t>();
    layer_options.heads = p["H"].get<std::size_t>();
    layer_options.key_dim = p.value("kdim", std::size_t{0});
    layer_options.value_dim = p.value("vdim", std::size_t{0});
    layer_options.bias = p.value("bias", true);
    layer_options.add_bias_kv = p.value("add_bias_kv", false);
    layer_options.add_zero_attention = p.value("add_zero_attn", false);

    const auto in_proj_weight = c.get<TestType, 2>("in_proj_weight");
    const auto q_proj_weight = c.get<TestType, 2>("q_proj_weight");
    const auto k_proj_weight = c.get<TestType, 2>("k_proj_weight");
    const auto v_proj_weight = c.get<TestType, 2>("v_proj_weight");
    const auto in_proj_bias = c.get<TestType, 1>("in_proj_bias");
    const auto bias_k = c.flat<TestType>("bias_k");
    const auto bias_v = c.flat<TestType>("bias_v");
    const auto out_proj_weight = c.get<TestType, 2>("out_proj.weight");
    const auto out_proj_bias = c.get<TestType, 1>("out_proj.bias");
    const hw::multi_head_attention_weights<TestType> parameters = {.in_proj_weight = in_proj_weight,
                                                                   .q_proj_weight = q_proj_weight,
                                                                   .k_proj_weight = k_proj_weight,
                                                                   .v_proj_weight = v_proj_weight,
                                                                   .in_proj_bias = in_proj_bias,
                                                                   .bias_k = bias_k,
                                                                   .bias_v = bias_v,
                                                                   .out_proj_weight = out_proj_weight,
                                                                   .out_proj_bias = out_proj_bias};
    const std::string key_name = c.has("key") ? "key" : "query";
    const std::string value_name = c.has("value") ? "value" : "query";
    const auto expected = oracle::multi_head_attention<TestType>(
        layer_options, parameters, oracle::rounded<TestType>(c.get<double, 3>("query")),
        oracle::rounded<TestType>(c.get<double, 3>(key_name)), oracle::rounded<TestType>(c.get<double, 3>(value_name)),
        options);

    hw::multi_head_attention<TestType> layer(layer_options);
    layer.set_weights(parameters);
    hw::tensor<TestType, 4> weights(expected.weights.value.extents());
    options.weights = weights;
    const auto out =
        layer(c.get<TestType, 3>("query"), c.get<TestType, 3>(key_name), c.get<TestType, 3>(value_name), options);
    const auto golden_out = c.get<double, 3>("out");
    CAPTURE(name);
    CHECK(within(out, reference<TestType, 3>(golden_out, oracle::reshaped<3>(expected.out, golden_out.extents()))) ==
          "");
    CHECK(within(weights, reference<TestType, 4>(c.get<double, 4>("weights"), expected.weights)) == "");
    if (key_name == "query") {
      CHECK(support::same_bits(layer(c.get<TestType, 3>("query"), options), out) == "");
    }
  }
  CHECK(file.metadata().size() == 13);
}

TEMPLATE_TEST_CASE("golden: the first layer of a sentence encoder", "[golden][multi_head_attention]", float, double) {
  const safetensors file = open("minilm_layer0");
  const auto in_proj_weight = file.convert<TestType, 2>("in_proj_weight");
  const auto in_proj_bias = file.convert<TestType, 1>("in_proj_bias");
  const auto out_proj_weight = file.convert<TestType, 2>("out_proj_weight");
  const auto out_proj_bias = file.convert<TestType, 1>("out_proj_bias");
  hw::multi_head_attention<TestType> layer({.d_model = 384, .heads = 12});
  layer.set_weights({.in_proj_weight = in_proj_weight,
                     .in_proj_bias = in_proj_bias,
                     .out_proj_weight = out_proj_weight,
                     .out_proj_bias = out_proj_bias});
  const auto lengths = file.read<std::int64_t, 1>("lengths");
  const auto expected_weights = file.convert<double, 4>("weights");
  hw::tensor<TestType, 4> weights(expected_weights.extents());
  const auto out =
      layer(file.convert<TestType, 3>("input"), {.key_lengths = {lengths.data(), lengths.size()}, .weights = weights});
  CHECK(within(out, file.convert<double, 3>("output"), 2e-6) == "");
  CHECK(within(weights, expected_weights, 2e-6) == "");
}
