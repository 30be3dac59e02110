// Building a graph: values get numbers and unique names, nodes get their inferred types.
#include "graph/graph.h"

#include <fmt/format.h>

#include <utility>

#include "graph/op_table.h"
#include "transload/error.h"

namespace transload {
namespace {

const AttributeValue& attribute_value(const Node& node, std::string_view name) {
  for (const Attribute& attribute : node.attributes) {
    if (attribute.name == name) return attribute.value;
  }
  throw Error(ErrorCode::graph_invalid, fmt::format("attribute of {}: got none, expected '{}'", op_name(node.op), name));
}

template <typename Type>
const Type& typed_attribute(const Node& node, std::string_view name, std::string_view expected) {
  static constexpr std::string_view kKinds[] = {"an integer", "a list of integers", "a text"};
  const AttributeValue& value = attribute_value(node, name);
  if (const Type* typed = std::get_if<Type>(&value)) return *typed;
  throw Error(ErrorCode::graph_invalid,
              fmt::format("attribute '{}' of {}: got {}, expected {}", name, op_name(node.op), kKinds[value.index()], expected));
}

}  // namespace

int64_t Node::integer(std::string_view attribute) const { return typed_attribute<int64_t>(*this, attribute, "an integer"); }

const std::vector<int64_t>& Node::integers(std::string_view attribute) const {
  return typed_attribute<std::vector<int64_t>>(*this, attribute, "a list of integers");
}

const std::string& Node::text(std::string_view attribute) const {
  return typed_attribute<std::string>(*this, attribute, "a text");
}

ValueId Graph::add_value(Value value) {
  const auto id = static_cast<ValueId>(values_.size());
  if (!by_name_.emplace(value.name, id).second) {
    throw Error(ErrorCode::graph_invalid, fmt::format("name of a value: got '{}' twice, expected a new name", value.name));
  }
  values_.push_back(std::move(value));
  return id;
}

ValueId Graph::add_input(std::string input_name, DType dtype, Shape shape) {
  const ValueId id = add_value({std::move(input_name), dtype, std::move(shape), {}});
  inputs_.push_back(id);
  return id;
}

ValueId Graph::add_constant(std::string constant_name, Recipe recipe) {
  if (recipe.empty()) {
    throw Error(ErrorCode::graph_invalid, fmt::format("constant '{}': got no recipe, expected one", constant_name));
  }
  if (const auto found = by_name_.find(constant_name); found != by_name_.end()) {
    const Recipe& first = values_[found->second].constant;
    if (!first.empty() && first == recipe) return found->second;
    throw Error(ErrorCode::graph_invalid, fmt::format("constant '{}' added again: got {}, expected {}", constant_name,
                                                      recipe.text(), first.empty() ? "a new name" : first.text()));
  }
  const DType dtype = recipe.dtype();
  Shape shape = recipe.shape();
  return add_value({std::move(constant_name), dtype, std::move(shape), std::move(recipe)});
}

ValueId Graph::add_node(Op op, std::string output_name, std::vector<ValueId> inputs, std::vector<Attribute> attributes) {
  std::vector<const Value*> operands;
  for (const ValueId input : inputs) {
    if (input >= values_.size()) {
      throw Error(ErrorCode::graph_invalid, fmt::format("operand of {} '{}': got value {}, expected one of {} existing values",
                                                        op_name(op), output_name, input, values_.size()));
    }
    operands.push_back(&values_[input]);
  }
  Node node{op, std::move(inputs), static_cast<ValueId>(values_.size()), std::move(attributes)};
  InferredType type = infer_type(node, output_name, operands);
  const ValueId id = add_value({std::move(output_name), type.dtype, std::move(type.shape), {}});
  nodes_.push_back(std::move(node));
  return id;
}

void Graph::add_output(ValueId value) {
  if (value >= values_.size()) {
    throw Error(ErrorCode::graph_invalid,
                fmt::format("graph output: got value {}, expected one of {} existing values", value, values_.size()));
  }
  outputs_.push_back(value);
}

std::vector<ValueId> Graph::constants() const {
  std::vector<ValueId> ids;
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (!values_[id].constant.empty()) ids.push_back(id);
  }
  return ids;
}

ValueId Graph::find(std::string_view value_name) const {
  const auto found = by_name_.find(std::string(value_name));
  if (found == by_name_.end()) {
    throw Error(ErrorCode::graph_invalid, fmt::format("value of graph '{}': got none, expected '{}'", name, value_name));
  }
  return found->second;
}

}  // namespace transload
