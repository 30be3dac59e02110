// Strict reading of the Hugging Face config fields that config.json of TensorRT-LLM repeats: types, ranges, what has to agree.
#include "targets/trtllm/hugging_face_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "base/printable.h"
#include "model/config_reader.h"
#include "transload/error.h"

namespace transload {
namespace {

// Larger integers are not exact in the JSON layer; a rotary base of that size is a mistake.
constexpr double kMostNumber = 1e15;

// The newer key layout keeps all rope fields in one object; a field at the top level goes first.
class RopeFields {
 public:
  explicit RopeFields(ConfigReader& top)
      : top_(top), newer_(top.maybe_object("rope_parameters")), scaling_(top.maybe_object("rope_scaling")) {
    for (std::optional<ConfigReader>* part : {&newer_, &scaling_}) {
      if (*part) (*part)->ignore_rest();
    }
  }
  // The object that has `key`, or should have it.
  ConfigReader& owner_of(std::string_view key) {
    if (top_.has(key)) return top_;
    for (std::optional<ConfigReader>* part : {&newer_, &scaling_}) {
      if (*part && (*part)->has(key)) return **part;
    }
    return top_;
  }
  // rotary_scaling of config.json is always null: a kind that changes the frequencies in another way than by factors gets lost.
  void refuse_other_kinds() {
    for (std::optional<ConfigReader>* part : {&newer_, &scaling_}) {
      if (!*part) continue;
      for (const std::string_view key : {"rope_type", "type"}) {
        const std::optional<std::string> kind = (*part)->maybe_text(key);
        if (!kind || (*part)->is_faulty(key) || *kind == "default" || *kind == "su" || *kind == "longrope") continue;
        (*part)->fault(
            ErrorCode::config_unsupported,
            fmt::format("{}: config.json of TensorRT-LLM has no field for it: got '{}', expected default, su or longrope",
                        (*part)->field(key), printable(*kind, 60)));
      }
    }
  }
  // The object with the factors, if there is one.
  ConfigReader* scaling() {
    if (scaling_) return &*scaling_;
    return newer_ && newer_->has("short_factor") ? &*newer_ : nullptr;
  }

 private:
  ConfigReader& top_;
  std::optional<ConfigReader> newer_;
  std::optional<ConfigReader> scaling_;
};

enum class Least : uint8_t { zero, above_zero };

// A number as it stands, int or float.
Json number(ConfigReader& config, std::string_view key, Least least = Least::above_zero) {
  const double value = config.number(key);
  const Json* raw = config.raw(key);
  if (raw == nullptr || config.is_faulty(key)) return {};
  if (value < 0 || (value == 0 && least == Least::above_zero) || value > kMostNumber) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: out of range: got {}, expected a number {} and at most {}", config.field(key),
                             write_json(*raw, 0), least == Least::zero ? "of at least 0" : "above 0", kMostNumber));
  }
  return *raw;
}

Json factors(ConfigReader& config, std::string_view key, uint32_t rotary) {
  const std::vector<double> values = config.numbers(key);
  const Json* raw = config.raw(key);
  if (raw == nullptr || config.is_faulty(key)) return {};
  const auto wrong = [&](const std::string& text) {
    config.fault(ErrorCode::config_invalid, fmt::format("{}: {}", config.field(key), text));
  };
  if (rotary != 0 && values.size() != rotary / 2) {
    wrong(
        fmt::format("length is not half the rotary width, as when config and weights are of different revisions: got {}, "
                    "expected {}",
                    values.size(), rotary / 2));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > 0 && values[i] <= kMostNumber) continue;
    wrong(fmt::format("factor {}: got {}, expected a positive number", i, values[i]));
    break;
  }
  return *raw;
}

// Without mscales the engine works the attention factor out from the two lengths, for short and long sequences alike.
void refuse_other_magnitudes(ConfigReader& scaling, uint32_t positions, uint32_t original) {
  constexpr double kRounding = 1e-6;
  const double stretch = static_cast<double>(positions) / original;
  const double implied = stretch <= 1 ? 1.0 : std::sqrt(1 + std::log(stretch) / std::log(static_cast<double>(original)));
  const auto expect = [&](std::string_view key, double expected) {
    const std::optional<double> value = scaling.maybe_number(key);
    if (!value || scaling.is_faulty(key) || std::abs(*value - expected) <= kRounding * expected) return;
    scaling.fault(ErrorCode::config_unsupported,
                  fmt::format("{}: config.json of TensorRT-LLM has no field for it: got {}, expected {}, which the engine takes",
                              scaling.field(key), write_json(*scaling.raw(key), 0), expected));
  };
  expect("factor", stretch);
  for (const std::string_view key : {"attention_factor", "short_mscale", "long_mscale"}) expect(key, implied);
}

LongRope long_rope(ConfigReader& config, RopeFields& rope, uint32_t positions, uint32_t rotary, bool with_mscales) {
  LongRope found;
  ConfigReader* scaling = rope.scaling();
  if (scaling == nullptr) {
    config.fault(ErrorCode::config_missing,
                 fmt::format("field 'rope_scaling': missing: got none, expected longrope factors for {} positions or more",
                             kLongRopePositions));
    return found;
  }
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  ConfigReader& owner = rope.owner_of(kOriginal);
  const uint32_t original = owner.u32(kOriginal);
  found.original_positions = original;
  found.short_factors = factors(*scaling, "short_factor", rotary);
  found.long_factors = factors(*scaling, "long_factor", rotary);
  if (with_mscales) {
    found.short_mscale = number(*scaling, "short_mscale");
    found.long_mscale = number(*scaling, "long_mscale");
  } else if (!config.is_faulty("max_position_embeddings") && !owner.is_faulty(kOriginal)) {
    refuse_other_magnitudes(*scaling, positions, original);
  }
  return found;
}

// Either the architecture's own spelling or the general one; a file may have both.
uint32_t intermediate_size(ConfigReader& config, std::string_view own) {
  constexpr std::string_view kGeneral = "intermediate_size";
  const std::optional<uint32_t> general = own == kGeneral ? std::nullopt : config.maybe_u32(kGeneral);
  if (!general) return config.u32(own);
  const std::optional<uint32_t> other = config.maybe_u32(own);
  if (other && *other != *general) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: does not agree with '{}': got {}, expected {}", config.field(kGeneral), own, *general, *other));
  }
  return *general;
}

std::string_view activation(ConfigReader& config, const TrtllmArchitecture& architecture) {
  const bool gated = architecture.fc == FcOrder::up_gate;
  config.text("hidden_act");
  config.expect("hidden_act", gated ? "silu" : "gegelu");
  return gated ? "swiglu" : "gegelu";
}

std::vector<std::pair<std::string_view, Json>> block_sparse_fields(ConfigReader& config, const Json& hf_config) {
  // A limit or a pattern may be null, which says that there is none; without the key the model class has a default of its own.
  const auto is_null = [&](std::string_view key) {
    const Json* value = hf_config.find(key);
    return value != nullptr && value->is_null();
  };
  const auto limit = [&](std::string_view key) { return is_null(key) ? Json() : number(config, key); };
  const auto count = [&](std::string_view key) { return is_null(key) ? Json() : Json(config.u32(key)); };
  const auto flag = [&](std::string_view key) {
    if (!config.has(key)) {
      config.fault(ErrorCode::config_missing, fmt::format("{}: missing: got none, expected true or false", config.field(key)));
    }
    return Json(config.boolean(key, false));
  };
  return {{"gegelu_limit", limit("gegelu_limit")},
          {"mup_attn_multiplier", number(config, "mup_attn_multiplier")},
          {"mup_embedding_multiplier", number(config, "mup_embedding_multiplier")},
          {"mup_use_scaling", flag("mup_use_scaling")},
          {"mup_width_multiplier", number(config, "mup_width_multiplier")},
          {"blocksparse_block_size", count("blocksparse_block_size")},
          {"blocksparse_homo_head_pattern", flag("blocksparse_homo_head_pattern")},
          {"blocksparse_num_local_blocks", count("blocksparse_num_local_blocks")},
          {"blocksparse_vertical_stride", count("blocksparse_vert_stride")},
          {"dense_attention_every_n_layers", count("dense_attention_every_n_layers")}};
}

void read_heads(ConfigReader& config, HuggingFaceFields& fields) {
  fields.hidden = config.u32("hidden_size");
  fields.heads = config.u32("num_attention_heads");
  fields.kv_heads = config.maybe_u32("num_key_value_heads").value_or(fields.heads);
  if (config.is_faulty("hidden_size") || config.is_faulty("num_attention_heads")) return;
  const auto not_divided = [&](std::string_view key, std::string_view what, uint32_t got, uint32_t by) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: {}: got {}, expected a divisor of {}", config.field(key), what, got, by));
  };
  if (fields.hidden % fields.heads != 0) {
    not_divided("num_attention_heads", "heads do not divide the hidden size", fields.heads, fields.hidden);
  }
  if (fields.heads % fields.kv_heads != 0 && !config.is_faulty("num_key_value_heads")) {
    not_divided("num_key_value_heads", "key/value heads do not divide the heads", fields.kv_heads, fields.heads);
  }
  fields.head_dim = fields.hidden / fields.heads;
  config.expect("head_dim", Json(fields.head_dim));
}

void read_rope(ConfigReader& config, const TrtllmArchitecture& architecture, HuggingFaceFields& fields) {
  RopeFields rope(config);
  rope.refuse_other_kinds();
  fields.rotary_base = number(rope.owner_of(architecture.rotary_base), architecture.rotary_base);
  constexpr std::string_view kPart = "partial_rotary_factor";
  ConfigReader& owner = rope.owner_of(kPart);
  fields.rotary_part = owner.has(kPart) ? number(owner, kPart) : Json(1.0);
  if (fields.rotary_part.is_number() && fields.head_dim != 0) {
    const double part = fields.rotary_part.number();
    fields.rotary = part <= 1 ? static_cast<uint32_t>(fields.head_dim * part) : 0;
    if (fields.rotary == 0 || fields.rotary % 2 != 0) {
      config.fault(ErrorCode::config_invalid,
                   fmt::format("{}: got {} of a head of {}, expected a part that leaves an even width of at most the head",
                               owner.field(kPart), write_json(fields.rotary_part, 0), fields.head_dim));
    }
  }
  if (fields.positions >= kLongRopePositions) {
    fields.long_rope = long_rope(config, rope, fields.positions, fields.rotary, architecture.mscale_fields);
  }
}

}  // namespace

HuggingFaceFields read_hugging_face_fields(const Json& hf_config, const std::string& config_file,
                                           const TrtllmArchitecture& architecture) {
  ConfigReader config(hf_config, config_file);
  config.ignore_rest();  // whether a field is known is the family's question
  HuggingFaceFields fields;
  read_heads(config, fields);
  fields.layers = config.u32("num_hidden_layers");
  fields.vocab = config.u32("vocab_size");
  fields.positions = config.u32("max_position_embeddings");
  fields.intermediate = intermediate_size(config, architecture.intermediate);
  fields.activation = activation(config, architecture);
  fields.norm_epsilon = number(config, architecture.norm_epsilon);
  fields.tied = config.boolean("tie_word_embeddings", architecture.tied_by_default);
  read_rope(config, architecture, fields);
  if (architecture.block_sparse_fields) fields.block_sparse = block_sparse_fields(config, hf_config);
  if (architecture.expert_fields) {
    fields.experts = config.u32("num_local_experts");
    fields.experts_chosen = config.u32("num_experts_per_tok");
    fields.jitter = number(config, "router_jitter_noise", Least::zero);
    fields.attention_bias = config.boolean("attention_bias", false);
  }
  config.finish();
  return fields;
}

}  // namespace transload
