// Small models whose values say where they come from, for tests of how TensorRT-LLM checkpoints are cut.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "transload/decoder_model.h"

namespace transload {

struct ModelShape {
  uint32_t heads = 4;
  uint32_t kv_heads = 4;
  uint32_t head_dim = 2;
  uint32_t intermediate = 4;
  uint32_t vocab = 6;
  uint32_t layers = 1;
  uint32_t experts = 0;
  bool biases = false;
  uint32_t hidden() const { return heads * head_dim; }
};

// Where the values of each part start: row r, column c of a matrix holds start + 100 * r + c, element r of a vector start + r.
// 1,000,000 apart for layers, 10,000 for experts.
inline constexpr float kQ = 10'000;
inline constexpr float kK = 20'000;
inline constexpr float kV = 30'000;
inline constexpr float kO = 40'000;
inline constexpr float kGate = 50'000;
inline constexpr float kUp = 150'000;
inline constexpr float kDown = 250'000;
inline constexpr float kRouter = 350'000;
inline constexpr float kNorm = 400'000;
inline constexpr float kEmbedding = 500'000;
inline constexpr float kHead = 600'000;
inline constexpr float kBias = 5'000;  // added for a bias

inline Recipe numbered(Shape shape, float start) {
  std::vector<float> values(element_count(shape));
  const uint64_t columns = shape.size() == 1 ? 1 : shape[1];
  for (uint64_t i = 0; i < values.size(); ++i) {
    values[i] = start + static_cast<float>(shape.size() == 1 ? i : 100 * (i / columns) + i % columns);
  }
  return constant(std::move(shape), std::move(values));
}

inline Linear numbered_linear(uint64_t out, uint64_t in, float start, bool bias) {
  return {numbered({out, in}, start), bias ? numbered({out}, start + kBias) : Recipe()};
}

inline Norm numbered_norm(uint64_t width, float start, bool bias) {
  return {.weight = numbered({width}, start), .bias = bias ? numbered({width}, start + kBias) : Recipe()};
}

inline Mlp numbered_mlp(const ModelShape& shape, float start, bool bias) {
  Mlp mlp;
  mlp.gate = numbered_linear(shape.intermediate, shape.hidden(), start + kGate, bias);
  mlp.up = numbered_linear(shape.intermediate, shape.hidden(), start + kUp, bias);
  mlp.down = numbered_linear(shape.hidden(), shape.intermediate, start + kDown, bias);
  return mlp;
}

inline DecoderModel numbered_model(const ModelShape& shape) {
  DecoderModel model;
  const uint64_t hidden = shape.hidden();
  model.hidden_size = shape.hidden();
  model.intermediate_size = shape.intermediate;
  model.vocab_size = shape.vocab;
  model.embedding = numbered({shape.vocab, hidden}, kEmbedding);
  model.head = numbered({shape.vocab, hidden}, kHead);
  if (shape.biases) model.head_bias = numbered({shape.vocab}, kHead + kBias);
  model.final_norm = numbered_norm(hidden, kNorm, shape.biases);
  for (uint32_t i = 0; i < shape.layers; ++i) {
    const float start = 1'000'000.0F * static_cast<float>(i);
    Layer layer;
    layer.input_norm = numbered_norm(hidden, start + kNorm + 1000, shape.biases);
    layer.mlp_norm = numbered_norm(hidden, start + kNorm + 2000, shape.biases);
    Attention& attention = layer.attention;
    attention.heads = shape.heads;
    attention.kv_heads = shape.kv_heads;
    attention.head_dim = shape.head_dim;
    attention.q = numbered_linear(hidden, hidden, start + kQ, shape.biases);
    attention.k = numbered_linear(uint64_t{shape.kv_heads} * shape.head_dim, hidden, start + kK, shape.biases);
    attention.v = numbered_linear(uint64_t{shape.kv_heads} * shape.head_dim, hidden, start + kV, shape.biases);
    attention.o = numbered_linear(hidden, hidden, start + kO, shape.biases);
    if (shape.experts == 0) {
      layer.mlp = numbered_mlp(shape, start, shape.biases);
    } else {
      Experts experts;
      experts.chosen = 2;
      experts.router = numbered_linear(shape.experts, hidden, start + kRouter, false);
      for (uint32_t e = 0; e < shape.experts; ++e) {
        experts.experts.push_back(numbered_mlp(shape, start + 10'000.0F * static_cast<float>(e), false));
      }
      layer.experts = std::move(experts);
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace transload
