// Graph: a typed, static-shape dataflow graph. Values are numbered; a constant's content is a recipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "transload/dtype.h"
#include "transload/recipe.h"

namespace transload {

// One row of the op table (src/graph/op_table.cpp) each: arity, attributes, shape inference. Axes are never negative.
enum class Op : uint8_t {
  // Two operands of one dtype, broadcasting.
  add,
  sub,
  mul,
  div,
  max,  // floats only, as min
  min,
  equal,    // -> boolean
  greater,  // -> boolean
  where,    // condition (boolean), a, b: a where the condition holds, else b; all three broadcast
  // One operand, element by element.
  neg,
  abs,
  sqrt,
  sigmoid,
  tanh,
  erf,
  gelu,         // attribute approximate: "none" | "tanh"
  softmax,      // attribute axis
  reduce_mean,  // attribute axes (ints, ascending), keepdims always
  reduce_max,   // as reduce_mean
  argmax,       // attribute axis, keepdims always, the first of equals -> i64
  gemm,         // a [m,k], b [n,k] (transposed), optional c [n] -> [m,n]
  matmul,       // batched, broadcasting leading axes
  conv1x1,      // x [1,in,1,w], w [out,in,1,1], optional bias [out] -> [1,out,1,w]
  reshape,      // attribute shape (ints)
  transpose,    // attribute perm (ints)
  concat,       // attribute axis
  slice,        // attributes axis, begin, end
  gather,       // axis 0: table [v,...], indices int -> [indices..., ...]
  cast,         // attribute to: DType as int
};
inline constexpr int kOpCount = static_cast<int>(Op::cast) + 1;
std::string_view op_name(Op op);

inline constexpr size_t kMaxGraphRank = 4;  // converters for phone accelerators take no more

using ValueId = uint32_t;
using AttributeValue = std::variant<int64_t, std::vector<int64_t>, std::string>;

struct Attribute {
  std::string name;
  AttributeValue value;
};

struct Value {
  std::string name;  // unique, by graph/names.h
  DType dtype = DType::f32;
  Shape shape;      // static, rank 1 to kMaxGraphRank
  Recipe constant;  // empty unless a constant
};

struct Node {
  Op op = Op::add;
  std::vector<ValueId> inputs;
  ValueId output = 0;
  std::vector<Attribute> attributes;

  int64_t integer(std::string_view attribute) const;  // throws graph_invalid when absent
  const std::vector<int64_t>& integers(std::string_view attribute) const;
  const std::string& text(std::string_view attribute) const;
};

// Nodes are stored in execution order: add_node refuses inputs that do not exist yet. Not thread-safe.
class Graph {
 public:
  std::string name;

  ValueId add_input(std::string name, DType dtype, Shape shape);
  // Adding the same name again returns the first value when the recipes are equal, and throws graph_invalid otherwise.
  ValueId add_constant(std::string name, Recipe recipe);
  // Infers dtype and shape from the op table; throws graph_invalid naming node and operands when they do not fit.
  ValueId add_node(Op op, std::string output_name, std::vector<ValueId> inputs, std::vector<Attribute> attributes = {});
  void add_output(ValueId value);

  const Value& value(ValueId id) const { return values_[id]; }
  const std::vector<Value>& values() const { return values_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  std::vector<ValueId> constants() const;     // in order of addition
  ValueId find(std::string_view name) const;  // throws graph_invalid when absent

 private:
  friend class BrokenGraph;  // tests of check_graph: graphs that the calls above refuse to build
  ValueId add_value(Value value);
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<ValueId> inputs_;
  std::vector<ValueId> outputs_;
  std::unordered_map<std::string, ValueId> by_name_;
};

// Whole-graph rules: the graph is named, unique names of [A-Za-z0-9_] that do not start with a digit, every value produced once
// and used, operands produced before their node, outputs (at least one, each once) produced by nodes, re-inferred shapes equal,
// rank 1 to 4 (a scalar is [1]), no zero dimension, booleans only between nodes. All faults are reported together as
// graph_invalid.
void check_graph(const Graph& graph);

// Stable text, one line a value, for golden tests and --explain.
std::string graph_text(const Graph& graph);

}  // namespace transload
