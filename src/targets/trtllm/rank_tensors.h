// The tensors of one rank file as recipes over the checkpoint: names, fused parts, tensor, pipeline and expert split, padding,
// weight-only quantisation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "targets/trtllm/architectures.h"
#include "transload/decoder_model.h"
#include "transload/trtllm.h"
#include "weights/plan.h"

namespace transload {

struct RankTensor {
  std::string name;         // "transformer.layers.0.attention.qkv.weight"; layers count from 0 in each stage
  Recipe recipe;            // in the dtype of the checkpoint; i8 where it is quantised
  std::string scales_name;  // "…per_channel_scale", or empty
  Shape scales_shape;       // [out] or [experts, out]
};

// `mapping` was checked. Order: as the tensors appear in the model. Throws quant_unsupported naming the tensor.
std::vector<RankTensor> rank_tensors(const DecoderModel& model, const TrtllmArchitecture& architecture,
                                     const TrtllmOptions& options, DType dtype, uint32_t rank);

// rank<N>.safetensors: tensors by dtype (f32, bf16, f16, i8), then by name; no metadata.
PlannedFile plan_rank_file(const std::vector<RankTensor>& tensors, DType dtype, uint32_t rank);

}  // namespace transload
