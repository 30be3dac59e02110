// What the blocks of a decoder compute between two products with weights, for a few rows in fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "transload/decoder_model.h"

namespace transload {

inline constexpr uint64_t kBlockRows = 5;
using Values = std::vector<float>;  // [kBlockRows, width]

// In [-1, 1), equal on every machine.
Values pseudo_random_rows(uint64_t width, uint64_t seed);
void add(Values& sum, const Values& values);
// Columns begin..end-1 of rows of `width`.
Values columns(const Values& rows, uint64_t width, uint64_t begin, uint64_t end);

// softmax(q k^T / sqrt(head)) v over the rows up to one's own; each key/value head serves heads / kv_heads queries.
Values attend(const Values& q, const Values& k, const Values& v, uint64_t heads, uint64_t kv_heads, uint64_t head);

// act(min(gate, limit)) * (clamp(up, -limit, limit) + offset), in place of `gate`.
void combine(const Mlp& mlp, Values& gate, Values& up);

// For each row the weight of every expert, [kBlockRows, experts], by ExpertRouting::sparse_mixer; at least two experts.
Values route(const Values& logits, double jitter);
// For each row, the weight of `expert`; empty when no row chose it.
std::vector<float> weights_of(uint64_t expert, const Values& routing);
void add_weighted_rows(Values& sum, const Values& values, const std::vector<float>& row_weights);

}  // namespace transload
