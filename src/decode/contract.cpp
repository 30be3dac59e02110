// Names of the contract's enumerations and the KV arithmetic.
#include "decode/contract.h"

#include <algorithm>

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

bool uses_rope_group(const StepContract& contract, std::string_view name) {
  return std::find(contract.rope_groups.begin(), contract.rope_groups.end(), name) != contract.rope_groups.end();
}

KvElements kv_elements(const StepContract& contract) {
  KvElements sum;
  for (const CacheLayer& cache : contract.caches) {
    const uint64_t entry = uint64_t{2} * cache.kv_heads * cache.head_dim;  // one key and one value
    sum.hybrid += entry * cache.slots;
    sum.uniform += entry * contract.context;
  }
  return sum;
}

}  // namespace transload
