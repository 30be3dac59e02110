// How much memory the KV cache of a model takes, by layer and context, in every layout; nothing but headers is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "transload/checkpoint.h"
#include "transload/export_onnx.h"

namespace transload {

struct KvLayoutMemory {
  std::string layout;  // "auto", "ring", "roll", "uniform" (context slots in every layer)
  std::vector<KvLayerSummary> layers;
  uint64_t elements = 0;          // of all layers, keys and values
  uint64_t sliding_elements = 0;  // of the layers with a window
};

struct KvContextMemory {
  uint32_t context = 0;
  std::vector<KvLayoutMemory> layouts;  // auto, ring, roll, uniform
};

struct KvMemory {
  std::string family;
  uint32_t max_positions = 0;
  std::vector<KvContextMemory> contexts;  // in the order asked for
};

// Throws what build_model throws, and usage for no context at all and for one of 0 or above max_positions.
KvMemory kv_memory(const Checkpoint& checkpoint, const std::vector<uint32_t>& contexts);

// Bytes at `element_bytes` (4, 2 or 1) an element, as one JSON object.
std::string kv_memory_json(const KvMemory& memory, uint32_t element_bytes);
// A self-contained SVG: for each context a bar of each layout, stacked by kind of layer, all on one scale. Throws usage for an
// element of another size.
std::string kv_memory_svg(const KvMemory& memory, uint32_t element_bytes);
// The SVG as a file that appears whole or not at all; replaces a regular file. Throws io_failure.
void write_kv_memory_svg(const KvMemory& memory, uint32_t element_bytes, const std::filesystem::path& path);

}  // namespace transload
