// config.json of TensorRT-LLM as the Hugging Face config it was made from, in the older key layout.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/printable.h"
#include "io/json_fields.h"
#include "targets/trtllm/config_text.h"
#include "targets/trtllm/hf_tensors.h"
#include "targets/trtllm/hugging_face_fields.h"
#include "targets/trtllm/trtllm_config.h"
#include "transload/error.h"

namespace transload {
namespace {

class ConfigWriter {
 public:
  ConfigWriter(const TrtllmCheckpoint& checkpoint, std::vector<std::string>& notes)
      : config_(checkpoint.config),
        root_(checkpoint.config, kTrtllmConfigFile),
        checkpoint_(checkpoint),
        row_(*checkpoint.architecture),
        notes_(notes) {}

  Json write() {
    const TrtllmDimensions& d = checkpoint_.dimensions;
    positions_ = root_.u32("max_position_embeddings");
    set("architectures", Json::Array{row_.name});
    set("model_type", row_.model_type);
    set("torch_dtype", trtllm_dtype_name(*checkpoint_.options.dtype));
    set("hidden_size", d.hidden);
    set(row_.intermediate, d.intermediate);
    set("max_position_embeddings", positions_);
    set("num_attention_heads", d.heads);
    set("num_hidden_layers", d.layers);
    set("num_key_value_heads", d.kv_heads);
    set("vocab_size", d.vocab);
    set("tie_word_embeddings", checkpoint_.tied_head());
    set_activation();
    set_norm_epsilon();
    set(row_.rotary_base, number("rotary_base"));
    set_rope();
    if (row_.block_sparse_fields) set_block_sparse();
    if (row_.expert_fields) set_experts();
    if (!row_.block_sparse_fields) {  // whose models have no window, and token ids by default
      notes_.emplace_back("config.json: a sliding window and the token ids are not known here and left out");
    }
    std::sort(members_.begin(), members_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return Json(std::move(members_));
  }

 private:
  void set(std::string_view key, Json value) { members_.emplace_back(std::string(key), std::move(value)); }

  // A number as it stands, int or float.
  Json number(std::string_view field) const {
    root_.number(field);
    return *config_.find(field);
  }
  bool has(std::string_view field) const { return root_.has(field) && !root_.is_null(field); }

  void set_activation() {
    const std::string name = root_.text("hidden_act");
    const std::string_view expected = row_.fc == FcOrder::up_gate ? "swiglu" : "gegelu";
    if (name != expected) {
      root_.fault("hidden_act", fmt::format("got '{}', expected '{}' for '{}'", printable(name, 60), expected, row_.name),
                  ErrorCode::config_unsupported);
    }
    set("hidden_act", row_.fc == FcOrder::up_gate ? "silu" : "gegelu");
  }

  void set_norm_epsilon() {
    if (!has("norm_epsilon") && row_.block_sparse_fields) {
      notes_.push_back(
          fmt::format("config.json: format 0.12 has no epsilon of norms: '{}' is its default, 1e-05", row_.norm_epsilon));
      return set(row_.norm_epsilon, 1e-05);
    }
    set(row_.norm_epsilon, number("norm_epsilon"));
  }

  void set_rope() {
    if (has("rotary_scaling")) {
      root_.fault("rotary_scaling",
                  fmt::format("got {}, expected null", printable(write_json(*config_.find("rotary_scaling"), 0), 60)),
                  ErrorCode::config_unsupported);
    }
    if (has("rotary_pct")) {
      // 1.0 is what absence means.
      if (const Json part = number("rotary_pct"); part != Json(1.0)) set("partial_rotary_factor", part);
    }
    if (positions_ < kLongRopePositions) return;
    const std::vector<std::string_view> lists = {"longrope_scaling_short_factors", "longrope_scaling_long_factors"};
    for (const std::string_view list : lists) check_factors(list);
    const Json original = root_.u32("original_max_position_embeddings");
    Json::Object scaling{
        {"long_factor", *config_.find(lists[1])}, {"short_factor", *config_.find(lists[0])}, {"type", "longrope"}};
    if (row_.mscale_fields) {
      scaling.emplace_back("long_mscale", number("longrope_long_mscale"));
      scaling.emplace_back("short_mscale", number("longrope_short_mscale"));
      scaling.emplace_back("original_max_position_embeddings", original);
    }
    set("original_max_position_embeddings", original);
    set("rope_scaling", std::move(scaling));
    if (has("rotary_pct")) return;
    // Format 0.12 says how much of a head turns by the number of factors only.
    const auto width = static_cast<double>(2 * config_.find(lists[0])->array().size());
    if (const double part = width / checkpoint_.dimensions.head_dim; part < 1) set("partial_rotary_factor", part);
  }

  void check_factors(std::string_view field) const {
    const Json* list = config_.find(field);
    if (list == nullptr || !list->is_array())
      root_.fault(field, "missing: got none, expected a list of numbers", ErrorCode::config_missing);
    const Json::Array& values = list->array();
    if (values.empty() || 2 * values.size() > checkpoint_.dimensions.head_dim) {
      root_.fault(field, fmt::format("length: got {}, expected 1 to {} (half a head)", values.size(),
                                     checkpoint_.dimensions.head_dim / 2));
    }
    if (!std::all_of(values.begin(), values.end(), [](const Json& value) { return value.is_number(); })) {
      root_.fault(field, "wrong type: got other values, expected numbers in the list");
    }
  }

  void set_block_sparse() {
    for (const std::string_view field : {"mup_attn_multiplier", "mup_embedding_multiplier", "mup_width_multiplier"}) {
      set(field, number(field));
    }
    // Null says that there is no limit or no such pattern.
    const auto number_or_null = [&](std::string_view field) { return root_.is_null(field) ? Json() : number(field); };
    for (const std::string_view field :
         {"gegelu_limit", "blocksparse_block_size", "blocksparse_num_local_blocks", "dense_attention_every_n_layers"}) {
      set(field, number_or_null(field));
    }
    for (const std::string_view field : {"mup_use_scaling", "blocksparse_homo_head_pattern"}) set(field, root_.flag(field));
    set("blocksparse_vert_stride", number_or_null("blocksparse_vertical_stride"));
  }

  void set_experts() {
    const JsonFields moe = root_.object("moe");
    moe.number("sparse_mixer_epsilon");
    set("num_local_experts", checkpoint_.dimensions.experts);
    set("num_experts_per_tok", moe.integer("top_k"));
    set("router_jitter_noise", *config_.find("moe")->find("sparse_mixer_epsilon"));
    set("attention_bias", has("attention_bias") && root_.flag("attention_bias"));
    set("lm_head_bias", checkpoint_.has(static_cast<uint32_t>(checkpoint_.ranks.size() - 1), "lm_head.bias"));
  }

  const Json& config_;
  JsonFields root_;
  const TrtllmCheckpoint& checkpoint_;
  const TrtllmArchitecture& row_;
  std::vector<std::string>& notes_;
  Json::Object members_;
  uint32_t positions_ = 0;
};

}  // namespace

Json hf_config(const TrtllmCheckpoint& checkpoint, std::vector<std::string>& notes) {
  return ConfigWriter(checkpoint, notes).write();
}

}  // namespace transload
