// The best tokens of a row of logits.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "transload/decoder.h"

namespace transload {

std::vector<ScoredToken> top_logits(std::span<const float> logits, uint32_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  // NaN compares with nothing, which a sort must not see: it ranks last.
  const auto rank = [&](int32_t id) {
    const float logit = logits[static_cast<size_t>(id)];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  const auto kept = ids.begin() + static_cast<ptrdiff_t>(std::min<size_t>(count, ids.size()));
  std::partial_sort(ids.begin(), kept, ids.end(),
                    [&](int32_t a, int32_t b) { return rank(a) != rank(b) ? rank(a) > rank(b) : a < b; });
  std::vector<ScoredToken> best;
  for (auto id = ids.begin(); id != kept; ++id) best.push_back({*id, logits[static_cast<size_t>(*id)]});
  return best;
}

}  // namespace transload
