// Builds the decode-step graph of a model for one (query, context) pair, and what the host must know to run it.
#pragma once

#include "graph/graph.h"
#include "transload/contract.h"
#include "transload/decoder_model.h"
#include "transload/step_options.h"

namespace transload {

struct DecodeStep {
  Graph graph;
  StepContract contract;
  // Name of the constant that holds the raw embedding rows as its bytes; empty when the graph has none (untied or transposed
  // head, or no head).
  std::string embedding_constant;
};

// Whether the model has a GELU that StepOptions::gelu may write in another form; quick_gelu is a form already.
bool has_gelu(const DecoderModel& model);

// Throws usage for options that do not apply to the model (a GELU form without GELU, a slice of layers that is not there,
// f16 compute with f32 weights).
DecodeStep build_decode_step(const DecoderModel& model, const StepOptions& options);

}  // namespace transload
