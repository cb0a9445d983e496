// SPDX-License-Identifier: MIT
#pragma once

// The whole library, in reading order.
// clang-format off
#include <headwave/version.hpp>
#include <headwave/config.hpp>
#include <headwave/error.hpp>
#include <headwave/tensor.hpp>
#include <headwave/numeric.hpp>
#include <headwave/executor.hpp>
#include <headwave/positional_encoding.hpp>
#include <headwave/rotary.hpp>
#include <headwave/relative_position.hpp>
#include <headwave/softmax.hpp>
#include <headwave/score_rule.hpp>
#include <headwave/masks.hpp>
#include <headwave/attention_options.hpp>
#include <headwave/attention_operands.hpp>
#include <headwave/attention.hpp>
#include <headwave/kv_cache.hpp>
#include <headwave/merge_attention.hpp>
#include <headwave/linear.hpp>
#include <headwave/multi_head_attention.hpp>
#include <headwave/isa.hpp>
// clang-format on
