// Phi-3.5-MoE: two experts a token by sparse mixer routing, norms that take the mean off, biases of attention and head.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "model/decoder_config.h"
#include "model/families.h"
#include "model/layer_parts.h"
#include "model/rope.h"

namespace transload {
namespace {

constexpr uint32_t kMaxExperts = 1024;
constexpr uint64_t kMaxExpertsOfModel = 1U << 14;  // of all layers: each asks for three tensors
constexpr uint32_t kChosen = 2;                    // sparse mixer finds a first and a second expert

// w1 is the gate, w3 what it multiplies, w2 the way down.
Experts bind_experts(TensorSource& tensors, const std::string& at, const DecoderConfig& dimensions, uint32_t count,
                     double jitter) {
  const uint64_t hidden = dimensions.hidden_size;
  const uint64_t inner = dimensions.intermediate_size;
  Experts experts;
  experts.chosen = kChosen;
  experts.jitter = jitter;
  experts.router = linear(tensors, at + "gate", count, hidden);
  for (uint32_t e = 0; e < count; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", at, e);
    Mlp mlp;
    mlp.gate = linear(tensors, expert + "w1", inner, hidden);
    mlp.up = linear(tensors, expert + "w3", inner, hidden);
    mlp.down = linear(tensors, expert + "w2", hidden, inner);
    experts.experts.push_back(std::move(mlp));
  }
  return experts;
}

DecoderModel build(ConfigReader& config, TensorSource& tensors, const ModelOptions& options) {
  const DecoderConfig dimensions =
      read_decoder_config(config, {.kv_heads_follow_heads = true, .head_dim_follows_hidden = true, .tied_default = false});
  config.expect("hidden_act", "silu");
  config.expect("num_experts_per_tok", kChosen);
  const uint32_t experts = config.u32("num_local_experts", kChosen, kMaxExperts);
  if (uint64_t{experts} * dimensions.layers > kMaxExpertsOfModel) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: too many experts: got {} in each of {} layers, expected at most {} in all",
                             config.field("num_local_experts"), experts, dimensions.layers, kMaxExpertsOfModel));
  }
  const double jitter = config.number("router_jitter_noise", 0);
  if (jitter < 0 || jitter > 1) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: out of range: got {}, expected 0 to 1", config.field("router_jitter_noise"), jitter));
  }
  for (const std::string_view training : {"input_jitter_noise", "router_aux_loss_coef", "output_router_logits"}) {
    config.ignore(training);
  }
  const bool attention_bias = config.boolean("attention_bias", false);
  const bool head_bias = config.boolean("lm_head_bias", false);
  const std::optional<uint32_t> window = config.maybe_u32("sliding_window");
  const RopeGroup rope = rope_of_config(
      config, "full",
      {.head_dim = dimensions.head_dim, .max_positions = dimensions.max_positions, .context = options.context, .theta = 1e6});
  DecoderModel model = begin_model(config, dimensions);
  config.finish();

  const uint64_t hidden = dimensions.hidden_size;
  model.embedding = tensors.require("model.embed_tokens.weight", {dimensions.vocab_size, hidden});
  for (uint32_t i = 0; i < dimensions.layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    Layer layer;
    layer.input_norm = layer_norm(tensors, at + "input_layernorm", hidden, dimensions.epsilon);
    layer.attention = separate_attention(tensors, at + "self_attn.", dimensions, attention_bias);
    layer.mlp_norm = layer_norm(tensors, at + "post_attention_layernorm", hidden, dimensions.epsilon);
    layer.experts = bind_experts(tensors, at + "block_sparse_moe.", dimensions, experts, jitter);
    model.layers.push_back(std::move(layer));
  }
  assign_one_window(model, window, rope);
  model.final_norm = layer_norm(tensors, "model.norm", hidden, dimensions.epsilon);
  bind_head(model, tensors, "lm_head.weight", dimensions.tied);
  if (head_bias) model.head_bias = tensors.require("lm_head.bias", {dimensions.vocab_size});
  return model;
}

constexpr std::array<std::string_view, 1> kModelTypes{"phimoe"};

}  // namespace

const FamilyRow kPhimoeFamily{"phimoe", kModelTypes, build, nullptr};

}  // namespace transload
