// Names of the contract's enumerations, the KV arithmetic, and look-ups in a bundle's contract.
#include "transload/contract.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/printable.h"
#include "transload/error.h"

namespace transload {

std::string_view port_role_name(PortRole role) {
  switch (role) {
    case PortRole::embedding_rows:
      return "embedding_rows";
    case PortRole::token_ids:
      return "token_ids";
    case PortRole::hidden_in:
      return "hidden_in";
    case PortRole::rope_cos:
      return "rope_cos";
    case PortRole::rope_sin:
      return "rope_sin";
    case PortRole::mask:
      return "mask";
    case PortRole::k_cache:
      return "k_cache";
    case PortRole::v_cache:
      return "v_cache";
    case PortRole::logits:
      return "logits";
    case PortRole::hidden:
      return "hidden";
    case PortRole::k_new:
      return "k_new";
    case PortRole::v_new:
      return "v_new";
  }
  return {};
}

std::string_view slot_rule_name(SlotRule rule) {
  switch (rule) {
    case SlotRule::append:
      return "append";
    case SlotRule::ring:
      return "ring";
    case SlotRule::roll:
      return "roll";
  }
  return {};
}

const MaskGroup* find_mask_group(const StepContract& contract, std::string_view name) {
  const auto found = std::find_if(contract.mask_groups.begin(), contract.mask_groups.end(),
                                  [&](const MaskGroup& group) { return group.name == name; });
  return found == contract.mask_groups.end() ? nullptr : &*found;
}

bool uses_rope_group(const StepContract& contract, std::string_view name) {
  return std::find(contract.rope_groups.begin(), contract.rope_groups.end(), name) != contract.rope_groups.end();
}

namespace {

uint64_t elements_of_slot(const CacheLayer& cache) { return uint64_t{2} * cache.kv_heads * cache.head_dim; }

}  // namespace

uint64_t kv_elements(const CacheLayer& cache) { return elements_of_slot(cache) * cache.slots; }

KvElements kv_elements(const StepContract& contract) {
  KvElements sum;
  for (const CacheLayer& cache : contract.caches) {
    sum.hybrid += kv_elements(cache);
    sum.uniform += elements_of_slot(cache) * contract.context;
  }
  return sum;
}

std::vector<uint32_t> BundleContract::contexts() const {
  std::set<uint32_t> found;
  for (const StepFile& step : steps) found.insert(step.contract.context);
  return {found.begin(), found.end()};
}

std::vector<uint32_t> BundleContract::queries(uint32_t context) const {
  std::set<uint32_t> found;
  for (const StepFile& step : steps) {
    if (step.contract.context == context) found.insert(step.contract.query);
  }
  return {found.begin(), found.end()};
}

const StepFile* BundleContract::find_step(uint32_t query, uint32_t context) const {
  const auto found = std::find_if(steps.begin(), steps.end(), [&](const StepFile& step) {
    return step.contract.query == query && step.contract.context == context;
  });
  return found == steps.end() ? nullptr : &*found;
}

const RopeRule& BundleContract::rope_rule(std::string_view group) const {
  const auto found = std::find_if(rope.begin(), rope.end(), [&](const RopeRule& rule) { return rule.group == group; });
  if (found != rope.end()) return *found;
  throw Error(ErrorCode::internal,
              fmt::format("no such rope group: got '{}', expected one of the {} of the bundle", printable(group), rope.size()));
}

}  // namespace transload
