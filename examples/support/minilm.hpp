// SPDX-License-Identifier: MIT
#pragma once

#include "safetensors.hpp"

#include <headwave/multi_head_attention.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace support {

/// The first attention layer of all-MiniLM-L6-v2, a sentence encoder of 384 dimensions and 12 heads, with sentences to
/// read.
struct minilm {
  safetensors file = safetensors(std::filesystem::path(HEADWAVE_TEST_DATA) / "minilm_layer0.safetensors");
  std::vector<std::string> sentences = list<std::string>("sentences");
  std::vector<std::vector<std::string>> tokens = list<std::vector<std::string>>("tokens");
  /// Number of tokens of each sentence; what follows them in a batch is padding.
  headwave::tensor<std::int64_t, 1> lengths = file.read<std::int64_t, 1>("lengths");

  /// The layer with the model's weights.
  headwave::multi_head_attention<float> attention() const {
    headwave::multi_head_attention<float> layer({.d_model = 384, .heads = 12});
    layer.set_weights({.in_proj_weight = file.read<float, 2>("in_proj_weight"),
                       .in_proj_bias = file.read<float, 1>("in_proj_bias"),
                       .out_proj_weight = file.read<float, 2>("out_proj_weight"),
                       .out_proj_bias = file.read<float, 1>("out_proj_bias")});
    return layer;
  }

 private:
  template <class Item>
  std::vector<Item> list(const char* key) const {
    return nlohmann::json::parse(file.metadata(key)).get<std::vector<Item>>();
  }
};

}  // namespace support
