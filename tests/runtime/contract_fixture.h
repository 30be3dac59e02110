// Small bundles without graphs for tests of the host side: contract.json by the rules of docs/contract.md, and rotary tables.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "io/scratch_folder.h"
#include "transload/contract.h"

namespace transload {

struct FixtureOptions {
  std::vector<std::optional<uint32_t>> windows{5, std::nullopt};  // one for each layer
  bool roll = false;
  std::optional<BlockSparse> block_sparse;  // of the layers without a window, with two query heads for each kv head
  std::vector<std::pair<uint32_t, uint32_t>> steps{{1, 16}, {4, 16}};  // (q, context)
  std::string compute = "f32";
  uint32_t kv_heads = 2;
  uint32_t head_dim = 6;
  uint32_t hidden_size = 4;
  uint32_t vocab_size = 7;
  uint32_t max_positions = 500;
  uint32_t rope_width = 6;
  bool half_rope = false;
  double attention_factor = 1.0;
  std::vector<float> inv_freq{1.0F, 0.25F, 0.0625F};
};

inline Json fixture_port(const std::string& name, const char* role, const std::string& dtype, std::vector<uint32_t> shape,
                         const char* group = nullptr, std::optional<uint32_t> layer = std::nullopt) {
  Json::Array dims;
  for (const uint32_t dim : shape) dims.push_back(dim);
  Json port = Json::Object{{"name", name}, {"role", role}, {"dtype", dtype}, {"shape", dims}};
  if (group != nullptr) port.set("group", group);
  if (layer) port.set("layer", *layer);
  return port;
}

inline std::string fixture_group(const FixtureOptions& options, const std::optional<uint32_t>& window) {
  if (window) return "sw" + std::to_string(*window);
  return options.block_sparse ? "blocksparse" : "full";
}

inline Json fixture_step(const FixtureOptions& options, uint32_t q, uint32_t context) {
  Json::Array inputs{fixture_port("x", "embedding_rows", options.compute, {1, q, options.hidden_size})};
  Json::Array outputs{fixture_port("logits", "logits", options.compute, {q, options.vocab_size})};
  const uint32_t table = options.half_rope ? options.rope_width / 2 : options.rope_width;
  inputs.push_back(fixture_port("cos_sw", "rope_cos", options.compute, {1, 1, q, table}, "sw"));
  inputs.push_back(fixture_port("sin_sw", "rope_sin", options.compute, {1, 1, q, table}, "sw"));
  Json::Array masks;
  Json::Array caches;
  Json::Array buffers;
  std::vector<std::string> seen;
  for (uint32_t i = 0; i < options.windows.size(); ++i) {
    const std::optional<uint32_t> window = options.windows[i];
    const bool roll = window && options.roll;
    uint32_t slots = context;
    if (window) slots = std::min(context, roll ? *window : std::max(*window - 1, 1U));
    const uint32_t entries = roll ? std::max(slots, q) : q;
    const bool sparse = !window && options.block_sparse;
    const std::string group = fixture_group(options, window);
    const auto mask = std::find(seen.begin(), seen.end(), group);
    if (mask == seen.end()) {
      seen.push_back(group);
      masks.push_back(fixture_port("mask_" + group, "mask", options.compute,
                                   {1, sparse ? 2 * options.kv_heads : 1, q, slots + q - (roll ? 1 : 0)}, group.c_str()));
    }
    for (const char* kind : {"k", "v"}) {
      const std::string k = kind;
      const std::string layer = std::to_string(i);
      buffers.push_back(fixture_port(k + "_cache_" + layer, (k + "_cache").c_str(), options.compute,
                                     {1, options.kv_heads, slots, options.head_dim}, nullptr, i));
      outputs.push_back(fixture_port(k + "_new_" + layer, (k + "_new").c_str(), options.compute,
                                     {1, options.kv_heads, entries, options.head_dim}, nullptr, i));
    }
    caches.push_back(Json::Object{{"layer", i},
                                  {"model_layer", i},
                                  {"rule", !window ? "append"
                                           : roll  ? "roll"
                                                   : "ring"},
                                  {"mask_group", group},
                                  {"rope_group", "sw"},
                                  {"window", window ? Json(*window) : Json()},
                                  {"slots", slots},
                                  {"new_entries", entries},
                                  {"kv_heads", options.kv_heads},
                                  {"head_dim", options.head_dim}});
  }
  inputs.insert(inputs.end(), masks.begin(), masks.end());
  inputs.insert(inputs.end(), buffers.begin(), buffers.end());
  return Json::Object{{"file", "step_q" + std::to_string(q) + "_c" + std::to_string(context) + ".onnx"},
                      {"q", q},
                      {"context", context},
                      {"inputs", inputs},
                      {"outputs", outputs},
                      {"caches", caches}};
}

inline Json fixture_contract(const FixtureOptions& options = {}) {
  Json::Array masks;
  std::vector<std::optional<uint32_t>> seen;
  for (const auto& window : options.windows) {
    if (std::find(seen.begin(), seen.end(), window) != seen.end()) continue;
    seen.push_back(window);
    Json mask = Json::Object{{"group", fixture_group(options, window)}, {"window", window ? Json(*window) : Json()}};
    if (!window && options.block_sparse) {
      const BlockSparse& pattern = *options.block_sparse;
      mask.set("block_sparse", Json::Object{{"heads", 2 * options.kv_heads},
                                            {"block", pattern.block},
                                            {"local_blocks", pattern.local_blocks},
                                            {"vertical_stride", pattern.vertical_stride},
                                            {"head_step", pattern.head_step}});
    }
    masks.push_back(std::move(mask));
  }
  Json::Array steps;
  for (const auto& [q, context] : options.steps) steps.push_back(fixture_step(options, q, context));
  const auto layers = static_cast<uint32_t>(options.windows.size());
  return Json::Object{
      {"format", "transload-contract"},
      {"version", 1},
      {"family", "tiny"},
      {"hidden_size", options.hidden_size},
      {"vocab_size", options.vocab_size},
      {"max_positions", options.max_positions},
      {"layers", Json::Object{{"first", 0}, {"end", layers}, {"of", layers}}},
      {"head", true},
      {"logits", "all"},
      {"cache_layout", options.roll ? "roll" : "ring"},
      {"compute", options.compute},
      {"weights", options.compute},
      {"mask_fill", options.compute == "f16" ? -1e4 : -1e9},
      {"input_form", "rows"},
      {"embedding", Json::Object{{"file", "weights.bin"},
                                 {"offset", 0},
                                 {"dtype", "f32"},
                                 {"shape", Json::Array{options.vocab_size, options.hidden_size}}}},
      {"bos_token", Json()},
      {"eos_tokens", Json::Array{1, 2}},
      {"tokenizer", Json()},
      {"rope", Json::Array{Json::Object{{"group", "sw"},
                                        {"width", options.rope_width},
                                        {"table_width", options.half_rope ? options.rope_width / 2 : options.rope_width},
                                        {"inv_freq", "rope_sw_inv_freq"},
                                        {"attention_factor", options.attention_factor}}}},
      {"masks", masks},
      {"steps", steps}};
}

// host.safetensors with one f32 tensor.
inline std::string fixture_tables(const std::vector<float>& inv_freq, const std::string& name = "rope_sw_inv_freq") {
  const size_t size = inv_freq.size() * sizeof(float);
  const std::string header = "{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(inv_freq.size()) +
                             "],\"data_offsets\":[0," + std::to_string(size) + "]}}";
  std::string bytes = safetensors_bytes(header, size);
  std::memcpy(bytes.data() + bytes.size() - size, inv_freq.data(), size);
  return bytes;
}

// The files around contract.json; graphs are empty, as nothing of the host side opens them.
inline void write_fixture(const ScratchFolder& folder, const Json& contract, const std::vector<float>& inv_freq) {
  folder.write("contract.json", write_json(contract, 1));
  folder.write("host.safetensors", fixture_tables(inv_freq));
  folder.write("weights.bin", "");
  const Json* steps = contract.find("steps");
  if (steps == nullptr || !steps->is_array()) return;
  for (const Json& step : steps->array()) {
    const Json* file = step.find("file");
    if (file != nullptr && file->is_string() && file->string().find('/') == std::string::npos) folder.write(file->string(), "");
  }
}

inline BundleContract read_fixture(const FixtureOptions& options = {}) {
  const ScratchFolder folder;
  write_fixture(folder, fixture_contract(options), options.inv_freq);
  return read_contract(folder.path());
}

}  // namespace transload
