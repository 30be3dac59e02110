// Cuts a DecoderModel into the tensors of one rank, and lays them out in a safetensors file.
#include "targets/trtllm/rank_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include "io/safetensors.h"
#include "targets/trtllm/mapping.h"
#include "targets/trtllm/rank_names.h"
#include "transload/error.h"

namespace transload {
namespace {

// Parts of one type are joined before the cast: adjacent slices of a stored tensor then become one.
Recipe join(const std::vector<Recipe>& parts, uint32_t axis, DType dtype) {
  const DType first = parts.front().dtype();
  if (std::all_of(parts.begin(), parts.end(), [&](const Recipe& part) { return part.dtype() == first; })) {
    return cast(concat(parts, axis), dtype);
  }
  std::vector<Recipe> same;
  for (const Recipe& part : parts) same.push_back(cast(part, dtype));
  return concat(same, axis);
}

// Part `index` of `count` equal ones along `axis`.
Recipe share(const Recipe& whole, uint32_t axis, uint64_t index, uint64_t count) {
  const uint64_t size = whole.shape()[axis] / count;
  return slice(whole, axis, index * size, (index + 1) * size);
}

Recipe with_new_axis(const Recipe& recipe, size_t axis) {
  Shape shape = recipe.shape();
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(axis), 1);
  return reshape(recipe, std::move(shape));
}

// Rows in turn: 0 of the first, 0 of the second, 1 of the first, ...
Recipe interleave_rows(const Recipe& first, const Recipe& second, DType dtype) {
  Shape shape = first.shape();
  shape[0] *= 2;
  return reshape(join({with_new_axis(first, 1), with_new_axis(second, 1)}, 1, dtype), std::move(shape));
}

class RankBuilder {
 public:
  RankBuilder(const DecoderModel& model, const TrtllmArchitecture& architecture, const TrtllmOptions& options, DType dtype,
              uint32_t rank)
      : model_(model),
        architecture_(architecture),
        options_(options),
        dtype_(dtype),
        tensor_(options.mapping.tensor),
        tensor_rank_(rank % tensor_),
        stage_(rank / tensor_) {}

  std::vector<RankTensor> build() {
    const auto layer_count = static_cast<uint32_t>(model_.layers.size());
    const LayerSpan span = stage_layers(layer_count, options_.mapping.pipeline, stage_);
    if (stage_ == 0) add("transformer.vocab_embedding.weight", cast(model_.embedding, dtype_));
    for (uint32_t i = span.begin; i < span.end; ++i) {
      add_layer(fmt::format("transformer.layers.{}.", i - span.begin), model_.layers[i]);
    }
    if (stage_ + 1 == options_.mapping.pipeline) {
      add_norm("transformer.ln_f", model_.final_norm);
      add("lm_head.weight", head_rows(model_.head));
      if (!model_.head_bias.empty()) add("lm_head.bias", head_rows(model_.head_bias));
    }
    return std::move(tensors_);
  }

 private:
  void add(std::string name, Recipe recipe) { tensors_.push_back({std::move(name), std::move(recipe), {}, {}}); }

  // A weight that weight-only quantisation applies to: [out, in], or [experts, out, in].
  void add_linear_weight(const std::string& name, const Recipe& weight) {
    if (!options_.has_baked_weights()) return add(name + ".weight", weight);
    Shape scales = weight.shape();
    scales.pop_back();
    try {
      tensors_.push_back({name + ".weight", quantize(weight, options_.weight_quant()), name + kScalesSuffix, std::move(scales)});
    } catch (Error& error) {
      throw error.at({{}, name + ".weight", {}});
    }
  }

  void add_norm(const std::string& name, const Norm& norm) {
    add(name + ".weight", cast(norm.weight, dtype_));
    if (!norm.bias.empty()) add(name + ".bias", cast(norm.bias, dtype_));
  }

  void add_layer(const std::string& prefix, const Layer& layer) {
    add_norm(prefix + "input_layernorm", layer.input_norm);
    add_attention(prefix + "attention.", layer.attention);
    add_norm(prefix + "post_layernorm", layer.mlp_norm);
    if (layer.experts) {
      add_experts(prefix + "mlp.", *layer.experts);
    } else {
      add_mlp(prefix + "mlp.", layer.mlp);
    }
  }

  void add_attention(const std::string& prefix, const Attention& attention) {
    add_linear_weight(prefix + "qkv", query_key_value(attention, &Linear::weight));
    if (!attention.q.bias.empty()) add(prefix + "qkv.bias", query_key_value(attention, &Linear::bias));
    add_row_parallel(prefix + "dense", attention.o);
  }

  Recipe query_key_value(const Attention& attention, Recipe Linear::*part) const {
    const uint64_t head = attention.head_dim;
    const HeadSpan span = rank_kv_heads(attention.kv_heads, tensor_, tensor_rank_);
    const auto own_heads = [&](const Linear& linear) { return slice(linear.*part, 0, span.begin * head, span.end * head); };
    return join({share(attention.q.*part, 0, tensor_rank_, tensor_), own_heads(attention.k), own_heads(attention.v)}, 0, dtype_);
  }

  // Columns are split and the ranks' products added; the bias is added once after that, so every rank has the whole of it.
  void add_row_parallel(const std::string& name, const Linear& linear) {
    add_linear_weight(name, cast(share(linear.weight, 1, tensor_rank_, tensor_), dtype_));
    if (!linear.bias.empty()) add(name + ".bias", cast(linear.bias, dtype_));
  }

  void add_mlp(const std::string& prefix, const Mlp& mlp) {
    add_linear_weight(prefix + "fc", gate_and_up(mlp.gate.weight, mlp.up.weight, tensor_rank_, tensor_));
    if (!mlp.gate.bias.empty()) add(prefix + "fc.bias", gate_and_up(mlp.gate.bias, mlp.up.bias, tensor_rank_, tensor_));
    add_row_parallel(prefix + "proj", mlp.down);
  }

  Recipe gate_and_up(const Recipe& gate, const Recipe& up, uint32_t index, uint32_t count) const {
    switch (architecture_.fc) {
      case FcOrder::up_gate:
        return join({share(up, 0, index, count), share(gate, 0, index, count)}, 0, dtype_);
      case FcOrder::interleaved:
        // Equal blocks of the joined rows hold whole pairs.
        return share(interleave_rows(gate, up, dtype_), 0, index, count);
    }
    throw Error(ErrorCode::internal, "order of fc rows: got none, expected one of the enumeration");
  }

  void add_experts(const std::string& prefix, const Experts& experts) {
    // Every rank has all of the router, in f32 whatever the dtype of the checkpoint.
    add(prefix + "router.weight", cast(experts.router.weight, DType::f32));
    const uint32_t expert = options_.mapping.expert;
    const uint64_t count = experts.experts.size() / expert;
    const uint64_t first = tensor_rank_ % expert * count;
    const uint32_t index = tensor_rank_ / expert;
    const uint32_t parts = options_.mapping.moe_tensor();
    std::vector<Recipe> fc;
    std::vector<Recipe> proj;
    for (uint64_t i = first; i < first + count; ++i) {
      const Mlp& mlp = experts.experts[i];
      fc.push_back(with_new_axis(gate_and_up(mlp.gate.weight, mlp.up.weight, index, parts), 0));
      proj.push_back(with_new_axis(cast(share(mlp.down.weight, 1, index, parts), dtype_), 0));
    }
    add_linear_weight(prefix + "fc", concat(fc, 0));
    add_linear_weight(prefix + "proj", concat(proj, 0));
  }

  // Rows of the head, or elements of its bias, with zeros behind the vocabulary so that all ranks have as many.
  Recipe head_rows(const Recipe& whole) const {
    const uint64_t vocab = whole.shape()[0];
    const uint64_t rows = (vocab + tensor_ - 1) / tensor_;
    const uint64_t begin = std::min(vocab, tensor_rank_ * rows);
    const uint64_t end = std::min(vocab, begin + rows);
    if (end - begin == rows) return cast(slice(whole, 0, begin, end), dtype_);
    Shape padding = whole.shape();
    padding[0] = rows - (end - begin);
    const Recipe zeros = constant(padding, std::vector<float>(element_count(padding)));
    return join({slice(whole, 0, begin, end), zeros}, 0, dtype_);
  }

  const DecoderModel& model_;
  const TrtllmArchitecture& architecture_;
  const TrtllmOptions& options_;
  DType dtype_;
  uint32_t tensor_;
  uint32_t tensor_rank_;
  uint32_t stage_;
  std::vector<RankTensor> tensors_;
};

// The dtypes of a rank file in the order in which their tensors lie.
size_t dtype_place(DType dtype) {
  constexpr std::array kOrder = {DType::f32, DType::bf16, DType::f16, DType::i8};
  const auto* place = std::find(kOrder.begin(), kOrder.end(), dtype);
  if (place != kOrder.end()) return static_cast<size_t>(place - kOrder.begin());
  throw Error(ErrorCode::internal, fmt::format("dtype in a rank file: got {}, expected f32, bf16, f16 or i8", dtype_name(dtype)));
}

}  // namespace

std::vector<RankTensor> rank_tensors(const DecoderModel& model, const TrtllmArchitecture& architecture,
                                     const TrtllmOptions& options, DType dtype, uint32_t rank) {
  return RankBuilder(model, architecture, options, dtype, rank).build();
}

PlannedFile plan_rank_file(const std::vector<RankTensor>& tensors, DType dtype, uint32_t rank) {
  struct Entry {
    SafetensorsEntry header;
    const RankTensor* tensor = nullptr;
    bool is_scales = false;
  };
  std::vector<Entry> entries;
  for (const RankTensor& tensor : tensors) {
    entries.push_back({{tensor.name, tensor.recipe.dtype(), tensor.recipe.shape()}, &tensor, false});
    if (!tensor.scales_name.empty()) entries.push_back({{tensor.scales_name, dtype, tensor.scales_shape}, &tensor, true});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(dtype_place(a.header.dtype), std::string_view(a.header.name)) <
           std::pair(dtype_place(b.header.dtype), std::string_view(b.header.name));
  });
  std::vector<SafetensorsEntry> headers;
  for (const Entry& entry : entries) headers.push_back(entry.header);
  const SafetensorsLayout layout = plan_safetensors(headers);

  std::map<std::string_view, uint64_t> offsets;
  for (size_t i = 0; i < headers.size(); ++i) offsets.emplace(headers[i].name, layout.offsets[i]);
  PlannedFile file{.name = rank_file_name(rank), .size = layout.file_bytes, .bytes = {{0, layout.header}}, .tensors = {}};
  for (const Entry& entry : entries) {
    if (entry.is_scales) continue;
    const RankTensor& tensor = *entry.tensor;
    file.tensors.push_back({.name = tensor.name, .offset = offsets.at(tensor.name), .recipe = tensor.recipe});
    if (tensor.scales_name.empty()) continue;
    file.tensors.back().scales =
        PlannedScales{.name = tensor.scales_name, .offset = offsets.at(tensor.scales_name), .dtype = dtype};
  }
  return file;
}

}  // namespace transload
