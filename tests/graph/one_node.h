// A graph of one node whose operands and result are numbers, also for ops that take or give booleans.
#pragma once

#include <utility>
#include <vector>

#include "graph/graph.h"

namespace transload {

// The op as value `y`. Booleans live between nodes only: a condition is `a` above 0, the result of a comparison is shown as 1 or
// 0.
inline ValueId add_one_node(Graph& graph, Op op, std::vector<ValueId> operands, std::vector<Attribute> attributes) {
  const auto scalar = [&](const char* name, float value, DType dtype = DType::f32) {
    return graph.add_constant(name, cast(constant({1}, {value}), dtype));
  };
  if (op == Op::where) {
    const ValueId zero = scalar("zero", 0, graph.value(operands[0]).dtype);
    operands[0] = graph.add_node(Op::greater, "condition", {operands[0], zero});
  }
  if (op != Op::equal && op != Op::greater) return graph.add_node(op, "y", std::move(operands), std::move(attributes));
  const ValueId holds = graph.add_node(op, "holds", std::move(operands), std::move(attributes));
  return graph.add_node(Op::where, "y", {holds, scalar("one", 1), scalar("zero", 0)});
}

}  // namespace transload
