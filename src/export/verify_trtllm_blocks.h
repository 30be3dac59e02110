// Blocks of a layer run from the rank files as the runtime would, in fp32, against the same blocks of the unsplit model.
#pragma once

#include <cstdint>
#include <vector>

#include "base/worker_pool.h"
#include "targets/trtllm/trtllm_reader.h"
#include "transload/decoder_model.h"
#include "transload/verify_trtllm.h"

namespace transload {

// Attention and feed-forward of the first and of the last layer, and the head, for a few pseudo-random rows. `model` is the
// checkpoint's; where weights are baked, the ranks are compared with their own dequantised weights joined, and the error against
// the model is reported beside. A block is right when `relative` is at most `allowed`.
std::vector<TrtllmBlockResult> run_trtllm_blocks(const TrtllmCheckpoint& checkpoint, const DecoderModel& model, WorkerPool& pool);

}  // namespace transload
