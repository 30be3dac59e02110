// The parts of decoder layers that several families share.
#include "model/layer_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace transload {

Linear linear(TensorSource& tensors, const std::string& name, uint64_t out, uint64_t in, bool bias) {
  Linear result;
  result.weight = tensors.require(name + ".weight", {out, in});
  if (bias) result.bias = tensors.require(name + ".bias", {out});
  return result;
}

Norm layer_norm(TensorSource& tensors, const std::string& name, uint64_t width, double epsilon) {
  Norm norm;
  norm.weight = tensors.require_norm(name + ".weight", {width});
  norm.bias = tensors.require(name + ".bias", {width});
  norm.epsilon = epsilon;
  norm.kind = NormKind::layer;
  return norm;
}

Mlp gated_mlp(TensorSource& tensors, const std::string& prefix, Activation activation, const DecoderConfig& config, bool bias) {
  Mlp mlp;
  mlp.activation = activation;
  mlp.gate = linear(tensors, prefix + "gate_proj", config.intermediate_size, config.hidden_size, bias);
  mlp.up = linear(tensors, prefix + "up_proj", config.intermediate_size, config.hidden_size, bias);
  mlp.down = linear(tensors, prefix + "down_proj", config.hidden_size, config.intermediate_size, bias);
  return mlp;
}

Attention attention_shape(const DecoderConfig& config) {
  Attention attention;
  attention.heads = config.heads;
  attention.kv_heads = config.kv_heads;
  attention.head_dim = config.head_dim;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  return attention;
}

Attention separate_attention(TensorSource& tensors, const std::string& prefix, const DecoderConfig& config, bool bias) {
  const uint64_t q_rows = uint64_t{config.heads} * config.head_dim;
  const uint64_t kv_rows = uint64_t{config.kv_heads} * config.head_dim;
  Attention attention = attention_shape(config);
  attention.q = linear(tensors, prefix + "q_proj", q_rows, config.hidden_size, bias);
  attention.k = linear(tensors, prefix + "k_proj", kv_rows, config.hidden_size, bias);
  attention.v = linear(tensors, prefix + "v_proj", kv_rows, config.hidden_size, bias);
  attention.o = linear(tensors, prefix + "o_proj", config.hidden_size, q_rows, bias);
  return attention;
}

Layer pre_norm_layer(TensorSource& tensors, const std::string& prefix, const DecoderConfig& config, bool attention_bias,
                     bool mlp_bias) {
  Layer layer;
  layer.input_norm = {tensors.require_norm(prefix + "input_layernorm.weight", {config.hidden_size}), config.epsilon};
  layer.attention = separate_attention(tensors, prefix + "self_attn.", config, attention_bias);
  layer.mlp_norm = {tensors.require_norm(prefix + "post_attention_layernorm.weight", {config.hidden_size}), config.epsilon};
  layer.mlp = gated_mlp(tensors, prefix + "mlp.", Activation::silu, config, mlp_bias);
  return layer;
}

void bind_head(DecoderModel& model, TensorSource& tensors, const std::string& name, bool tied) {
  model.tied_head = tied;
  if (!tied) {
    model.head = tensors.require(name, {model.vocab_size, model.hidden_size});
    return;
  }
  model.head = model.embedding;
  if (!tensors.has(name)) return;
  tensors.ignore(name);
  model.warnings.push_back(fmt::format("tensor '{}' is stored but not used: the config ties the head to the embedding", name));
}

void assign_attention_kinds(DecoderModel& model, const std::vector<bool>& sliding, uint32_t window, const RopeGroup& sliding_rope,
                            const RopeGroup& full_rope) {
  const bool any_sliding = std::find(sliding.begin(), sliding.end(), true) != sliding.end();
  const bool any_full = std::find(sliding.begin(), sliding.end(), false) != sliding.end();
  if (any_sliding) model.rope_groups.push_back(sliding_rope);
  if (any_full) model.rope_groups.push_back(full_rope);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    Attention& attention = model.layers[i].attention;
    if (sliding[i]) attention.window = window;
    attention.rope_group = !sliding[i] && any_sliding ? 1 : 0;
  }
}

void assign_one_window(DecoderModel& model, std::optional<uint32_t> window, const RopeGroup& rope) {
  const bool slides = window && *window < model.max_positions;
  RopeGroup sliding_rope = rope;
  sliding_rope.name = "sw";
  RopeGroup full_rope = rope;
  full_rope.name = "full";
  assign_attention_kinds(model, std::vector<bool>(model.layers.size(), slides), window.value_or(0), sliding_rope, full_rope);
}

}  // namespace transload
