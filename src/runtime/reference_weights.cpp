// Opens every weight of a decoder and checks that it fits the description.
#include "runtime/reference_weights.h"

#include <fmt/format.h>

#include "runtime/reference_experts.h"
#include "transload/error.h"

namespace transload {
namespace {

class WeightLoader {
 public:
  WeightLoader(const DecoderModel& model, WeightStore& store) : model_(model), store_(store) {}

  WeightMatrix matrix(const Recipe& recipe, uint64_t rows, uint64_t columns) {
    WeightMatrix matrix = store_.matrix(recipe, rows);
    if (matrix.columns != columns) {
      throw Error(ErrorCode::shape_mismatch, fmt::format("weight does not fit the model: got {}, expected [{},{}]",
                                                         shape_text(recipe.shape()), rows, columns));
    }
    return matrix;
  }

  NormWeights norm(const Norm& norm, uint64_t width) {
    NormWeights weights{vector(norm.weight, width), static_cast<float>(norm.epsilon), norm.kind, {}};
    if (!norm.bias.empty()) weights.bias = vector(norm.bias, width);
    return weights;
  }

  LinearWeights linear(const Linear& linear, uint64_t out, uint64_t in) {
    LinearWeights weights{matrix(linear.weight, out, in), {}};
    if (!linear.bias.empty()) weights.bias = vector(linear.bias, out);
    return weights;
  }

  LayerWeights layer(const Layer& layer) {
    const Attention& attention = layer.attention;
    check(attention);
    const uint64_t hidden = model_.hidden_size;
    const uint64_t q_width = uint64_t{attention.heads} * attention.head_dim;
    const uint64_t kv_width = uint64_t{attention.kv_heads} * attention.head_dim;
    LayerWeights weights;
    weights.input_norm = norm(layer.input_norm, hidden);
    weights.q = linear(attention.q, q_width, hidden);
    weights.k = linear(attention.k, kv_width, hidden);
    weights.v = linear(attention.v, kv_width, hidden);
    weights.o = linear(attention.o, hidden, q_width);
    weights.q_norm = norm(attention.q_norm, attention.head_dim);
    weights.k_norm = norm(attention.k_norm, attention.head_dim);
    if (attention.head_gate) weights.head_gate = linear(*attention.head_gate, attention.heads, hidden);
    weights.post_attention_norm = norm(layer.post_attention_norm, hidden);
    weights.mlp_norm = norm(layer.mlp_norm, hidden);
    if (layer.experts) {
      check(*layer.experts);
      weights.router = linear(layer.experts->router, layer.experts->experts.size(), hidden);
      for (const Mlp& expert : layer.experts->experts) weights.experts.push_back(mlp(expert));
    } else {
      weights.mlp = mlp(layer.mlp);
    }
    weights.post_mlp_norm = norm(layer.post_mlp_norm, hidden);
    return weights;
  }

 private:
  void check(const Attention& attention) const {
    const bool grouped = attention.kv_heads > 0 && attention.heads > 0 && attention.heads % attention.kv_heads == 0;
    const bool turns =
        attention.rope_group < model_.rope_groups.size() &&
        model_.rope_groups[attention.rope_group].width <= attention.head_dim &&
        model_.rope_groups[attention.rope_group].inv_freq.size() == model_.rope_groups[attention.rope_group].width / 2;
    const BlockSparse sparse = attention.block_sparse.value_or(BlockSparse{1, 1, 1, 0});
    const bool sees = attention.window.value_or(1) > 0 && sparse.block > 0 && sparse.local_blocks > 0 &&
                      sparse.vertical_stride > 0 && !(attention.window && attention.block_sparse);
    if (grouped && turns && sees) return;
    throw Error(
        ErrorCode::internal,
        fmt::format(
            "attention is not consistent: got {} heads, {} KV heads, head size {}, rope group {}, window {}, sparse blocks "
            "{}, {} local, stride {}",
            attention.heads, attention.kv_heads, attention.head_dim, attention.rope_group, attention.window.value_or(0),
            sparse.block, sparse.local_blocks, sparse.vertical_stride));
  }

  static void check(const Experts& experts) {
    if (experts.chosen == kMixedExperts && experts.experts.size() >= kMixedExperts) return;
    throw Error(ErrorCode::internal, fmt::format("experts are not consistent: got {} of {} chosen, expected {}", experts.chosen,
                                                 experts.experts.size(), kMixedExperts));
  }

  std::vector<float> vector(const Recipe& recipe, uint64_t width) {
    std::vector<float> values = store_.values(recipe);
    if (values.size() != width) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("weight does not fit the model: got {}, expected [{}]", shape_text(recipe.shape()), width));
    }
    return values;
  }

  std::optional<NormWeights> norm(const std::optional<Norm>& norm, uint64_t width) {
    if (!norm) return std::nullopt;
    return this->norm(*norm, width);
  }

  MlpWeights mlp(const Mlp& mlp) {
    if (mlp.gate.weight.empty()) throw Error(ErrorCode::internal, "feed-forward weights: got nothing, expected a recipe");
    const uint64_t intermediate = mlp.gate.weight.shape()[0];
    const uint64_t hidden = model_.hidden_size;
    return {linear(mlp.gate, intermediate, hidden), linear(mlp.up, intermediate, hidden), linear(mlp.down, hidden, intermediate)};
  }

  const DecoderModel& model_;
  WeightStore& store_;
};

}  // namespace

ModelWeights load_weights(const DecoderModel& model, WeightStore& store) {
  WeightLoader load(model, store);
  ModelWeights weights;
  weights.embedding = load.matrix(model.embedding, model.vocab_size, model.hidden_size);
  for (const Layer& layer : model.layers) weights.layers.push_back(load.layer(layer));
  weights.final_norm = load.norm(model.final_norm, model.hidden_size);
  weights.head = load.linear({model.head, model.head_bias}, model.vocab_size, model.hidden_size);
  return weights;
}

}  // namespace transload
