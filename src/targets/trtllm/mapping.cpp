// Which tensor, pipeline and expert splits a model allows, and what each rank gets of its layers and heads.
#include "targets/trtllm/mapping.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "transload/error.h"

namespace transload {
namespace {

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

std::vector<uint32_t> divisors(uint32_t number) {
  std::vector<uint32_t> found;
  for (uint64_t low = 1; low * low <= number; ++low) {
    if (number % low != 0) continue;
    const uint64_t high = number / low;
    found.push_back(static_cast<uint32_t>(low));
    if (high != low) found.push_back(static_cast<uint32_t>(high));
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

// Tensor-parallel sizes that the model allows, ascending.
std::vector<uint32_t> feasible(const Sizes& sizes, uint32_t expert) {
  std::vector<uint32_t> found = divisors(sizes.heads);
  std::erase_if(found, [&](uint32_t tensor) {
    return tensor % expert != 0 || !divides_kv_heads(sizes, tensor) || !divides_intermediate(sizes, tensor / expert);
  });
  return found;
}

std::string one_of(const std::vector<uint32_t>& numbers) {
  if (numbers.empty()) return "another model: no size will do";
  return fmt::format("{}{}", numbers.size() == 1 ? "" : "one of ", fmt::join(numbers, ", "));
}

// "a", "a and b", "a, b and c"
std::string listed(const std::vector<std::string>& parts) {
  std::string text = parts.front();
  for (size_t i = 1; i < parts.size(); ++i) text += (i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

void throw_faults(ErrorCode code, const std::vector<std::string>& faults) {
  if (!faults.empty()) throw Error(code, join_faults(faults));
}

void refuse_zero(const TrtllmMapping& mapping) {
  std::vector<std::string> faults;
  const auto positive = [&](std::string_view what, uint32_t size) {
    if (size == 0) faults.push_back(fmt::format("{}: got 0, expected at least 1", what));
  };
  positive("--tp", mapping.tensor);
  positive("--pp", mapping.pipeline);
  positive("--moe-ep", mapping.expert);
  throw_faults(ErrorCode::usage, faults);
}

// Adds a fault where the expert-parallel size cannot be; gives the size that the other checks go by.
uint32_t check_expert(const Sizes& sizes, const TrtllmMapping& mapping, std::vector<std::string>& faults) {
  if (mapping.expert == 1) return 1;
  if (sizes.experts == 0) {
    faults.push_back(fmt::format("--moe-ep of a model without experts: got {}, expected 1", mapping.expert));
    return 1;
  }
  std::vector<std::string> indivisible;
  if (mapping.tensor % mapping.expert != 0) indivisible.push_back(fmt::format("--tp {}", mapping.tensor));
  if (sizes.experts % mapping.expert != 0) indivisible.push_back(fmt::format("{} experts", sizes.experts));
  if (indivisible.empty()) return mapping.expert;
  faults.push_back(fmt::format("--moe-ep does not divide {}: got {}, expected {}", listed(indivisible), mapping.expert,
                               one_of(divisors(std::gcd(mapping.tensor, sizes.experts)))));
  return sizes.experts % mapping.expert == 0 ? mapping.expert : 1;
}

void check_tensor(const Sizes& sizes, const TrtllmMapping& mapping, uint32_t expert, std::vector<std::string>& faults) {
  std::vector<std::string> indivisible;
  if (!divides_heads(sizes, mapping.tensor)) indivisible.push_back(fmt::format("{} attention heads", sizes.heads));
  if (!divides_kv_heads(sizes, mapping.tensor)) indivisible.push_back(fmt::format("{} key/value heads", sizes.kv_heads));
  if (mapping.tensor % expert == 0 && !divides_intermediate(sizes, mapping.tensor / expert)) {
    indivisible.push_back(fmt::format("intermediate size {}", sizes.intermediate));
  }
  if (indivisible.empty()) return;
  faults.push_back(fmt::format("cannot split {}: got --tp {}{}, expected {}", listed(indivisible), mapping.tensor,
                               expert == 1 ? "" : fmt::format(" with --moe-ep {}", expert), one_of(feasible(sizes, expert))));
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

void check_mapping(const DecoderModel& model, const TrtllmMapping& mapping, TrtllmFormat format) {
  const Sizes sizes = sizes_of(model);
  refuse_zero(mapping);
  std::vector<std::string> faults;
  const uint32_t expert = check_expert(sizes, mapping, faults);
  check_tensor(sizes, mapping, expert, faults);
  if (mapping.pipeline > sizes.layers) {
    faults.push_back(fmt::format("--pp of a model of {0} layers: got {1}, expected at most {0}", sizes.layers, mapping.pipeline));
  } else if (format == TrtllmFormat::v0_12 && sizes.layers % mapping.pipeline != 0) {
    faults.push_back(fmt::format("--pp does not divide {} layers, which format 0.12 asks for: got {}, expected {}", sizes.layers,
                                 mapping.pipeline, one_of(divisors(sizes.layers))));
  }
  if (uint64_t{mapping.tensor} * mapping.pipeline > kMaxTrtllmRanks && faults.empty()) {
    faults.push_back(fmt::format("ranks of --tp {} and --pp {}: got {}, expected at most {}", mapping.tensor, mapping.pipeline,
                                 uint64_t{mapping.tensor} * mapping.pipeline, kMaxTrtllmRanks));
  }
  throw_faults(ErrorCode::shard_indivisible, faults);
}

}  // namespace transload
