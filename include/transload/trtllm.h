// What a TensorRT-LLM checkpoint can be: format generation, dtype, mapping over ranks and weight-only quantisation.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "transload/dtype.h"
#include "transload/recipe.h"

namespace transload {

// The two generations of config.json and of the loader behind it; they are never mixed. v0_12: plain dictionary of about release
// 0.12; v1: attribute dump of 0.13 to 1.x.
enum class TrtllmFormat : uint8_t { v0_12, v1 };

inline constexpr uint32_t kMaxTrtllmRanks = 1U << 16;  // a job of more is a mistake, and tables that list every rank stay small

// world = tensor * pipeline ranks; file index = pipeline stage * tensor + tensor rank.
struct TrtllmMapping {
  uint32_t tensor = 1;    // --tp
  uint32_t pipeline = 1;  // --pp
  uint32_t expert = 1;    // --moe-ep, divides tensor; experts are split over it, their inner width over tensor / expert
  uint32_t world() const { return tensor * pipeline; }
  uint32_t moe_tensor() const { return tensor / expert; }
  bool operator==(const TrtllmMapping&) const = default;
};

enum class WeightOnly : uint8_t { none, int8, int4 };
// deferred: weights stay as they are and config.json asks the engine builder to quantise; baked: quantised here.
enum class QuantForm : uint8_t { deferred, baked };

struct TrtllmOptions {
  TrtllmFormat format = TrtllmFormat::v1;
  std::optional<DType> dtype;  // f16, bf16 or f32; none: the dtype the config names, f16 where that is f32
  TrtllmMapping mapping;
  WeightOnly weight_only = WeightOnly::none;
  QuantForm form = QuantForm::deferred;
  QuantLayout layout = QuantLayout::plain;  // of baked weights
  bool has_baked_weights() const { return weight_only != WeightOnly::none && form == QuantForm::baked; }
  // Of baked weights.
  WeightQuant weight_quant() const { return {static_cast<uint8_t>(weight_only == WeightOnly::int8 ? 8 : 4), layout}; }
};

std::string_view trtllm_format_name(TrtllmFormat format);  // "0.12", "1.x"

}  // namespace transload
