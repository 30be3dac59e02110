// How a model is cut over ranks: which splits there are, which layers a pipeline stage has, which KV heads a rank has.
#pragma once

#include <cstdint>

#include "targets/trtllm/architectures.h"
#include "transload/decoder_model.h"
#include "transload/trtllm.h"

namespace transload {

struct LayerSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};
// Layers of one stage, numbered in the whole model. 1.x: the first `layers mod stages` stages have one more.
LayerSpan stage_layers(uint32_t layers, uint32_t stages, uint32_t stage);

struct HeadSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};
// KV heads of one tensor rank: kv_heads / tensor of them, or the one that tensor / kv_heads ranks share.
HeadSpan rank_kv_heads(uint32_t kv_heads, uint32_t tensor, uint32_t rank);

// Throws shard_indivisible with the option and the sizes that would do: heads, KV heads, intermediate width, experts, stages
// (layers; in format 0.12 layers mod stages must be 0). Throws usage for a zero.
void check_mapping(const DecoderModel& model, const TrtllmMapping& mapping, TrtllmFormat format);

}  // namespace transload
