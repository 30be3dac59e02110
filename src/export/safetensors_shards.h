// A checkpoint in the Hugging Face layout as planned files: model.safetensors, or several shards and their index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/plan.h"

namespace transload {

struct ShardTensor {
  std::string name;
  Recipe recipe;
};

struct PlannedCheckpoint {
  Plan plan;  // checked
  uint32_t shards = 0;
};
// At most `shards` files of about equal size, tensors in the order given, 0: one per 4 GB or so; the index of several; and
// `config` as config.json.
PlannedCheckpoint plan_checkpoint(const std::vector<ShardTensor>& tensors, uint32_t shards, std::string config);

}  // namespace transload
