// The way back: the tensors of a Hugging Face checkpoint as recipes over the rank files, and its config.json.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "targets/trtllm/trtllm_reader.h"
#include "transload/recipe.h"

namespace transload {

struct HuggingFaceTensor {
  std::string name;
  Recipe recipe;  // in the dtype of the rank files; dequantised where they are quantised
};

// In layer order. Ranks are joined, padding and repeated heads dropped, fused parts put back; a head that is tied is left out.
std::vector<HuggingFaceTensor> hf_tensors(const TrtllmCheckpoint& checkpoint);
// What config.json of TensorRT-LLM keeps; a sliding window is lost by the format.
Json hf_config(const TrtllmCheckpoint& checkpoint);

}  // namespace transload
