// What can be verified without computing a value: graphs against contract and manifest, contract against the checkpoint's model.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "export/verify_digests.h"
#include "graph/graph.h"
#include "transload/contract.h"
#include "transload/decoder_model.h"
#include "transload/verify.h"

namespace transload {

// The graphs of the contract's steps, in their order. Throws what read_onnx throws.
std::vector<Graph> read_graphs(const BundleContract& contract);

// Ports of each graph by order, name, dtype and shape; external weights, and the rows the host looks up, where the manifest has
// them.
std::optional<VerifyFailure> compare_graphs(const BundleContract& contract, const std::vector<Graph>& graphs,
                                            const Manifest& manifest);

// Dimensions; of each layer window, heads and rotary group; rotary tables. Names the layer and the field.
std::optional<VerifyFailure> compare_contract(const BundleContract& contract, const DecoderModel& model);

}  // namespace transload
