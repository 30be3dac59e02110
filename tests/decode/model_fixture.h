// A decoder description with random weights in any dimensions: nothing is evaluated, so real sizes cost nothing.
#pragma once

#include <optional>
#include <string>

#include "transload/decoder_model.h"

namespace transload {

struct FixtureShape {
  std::string pattern = "SSSF";  // one letter a layer: S slides, F attends to everything, B and C are block-sparse
  uint32_t window = 512;
  uint32_t hidden = 2048;
  uint32_t intermediate = 6656;
  uint32_t heads = 8;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 256;
  uint32_t vocab = 131072;
  uint32_t max_positions = 1048576;
  bool tied = true;
  bool head_gate = true;
  bool qk_norm = false;
  bool four_norms = false;
  float embedding_factor = 1.0F;
  Activation activation = Activation::gelu_erf;
  bool layer_norm = false;                    // with biases
  std::optional<float> limit = std::nullopt;  // of the MLP, with an offset of 1
  uint32_t experts = 0;                       // 0: one MLP a layer
  bool head_bias = false;
  float logits_factor = 1.0F;
};

inline DecoderModel fixture_model(const FixtureShape& shape = {}) {
  uint64_t seed = 0;
  const auto matrix = [&](uint64_t out, uint64_t in) { return Linear{random(DType::bf16, {out, in}, ++seed, 0.02F), {}}; };
  const auto norm = [&](uint64_t width) {
    Norm made{random(DType::bf16, {width}, ++seed, 0.1F, 1.0F), 1e-6};
    if (shape.layer_norm) made.kind = NormKind::layer;
    if (shape.layer_norm) made.bias = random(DType::bf16, {width}, ++seed, 0.1F);
    return made;
  };
  const auto mlp = [&] {
    Mlp made;
    made.activation = shape.activation;
    made.limit = shape.limit;
    made.up_offset = shape.limit ? 1.0F : 0.0F;
    made.gate = matrix(shape.intermediate, shape.hidden);
    made.up = matrix(shape.intermediate, shape.hidden);
    made.down = matrix(shape.hidden, shape.intermediate);
    return made;
  };
  DecoderModel model;
  model.family = "fixture";
  model.hidden_size = shape.hidden;
  model.intermediate_size = shape.intermediate;
  model.vocab_size = shape.vocab;
  model.max_positions = shape.max_positions;
  model.embedding = matrix(shape.vocab, shape.hidden).weight;
  model.embedding_factor = shape.embedding_factor;
  model.tied_head = shape.tied;
  model.head = shape.tied ? model.embedding : matrix(shape.vocab, shape.hidden).weight;
  if (shape.head_bias) model.head_bias = random(DType::bf16, {shape.vocab}, ++seed, 0.1F);
  model.logits_factor = shape.logits_factor;
  model.final_norm = norm(shape.hidden);
  const uint32_t full_width = shape.head_dim / 4;
  model.rope_groups.push_back({"sw", shape.head_dim, std::vector<float>(shape.head_dim / 2, 1.0F), 1.0F});
  model.rope_groups.push_back({"full", full_width, std::vector<float>(full_width / 2, 1.0F), 1.0F});
  for (const char kind : shape.pattern) {
    Layer layer;
    layer.input_norm = norm(shape.hidden);
    layer.mlp_norm = norm(shape.hidden);
    if (shape.four_norms) {
      layer.post_attention_norm = norm(shape.hidden);
      layer.post_mlp_norm = norm(shape.hidden);
    }
    Attention& attention = layer.attention;
    if (kind == 'S') attention.window = shape.window;
    if (kind == 'B') attention.block_sparse = BlockSparse{64, 16, 8, 1};
    if (kind == 'C') attention.block_sparse = BlockSparse{64, 8, 8, 0};
    attention.rope_group = kind == 'S' ? 0 : 1;
    attention.heads = shape.heads;
    attention.kv_heads = shape.kv_heads;
    attention.head_dim = shape.head_dim;
    attention.scale = 0.0625F;
    attention.q = matrix(uint64_t{shape.heads} * shape.head_dim, shape.hidden);
    attention.k = matrix(uint64_t{shape.kv_heads} * shape.head_dim, shape.hidden);
    attention.v = matrix(uint64_t{shape.kv_heads} * shape.head_dim, shape.hidden);
    attention.o = matrix(shape.hidden, uint64_t{shape.heads} * shape.head_dim);
    if (shape.qk_norm) {
      attention.q_norm = norm(shape.head_dim);
      attention.k_norm = norm(shape.head_dim);
    }
    if (shape.head_gate) attention.head_gate = matrix(shape.heads, shape.hidden);
    if (shape.experts == 0) {
      layer.mlp = mlp();
    } else {
      layer.experts = Experts{ExpertRouting::sparse_mixer, 2, 0.01, matrix(shape.experts, shape.hidden), {}};
      for (uint32_t i = 0; i < shape.experts; ++i) layer.experts->experts.push_back(mlp());
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

inline std::string repeated(const std::string& pattern, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += pattern;
  return out;
}

}  // namespace transload
