// How much memory a verification will hold at its peak, from headers and graphs alone.
#pragma once

#include <cstdint>
#include <vector>

#include "export/verify_schedule.h"
#include "graph/graph.h"
#include "transload/contract.h"
#include "transload/verify.h"

namespace transload {

// Bytes of the bundle's weights that its graphs and the host read, each once.
uint64_t bundle_weight_bytes(const BundleContract& contract, const std::vector<Graph>& graphs);

// `checkpoint_weights`: what the reference has opened.
VerifyForecast forecast_memory(const BundleContract& contract, const std::vector<Graph>& graphs, const Schedule& schedule,
                               uint64_t checkpoint_weights);

}  // namespace transload
