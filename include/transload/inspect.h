// What is in a checkpoint: family, dimensions, layer pattern, dtypes, sizes, fields this tool does not know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transload/checkpoint.h"
#include "transload/export_onnx.h"

namespace transload {

struct DTypeCount {
  std::string dtype;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

struct Inspection {
  std::string format;  // "safetensors" or "gguf"
  std::string family;  // known as soon as the config names one; empty when there is no such family
  std::vector<FileSummary> files;
  uint64_t tensor_count = 0;
  uint64_t tensor_bytes = 0;
  uint64_t parameter_count = 0;
  std::vector<DTypeCount> dtypes;
  std::vector<std::string> unknown_fields;
  std::string problem;  // the error that building the model gave, or empty
  // Valid when problem is empty:
  uint32_t layers = 0, hidden_size = 0, intermediate_size = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab_size = 0,
           max_positions = 0;
  bool tied_head = false;
  std::string layer_pattern;  // "SSSF SSSF", S = sliding, F = full
  uint32_t window = 0;        // 0: none
};

// Never throws for a model it cannot build: `problem` says why. Headers and small tensors are all it reads.
Inspection inspect(const Checkpoint& checkpoint);

std::string inspection_json(const Inspection& inspection);

}  // namespace transload
