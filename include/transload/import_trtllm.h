// Writes the Hugging Face checkpoint that a TensorRT-LLM checkpoint was made from: layout, split and renaming undone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "transload/progress.h"
#include "transload/trtllm.h"

namespace transload {

struct ImportTrtllmOptions {
  std::optional<QuantLayout> layout;  // of baked weights, which rank files do not tell; none: as the rank manifests say
  uint32_t shards = 0;                // 0: one per 4 GB or so
  bool overwrite = false;
  bool dry_run = false;  // plan only: headers are read, nothing is written
  uint32_t workers = 0;  // 0: one per core, at most 8
  Progress progress;
};

struct ImportTrtllmSummary {
  std::string architecture;
  std::string dtype;
  uint32_t ranks = 0;
  uint32_t shards = 0;
  uint64_t tensor_count = 0;  // of the checkpoint that is written
  uint64_t parameter_count = 0;
  uint64_t total_bytes = 0;  // of everything written
  std::vector<std::string> warnings;
};

// Writes config.json and model.safetensors, or several shards with their index; the folder appears whole or not at all. Throws
// Error: for a source that its loader would refuse file_missing, bad_header, config_missing, config_invalid, config_unsupported,
// arch_unknown, shard_indivisible, tensor_missing, shape_mismatch, dtype_mismatch, quant_unsupported; usage (baked weights of a
// layout that nobody names, a destination that holds the source); destination_exists; bad_offset and io_failure while reading
// or writing.
ImportTrtllmSummary import_trtllm(const std::filesystem::path& source, const std::filesystem::path& destination,
                                  const ImportTrtllmOptions& options);

std::string import_trtllm_json(const ImportTrtllmSummary& summary);

}  // namespace transload
