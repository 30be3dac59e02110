// The weights of a decoder as the reference computes with them: matrices in place, vectors in f32.
#pragma once

#include <optional>
#include <vector>

#include "runtime/weight_matrix.h"
#include "transload/decoder_model.h"

namespace transload {

struct NormWeights {
  std::vector<float> weight;
  float epsilon = 0;
  NormKind kind = NormKind::rms;
  std::vector<float> bias;  // or empty
};

struct LinearWeights {
  WeightMatrix weight;
  std::vector<float> bias;  // or empty
};

struct MlpWeights {
  LinearWeights gate;
  LinearWeights up;
  LinearWeights down;
};

struct LayerWeights {
  NormWeights input_norm;
  LinearWeights q;
  LinearWeights k;
  LinearWeights v;
  LinearWeights o;
  std::optional<NormWeights> q_norm;
  std::optional<NormWeights> k_norm;
  std::optional<LinearWeights> head_gate;
  std::optional<NormWeights> post_attention_norm;
  NormWeights mlp_norm;
  MlpWeights mlp;  // empty where there are experts
  LinearWeights router;
  std::vector<MlpWeights> experts;
  std::optional<NormWeights> post_mlp_norm;
};

struct ModelWeights {
  WeightMatrix embedding;
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  LinearWeights head;
};

// Shapes that do not fit together would be read out of bounds, so they are refused: shape_mismatch, internal.
ModelWeights load_weights(const DecoderModel& model, WeightStore& store);

}  // namespace transload
