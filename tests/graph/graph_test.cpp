// Building a graph: numbering, names, constants and attributes.
#include "graph/graph.h"

#include <gtest/gtest.h>

#include "error_matchers.h"

namespace transload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Graph, NumbersValuesInOrderOfAddition) {
  Graph graph;
  const ValueId x = graph.add_input("x", DType::f32, {1, 2});
  const ValueId w = graph.add_constant("w", constant({2}, {1.0F, 2.0F}));
  const ValueId y = graph.add_node(Op::mul, "y", {x, w});
  graph.add_output(y);
  EXPECT_EQ(graph.find("w"), w);
  EXPECT_EQ(graph.value(y).name, "y");
  EXPECT_THAT(graph.inputs(), ElementsAre(x));
  EXPECT_THAT(graph.constants(), ElementsAre(w));
  EXPECT_THAT(graph.outputs(), ElementsAre(y));
  ASSERT_EQ(graph.nodes().size(), 1U);
  EXPECT_EQ(graph.nodes()[0].output, y);
  EXPECT_THAT(graph.nodes()[0].inputs, ElementsAre(x, w));
}

TEST(Graph, TakesTheTypeOfAConstantFromItsRecipe) {
  Graph graph;
  const Value& value = graph.value(graph.add_constant("w", cast(constant({2, 1}, {1.0F, 2.0F}), DType::f16)));
  EXPECT_EQ(value.dtype, DType::f16);
  EXPECT_EQ(value.shape, (Shape{2, 1}));
}

TEST(Graph, GivesTheFirstConstantWhenTheSameIsAddedAgain) {
  Graph graph;
  const ValueId first = graph.add_constant("w", constant({1}, {1.0F}));
  EXPECT_EQ(graph.add_constant("w", constant({1}, {1.0F})), first);
  EXPECT_EQ(graph.values().size(), 1U);
}

TEST(Graph, RefusesAnotherConstantOfTheSameName) {
  Graph graph;
  graph.add_constant("w", constant({1}, {1.0F}));
  EXPECT_THAT([&] { graph.add_constant("w", constant({1}, {2.0F})); },
              Fails(ErrorCode::graph_invalid, HasSubstr("constant 'w' added again: got ")));
}

TEST(Graph, RefusesAConstantNamedAsAnInput) {
  Graph graph;
  graph.add_input("x", DType::f32, {1});
  EXPECT_THAT([&] { graph.add_constant("x", constant({1}, {2.0F})); },
              Fails(ErrorCode::graph_invalid, HasSubstr("expected a new name")));
}

TEST(Graph, RefusesAConstantWithoutARecipe) {
  Graph graph;
  EXPECT_THAT([&] { graph.add_constant("w", Recipe()); },
              Fails(ErrorCode::graph_invalid, "constant 'w': got no recipe, expected one"));
}

TEST(Graph, RefusesANameThatIsTaken) {
  Graph graph;
  const ValueId x = graph.add_input("x", DType::f32, {1});
  const char* const message = "name of a value: got 'x' twice, expected a new name";
  EXPECT_THAT([&] { graph.add_input("x", DType::f32, {1}); }, Fails(ErrorCode::graph_invalid, message));
  EXPECT_THAT([&] { graph.add_node(Op::neg, "x", {x}); }, Fails(ErrorCode::graph_invalid, message));
  EXPECT_TRUE(graph.nodes().empty());
}

TEST(Graph, RefusesAnOperandThatDoesNotExistYet) {
  Graph graph;
  const ValueId x = graph.add_input("x", DType::f32, {1});
  EXPECT_THAT([&] { graph.add_node(Op::neg, "y", {x + 1}); },
              Fails(ErrorCode::graph_invalid, "operand of neg 'y': got value 1, expected one of 1 existing values"));
}

TEST(Graph, RefusesAnOutputThatDoesNotExist) {
  Graph graph;
  EXPECT_THAT([&] { graph.add_output(0); },
              Fails(ErrorCode::graph_invalid, "graph output: got value 0, expected one of 0 existing values"));
}

TEST(Graph, NamesTheValueThatIsNotThere) {
  Graph graph;
  graph.name = "step";
  EXPECT_THAT([&] { graph.find("logits"); },
              Fails(ErrorCode::graph_invalid, "value of graph 'step': got none, expected 'logits'"));
}

TEST(Node, GivesItsAttributesByNameAndKind) {
  const Node node{Op::slice, {}, 0, {{"axis", int64_t{2}}, {"perm", std::vector<int64_t>{1, 0}}, {"approximate", "tanh"}}};
  EXPECT_EQ(node.integer("axis"), 2);
  EXPECT_THAT(node.integers("perm"), ElementsAre(1, 0));
  EXPECT_EQ(node.text("approximate"), "tanh");
  EXPECT_THAT([&] { node.integer("begin"); }, Fails(ErrorCode::graph_invalid, "attribute of slice: got none, expected 'begin'"));
  EXPECT_THAT([&] { node.integer("perm"); },
              Fails(ErrorCode::graph_invalid, "attribute 'perm' of slice: got a list of integers, expected an integer"));
}

}  // namespace
}  // namespace transload
