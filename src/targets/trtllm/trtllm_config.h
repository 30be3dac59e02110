// config.json of a TensorRT-LLM checkpoint as its loader understands it: generation, architecture, dimensions, mapping,
// quantisation.
#pragma once

#include "targets/trtllm/trtllm_reader.h"

namespace transload {

inline constexpr const char* kTrtllmConfigFile = "config.json";

// Fills everything of `checkpoint` but its folder, its tensors and the form of quantisation from `checkpoint.config`. Throws
// config_missing and config_invalid naming the field, config_unsupported and arch_unknown for what is well-formed and not
// implemented, shard_indivisible for a split the dimensions do not allow.
void read_trtllm_config(TrtllmCheckpoint& checkpoint);

}  // namespace transload
