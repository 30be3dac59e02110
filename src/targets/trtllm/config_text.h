// config.json of a TensorRT-LLM checkpoint, byte for byte as the converters of either generation write it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "targets/trtllm/architectures.h"
#include "transload/trtllm.h"

namespace transload {

// The dtype that `options` or the Hugging Face config asks for. Throws usage, config_invalid, config_unsupported (8-bit and other
// names).
DType trtllm_dtype(const Json& hf_config, const std::string& config_file, const TrtllmOptions& options);

// Reads the raw Hugging Face config, in the older and the newer key layout, and keeps the int or float kind of every number.
// Throws config_missing and config_invalid naming the field, format_limit for what the generation's loader rejects.
std::string trtllm_config_text(const Json& hf_config, const std::string& config_file, const TrtllmArchitecture& architecture,
                               const TrtllmOptions& options);

// What the format loses of this model, or asks the user to do by hand. For a config and options that trtllm_config_text took.
std::vector<std::string> trtllm_config_warnings(const Json& hf_config, const TrtllmOptions& options);

// "float16", "bfloat16", "float32": how config.json spells them. Throws usage for another type.
std::string_view trtllm_dtype_name(DType dtype);
std::optional<DType> find_trtllm_dtype(std::string_view name);
std::string_view quant_algo_name(WeightOnly weight_only);  // "W8A16", "W4A16"; empty for none

}  // namespace transload
