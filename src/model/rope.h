// Rotary frequency tables for every supported kind, from both config spellings (rope_parameters, rope_theta + rope_scaling).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/config_reader.h"
#include "transload/decoder_model.h"

namespace transload {

struct RopeDefaults {
  uint32_t head_dim = 0;
  uint32_t max_positions = 0;
  uint32_t context = 0;              // chooses longrope's regime: long when above the original length
  std::optional<double> theta = {};  // used when the config has none
  std::optional<double> partial_rotary_factor = {};
  std::optional<uint32_t> original_max_positions = {};  // a top-level original_max_position_embeddings (yarn, longrope)
};

// Formulas as in transformers' modeling_rope_utils: inv_freq[j] = theta^(-2j/r), then default, linear, llama3, yarn, longrope.
// `parameters` is one rope object (keys rope_type or type, rope_theta, factor, ...); dynamic kinds are config_unsupported with
// the reason. Faults go to `reader`.
RopeGroup rope_group(ConfigReader& parameters, std::string name, const RopeDefaults& defaults);

// The base of the frequencies, more than 1; nothing when absent.
std::optional<double> maybe_theta(ConfigReader& config, std::string_view key);

// Records a fault when both fields are numbers and differ.
void refuse_contradiction(ConfigReader& config, std::string_view key, ConfigReader& other, std::string_view other_key);

// One table for the whole model from either spelling: rope_parameters, or rope_theta with rope_scaling.
RopeGroup rope_of_config(ConfigReader& config, std::string name, const RopeDefaults& defaults);

}  // namespace transload
