// The interpreter as a whole: lifetimes, constants that stay in their file, observers, refusals.
#include "runtime/interpreter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "error_matchers.h"
#include "io/scratch_folder.h"
#include "runtime/op_evaluation.h"

namespace transload {
namespace {

using testing::HasSubstr;

// A graph of several nodes, its store and pool, and one input "x" of f32.
struct Session {
  Graph graph;
  WeightStore store;
  WorkerPool pool{2};
  std::unique_ptr<Interpreter> interpreter;

  Session() { graph.name = "session"; }
  std::vector<Tensor> run(const std::vector<Tensor>& inputs, const ValueObserver& observe = {}) {
    if (interpreter == nullptr) interpreter = std::make_unique<Interpreter>(graph, store, pool);
    std::vector<TensorView> views;
    for (const Tensor& input : inputs) views.push_back(input.view());
    return interpreter->run(views, observe);
  }
};

TEST(Interpreter, FreesValuesAfterTheirLastUse) {
  Session s;
  ValueId value = s.graph.add_input("x", DType::f32, {1000});
  for (int i = 0; i < 50; ++i) value = s.graph.add_node(Op::neg, fmt::format("n{}", i), {value});
  s.graph.add_output(value);
  const Tensor x = tensor_of("x", f32({1000}, std::vector<double>(1000, 3)));
  EXPECT_EQ(data_of(s.run({x})[0]).values[999], 3);
  EXPECT_EQ(s.interpreter->peak_value_bytes(), 2U * 4000);
  s.run({x});
  EXPECT_EQ(s.interpreter->peak_value_bytes(), 2U * 4000);
}

TEST(Interpreter, ReshapesAndWideningCastsTakeNoMemory) {
  Session s;
  ValueId value = s.graph.add_input("x", DType::f16, {1000});
  for (int64_t i = 0; i < 50; ++i) {
    const Ints shape = i % 2 == 0 ? Ints{10, 100} : Ints{1000};
    value = s.graph.add_node(Op::reshape, fmt::format("r{}", i), {value}, {{"shape", shape}});
  }
  s.graph.add_output(s.graph.add_node(Op::cast, "wide", {value}, to(DType::f32)));
  s.run({tensor_of("x", f16({1000}, std::vector<double>(1000, 3)))});
  EXPECT_EQ(s.interpreter->peak_value_bytes(), 4000U);
}

TEST(Interpreter, AValueUsedTwiceOutlivesItsFirstUse) {
  Session s;
  const ValueId x = s.graph.add_input("x", DType::f32, {2});
  const ValueId y = s.graph.add_node(Op::neg, "y", {x});
  const ValueId z = s.graph.add_node(Op::mul, "z", {y, y});
  s.graph.add_output(s.graph.add_node(Op::add, "sum", {z, y}));
  s.graph.add_output(y);
  const std::vector<Tensor> outputs = s.run({tensor_of("x", f32({2}, {2, -3}))});
  EXPECT_EQ(data_of(outputs[0]).values, (std::vector<double>{2, 12}));
  EXPECT_EQ(outputs[1].name, "y");
  EXPECT_EQ(data_of(outputs[1]).values, (std::vector<double>{-2, 3}));
}

TEST(Interpreter, ObserversSeeEachFloatingPointValueInNodeOrder) {
  Session s;
  const ValueId x = s.graph.add_input("x", DType::f16, {2});
  const ValueId bias =
      s.graph.add_node(Op::cast, "bias", {s.graph.add_constant("stored", recipe_of(bf16({1}, {1})))}, to(DType::f16));
  const ValueId sum = s.graph.add_node(Op::add, "sum", {x, bias});
  s.graph.add_output(s.graph.add_node(Op::cast, "rounded", {sum}, to(DType::i32)));
  s.graph.add_output(s.graph.add_node(Op::neg, "negated", {sum}));
  std::vector<std::pair<std::string, std::vector<float>>> seen;
  s.run({tensor_of("x", f16({2}, {2048, 1.5}))}, [&](const Value& value, std::span<const float> values) {
    seen.emplace_back(value.name, std::vector<float>(values.begin(), values.end()));
  });
  ASSERT_EQ(seen.size(), 2U);  // neither the folded constant nor the integers
  EXPECT_EQ(seen[0], (std::pair<std::string, std::vector<float>>{"sum", {2048, 2.5}}));
  EXPECT_EQ(seen[1], (std::pair<std::string, std::vector<float>>{"negated", {-2048, -2.5}}));
}

TEST(Interpreter, CastAndReshapedConstantsAreTheStoredOnes) {
  const ScratchFolder folder;
  std::string file = safetensors_bytes(R"({"table":{"dtype":"F16","shape":[3,2],"data_offsets":[0,12]}} )", 0);
  for (const float value : {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}) {
    const uint16_t half = f32_to_f16(value);
    file.append(reinterpret_cast<const char*>(&half), 2);
  }
  folder.write("config.json", "{}");
  const Checkpoint checkpoint = Checkpoint::open(folder.write("model.safetensors", file));
  Session s;
  const ValueId stored = s.graph.add_constant("table", source(checkpoint.tensors()[0]));
  const ValueId table = s.graph.add_node(Op::cast, "table_f32", {stored}, to(DType::f32));
  const ValueId image = s.graph.add_node(Op::reshape, "table_image", {table}, {{"shape", Ints{3, 2, 1, 1}}});
  const ValueId row = s.graph.add_node(Op::gather, "row", {table, s.graph.add_input("ids", DType::i32, {1})});
  const ValueId logits = s.graph.add_node(Op::gemm, "logits", {row, table});
  const ValueId column = s.graph.add_node(Op::reshape, "column", {row}, {{"shape", Ints{1, 2, 1, 1}}});
  s.graph.add_output(logits);
  s.graph.add_output(s.graph.add_node(Op::conv1x1, "conv", {column, image}));
  const std::vector<Tensor> outputs = s.run({tensor_of("ids", i32({1}, {1}))});
  EXPECT_EQ(data_of(outputs[0]).values, (std::vector<double>{11, 25, 39}));
  EXPECT_EQ(data_of(outputs[1]).values, (std::vector<double>{11, 25, 39}));
  EXPECT_EQ(s.store.mapped_bytes(), 12U);
  EXPECT_EQ(s.store.owned_bytes(), 0U);
}

TEST(Interpreter, AFoldedConstantCanBeAnOutputAndAnOperandOfAnyOp) {
  Session s;
  const ValueId x = s.graph.add_input("x", DType::f32, {2, 2});
  const ValueId w =
      s.graph.add_node(Op::cast, "w", {s.graph.add_constant("w_f16", recipe_of(f16({2, 2}, {1, 2, 3, 0.1})))}, to(DType::f32));
  s.graph.add_output(w);
  s.graph.add_output(s.graph.add_node(Op::gemm, "product", {x, w}));
  s.graph.add_output(s.graph.add_node(Op::mul, "scaled", {w, x}));
  const std::vector<Tensor> outputs = s.run({tensor_of("x", f32({2, 2}, {1, 0, 0, 10}))});
  const double tenth = 0.0999755859375;
  EXPECT_EQ(data_of(outputs[0]).values, (std::vector<double>{1, 2, 3, tenth}));
  EXPECT_EQ(data_of(outputs[1]).values, (std::vector<double>{1, 3, 20, static_cast<float>(10 * tenth)}));
  EXPECT_EQ(data_of(outputs[2]).values, (std::vector<double>{1, 0, 0, static_cast<float>(10 * tenth)}));
}

TEST(Interpreter, ResultsDoNotDependOnTheNumberOfWorkers) {
  Graph graph;
  graph.name = "attention";
  const ValueId q = graph.add_input("q", DType::f32, {1, 2, 5, 24});
  const ValueId k = graph.add_input("k", DType::f32, {1, 2, 301, 24});
  const ValueId turned = graph.add_node(Op::transpose, "turned", {k}, {{"perm", Ints{0, 1, 3, 2}}});
  const ValueId scores = graph.add_node(Op::matmul, "scores", {q, turned});
  const ValueId probabilities = graph.add_node(Op::softmax, "probabilities", {scores}, {axis(3)});
  graph.add_output(graph.add_node(Op::matmul, "context", {probabilities, k}));
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const auto data = [&](Shape shape) {
    Data made = f32(shape, {});
    for (uint64_t i = 0; i < element_count(shape); ++i) made.values.push_back(normal(random));
    return made;
  };
  const Tensor q_in = tensor_of("q", data({1, 2, 5, 24}));
  const Tensor k_in = tensor_of("k", data({1, 2, 301, 24}));
  std::vector<std::vector<std::byte>> results;
  for (const uint32_t workers : {1U, 2U, 5U}) {
    WeightStore store;
    WorkerPool pool(workers);
    results.push_back(Interpreter(graph, store, pool).run(std::vector<TensorView>{q_in.view(), k_in.view()})[0].bytes);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// The transposition before a product is not carried out, but nobody can tell.
TEST(Interpreter, TurnedKeysAreMultipliedWhereTheyLie) {
  constexpr uint64_t kPositions = 150;
  constexpr uint64_t kWidth = 9;
  Session s;
  const ValueId q = s.graph.add_input("q", DType::f32, {1, 2, 3, kWidth});
  const ValueId k = s.graph.add_input("k", DType::f32, {1, 1, kPositions, kWidth});
  const ValueId keys = s.graph.add_node(Op::neg, "keys", {k});
  const ValueId turned = s.graph.add_node(Op::transpose, "turned", {keys}, {{"perm", Ints{0, 1, 3, 2}}});
  s.graph.add_output(s.graph.add_node(Op::matmul, "scores", {q, turned}));
  std::mt19937 random(11);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Data q_data = f32({1, 2, 3, kWidth}, {});
  Data k_data = f32({1, 1, kPositions, kWidth}, {});
  for (uint64_t i = 0; i < 2 * 3 * kWidth; ++i) q_data.values.push_back(uniform(random));
  for (uint64_t i = 0; i < kPositions * kWidth; ++i) k_data.values.push_back(uniform(random));
  Data expected = f32({1, 2, 3, kPositions}, {});
  for (uint64_t row = 0; row < 6; ++row) {
    for (uint64_t position = 0; position < kPositions; ++position) {
      double sum = 0;
      for (uint64_t i = 0; i < kWidth; ++i) sum -= q_data.values[row * kWidth + i] * k_data.values[position * kWidth + i];
      expected.values.push_back(sum);
    }
  }
  const std::vector<Tensor> inputs = {tensor_of("q", q_data), tensor_of("k", k_data)};
  const Tensor plain = s.run(inputs)[0];
  expect_near(data_of(plain), expected, 1e-6);
  EXPECT_EQ(s.interpreter->peak_value_bytes(), 4 * (kPositions * kWidth + 6 * kPositions));

  std::vector<float> seen;
  const Tensor observed = s.run(inputs, [&](const Value& value, std::span<const float> values) {
    if (value.name == "turned") seen.assign(values.begin(), values.end());
  })[0];
  EXPECT_EQ(observed.bytes, plain.bytes);
  ASSERT_EQ(seen.size(), kPositions * kWidth);
  for (uint64_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i], static_cast<float>(-k_data.values[i % kPositions * kWidth + i / kPositions])) << i;
  }
}

TEST(Interpreter, ATransposeThatIsSeenElsewhereIsCarriedOut) {
  Session s;
  const ValueId x = s.graph.add_input("x", DType::f32, {2, 2});
  const ValueId turned = s.graph.add_node(Op::transpose, "turned", {x}, {{"perm", Ints{1, 0}}});
  s.graph.add_output(s.graph.add_node(Op::matmul, "square", {turned, turned}));
  s.graph.add_output(s.graph.add_node(Op::matmul, "product", {x, turned}));
  const ValueId other = s.graph.add_node(Op::transpose, "other", {x}, {{"perm", Ints{1, 0}}});
  s.graph.add_output(other);
  s.graph.add_output(s.graph.add_node(Op::matmul, "again", {x, other}));
  const std::vector<Tensor> outputs = s.run({tensor_of("x", f32({2, 2}, {1, 2, 3, 4}))});
  EXPECT_EQ(data_of(outputs[0]).values, (std::vector<double>{7, 15, 10, 22}));
  EXPECT_EQ(data_of(outputs[1]).values, (std::vector<double>{5, 11, 11, 25}));
  EXPECT_EQ(data_of(outputs[2]).values, (std::vector<double>{1, 3, 2, 4}));
  EXPECT_EQ(data_of(outputs[3]).values, (std::vector<double>{5, 11, 11, 25}));
}

TEST(Interpreter, LargeMemoryIsReusedWithinTheWidestPoint) {
  // Values of different sizes one after the other, each larger than what is worth keeping.
  Session s;
  ValueId value = s.graph.add_input("x", DType::f32, {60000});
  for (const int64_t size : {50000, 30000, 29000, 20000}) {
    value = s.graph.add_node(Op::slice, fmt::format("s{}", size), {value}, bounds(0, 1, size + 1));
  }
  value = s.graph.add_node(Op::concat, "wide", {value, value, value, value, value}, {axis(0)});
  s.graph.add_output(s.graph.add_node(Op::slice, "y", {value}, bounds(0, 1, 99000)));
  Data x = f32({60000}, {});
  for (int i = 0; i < 60000; ++i) x.values.push_back(i);
  for (int round = 0; round < 3; ++round) {
    const Data y = data_of(s.run({tensor_of("x", x)})[0]);
    EXPECT_EQ(y.values[0], 5);
    EXPECT_EQ(y.values[20000 - 1], 4);
    EXPECT_EQ(y.values[98998], 19003);
    EXPECT_EQ(s.interpreter->peak_value_bytes(), 4U * (100000 + 98999));
  }
}

struct BadInput {
  const char* name;
  std::vector<Tensor> inputs;
  ErrorCode code;
  const char* text;
};

class InterpreterInputs : public testing::TestWithParam<BadInput> {};

TEST_P(InterpreterInputs, AreRefused) {
  Session s;
  const ValueId x = s.graph.add_input("x", DType::f32, {2});
  const ValueId ids = s.graph.add_input("ids", DType::i64, {2});
  const ValueId rows = s.graph.add_node(Op::gather, "rows", {x, ids});
  const ValueId quotient = s.graph.add_node(Op::div, "quotient", {ids, ids});
  s.graph.add_output(rows);
  s.graph.add_output(quotient);
  EXPECT_THAT([&] { s.run(GetParam().inputs); }, Fails(GetParam().code, HasSubstr(GetParam().text)));
  // A refused call leaves nothing behind.
  const std::vector<Tensor> outputs = s.run({tensor_of("ids", i64({2}, {1, 1})), tensor_of("x", f32({2}, {5, 6}))});
  EXPECT_EQ(data_of(outputs[0]).values, (std::vector<double>{6, 6}));
}

Tensor good_x() { return tensor_of("x", f32({2}, {5, 6})); }
Tensor good_ids() { return tensor_of("ids", i64({2}, {1, 1})); }
Tensor cut(Tensor tensor) {
  tensor.bytes.pop_back();
  return tensor;
}

INSTANTIATE_TEST_SUITE_P(
    Table, InterpreterInputs,
    testing::Values(
        BadInput{"missing", {good_x()}, ErrorCode::usage, "input 'ids': got none, expected one"},
        BadInput{"unknown",
                 {good_x(), good_ids(), tensor_of("z", f32({1}, {0}))},
                 ErrorCode::usage,
                 "input 'z': got it, expected only inputs of graph 'session'"},
        BadInput{"twice", {good_x(), good_ids(), good_x()}, ErrorCode::usage, "input 'x': got it twice, expected it once"},
        BadInput{"dtype",
                 {tensor_of("x", f16({2}, {5, 6})), good_ids()},
                 ErrorCode::dtype_mismatch,
                 "type of input 'x': got f16, expected f32"},
        BadInput{"shape",
                 {tensor_of("x", f32({1, 2}, {5, 6})), good_ids()},
                 ErrorCode::shape_mismatch,
                 "shape of input 'x': got [1,2], expected [2]"},
        BadInput{"bytes", {good_x(), cut(good_ids())}, ErrorCode::shape_mismatch, "bytes of input 'ids': got 15, expected 16"},
        BadInput{"index_too_large",
                 {good_x(), tensor_of("ids", i64({2}, {1, 2}))},
                 ErrorCode::bad_offset,
                 "gather 'rows': got index 2 at place 1 of 'ids', expected 0 <= index < 2"},
        BadInput{
            "index_negative", {good_x(), tensor_of("ids", i64({2}, {-1, 0}))}, ErrorCode::bad_offset, "got index -1 at place 0"},
        BadInput{"zero_divisor", {good_x(), tensor_of("ids", i64({2}, {0, 1}))}, ErrorCode::numeric_fault, "'quotient'"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(Interpreter, RefusesAValueLargerThanTheMachine) {
  constexpr uint64_t kSide = uint64_t{1} << 22;
  Session s;
  const ValueId x = s.graph.add_input("x", DType::f32, {kSide, 1});
  const ValueId turned = s.graph.add_node(Op::reshape, "turned", {x}, {{"shape", Ints{1, kSide}}});
  s.graph.add_output(s.graph.add_node(Op::mul, "square", {x, turned}));
  const Tensor input{"x", DType::f32, {kSide, 1}, std::vector<std::byte>(4 * kSide)};
  EXPECT_THAT([&] { s.run({input}); }, Fails(ErrorCode::io_failure, HasSubstr("expected room for 70368744177664 more")));
}

TEST(Interpreter, RefusesSizesBeyond64Bits) {
  Session s;
  const ValueId x = s.graph.add_input("x", DType::f32, {uint64_t{1} << 40, uint64_t{1} << 40});
  s.graph.add_output(s.graph.add_node(Op::neg, "y", {x}));
  EXPECT_THAT([&] { Interpreter(s.graph, s.store, s.pool); }, Fails(ErrorCode::size_overflow, HasSubstr("")));
}

TEST(Interpreter, RefusesAGraphThatBreaksItsRules) {
  Session s;
  s.graph.add_input("x", DType::f32, {2});
  EXPECT_THAT([&] { Interpreter(s.graph, s.store, s.pool); }, Fails(ErrorCode::graph_invalid, HasSubstr("graph outputs")));
}

}  // namespace
}  // namespace transload
