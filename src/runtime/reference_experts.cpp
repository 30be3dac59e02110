// Sparse mixer, https://arxiv.org/abs/2409.12136, without the noise and the gradients of training.
#include "runtime/reference_experts.h"

#include <algorithm>
#include <cmath>

namespace transload {

void sparse_mixer(std::span<const float> logits, double jitter, float* weights) {
  const size_t count = logits.size();
  const float margin = 2 * static_cast<float>(jitter);
  size_t first = count;  // none yet
  const auto choose = [&] {
    size_t best = first == 0 ? 1 : 0;
    for (size_t i = best + 1; i < count; ++i) {
      if (i != first && logits[i] > logits[best]) best = i;
    }
    const float most = logits[best];
    float sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const float gap = most - logits[i];
      if (i != first && gap <= margin * std::max(std::abs(logits[i]), most)) sum += std::exp(-gap);
    }
    weights[best] = 1 / sum;
    return best;
  };
  std::fill_n(weights, count, 0.0F);
  first = choose();
  choose();
}

}  // namespace transload
