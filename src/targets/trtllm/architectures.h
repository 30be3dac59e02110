// The table of TensorRT-LLM architectures: one row for each architecture string that its config.json can carry, with what the
// format itself tells apart. The only place outside the model families that knows such names.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "io/json.h"
#include "transload/trtllm.h"

namespace transload {

// Rows of mlp.fc: [up ; gate] (swiglu), or up and gate channels alternating, gate first (gegelu), as Hugging Face stores them.
enum class FcOrder : uint8_t { up_gate, interleaved };
// How the Hugging Face files of the architecture name and join the tensors of a layer, for the way back.
enum class HuggingFaceNames : uint8_t { fused, grouped, experts };

struct TrtllmArchitecture {
  std::string_view name;        // architectures[0] of the Hugging Face config
  std::string_view v1_name;     // what config.json of format 1.x calls it
  std::string_view v0_12_name;  // what that of 0.12 does; empty: that generation has no such model
  std::string_view model_type;  // of the Hugging Face config that an import writes
  FcOrder fc = FcOrder::up_gate;
  HuggingFaceNames names = HuggingFaceNames::fused;
  std::string_view rotary_base;  // Hugging Face config fields
  std::string_view norm_epsilon;
  std::string_view intermediate;
  bool tied_by_default = false;      // when the config has no tie_word_embeddings
  bool block_sparse_fields = false;  // gegelu, muP and block-sparse fields in config.json
  bool expert_fields = false;        // moe object and attention_bias
  bool mscale_fields = false;        // longrope mscales
};

std::span<const TrtllmArchitecture> trtllm_architectures();
// By name. Throws arch_unknown with the names there are.
const TrtllmArchitecture& trtllm_architecture(std::string_view name, const std::string& config_file);
// By architectures[0] of a Hugging Face config. Throws config_missing or config_invalid as well.
const TrtllmArchitecture& trtllm_architecture_of(const Json& hf_config, const std::string& config_file);

}  // namespace transload
