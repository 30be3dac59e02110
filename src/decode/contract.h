// The host contract of a decode-step graph: inputs, outputs, their roles, cache slots, mask and rotary rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transload/dtype.h"
#include "transload/step_options.h"

namespace transload {

enum class PortRole : uint8_t {
  embedding_rows,
  token_ids,
  hidden_in,
  rope_cos,
  rope_sin,
  mask,
  k_cache,
  v_cache,
  logits,
  hidden,
  k_new,
  v_new
};
std::string_view port_role_name(PortRole role);

struct Port {
  std::string name;
  PortRole role = PortRole::logits;
  DType dtype = DType::f32;
  Shape shape;
  std::string group;              // rope or mask group, else empty
  std::optional<uint32_t> layer;  // cache index, from 0 in the slice
};

enum class SlotRule : uint8_t {
  append,  // slot = position
  ring,    // slot = position mod slots
  roll,    // oldest first, newest last; the graph returns the rebuilt window
};
std::string_view slot_rule_name(SlotRule rule);

// Attention layers that share a mask: full attention, or one window.
struct MaskGroup {
  std::string name;  // "sw", "full"
  std::optional<uint32_t> window;
};

struct CacheLayer {
  uint32_t layer = 0;        // in the slice
  uint32_t model_layer = 0;  // in the checkpoint
  SlotRule rule = SlotRule::append;
  std::string mask_group;
  std::string rope_group;
  std::optional<uint32_t> window;
  uint32_t slots = 0;
  uint32_t new_entries = 0;  // length of k_new: q, or for roll max(slots, q)
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
};

struct StepContract {
  uint32_t query = 1;
  uint32_t context = 0;
  std::vector<Port> inputs;  // graph order
  std::vector<Port> outputs;
  std::vector<CacheLayer> caches;
  std::vector<MaskGroup> mask_groups;  // those some layer of the slice uses
  std::vector<std::string> rope_groups;
  RopeWidth rope_width = RopeWidth::full;
  uint32_t first_layer = 0;
  uint32_t end_layer = 0;
  bool head = true;
};

// Whether some layer of the slice turns with this group's tables.
bool uses_rope_group(const StepContract& contract, std::string_view name);

// Elements of all cache inputs of the slice: as the layout keeps them, and as a uniform cache would (C slots in every layer).
struct KvElements {
  uint64_t hybrid = 0;
  uint64_t uniform = 0;
};
KvElements kv_elements(const StepContract& contract);

}  // namespace transload
