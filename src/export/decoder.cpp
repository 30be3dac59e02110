// Decoders over the reference forward pass and over the graphs of a written bundle.
#include "transload/decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/worker_pool.h"
#include "export/bundle.h"
#include "export/bundle_runner.h"
#include "export/eos_tokens.h"
#include "runtime/reference.h"
#include "runtime/token_ids.h"
#include "runtime/weight_matrix.h"
#include "transload/checkpoint.h"
#include "transload/decoder_model.h"
#include "transload/error.h"

namespace transload {
namespace {

void require_readable(std::span<const int32_t> tokens, uint32_t vocab_size, uint64_t room, uint64_t position) {
  if (tokens.empty()) throw Error(ErrorCode::usage, "nothing to read: got 0 tokens, expected at least 1");
  require_token_ids(tokens, vocab_size);
  if (tokens.size() > room) {
    throw Error(ErrorCode::usage,
                fmt::format("tokens do not fit: got {}, expected at most {}", position + tokens.size(), position + room));
  }
}

class CheckpointDecoder : public Decoder {
 public:
  CheckpointDecoder(const Checkpoint& checkpoint, const DecoderOptions& options)
      : model_(build_model(checkpoint, {options.context})), pool_(options.threads), reference_(model_, store_, pool_) {
    if (options.context > model_.max_positions) {
      throw Error(ErrorCode::usage, fmt::format("context: got {}, expected at most {}", options.context, model_.max_positions));
    }
    capacity_ = options.context == 0 ? model_.max_positions : options.context;
    info_ = {.kind = "checkpoint",
             .family = model_.family,
             .vocab_size = model_.vocab_size,
             .max_positions = model_.max_positions,
             .bos_token = model_.bos_token,
             .eos_tokens = eos_tokens_of(checkpoint, model_),
             .weight_bytes = store_.mapped_bytes() + store_.owned_bytes()};
  }

  const DecoderInfo& info() const override { return info_; }
  uint64_t position() const override { return reference_.position(); }
  uint64_t capacity() const override { return capacity_; }
  uint64_t kv_bytes() const override { return reference_.kv_bytes(); }
  void reset() override { reference_.reset(); }

  void read(std::span<const int32_t> tokens, const LogitsSink& sink, bool every_row) override {
    require_readable(tokens, model_.vocab_size, capacity_ - position(), position());
    reference_.read(tokens, {{}, sink, every_row});
  }

 private:
  DecoderModel model_;
  WeightStore store_;
  WorkerPool pool_;
  Reference reference_;
  DecoderInfo info_;
  uint64_t capacity_ = 0;
};

class BundleDecoder : public Decoder {
 public:
  BundleDecoder(const std::filesystem::path& bundle, const DecoderOptions& options)
      : pool_(options.threads), runner_(bundle, store_, pool_, options.context) {
    const BundleContract& contract = runner_.contract();
    const StepContract& step = contract.steps.front().contract;
    if (!contract.head || step.first_layer != 0 || step.end_layer != contract.layers_in_model) {
      throw Error(
          ErrorCode::usage,
          fmt::format("bundle cannot generate: got layers {} to {} of {} {} a head, expected the whole model", step.first_layer,
                      step.end_layer - 1, contract.layers_in_model, contract.head ? "with" : "without"));
    }
    info_ = {.kind = "bundle",
             .family = contract.family,
             .vocab_size = contract.vocab_size,
             .max_positions = contract.max_positions,
             .bos_token = contract.bos_token,
             .eos_tokens = contract.eos_tokens};
  }

  const DecoderInfo& info() const override { return info_; }
  uint64_t position() const override { return runner_.cache().position(); }
  uint64_t capacity() const override { return position() + runner_.room(); }
  uint64_t kv_bytes() const override { return runner_.cache().bytes(); }
  void reset() override { runner_.reset(); }

  void read(std::span<const int32_t> tokens, const LogitsSink& sink, bool every_row) override {
    require_readable(tokens, info_.vocab_size, runner_.room(), position());
    runner_.reserve(tokens.size());
    for (const BundleRunner::Call& call : runner_.plan(tokens.size(), every_row)) {
      const uint64_t first = position();
      const std::vector<float> rows = runner_.call_tokens(call, tokens.first(call.real));
      tokens = tokens.subspan(call.real);
      const uint64_t width = info_.vocab_size;
      const uint64_t count = rows.size() / width;
      // With logits of the last row only, a call gives one row whatever it reads.
      const uint64_t wanted = every_row ? count : tokens.empty() ? 1 : 0;
      for (uint64_t row = count - wanted; row < count; ++row) {
        sink(first + call.real - count + row, std::span(rows).subspan(row * width, width));
      }
    }
    info_.weight_bytes = store_.mapped_bytes() + store_.owned_bytes();
  }

 private:
  WeightStore store_;
  WorkerPool pool_;
  BundleRunner runner_;
  DecoderInfo info_;
};

}  // namespace

std::unique_ptr<Decoder> open_decoder(const std::filesystem::path& path, const DecoderOptions& options) {
  if (!has_entry(path / kContractFile)) {
    return std::make_unique<CheckpointDecoder>(Checkpoint::open(path, options.config), options);
  }
  if (options.config) {
    throw Error(ErrorCode::usage,
                fmt::format("config of a bundle: got '{}', expected none, as its graphs are made", options.config->string()));
  }
  return std::make_unique<BundleDecoder>(path, options);
}

}  // namespace transload
