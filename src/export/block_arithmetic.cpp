// Attention by its definition, activation and routing as the reference has them; products come from the caller.
#include "export/block_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "runtime/activations.h"
#include "runtime/matmul.h"
#include "runtime/reference_experts.h"

namespace transload {

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

void combine(const Mlp& mlp, Values& gate, Values& up) {
  activate_gate(mlp, gate.data(), gate.size());
  multiply_by_up(mlp, up.data(), gate.data(), gate.size());
}

void add_weighted_rows(Values& sum, const Values& values, const std::vector<float>& row_weights) {
  const uint64_t width = sum.size() / kBlockRows;
  for (uint64_t r = 0; r < kBlockRows; ++r) add_scaled(sum.data() + r * width, values.data() + r * width, row_weights[r], width);
}

Values route(const Values& logits, double jitter) {
  const uint64_t experts = logits.size() / kBlockRows;
  Values routing(logits.size());
  for (uint64_t r = 0; r < kBlockRows; ++r) {
    sparse_mixer(std::span(logits).subspan(r * experts, experts), jitter, routing.data() + r * experts);
  }
  return routing;
}

std::vector<float> weights_of(uint64_t expert, const Values& routing) {
  std::vector<float> weights = columns(routing, routing.size() / kBlockRows, expert, expert + 1);
  const bool any = std::any_of(weights.begin(), weights.end(), [](float weight) { return weight != 0; });
  if (!any) weights.clear();
  return weights;
}

}  // namespace transload
