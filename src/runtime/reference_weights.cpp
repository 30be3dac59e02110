// Opens every weight of a decoder and checks that it fits the description.
#include "runtime/reference_weights.h"

#include <fmt/format.h>

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

  NormWeights norm(const Norm& norm, uint64_t width) { return {vector(norm.weight, width), static_cast<float>(norm.epsilon)}; }

  LayerWeights layer(const Layer& layer) {
    const Attention& attention = layer.attention;
    check(attention);
    const uint64_t hidden = model_.hidden_size;
    const uint64_t q_width = uint64_t{attention.heads} * attention.head_dim;
    const uint64_t kv_width = uint64_t{attention.kv_heads} * attention.head_dim;
    const uint64_t intermediate = layer.mlp.gate.weight.shape()[0];
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
    weights.mlp_gate = linear(layer.mlp.gate, intermediate, hidden);
    weights.mlp_up = linear(layer.mlp.up, intermediate, hidden);
    weights.mlp_down = linear(layer.mlp.down, hidden, intermediate);
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
    if (grouped && turns && attention.window.value_or(1) > 0) return;
    throw Error(
        ErrorCode::internal,
        fmt::format("attention is not consistent: got {} heads, {} KV heads, head size {}, rope group {}, window {}",
                    attention.heads, attention.kv_heads, attention.head_dim, attention.rope_group, attention.window.value_or(0)));
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

  LinearWeights linear(const Linear& linear, uint64_t out, uint64_t in) {
    LinearWeights weights{matrix(linear.weight, out, in), {}};
    if (!linear.bias.empty()) weights.bias = vector(linear.bias, out);
    return weights;
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
  weights.head = load.matrix(model.head, model.vocab_size, model.hidden_size);
  return weights;
}

}  // namespace transload
