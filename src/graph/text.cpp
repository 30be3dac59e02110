// The text form of a graph: stable, one line a value.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "graph/graph.h"

namespace transload {
namespace {

std::string declaration(const Value& value) {
  return fmt::format("%{}: {}{}", value.name, dtype_name(value.dtype), shape_text(value.shape));
}

std::string operand_list(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<std::string> names;
  for (const ValueId id : ids) names.push_back("%" + graph.value(id).name);
  return fmt::format("{}", fmt::join(names, ", "));
}

struct AttributeText {
  const Node& node;
  std::string_view name;

  std::string operator()(int64_t value) const {
    // A cast's target is stored as a number; its name is what a reader looks for.
    if (node.op == Op::cast && name == "to") return std::string(dtype_name(static_cast<DType>(value)));
    return fmt::format("{}", value);
  }
  std::string operator()(const std::vector<int64_t>& values) const { return fmt::format("[{}]", fmt::join(values, ",")); }
  std::string operator()(const std::string& value) const { return value; }
};

std::string attribute_list(const Node& node) {
  std::vector<std::string> parts;
  for (const Attribute& attribute : node.attributes) {
    parts.push_back(fmt::format("{}={}", attribute.name, std::visit(AttributeText{node, attribute.name}, attribute.value)));
  }
  return parts.empty() ? std::string() : fmt::format(" {{{}}}", fmt::join(parts, ", "));
}

}  // namespace

std::string graph_text(const Graph& graph) {
  const std::vector<ValueId> constants = graph.constants();
  std::string text = fmt::format("graph {} inputs={} constants={} nodes={} outputs={}\n", graph.name, graph.inputs().size(),
                                 constants.size(), graph.nodes().size(), graph.outputs().size());
  for (const ValueId id : graph.inputs()) text += fmt::format("input {}\n", declaration(graph.value(id)));
  for (const ValueId id : constants) {
    text += fmt::format("constant {} = {}\n", declaration(graph.value(id)), graph.value(id).constant.text());
  }
  for (const Node& node : graph.nodes()) {
    text += fmt::format("{} = {}({}){}\n", declaration(graph.value(node.output)), op_name(node.op),
                        operand_list(graph, node.inputs), attribute_list(node));
  }
  return text + fmt::format("return {}\n", operand_list(graph, graph.outputs()));
}

}  // namespace transload
