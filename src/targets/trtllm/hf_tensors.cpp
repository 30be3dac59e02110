// Joins the ranks of a TensorRT-LLM checkpoint into one model, and names and fuses its weights as Hugging Face does.
#include "targets/trtllm/hf_tensors.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "targets/trtllm/rank_names.h"
#include "transload/error.h"

namespace transload {
namespace {

Recipe with_pair_axis(const Recipe& rows) {
  Shape shape = rows.shape();
  shape.insert(shape.begin() + 1, 1);
  return reshape(rows, std::move(shape));
}

// Parts that are stored in different types are joined as values of `dtype`.
Recipe fuse_parts(std::vector<Recipe> parts, uint32_t axis, DType dtype) {
  const DType first = parts.front().dtype();
  for (const Recipe& part : parts) {
    if (part.dtype() == first) continue;
    for (Recipe& other : parts) other = cast(other, dtype);
    break;
  }
  return concat(parts, axis);
}

class RankJoiner {
 public:
  explicit RankJoiner(const TrtllmCheckpoint& checkpoint)
      : checkpoint_(checkpoint), d_(checkpoint.dimensions), mapping_(checkpoint.options.mapping) {}

  DecoderModel join() {
    DecoderModel model;
    model.hidden_size = d_.hidden;
    model.intermediate_size = d_.intermediate;
    model.vocab_size = d_.vocab;
    model.embedding = leaf(0, "transformer.vocab_embedding.weight");
    for (uint32_t stage = 0; stage < mapping_.pipeline; ++stage) {
      first_rank_ = stage * mapping_.tensor;
      const uint32_t layers = d_.layers / mapping_.pipeline + (stage < d_.layers % mapping_.pipeline ? 1 : 0);
      for (uint32_t i = 0; i < layers; ++i) model.layers.push_back(layer(fmt::format("transformer.layers.{}.", i)));
    }
    model.final_norm = norm("transformer.ln_f");
    model.head = head("lm_head.weight");
    if (checkpoint_.has(first_rank_, "lm_head.bias")) model.head_bias = head("lm_head.bias");
    model.tied_head = checkpoint_.tied_head();
    return model;
  }

 private:
  Recipe leaf(uint32_t tensor_rank, const std::string& name) const {
    return source(checkpoint_.tensor(first_rank_ + tensor_rank, name));
  }
  bool has(const std::string& name) const { return checkpoint_.has(first_rank_, name); }

  Recipe weight(uint32_t tensor_rank, const std::string& name) const {
    if (!checkpoint_.options.has_baked_weights()) return leaf(tensor_rank, name + ".weight");
    const TensorInfo& tensor = checkpoint_.tensor(first_rank_ + tensor_rank, name + ".weight");
    const TensorInfo& scales = checkpoint_.tensor(first_rank_ + tensor_rank, name + kScalesSuffix);
    try {
      return dequantize(tensor, scales, checkpoint_.options.weight_quant());
    } catch (Error& error) {
      throw error.at({tensor.file->name(), tensor.name, tensor.offset});
    }
  }

  // The same part of `count` ranks, one behind the other.
  Recipe join_parts(uint32_t count, uint32_t axis, const std::function<Recipe(uint32_t)>& part) const {
    std::vector<Recipe> parts;
    for (uint32_t i = 0; i < count; ++i) parts.push_back(part(i));
    return count == 1 ? parts.front() : concat(parts, axis);
  }

  Norm norm(const std::string& name) const {
    return {.weight = leaf(0, name + ".weight"), .bias = has(name + ".bias") ? leaf(0, name + ".bias") : Recipe()};
  }

  Layer layer(const std::string& prefix) const {
    Layer layer;
    layer.input_norm = norm(prefix + "input_layernorm");
    layer.mlp_norm = norm(prefix + "post_layernorm");
    Attention& attention = layer.attention;
    attention.heads = d_.heads;
    attention.kv_heads = d_.kv_heads;
    attention.head_dim = d_.head_dim;
    query_key_value(attention, &Linear::weight, [&](uint32_t rank) { return weight(rank, prefix + "attention.qkv"); });
    if (has(prefix + "attention.qkv.bias")) {
      query_key_value(attention, &Linear::bias, [&](uint32_t rank) { return leaf(rank, prefix + "attention.qkv.bias"); });
    }
    attention.o = row_parallel(prefix + "attention.dense");
    if (d_.experts > 0) {
      layer.experts = experts(prefix + "mlp.");
    } else {
      layer.mlp = mlp(prefix + "mlp.");
    }
    return layer;
  }

  void query_key_value(Attention& attention, Recipe Linear::*part, const std::function<Recipe(uint32_t)>& fused) const {
    const uint64_t query = uint64_t{d_.heads} / mapping_.tensor * d_.head_dim;
    // Ranks that share a head hold equal copies: the first of them speaks.
    const uint32_t copies = mapping_.tensor > d_.kv_heads ? mapping_.tensor / d_.kv_heads : 1;
    const uint64_t own = uint64_t{d_.kv_heads} / (mapping_.tensor / copies) * d_.head_dim;
    attention.q.*part = join_parts(mapping_.tensor, 0, [&](uint32_t i) { return slice(fused(i), 0, 0, query); });
    attention.k.*part =
        join_parts(mapping_.tensor / copies, 0, [&](uint32_t i) { return slice(fused(i * copies), 0, query, query + own); });
    attention.v.*part = join_parts(mapping_.tensor / copies, 0,
                                   [&](uint32_t i) { return slice(fused(i * copies), 0, query + own, query + 2 * own); });
  }

  Linear row_parallel(const std::string& name) const {
    return {join_parts(mapping_.tensor, 1, [&](uint32_t i) { return weight(i, name); }),
            has(name + ".bias") ? leaf(0, name + ".bias") : Recipe()};
  }

  Mlp mlp(const std::string& prefix) const {
    Mlp mlp;
    gate_and_up(mlp, &Linear::weight, [&](uint32_t rank) { return weight(rank, prefix + "fc"); });
    if (has(prefix + "fc.bias")) {
      gate_and_up(mlp, &Linear::bias, [&](uint32_t rank) { return leaf(rank, prefix + "fc.bias"); });
    }
    mlp.down = row_parallel(prefix + "proj");
    return mlp;
  }

  void gate_and_up(Mlp& mlp, Recipe Linear::*part, const std::function<Recipe(uint32_t)>& fc) const {
    mlp.up.*part = join_parts(mapping_.tensor, 0, [&](uint32_t i) { return fc_part(fc(i), true); });
    mlp.gate.*part = join_parts(mapping_.tensor, 0, [&](uint32_t i) { return fc_part(fc(i), false); });
  }

  // One of the two factors in the fc rows of a rank, [rows / 2, …].
  Recipe fc_part(const Recipe& fc, bool up) const {
    const uint64_t half = fc.shape()[0] / 2;
    switch (checkpoint_.architecture->fc) {
      case FcOrder::up_gate:
        return up ? slice(fc, 0, 0, half) : slice(fc, 0, half, 2 * half);
      case FcOrder::interleaved: {
        Shape shape = fc.shape();
        shape[0] = half;
        Shape pairs = shape;
        pairs.insert(pairs.begin() + 1, 2);
        return reshape(slice(reshape(fc, std::move(pairs)), 1, up ? 1 : 0, up ? 2 : 1), std::move(shape));
      }
    }
    throw Error(ErrorCode::internal, "order of fc rows: got none, expected one of the enumeration");
  }

  Experts experts(const std::string& prefix) const {
    Experts experts;
    experts.router.weight = leaf(0, prefix + "router.weight");
    const uint32_t own = d_.experts / mapping_.expert;
    for (uint32_t e = 0; e < d_.experts; ++e) {
      const uint32_t parts = mapping_.moe_tensor();
      // Ranks of one block of experts are `expert` apart.
      const auto matrix = [&](uint32_t i, const std::string& name) {
        const Recipe stacked = slice(weight(i * mapping_.expert + e / own, prefix + name), 0, e % own, e % own + 1);
        return reshape(stacked, {stacked.shape()[1], stacked.shape()[2]});
      };
      Mlp mlp;
      mlp.up.weight = join_parts(parts, 0, [&](uint32_t i) { return fc_part(matrix(i, "fc"), true); });
      mlp.gate.weight = join_parts(parts, 0, [&](uint32_t i) { return fc_part(matrix(i, "fc"), false); });
      mlp.down.weight = join_parts(parts, 1, [&](uint32_t i) { return matrix(i, "proj"); });
      experts.experts.push_back(std::move(mlp));
    }
    return experts;
  }

  Recipe head(const std::string& name) const {
    return slice(join_parts(mapping_.tensor, 0, [&](uint32_t i) { return leaf(i, name); }), 0, 0, d_.vocab);
  }

  const TrtllmCheckpoint& checkpoint_;
  const TrtllmDimensions& d_;
  const TrtllmMapping& mapping_;
  uint32_t first_rank_ = 0;  // of the stage
};

// Names and fuses; one function for each way in which publishers do.
class HuggingFaceNamer {
 public:
  HuggingFaceNamer(const DecoderModel& model, const TrtllmArchitecture& row, DType dtype)
      : model_(model), row_(row), dtype_(dtype) {}

  std::vector<HuggingFaceTensor> name() {
    add("model.embed_tokens.weight", model_.embedding);
    for (size_t i = 0; i < model_.layers.size(); ++i) add_layer(fmt::format("model.layers.{}.", i), model_.layers[i]);
    add_norm(row_.names == HuggingFaceNames::grouped ? "model.final_layernorm" : "model.norm", model_.final_norm);
    if (!model_.tied_head) add_linear("lm_head", {model_.head, model_.head_bias});
    return std::move(tensors_);
  }

 private:
  void add(std::string name, const Recipe& recipe) { tensors_.push_back({std::move(name), cast(recipe, dtype_)}); }
  void add_linear(const std::string& name, const Linear& linear) {
    add(name + ".weight", linear.weight);
    if (!linear.bias.empty()) add(name + ".bias", linear.bias);
  }
  void add_norm(const std::string& name, const Norm& norm) { add_linear(name, {norm.weight, norm.bias}); }

  // `fuse` makes one tensor of the weights, and in the same way one of the biases.
  template <typename Fuse>
  void add_fused(const std::string& name, const Linear& first, const Fuse& fuse) {
    add(name + ".weight", fuse(&Linear::weight));
    if (!first.bias.empty()) add(name + ".bias", fuse(&Linear::bias));
  }

  void add_layer(const std::string& prefix, const Layer& layer) {
    add_norm(prefix + "input_layernorm", layer.input_norm);
    const Attention& attention = layer.attention;
    const std::string self = prefix + "self_attn.";
    switch (row_.names) {
      case HuggingFaceNames::fused:
        add_fused(self + "qkv_proj", attention.q, [&](Recipe Linear::*part) {
          return fuse_parts({attention.q.*part, attention.k.*part, attention.v.*part}, 0, dtype_);
        });
        add_linear(self + "o_proj", attention.o);
        break;
      case HuggingFaceNames::grouped:
        add_fused(self + "query_key_value", attention.q, [&](Recipe Linear::*part) { return groups(attention, part); });
        add_linear(self + "dense", attention.o);
        break;
      case HuggingFaceNames::experts:
        add_linear(self + "q_proj", attention.q);
        add_linear(self + "k_proj", attention.k);
        add_linear(self + "v_proj", attention.v);
        add_linear(self + "o_proj", attention.o);
        break;
    }
    add_norm(prefix + "post_attention_layernorm", layer.mlp_norm);
    if (layer.experts) {
      add_experts(prefix + "block_sparse_moe.", *layer.experts);
    } else {
      add_mlp(prefix + "mlp.", layer.mlp);
    }
  }

  // For each key/value head: its query heads, the key head, the value head.
  Recipe groups(const Attention& attention, Recipe Linear::*part) const {
    const uint64_t head = attention.head_dim;
    const uint64_t queries = attention.heads / attention.kv_heads * head;
    std::vector<Recipe> parts;
    for (uint64_t i = 0; i < attention.kv_heads; ++i) {
      parts.push_back(slice(attention.q.*part, 0, i * queries, (i + 1) * queries));
      parts.push_back(slice(attention.k.*part, 0, i * head, (i + 1) * head));
      parts.push_back(slice(attention.v.*part, 0, i * head, (i + 1) * head));
    }
    return fuse_parts(std::move(parts), 0, dtype_);
  }

  void add_mlp(const std::string& prefix, const Mlp& mlp) {
    switch (row_.fc) {
      case FcOrder::up_gate:
        add_fused(prefix + "gate_up_proj", mlp.gate, [&](Recipe Linear::*part) {
          return fuse_parts({mlp.gate.*part, mlp.up.*part}, 0, dtype_);
        });
        break;
      case FcOrder::interleaved:
        add_fused(prefix + "up_proj", mlp.gate, [&](Recipe Linear::*part) {
          Shape shape = (mlp.gate.*part).shape();
          shape[0] *= 2;
          return reshape(fuse_parts({with_pair_axis(mlp.gate.*part), with_pair_axis(mlp.up.*part)}, 1, dtype_), std::move(shape));
        });
        break;
    }
    add_linear(prefix + "down_proj", mlp.down);
  }

  void add_experts(const std::string& prefix, const Experts& experts) {
    // Kept as the rank files have it: rounded, the choice of experts could change.
    tensors_.push_back({prefix + "gate.weight", cast(experts.router.weight, DType::f32)});
    for (size_t i = 0; i < experts.experts.size(); ++i) {
      const Mlp& mlp = experts.experts[i];
      const std::string expert = fmt::format("{}experts.{}.", prefix, i);
      add_linear(expert + "w1", mlp.gate);
      add_linear(expert + "w2", mlp.down);
      add_linear(expert + "w3", mlp.up);
    }
  }

  const DecoderModel& model_;
  const TrtllmArchitecture& row_;
  DType dtype_;
  std::vector<HuggingFaceTensor> tensors_;
};

}  // namespace

DecoderModel join_ranks(const TrtllmCheckpoint& checkpoint) { return RankJoiner(checkpoint).join(); }

std::vector<HuggingFaceTensor> hf_tensors(const DecoderModel& model, const TrtllmArchitecture& architecture, DType dtype) {
  return HuggingFaceNamer(model, architecture, dtype).name();
}

std::vector<HuggingFaceTensor> hf_tensors(const TrtllmCheckpoint& checkpoint) {
  return hf_tensors(join_ranks(checkpoint), *checkpoint.architecture, *checkpoint.options.dtype);
}

}  // namespace transload
