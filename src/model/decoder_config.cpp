// Reads the dimensions of a decoder, with bounds that keep every product of two or three of them far below 2^63.
#include "model/decoder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/printable.h"

namespace transload {
namespace {

constexpr uint32_t kMaxWidth = 1U << 22;  // hidden and intermediate sizes
constexpr uint32_t kMaxHeads = 1U << 16;
constexpr uint32_t kMaxHeadDim = 1U << 14;
constexpr uint32_t kMaxVocabulary = 1U << 26;
constexpr uint32_t kMaxPositions = 1U << 30;

}  // namespace

DecoderConfig read_decoder_config(ConfigReader& config, const DecoderConfigRules& rules) {
  const DecoderConfig* defaults = rules.class_defaults;
  const auto u32 = [&](std::string_view key, uint32_t maximum, uint32_t DecoderConfig::*member) {
    return defaults == nullptr ? config.u32(key, 1, maximum) : config.maybe_u32(key, 1, maximum).value_or(defaults->*member);
  };
  DecoderConfig result;
  result.hidden_size = u32("hidden_size", kMaxWidth, &DecoderConfig::hidden_size);
  result.intermediate_size = u32(rules.intermediate_key, kMaxWidth, &DecoderConfig::intermediate_size);
  result.layers = u32("num_hidden_layers", kMaxLayers, &DecoderConfig::layers);
  result.heads = u32("num_attention_heads", kMaxHeads, &DecoderConfig::heads);
  result.kv_heads = rules.kv_heads_follow_heads ? config.maybe_u32("num_key_value_heads", 1, kMaxHeads).value_or(result.heads)
                                                : u32("num_key_value_heads", kMaxHeads, &DecoderConfig::kv_heads);
  const auto any_faulty = [&](std::string_view one, std::string_view other) {
    return config.is_faulty(one) || config.is_faulty(other);
  };
  if (result.heads % result.kv_heads != 0 && !any_faulty("num_attention_heads", "num_key_value_heads")) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: does not divide 'num_attention_heads': got {}, expected a divisor of {}",
                             config.field("num_key_value_heads"), result.kv_heads, result.heads));
  }
  if (rules.head_dim_follows_hidden && !config.has("head_dim")) {
    config.ignore("head_dim");
    if (result.hidden_size % result.heads != 0 && !any_faulty("hidden_size", "num_attention_heads")) {
      config.fault(ErrorCode::config_invalid,
                   fmt::format("{}: does not divide 'hidden_size', and there is no 'head_dim': got {}, expected a divisor of {}",
                               config.field("num_attention_heads"), result.heads, result.hidden_size));
    }
    result.head_dim = std::max(result.hidden_size / result.heads, 1U);
  } else {
    result.head_dim = u32("head_dim", kMaxHeadDim, &DecoderConfig::head_dim);
  }
  result.vocab_size = u32("vocab_size", kMaxVocabulary, &DecoderConfig::vocab_size);
  result.max_positions = u32("max_position_embeddings", kMaxPositions, &DecoderConfig::max_positions);
  result.epsilon =
      defaults == nullptr ? config.number(rules.epsilon_key) : config.maybe_number(rules.epsilon_key).value_or(defaults->epsilon);
  if (result.epsilon < 0 || result.epsilon > 1) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: out of range: got {}, expected 0 to 1", config.field(rules.epsilon_key), result.epsilon));
  }
  result.tied = config.boolean("tie_word_embeddings", rules.tied_default);
  return result;
}

std::vector<bool> read_layer_types(ConfigReader& config, uint32_t layers) {
  std::vector<bool> sliding(layers, false);
  if (!config.has("layer_types")) {
    config.texts("layer_types");  // records that it is missing
    return sliding;
  }
  const std::vector<std::string> types = config.texts("layer_types");
  if (config.is_faulty("layer_types") || config.is_faulty("num_hidden_layers")) return sliding;
  if (types.size() != layers) {
    config.fault(ErrorCode::config_invalid, fmt::format("{}: wrong number of layers: got {}, expected 'num_hidden_layers' {}",
                                                        config.field("layer_types"), types.size(), layers));
    return sliding;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    sliding[i] = types[i] == "sliding_attention";
    if (sliding[i] || types[i] == "full_attention") continue;
    config.fault(ErrorCode::config_unsupported,
                 fmt::format("{}: layer {}: got '{}', expected sliding_attention or full_attention", config.field("layer_types"),
                             i, printable(types[i], 60)));
    break;
  }
  return sliding;
}

std::vector<bool> sliding_by_pattern(uint32_t layers, uint32_t pattern) {
  std::vector<bool> sliding(layers);
  for (uint32_t i = 0; i < layers; ++i) sliding[i] = (i + 1) % pattern != 0;
  return sliding;
}

DecoderModel begin_model(ConfigReader& config, const DecoderConfig& dimensions) {
  DecoderModel model;
  model.hidden_size = dimensions.hidden_size;
  model.intermediate_size = dimensions.intermediate_size;
  model.vocab_size = dimensions.vocab_size;
  model.max_positions = dimensions.max_positions;
  const std::vector<int64_t> begin = config.integers_or_one("bos_token_id");
  if (!begin.empty()) model.bos_token = begin.front();
  model.eos_tokens = config.integers_or_one("eos_token_id");
  return model;
}

}  // namespace transload
