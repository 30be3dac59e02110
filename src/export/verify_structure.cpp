// Holds the files of a bundle against each other and against the model, field by field.
#include "export/verify_structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "io/file.h"
#include "targets/onnx/onnx_reader.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

constexpr const char* kContract = "contract.json";
// Tables are computed in fp32 on the machine that exports; its libm may differ in the last bits.
constexpr double kTableTolerance = 1e-5;

VerifyFailure graph_failure(const std::string& file, const std::string& tensor, std::string what) {
  VerifyFailure failure;
  failure.file = file;
  failure.tensor = tensor;
  failure.layer = layer_of_name(tensor);
  failure.what = std::move(what);
  return failure;
}

std::optional<VerifyFailure> compare_ports(const std::string& file, const Graph& graph, const std::vector<ValueId>& values,
                                           const std::vector<Port>& ports, const char* kind) {
  if (values.size() != ports.size()) {
    return graph_failure(file, "", fmt::format("number of {}s: got {}, expected {}", kind, values.size(), ports.size()));
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    const Value& value = graph.value(values[i]);
    const Port& port = ports[i];
    if (value.name != port.name) {
      return graph_failure(file, port.name, fmt::format("{} {}: got '{}', expected '{}'", kind, i, value.name, port.name));
    }
    if (value.dtype != port.dtype || value.shape != port.shape) {
      return graph_failure(file, port.name,
                           fmt::format("{}: got {} {}, expected {} {}", kind, dtype_name(value.dtype), shape_text(value.shape),
                                       dtype_name(port.dtype), shape_text(port.shape)));
    }
  }
  return std::nullopt;
}

// Tensors of the manifest by file and name.
using TensorPlaces = std::map<std::pair<std::string, std::string>, const ManifestTensor*>;

std::optional<VerifyFailure> compare_constants(const std::string& file, const Graph& graph, const TensorPlaces& places) {
  for (const ValueId id : graph.constants()) {
    const Value& value = graph.value(id);
    const auto* source = std::get_if<SourceLeaf>(&value.constant.node().operation);
    if (source == nullptr) continue;
    const TensorInfo& tensor = source->tensor;
    const auto found = places.find({tensor.file->name(), value.name});
    if (found == places.end()) {
      return graph_failure(file, value.name,
                           fmt::format("external data: got {} bytes from {} of '{}', expected a tensor that manifest.json lists",
                                       tensor.bytes, tensor.offset, tensor.file->name()));
    }
    const ManifestTensor& place = *found->second;
    if (place.offset != tensor.offset || place.bytes != tensor.bytes) {
      return graph_failure(file, value.name,
                           fmt::format("external data in '{}': got {} bytes from {}, expected {} from {}", place.file,
                                       tensor.bytes, tensor.offset, place.bytes, place.offset));
    }
  }
  return std::nullopt;
}

VerifyFailure contract_failure(const std::string& field, const std::string& got, const std::string& expected,
                               std::optional<uint32_t> layer = std::nullopt) {
  VerifyFailure failure;
  failure.file = kContract;
  failure.tensor = field;
  failure.layer = layer;
  failure.what = fmt::format("field '{}': got {}, the checkpoint has {}", field, got, expected);
  return failure;
}

std::string window_text(const std::optional<uint32_t>& window) { return window ? std::to_string(*window) : "null"; }

std::optional<VerifyFailure> compare_dimensions(const BundleContract& contract, const DecoderModel& model) {
  const std::pair<const char*, std::pair<uint64_t, uint64_t>> rows[] = {
      {"hidden_size", {contract.hidden_size, model.hidden_size}},
      {"vocab_size", {contract.vocab_size, model.vocab_size}},
      {"layers.of", {contract.layers_in_model, model.layers.size()}},
      {"max_positions", {contract.max_positions, model.max_positions}}};
  if (contract.family != model.family) return contract_failure("family", contract.family, model.family);
  for (const auto& [field, values] : rows) {
    if (values.first != values.second)
      return contract_failure(field, std::to_string(values.first), std::to_string(values.second));
  }
  return std::nullopt;
}

const RopeGroup* find_group(const DecoderModel& model, const std::string& name) {
  const auto found = std::find_if(model.rope_groups.begin(), model.rope_groups.end(),
                                  [&](const RopeGroup& group) { return group.name == name; });
  return found == model.rope_groups.end() ? nullptr : &*found;
}

std::string pattern_text(const std::optional<BlockSparse>& pattern, uint32_t heads) {
  if (!pattern) return "none";
  return fmt::format("blocks of {}, {} local, vertical stride {}, head step {}, {} heads", pattern->block, pattern->local_blocks,
                     pattern->vertical_stride, pattern->head_step, heads);
}

// `step` is what `cache` belongs to.
std::optional<VerifyFailure> compare_layer(const CacheLayer& cache, const StepContract& step, const std::string& path,
                                           const DecoderModel& model) {
  const uint32_t index = cache.model_layer;
  if (index >= model.layers.size()) {
    return contract_failure(path + ".model_layer", std::to_string(index), fmt::format("{} layers", model.layers.size()), index);
  }
  const Attention& attention = model.layers[index].attention;
  if (cache.window != attention.window) {
    return contract_failure(path + ".window", window_text(cache.window), window_text(attention.window), index);
  }
  const MaskGroup& mask = *find_mask_group(step, cache.mask_group);
  const std::string got_pattern = pattern_text(mask.block_sparse, mask.heads);
  if (const std::string pattern = pattern_text(attention.block_sparse, attention.heads); got_pattern != pattern) {
    return contract_failure(fmt::format("masks.{}.block_sparse", mask.name), got_pattern, pattern, index);
  }
  if (cache.kv_heads != attention.kv_heads) {
    return contract_failure(path + ".kv_heads", std::to_string(cache.kv_heads), std::to_string(attention.kv_heads), index);
  }
  if (cache.head_dim != attention.head_dim) {
    return contract_failure(path + ".head_dim", std::to_string(cache.head_dim), std::to_string(attention.head_dim), index);
  }
  const std::string& group = model.rope_groups[attention.rope_group].name;
  if (cache.rope_group != group) return contract_failure(path + ".rope_group", cache.rope_group, group, index);
  return std::nullopt;
}

// The first layer of the slice that turns with a group's tables.
std::optional<uint32_t> layer_of_group(const StepContract& step, const std::string& group) {
  for (const CacheLayer& cache : step.caches) {
    if (cache.rope_group == group) return cache.model_layer;
  }
  return std::nullopt;
}

std::optional<VerifyFailure> compare_rope(const RopeRule& rule, const StepContract& step, const DecoderModel& model) {
  const std::optional<uint32_t> layer = layer_of_group(step, rule.group);
  const RopeGroup* group = find_group(model, rule.group);
  const std::string path = fmt::format("rope.{}", rule.group);
  if (group == nullptr) return contract_failure(path, "a group", "none of this name", layer);
  if (rule.width != group->width) {
    return contract_failure(path + ".width", std::to_string(rule.width), std::to_string(group->width), layer);
  }
  const double factor = group->attention_factor;
  if (!(std::abs(rule.attention_factor - factor) <= kTableTolerance * std::abs(factor))) {
    return contract_failure(path + ".attention_factor", fmt::format("{}", rule.attention_factor), fmt::format("{}", factor),
                            layer);
  }
  for (size_t i = 0; i < group->inv_freq.size(); ++i) {
    const double expected = group->inv_freq[i];
    const double got = i < rule.inv_freq.size() ? rule.inv_freq[i] : 0.0;
    if (std::abs(got - expected) <= kTableTolerance * std::abs(expected)) continue;
    VerifyFailure failure;
    failure.file = "host.safetensors";
    failure.tensor = fmt::format("rope_{}_inv_freq", rule.group);
    failure.layer = layer;
    failure.what = fmt::format("rotary frequency {}: got {}, the checkpoint has {}", i, got, expected);
    return failure;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Graph> read_graphs(const BundleContract& contract) {
  std::vector<Graph> graphs;
  for (const StepFile& step : contract.steps) graphs.push_back(read_onnx(contract.folder / step.file));
  return graphs;
}

std::optional<VerifyFailure> compare_graphs(const BundleContract& contract, const std::vector<Graph>& graphs,
                                            const Manifest& manifest) {
  TensorPlaces places;
  for (const ManifestTensor& tensor : manifest.tensors) places[{tensor.file, tensor.name}] = &tensor;
  for (size_t i = 0; i < graphs.size(); ++i) {
    const StepFile& step = contract.steps[i];
    const Graph& graph = graphs[i];
    if (auto failure = compare_ports(step.file, graph, graph.inputs(), step.contract.inputs, "input")) return failure;
    if (auto failure = compare_ports(step.file, graph, graph.outputs(), step.contract.outputs, "output")) return failure;
    if (auto failure = compare_constants(step.file, graph, places)) return failure;
  }
  if (contract.embedding) {
    const EmbeddingPlace& rows = *contract.embedding;
    const uint64_t bytes = tensor_bytes(rows.dtype, rows.shape);
    const bool listed = std::any_of(manifest.tensors.begin(), manifest.tensors.end(), [&](const ManifestTensor& tensor) {
      return tensor.file == rows.file && tensor.offset == rows.offset && tensor.bytes == bytes;
    });
    if (!listed) {
      VerifyFailure failure;
      failure.file = kContract;
      failure.tensor = "embedding";
      failure.what = fmt::format("field 'embedding': got {} bytes from {} of '{}', expected a tensor that manifest.json lists",
                                 bytes, rows.offset, rows.file);
      return failure;
    }
  }
  return std::nullopt;
}

std::optional<VerifyFailure> compare_contract(const BundleContract& contract, const DecoderModel& model) {
  if (auto failure = compare_dimensions(contract, model)) return failure;
  for (size_t s = 0; s < contract.steps.size(); ++s) {
    const StepContract& step = contract.steps[s].contract;
    for (size_t i = 0; i < step.caches.size(); ++i) {
      if (auto failure = compare_layer(step.caches[i], step, fmt::format("steps[{}].caches[{}]", s, i), model)) return failure;
    }
  }
  const StepContract& step = contract.steps.front().contract;
  for (const RopeRule& rule : contract.rope) {
    if (auto failure = compare_rope(rule, step, model)) return failure;
  }
  return std::nullopt;
}

}  // namespace transload
