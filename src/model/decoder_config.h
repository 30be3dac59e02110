// The config fields that every decoder family has, read and checked against each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_reader.h"
#include "transload/decoder_model.h"

namespace transload {

constexpr uint32_t kMaxLayers = 10'000;

struct DecoderConfig {
  uint32_t hidden_size = 1;
  uint32_t intermediate_size = 1;
  uint32_t layers = 1;
  uint32_t heads = 1;
  uint32_t kv_heads = 1;
  uint32_t head_dim = 1;
  uint32_t vocab_size = 1;
  uint32_t max_positions = 1;
  double epsilon = 0;
  bool tied = false;
};

struct DecoderConfigRules {
  bool kv_heads_follow_heads = false;             // absent num_key_value_heads: as many as heads
  bool head_dim_follows_hidden = false;           // absent head_dim: hidden_size / num_attention_heads
  bool tied_default = false;                      // absent tie_word_embeddings
  const DecoderConfig* class_defaults = nullptr;  // for configs published without the fields that equal their class's defaults
  std::string_view intermediate_key = "intermediate_size";
  std::string_view epsilon_key = "rms_norm_eps";
};

DecoderConfig read_decoder_config(ConfigReader& config, const DecoderConfigRules& rules);

// `layer_types`: for each layer whether it slides. Another name than sliding_attention or full_attention, or another number of
// entries than layers, is a fault.
std::vector<bool> read_layer_types(ConfigReader& config, uint32_t layers);

// Every layer slides but each `pattern`-th one.
std::vector<bool> sliding_by_pattern(uint32_t layers, uint32_t pattern);

// A model with the dimensions and the token ids of its config, and nothing bound yet.
DecoderModel begin_model(ConfigReader& config, const DecoderConfig& dimensions);

}  // namespace transload
