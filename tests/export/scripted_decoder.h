// A decoder without a model: after token t it wants t + 1, modulo the vocabulary.
#pragma once

#include <vector>

#include "transload/decoder.h"
#include "transload/error.h"

namespace transload {

class ScriptedDecoder : public Decoder {
 public:
  explicit ScriptedDecoder(uint64_t capacity = 100) : capacity_(capacity) {
    info_.kind = "scripted";
    info_.family = "none";
    info_.vocab_size = kVocab;
  }
  const DecoderInfo& info() const override { return info_; }
  uint64_t position() const override { return position_; }
  uint64_t capacity() const override { return capacity_; }
  uint64_t kv_bytes() const override { return 8 * position_; }
  void reset() override {
    position_ = 0;
    ++resets;
  }
  void read(std::span<const int32_t> tokens, const LogitsSink& sink, bool every_row) override {
    if (tokens.empty() || position_ + tokens.size() > capacity_) throw Error(ErrorCode::usage, "tokens do not fit");
    reads.emplace_back(tokens.begin(), tokens.end());
    for (size_t i = 0; i < tokens.size(); ++i, ++position_) {
      if (every_row || i + 1 == tokens.size()) sink(position_, logits_after(tokens[i]));
    }
  }
  // The next token has `best`, every other token 0.
  std::vector<float> logits_after(int32_t token) const {
    std::vector<float> logits(kVocab, 0.0F);
    logits[static_cast<size_t>(token + 1) % kVocab] = best;
    return logits;
  }

  static constexpr uint32_t kVocab = 64;
  float best = 3;
  std::vector<std::vector<int32_t>> reads;
  int resets = 0;

 private:
  DecoderInfo info_;
  uint64_t capacity_;
  uint64_t position_ = 0;
};

}  // namespace transload
