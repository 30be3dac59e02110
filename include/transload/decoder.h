// Decoder: reads tokens of one sequence and gives logits, from a checkpoint (reference forward pass) or from a written bundle
// (graph interpreter over the KV cache contract). What `run` and `eval` are built on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace transload {

struct DecoderInfo {
  std::string kind;  // "checkpoint" or "bundle"
  std::string family;
  uint32_t vocab_size = 0;
  uint32_t max_positions = 0;
  std::optional<int64_t> bos_token;
  std::vector<int64_t> eos_tokens;
  uint64_t weight_bytes = 0;  // mapped or held, of the graphs opened so far
};

// `logits`: [vocab] fp32, valid during the call; row of the token at `position`.
using LogitsSink = std::function<void(uint64_t position, std::span<const float> logits)>;

// A token and its logit.
struct ScoredToken {
  int32_t id = 0;
  float logit = 0;
};
// The `count` largest logits, best first; of equal ones the lower id first. Fewer when the vocabulary is smaller.
std::vector<ScoredToken> top_logits(std::span<const float> logits, uint32_t count);

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual const DecoderInfo& info() const = 0;
  virtual uint64_t position() const = 0;  // tokens read
  virtual uint64_t capacity() const = 0;  // tokens that can be read in all
  virtual uint64_t kv_bytes() const = 0;  // of the KV cache as it is now
  virtual void reset() = 0;
  // Reads tokens after those read before; `sink` gets the last row, or every row in order. Throws usage: no tokens, an id outside
  // the vocabulary, more tokens than fit, rows that graphs with logits of the last row alone cannot give: nothing is read then;
  // numeric_fault when a graph gives NaN or infinity: what earlier graph calls of this read have stored stays.
  virtual void read(std::span<const int32_t> tokens, const LogitsSink& sink, bool every_row = false) = 0;
};

struct DecoderOptions {
  std::optional<std::filesystem::path> config;  // of a checkpoint, instead of its config.json
  uint32_t context = 0;  // bundle: its graphs of this one (0: the smallest, growing); checkpoint: the capacity (0: max_positions)
  uint32_t threads = 0;  // 0: one per core, at most 8
};

// A folder with contract.json is a bundle; anything else is a checkpoint. Throws what Checkpoint::open, build_model,
// read_contract and reading the graphs throw; usage for a bundle that cannot generate (a slice, no head), a config for a bundle,
// and a context that it has no graph for or that is beyond the checkpoint's max_positions.
std::unique_ptr<Decoder> open_decoder(const std::filesystem::path& path, const DecoderOptions& options = {});

}  // namespace transload
