// Raises ONNX operators to ops, the inverse of onnx_lowering.h: a table with one row for each op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "targets/onnx/onnx_message.h"

namespace transload {

// Values of the operand at this index of a node, which must be a tensor stored in the file; nothing when it is absent.
using IntegerOperand = std::function<std::optional<std::vector<int64_t>>(size_t index)>;

class NodeReader;

struct RaisingRow {
  Op op;
  size_t value_operands;    // leading operands that are values of the graph
  size_t integer_operands;  // after them, at most; they become attributes
  std::vector<Attribute> (*raise)(NodeReader& node);
};

// "Gemm 'layers_0_q'", for messages.
std::string node_text(const onnx_message::Node& node);
// "" and "ai.onnx" are names of the operators that ONNX defines.
bool is_default_domain(std::string_view domain);

// Throws op_unsupported for an operator, a domain, or a number of operands or outputs that no op has.
const RaisingRow& raising_row(const onnx_message::Node& node, int opset);

// The op's attributes. Spellings of ONNX are resolved: defaults, negative axes, -1 and 0 in a shape, bounds past the end. Throws
// op_unsupported for an attribute, or a value of it, that the op cannot express, and bad_header for what ONNX forbids.
std::vector<Attribute> raise(const RaisingRow& row, const onnx_message::Node& node, int opset,
                             std::span<const Value* const> operands, const IntegerOperand& integers);

}  // namespace transload
