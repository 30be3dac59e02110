// Mistral: the layer of Llama without biases; every layer slides, or none, or as layer_types says.
#include <algorithm>
#include <array>
#include <optional>

#include "model/decoder_config.h"
#include "model/families.h"
#include "model/layer_parts.h"
#include "model/rope.h"

namespace transload {
namespace {

DecoderModel build(ConfigReader& config, TensorSource& tensors, const ModelOptions& options) {
  const DecoderConfig dimensions = read_decoder_config(config, {.head_dim_follows_hidden = true, .tied_default = false});
  config.expect("hidden_act", "silu");
  config.expect("attention_bias", false);
  config.expect("mlp_bias", false);
  std::optional<uint32_t> window = config.maybe_u32("sliding_window");
  std::vector<bool> sliding(dimensions.layers, window.has_value());
  if (config.has("layer_types")) {
    sliding = read_layer_types(config, dimensions.layers);
    const bool any = std::find(sliding.begin(), sliding.end(), true) != sliding.end();
    if (any && !window) window = config.u32("sliding_window");  // records that it is missing
  }
  RopeGroup rope = rope_of_config(
      config, "full",
      {.head_dim = dimensions.head_dim, .max_positions = dimensions.max_positions, .context = options.context, .theta = 10000.0});
  DecoderModel model = begin_model(config, dimensions);
  config.finish();

  model.embedding = tensors.require("model.embed_tokens.weight", {dimensions.vocab_size, dimensions.hidden_size});
  for (uint32_t i = 0; i < dimensions.layers; ++i) {
    model.layers.push_back(pre_norm_layer(tensors, "model.layers." + std::to_string(i) + ".", dimensions, false, false));
  }
  RopeGroup sliding_rope = rope;
  sliding_rope.name = "sw";
  assign_attention_kinds(model, sliding, window.value_or(0), sliding_rope, rope);
  model.final_norm = {tensors.require_norm("model.norm.weight", {dimensions.hidden_size}), dimensions.epsilon};
  bind_head(model, tensors, "lm_head.weight", dimensions.tied);
  return model;
}

constexpr std::array<std::string_view, 1> kModelTypes{"mistral"};

}  // namespace

// llama.cpp stores Mistral as architecture "llama"; with its config.json given, the family is still this one.
const FamilyRow kMistralFamily{"mistral", kModelTypes, build, nullptr};

}  // namespace transload
