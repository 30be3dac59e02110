// A TensorRT-LLM checkpoint with the layout of its baked weights, as the caller or the rank manifests beside it say.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "targets/trtllm/trtllm_reader.h"

namespace transload {

struct TrtllmFolder {
  TrtllmCheckpoint checkpoint;
  std::vector<std::string> warnings;
};

// Whether the rank manifests were written with other options: names the first pair that differs, and the field. Manifests that
// are missing say nothing. Throws bad_json, config_missing and config_invalid for a manifest that is malformed.
std::optional<std::string> differing_manifests(const std::filesystem::path& folder);

// Takes the layout from the first manifest: call differing_manifests before. Throws what open_trtllm throws, and usage for baked
// weights of a layout that nobody names, or that a manifest contradicts.
TrtllmFolder open_trtllm_folder(const std::filesystem::path& folder, std::optional<QuantLayout> layout);

// "none", "int8 deferred", "int4 baked sm80".
std::string quantisation_text(const TrtllmOptions& options);

}  // namespace transload
