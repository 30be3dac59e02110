// config.json of a TensorRT-LLM checkpoint, byte for byte as the converters of either generation write it.
#pragma once

#include <string>

#include "io/json.h"
#include "targets/trtllm/architectures.h"
#include "transload/trtllm.h"

namespace transload {

// The dtype that `options` or the Hugging Face config asks for. Throws config_missing, config_invalid, config_unsupported (8-bit
// and other names).
DType trtllm_dtype(const Json& hf_config, const std::string& config_file, const TrtllmOptions& options);

// Reads the raw Hugging Face config, in the older and the newer key layout, and keeps the int or float kind of every number.
// Throws config_missing and config_invalid naming the field, format_limit for what the generation's loader rejects.
std::string trtllm_config_text(const Json& hf_config, const std::string& config_file, const TrtllmArchitecture& architecture,
                               const TrtllmOptions& options);

}  // namespace transload
