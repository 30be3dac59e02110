// The router of a mixture as a graph: the choices and weights of its rule, computed here for one row at a time in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "decode/step_builder.h"
#include "runtime/op_evaluation.h"

namespace transload {
namespace {

constexpr double kJitter = 0.05;

// Weight of each expert for one row of logits, by the text at ExpertRouting.
std::vector<double> routing_of(const std::vector<double>& logits) {
  std::vector<double> weights(logits.size());
  std::vector<bool> left_out(logits.size());
  for (int choice = 0; choice < 2; ++choice) {
    size_t best = logits.size();
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!left_out[i] && (best == logits.size() || logits[i] > logits[best])) best = i;
    }
    double sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double scale = std::max(std::abs(logits[i]), logits[best]);
      if (!left_out[i] && logits[best] - logits[i] <= 2 * kJitter * scale) sum += std::exp(logits[i] - logits[best]);
    }
    weights[best] = 1 / sum;
    left_out[best] = true;
  }
  return weights;
}

// A router that passes its input on as logits, before experts of zeros.
Experts passing_experts(uint64_t count) {
  std::vector<float> identity(count * count);
  for (uint64_t i = 0; i < count; ++i) identity[i * count + i] = 1;
  const auto zeros = [&](uint64_t out, uint64_t in) { return Linear{constant({out, in}, std::vector<float>(out * in)), {}}; };
  Experts experts{ExpertRouting::sparse_mixer, 2, kJitter, {constant({count, count}, identity), {}}, {}};
  const Mlp mlp{Activation::silu, {}, 0, zeros(2, count), zeros(2, count), zeros(count, 2)};
  experts.experts.assign(count, mlp);
  return experts;
}

std::vector<float> graph_routing(const std::vector<std::vector<double>>& rows, DType compute) {
  const uint64_t count = rows.front().size();
  StepOptions options;
  options.query = static_cast<uint32_t>(rows.size());
  options.compute = options.weights = compute;
  Graph graph;
  graph.name = "experts";
  StepBuilder builder(graph, options);
  const ValueId x = graph.add_input("x", compute, {rows.size(), count});
  graph.add_output(build_experts(builder, "mlp", x, passing_experts(count)));
  check_graph(graph);

  Data input{compute, {rows.size(), count}, {}};
  for (const std::vector<double>& row : rows) input.values.insert(input.values.end(), row.begin(), row.end());
  const Tensor tensor = tensor_of("x", input);
  WeightStore store;
  WorkerPool pool(1);
  Interpreter interpreter(graph, store, pool);
  std::vector<float> routing;
  const std::vector<TensorView> views{tensor.view()};
  interpreter.run(views, [&](const Value& value, std::span<const float> values) {
    for (const float v : values) EXPECT_TRUE(std::isfinite(v)) << value.name;
    if (value.name == "mlp_routing") routing.assign(values.begin(), values.end());
  });
  return routing;
}

void expect_routing(const std::vector<std::vector<double>>& rows, DType compute) {
  const std::vector<float> got = graph_routing(rows, compute);
  ASSERT_EQ(got.size(), rows.size() * rows.front().size());
  for (size_t row = 0; row < rows.size(); ++row) {
    const std::vector<double> expected = routing_of(rows[row]);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(got[row * expected.size() + i], expected[i], 1e-6) << "row " << row << " expert " << i;
    }
  }
}

TEST(ExpertsGraph, RoutesTiesZerosAndNegativeRowsByTheRule) {
  // Values of few bits, the same in f16: rows of zeros are what padding gives.
  const std::vector<std::vector<double>> rows{{0, 0, 0, 0},         {1, 1, 1, 1},       {3, 3, 1, 2},        {-1, -2, -1, -4},
                                              {2, 1.875, 1.75, -8}, {-8, -8.5, -7, -9}, {0, -0.25, 0, 0.25}, {100, -100, 95, 91}};
  expect_routing(rows, DType::f32);
  expect_routing(rows, DType::f16);
}

TEST(ExpertsGraph, RoutesRandomRowsByTheRule) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  for (const size_t count : {2U, 3U, 16U}) {
    std::vector<std::vector<double>> rows(64, std::vector<double>(count));
    for (std::vector<double>& row : rows) {
      for (double& value : row) value = normal(random);
    }
    expect_routing(rows, DType::f32);
  }
}

}  // namespace
}  // namespace transload
