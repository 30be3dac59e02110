// GGUF metadata as a Hugging Face config. What llama.cpp implies when a key is absent is implied here too.
#include "model/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/printable.h"
#include "model/decoder_config.h"

namespace transload {
namespace {

// A number, or one for each layer as long as they are equal.
uint32_t same_for_all_layers(ConfigReader& metadata, std::string_view key) {
  const Json* value = metadata.raw(key);
  if (value == nullptr || !value->is_array()) return metadata.u32(key);
  const Json::Array& items = value->array();
  const bool equal = std::all_of(items.begin(), items.end(), [&](const Json& item) { return item == items.front(); });
  if (!items.empty() && equal && items.front().is_integer() && items.front().integer() > 0 &&
      items.front().integer() <= 1 << 30) {
    return static_cast<uint32_t>(items.front().integer());
  }
  metadata.fault(ErrorCode::config_unsupported, fmt::format("{}: differs between layers: got {}, expected one number",
                                                            metadata.field(key), printable(write_json(*value, 0), 60)));
  return 1;
}

uint64_t vocabulary(ConfigReader& metadata, const GgufFacts& facts) {
  if (const auto size = metadata.maybe_u32("vocab_size")) return *size;
  const TensorInfo* embedding = facts.checkpoint.find_tensor("token_embd.weight");
  if (embedding != nullptr && embedding->shape.size() == 2) return embedding->shape.front();
  return metadata.u32("vocab_size");
}

}  // namespace

Json gguf_decoder_config(ConfigReader& metadata, const GgufFacts& facts) {
  Json config;
  const uint32_t hidden = metadata.u32("embedding_length");
  const uint32_t heads = same_for_all_layers(metadata, "attention.head_count");
  config.set("num_hidden_layers", metadata.u32("block_count", 1, kMaxLayers));
  config.set("hidden_size", hidden);
  config.set("intermediate_size", same_for_all_layers(metadata, "feed_forward_length"));
  config.set("num_attention_heads", heads);
  config.set("num_key_value_heads",
             metadata.has("attention.head_count_kv") ? same_for_all_layers(metadata, "attention.head_count_kv") : heads);
  const uint32_t head_dim = metadata.maybe_u32("attention.key_length").value_or(std::max(hidden / heads, 1U));
  config.set("head_dim", head_dim);
  metadata.expect("attention.value_length", head_dim);
  config.set("max_position_embeddings", metadata.u32("context_length"));
  config.set("rms_norm_eps", metadata.number("attention.layer_norm_rms_epsilon"));
  config.set("vocab_size", vocabulary(metadata, facts));
  config.set("tie_word_embeddings", !facts.has("output.weight"));
  metadata.expect("attention.causal", true);
  return config;
}

Json gguf_rope_scaling(ConfigReader& metadata) {
  Json rope = Json::Object{};
  const std::optional<std::string> kind = metadata.maybe_text("rope.scaling.type");
  const std::optional<double> factor = metadata.maybe_number("rope.scaling.factor");
  const double older_factor = metadata.maybe_number("rope.scale_linear").value_or(0);
  const double scale = factor.value_or(older_factor);
  metadata.ignore("rope.scaling.finetuned");
  metadata.expect("rope.scaling.attn_factor", 1.0);
  // A factor of 0 means none; a factor without a kind is linear.
  if (kind == "none" || (kind.value_or("linear") == "linear" && scale == 0)) {
    rope.set("rope_type", "default");
    return rope;
  }
  if (kind.value_or("linear") == "linear") {
    rope.set("rope_type", "linear");
    rope.set("factor", scale);
    return rope;
  }
  if (kind == "yarn") {
    rope.set("rope_type", "yarn");
    rope.set("factor", metadata.number("rope.scaling.factor"));
    rope.set("original_max_position_embeddings", metadata.u32("rope.scaling.original_context_length"));
    rope.set("beta_fast", metadata.maybe_number("rope.scaling.yarn_beta_fast").value_or(32.0));
    rope.set("beta_slow", metadata.maybe_number("rope.scaling.yarn_beta_slow").value_or(1.0));
    metadata.expect("rope.scaling.yarn_ext_factor", 1.0);
    metadata.expect("rope.scaling.yarn_attn_factor", 1.0);
    metadata.expect("rope.scaling.yarn_log_multiplier", 0.0);
    return rope;
  }
  metadata.fault(ErrorCode::config_unsupported,
                 fmt::format("{}: rope kind not supported: got '{}', expected none, linear or yarn",
                             metadata.field("rope.scaling.type"), printable(*kind, 40)));
  return rope;
}

Json gguf_layer_types(ConfigReader& metadata, const Json& config, std::optional<uint32_t> implied_pattern) {
  constexpr std::string_view key = "attention.sliding_window_pattern";
  std::vector<bool> sliding;
  const Json* pattern = metadata.raw(key);
  if (pattern != nullptr && pattern->is_array()) {
    for (const Json& layer : pattern->array()) {
      if (!layer.is_bool()) {
        metadata.fault(ErrorCode::config_invalid,
                       fmt::format("{}: wrong type: got {}, expected booleans", metadata.field(key), layer.kind_name()));
        break;
      }
      sliding.push_back(layer.boolean());
    }
  } else {
    const uint32_t every = pattern == nullptr && implied_pattern ? *implied_pattern : metadata.u32(key);
    sliding = sliding_by_pattern(static_cast<uint32_t>(config.find("num_hidden_layers")->integer()), every);
  }
  Json::Array types;
  for (const bool slides : sliding) types.emplace_back(slides ? "sliding_attention" : "full_attention");
  return types;
}

double rotary_fraction(uint32_t width, int64_t head_dim) {
  const double fraction = static_cast<double>(width) / static_cast<double>(head_dim);
  const bool truncates = std::floor(static_cast<double>(head_dim) * fraction) < width;
  return truncates ? std::nextafter(fraction, 2.0) : fraction;
}

}  // namespace transload
