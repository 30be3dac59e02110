// A planned bundle: its graphs, what they share, and the plan that writes them; nothing is written yet.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "decode/decode_step.h"
#include "io/bundle_files.h"
#include "io/json.h"
#include "transload/checkpoint.h"
#include "transload/decoder_model.h"
#include "transload/export_onnx.h"
#include "weights/plan.h"

namespace transload {

struct BundleStep {
  std::string file;  // step_q<q>_c<C>.onnx
  DecodeStep step;
};

struct Bundle {
  std::vector<BundleStep> steps;  // q by q for each context, in the order asked for
  std::optional<EmbeddingPlace> embedding;
  std::string tokenizer;  // file in the bundle, or empty
  std::vector<int64_t> eos_tokens;
  std::set<std::string> sources;               // stored tensors that some constant is made from
  std::vector<TensorWarning> inline_warnings;  // of the constants inside the graphs, which the executor does not see
  Plan plan;  // everything but the manifest, which carries the digests the plan's execution gives
};

// Throws usage for options that do not apply to the model.
Bundle plan_onnx_bundle(const Checkpoint& checkpoint, const DecoderModel& model, const ExportOnnxOptions& options);

// docs/contract.md describes the object.
Json contract_json(const DecoderModel& model, const Bundle& bundle, const ExportOnnxOptions& options);

// Name of the tensor of host.safetensors.
std::string inv_freq_tensor_name(const RopeGroup& group);

// Copies of the config that was read and of the checkpoint's tokenizer and generation files (from a GGUF: its tokenizer metadata
// as tokenizer.gguf), appended to `plan`. Returns the file a tokenizer is made from, or an empty string.
std::string plan_tokenizer_files(const Checkpoint& checkpoint, Plan& plan);

// Also for a symbolic link to nothing and for what is no file: those are errors to report, not files that are absent.
bool has_entry(const std::filesystem::path& path);

// Names of option values as the command and the manifest spell them.
std::string_view cache_layout_name(CacheLayout layout);

}  // namespace transload
