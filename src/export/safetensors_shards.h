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

// At most `shards` files of about equal size, tensors in the order given; 0: one per 4 GB or so.
std::vector<PlannedFile> plan_shards(const std::vector<ShardTensor>& tensors, uint32_t shards);
// How many of these files hold tensors.
uint32_t count_shards(const std::vector<PlannedFile>& files);

}  // namespace transload
