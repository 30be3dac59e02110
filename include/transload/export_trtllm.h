// Exports a checkpoint as a TensorRT-LLM checkpoint: config.json and one rank<N>.safetensors for each rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "transload/checkpoint.h"
#include "transload/progress.h"
#include "transload/tensor_warning.h"
#include "transload/trtllm.h"

namespace transload {

struct ExportTrtllmOptions {
  TrtllmOptions trtllm;
  // Only these ranks: each file is staged and renamed by itself inside the folder, beside what is there; config.json must be
  // equal if there is one, and rank files that are there are refused without `overwrite` or `resume`. Empty: all ranks, the
  // folder appears whole or not at all.
  std::vector<uint32_t> ranks;
  bool resume = false;  // as `ranks` (all of them when none are named), but keeps rank files whose manifest and digests are right
  bool overwrite = false;
  // NaN, or f16 overflow, in any tensor is an error (numeric_fault); nothing is left behind, or with `ranks` or `resume` nothing
  // of that rank.
  bool strict = false;
  bool dry_run = false;  // plan only: headers are read, with `resume` also the rank files that are there; nothing is written
  bool explain = false;
  uint32_t workers = 0;  // 0: one per core, at most 8
  Progress progress;
};

struct RankSummary {
  uint32_t rank = 0;
  uint32_t stage = 0;
  uint32_t first_layer = 0;
  uint32_t end_layer = 0;
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of the rank file
  bool kept = false;   // found complete by `resume`
};

// Of one quantised tensor of one rank, against the values that were quantised.
struct QuantTensorError {
  std::string tensor;
  uint32_t rank = 0;
  double max_abs = 0;
  double sqnr_db = 0;  // 10 log10(signal / noise); +inf when equal
  double signal = 0;   // sum of squares of the values
  double noise = 0;    // sum of squares of the differences
};
// Of all quantised tensors of one kind.
struct QuantKindError {
  std::string kind;  // "attention.qkv.weight"
  uint64_t tensors = 0;
  double max_abs = 0;
  double sqnr_db = 0;  // over all values
};

struct ExportTrtllmSummary {
  std::string family;
  std::string architecture;
  std::string format;
  std::string dtype;
  uint64_t tensor_count = 0;  // stored tensors that are read, which for kept ranks are none
  uint64_t parameter_count = 0;
  uint64_t source_bytes = 0;
  uint64_t total_bytes = 0;  // of everything written
  std::vector<RankSummary> ranks;
  uint64_t worker_memory_bytes = 0;
  double write_seconds = 0;
  double flush_seconds = 0;
  std::vector<TensorWarning> numeric_warnings;  // each with the rank file as `file`
  std::vector<QuantTensorError> quant_errors;
  std::vector<std::string> warnings;
  std::string explanation;
};

// Writes config.json, and for each rank rank<N>.safetensors and rank<N>.manifest.json, which holds the digests of both. Throws
// Error: what build_model throws; arch_unknown, dtype_unsupported, format_limit, shard_indivisible, quant_unsupported, usage,
// destination_exists, numeric_fault with `strict`, bad_offset and io_failure while reading or writing.
ExportTrtllmSummary export_trtllm(const Checkpoint& checkpoint, const std::filesystem::path& destination,
                                  const ExportTrtllmOptions& options);

// In order of first appearance.
std::vector<QuantKindError> quant_kinds(const ExportTrtllmSummary& summary);

std::string export_trtllm_json(const ExportTrtllmSummary& summary);

}  // namespace transload
