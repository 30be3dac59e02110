// DecoderModel: a plain-data description of a decoder-only transformer, every weight a recipe in canonical [out, in] form.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transload/block_sparse.h"
#include "transload/checkpoint.h"
#include "transload/recipe.h"

namespace transload {

enum class Activation : uint8_t { silu, gelu_erf, gelu_tanh, quick_gelu };  // quick_gelu: x * sigmoid(1.702 x)
enum class GateActivation : uint8_t { sigmoid, silu };

// rms: y = x / sqrt(mean(x^2) + epsilon) * weight + bias, over the last axis; layer: the same of x - mean(x). A family's "+1" is
// already in `weight`.
enum class NormKind : uint8_t { rms, layer };
struct Norm {
  Recipe weight;  // [width]
  double epsilon = 0;
  NormKind kind = NormKind::rms;
  Recipe bias = {};  // [width], or empty
};

// y = x weight^T + bias
struct Linear {
  Recipe weight;  // [out, in]
  Recipe bias;    // [out], or empty
};

// Rotary embedding shared by a set of layers: the first `width` elements of a head turn, element j with j + width/2.
struct RopeGroup {
  std::string name;               // "sw", "full"; used in the names of graph inputs
  uint32_t width = 0;             // even, at most head_dim
  std::vector<float> inv_freq;    // [width / 2]; angle = position * inv_freq, in fp32
  float attention_factor = 1.0F;  // multiplies cos and sin (yarn, longrope)
};

struct Attention {
  std::optional<uint32_t> window;           // keys seen, the current one included; none = full attention
  std::optional<BlockSparse> block_sparse;  // never together with a window
  uint32_t rope_group = 0;                  // index in DecoderModel::rope_groups
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  float scale = 0;  // multiplies q k^T
  Linear q;         // [heads * head_dim, hidden], half-split rotary order
  Linear k;         // [kv_heads * head_dim, hidden]
  Linear v;
  Linear o;                    // [hidden, heads * head_dim]
  std::optional<Norm> q_norm;  // per head, before rotary; weight [head_dim]
  std::optional<Norm> k_norm;
  std::optional<Linear> head_gate;  // [heads, hidden]: act(gate(h)) multiplies each head's output before o
  GateActivation gate_activation = GateActivation::sigmoid;
};

// down(act(min(gate(h), limit)) * (clamp(up(h), -limit, limit) + up_offset))
struct Mlp {
  Activation activation = Activation::silu;
  std::optional<float> limit;
  float up_offset = 0;
  Linear gate;  // [intermediate, hidden]
  Linear up;
  Linear down;  // [hidden, intermediate]
};

// sparse_mixer (https://arxiv.org/abs/2409.12136), with r the router logits of a token and m their largest: the weight of the
// first expert, the lowest index with r = m, is its softmax among the logits with m - r <= 2 * jitter * max(|r|, m). The second
// expert is found and weighted in the same way with the first one left out. The weights are not normalised again.
enum class ExpertRouting : uint8_t { sparse_mixer };

// The sum over the experts chosen for a token of weight * expert(h).
struct Experts {
  ExpertRouting routing = ExpertRouting::sparse_mixer;
  uint32_t chosen = 0;  // experts a token goes through: 2 for sparse_mixer
  double jitter = 0;
  Linear router;  // [experts, hidden]
  std::vector<Mlp> experts;
};

// x += post_attention?(attention(input_norm(x)));  x += post_mlp?(mlp(mlp_norm(x)))
struct Layer {
  Norm input_norm;
  Attention attention;
  std::optional<Norm> post_attention_norm;  // on the attention output, before the residual addition
  Norm mlp_norm;
  Mlp mlp;                         // without recipes where there are experts
  std::optional<Experts> experts;  // in place of mlp
  std::optional<Norm> post_mlp_norm;
};

struct DecoderModel {
  std::string family;  // the row of the family table that built it
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;
  uint32_t vocab_size = 0;
  uint32_t max_positions = 0;
  Recipe embedding;               // [vocab, hidden]
  float embedding_factor = 1.0F;  // multiplies the raw embedding row
  std::vector<Layer> layers;
  std::vector<RopeGroup> rope_groups;
  Norm final_norm;
  Recipe head;                 // [vocab, hidden]
  Recipe head_bias;            // [vocab], or empty
  float logits_factor = 1.0F;  // multiplies the logits
  bool tied_head = false;      // head is the same recipe as embedding

  std::optional<int64_t> bos_token;
  std::vector<int64_t> eos_tokens;
  uint64_t tensors_used = 0;          // stored tensors that some recipe reads
  std::vector<std::string> warnings;  // e.g. a stored lm_head that a tied config ignores
};

struct ModelOptions {
  // Longest context that will be served; rope kinds with a short and a long regime (longrope) choose by it. 0: max_positions.
  uint32_t context = 0;
  // Stored tensors that the family neither uses nor knows: refused (tensor_unused), or left out with a warning that names them.
  bool leave_unused = false;
};

// Finds the family, reads the config strictly and binds every tensor. Faults of one kind are reported together.
// Throws Error: arch_unknown, config_missing, config_invalid, config_unsupported, tensor_missing, tensor_unused, shape_mismatch,
// dtype_mismatch, duplicate_name (two stored names for one tensor); bad_offset and io_failure where a small table has to be read.
DecoderModel build_model(const Checkpoint& checkpoint, const ModelOptions& options = {});

// Name of the family whose row fits the config (or GGUF architecture). Throws arch_unknown, config_missing, config_invalid.
std::string family_of(const Checkpoint& checkpoint);

// Config (or GGUF metadata) fields that no family reads and that are not known to be harmless, by dotted path; what build_model
// refuses. Empty when there is no family for the config.
std::vector<std::string> unknown_config_fields(const Checkpoint& checkpoint);

// Names of all families, in table order.
std::vector<std::string> family_names();

}  // namespace transload
