// Reads config.json of both generations of TensorRT-LLM checkpoints and refuses what their loaders refuse.
#include "targets/trtllm/trtllm_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "base/printable.h"
#include "io/json_fields.h"
#include "targets/trtllm/config_text.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr uint32_t kMostLayers = 4096;
constexpr uint32_t kMostExperts = 4096;

// Only the converters of 0.12 write the first; users have to add 'position_embedding_type' to theirs, so it alone tells nothing.
constexpr std::string_view kOldField = "share_embedding_table";
constexpr std::array<std::string_view, 4> kNewFields = {"logits_dtype", "rotary_scaling", "runtime_defaults", "qk_layernorm"};

// Both objects go to constructors with fixed parameters: any other key stops the loader.
constexpr auto kMappingFields =
    std::to_array<std::string_view>({"world_size", "gpus_per_node", "cp_size", "tp_size", "pp_size", "moe_tp_size",
                                     "moe_cluster_size", "moe_ep_size", "attn_tp_size", "attn_cp_size", "auto_parallel"});
constexpr auto kOldMappingFields =
    std::to_array<std::string_view>({"world_size", "gpus_per_node", "tp_size", "pp_size", "moe_tp_size", "moe_ep_size"});
constexpr auto kQuantFields =
    std::to_array<std::string_view>({"quant_algo", "kv_cache_quant_algo", "group_size", "smoothquant_val", "clamp_val",
                                     "use_meta_recipe", "has_zero_point", "pre_quant_scale", "exclude_modules"});

std::string shown(const Json& value) { return printable(write_json(value, 0), 60); }

const Json* value_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

template <typename Fields>
void refuse_unknown(const JsonFields& reader, const Json& object, const Fields& known) {
  for (const auto& [key, value] : object.object()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      reader.fault(printable(key, 60),
                   fmt::format("unknown to the loader: got {}, expected one of {}", shown(value), fmt::join(known, ", ")));
    }
  }
}

TrtllmFormat format_of(const Json& config, const JsonFields& root) {
  const auto* newer =
      std::find_if(kNewFields.begin(), kNewFields.end(), [&](std::string_view key) { return config.find(key) != nullptr; });
  const bool is_new = newer != kNewFields.end();
  const bool is_old = config.find(kOldField) != nullptr;
  if (is_old && is_new) {
    root.fault(*newer, fmt::format("mixed with '{}' of format 0.12: got both, expected the fields of one format", kOldField));
  }
  if (!is_old && !is_new && config.find("position_embedding_type") == nullptr) {
    root.fault("", fmt::format("format of config.json: got neither '{}' (0.12) nor 'position_embedding_type' or '{}' (1.x), "
                               "expected one format",
                               kOldField, fmt::join(kNewFields, "', '")));
  }
  return is_old ? TrtllmFormat::v0_12 : TrtllmFormat::v1;
}

const TrtllmArchitecture& architecture_of(const JsonFields& root, TrtllmFormat format) {
  const std::string name = root.text("architecture");
  std::vector<std::string_view> known;
  for (const TrtllmArchitecture& row : trtllm_architectures()) {
    const std::string_view own = format == TrtllmFormat::v1 ? row.v1_name : row.v0_12_name;
    if (own == name) return row;
    if (!own.empty() && std::find(known.begin(), known.end(), own) == known.end()) known.push_back(own);
  }
  root.fault("architecture",
             fmt::format("not supported in format {}: got '{}', expected one of {}", trtllm_format_name(format),
                         printable(name, 60), fmt::join(known, ", ")),
             ErrorCode::arch_unknown);
}

void read_dimensions(TrtllmCheckpoint& checkpoint, const JsonFields& root) {
  const Json& config = checkpoint.config;
  TrtllmDimensions& d = checkpoint.dimensions;
  d.hidden = root.u32("hidden_size");
  d.intermediate = root.u32("intermediate_size");
  d.vocab = root.u32("vocab_size");
  d.layers = static_cast<uint32_t>(root.integer("num_hidden_layers", 1, kMostLayers));
  d.heads = root.u32("num_attention_heads");
  d.kv_heads = value_of(config, "num_key_value_heads") == nullptr ? d.heads : root.u32("num_key_value_heads");
  if (value_of(config, "head_size") != nullptr) {
    d.head_dim = root.u32("head_size");
  } else if (d.hidden % d.heads == 0) {
    d.head_dim = d.hidden / d.heads;
  } else {
    root.fault("num_attention_heads",
               fmt::format("does not divide hidden_size: got {}, expected a divisor of {}", d.heads, d.hidden));
  }
  if (d.heads % d.kv_heads != 0) {
    root.fault("num_key_value_heads",
               fmt::format("does not divide num_attention_heads: got {}, expected a divisor of {}", d.kv_heads, d.heads));
  }
  if (uint64_t{d.heads} * d.head_dim > kMaxDimension) {
    root.fault("head_size",
               fmt::format("heads x head size: got {}, expected at most {}", uint64_t{d.heads} * d.head_dim, kMaxDimension));
  }
  if (checkpoint.architecture->expert_fields) {
    const JsonFields moe = root.object("moe");
    d.experts = static_cast<uint32_t>(moe.integer("num_experts", 1, kMostExperts));
    // 2 is the sparse mixer; the model class has no other routing.
    if (const int64_t mode = moe.integer("normalization_mode"); mode != 2) {
      moe.fault("normalization_mode", fmt::format("got {}, expected 2 (sparse mixer)", mode), ErrorCode::config_unsupported);
    }
    if (const int64_t chosen = moe.integer("top_k"); chosen != 2) {
      moe.fault("top_k", fmt::format("got {}, expected 2, which the sparse mixer chooses", chosen),
                ErrorCode::config_unsupported);
    }
  } else if (value_of(config, "moe") != nullptr) {
    // Models without experts write num_experts 0 in some releases.
    const JsonFields moe = root.object("moe");
    if (const int64_t experts = moe.integer("num_experts"); experts != 0) {
      moe.fault("num_experts", fmt::format("got {}, expected 0 for '{}'", experts, checkpoint.architecture->name),
                ErrorCode::config_unsupported);
    }
  }
}

// A size of the mapping, 1 when absent.
uint32_t ranks_of(const JsonFields& mapping, std::string_view field, uint32_t fallback = 1) {
  return mapping.has(field) ? static_cast<uint32_t>(mapping.integer(field, 1, kMaxTrtllmRanks)) : fallback;
}

void expect_one(const JsonFields& mapping, std::string_view field) {
  if (const uint32_t size = ranks_of(mapping, field); size != 1) {
    mapping.fault(field, fmt::format("got {}, expected 1", size), ErrorCode::config_unsupported);
  }
}

void read_mapping(TrtllmCheckpoint& checkpoint, const JsonFields& root) {
  TrtllmMapping& sizes = checkpoint.options.mapping;
  const Json* object = value_of(checkpoint.config, "mapping");
  if (object == nullptr) return;  // the loader then takes one rank
  const JsonFields mapping = root.object("mapping");
  if (checkpoint.options.format == TrtllmFormat::v1) {
    refuse_unknown(mapping, *object, kMappingFields);
  } else {
    refuse_unknown(mapping, *object, kOldMappingFields);
  }
  expect_one(mapping, "cp_size");
  expect_one(mapping, "attn_cp_size");
  expect_one(mapping, "moe_cluster_size");
  if (mapping.has("auto_parallel") && mapping.flag("auto_parallel")) {
    mapping.fault("auto_parallel", "got true, expected false", ErrorCode::config_unsupported);
  }
  sizes.tensor = ranks_of(mapping, "tp_size");
  sizes.pipeline = ranks_of(mapping, "pp_size");
  sizes.expert = ranks_of(mapping, "moe_ep_size");
  const auto expect = [&](std::string_view field, uint64_t expected, std::string_view formula) {
    if (const uint64_t got = ranks_of(mapping, field, static_cast<uint32_t>(expected)); got != expected) {
      mapping.fault(field, fmt::format("got {}, expected {} ({})", got, expected, formula));
    }
  };
  const uint64_t world = uint64_t{sizes.tensor} * sizes.pipeline;
  if (world > kMaxTrtllmRanks)
    mapping.fault("world_size", fmt::format("ranks: got {}, expected at most {}", world, kMaxTrtllmRanks));
  expect("world_size", world, "tp_size x pp_size");
  expect("attn_tp_size", sizes.tensor, "tp_size");
  if (sizes.tensor % sizes.expert != 0) {
    mapping.fault("moe_ep_size",
                  fmt::format("does not divide tp_size: got {}, expected a divisor of {}", sizes.expert, sizes.tensor));
  }
  expect("moe_tp_size", sizes.tensor / sizes.expert, "tp_size / moe_ep_size");
}

void check_split(const TrtllmCheckpoint& checkpoint) {
  const TrtllmDimensions& d = checkpoint.dimensions;
  const TrtllmMapping& mapping = checkpoint.options.mapping;
  std::vector<std::string> faults;
  const auto divides = [&](std::string_view what, uint32_t whole, std::string_view by, uint32_t parts) {
    if (whole % parts != 0)
      faults.push_back(fmt::format("{} do not split over {}: got {}, expected a divisor of {}", what, by, parts, whole));
  };
  divides("attention heads", d.heads, "tp_size", mapping.tensor);
  if (d.experts > 0) {
    divides("experts", d.experts, "moe_ep_size", mapping.expert);
    divides("channels of the experts", d.intermediate, "moe_tp_size", mapping.moe_tensor());
  } else {
    divides("channels of the feed-forward layer", d.intermediate, "tp_size", mapping.tensor);
    if (mapping.expert > 1)
      faults.push_back(fmt::format("moe_ep_size of a model without experts: got {}, expected 1", mapping.expert));
  }
  if (d.kv_heads % mapping.tensor != 0 && mapping.tensor % d.kv_heads != 0) {
    faults.push_back(
        fmt::format("key/value heads neither split nor repeat: got tp_size {}, expected a divisor or a multiple of {}",
                    mapping.tensor, d.kv_heads));
  }
  if (mapping.pipeline > d.layers) {
    faults.push_back(fmt::format("more pipeline stages than layers: got {}, expected at most {}", mapping.pipeline, d.layers));
  } else if (checkpoint.options.format == TrtllmFormat::v0_12) {
    divides("layers", d.layers, "pp_size", mapping.pipeline);
  }
  if (!faults.empty()) throw Error(ErrorCode::shard_indivisible, join_faults(faults), {kTrtllmConfigFile, {}, {}});
}

void read_quantization(TrtllmCheckpoint& checkpoint, const JsonFields& root) {
  const Json* object = value_of(checkpoint.config, "quantization");
  if (object == nullptr) return;
  const JsonFields quant = root.object("quantization");
  refuse_unknown(quant, *object, kQuantFields);
  const auto refuse = [&](std::string_view field, std::string_view expected) {
    quant.fault(field, fmt::format("got {}, expected {}", shown(*object->find(field)), expected), ErrorCode::config_unsupported);
  };
  if (value_of(*object, "kv_cache_quant_algo") != nullptr) refuse("kv_cache_quant_algo", "null");
  for (const std::string_view field : {"has_zero_point", "pre_quant_scale", "use_meta_recipe"}) {
    if (quant.has(field) && quant.flag(field)) refuse(field, "false");
  }
  if (value_of(*object, "quant_algo") == nullptr) return;
  const std::string algorithm = quant.text("quant_algo");
  if (algorithm == quant_algo_name(WeightOnly::int8)) {
    checkpoint.options.weight_only = WeightOnly::int8;
  } else if (algorithm == quant_algo_name(WeightOnly::int4)) {
    checkpoint.options.weight_only = WeightOnly::int4;
  } else if (algorithm != "NO_QUANT") {
    refuse("quant_algo", "null, W8A16 or W4A16");
  }
}

DType read_dtype(const JsonFields& root) {
  const std::string name = root.text("dtype");
  if (const std::optional<DType> dtype = find_trtllm_dtype(name)) return *dtype;
  root.fault("dtype", fmt::format("got '{}', expected float16, bfloat16 or float32", printable(name, 60)),
             ErrorCode::config_unsupported);
}

}  // namespace

bool TrtllmCheckpoint::tied_head() const {
  const Json* tied = value_of(config, "tie_word_embeddings");
  return tied != nullptr && tied->is_bool() ? tied->boolean() : architecture->tied_by_default;
}

void read_trtllm_config(TrtllmCheckpoint& checkpoint) {
  const JsonFields root(checkpoint.config, kTrtllmConfigFile);
  checkpoint.options.format = format_of(checkpoint.config, root);
  checkpoint.architecture = &architecture_of(root, checkpoint.options.format);
  checkpoint.options.dtype = read_dtype(root);
  // Each would move the embedding or the head elsewhere.
  for (const std::string_view field : {std::string_view("use_parallel_embedding"), kOldField}) {
    if (value_of(checkpoint.config, field) != nullptr && root.flag(field)) {
      root.fault(field, "got true, expected false", ErrorCode::config_unsupported);
    }
  }
  read_dimensions(checkpoint, root);
  read_mapping(checkpoint, root);
  read_quantization(checkpoint, root);
  check_split(checkpoint);
}

}  // namespace transload
