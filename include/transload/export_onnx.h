// Exports a checkpoint as a bundle of static-shape ONNX decode-step graphs with one shared weight file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "transload/checkpoint.h"
#include "transload/progress.h"
#include "transload/step_options.h"
#include "transload/tensor_warning.h"

namespace transload {

struct ExportOnnxOptions {
  StepOptions step;                // query and context are taken from the lists below
  std::vector<uint32_t> contexts;  // empty: 1,024, or the model's own maximum when that is less
  std::vector<uint32_t> queries{1};
  bool overwrite = false;
  bool strict = false;   // NaN or f16 overflow in any tensor is an error (numeric_fault), nothing is left behind
  bool dry_run = false;  // plan only: nothing is written, nothing but headers and tensors below 1 KiB is read
  bool explain = false;  // fills ExportSummary::explanation
  uint32_t workers = 0;  // 0: one per core, at most 8
  Progress progress;
};

struct FileSummary {
  std::string name;
  uint64_t bytes = 0;
};

// KV cache of one layer at one context, keys and values; bytes = elements * size of an element.
struct KvLayerSummary {
  uint32_t layer = 0;
  std::string attention;  // "sliding" or "full"
  std::string rule;       // "ring", "roll" or "append"
  uint32_t slots = 0;
  uint64_t elements = 0;
};
struct KvSummary {
  uint32_t context = 0;
  std::vector<KvLayerSummary> layers;
  uint64_t hybrid_elements = 0;
  uint64_t uniform_elements = 0;  // C slots in every layer
};

struct ExportSummary {
  std::string family;
  uint64_t tensor_count = 0;     // stored tensors that the bundle is made from
  uint64_t parameter_count = 0;  // elements of those
  std::vector<FileSummary> files;
  uint64_t total_bytes = 0;
  uint64_t source_bytes = 0;         // bytes of those as stored
  std::vector<KvSummary> kv;         // one for each context
  uint64_t worker_memory_bytes = 0;  // buffers of all workers
  double write_seconds = 0;          // until the last write
  double flush_seconds = 0;          // fsync
  std::vector<TensorWarning> numeric_warnings;
  std::vector<std::string> warnings;
  std::string explanation;  // graph text and pieces, with `explain`
};

// Writes <destination>/step_q<q>_c<C>.onnx for every pair, weights.bin, contract.json, host.safetensors, manifest.json and copies
// of the tokenizer files. All or nothing. A process that wants a file-size limit to be an Error must ignore SIGXFSZ (the command
// does). Throws Error: what build_model throws; usage (options that do not apply, a destination that holds the checkpoint);
// destination_exists; op_unsupported and format_limit from the writer; numeric_fault with `strict`; bad_offset and io_failure
// while reading or writing.
ExportSummary export_onnx(const Checkpoint& checkpoint, const std::filesystem::path& destination,
                          const ExportOnnxOptions& options);

// The summary as one JSON object (what the command prints with --json), without the explanation.
std::string summary_json(const ExportSummary& summary);

}  // namespace transload
