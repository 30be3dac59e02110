// The op table: for each op its name, arity, attributes and shape inference.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace transload {

struct InferredType {
  DType dtype;
  Shape shape;
};

struct OpInfo {
  Op op;
  std::string_view name;
  uint8_t min_inputs;
  uint8_t max_inputs;                            // 255: any number (concat)
  std::span<const std::string_view> attributes;  // exactly these, all required
  // Throws graph_invalid with what was got and expected; `inputs` are the operand values in order.
  InferredType (*infer)(const Node& node, std::span<const Value* const> inputs);
};

const OpInfo& op_info(Op op);

// Checks arity and attribute names, then infers. Every fault is graph_invalid and names the op, `output_name` and the operands.
InferredType infer_type(const Node& node, std::string_view output_name, std::span<const Value* const> inputs);

}  // namespace transload
