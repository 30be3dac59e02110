// Writes a random checkpoint with the tensors and real dimensions a config asks for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "transload/dtype.h"
#include "transload/progress.h"

namespace transload {

struct SynthOptions {
  uint64_t seed = 0;
  uint32_t shards = 0;  // 0: one per 4 GB or so
  bool sparse = false;  // full-length files without data
  DType dtype = DType::bf16;
  bool overwrite = false;
  uint32_t workers = 0;
  Progress progress;
};

struct SynthSummary {
  uint64_t tensor_count = 0;
  uint64_t parameter_count = 0;
  uint64_t total_bytes = 0;
  uint32_t shards = 0;
};

// `config`: a config.json or a folder that holds one. Writes config.json, model*.safetensors and, with several shards, the index.
SynthSummary synthesize(const std::filesystem::path& config, const std::filesystem::path& destination,
                        const SynthOptions& options);

std::string synth_json(const SynthSummary& summary);

}  // namespace transload
