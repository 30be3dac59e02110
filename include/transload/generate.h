// Text generation over a Decoder, in token ids: sampling, stop tokens, speed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transload/decoder.h"

namespace transload {

struct SamplingOptions {
  double temperature = 0;        // 0: the best token
  uint32_t top_k = 0;            // keep the k best; 0: all
  double top_p = 1;              // keep the smallest set whose probability reaches p, 0 < p <= 1
  double min_p = 0;              // keep tokens with at least min_p times the probability of the best, 0 <= min_p <= 1
  std::optional<uint64_t> seed;  // equal seeds give equal draws on every machine; none: different each time
};

// Filters apply in the order top_k, top_p, min_p, on probabilities at the temperature. Ties go to the lower id.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);  // throws usage for values out of range
  // Throws numeric_fault for a NaN, and above temperature 0 when the largest logit is infinite; usage for no logits.
  int32_t choose(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

struct GenerateOptions {
  uint32_t max_new_tokens = 128;
  std::vector<int64_t> stop_tokens;  // generation ends after any of them
  uint32_t top_logits = 0;           // best tokens to note at each step, before sampling
};

enum class FinishReason : uint8_t { length, stop, context };
std::string_view finish_reason_name(FinishReason reason);

struct GenerateSummary {
  uint64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;        // without the stop token
  std::optional<int32_t> stop_token;  // the one that ended it
  // For each token chosen, the stop token too: what GenerateOptions::top_logits asks for.
  std::vector<std::vector<ScoredToken>> top_logits;
  FinishReason finish = FinishReason::length;
  double prompt_seconds = 0;
  double decode_seconds = 0;  // of the tokens after the first, which comes from the prompt's own call
  double prompt_tokens_per_second() const;
  double tokens_per_second() const;  // 0 when fewer than two were generated
};

// Reads `prompt` after what the decoder has read and generates; `on_token` is called as each token is chosen, also for the stop
// token. The last token chosen is not read. Throws what Decoder::read and Sampler throw.
GenerateSummary generate(Decoder& decoder, std::span<const int32_t> prompt, const GenerateOptions& options, Sampler& sampler,
                         const std::function<void(int32_t token)>& on_token);

// The summary as one JSON object, with what the decoder is and holds. `prompt` and the times are the call's own.
std::string generate_json(const GenerateSummary& summary, std::span<const int32_t> prompt, const Decoder& decoder,
                          uint64_t peak_memory_bytes);

}  // namespace transload
