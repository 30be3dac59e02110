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
  std::optional<QuantLayout> layout;                // of baked weights, as in ImportTrtllmOptions
  uint32_t threads = 0;                             // 0: one per core, at most 8
  Progress progress;                                // counts bytes compared
};

// One block run from the rank files in fp32, ranks summed, against the unsplit layer of the checkpoint.
struct TrtllmBlockResult {
  std::string block;                   // "attention", "mlp", "experts", "lm_head"
  std::optional<uint32_t> layer = {};  // none: of the whole model
  double relative = 0;                 // largest difference / largest expected value
  double allowed = 0;
  std::optional<double> quantisation = {};  // of baked weights: `relative` to the unquantised layer; for information
  // Values that are NaN or infinite in the checkpoint's own block, and so left out of `relative`; likewise of `quantisation`.
  uint64_t not_comparable = 0;
  uint64_t values = 0;
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
  uint64_t bytes_hashed = 0;
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

// Whether `folder` holds a TensorRT-LLM checkpoint, judged by its config.json, and not a bundle.
bool is_trtllm_folder(const std::filesystem::path& folder);

// A difference is a result, not an exception: see VerifyTrtllmReport::failure. Throws Error for what cannot be verified: what
// import_trtllm throws for a source, what build_model throws for the checkpoint, usage (a config without a checkpoint, a layout
// that nobody names).
VerifyTrtllmReport verify_trtllm(const std::filesystem::path& folder, const VerifyTrtllmOptions& options);

std::string verify_trtllm_json(const VerifyTrtllmReport& report);
std::string verify_trtllm_text(const VerifyTrtllmReport& report);
// The JSON in a file, whole or not at all. Throws io_failure.
void write_verify_trtllm_report(const std::filesystem::path& path, const VerifyTrtllmReport& report);

}  // namespace transload
