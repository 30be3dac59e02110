// Attention of the reference: key and value history, rotary embedding, scores and softmax over every key of the window.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/worker_pool.h"
#include "transload/decoder_model.h"

namespace transload {

// Keys and values of one layer, [tokens, kv_heads * head_dim] each. Tokens that no later one can see are dropped in bulk, so a
// window holds at most about twice its length.
class KeyValueHistory {
 public:
  KeyValueHistory(uint64_t width, std::optional<uint32_t> window) : width_(width), window_(window) {}

  void reset();
  // Makes room for `count` tokens from `position` on; tokens stored from there before are overwritten.
  void extend(uint64_t position, uint64_t count);
  float* key(uint64_t position) { return keys_.data() + (position - first_) * width_; }
  float* value(uint64_t position) { return values_.data() + (position - first_) * width_; }
  const float* key(uint64_t position) const { return keys_.data() + (position - first_) * width_; }
  const float* value(uint64_t position) const { return values_.data() + (position - first_) * width_; }
  uint64_t width() const { return width_; }
  uint64_t bytes() const { return 2 * tokens_ * width_ * sizeof(float); }

 private:
  uint64_t width_;
  std::optional<uint32_t> window_;
  uint64_t first_ = 0;  // position of the first token held
  uint64_t tokens_ = 0;
  std::vector<float> keys_;
  std::vector<float> values_;
};

// cos and sin of consecutive positions for one rope group, [rows, width / 2] each. The angle is a product in fp32; its cosine is
// taken in double and rounded once.
class RopeTable {
 public:
  RopeTable(const RopeGroup& group, uint64_t first_position, uint64_t rows);
  // Turns the first `width` elements of one head of the token `first_position + row`.
  void turn(float* head, uint64_t row) const;

 private:
  uint64_t half_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

// out [rows, heads * head_dim] = softmax(scale q k^T) v for the tokens position .. position + rows - 1, whose keys and values
// are already in `history`; q is laid out as `out`. `scratch` grows as needed and may be reused.
void attend(WorkerPool& pool, const Attention& attention, const KeyValueHistory& history, uint64_t position, uint64_t rows,
            const float* q, float* out, std::vector<float>& scratch);

}  // namespace transload
