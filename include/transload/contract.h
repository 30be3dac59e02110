// The host contract of a bundle and of each decode-step graph in it: inputs, outputs, their roles, cache slots, mask and rotary
// rules. docs/contract.md says how a host goes by it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transload/block_sparse.h"
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

// Attention layers that share a mask: full attention, one window, or one block-sparse pattern.
struct MaskGroup {
  std::string name;  // "sw", "blocksparse", "full"
  std::optional<uint32_t> window;
  std::optional<BlockSparse> block_sparse = {};
  uint32_t heads = 1;  // second axis of the mask: the query heads with block_sparse, else 1
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

const MaskGroup* find_mask_group(const StepContract& contract, std::string_view name);

// Whether some layer of the slice turns with this group's tables.
bool uses_rope_group(const StepContract& contract, std::string_view name);

uint64_t kv_elements(const CacheLayer& cache);  // keys and values of one layer

// Elements of all cache inputs of the slice: as the layout keeps them, and as a uniform cache would (C slots in every layer).
struct KvElements {
  uint64_t hybrid = 0;
  uint64_t uniform = 0;
};
KvElements kv_elements(const StepContract& contract);

// Raw embedding rows [vocab, hidden] for the host: `offset` is in bytes from the start of `file`, a file of the bundle.
struct EmbeddingPlace {
  std::string file;
  uint64_t offset = 0;
  DType dtype = DType::f32;
  Shape shape;
};

// One rotary table of the bundle: the frequencies are those of host.safetensors.
struct RopeRule {
  std::string group;
  uint32_t width = 0;        // elements of a head that turn
  uint32_t table_width = 0;  // columns of the cos and sin inputs: width, or width / 2
  float attention_factor = 1.0F;
  std::vector<float> inv_freq;  // [width / 2]
};

struct StepFile {
  std::string file;  // step_q<q>_c<C>.onnx
  StepContract contract;
};

enum class RowForm : uint8_t { rows, ids, hidden };

// contract.json of a bundle, validated, with the tables of host.safetensors that it names.
struct BundleContract {
  std::filesystem::path folder;
  std::string family;
  uint32_t hidden_size = 0;
  uint32_t vocab_size = 0;
  uint32_t max_positions = 0;
  uint32_t layers_in_model = 0;
  bool head = true;
  bool last_row_only = false;  // `logits` is [1, V], the row of the call's last token
  DType compute = DType::f32;  // of x, cos, sin, masks, caches and logits
  DType weights = DType::f32;  // as stored
  float mask_fill = 0;         // value of a closed mask column
  RowForm input_form = RowForm::rows;
  std::optional<EmbeddingPlace> embedding;  // with input_form rows
  std::optional<int64_t> bos_token;
  std::vector<int64_t> eos_tokens;
  std::string tokenizer;  // file in the bundle, or empty
  std::vector<RopeRule> rope;
  std::vector<StepFile> steps;  // in the order of contract.json; all of one slice of layers

  std::vector<uint32_t> contexts() const;                 // ascending, each once
  std::vector<uint32_t> queries(uint32_t context) const;  // ascending
  const StepFile* find_step(uint32_t query, uint32_t context) const;
  const RopeRule& rope_rule(std::string_view group) const;  // throws internal when absent
};

// Reads <bundle>/contract.json and the rope tables. Everything a host relies on is checked: shapes of ports against caches, mask
// columns, slots against window and context, names of files (plain, in the bundle). Throws Error: file_missing, bad_json,
// config_missing, config_invalid (a field of contract.json that is wrong), config_unsupported (another format version),
// size_overflow, io_failure; and of host.safetensors tensor_missing, dtype_mismatch, shape_mismatch, bad_header, bad_offset,
// duplicate_name, dtype_unsupported, format_limit.
BundleContract read_contract(const std::filesystem::path& bundle);

}  // namespace transload
