// Attention, activation and routing by their definitions; products come from the caller.
#include "export/block_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "runtime/activations.h"
#include "runtime/matmul.h"

namespace transload {
namespace {

// Sparse mixer: twice the expert with the largest logit, weighted by its softmax among those not far below it.
std::vector<ExpertChoice> choose(std::span<const float> logits, double jitter) {
  std::vector<ExpertChoice> chosen;
  for (int round = 0; round < 2 && chosen.size() < logits.size(); ++round) {
    const auto taken = [&](uint64_t e) { return !chosen.empty() && chosen.front().expert == e; };
    float largest = -std::numeric_limits<float>::infinity();
    ExpertChoice best;
    for (uint64_t e = 0; e < logits.size(); ++e) {
      if (taken(e) || !(logits[e] > largest)) continue;
      largest = logits[e];
      best.expert = e;
    }
    float sum = 0;
    for (uint64_t e = 0; e < logits.size(); ++e) {
      const double room = 2 * jitter * std::max(std::abs(logits[e]), largest);
      if (!taken(e) && largest - logits[e] <= room) sum += std::exp(logits[e] - largest);
    }
    best.weight = 1 / sum;
    chosen.push_back(best);
  }
  return chosen;
}

}  // namespace

// A hash of the index (splitmix64).
Values pseudo_random_rows(uint64_t width, uint64_t seed) {
  Values values(kBlockRows * width);
  for (uint64_t i = 0; i < values.size(); ++i) {
    uint64_t z = (seed << 40) + (i + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    values[i] = static_cast<float>(static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1);
  }
  return values;
}

void add(Values& sum, const Values& values) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

Values columns(const Values& rows, uint64_t width, uint64_t begin, uint64_t end) {
  Values out;
  out.reserve(kBlockRows * (end - begin));
  for (uint64_t r = 0; r < kBlockRows; ++r) {
    out.insert(out.end(), rows.begin() + static_cast<std::ptrdiff_t>(r * width + begin),
               rows.begin() + static_cast<std::ptrdiff_t>(r * width + end));
  }
  return out;
}

Values attend(const Values& q, const Values& k, const Values& v, uint64_t heads, uint64_t kv_heads, uint64_t head) {
  Values out(kBlockRows * heads * head);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head)));
  for (uint64_t h = 0; h < heads; ++h) {
    const uint64_t kv = h / (heads / kv_heads);
    const auto key = [&](const Values& from, uint64_t row) { return from.data() + (row * kv_heads + kv) * head; };
    for (uint64_t row = 0; row < kBlockRows; ++row) {
      const float* query = q.data() + (row * heads + h) * head;
      std::vector<float> scores(row + 1);
      for (uint64_t t = 0; t <= row; ++t) scores[t] = scale * dot_product(query, key(k, t), head);
      const float largest = *std::max_element(scores.begin(), scores.end());
      float sum = 0;
      for (float& score : scores) sum += score = std::exp(score - largest);
      float* target = out.data() + (row * heads + h) * head;
      for (uint64_t t = 0; t <= row; ++t) add_scaled(target, key(v, t), scores[t] / sum, head);
    }
  }
  return out;
}

void combine(Values& gate, Values& up, const BlockRules& rules) {
  if (rules.limit) {
    for (float& value : gate) value = std::min(value, *rules.limit);
    for (float& value : up) value = std::clamp(value, -*rules.limit, *rules.limit);
  }
  activate(rules.activation, gate.data(), gate.size());
  for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] + rules.up_offset;
}

void add_weighted_rows(Values& sum, const Values& values, const std::vector<float>& row_weights) {
  const uint64_t width = sum.size() / kBlockRows;
  for (uint64_t r = 0; r < kBlockRows; ++r) add_scaled(sum.data() + r * width, values.data() + r * width, row_weights[r], width);
}

std::vector<float> weights_of(uint64_t expert, const std::vector<std::vector<ExpertChoice>>& choices) {
  std::vector<float> weights(kBlockRows);
  bool any = false;
  for (uint64_t r = 0; r < kBlockRows; ++r) {
    for (const ExpertChoice& choice : choices[r]) {
      if (choice.expert != expert) continue;
      weights[r] = choice.weight;
      any = true;
    }
  }
  if (!any) weights.clear();
  return weights;
}

std::vector<std::vector<ExpertChoice>> choose_experts(const Values& logits, double jitter) {
  const uint64_t experts = logits.size() / kBlockRows;
  std::vector<std::vector<ExpertChoice>> choices;
  for (uint64_t r = 0; r < kBlockRows; ++r) choices.push_back(choose(std::span(logits).subspan(r * experts, experts), jitter));
  return choices;
}

}  // namespace transload
