// What a decode-step graph looks like: query length, context, cache layout, inputs, slice of layers, precision, dialect.
#pragma once

#include <cstdint>

#include "transload/dtype.h"

namespace transload {

// auto and ring: sliding layers keep min(C, W-1) slots in a ring; roll: min(C, W), oldest first, rebuilt in the graph.
// Full-attention layers always keep C slots, slot = position.
enum class CacheLayout : uint8_t { automatic, ring, roll };
enum class InputForm : uint8_t { rows, ids };
enum class GeluForm : uint8_t { model, exact, tanh, sigmoid };
enum class LinearForm : uint8_t { gemm, matmul, conv1x1 };
enum class RopeWidth : uint8_t { full, half };
enum class LogitsRows : uint8_t { all, last };

// all; the first sliding or the first full layer; or [begin, end).
struct LayerRange {
  enum class Kind : uint8_t { all, sliding, full, range } kind = Kind::all;
  uint32_t begin = 0;
  uint32_t end = 0;
};

struct StepOptions {
  uint32_t query = 1;       // q, tokens per call, >= 1
  uint32_t context = 1024;  // C, slots of a full-attention cache, >= 1
  CacheLayout cache_layout = CacheLayout::automatic;
  InputForm inputs = InputForm::rows;
  GeluForm gelu = GeluForm::model;
  LinearForm linear = LinearForm::gemm;
  RopeWidth rope_width = RopeWidth::full;
  LogitsRows logits = LogitsRows::all;
  LayerRange layers;
  bool head = true;
  DType weights = DType::f32;  // f32 or f16, as stored
  DType compute = DType::f32;  // f32 or f16: x, cos/sin, masks, KV, logits and the arithmetic; f16 needs f16 weights
  int opset = 18;              // 17..23
};

}  // namespace transload
