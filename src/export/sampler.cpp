// Chooses a token from a row of logits: greedy, or a draw from the softmax of the candidates that the filters keep.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "transload/error.h"
#include "transload/generate.h"

namespace transload {
namespace {

struct Candidate {
  int32_t id = 0;
  double weight = 0;  // exp((logit - best logit) / temperature): the best has 1
};

bool better(const Candidate& a, const Candidate& b) { return a.weight != b.weight ? a.weight > b.weight : a.id < b.id; }

[[noreturn]] void refuse(const char* option, double got, const char* expected) {
  throw Error(ErrorCode::usage, fmt::format("sampling option '{}': got {}, expected {}", option, got, expected));
}

std::mt19937_64 random_source(const std::optional<uint64_t>& seed) {
  if (seed) return std::mt19937_64(*seed);
  std::random_device device;
  return std::mt19937_64(uint64_t{device()} << 32 | device());
}

// Keeps the k best. Weights can be equal where logits are not, so the cut goes by logit.
void keep_best(std::vector<Candidate>& kept, std::span<const float> logits, uint32_t k) {
  if (k == 0 || k >= kept.size()) return;
  std::nth_element(kept.begin(), kept.begin() + k, kept.end(), [&](const Candidate& a, const Candidate& b) {
    const float left = logits[static_cast<size_t>(a.id)];
    const float right = logits[static_cast<size_t>(b.id)];
    return left != right ? left > right : a.id < b.id;
  });
  kept.resize(k);
}

double total_weight(const std::vector<Candidate>& kept) {
  double total = 0;
  for (const Candidate& candidate : kept) total += candidate.weight;
  return total;
}

// Keeps the smallest set of best candidates whose share of the total reaches p.
void keep_nucleus(std::vector<Candidate>& kept, double p) {
  const double total = total_weight(kept);
  const double wanted = p * total;
  // All candidates lighter than this weigh less than 1 - p together, so the set needs none of them; most are never sorted.
  const double least = (total - wanted) / static_cast<double>(kept.size());
  std::erase_if(kept, [&](const Candidate& candidate) { return candidate.weight < least; });
  std::sort(kept.begin(), kept.end(), better);
  double reached = 0;
  size_t count = 0;
  while (count < kept.size() && reached < wanted) reached += kept[count++].weight;
  kept.resize(count);
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(random_source(options.seed)) {
  // Written so that NaN is refused.
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    refuse("temperature", options.temperature, "a number of at least 0");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("top_p", options.top_p, "more than 0 and at most 1");
  if (!(options.min_p >= 0 && options.min_p <= 1)) refuse("min_p", options.min_p, "0 to 1");
}

int32_t Sampler::choose(std::span<const float> logits) {
  if (logits.empty()) throw Error(ErrorCode::usage, "no logits: got 0, expected one for each token of the vocabulary");
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]))
      throw Error(ErrorCode::numeric_fault, fmt::format("logit of token {}: got NaN, expected a number", i));
    if (logits[i] > logits[best]) best = i;
  }
  if (std::isinf(logits[best])) {
    throw Error(ErrorCode::numeric_fault, fmt::format("logit of token {}: got {}, expected a finite one", best, logits[best]));
  }
  if (options_.temperature == 0) return static_cast<int32_t>(best);

  std::vector<Candidate> kept(logits.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    const double below_best = static_cast<double>(logits[i]) - static_cast<double>(logits[best]);
    kept[i] = {static_cast<int32_t>(i), std::exp(below_best / options_.temperature)};
  }
  keep_best(kept, logits, options_.top_k);
  if (options_.top_p < 1) keep_nucleus(kept, options_.top_p);
  std::erase_if(kept, [&](const Candidate& candidate) { return candidate.weight < options_.min_p || candidate.weight == 0; });

  // In the order of ids, so that rounding which swaps two candidates of nearly equal weight moves no others.
  std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  // The top 53 bits as a fraction in [0, 1): the distributions of <random> are not the same in every library.
  const double drawn = static_cast<double>(random_() >> 11) * 0x1p-53 * total_weight(kept);
  double passed = 0;
  for (const Candidate& candidate : kept) {
    passed += candidate.weight;
    if (passed > drawn) return candidate.id;
  }
  return kept.back().id;
}

}  // namespace transload
