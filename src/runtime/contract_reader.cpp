// Reads contract.json of a bundle and the rotary tables it names.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "base/half.h"
#include "base/printable.h"
#include "io/bundle_files.h"
#include "io/file.h"
#include "io/json_fields.h"
#include "io/safetensors.h"
#include "runtime/contract_check.h"
#include "transload/contract.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr std::string_view kFormat = "transload-contract";
constexpr int64_t kVersion = 1;

constexpr auto kInputRoles = {PortRole::embedding_rows, PortRole::token_ids, PortRole::hidden_in, PortRole::rope_cos,
                              PortRole::rope_sin,       PortRole::mask,      PortRole::k_cache,   PortRole::v_cache};
constexpr auto kOutputRoles = {PortRole::logits, PortRole::hidden, PortRole::k_new, PortRole::v_new};

DType float_type(const JsonFields& fields, std::string_view field) {
  return fields.choice<DType>(field, {{"f32", DType::f32}, {"f16", DType::f16}});
}

Port read_port(const JsonFields& fields, std::initializer_list<PortRole> roles) {
  Port port;
  port.name = fields.text("name");
  if (port.name.empty()) fields.fault("name", "empty: got '', expected the name of a tensor");
  const std::string role = fields.text("role");
  const auto found = std::find_if(roles.begin(), roles.end(), [&](PortRole known) { return port_role_name(known) == role; });
  if (found == roles.end()) {
    fields.fault("role", fmt::format("unknown value: got '{}', expected a role of that side of a graph", printable(role, 60)));
  }
  port.role = *found;
  port.dtype = fields.choice<DType>("dtype", {{"f32", DType::f32}, {"f16", DType::f16}, {"i32", DType::i32}});
  port.shape = fields.shape("shape");
  if (fields.has("group")) port.group = fields.text("group");
  if (fields.has("layer")) port.layer = fields.u32("layer", 0);
  return port;
}

CacheLayer read_cache(const JsonFields& fields) {
  CacheLayer cache;
  cache.layer = fields.u32("layer", 0);
  cache.model_layer = fields.u32("model_layer", 0);
  cache.rule =
      fields.choice<SlotRule>("rule", {{"append", SlotRule::append}, {"ring", SlotRule::ring}, {"roll", SlotRule::roll}});
  cache.mask_group = fields.text("mask_group");
  cache.rope_group = fields.text("rope_group");
  cache.window = fields.maybe_u32("window");
  cache.slots = fields.u32("slots");
  cache.new_entries = fields.u32("new_entries");
  cache.kv_heads = fields.u32("kv_heads");
  cache.head_dim = fields.u32("head_dim");
  return cache;
}

MaskGroup read_mask(const JsonFields& fields) {
  MaskGroup group{fields.text("group"), fields.maybe_u32("window")};
  if (!fields.has("block_sparse")) return group;
  if (group.window) {
    fields.fault("block_sparse", fmt::format("does not match: got it with window {}, expected window null", *group.window));
  }
  const JsonFields pattern = fields.object("block_sparse");
  group.heads = pattern.u32("heads");
  group.block_sparse = {.block = pattern.u32("block"),
                        .local_blocks = pattern.u32("local_blocks"),
                        .vertical_stride = pattern.u32("vertical_stride"),
                        .head_step = pattern.u32("head_step", 0)};
  return group;
}

// The graph of one step; the groups are those of the bundle until all its caches are known.
StepFile read_step(const JsonFields& fields, const StepContract& shared) {
  StepFile step{fields.plain_file("file"), shared};
  StepContract& contract = step.contract;
  contract.query = fields.u32("q");
  contract.context = fields.u32("context");
  fields.each_object("inputs", [&](const JsonFields& port) { contract.inputs.push_back(read_port(port, kInputRoles)); });
  fields.each_object("outputs", [&](const JsonFields& port) { contract.outputs.push_back(read_port(port, kOutputRoles)); });
  fields.each_object("caches", [&](const JsonFields& cache) { contract.caches.push_back(read_cache(cache)); });
  return step;
}

// Groups that no layer of the slice uses are left out, as in the contract of the graph that was written.
void keep_used_groups(StepContract& step) {
  const auto unused = [&](const std::string& name, std::string CacheLayer::*group) {
    return std::none_of(step.caches.begin(), step.caches.end(), [&](const CacheLayer& cache) { return cache.*group == name; });
  };
  std::erase_if(step.mask_groups, [&](const MaskGroup& mask) { return unused(mask.name, &CacheLayer::mask_group); });
  std::erase_if(step.rope_groups, [&](const std::string& name) { return unused(name, &CacheLayer::rope_group); });
}

struct NamedRope {
  RopeRule rule;
  std::string tensor;  // of host.safetensors
};

NamedRope read_rope(const JsonFields& fields) {
  NamedRope rope;
  rope.rule.group = fields.text("group");
  rope.rule.width = fields.u32("width", 2);
  rope.rule.table_width = fields.u32("table_width");
  rope.rule.attention_factor = fields.number("attention_factor");
  rope.tensor = fields.text("inv_freq");
  if (rope.rule.group.empty()) fields.fault("group", "empty: got '', expected a name");
  if (rope.rule.width % 2 != 0) fields.fault("width", fmt::format("odd: got {}, expected an even number", rope.rule.width));
  if (rope.rule.table_width != rope.rule.width && rope.rule.table_width != rope.rule.width / 2) {
    fields.fault("table_width",
                 fmt::format("does not match: got {}, expected width {} or half of it", rope.rule.table_width, rope.rule.width));
  }
  if (rope.rule.attention_factor <= 0) {
    fields.fault("attention_factor", fmt::format("out of range: got {}, expected more than 0", rope.rule.attention_factor));
  }
  return rope;
}

EmbeddingPlace read_embedding(const JsonFields& fields, const BundleContract& contract) {
  EmbeddingPlace place;
  place.file = fields.plain_file("file");
  place.offset = static_cast<uint64_t>(fields.integer("offset"));
  place.dtype = fields.choice<DType>("dtype", {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}});
  place.shape = fields.shape("shape");
  const Shape expected{contract.vocab_size, contract.hidden_size};
  if (place.shape != expected) {
    fields.fault("shape", fmt::format("does not match: got {}, expected {}", shape_text(place.shape), shape_text(expected)));
  }
  return place;
}

// Everything but the graphs and the rotary tables.
void read_bundle(const JsonFields& root, BundleContract& contract) {
  const JsonFields layers = root.object("layers");
  contract.family = root.text("family");
  contract.hidden_size = root.u32("hidden_size");
  contract.vocab_size = root.u32("vocab_size");
  contract.max_positions = root.u32("max_positions");
  contract.layers_in_model = layers.u32("of");
  contract.head = root.flag("head");
  contract.last_row_only = root.choice<bool>("logits", {{"all", false}, {"last", true}}) && contract.head;
  root.choice<bool>("cache_layout", {{"auto", true}, {"ring", true}, {"roll", true}});  // hosts go by the rule of each cache
  contract.compute = float_type(root, "compute");
  contract.weights = float_type(root, "weights");
  contract.mask_fill = root.number("mask_fill");
  const bool representable = contract.compute == DType::f32 || std::isfinite(f16_to_f32(f32_to_f16(contract.mask_fill)));
  if (contract.mask_fill >= 0 || !representable) {
    root.fault("mask_fill", fmt::format("out of range: got {}, expected a negative number of {}", contract.mask_fill,
                                        dtype_name(contract.compute)));
  }
  contract.input_form =
      root.choice<RowForm>("input_form", {{"rows", RowForm::rows}, {"ids", RowForm::ids}, {"hidden", RowForm::hidden}});
  const bool has_embedding = !root.is_null("embedding");
  if (has_embedding != (contract.input_form == RowForm::rows)) {
    root.fault("embedding", fmt::format("does not match 'input_form': got {}, expected {}", has_embedding ? "an object" : "null",
                                        has_embedding ? "null" : "the place of the rows"));
  }
  if (has_embedding) contract.embedding = read_embedding(root.object("embedding"), contract);
  contract.bos_token = root.maybe_integer("bos_token", 0, std::numeric_limits<int64_t>::max());
  contract.eos_tokens = root.integers("eos_tokens", 0);
  if (!root.is_null("tokenizer")) contract.tokenizer = root.plain_file("tokenizer");
}

// What all graphs of the bundle have in common.
StepContract read_shared(const JsonFields& root, const BundleContract& contract) {
  StepContract shared;
  const JsonFields layers = root.object("layers");
  shared.first_layer = layers.u32("first", 0);
  shared.end_layer = layers.u32("end");
  if (shared.first_layer >= shared.end_layer || shared.end_layer > contract.layers_in_model) {
    layers.fault("end", fmt::format("not a slice: got {} to {}, expected layers of {}", shared.first_layer, shared.end_layer,
                                    contract.layers_in_model));
  }
  shared.head = contract.head;
  root.each_object("masks", [&](const JsonFields& fields) {
    MaskGroup group = read_mask(fields);
    for (const MaskGroup& known : shared.mask_groups) {
      if (known.name == group.name)
        fields.fault("group", fmt::format("repeated: got '{}' twice, expected once", printable(group.name, 60)));
    }
    shared.mask_groups.push_back(std::move(group));
  });
  for (const RopeRule& rule : contract.rope) shared.rope_groups.push_back(rule.group);
  const bool is_half = !contract.rope.empty() && contract.rope.front().table_width != contract.rope.front().width;
  shared.rope_width = is_half ? RopeWidth::half : RopeWidth::full;
  return shared;
}

void require_files(const BundleContract& contract) {
  std::vector<std::string> missing;
  const auto require = [&](const std::string& name) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(contract.folder / name, ignored)) {
      missing.push_back(fmt::format("file of the bundle is missing: got none, expected '{}'", printable(name, 80)));
    }
  };
  for (const StepFile& step : contract.steps) require(step.file);
  if (contract.embedding) require(contract.embedding->file);
  if (!contract.tokenizer.empty()) require(contract.tokenizer);
  if (!missing.empty()) throw Error(ErrorCode::file_missing, join_faults(missing), {kContractFile, {}, {}});
}

std::vector<float> read_frequencies(const TensorInfo& tensor, uint32_t width) {
  const ErrorSite site{kHostFile, tensor.name, tensor.offset};
  if (tensor.dtype != DType::f32) {
    throw Error(ErrorCode::dtype_mismatch, fmt::format("dtype does not match: got {}, expected f32", dtype_name(tensor.dtype)),
                site);
  }
  const Shape expected{width / 2};
  if (tensor.shape != expected) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("shape does not match: got {}, expected {}", shape_text(tensor.shape), shape_text(expected)), site);
  }
  std::vector<float> values(width / 2);
  tensor.file->read_at(tensor.offset, std::as_writable_bytes(std::span(values)));
  const auto unusable = std::find_if_not(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  if (unusable != values.end()) {
    throw Error(ErrorCode::config_invalid, fmt::format("frequency is not finite: got {}, expected a number", *unusable), site);
  }
  return values;
}

void read_rope_tables(const std::vector<NamedRope>& ropes, BundleContract& contract) {
  if (ropes.empty()) return;
  const SafetensorsHeader header = read_safetensors(InputFile::open(contract.folder / kHostFile));
  for (size_t i = 0; i < ropes.size(); ++i) {
    const auto found = std::find_if(header.tensors.begin(), header.tensors.end(),
                                    [&](const TensorInfo& tensor) { return tensor.name == ropes[i].tensor; });
    if (found == header.tensors.end()) {
      throw Error(ErrorCode::tensor_missing, "missing: got none, expected the frequencies of a rope group",
                  {kHostFile, printable(ropes[i].tensor, 80), {}});
    }
    contract.rope[i].inv_freq = read_frequencies(*found, contract.rope[i].width);
  }
}

}  // namespace

BundleContract read_contract(const std::filesystem::path& bundle) {
  const std::string text = read_text_file(bundle / kContractFile);
  const Json json = parse_json(text, kContractFile);
  const JsonFields root(json, kContractFile);
  if (root.text("format") != kFormat) {
    root.fault("format", fmt::format("unknown format: got '{}', expected '{}'", printable(root.text("format"), 60), kFormat));
  }
  if (root.integer("version") != kVersion) {
    root.fault("version", fmt::format("unknown version: got {}, expected {}", root.integer("version"), kVersion),
               ErrorCode::config_unsupported);
  }
  BundleContract contract;
  contract.folder = bundle;
  read_bundle(root, contract);
  std::vector<NamedRope> ropes;
  root.each_object("rope", [&](const JsonFields& fields) {
    NamedRope rope = read_rope(fields);
    for (const RopeRule& known : contract.rope) {
      if (known.group == rope.rule.group) {
        fields.fault("group", fmt::format("repeated: got '{}' twice, expected once", printable(known.group, 60)));
      }
      if ((known.table_width == known.width) != (rope.rule.table_width == rope.rule.width)) {
        fields.fault("table_width",
                     fmt::format("differs in form from group '{}': got {} of {}, expected {} of {}", printable(known.group, 60),
                                 rope.rule.table_width, rope.rule.width, known.table_width, known.width));
      }
    }
    contract.rope.push_back(rope.rule);
    ropes.push_back(std::move(rope));
  });
  const StepContract shared = read_shared(root, contract);
  root.each_object("steps", [&](const JsonFields& fields) { contract.steps.push_back(read_step(fields, shared)); });
  if (contract.steps.empty()) root.fault("steps", "no graphs: got 0, expected at least 1");
  check_contract(contract);
  for (StepFile& step : contract.steps) keep_used_groups(step.contract);
  require_files(contract);
  read_rope_tables(ropes, contract);
  return contract;
}

}  // namespace transload
