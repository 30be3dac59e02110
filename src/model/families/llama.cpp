// Llama: LlamaForCausalLM (Llama 2 and 3.x, SmolLM2 and others of that shape), and llama.cpp's architecture "llama".
#include <array>
#include <utility>

#include "model/decoder_config.h"
#include "model/families.h"
#include "model/gguf_config.h"
#include "model/layer_parts.h"
#include "model/rope.h"

namespace transload {
namespace {

DecoderModel build(ConfigReader& config, TensorSource& tensors, const ModelOptions& options) {
  const DecoderConfig dimensions =
      read_decoder_config(config, {.kv_heads_follow_heads = true, .head_dim_follows_hidden = true, .tied_default = false});
  config.expect("hidden_act", "silu");
  config.expect("pretraining_tp", 1);  // above 1 the projections are summed in parts
  const bool attention_bias = config.boolean("attention_bias", false);
  const bool mlp_bias = config.boolean("mlp_bias", false);
  const RopeGroup rope = rope_of_config(
      config, "full",
      {.head_dim = dimensions.head_dim, .max_positions = dimensions.max_positions, .context = options.context, .theta = 10000.0});
  DecoderModel model = begin_model(config, dimensions);
  config.finish();

  model.embedding = tensors.require("model.embed_tokens.weight", {dimensions.vocab_size, dimensions.hidden_size});
  for (uint32_t i = 0; i < dimensions.layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    model.layers.push_back(pre_norm_layer(tensors, prefix, dimensions, attention_bias, mlp_bias));
  }
  model.rope_groups = {rope};
  model.final_norm = {tensors.require_norm("model.norm.weight", {dimensions.hidden_size}), dimensions.epsilon};
  bind_head(model, tensors, "lm_head.weight", dimensions.tied);
  return model;
}

using Form = GgufTensorRow::Form;
constexpr auto kGgufTensors = std::to_array<GgufTensorRow>({
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"},
    {"blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", Form::paired_rotary_q},
    {"blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", Form::paired_rotary_q},
    {"blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", Form::paired_rotary_k},
    {"blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", Form::paired_rotary_k},
    {"blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight"},
    {"blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias"},
    {"blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight"},
    {"blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias"},
    {"blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"},
    {"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"},
    {"blk.{}.ffn_gate.bias", "model.layers.{}.mlp.gate_proj.bias"},
    {"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"},
    {"blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias"},
    {"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"},
    {"blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
});

Json gguf_config(ConfigReader& metadata, const GgufFacts& facts) {
  Json config = gguf_decoder_config(metadata, facts);
  config.set("model_type", "llama");
  config.set("hidden_act", "silu");
  config.set("attention_bias", facts.has("blk.0.attn_q.bias"));
  config.set("mlp_bias", facts.has("blk.0.ffn_gate.bias"));
  metadata.expect("expert_count", 0);
  metadata.expect("expert_used_count", 0);
  metadata.expect("rope.dimension_count", *config.find("head_dim"));
  metadata.ignore("tensor_data_layout");  // q and k rows are paired in every layout it names
  Json rope = gguf_rope_scaling(metadata);
  rope.set("rope_theta", metadata.maybe_number("rope.freq_base").value_or(10000.0));
  config.set("rope_parameters", std::move(rope));
  return config;
}

constexpr GgufFamily kGguf{"llama", kGgufTensors, gguf_config, /*rope_divisors=*/true};
constexpr std::array<std::string_view, 1> kModelTypes{"llama"};

}  // namespace

const FamilyRow kLlamaFamily{"llama", kModelTypes, build, &kGguf};

}  // namespace transload
