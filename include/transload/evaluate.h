// Negative log likelihood and perplexity of token ids under a Decoder: to compare exports and quantisations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "transload/decoder.h"
#include "transload/progress.h"

namespace transload {

struct EvaluateOptions {
  uint32_t chunk = 0;  // tokens that see each other; longer inputs are cut, each piece from an empty cache. 0: the capacity
  Progress progress;   // counts tokens, not bytes
  uint32_t top = 0;    // best tokens to keep of every row of logits; above 0 the last token of a chunk is read, too
};

struct Evaluation {
  uint64_t tokens = 0;       // of the input
  uint64_t predictions = 0;  // tokens that have a prediction: all but the first of each chunk
  uint64_t chunks = 0;
  double nll_sum = 0;     // nats
  double mean_nll = 0;    // nll_sum / predictions
  double perplexity = 0;  // exp(mean_nll)
  double seconds = 0;
  std::vector<float> nll;  // [predictions]
  // With EvaluateOptions::top, for every token read: its best next tokens [top, or the vocabulary if smaller], and the logarithm
  // of the sum of the exponentials of all its logits.
  std::vector<std::vector<ScoredToken>> top_logits;
  std::vector<float> logsumexp;
};

// Throws usage for fewer than two tokens, an id outside the vocabulary, or a chunk of one or beyond the capacity; numeric_fault
// for logits that give no probability; and what Decoder::read throws. What the decoder had read is forgotten.
Evaluation evaluate(Decoder& decoder, std::span<const int32_t> ids, const EvaluateOptions& options = {});

// The evaluation as one JSON object, without the list `nll`, with what the decoder is and holds.
std::string evaluation_json(const Evaluation& evaluation, const Decoder& decoder, uint64_t peak_memory_bytes);

// Writes the evaluation as a .safetensors file, whole or not at all: tokens i32 [n], nll f32 [predictions], and with `top`:
// top_ids i32 [n, top], top_values f32 [n, top], logsumexp f32 [n]. Throws io_failure.
void save_evaluation(const std::filesystem::path& path, std::span<const int32_t> ids, const Evaluation& evaluation);

// Token ids from a file: numbers separated by blanks, commas or line ends (a JSON list too), or the int32 tensor `tokens` of a
// .safetensors file. Throws file_missing, config_invalid (what is no number, with its byte offset), bad_header, bad_offset,
// tensor_missing, dtype_mismatch.
std::vector<int32_t> read_token_file(const std::filesystem::path& path);

}  // namespace transload
