// Which tensor, pipeline and expert splits a model allows, and what each rank gets of its layers and heads.
#include "targets/trtllm/mapping.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "transload/error.h"

namespace transload {
namespace {

// A job of more is a mistake, and the tables that list every rank stay small.
constexpr uint64_t kMostRanks = uint64_t{1} << 16;

// What a split divides, as the first layer has it; a family builds all layers alike.
struct Sizes {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t intermediate = 0;
  uint32_t experts = 0;  // 0: none
  uint32_t layers = 0;
};

Sizes sizes_of(const DecoderModel& model) {
  const Layer& layer = model.layers.front();
  return {.heads = layer.attention.heads,
          .kv_heads = layer.attention.kv_heads,
          .intermediate = model.intermediate_size,
          .experts = layer.experts ? static_cast<uint32_t>(layer.experts->experts.size()) : 0,
          .layers = static_cast<uint32_t>(model.layers.size())};
}

std::vector<uint32_t> divisors(uint32_t number, uint32_t most) {
  std::vector<uint32_t> found;
  for (uint64_t low = 1; low * low <= number; ++low) {
    if (number % low != 0) continue;
    const uint64_t high = number / low;
    if (low <= most) found.push_back(static_cast<uint32_t>(low));
    if (high != low && high <= most) found.push_back(static_cast<uint32_t>(high));
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool divides_heads(const Sizes& sizes, uint32_t tensor) { return sizes.heads % tensor == 0; }
bool divides_kv_heads(const Sizes& sizes, uint32_t tensor) {
  return sizes.kv_heads % tensor == 0 || tensor % sizes.kv_heads == 0;
}
// `width`: how many ranks share an inner width.
bool divides_intermediate(const Sizes& sizes, uint32_t width) { return sizes.intermediate % width == 0; }

std::vector<uint32_t> feasible(const Sizes& sizes, uint32_t expert, uint32_t most) {
  std::vector<uint32_t> found = divisors(sizes.heads, most);
  std::erase_if(found, [&](uint32_t tensor) {
    return tensor % expert != 0 || !divides_kv_heads(sizes, tensor) || !divides_intermediate(sizes, tensor / expert);
  });
  return found;
}

std::string one_of(const std::vector<uint32_t>& numbers) {
  if (numbers.empty()) return "another model: no size will do";
  return fmt::format("{}{}", numbers.size() == 1 ? "" : "one of ", fmt::join(numbers, ", "));
}

void throw_faults(ErrorCode code, const std::vector<std::string>& faults) {
  if (!faults.empty()) throw Error(code, join_faults(faults), {"config.json", {}, {}});
}

void check_usage(const Sizes& sizes, const TrtllmMapping& mapping) {
  std::vector<std::string> faults;
  const auto positive = [&](std::string_view what, uint32_t size) {
    if (size == 0) faults.push_back(fmt::format("{}: got 0, expected at least 1", what));
  };
  positive("tensor-parallel size", mapping.tensor);
  positive("pipeline stages", mapping.pipeline);
  positive("expert-parallel size", mapping.expert);
  if (mapping.expert > 1 && sizes.experts == 0) {
    faults.push_back(fmt::format("expert-parallel size of a model without experts: got {}, expected 1", mapping.expert));
  } else if (mapping.expert > 1 && mapping.tensor != 0 && mapping.tensor % mapping.expert != 0) {
    faults.push_back(fmt::format("expert-parallel size does not divide tensor-parallel size {}: got {}, expected {}",
                                 mapping.tensor, mapping.expert, one_of(divisors(mapping.tensor, mapping.tensor))));
  }
  throw_faults(ErrorCode::usage, faults);
}

}  // namespace

LayerSpan stage_layers(uint32_t layers, uint32_t stages, uint32_t stage) {
  const uint32_t base = layers / stages;
  const uint32_t longer = layers % stages;
  const uint32_t begin = stage * base + std::min(stage, longer);
  return {begin, begin + base + (stage < longer ? 1 : 0)};
}

HeadSpan rank_kv_heads(uint32_t kv_heads, uint32_t tensor, uint32_t rank) {
  const auto begin = static_cast<uint32_t>(uint64_t{rank} * kv_heads / tensor);
  return {begin, begin + std::max(kv_heads / tensor, 1U)};
}

std::vector<uint32_t> feasible_tensor_sizes(const DecoderModel& model, uint32_t expert, uint32_t most) {
  const Sizes sizes = sizes_of(model);
  if (expert == 0 || (sizes.experts == 0 ? expert > 1 : sizes.experts % expert != 0)) return {};
  return feasible(sizes, expert, most);
}

void check_mapping(const DecoderModel& model, const TrtllmMapping& mapping, TrtllmFormat format) {
  const Sizes sizes = sizes_of(model);
  check_usage(sizes, mapping);
  std::vector<std::string> faults;
  const bool splits_experts = sizes.experts == 0 || sizes.experts % mapping.expert == 0;
  const uint32_t expert = splits_experts ? mapping.expert : 1;
  const auto indivisible = [&](std::string_view what) {
    faults.push_back(fmt::format("tensor-parallel size does not divide {}: got {}, expected {}", what, mapping.tensor,
                                 one_of(feasible(sizes, expert, sizes.heads))));
  };
  if (!divides_heads(sizes, mapping.tensor)) indivisible("attention heads");
  if (!divides_kv_heads(sizes, mapping.tensor)) indivisible("key/value heads");
  if (!divides_intermediate(sizes, mapping.moe_tensor())) indivisible("intermediate width");
  if (!splits_experts) {
    faults.push_back(fmt::format("expert-parallel size does not divide experts: got {}, expected {}", mapping.expert,
                                 one_of(divisors(sizes.experts, sizes.experts))));
  }
  if (mapping.pipeline > sizes.layers) {
    faults.push_back(
        fmt::format("more pipeline stages than layers: got {}, expected at most {}", mapping.pipeline, sizes.layers));
  } else if (format == TrtllmFormat::v0_12 && sizes.layers % mapping.pipeline != 0) {
    faults.push_back(fmt::format("pipeline stages do not divide layers, which format 0.12 asks for: got {}, expected {}",
                                 mapping.pipeline, one_of(divisors(sizes.layers, sizes.layers))));
  }
  if (uint64_t{mapping.tensor} * mapping.pipeline > kMostRanks && faults.empty()) {
    faults.push_back(fmt::format("ranks: got {}, expected at most {}", uint64_t{mapping.tensor} * mapping.pipeline, kMostRanks));
  }
  throw_faults(ErrorCode::shard_indivisible, faults);
}

}  // namespace transload
