// Verifies a TensorRT-LLM checkpoint against the Hugging Face one: structure, every tensor, and blocks run as the runtime would.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "transload/progress.h"
#include "transload/trtllm.h"

namespace transload {

struct VerifyTrtllmOptions {
  std::optional<std::filesystem::path> checkpoint;  // none: digests and structure only
  std::optional<std::filesystem::path> config;      // instead of the checkpoint's config.json
  QuantLayout layout = QuantLayout::plain;          // of baked weights, as in ImportTrtllmOptions
  bool layout_given = false;
  uint32_t workers = 0;
  Progress progress;  // counts bytes compared
};

// One block run from the rank files in fp32, ranks summed, against the unsplit layer of the checkpoint.
struct TrtllmBlockResult {
  std::string block;  // "attention", "mlp", "experts", "lm_head"
  uint32_t layer = 0;
  double relative = 0;  // largest difference / largest expected value
  double allowed = 0;
  double quantisation = 0;  // baked weights: the same against the unquantised layer; for information
};

struct VerifyTrtllmReport {
  std::string folder;
  std::string checkpoint;  // empty: digests and structure only
  std::string architecture;
  std::string format;
  std::string dtype;
  std::string quantisation;  // "none", "int8 deferred", "int4 baked sm80", …
  TrtllmMapping mapping;
  uint64_t digests_checked = 0;
  uint64_t tensors_compared = 0;
  uint64_t bytes_compared = 0;
  double worst_steps = 0;  // weight-only: the largest difference in quantisation steps; at most 1
  std::string worst_tensor;
  std::vector<TrtllmBlockResult> blocks;
  std::vector<std::string> notes;
  std::optional<std::string> failure;  // the first difference, with file, tensor and offset
  double seconds = 0;
  bool passed() const { return !failure; }
};

bool is_trtllm_folder(const std::filesystem::path& folder);

VerifyTrtllmReport verify_trtllm(const std::filesystem::path& folder, const VerifyTrtllmOptions& options);

std::string verify_trtllm_json(const VerifyTrtllmReport& report);
std::string verify_trtllm_text(const VerifyTrtllmReport& report);
// The JSON in a file, whole or not at all. Throws io_failure.
void write_verify_trtllm_report(const std::filesystem::path& path, const VerifyTrtllmReport& report);

}  // namespace transload
