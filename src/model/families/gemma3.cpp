// Gemma 3, text: norms scaled by 1 + weight, q/k norms, four norms a layer, five sliding layers to one full, two thetas.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "model/decoder_config.h"
#include "model/families.h"
#include "model/gguf_config.h"
#include "model/layer_parts.h"
#include "model/rope.h"

namespace transload {
namespace {

constexpr uint32_t kSlidingPattern = 6;  // every sixth layer is full where no config says otherwise
constexpr double kSlidingTheta = 10'000.0;
constexpr double kFullTheta = 1'000'000.0;

// The multimodal configs leave out what equals the defaults of their text class.
constexpr DecoderConfig kClassDefaults{.hidden_size = 2304,
                                       .intermediate_size = 9216,
                                       .layers = 26,
                                       .heads = 8,
                                       .kv_heads = 4,
                                       .head_dim = 256,
                                       .vocab_size = 262'208,
                                       .max_positions = 131'072,
                                       .epsilon = 1e-6,
                                       .tied = true};
constexpr double kDefaultQueryScalar = 256;
constexpr double kMinQueryScalar = 1e-6;
constexpr double kMaxQueryScalar = 1e12;
constexpr uint32_t kDefaultWindow = 4096;

struct TextConfig {
  DecoderConfig dimensions;
  std::vector<bool> sliding;
  uint32_t window = 1;
  RopeGroup sliding_rope;
  RopeGroup full_rope;
  float scale = 1;
};

std::vector<bool> read_sliding_layers(ConfigReader& config, uint32_t layers) {
  const auto published = config.maybe_u32("sliding_window_pattern");
  const auto saved = config.maybe_u32("_sliding_window_pattern");
  if (config.has("layer_types")) return read_layer_types(config, layers);
  return sliding_by_pattern(layers, published.value_or(saved.value_or(kSlidingPattern)));
}

TextConfig read_text_config(ConfigReader& config, const ModelOptions& options, bool with_class_defaults) {
  TextConfig text;
  text.dimensions =
      read_decoder_config(config, {.tied_default = true, .class_defaults = with_class_defaults ? &kClassDefaults : nullptr});
  config.expect("hidden_activation", "gelu_pytorch_tanh");
  config.expect("hidden_act", "gelu_pytorch_tanh");
  config.expect("attention_bias", false);
  config.expect("use_bidirectional_attention", false);
  config.expect("attn_logit_softcapping", nullptr);
  config.expect("final_logit_softcapping", nullptr);
  const double query_scalar = with_class_defaults ? config.maybe_number("query_pre_attn_scalar").value_or(kDefaultQueryScalar)
                                                  : config.number("query_pre_attn_scalar");
  // Its inverse root has to be a number in single precision.
  if (query_scalar < kMinQueryScalar || query_scalar > kMaxQueryScalar) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: out of range: got {}, expected {} to {}", config.field("query_pre_attn_scalar"), query_scalar,
                             kMinQueryScalar, kMaxQueryScalar));
  }
  text.scale = static_cast<float>(1.0 / std::sqrt(query_scalar));
  text.sliding = read_sliding_layers(config, text.dimensions.layers);
  text.window = with_class_defaults ? config.maybe_u32("sliding_window").value_or(kDefaultWindow) : config.u32("sliding_window");

  RopeDefaults rope{
      .head_dim = text.dimensions.head_dim, .max_positions = text.dimensions.max_positions, .context = options.context};
  std::optional<ConfigReader> by_type = config.maybe_object("rope_parameters");
  if (by_type) {
    const auto read = [&](std::string_view type, std::string name) {
      std::optional<ConfigReader> parameters = by_type->maybe_object(type);
      if (parameters) return rope_group(*parameters, std::move(name), rope);
      config.fault(ErrorCode::config_missing, fmt::format("{}: missing: got none, expected an object", by_type->field(type)));
      return RopeGroup{};
    };
    text.sliding_rope = read("sliding_attention", "sw");
    text.full_rope = read("full_attention", "full");
    return text;
  }
  // The older spelling scales the full layers only.
  RopeDefaults sliding = rope;
  sliding.theta = maybe_theta(config, "rope_local_base_freq").value_or(kSlidingTheta);
  ConfigReader no_parameters = config.without_fields();
  text.sliding_rope = rope_group(no_parameters, "sw", sliding);
  rope.theta = kFullTheta;
  text.full_rope = rope_of_config(config, "full", rope);
  return text;
}

DecoderModel bind(DecoderModel model, const TextConfig& text, TensorSource& tensors, const std::string& prefix,
                  const std::string& head) {
  const DecoderConfig& dimensions = text.dimensions;
  const uint64_t hidden = dimensions.hidden_size;
  const auto norm = [&](const std::string& name, uint64_t width) {
    return Norm{affine(tensors.require_norm(name, {width}, 0.0F), 1.0F, 1.0F), dimensions.epsilon};
  };
  // transformers keeps the factor in the dtype the model runs in; in fp32, as here, it is not rounded further.
  model.embedding_factor = std::sqrt(static_cast<float>(hidden));
  model.embedding = tensors.require(prefix + "embed_tokens.weight", {dimensions.vocab_size, hidden});
  for (uint32_t i = 0; i < dimensions.layers; ++i) {
    const std::string at = fmt::format("{}layers.{}.", prefix, i);
    Layer layer;
    layer.input_norm = norm(at + "input_layernorm.weight", hidden);
    layer.attention = separate_attention(tensors, at + "self_attn.", dimensions);
    layer.attention.scale = text.scale;
    layer.attention.q_norm = norm(at + "self_attn.q_norm.weight", dimensions.head_dim);
    layer.attention.k_norm = norm(at + "self_attn.k_norm.weight", dimensions.head_dim);
    layer.post_attention_norm = norm(at + "post_attention_layernorm.weight", hidden);
    layer.mlp_norm = norm(at + "pre_feedforward_layernorm.weight", hidden);
    layer.mlp = gated_mlp(tensors, at + "mlp.", Activation::gelu_tanh, dimensions);
    layer.post_mlp_norm = norm(at + "post_feedforward_layernorm.weight", hidden);
    model.layers.push_back(std::move(layer));
  }
  assign_attention_kinds(model, text.sliding, text.window, text.sliding_rope, text.full_rope);
  model.final_norm = norm(prefix + "norm.weight", hidden);
  bind_head(model, tensors, head, dimensions.tied);
  return model;
}

// The text decoder of a multimodal checkpoint; images are not decoded, so the rest of it is passed over.
DecoderModel build_multimodal(ConfigReader& config, ConfigReader& text_reader, TensorSource& tensors,
                              const ModelOptions& options) {
  for (const std::string_view field :
       {"vision_config", "mm_tokens_per_image", "image_token_id", "boi_token_id", "eoi_token_id"}) {
    config.ignore(field);
  }
  TextConfig text = read_text_config(text_reader, options, /*with_class_defaults=*/true);
  text.dimensions.tied = config.boolean("tie_word_embeddings", text.dimensions.tied);
  DecoderModel model = begin_model(config.has("eos_token_id") ? config : text_reader, text.dimensions);
  config.finish();
  // Newer files put the decoder below "model.", older ones do not.
  const bool older = tensors.has("language_model.model.norm.weight");
  for (const std::string_view prefix :
       {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."}) {
    tensors.ignore_prefix(prefix);
  }
  return bind(std::move(model), text, tensors, older ? "language_model.model." : "model.language_model.",
              older ? "language_model.lm_head.weight" : "lm_head.weight");
}

DecoderModel build(ConfigReader& config, TensorSource& tensors, const ModelOptions& options) {
  if (config.maybe_text("model_type") == "gemma3") {
    std::optional<ConfigReader> text = config.maybe_config("text_config");
    if (text) return build_multimodal(config, *text, tensors, options);
  }
  const TextConfig text = read_text_config(config, options, /*with_class_defaults=*/false);
  DecoderModel model = begin_model(config, text.dimensions);
  config.finish();
  return bind(std::move(model), text, tensors, "model.", "lm_head.weight");
}

using Form = GgufTensorRow::Form;
constexpr auto kGgufTensors = std::to_array<GgufTensorRow>({
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", Form::norm_plus_one},
    {"blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight"},
    {"blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight"},
    {"blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight"},
    {"blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight"},
    {"blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", Form::norm_plus_one},
    {"blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", Form::norm_plus_one},
    {"blk.{}.post_attention_norm.weight", "model.layers.{}.post_attention_layernorm.weight", Form::norm_plus_one},
    {"blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight", Form::norm_plus_one},
    {"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"},
    {"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"},
    {"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"},
    {"blk.{}.post_ffw_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight", Form::norm_plus_one},
    {"output_norm.weight", "model.norm.weight", Form::norm_plus_one},
    {"output.weight", "lm_head.weight"},
});

Json gguf_config(ConfigReader& metadata, const GgufFacts& facts) {
  constexpr int64_t kLayers27B = 62;
  Json config = gguf_decoder_config(metadata, facts);
  config.set("model_type", "gemma3_text");
  config.set("hidden_activation", "gelu_pytorch_tanh");
  const int64_t head_dim = config.find("head_dim")->integer();
  // The metadata has no query scalar: the 27B model alone divides by its width per head instead of head_dim.
  const bool is_27b = config.find("num_hidden_layers")->integer() == kLayers27B;
  config.set("query_pre_attn_scalar",
             is_27b ? config.find("hidden_size")->integer() / config.find("num_attention_heads")->integer() : head_dim);
  config.set("sliding_window", metadata.u32("attention.sliding_window"));
  config.set("layer_types", gguf_layer_types(metadata, config, kSlidingPattern));
  metadata.expect("attn_logit_softcapping", 0.0);
  metadata.expect("final_logit_softcapping", 0.0);
  metadata.expect("rope.dimension_count", head_dim);
  metadata.expect("rope.dimension_count_swa", head_dim);
  Json full = gguf_rope_scaling(metadata);
  full.set("rope_theta", metadata.number("rope.freq_base"));
  Json sliding;
  sliding.set("rope_theta", metadata.maybe_number("rope.freq_base_swa").value_or(kSlidingTheta));
  config.set("rope_parameters", Json::Object{{"full_attention", full}, {"sliding_attention", sliding}});
  return config;
}

constexpr GgufFamily kGguf{"gemma3", kGgufTensors, gguf_config};
constexpr std::array<std::string_view, 2> kModelTypes{"gemma3_text", "gemma3"};

}  // namespace

const FamilyRow kGemma3Family{"gemma3", kModelTypes, build, &kGguf};

}  // namespace transload
