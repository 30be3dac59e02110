// Routing of the reference: which experts a token goes through, and with which weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace transload {

inline constexpr size_t kMixedExperts = 2;  // that sparse mixer chooses for a token

// The weights of every expert for one token, 0 where it is not chosen; `logits` holds at least two numbers.
void sparse_mixer(std::span<const float> logits, double jitter, float* weights);

}  // namespace transload
