// The summaries of generation and evaluation as JSON text.
#include <cmath>

#include "io/json.h"
#include "transload/evaluate.h"
#include "transload/generate.h"

namespace transload {
namespace {

Json ids_json(std::span<const int32_t> ids) {
  Json::Array out;
  for (const int32_t id : ids) out.push_back(id);
  return out;
}

void add_decoder(Json::Object& out, const Decoder& decoder, uint64_t peak_memory_bytes) {
  out.emplace_back("kind", decoder.info().kind);
  out.emplace_back("family", decoder.info().family);
  out.emplace_back("kv_bytes", decoder.kv_bytes());
  out.emplace_back("weight_bytes", decoder.info().weight_bytes);
  out.emplace_back("peak_memory_bytes", peak_memory_bytes);
}

// null for what was not measured or has no number in JSON.
Json number_or_null(bool known, double value) {
  Json out;
  if (known) out = value;
  return out;
}

}  // namespace

std::string generate_json(const GenerateSummary& summary, std::span<const int32_t> prompt, const Decoder& decoder,
                          uint64_t peak_memory_bytes) {
  Json stop_token;
  if (summary.stop_token) stop_token = *summary.stop_token;
  const double prompt_rate = summary.prompt_tokens_per_second();
  const double rate = summary.tokens_per_second();
  Json::Object out{{"prompt_tokens", ids_json(prompt)},
                   {"tokens", ids_json(summary.tokens)},
                   {"finish_reason", finish_reason_name(summary.finish)},
                   {"stop_token", std::move(stop_token)},
                   {"prompt_seconds", summary.prompt_seconds},
                   {"prompt_tokens_per_second", number_or_null(prompt_rate > 0, prompt_rate)},
                   {"decode_seconds", summary.decode_seconds},
                   {"tokens_per_second", number_or_null(rate > 0, rate)}};
  if (!summary.top_logits.empty()) {
    Json::Array steps;
    for (const std::vector<ScoredToken>& best : summary.top_logits) {
      Json::Array row;
      for (const ScoredToken& token : best) row.push_back(Json::Array{token.id, static_cast<double>(token.logit)});
      steps.push_back(std::move(row));
    }
    out.emplace_back("top_logits", std::move(steps));
  }
  add_decoder(out, decoder, peak_memory_bytes);
  return write_json(out, 0);
}

std::string evaluation_json(const Evaluation& evaluation, const Decoder& decoder, uint64_t peak_memory_bytes) {
  const double rate = static_cast<double>(evaluation.tokens) / evaluation.seconds;
  Json::Object out{{"tokens", evaluation.tokens},
                   {"predictions", evaluation.predictions},
                   {"chunks", evaluation.chunks},
                   {"nll_sum", evaluation.nll_sum},
                   {"mean_nll", evaluation.mean_nll},
                   {"perplexity", number_or_null(std::isfinite(evaluation.perplexity), evaluation.perplexity)},
                   {"seconds", evaluation.seconds},
                   {"tokens_per_second", number_or_null(std::isfinite(rate), rate)}};
  add_decoder(out, decoder, peak_memory_bytes);
  return write_json(out, 0);
}

}  // namespace transload
