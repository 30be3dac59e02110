// The Hugging Face config as the config.json of either TensorRT-LLM generation.
#include "targets/trtllm/config_text.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <utility>

#include "base/printable.h"
#include "model/config_reader.h"
#include "model/families.h"
#include "targets/trtllm/hugging_face_fields.h"
#include "transload/error.h"

namespace transload {
namespace {

// Value of the loader's enumeration for experts whose weights are not normalised.
constexpr int kSparseMixer = 2;

constexpr auto kDTypeNames = std::to_array<std::pair<DType, std::string_view>>(
    {{DType::f16, "float16"}, {DType::bf16, "bfloat16"}, {DType::f32, "float32"}});

std::string_view position_embedding_type(double positions) {
  return positions >= kLongRopePositions ? "long_rope" : "rope_gpt_neox";
}

// Members in the order in which they are added.
class ConfigObject {
 public:
  ConfigObject& add(std::string_view key, Json value) {
    members_.emplace_back(std::string(key), std::move(value));
    return *this;
  }
  ConfigObject& add_block_sparse(const HuggingFaceFields& fields) {
    for (const auto& [key, value] : fields.block_sparse) add(key, value);
    return *this;
  }
  ConfigObject& add_long_rope(const HuggingFaceFields& fields) {
    if (!fields.long_rope) return *this;
    const LongRope& rope = *fields.long_rope;
    add("original_max_position_embeddings", rope.original_positions);
    add("longrope_scaling_short_factors", rope.short_factors);
    add("longrope_scaling_long_factors", rope.long_factors);
    if (rope.long_mscale.is_null()) return *this;
    return add("longrope_long_mscale", rope.long_mscale).add("longrope_short_mscale", rope.short_mscale);
  }
  Json take() { return Json(std::move(members_)); }

 private:
  Json::Object members_;
};

Json world_size(const TrtllmMapping& mapping) { return Json(uint64_t{mapping.tensor} * mapping.pipeline); }

Json v0_12_config(const HuggingFaceFields& fields, const TrtllmArchitecture& architecture, const TrtllmOptions& options,
                  std::string_view dtype) {
  ConfigObject config;
  config.add("architecture", architecture.v0_12_name)
      .add("dtype", dtype)
      .add("num_hidden_layers", fields.layers)
      .add("num_attention_heads", fields.heads)
      .add("num_key_value_heads", fields.kv_heads)
      .add("hidden_size", fields.hidden)
      .add("intermediate_size", fields.intermediate)
      .add("vocab_size", fields.vocab)
      .add("max_position_embeddings", fields.positions)
      .add("hidden_act", fields.activation)
      .add("share_embedding_table", false)
      .add("rotary_base", fields.rotary_base);
  if (!architecture.block_sparse_fields) config.add("norm_epsilon", fields.norm_epsilon);
  config.add_block_sparse(fields).add_long_rope(fields).add("mapping", Json::Object{{"world_size", world_size(options.mapping)},
                                                                                    {"tp_size", options.mapping.tensor},
                                                                                    {"pp_size", options.mapping.pipeline}});
  if (options.weight_only != WeightOnly::none) {
    config.add("quantization", Json::Object{{"quant_algo", quant_algo_name(options.weight_only)}});
  }
  return config.take();
}

Json v1_mapping(const TrtllmMapping& mapping) {
  return Json::Object{{"world_size", world_size(mapping)},
                      {"gpus_per_node", 8},
                      {"cp_size", 1},
                      {"tp_size", mapping.tensor},
                      {"pp_size", mapping.pipeline},
                      {"moe_tp_size", mapping.moe_tensor()},
                      {"moe_cluster_size", 1},
                      {"moe_ep_size", mapping.expert},
                      {"attn_tp_size", mapping.tensor},
                      {"attn_cp_size", 1},
                      {"auto_parallel", false}};
}

Json v1_quantization(WeightOnly weight_only) {
  return Json::Object{{"quant_algo", weight_only == WeightOnly::none ? Json() : Json(quant_algo_name(weight_only))},
                      {"kv_cache_quant_algo", nullptr},
                      {"group_size", 128},
                      {"smoothquant_val", 0.5},
                      {"clamp_val", nullptr},
                      {"use_meta_recipe", false},
                      {"has_zero_point", false},
                      {"pre_quant_scale", false},
                      {"exclude_modules", nullptr}};
}

Json v1_config(const HuggingFaceFields& fields, const TrtllmArchitecture& architecture, const TrtllmOptions& options,
               std::string_view dtype) {
  ConfigObject config;
  config.add("rotary_base", fields.rotary_base)
      .add("rotary_scaling", nullptr)
      .add("architecture", architecture.v1_name)
      .add("dtype", dtype)
      .add("vocab_size", fields.vocab)
      .add("hidden_size", fields.hidden)
      .add("num_hidden_layers", fields.layers)
      .add("num_attention_heads", fields.heads)
      .add("hidden_act", fields.activation)
      .add("logits_dtype", "float32")
      .add("norm_epsilon", fields.norm_epsilon)
      .add("runtime_defaults", nullptr)
      .add("position_embedding_type", position_embedding_type(fields.positions))
      .add("num_key_value_heads", fields.kv_heads)
      .add("intermediate_size", fields.intermediate)
      .add("max_position_embeddings", fields.positions)
      .add("mapping", v1_mapping(options.mapping))
      .add("quantization", v1_quantization(options.weight_only))
      .add("use_parallel_embedding", false)
      .add("embedding_sharding_dim", 0)
      .add("head_size", fields.head_dim)
      .add("qk_layernorm", false)
      .add("rotary_embedding_dim", fields.rotary)
      .add("rotary_pct", fields.rotary_part)
      .add("tie_word_embeddings", fields.tied)
      .add_block_sparse(fields);
  if (architecture.expert_fields) {
    config
        .add("moe", Json::Object{{"num_experts", fields.experts},
                                 {"top_k", fields.experts_chosen},
                                 {"normalization_mode", kSparseMixer},
                                 {"sparse_mixer_epsilon", fields.jitter}})
        .add("attention_bias", fields.attention_bias);
  }
  return config.add_long_rope(fields).take();
}

// What the loader of 0.12 has no code for.
void check_generation(const std::string& config_file, const TrtllmArchitecture& architecture, const TrtllmOptions& options) {
  if (options.format != TrtllmFormat::v0_12) return;
  std::vector<std::string> faults;
  if (architecture.v0_12_name.empty()) {
    faults.push_back(fmt::format("format 0.12 has no model with experts: got '{}', expected format 1.x", architecture.name));
  }
  if (options.mapping.expert != 1) {
    faults.push_back(fmt::format("format 0.12 has no expert parallelism: got size {}, expected 1", options.mapping.expert));
  }
  if (!faults.empty()) throw Error(ErrorCode::format_limit, join_faults(faults), {config_file, {}, {}});
}

// config.json would call the tensors of one model by the name of another.
void check_family(const Json& hf_config, const std::string& config_file, const TrtllmArchitecture& architecture) {
  const FamilyRow& family = find_family(hf_config, config_file);
  if (family.name == architecture.model_type) return;
  throw Error(
      ErrorCode::config_invalid,
      fmt::format("field 'architectures': got '{}', expected that of a model of type '{}'", architecture.name, family.name),
      {config_file, {}, {}});
}

// A number at the top level or in a rope object; nothing where it is absent.
const Json* find_number(const Json& hf_config, std::string_view key) {
  const Json* value = hf_config.find(key);
  for (const std::string_view object : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = hf_config.find(object);
    if ((value == nullptr || value->is_null()) && rope != nullptr) value = rope->find(key);
  }
  return value != nullptr && value->is_number() ? value : nullptr;
}

bool has_factors(const Json& hf_config) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const Json* object = hf_config.find(key);
    if (object != nullptr && object->find("short_factor") != nullptr) return true;
  }
  return false;
}

}  // namespace

std::string_view trtllm_dtype_name(DType dtype) {
  for (const auto& [known, name] : kDTypeNames) {
    if (known == dtype) return name;
  }
  throw Error(ErrorCode::usage,
              fmt::format("dtype of a TensorRT-LLM checkpoint: got {}, expected f32, f16 or bf16", dtype_name(dtype)));
}

std::optional<DType> find_trtllm_dtype(std::string_view name) {
  for (const auto& [dtype, known] : kDTypeNames) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

std::string_view quant_algo_name(WeightOnly weight_only) {
  switch (weight_only) {
    case WeightOnly::none:
      return {};
    case WeightOnly::int8:
      return "W8A16";
    case WeightOnly::int4:
      return "W4A16";
  }
  return {};
}

DType trtllm_dtype(const Json& hf_config, const std::string& config_file, const TrtllmOptions& options) {
  if (options.dtype) {
    trtllm_dtype_name(*options.dtype);
    return *options.dtype;
  }
  ConfigReader config(hf_config, config_file);
  config.ignore_rest();
  DType dtype = DType::f16;
  for (const std::string_view key : {"dtype", "torch_dtype"}) {  // the older key goes first where both are there
    const std::optional<std::string> name = config.maybe_text(key);
    if (!name) continue;
    const std::optional<DType> known = find_trtllm_dtype(*name);
    if (!known) {
      config.fault(ErrorCode::config_unsupported,
                   fmt::format("{}: not supported: got '{}', expected float16, bfloat16 or float32", config.field(key),
                               printable(*name, 60)));
      continue;
    }
    dtype = *known == DType::f32 ? DType::f16 : *known;
  }
  config.finish();
  return dtype;
}

std::string trtllm_config_text(const Json& hf_config, const std::string& config_file, const TrtllmArchitecture& architecture,
                               const TrtllmOptions& options) {
  check_generation(config_file, architecture, options);
  check_family(hf_config, config_file, architecture);
  const HuggingFaceFields fields = read_hugging_face_fields(hf_config, config_file, architecture);
  const std::string_view dtype = trtllm_dtype_name(trtllm_dtype(hf_config, config_file, options));
  constexpr int kIndent = 4;
  switch (options.format) {
    case TrtllmFormat::v0_12:
      return write_json(v0_12_config(fields, architecture, options, dtype), kIndent);
    case TrtllmFormat::v1:
      return write_json(v1_config(fields, architecture, options, dtype), kIndent);
  }
  throw Error(ErrorCode::internal, "format: got none, expected 0.12 or 1.x");
}

std::vector<std::string> trtllm_config_warnings(const Json& hf_config, const TrtllmOptions& options) {
  std::vector<std::string> warnings;
  const Json* positions = find_number(hf_config, "max_position_embeddings");
  const Json* window = find_number(hf_config, "sliding_window");
  const Json* part = find_number(hf_config, "partial_rotary_factor");
  const double context = positions == nullptr ? 0 : positions->number();
  if (options.format == TrtllmFormat::v0_12) {
    warnings.push_back(
        fmt::format("config.json of format 0.12 has no 'position_embedding_type', and loaders without a default of "
                    "the model's own take learned_absolute: add the line \"position_embedding_type\": \"{}\" before building",
                    position_embedding_type(context)));
    if (part != nullptr && part->number() != 1) {
      warnings.push_back(
          fmt::format("config.json of format 0.12 has no 'rotary_pct', and its loader takes 1.0, but the model turns only "
                      "{0} of each head: add the line \"rotary_pct\": {0} before building",
                      write_json(*part, 0)));
    }
    if (options.has_baked_weights() && options.layout == QuantLayout::sm90) {
      warnings.emplace_back("weights in layout sm90 are read by releases from about 0.17 on: those of format 0.12 want others");
    }
  }
  if (options.has_baked_weights() && options.layout == QuantLayout::plain) {
    warnings.emplace_back(
        "no GPU kernel reads layout plain of baked weights: to deploy, give --layout sm80 (compute capability 7.5 to 8.9, and "
        "10.0 "
        "and up) or sm90 (9.0)");
  }
  if (options.mapping.pipeline > 1) {
    warnings.emplace_back(
        "pipeline parallelism: upstream's own converter refuses it for these models, and so may the engine builder");
  }
  if (window != nullptr && window->number() < context) {
    warnings.push_back(
        fmt::format("sliding window of {0} positions is dropped: config.json of TensorRT-LLM has no field for it, so the engine "
                    "attends to all positions, unless it is run with max_attention_window of {0}, and differs from "
                    "the model in longer sequences",
                    write_json(*window, 0)));
  }
  if (context < kLongRopePositions && has_factors(hf_config)) {
    warnings.push_back(fmt::format(
        "longrope factors are dropped: config.json of TensorRT-LLM has them from {} positions on, the model has {}; they "
        "are not written, and the engine uses plain rotary frequencies: its results differ from the model's at every "
        "length",
        kLongRopePositions, context));
  }
  return warnings;
}

}  // namespace transload
