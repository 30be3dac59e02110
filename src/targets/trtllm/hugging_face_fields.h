// What config.json of a TensorRT-LLM checkpoint takes from the Hugging Face config, in either of its key layouts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json.h"
#include "targets/trtllm/architectures.h"

namespace transload {

// From this context length on, and not by the presence of factors, the converters take a model for a longrope one.
inline constexpr uint32_t kLongRopePositions = 128000;

struct LongRope {
  Json original_positions;
  Json short_factors;
  Json long_factors;
  Json short_mscale;
  Json long_mscale;
};

// Json where the int or float kind of a number has to be kept.
struct HuggingFaceFields {
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t intermediate = 0;
  uint32_t vocab = 0;
  uint32_t positions = 0;
  uint32_t rotary = 0;          // width of the turned part of a head
  std::string_view activation;  // as TensorRT-LLM calls it
  Json rotary_base;
  Json rotary_part;
  Json norm_epsilon;
  bool tied = false;
  std::vector<std::pair<std::string_view, Json>> block_sparse;  // under their names in config.json
  uint32_t experts = 0;
  uint32_t experts_chosen = 0;
  Json jitter;
  bool attention_bias = false;
  std::optional<LongRope> long_rope;
};

// Throws config_missing and config_invalid naming the fields, config_unsupported for an activation the architecture has not.
HuggingFaceFields read_hugging_face_fields(const Json& hf_config, const std::string& config_file,
                                           const TrtllmArchitecture& architecture);

}  // namespace transload
