// From GGUF metadata to Hugging Face config fields: the part all architectures share.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "io/json.h"
#include "model/config_reader.h"
#include "transload/checkpoint.h"

namespace transload {

// What a mapping may need to know of the tensors.
struct GgufFacts {
  const Checkpoint& checkpoint;
  bool has(std::string_view gguf_name) const { return checkpoint.find_tensor(gguf_name) != nullptr; }
};

// Dimensions, epsilon, vocabulary and tied head. Reads "block_count", "attention.head_count" and so on; faults go to `metadata`.
Json gguf_decoder_config(ConfigReader& metadata, const GgufFacts& facts);

// rope.scaling.* as rope_type, factor, ...: none, linear and yarn; longrope and unknown kinds are config_unsupported.
Json gguf_rope_scaling(ConfigReader& metadata);

// attention.sliding_window_pattern as layer_types: one boolean a layer (true slides), or n: every n-th layer is full.
// `config` is what gguf_decoder_config gave.
Json gguf_layer_types(ConfigReader& metadata, const Json& config, std::optional<uint32_t> implied_pattern);

// width / head_dim as a partial_rotary_factor that gives back `width` when multiplied and truncated.
double rotary_fraction(uint32_t width, int64_t head_dim);

}  // namespace transload
