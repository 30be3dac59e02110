// Consistency of a bundle's host contract: what its caches, groups and query lengths imply for every port.
#pragma once

#include "transload/contract.h"

namespace transload {

// Columns of the mask of a layer: its slots and the new keys; roll drops one key first.
uint64_t mask_columns(const CacheLayer& cache, uint32_t query);

// Throws config_invalid naming the step and the port or cache: graphs of one slice share their caches, slots follow from window
// and context, ports are exactly those that the caches and groups need, each once, with the implied dtype and shape.
void check_contract(const BundleContract& contract);

}  // namespace transload
