// Phi-3: mini, medium, 3.5-mini, Phi-4 and 4-mini, and the text decoders of the vision and the multimodal models.
#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <utility>

#include "model/decoder_config.h"
#include "model/families.h"
#include "model/layer_parts.h"
#include "model/rope.h"

namespace transload {
namespace {

// What is not text: the towers and projectors of the vision, multimodal and InternVL checkpoints.
constexpr auto kOtherTowers =
    std::to_array<std::string_view>({"model.vision_embed_tokens.", "model.embed_tokens_extend.", "vision_model."});
constexpr std::string_view kTextPrefix = "language_model.";

// The matrices of a decoder, whose names changed over the years, and which an adapter may wrap.
class Matrices {
 public:
  explicit Matrices(TensorSource& tensors) : tensors_(tensors) {}

  bool has(const std::string& name) const { return tensors_.has(name + ".weight") || tensors_.has(name + kWrapped); }

  // The first of these names that is stored.
  Linear require(std::initializer_list<std::string> names, uint64_t out, uint64_t in) {
    const std::string* name = names.begin();
    for (const std::string& candidate : names) {
      if (!has(candidate)) continue;
      name = &candidate;
      break;
    }
    for (const char* part : {".lora_A.", ".lora_B."}) has_adapters_ = tensors_.ignore_prefix(*name + part) || has_adapters_;
    return {tensors_.require(*name + (tensors_.has(*name + kWrapped) ? kWrapped : ".weight"), {out, in}), {}};
  }

  bool has_adapters() const { return has_adapters_; }

 private:
  static constexpr const char* kWrapped = ".base_layer.weight";
  TensorSource& tensors_;
  bool has_adapters_ = false;
};

Attention bind_attention(Matrices& matrices, const std::string& at, const DecoderConfig& dimensions) {
  const uint64_t hidden = dimensions.hidden_size;
  const uint64_t q_rows = uint64_t{dimensions.heads} * dimensions.head_dim;
  const uint64_t kv_rows = uint64_t{dimensions.kv_heads} * dimensions.head_dim;
  Attention attention = attention_shape(dimensions);
  if (matrices.has(at + "q_proj")) {
    attention.q = matrices.require({at + "q_proj"}, q_rows, hidden);
    attention.k = matrices.require({at + "k_proj"}, kv_rows, hidden);
    attention.v = matrices.require({at + "v_proj"}, kv_rows, hidden);
  } else {
    const Recipe fused = matrices.require({at + "qkv_proj", at + "Wqkv"}, q_rows + 2 * kv_rows, hidden).weight;
    attention.q.weight = slice(fused, 0, 0, q_rows);
    attention.k.weight = slice(fused, 0, q_rows, q_rows + kv_rows);
    attention.v.weight = slice(fused, 0, q_rows + kv_rows, q_rows + 2 * kv_rows);
  }
  attention.o = matrices.require({at + "o_proj"}, hidden, q_rows);
  return attention;
}

Mlp bind_mlp(Matrices& matrices, const std::string& at, const DecoderConfig& dimensions) {
  const uint64_t hidden = dimensions.hidden_size;
  const uint64_t inner = dimensions.intermediate_size;
  Mlp mlp;
  if (matrices.has(at + "gate_proj")) {
    mlp.gate = matrices.require({at + "gate_proj"}, inner, hidden);
    mlp.up = matrices.require({at + "up_proj"}, inner, hidden);
  } else {
    const Recipe fused = matrices.require({at + "gate_up_proj", at + "fc1"}, 2 * inner, hidden).weight;
    mlp.gate.weight = slice(fused, 0, 0, inner);
    mlp.up.weight = slice(fused, 0, inner, 2 * inner);
  }
  mlp.down = matrices.require({at + "down_proj", at + "fc2"}, hidden, inner);
  return mlp;
}

// The settings of the parts that are not text.
void ignore_other_towers(ConfigReader& config) {
  const std::optional<std::string> type = config.maybe_text("model_type");
  if (type == "phi3_v" || type == "phi4mm") {
    for (const std::string_view field : {"embd_layer", "img_processor"}) config.ignore(field);
  }
  if (type == "phi4mm") {
    for (const std::string_view field : {"audio_processor", "speech_lora", "vision_lora"}) config.ignore(field);
  }
}

DecoderModel build(ConfigReader& config, TensorSource& tensors, const ModelOptions& options) {
  const DecoderConfig dimensions =
      read_decoder_config(config, {.kv_heads_follow_heads = true, .head_dim_follows_hidden = true, .tied_default = false});
  config.expect("hidden_act", "silu");
  for (const std::string_view bias : {"attention_bias", "mlp_bias", "lm_head_bias"}) config.expect(bias, false);
  // Which layers see everything, and how positions are stretched: the published files have the values that do nothing.
  config.expect("full_attn_mod", 1);
  config.expect("interpolate_factor", 1);
  const std::optional<uint32_t> window = config.maybe_u32("sliding_window");
  const RopeGroup rope = rope_of_config(
      config, "full",
      {.head_dim = dimensions.head_dim, .max_positions = dimensions.max_positions, .context = options.context, .theta = 10000.0});
  ignore_other_towers(config);
  DecoderModel model = begin_model(config, dimensions);
  config.finish();

  for (const std::string_view prefix : kOtherTowers) {
    if (!tensors.ignore_prefix(prefix)) continue;
    model.warnings.push_back(fmt::format("only the text model is read: the tensors '{}*' are left out", prefix));
  }
  std::string root;
  if (tensors.has(std::string(kTextPrefix) + "model.embed_tokens.weight")) root = kTextPrefix;
  const uint64_t hidden = dimensions.hidden_size;
  Matrices matrices(tensors);
  model.embedding = tensors.require(root + "model.embed_tokens.weight", {dimensions.vocab_size, hidden});
  for (uint32_t i = 0; i < dimensions.layers; ++i) {
    const std::string at = fmt::format("{}model.layers.{}.", root, i);
    Layer layer;
    layer.input_norm = {tensors.require_norm(at + "input_layernorm.weight", {hidden}), dimensions.epsilon};
    layer.attention = bind_attention(matrices, at + "self_attn.", dimensions);
    layer.mlp_norm = {tensors.require_norm(at + "post_attention_layernorm.weight", {hidden}), dimensions.epsilon};
    layer.mlp = bind_mlp(matrices, at + "mlp.", dimensions);
    model.layers.push_back(std::move(layer));
  }
  assign_one_window(model, window, rope);
  const std::string norm = root + "model.norm.weight";
  const std::string older_norm = root + "model.final_layernorm.weight";
  const bool has_older_only = tensors.has(older_norm) && !tensors.has(norm);
  model.final_norm = {tensors.require_norm(has_older_only ? older_norm : norm, {hidden}), dimensions.epsilon};
  bind_head(model, tensors, root + "lm_head.weight", dimensions.tied);
  if (matrices.has_adapters()) {
    model.warnings.emplace_back("only the base weights are read: the tensors of the adapters (lora_A, lora_B) are left out");
  }
  return model;
}

constexpr std::array<std::string_view, 3> kModelTypes{"phi3", "phi3_v", "phi4mm"};

}  // namespace

const FamilyRow kPhi3Family{"phi3", kModelTypes, build, nullptr};

}  // namespace transload
