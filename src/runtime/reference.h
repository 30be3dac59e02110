// Reference forward pass: straight from DecoderModel, fp32 arithmetic, weights mapped in their stored dtype. It knows no graph,
// no mask and no cache slot: what a layer sees is every stored position of its window.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/worker_pool.h"
#include "runtime/weight_matrix.h"
#include "transload/decoder_model.h"

namespace transload {

// Intermediate values, called by the names a decode-step graph gives them, token-major: `values` is [rows, width], rows are the
// tokens first_position, first_position + 1, ... Per layer N, in this order:
//   layers_N_input_norm, layers_N_attn_q, _attn_k, _attn_v (linear outputs), _attn_q_rope, k_new_N (after q/k norm and rotary),
//   v_new_N, _attn_heads (before the head gate), _attn_heads_gated (with a gate), _attn_o, _post_attn_norm (where there is one),
//   _attn_out (residual), _mlp_norm, _mlp_gate, _mlp_act, _mlp_up (before its limits), _mlp_product, _mlp_down,
//   _post_mlp_norm, _out; of experts _mlp_router (logits), _mlp_routing (weights, 0 where not chosen) and _mlp_down alone
// before them "x" (raw embedding rows), and x_scaled with a factor; after them final_norm (every row) and logits (the rows asked
// for, after bias and factor). N is the checkpoint's layer.
using ValueTap =
    std::function<void(std::string_view name, uint64_t first_position, uint64_t rows, std::span<const float> values)>;

struct ReferenceSinks {
  ValueTap tap;  // may be empty
  // Logits of a token, [vocab]. Empty: the head is not computed.
  std::function<void(uint64_t position, std::span<const float> logits)> logits;
  bool every_row = false;  // logits of each token, or of the last alone
};

class Reference {
 public:
  // `model`, `store` and `pool` must outlive this. Throws what WeightStore throws for weights that do not fit the model.
  Reference(const DecoderModel& model, WeightStore& store, WorkerPool& pool);
  ~Reference();
  Reference(const Reference&) = delete;

  uint64_t position() const;
  uint64_t kv_bytes() const;
  void reset();
  // Reads tokens in blocks of at most `block`; taps and logits come block by block. Throws usage for no tokens, an id outside the
  // vocabulary or a position at max_positions; nothing is read then.
  void read(std::span<const int32_t> tokens, const ReferenceSinks& sinks, uint32_t block = 128);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace transload
