// The stop tokens of a checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "transload/checkpoint.h"
#include "transload/decoder_model.h"

namespace transload {

// generation_config.json names the stop tokens that the model's makers use; config.json's, or the GGUF's, are the fallback.
// Throws bad_json and config_invalid for a malformed generation_config.json.
std::vector<int64_t> eos_tokens_of(const Checkpoint& checkpoint, const DecoderModel& model);

}  // namespace transload
