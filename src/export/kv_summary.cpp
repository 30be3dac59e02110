// Counts the elements of every layer's cache from the host contract of a graph.
#include "export/kv_summary.h"

namespace transload {

KvSummary kv_summary(const StepContract& contract) {
  KvSummary summary;
  summary.context = contract.context;
  for (const CacheLayer& cache : contract.caches) {
    summary.layers.push_back({cache.model_layer, cache.window ? "sliding" : "full", std::string(slot_rule_name(cache.rule)),
                              cache.slots, kv_elements(cache)});
  }
  const KvElements elements = kv_elements(contract);
  summary.hybrid_elements = elements.hybrid;
  summary.uniform_elements = elements.uniform;
  return summary;
}

}  // namespace transload
