// Adds up mapped weights, caches and the values of the largest call.
#include "export/verify_forecast.h"

#include <algorithm>
#include <map>

#include "io/file.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

// The command before it opens anything, and allocator slack.
constexpr uint64_t kProgramBytes = uint64_t{9} << 20;
constexpr uint64_t kFloatBytes = 4;

uint64_t constant_bytes_inline(const Graph& graph) {
  uint64_t bytes = 0;
  for (const ValueId id : graph.constants()) {
    const Recipe& recipe = graph.value(id).constant;
    if (!std::holds_alternative<SourceLeaf>(recipe.node().operation)) bytes += element_count(recipe.shape()) * kFloatBytes;
  }
  return bytes;
}

struct ValueBytes {
  uint64_t peak = 0;  // f32 values alive at the widest node
  uint64_t taps = 0;  // values that the reference keeps for the comparison, without logits
  uint64_t logits = 0;
};

// f32 inputs are read where the caches hold them; f16 ones are widened first.
ValueBytes value_bytes(const Graph& graph, bool widens_inputs) {
  std::vector<size_t> last(graph.values().size(), 0);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    for (const ValueId id : graph.nodes()[i].inputs) last[id] = i;
  }
  for (const ValueId id : graph.outputs()) last[id] = graph.nodes().size();
  std::vector<uint64_t> bytes_of(graph.values().size(), 0);
  ValueBytes bytes;
  uint64_t alive = 0;
  for (const ValueId id : graph.inputs()) {
    if (widens_inputs) bytes_of[id] = element_count(graph.value(id).shape) * kFloatBytes;
    alive += bytes_of[id];
  }
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    const Value& output = graph.value(node.output);
    const bool is_weight = node.inputs.size() == 1 && !graph.value(node.inputs[0]).constant.empty();  // folded away
    if (is_weight) continue;
    bytes_of[node.output] = element_count(output.shape) * kFloatBytes;
    alive += bytes_of[node.output];
    bytes.peak = std::max(bytes.peak, alive);
    for (const ValueId id : node.inputs) {
      if (last[id] != i) continue;
      alive -= bytes_of[id];
      bytes_of[id] = 0;  // also when the node reads it twice
    }
    // Shape changes and slices have no counterpart in the reference; matrices do.
    if (output.name == "logits") {
      bytes.logits = element_count(output.shape) * kFloatBytes;
    } else if (output.shape.size() == 2) {
      bytes.taps += element_count(output.shape) * kFloatBytes;
    }
  }
  return bytes;
}

}  // namespace

uint64_t bundle_weight_bytes(const BundleContract& contract, const std::vector<Graph>& graphs) {
  std::map<std::pair<std::string, uint64_t>, uint64_t> places;
  for (const Graph& graph : graphs) {
    for (const ValueId id : graph.constants()) {
      const auto* source = std::get_if<SourceLeaf>(&graph.value(id).constant.node().operation);
      if (source != nullptr) places[{source->tensor.file->name(), source->tensor.offset}] = source->tensor.bytes;
    }
  }
  if (contract.embedding) {
    const EmbeddingPlace& rows = *contract.embedding;
    places[{rows.file, rows.offset}] = tensor_bytes(rows.dtype, rows.shape);
  }
  uint64_t bytes = 0;
  for (const auto& [place, size] : places) bytes += size;
  return bytes;
}

VerifyForecast forecast_memory(const BundleContract& contract, const std::vector<Graph>& graphs, const Schedule& schedule,
                               uint64_t checkpoint_weights) {
  VerifyForecast forecast;
  forecast.bundle_weights = bundle_weight_bytes(contract, graphs);
  forecast.checkpoint_weights = checkpoint_weights;
  forecast.base = kProgramBytes;
  for (const Graph& graph : graphs) forecast.base += 2 * constant_bytes_inline(graph);
  for (const ScheduledCall& call : schedule.calls) {
    const auto index = static_cast<size_t>(call.step - contract.steps.data());
    const ValueBytes bytes = value_bytes(graphs[index], contract.compute == DType::f16);
    // The reference keeps taps of real tokens beside its own buffers; logits exist there, in a tap, as the rows compared, and all
    // of them in the call's output.
    const uint64_t query = call.step->contract.query;
    const uint64_t taps = (bytes.taps + bytes.taps / 4) / query;
    const uint64_t logits = bytes.logits / query;
    const uint64_t scale_logits = contract.head ? kScaleTokens * contract.vocab_size * kFloatBytes : 0;
    forecast.activations = std::max({forecast.activations, bytes.peak + taps * call.real + bytes.logits + 3 * logits * call.real,
                                     taps * kScaleTokens + 3 * scale_logits});
    uint64_t cache = 0;
    for (const CacheLayer& layer : call.step->contract.caches) {
      const uint64_t entry = uint64_t{2} * layer.kv_heads * layer.head_dim;
      cache += entry * layer.slots * (contract.compute == DType::f16 ? 2 : kFloatBytes);
      // Every key and value of the reference is kept to hold the caches against, beside the reference's own history.
      cache += 2 * entry * schedule.tokens * kFloatBytes;
    }
    forecast.kv = std::max(forecast.kv, cache);
  }
  return forecast;
}

}  // namespace transload
