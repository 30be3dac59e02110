// Phi-3-small: grouped query/key/value rows, block-sparse layers, gated GELU over interleaved rows, factors of muP.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "model/decoder_config.h"
#include "model/families.h"
#include "model/layer_parts.h"
#include "model/rope.h"

namespace transload {
namespace {

struct SmallConfig {
  DecoderConfig dimensions;
  RopeGroup rope;
  std::optional<BlockSparse> sparse;
  uint32_t dense_every = 0;  // every n-th layer is dense; 0: none is
  std::optional<float> limit;
  float scale = 1;
  float embedding_factor = 1;
  float logits_factor = 1;
};

// A factor, or a divisor, that stays a usable number in single precision.
double read_factor(ConfigReader& config, std::string_view key) {
  constexpr double kSmallest = 1e-6;
  constexpr double kLargest = 1e6;
  const double value = config.number(key);
  if (value >= kSmallest && value <= kLargest) return value;
  config.fault(ErrorCode::config_invalid,
               fmt::format("{}: out of range: got {}, expected {} to {}", config.field(key), value, kSmallest, kLargest));
  return 1;
}

std::optional<BlockSparse> read_sparse(ConfigReader& config, uint32_t heads, uint32_t dense_every) {
  if (dense_every == 1) {
    for (const std::string_view key :
         {"blocksparse_block_size", "blocksparse_num_local_blocks", "blocksparse_vert_stride", "blocksparse_homo_head_pattern"}) {
      config.ignore(key);
    }
    return std::nullopt;
  }
  BlockSparse sparse;
  sparse.block = config.u32("blocksparse_block_size");
  sparse.local_blocks = config.u32("blocksparse_num_local_blocks");
  sparse.vertical_stride = config.u32("blocksparse_vert_stride");
  const bool one_pattern = config.boolean("blocksparse_homo_head_pattern", false);
  sparse.head_step = one_pattern ? 0 : std::max(1U, sparse.vertical_stride / heads);
  return sparse;
}

SmallConfig read_config(ConfigReader& config, const ModelOptions& options) {
  SmallConfig small;
  DecoderConfig& dimensions = small.dimensions;
  dimensions = read_decoder_config(config, {.kv_heads_follow_heads = true,
                                            .head_dim_follows_hidden = true,
                                            .tied_default = true,
                                            .intermediate_key = "ff_intermediate_size",
                                            .epsilon_key = "layer_norm_epsilon"});
  config.expect("hidden_act", "gegelu");
  config.expect("ff_dim_multiplier", nullptr);
  config.expect("rope_position_scale", 1);
  // How the publisher's kernels pad and tile, training, and a switch that no longer does anything: the biases are always there.
  for (const std::string_view field : {"attention_bias", "attention_dropout_prob", "blocksparse_triton_kernel_block_size",
                                       "dummy_token_indices", "embedding_dropout_prob", "ffn_dropout_prob", "gegelu_pad_to_256",
                                       "pad_sequence_to_multiple_of_64", "reorder_and_upcast_attn"}) {
    config.ignore(field);
  }
  // Null says none; a field that is absent would have the default of a class we do not run.
  if (!config.is_null("dense_attention_every_n_layers")) small.dense_every = config.u32("dense_attention_every_n_layers", 0);
  small.sparse = read_sparse(config, dimensions.heads, small.dense_every);
  if (!config.is_null("gegelu_limit")) small.limit = static_cast<float>(read_factor(config, "gegelu_limit"));
  const double head_dim = dimensions.head_dim;
  const double attention_factor = read_factor(config, "mup_attn_multiplier");
  const bool scaled = config.boolean("mup_use_scaling", true);
  small.scale = static_cast<float>(scaled ? attention_factor / head_dim : 1 / std::sqrt(head_dim));
  small.embedding_factor = static_cast<float>(read_factor(config, "mup_embedding_multiplier"));
  small.logits_factor = static_cast<float>(1 / read_factor(config, "mup_width_multiplier"));

  constexpr double kStandIn = 10000.0;
  const std::optional<double> base = maybe_theta(config, "rope_embedding_base");
  if (!base) config.number("rope_embedding_base");  // records that it is missing
  refuse_contradiction(config, "rope_embedding_base", config, "rope_theta");
  for (const std::string_view object : {"rope_parameters", "rope_scaling"}) {
    if (auto inner = config.maybe_object(object)) refuse_contradiction(config, "rope_embedding_base", *inner, "rope_theta");
  }
  small.rope = rope_of_config(config, "full",
                              {.head_dim = dimensions.head_dim,
                               .max_positions = dimensions.max_positions,
                               .context = options.context,
                               .theta = base.value_or(kStandIn)});
  return small;
}

// For each KV head its queries, one key and one value lie together: [KV heads, queries + 2, head size, columns].
void bind_attention(TensorSource& tensors, const std::string& at, const DecoderConfig& dimensions, Attention& attention) {
  const uint64_t hidden = dimensions.hidden_size;
  const uint64_t groups = dimensions.kv_heads;
  const uint64_t queries = dimensions.heads / groups;
  const uint64_t rows = groups * (queries + 2) * dimensions.head_dim;
  const Linear fused = linear(tensors, at + "query_key_value", rows, hidden, true);
  const Recipe weight = reshape(fused.weight, {groups, queries + 2, dimensions.head_dim * hidden});
  const Recipe bias = reshape(fused.bias, {groups, queries + 2, dimensions.head_dim});
  const auto part = [&](uint64_t begin, uint64_t end) {
    const uint64_t part_rows = groups * (end - begin) * dimensions.head_dim;
    return Linear{reshape(slice(weight, 1, begin, end), {part_rows, hidden}), reshape(slice(bias, 1, begin, end), {part_rows})};
  };
  attention.q = part(0, queries);
  attention.k = part(queries, queries + 1);
  attention.v = part(queries + 1, queries + 2);
  attention.o = linear(tensors, at + "dense", hidden, uint64_t{dimensions.heads} * dimensions.head_dim, true);
}

// Even rows of up_proj are the gate, odd ones what it multiplies.
Mlp bind_mlp(TensorSource& tensors, const std::string& at, const SmallConfig& small) {
  const uint64_t hidden = small.dimensions.hidden_size;
  const uint64_t inner = small.dimensions.intermediate_size;
  const Linear fused = linear(tensors, at + "up_proj", 2 * inner, hidden, true);
  const Recipe weight = reshape(fused.weight, {inner, 2, hidden});
  const Recipe bias = reshape(fused.bias, {inner, 2});
  const auto rows = [&](uint64_t parity) {
    return Linear{reshape(slice(weight, 1, parity, parity + 1), {inner, hidden}),
                  reshape(slice(bias, 1, parity, parity + 1), {inner})};
  };
  Mlp mlp;
  mlp.activation = Activation::quick_gelu;
  mlp.limit = small.limit;
  mlp.up_offset = 1;
  mlp.gate = rows(0);
  mlp.up = rows(1);
  mlp.down = linear(tensors, at + "down_proj", hidden, inner, true);
  return mlp;
}

DecoderModel build(ConfigReader& config, TensorSource& tensors, const ModelOptions& options) {
  const SmallConfig small = read_config(config, options);
  const DecoderConfig& dimensions = small.dimensions;
  DecoderModel model = begin_model(config, dimensions);
  config.finish();

  const uint64_t hidden = dimensions.hidden_size;
  model.embedding_factor = small.embedding_factor;
  model.logits_factor = small.logits_factor;
  model.embedding = tensors.require("model.embed_tokens.weight", {dimensions.vocab_size, hidden});
  for (uint32_t i = 0; i < dimensions.layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    Layer layer;
    layer.input_norm = layer_norm(tensors, at + "input_layernorm", hidden, dimensions.epsilon);
    layer.attention = attention_shape(dimensions);
    layer.attention.scale = small.scale;
    const bool is_dense = small.dense_every != 0 && (i + 1) % small.dense_every == 0;
    if (!is_dense) layer.attention.block_sparse = small.sparse;
    bind_attention(tensors, at + "self_attn.", dimensions, layer.attention);
    layer.mlp_norm = layer_norm(tensors, at + "post_attention_layernorm", hidden, dimensions.epsilon);
    layer.mlp = bind_mlp(tensors, at + "mlp.", small);
    model.layers.push_back(std::move(layer));
  }
  model.rope_groups = {small.rope};
  model.final_norm = layer_norm(tensors, "model.final_layernorm", hidden, dimensions.epsilon);
  bind_head(model, tensors, "lm_head.weight", dimensions.tied);
  return model;
}

constexpr std::array<std::string_view, 1> kModelTypes{"phi3small"};

}  // namespace

const FamilyRow kPhi3SmallFamily{"phi3small", kModelTypes, build, nullptr};

}  // namespace transload
