// Negative log likelihood of token ids: each row of logits is asked for the token that follows.
#include "transload/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "transload/error.h"

namespace transload {
namespace {

// log(sum(exp(logits))). The terms are fp32, good to 1e-7 of the result; their sum is double, since a large vocabulary would lose
// digits.
double logsumexp_of(std::span<const float> logits) {
  const float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - best));
  return static_cast<double>(best) + std::log(sum);
}

void require_ids(std::span<const int32_t> ids, uint32_t vocab_size) {
  if (ids.size() < 2) throw Error(ErrorCode::usage, fmt::format("too few tokens: got {}, expected at least 2", ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && static_cast<uint32_t>(ids[i]) < vocab_size) continue;
    throw Error(ErrorCode::usage,
                fmt::format("token {}: id outside the vocabulary: got {}, expected 0 to {}", i, ids[i], vocab_size - 1));
  }
}

}  // namespace

Evaluation evaluate(Decoder& decoder, std::span<const int32_t> ids, const EvaluateOptions& options) {
  require_ids(ids, decoder.info().vocab_size);
  decoder.reset();
  if (decoder.capacity() < 2) {
    throw Error(ErrorCode::usage,
                fmt::format("context holds nothing to predict: got {}, expected at least 2", decoder.capacity()));
  }
  const uint64_t chunk = options.chunk == 0 ? decoder.capacity() : options.chunk;
  if (chunk < 2 || chunk > decoder.capacity()) {
    throw Error(ErrorCode::usage, fmt::format("tokens in a chunk: got {}, expected 2 to {}", chunk, decoder.capacity()));
  }
  const auto start = std::chrono::steady_clock::now();
  Evaluation out;
  out.tokens = ids.size();
  for (uint64_t begin = 0; begin < ids.size(); begin += chunk) {
    const std::span<const int32_t> piece = ids.subspan(begin, std::min<uint64_t>(chunk, ids.size() - begin));
    ++out.chunks;
    if (piece.size() < 2 && options.top == 0) continue;
    decoder.reset();
    // Nothing in the piece follows its last token, so only what it would say next is a reason to read it.
    decoder.read(
        piece.first(options.top > 0 ? piece.size() : piece.size() - 1),
        [&](uint64_t position, std::span<const float> logits) {
          const double logsumexp = logsumexp_of(logits);
          if (options.top > 0) {
            out.top_logits.push_back(top_logits(logits, options.top));
            out.logsumexp.push_back(static_cast<float>(logsumexp));
          }
          if (position + 1 == piece.size()) return;
          const double nll = logsumexp - static_cast<double>(logits[static_cast<size_t>(piece[position + 1])]);
          if (!std::isfinite(nll)) {
            throw Error(ErrorCode::numeric_fault,
                        fmt::format("logits at position {} of chunk {}: got a negative log likelihood of "
                                    "{}, expected a finite one",
                                    position, out.chunks - 1, nll));
          }
          out.nll_sum += nll;
          out.nll.push_back(static_cast<float>(nll));
          if (options.progress) options.progress(begin + position + 2, ids.size());
        },
        true);
  }
  const bool ends_alone = ids.size() % chunk == 1;  // a last token that nothing predicts has not been reported
  if (ends_alone && options.progress) options.progress(ids.size(), ids.size());
  out.predictions = out.nll.size();
  out.mean_nll = out.nll_sum / static_cast<double>(out.predictions);
  out.perplexity = std::exp(out.mean_nll);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace transload
