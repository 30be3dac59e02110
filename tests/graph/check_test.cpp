// Whole-graph checks: each rule has a graph that breaks it and nothing else.
#include <gtest/gtest.h>

#include "error_matchers.h"
#include "graph/graph.h"

namespace transload {

// Reaches into a graph to break what its calls protect.
class BrokenGraph {
 public:
  static std::vector<Value>& values(Graph& graph) { return graph.values_; }
  static std::vector<Node>& nodes(Graph& graph) { return graph.nodes_; }
  static std::vector<ValueId>& inputs(Graph& graph) { return graph.inputs_; }
  static std::vector<ValueId>& outputs(Graph& graph) { return graph.outputs_; }
};

namespace {

using testing::AllOf;
using testing::HasSubstr;

// y = neg(x * w), z = x + w
struct Sample {
  Graph graph;
  ValueId x, w, product, y, z;

  Sample() {
    graph.name = "sample";
    x = graph.add_input("x", DType::f32, {1, 2});
    w = graph.add_constant("w", constant({2}, {1.0F, 2.0F}));
    product = graph.add_node(Op::mul, "product", {x, w});
    y = graph.add_node(Op::neg, "y", {product});
    z = graph.add_node(Op::add, "z", {x, w});
    graph.add_output(y);
    graph.add_output(z);
  }
};

TEST(CheckGraph, TakesAGraphThatKeepsTheRules) {
  Sample sample;
  EXPECT_NO_THROW(check_graph(sample.graph));
}

struct FaultRow {
  const char* name;
  void (*damage)(Sample& sample);
  const char* what;  // the whole message after "graph 'sample': "
};
void PrintTo(const FaultRow& row, std::ostream* out) { *out << row.name; }

class CheckGraphFinds : public testing::TestWithParam<FaultRow> {};

TEST_P(CheckGraphFinds, TheOneFaultOfTheRow) {
  Sample sample;
  GetParam().damage(sample);
  EXPECT_THAT([&] { check_graph(sample.graph); },
              Fails(ErrorCode::graph_invalid, std::string("graph 'sample': ") + GetParam().what));
}

const FaultRow kFaults[] = {
    {"BadCharacterInName", [](Sample& s) { BrokenGraph::values(s.graph)[s.product].name = "a/b"; },
     "name of a value: got 'a/b', expected [A-Za-z_][A-Za-z0-9_]*"},
    {"NameWithLeadingDigit", [](Sample& s) { BrokenGraph::values(s.graph)[s.product].name = "0a"; },
     "name of a value: got '0a', expected [A-Za-z_][A-Za-z0-9_]*"},
    {"EmptyName", [](Sample& s) { BrokenGraph::values(s.graph)[s.product].name = ""; },
     "name of a value: got '', expected [A-Za-z_][A-Za-z0-9_]*"},
    {"NameTwice", [](Sample& s) { BrokenGraph::values(s.graph)[s.product].name = "x"; },
     "name of a value: got 'x' twice, expected it once"},
    {"RankFive",
     [](Sample& s) {
       s.graph.add_output(s.graph.add_node(Op::reshape, "deep", {s.y}, {{"shape", std::vector<int64_t>{1, 1, 1, 1, 2}}}));
     },
     "rank of 'deep': got 5, expected 1 to 4"},
    {"RankZero",
     [](Sample& s) {
       s.graph.add_output(s.graph.add_node(Op::neg, "v", {s.graph.add_constant("c", constant({1}, {1.0F}))}));
       s.graph.add_output(s.graph.add_node(Op::mul, "u", {s.y, s.graph.add_input("scalar", DType::f32, {})}));
     },
     "rank of 'scalar': got 0, expected 1 to 4"},
    {"ZeroDimension",
     [](Sample& s) {
       s.graph.add_output(
           s.graph.add_node(Op::concat, "joined", {s.y, s.graph.add_input("none", DType::f32, {1, 0})}, {{"axis", int64_t{1}}}));
     },
     "shape of 'none': got [1,0], expected no zero dimension"},
    {"ConstantUnlikeItsRecipe",
     [](Sample& s) {
       BrokenGraph::values(s.graph)[s.w].shape = {1, 2};
     },
     "type of constant 'w': got f32[1,2], expected f32[2] as its recipe"},
    {"UnknownInput", [](Sample& s) { BrokenGraph::inputs(s.graph).push_back(99); },
     "graph input: got value 99, expected one of 5 values"},
    {"UnknownOperand", [](Sample& s) { BrokenGraph::nodes(s.graph)[2].inputs[1] = 99; },
     "operand of add: got value 99, expected one of 5 values"},
    {"UnknownOutput", [](Sample& s) { BrokenGraph::outputs(s.graph).push_back(99); },
     "graph output: got value 99, expected one of 5 values"},
    {"OperandBeforeItsNode", [](Sample& s) { std::swap(BrokenGraph::nodes(s.graph)[0], BrokenGraph::nodes(s.graph)[1]); },
     "operand of neg: got 'product', expected a value produced before the node"},
    {"ProducedTwice", [](Sample& s) { BrokenGraph::inputs(s.graph).push_back(s.w); }, "producers of 'w': got 2, expected 1"},
    {"ProducedByTwoNodes", [](Sample& s) { BrokenGraph::nodes(s.graph).push_back(BrokenGraph::nodes(s.graph)[0]); },
     "producers of 'product': got 2, expected 1"},
    {"WrongDtype", [](Sample& s) { BrokenGraph::values(s.graph)[s.z].dtype = DType::f16; },
     "type of add 'z': got f16[1,2], expected f32[1,2] as inferred"},
    {"WrongShape", [](Sample& s) { BrokenGraph::values(s.graph)[s.z].shape = {2}; },
     "type of add 'z': got f32[2], expected f32[1,2] as inferred"},
    {"OperandsThatDoNotFit", [](Sample& s) { BrokenGraph::nodes(s.graph)[2].inputs.pop_back(); },
     "add 'z' of ('x' f32[1,2]): operands: got 1, expected 2"},
    {"UnusedInput", [](Sample& s) { s.graph.add_input("spare", DType::f32, {1}); },
     "uses of 'spare': got 0, expected at least 1"},
    {"UnusedConstant", [](Sample& s) { s.graph.add_constant("spare", constant({1}, {1.0F})); },
     "uses of 'spare': got 0, expected at least 1"},
    {"UnusedNode", [](Sample& s) { s.graph.add_node(Op::neg, "spare", {s.x}); }, "uses of 'spare': got 0, expected at least 1"},
    {"OutputThatNoNodeMakes", [](Sample& s) { s.graph.add_output(s.x); }, "graph output: got 'x', expected the output of a node"},
    {"BooleanInput",
     [](Sample& s) {
       const ValueId flags = s.graph.add_input("flags", DType::boolean, {1, 2});
       s.graph.add_output(s.graph.add_node(Op::where, "chosen", {flags, s.x, s.w}));
     },
     "type of 'flags': got boolean, expected it of results of nodes only"},
    {"BooleanOutput",
     [](Sample& s) {
       s.graph.add_output(s.graph.add_node(Op::greater, "flags", {s.x, s.w}));
     },
     "type of graph output 'flags': got boolean, expected numbers"},
    {"OutputTwice", [](Sample& s) { s.graph.add_output(s.y); }, "graph output: got 'y' twice, expected it once"},
};
INSTANTIATE_TEST_SUITE_P(Rows, CheckGraphFinds, testing::ValuesIn(kFaults),
                         [](const testing::TestParamInfo<FaultRow>& row) { return std::string(row.param.name); });

TEST(CheckGraph, WantsAtLeastOneOutput) {
  Sample sample;
  BrokenGraph::outputs(sample.graph).clear();
  EXPECT_THAT([&] { check_graph(sample.graph); },
              Fails(ErrorCode::graph_invalid, HasSubstr("graph outputs: got none, expected at least one")));
}

TEST(CheckGraph, WantsANamedGraph) {
  Sample sample;
  sample.graph.name = "";
  EXPECT_THAT([&] { check_graph(sample.graph); },
              Fails(ErrorCode::graph_invalid, HasSubstr("name of the graph: got '', expected [A-Za-z_]")));
}

TEST(CheckGraph, FindsAValueThatNothingProduces) {
  Sample sample;
  BrokenGraph::inputs(sample.graph).clear();
  EXPECT_THAT([&] { check_graph(sample.graph); },
              Fails(ErrorCode::graph_invalid, HasSubstr("producers of 'x': got 0, expected 1")));
}

TEST(CheckGraph, ReportsAllFaultsTogether) {
  Sample sample;
  sample.graph.add_input("spare", DType::f32, {1});
  sample.graph.add_output(sample.y);
  EXPECT_THAT([&] { check_graph(sample.graph); },
              Fails(ErrorCode::graph_invalid,
                    AllOf(HasSubstr("graph 'sample': 2 faults"), HasSubstr("uses of 'spare'"), HasSubstr("got 'y' twice"))));
}

}  // namespace
}  // namespace transload
