// Spark-X2.5: sliding and full layers with their own rotary settings, fused q/k/v rows, one gate for each head.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "model/decoder_config.h"
#include "model/families.h"
#include "model/gguf_config.h"
#include "model/layer_parts.h"
#include "model/rope.h"

namespace transload {
namespace {

// One entry of rope_parameters; only the default kind exists for this family.
RopeGroup read_rope(ConfigReader& config, std::optional<ConfigReader>& all, std::string_view layer_type, std::string name,
                    const RopeDefaults& defaults) {
  std::optional<ConfigReader> parameters = all ? all->maybe_object(layer_type) : std::nullopt;
  if (!parameters) {
    config.fault(ErrorCode::config_missing,
                 fmt::format("field 'rope_parameters.{}': missing: got none, expected an object", layer_type));
    return {};
  }
  parameters->expect("rope_type", "default");
  return rope_group(*parameters, std::move(name), defaults);
}

DecoderModel build(ConfigReader& config, TensorSource& tensors, const ModelOptions& options) {
  const DecoderConfig dimensions = read_decoder_config(config, {});
  config.expect("hidden_act", "gelu");
  config.expect("attention_bias", false);
  config.expect("mlp_bias", false);
  // The defaults of the class differ between its releases, so both fields must be there.
  if (!config.has("headwise_attn_output_gate")) config.text("headwise_attn_output_gate");
  const bool gated = config.boolean("headwise_attn_output_gate", false);
  const bool silu_gate = gated && config.text("gate_attn_act_mode") == "silu";
  if (!silu_gate) config.expect("gate_attn_act_mode", "sigmoid");
  const std::vector<bool> sliding = read_layer_types(config, dimensions.layers);
  const bool any_sliding = std::find(sliding.begin(), sliding.end(), true) != sliding.end();
  const uint32_t window = any_sliding ? config.u32("sliding_window") : config.maybe_u32("sliding_window").value_or(0);
  const RopeDefaults rope{.head_dim = dimensions.head_dim, .max_positions = dimensions.max_positions, .context = options.context};
  std::optional<ConfigReader> parameters = config.maybe_object("rope_parameters");
  const RopeGroup sliding_rope = read_rope(config, parameters, "sliding_attention", "sw", rope);
  const RopeGroup full_rope = read_rope(config, parameters, "full_attention", "full", rope);
  DecoderModel model = begin_model(config, dimensions);
  config.finish();

  const uint64_t hidden = dimensions.hidden_size;
  const uint64_t q_rows = uint64_t{dimensions.heads} * dimensions.head_dim;
  const uint64_t kv_rows = uint64_t{dimensions.kv_heads} * dimensions.head_dim;
  model.embedding = tensors.require("model.embedding.weight", {dimensions.vocab_size, hidden});
  for (uint32_t i = 0; i < dimensions.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    Layer layer;
    layer.input_norm = {tensors.require_norm(prefix + "input_layernorm.weight", {hidden}), dimensions.epsilon};
    Attention& attention = layer.attention;
    attention = attention_shape(dimensions);
    const Recipe fused = tensors.require(prefix + "self_attn.q_k_v_proj.weight", {q_rows + 2 * kv_rows, hidden});
    attention.q.weight = slice(fused, 0, 0, q_rows);
    attention.k.weight = slice(fused, 0, q_rows, q_rows + kv_rows);
    attention.v.weight = slice(fused, 0, q_rows + kv_rows, q_rows + 2 * kv_rows);
    if (gated) {
      attention.head_gate = linear(tensors, prefix + "self_attn.g_proj", dimensions.heads, hidden);
      attention.gate_activation = silu_gate ? GateActivation::silu : GateActivation::sigmoid;
    }
    attention.o = linear(tensors, prefix + "self_attn.out_proj", hidden, q_rows);
    layer.mlp_norm = {tensors.require_norm(prefix + "post_attention_layernorm.weight", {hidden}), dimensions.epsilon};
    layer.mlp = gated_mlp(tensors, prefix + "mlp.", Activation::gelu_erf, dimensions);
    model.layers.push_back(std::move(layer));
  }
  assign_attention_kinds(model, sliding, window, sliding_rope, full_rope);
  model.final_norm = {tensors.require_norm("model.norm.weight", {hidden}), dimensions.epsilon};
  bind_head(model, tensors, "lm_head.weight", dimensions.tied);
  return model;
}

constexpr auto kGgufTensors = std::to_array<GgufTensorRow>({
    {"token_embd.weight", "model.embedding.weight"},
    {"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"},
    {"blk.{}.attn_qkv.weight", "model.layers.{}.self_attn.q_k_v_proj.weight"},
    {"blk.{}.attn_gate.weight", "model.layers.{}.self_attn.g_proj.weight"},
    {"blk.{}.attn_output.weight", "model.layers.{}.self_attn.out_proj.weight"},
    {"blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"},
    {"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"},
    {"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"},
    {"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
});

// The converter writes sigmoid gates and erf GELU only, and the class of a layer decides which rope keys are its own.
Json gguf_config(ConfigReader& metadata, const GgufFacts& facts) {
  Json config = gguf_decoder_config(metadata, facts);
  config.set("model_type", "spark2_5");
  config.set("hidden_act", "gelu");
  config.set("headwise_attn_output_gate", true);
  config.set("gate_attn_act_mode", "sigmoid");
  config.set("sliding_window", metadata.u32("attention.sliding_window"));
  config.set("layer_types", gguf_layer_types(metadata, config, std::nullopt));
  metadata.expect("rope.scaling.type", "none");
  const int64_t head_dim = config.find("head_dim")->integer();
  const auto rope = [&](std::string_view theta, std::string_view width) {
    Json entry;
    entry.set("rope_theta", metadata.number(theta));
    entry.set("partial_rotary_factor", rotary_fraction(metadata.u32(width), head_dim));
    return entry;
  };
  Json parameters;
  parameters.set("full_attention", rope("rope.freq_base", "rope.dimension_count"));
  parameters.set("sliding_attention", rope("rope.freq_base_swa", "rope.dimension_count_swa"));
  config.set("rope_parameters", std::move(parameters));
  return config;
}

constexpr GgufFamily kGguf{"spark2_5", kGgufTensors, gguf_config};
constexpr std::array<std::string_view, 1> kModelTypes{"spark2_5"};

}  // namespace

const FamilyRow kSparkFamily{"spark", kModelTypes, build, &kGguf};

}  // namespace transload
