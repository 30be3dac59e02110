// The KV cache of one graph in numbers: by layer, in all, and against a uniform cache.
#pragma once

#include "transload/contract.h"
#include "transload/export_onnx.h"

namespace transload {

KvSummary kv_summary(const StepContract& contract);

}  // namespace transload
