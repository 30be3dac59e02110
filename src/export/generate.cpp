// Generates tokens over a Decoder: one call for the prompt, then one for each token.
#include "transload/generate.h"

#include <algorithm>
#include <chrono>

namespace transload {
namespace {

using Clock = std::chrono::steady_clock;

double rate(uint64_t tokens, double seconds) { return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::length:
      return "length";
    case FinishReason::stop:
      return "stop";
    case FinishReason::context:
      return "context";
  }
  return "";
}

double GenerateSummary::prompt_tokens_per_second() const { return rate(prompt_tokens, prompt_seconds); }

double GenerateSummary::tokens_per_second() const {
  const uint64_t chosen = tokens.size() + (stop_token ? 1 : 0);
  return chosen < 2 ? 0 : rate(chosen - 1, decode_seconds);
}

GenerateSummary generate(Decoder& decoder, std::span<const int32_t> prompt, const GenerateOptions& options, Sampler& sampler,
                         const std::function<void(int32_t token)>& on_token) {
  GenerateSummary summary;
  summary.prompt_tokens = prompt.size();
  int32_t token = 0;
  const auto sink = [&](uint64_t, std::span<const float> logits) {
    token = sampler.choose(logits);
    if (options.top_logits > 0) summary.top_logits.push_back(top_logits(logits, options.top_logits));
  };
  Clock::time_point start = Clock::now();
  decoder.read(prompt, sink);
  summary.prompt_seconds = std::chrono::duration<double>(Clock::now() - start).count();

  start = Clock::now();
  while (summary.tokens.size() < options.max_new_tokens) {
    if (on_token) on_token(token);
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end()) {
      summary.stop_token = token;
      summary.finish = FinishReason::stop;
      break;
    }
    summary.tokens.push_back(token);
    if (summary.tokens.size() == options.max_new_tokens) break;
    if (decoder.position() >= decoder.capacity()) {
      summary.finish = FinishReason::context;
      break;
    }
    decoder.read({&summary.tokens.back(), 1}, sink);
  }
  summary.decode_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return summary;
}

}  // namespace transload
