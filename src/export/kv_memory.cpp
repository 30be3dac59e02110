// KV cache of every layout, counted from the very contracts that an export would write.
#include "transload/kv_memory.h"

#include <algorithm>

#include "decode/decode_step.h"
#include "export/kv_summary.h"
#include "io/json.h"
#include "transload/decoder_model.h"
#include "transload/error.h"

namespace transload {
namespace {

void add_up(KvLayoutMemory& layout) {
  for (const KvLayerSummary& layer : layout.layers) {
    layout.elements += layer.elements;
    if (layer.attention == "sliding") layout.sliding_elements += layer.elements;
  }
}

KvLayoutMemory layout_of(const DecoderModel& model, uint32_t context, const char* name, CacheLayout cache_layout) {
  StepOptions options;
  options.context = context;
  options.cache_layout = cache_layout;
  KvLayoutMemory layout{name, kv_summary(build_decode_step(model, options).contract).layers};
  add_up(layout);
  return layout;
}

// What a host without sliding windows keeps: every position in every layer.
KvLayoutMemory uniform_of(const KvLayoutMemory& hybrid, uint32_t context) {
  KvLayoutMemory layout{"uniform", hybrid.layers};
  for (KvLayerSummary& layer : layout.layers) {
    layer.elements = layer.elements / layer.slots * context;
    layer.slots = context;
    layer.rule = "append";
  }
  add_up(layout);
  return layout;
}

Json layout_json(const KvLayoutMemory& layout, const KvLayoutMemory& uniform, uint32_t element_bytes) {
  Json::Array layers;
  for (const KvLayerSummary& layer : layout.layers) {
    layers.push_back(Json::Object{{"layer", layer.layer},
                                  {"attention", layer.attention},
                                  {"rule", layer.rule},
                                  {"slots", layer.slots},
                                  {"bytes", layer.elements * element_bytes}});
  }
  return Json::Object{{"layout", layout.layout},
                      {"bytes", layout.elements * element_bytes},
                      {"sliding_bytes", layout.sliding_elements * element_bytes},
                      {"full_bytes", (layout.elements - layout.sliding_elements) * element_bytes},
                      {"saved_bytes", (uniform.elements - layout.elements) * element_bytes},
                      {"layers", std::move(layers)}};
}

}  // namespace

KvMemory kv_memory(const Checkpoint& checkpoint, const std::vector<uint32_t>& contexts) {
  if (contexts.empty()) throw Error(ErrorCode::usage, "contexts of the KV cache: got none, expected at least one");
  const DecoderModel model = build_model(checkpoint, ModelOptions{*std::max_element(contexts.begin(), contexts.end())});
  KvMemory memory{model.family, model.max_positions, {}};
  for (const uint32_t context : contexts) {
    KvContextMemory entry{context, {}};
    for (const auto& [name, layout] : {std::pair{"auto", CacheLayout::automatic}, std::pair{"ring", CacheLayout::ring},
                                       std::pair{"roll", CacheLayout::roll}}) {
      entry.layouts.push_back(layout_of(model, context, name, layout));
    }
    entry.layouts.push_back(uniform_of(entry.layouts.front(), context));
    memory.contexts.push_back(std::move(entry));
  }
  return memory;
}

std::string kv_memory_json(const KvMemory& memory, uint32_t element_bytes) {
  Json::Array contexts;
  for (const KvContextMemory& entry : memory.contexts) {
    Json::Array layouts;
    for (const KvLayoutMemory& layout : entry.layouts) {
      layouts.push_back(layout_json(layout, entry.layouts.back(), element_bytes));
    }
    contexts.push_back(Json::Object{{"context", entry.context}, {"layouts", std::move(layouts)}});
  }
  return write_json(Json::Object{{"family", memory.family},
                                 {"max_positions", memory.max_positions},
                                 {"element_bytes", element_bytes},
                                 {"contexts", std::move(contexts)}});
}

}  // namespace transload
