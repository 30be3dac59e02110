// The text form: a small decoder-like graph against the text it must always have.
#include <gtest/gtest.h>

#include "graph/graph.h"

namespace transload {
namespace {

TEST(GraphText, IsOneLineAValue) {
  Graph graph;
  graph.name = "step_q1_c4";
  const ValueId ids = graph.add_input("input_ids", DType::i32, {1});
  const ValueId past = graph.add_input("k_cache_0", DType::f16, {1, 4, 2});
  const Recipe embedding = constant({3, 2}, {1, 2, 3, 4, 5, 6});
  const ValueId table = graph.add_constant("embed_weight", embedding);
  const ValueId rows = graph.add_node(Op::gather, "rows", {table, ids});
  const ValueId half = graph.add_node(Op::cast, "rows_f16", {rows}, {{"to", static_cast<int64_t>(DType::f16)}});
  const ValueId key = graph.add_node(Op::reshape, "k_new_0", {half}, {{"shape", std::vector<int64_t>{1, 1, 2}}});
  const ValueId keys = graph.add_node(Op::concat, "keys", {past, key}, {{"axis", int64_t{1}}});
  const ValueId window =
      graph.add_node(Op::slice, "window", {keys}, {{"axis", int64_t{1}}, {"begin", int64_t{1}}, {"end", int64_t{5}}});
  const ValueId out = graph.add_node(Op::gelu, "layers_0_out", {window}, {{"approximate", "tanh"}});
  graph.add_output(out);
  graph.add_output(key);

  EXPECT_EQ(graph_text(graph),
            "graph step_q1_c4 inputs=2 constants=1 nodes=6 outputs=2\n"
            "input %input_ids: i32[1]\n"
            "input %k_cache_0: f16[1,4,2]\n"
            "constant %embed_weight: f32[3,2] = " +
                embedding.text() +
                "\n"
                "%rows: f32[1,2] = gather(%embed_weight, %input_ids)\n"
                "%rows_f16: f16[1,2] = cast(%rows) {to=f16}\n"
                "%k_new_0: f16[1,1,2] = reshape(%rows_f16) {shape=[1,1,2]}\n"
                "%keys: f16[1,5,2] = concat(%k_cache_0, %k_new_0) {axis=1}\n"
                "%window: f16[1,4,2] = slice(%keys) {axis=1, begin=1, end=5}\n"
                "%layers_0_out: f16[1,4,2] = gelu(%window) {approximate=tanh}\n"
                "return %layers_0_out, %k_new_0\n");
}

}  // namespace
}  // namespace transload
