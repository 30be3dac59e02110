// A golden file: what another implementation computes for a checkpoint, held against the reference.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/worker_pool.h"
#include "runtime/weight_matrix.h"
#include "transload/decoder_model.h"
#include "transload/verify.h"

namespace transload {

// Row-major f32 values; empty shape and values where the file has no such tensor.
struct GoldenValues {
  Shape shape;
  std::vector<float> values;
};

struct GoldenOutputs {
  std::filesystem::path path;
  std::vector<int32_t> tokens;  // prompt and continuation
  uint64_t prompt_tokens = 0;
  uint64_t read_tokens = 0;  // rows of logits: the tokens that were read
  GoldenValues logits;       // [read_tokens, vocab]
  GoldenValues hidden;       // [layers + 1, prompt, hidden]: input of layer 0, outputs of layers, last: after the final norm
  GoldenValues pre_norm;     // [prompt, hidden]
  GoldenValues keys;         // [layers, kv_heads, read_tokens, head_dim]
  GoldenValues values;
};

// `path`: a .safetensors file, or a folder that holds golden.safetensors. `tokens` and `logits` are needed. Throws file_missing,
// bad_header, bad_offset, tensor_missing, dtype_mismatch, shape_mismatch (another model), usage (ids outside the vocabulary).
GoldenOutputs read_golden(const std::filesystem::path& path, const DecoderModel& model);

// One pass of the reference over the golden's tokens; fills golden_layers and golden_head. The failure names the golden file.
std::optional<VerifyFailure> compare_golden(const GoldenOutputs& golden, const DecoderModel& model, WeightStore& store,
                                            WorkerPool& pool, VerifyReport& report);

}  // namespace transload
