// Writes the Hugging Face checkpoint that a TensorRT-LLM checkpoint was made from: layout, split and renaming undone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "transload/progress.h"
#include "transload/trtllm.h"

namespace transload {

struct ImportTrtllmOptions {
  QuantLayout layout =
      QuantLayout::plain;  // of baked weights, which the files do not tell; rank manifests, where there are any, do
  bool layout_given = false;
  uint32_t shards = 0;  // 0: one per 4 GB or so
  bool overwrite = false;
  bool dry_run = false;
  uint32_t workers = 0;
  Progress progress;
};

struct ImportTrtllmSummary {
  std::string architecture;
  std::string dtype;
  uint32_t ranks = 0;
  uint32_t shards = 0;
  uint64_t tensor_count = 0;
  uint64_t parameter_count = 0;
  uint64_t total_bytes = 0;
  std::vector<std::string> warnings;
};

ImportTrtllmSummary import_trtllm(const std::filesystem::path& source, const std::filesystem::path& destination,
                                  const ImportTrtllmOptions& options);

std::string import_trtllm_json(const ImportTrtllmSummary& summary);

}  // namespace transload
