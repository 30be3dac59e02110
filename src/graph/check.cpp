// The rules that a whole graph keeps; every fault is collected before anything is thrown.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>

#include "graph/graph.h"
#include "graph/names.h"
#include "graph/op_table.h"
#include "transload/error.h"

namespace transload {
namespace {

std::string type_text(DType dtype, const Shape& shape) { return fmt::format("{}{}", dtype_name(dtype), shape_text(shape)); }

class Checker {
 public:
  explicit Checker(const Graph& graph)
      : graph_(graph), produced_(graph.values().size()), by_node_(graph.values().size()), used_(graph.values().size()) {}

  std::vector<std::string> faults() {
    if (!is_graph_name(graph_.name)) fault("name of the graph: got '{}', expected {}", graph_.name, kGraphNamePattern);
    for (const Value& value : graph_.values()) check_value(value);
    mark_sources();
    for (const Node& node : graph_.nodes()) check_node(node);
    check_outputs();
    check_counts();
    return std::move(faults_);
  }

 private:
  template <typename... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  bool exists(ValueId id, std::string_view what) {
    if (id < graph_.values().size()) return true;
    fault("{}: got value {}, expected one of {} values", what, id, graph_.values().size());
    return false;
  }

  void check_value(const Value& value) {
    if (!is_graph_name(value.name)) fault("name of a value: got '{}', expected {}", value.name, kGraphNamePattern);
    if (!names_.insert(value.name).second) fault("name of a value: got '{}' twice, expected it once", value.name);
    if (value.shape.empty() || value.shape.size() > kMaxGraphRank) {
      fault("rank of '{}': got {}, expected 1 to {}", value.name, value.shape.size(), kMaxGraphRank);
    }
    if (std::find(value.shape.begin(), value.shape.end(), 0) != value.shape.end()) {
      fault("shape of '{}': got {}, expected no zero dimension", value.name, shape_text(value.shape));
    }
    if (value.constant.empty()) return;
    const Recipe& recipe = value.constant;
    if (recipe.dtype() != value.dtype || recipe.shape() != value.shape) {
      fault("type of constant '{}': got {}, expected {} as its recipe", value.name, type_text(value.dtype, value.shape),
            type_text(recipe.dtype(), recipe.shape()));
    }
  }

  // Inputs and constants exist before the first node.
  void mark_sources() {
    for (const ValueId id : graph_.inputs()) {
      if (exists(id, "graph input")) ++produced_[id];
    }
    for (const ValueId id : graph_.constants()) ++produced_[id];
  }

  void check_node(const Node& node) {
    const std::string what = fmt::format("operand of {}", op_name(node.op));
    std::vector<const Value*> operands;
    for (const ValueId id : node.inputs) {
      if (!exists(id, what)) continue;
      const Value& operand = graph_.value(id);
      operands.push_back(&operand);
      used_[id] = true;
      if (produced_[id] == 0) fault("{}: got '{}', expected a value produced before the node", what, operand.name);
    }
    if (!exists(node.output, fmt::format("output of {}", op_name(node.op)))) return;
    ++produced_[node.output];
    by_node_[node.output] = true;
    if (operands.size() == node.inputs.size()) check_type(node, operands);
  }

  void check_type(const Node& node, const std::vector<const Value*>& operands) {
    const Value& output = graph_.value(node.output);
    try {
      const InferredType type = infer_type(node, output.name, operands);
      if (type.dtype != output.dtype || type.shape != output.shape) {
        fault("type of {} '{}': got {}, expected {} as inferred", op_name(node.op), output.name,
              type_text(output.dtype, output.shape), type_text(type.dtype, type.shape));
      }
    } catch (const Error& error) {
      faults_.emplace_back(error.what());
    }
  }

  void check_outputs() {
    if (graph_.outputs().empty()) fault("graph outputs: got none, expected at least one");
    std::unordered_set<ValueId> seen;
    for (const ValueId id : graph_.outputs()) {
      if (!exists(id, "graph output")) continue;
      used_[id] = true;
      if (!by_node_[id]) fault("graph output: got '{}', expected the output of a node", graph_.value(id).name);
      if (graph_.value(id).dtype == DType::boolean) {
        fault("type of graph output '{}': got boolean, expected numbers", graph_.value(id).name);
      }
      if (!seen.insert(id).second) fault("graph output: got '{}' twice, expected it once", graph_.value(id).name);
    }
  }

  void check_counts() {
    for (ValueId id = 0; id < graph_.values().size(); ++id) {
      const std::string& name = graph_.value(id).name;
      if (produced_[id] != 1) fault("producers of '{}': got {}, expected 1", name, produced_[id]);
      if (graph_.value(id).dtype == DType::boolean && !by_node_[id]) {
        fault("type of '{}': got boolean, expected it of results of nodes only", name);
      }
      if (!used_[id]) fault("uses of '{}': got 0, expected at least 1", name);
    }
  }

  const Graph& graph_;
  std::vector<std::string> faults_;
  std::vector<uint32_t> produced_;  // how often each value is produced
  std::vector<bool> by_node_;
  std::vector<bool> used_;
  std::unordered_set<std::string_view> names_;
};

}  // namespace

void check_graph(const Graph& graph) {
  const std::vector<std::string> faults = Checker(graph).faults();
  if (faults.empty()) return;
  throw Error(ErrorCode::graph_invalid, fmt::format("graph '{}': {}", graph.name, join_faults(faults)));
}

}  // namespace transload
