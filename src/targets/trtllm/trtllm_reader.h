// Opens a TensorRT-LLM checkpoint: its config.json, and the headers of all rank files, held against what the loader demands.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/safetensors.h"
#include "targets/trtllm/architectures.h"
#include "transload/trtllm.h"

namespace transload {

// Dimensions as config.json states them; global, not of a rank.
struct TrtllmDimensions {
  uint32_t hidden = 0;
  uint32_t intermediate = 0;
  uint32_t vocab = 0;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t experts = 0;  // 0: none
};

struct TrtllmCheckpoint {
  std::filesystem::path folder;
  Json config;
  const TrtllmArchitecture* architecture = nullptr;
  TrtllmOptions options;  // as config.json and the tensors say; `dtype` is set, `layout` is what the caller named
  TrtllmDimensions dimensions;
  std::vector<std::map<std::string, TensorInfo, std::less<>>> ranks;  // by name

  const TensorInfo& tensor(uint32_t rank, const std::string& name) const;  // throws tensor_missing
  bool has(uint32_t rank, const std::string& name) const { return ranks[rank].contains(name); }
  // Whether the head is the embedding. Without the field it is where the architecture has no head of its own.
  bool tied_head() const;
};

// Whether `folder` holds config.json with an "architecture" field, and no contract.json.
bool is_trtllm_checkpoint(const std::filesystem::path& folder);

// `layout`: of baked weights, which nothing in the files tells. Everything the loader would refuse is refused here: missing rank
// files and tensors, shapes, dtypes, an unknown mapping; extra tensors go to `warnings`. Faults of one kind come together.
TrtllmCheckpoint open_trtllm(const std::filesystem::path& folder, QuantLayout layout, std::vector<std::string>& warnings);

}  // namespace transload
