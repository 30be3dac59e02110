// The way back: the tensors of a Hugging Face checkpoint as recipes over the rank files, and its config.json.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "targets/trtllm/trtllm_reader.h"
#include "transload/decoder_model.h"
#include "transload/recipe.h"

namespace transload {

struct HuggingFaceTensor {
  std::string name;
  Recipe recipe;
};

// The weights of the whole model over the rank files: ranks joined, padding and repeated heads dropped, fused parts taken apart,
// baked weights dequantised to f32. Of everything else only sizes are filled.
DecoderModel join_ranks(const TrtllmCheckpoint& checkpoint);

// The tensors that Hugging Face keeps of these weights, cast to `dtype` (a router to f32), in layer order; no head where it is
// tied.
std::vector<HuggingFaceTensor> hf_tensors(const DecoderModel& model, const TrtllmArchitecture& architecture, DType dtype);
// Of join_ranks, in the dtype of the rank files.
std::vector<HuggingFaceTensor> hf_tensors(const TrtllmCheckpoint& checkpoint);
// What config.json of TensorRT-LLM keeps; `notes` says what it does not.
Json hf_config(const TrtllmCheckpoint& checkpoint, std::vector<std::string>& notes);

}  // namespace transload
