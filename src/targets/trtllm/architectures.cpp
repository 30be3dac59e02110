// The table of TensorRT-LLM architectures, and how a config finds its row.
#include "targets/trtllm/architectures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "base/printable.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr TrtllmArchitecture kDense{.name = "Phi3ForCausalLM",
                                    .v1_name = "Phi3ForCausalLM",
                                    .v0_12_name = "Phi3ForCausalLM",
                                    .model_type = "phi3",
                                    .rotary_base = "rope_theta",
                                    .norm_epsilon = "rms_norm_eps",
                                    .intermediate = "intermediate_size"};

// The text decoder of a model that also takes other input.
constexpr TrtllmArchitecture text_of(std::string_view name) {
  TrtllmArchitecture row = kDense;
  row.name = row.v1_name = name;
  return row;
}

constexpr TrtllmArchitecture kSmall{.name = "Phi3SmallForCausalLM",
                                    .v1_name = "Phi3SmallForCausalLM",
                                    .v0_12_name = "Phi3SmallForCausalLM",
                                    .model_type = "phi3small",
                                    .fc = FcOrder::interleaved,
                                    .names = HuggingFaceNames::grouped,
                                    .rotary_base = "rope_embedding_base",
                                    .norm_epsilon = "layer_norm_epsilon",
                                    .intermediate = "ff_intermediate_size",
                                    .tied_by_default = true,
                                    .block_sparse_fields = true,
                                    .mscale_fields = true};

// Two spellings: the publisher's and that of transformers. The loader knows the first.
constexpr TrtllmArchitecture experts(std::string_view name) {
  TrtllmArchitecture row = kDense;
  row.name = name;
  row.v1_name = "PhiMoEForCausalLM";
  row.v0_12_name = {};
  row.model_type = "phimoe";
  row.names = HuggingFaceNames::experts;
  row.expert_fields = true;
  row.mscale_fields = true;
  return row;
}

constexpr auto kArchitectures =
    std::to_array<TrtllmArchitecture>({kDense, text_of("Phi3VForCausalLM"), text_of("Phi4MMForCausalLM"), kSmall,
                                       experts("PhiMoEForCausalLM"), experts("PhimoeForCausalLM")});

}  // namespace

std::span<const TrtllmArchitecture> trtllm_architectures() { return kArchitectures; }

const TrtllmArchitecture& trtllm_architecture(std::string_view name, const std::string& config_file) {
  std::vector<std::string_view> known;
  for (const TrtllmArchitecture& row : kArchitectures) {
    if (row.name == name) return row;
    known.push_back(row.name);
  }
  throw Error(ErrorCode::arch_unknown,
              fmt::format("TensorRT-LLM conversion of this architecture is not supported: got '{}', expected one of {}",
                          printable(name, 60), fmt::join(known, ", ")),
              {config_file, {}, {}});
}

const TrtllmArchitecture& trtllm_architecture_of(const Json& hf_config, const std::string& config_file) {
  const Json* list = hf_config.find("architectures");
  if (list == nullptr || !list->is_array() || list->array().empty() || !list->array().front().is_string()) {
    const bool is_missing = list == nullptr || list->is_null();
    throw Error(is_missing ? ErrorCode::config_missing : ErrorCode::config_invalid,
                fmt::format("field 'architectures': {}: got {}, expected a list with one name",
                            is_missing ? "missing" : "wrong type", is_missing ? "none" : printable(write_json(*list, 0), 60)),
                {config_file, {}, {}});
  }
  return trtllm_architecture(list->array().front().string(), config_file);
}

}  // namespace transload
