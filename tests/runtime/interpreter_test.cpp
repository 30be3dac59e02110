// The interpreter, op by op: expected values written by hand, loops over indices as a second implementation, refusals, memory.
#include "runtime/interpreter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "base/half.h"
#include "error_matchers.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

using testing::HasSubstr;
using Ints = std::vector<int64_t>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Data {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<double> values;
};
Data f32(Shape shape, std::vector<double> values) { return {DType::f32, std::move(shape), std::move(values)}; }
Data f16(Shape shape, std::vector<double> values) { return {DType::f16, std::move(shape), std::move(values)}; }
Data bf16(Shape shape, std::vector<double> values) { return {DType::bf16, std::move(shape), std::move(values)}; }
Data i32(Shape shape, std::vector<double> values) { return {DType::i32, std::move(shape), std::move(values)}; }
Data i64(Shape shape, std::vector<double> values) { return {DType::i64, std::move(shape), std::move(values)}; }

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* const first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

Tensor tensor_of(const std::string& name, const Data& data) {
  Tensor tensor{name, data.dtype, data.shape, {}};
  for (const double value : data.values) {
    if (data.dtype == DType::f32) append(tensor.bytes, static_cast<float>(value));
    if (data.dtype == DType::f16) append(tensor.bytes, f32_to_f16(static_cast<float>(value)));
    if (data.dtype == DType::bf16) append(tensor.bytes, f32_to_bf16(static_cast<float>(value)));
    if (data.dtype == DType::i32) append(tensor.bytes, static_cast<int32_t>(value));
    if (data.dtype == DType::i64) append(tensor.bytes, static_cast<int64_t>(value));
  }
  return tensor;
}

template <typename T>
T read(const Tensor& tensor, size_t index) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

Data data_of(const Tensor& tensor) {
  Data data{tensor.dtype, tensor.shape, {}};
  const size_t count = element_count(tensor.shape);
  EXPECT_EQ(tensor.bytes.size(), tensor_bytes(tensor.dtype, tensor.shape));
  for (size_t i = 0; i < count; ++i) {
    if (data.dtype == DType::f32) data.values.push_back(read<float>(tensor, i));
    if (data.dtype == DType::f16) data.values.push_back(f16_to_f32(read<uint16_t>(tensor, i)));
    if (data.dtype == DType::bf16) data.values.push_back(bf16_to_f32(read<uint16_t>(tensor, i)));
    if (data.dtype == DType::i32) data.values.push_back(read<int32_t>(tensor, i));
    if (data.dtype == DType::i64) data.values.push_back(static_cast<double>(read<int64_t>(tensor, i)));
  }
  return data;
}

Recipe recipe_of(const Data& data) {
  if (data.dtype == DType::i64) return constant_i64(data.shape, {data.values.begin(), data.values.end()});
  return cast(constant(data.shape, {data.values.begin(), data.values.end()}), data.dtype);
}

// Runs a graph of one node; operands from `first_constant` on are constants (there is no constant of type i32).
Data evaluate(Op op, const std::vector<Data>& operands, std::vector<Attribute> attributes = {}, size_t first_constant = 99) {
  Graph graph;
  graph.name = "one_node";
  std::vector<ValueId> ids;
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    if (i >= first_constant && operands[i].dtype != DType::i32) {
      ids.push_back(graph.add_constant(name, recipe_of(operands[i])));
    } else {
      ids.push_back(graph.add_input(name, operands[i].dtype, operands[i].shape));
      inputs.push_back(tensor_of(name, operands[i]));
    }
  }
  graph.add_output(graph.add_node(op, "y", ids, std::move(attributes)));
  WeightStore store;
  WorkerPool pool(2);
  Interpreter interpreter(graph, store, pool);
  std::vector<TensorView> views;
  for (const Tensor& input : inputs) views.push_back(input.view());
  std::vector<Tensor> outputs = interpreter.run(views);
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(outputs[0].name, "y");
  return data_of(outputs[0]);
}

void expect_near(const Data& got, const Data& expected, double tolerance) {
  EXPECT_EQ(got.dtype, expected.dtype);
  EXPECT_EQ(got.shape, expected.shape);
  ASSERT_EQ(got.values.size(), expected.values.size());
  for (size_t i = 0; i < got.values.size(); ++i) {
    if (std::isnan(expected.values[i])) {
      EXPECT_TRUE(std::isnan(got.values[i])) << i;
    } else if (got.values[i] != expected.values[i]) {
      EXPECT_NEAR(got.values[i], expected.values[i], tolerance) << i;
    }
  }
}

Attribute axis(int64_t value) { return {"axis", value}; }
std::vector<Attribute> bounds(int64_t along, int64_t begin, int64_t end) { return {axis(along), {"begin", begin}, {"end", end}}; }
std::vector<Attribute> to(DType dtype) { return {{"to", static_cast<int64_t>(dtype)}}; }

struct OpCase {
  const char* name;
  Op op;
  std::vector<Data> operands;
  std::vector<Attribute> attributes;
  Data expected;
  double tolerance = 0;
};

std::vector<OpCase> op_cases() {
  const double nan = std::nan("");
  return {
      {"add_vector",
       Op::add,
       {f32({2, 3}, {1, 2, 3, 4, 5, 6}), f32({3}, {10, 20, 30})},
       {},
       f32({2, 3}, {11, 22, 33, 14, 25, 36})},
      {"add_both_stretch", Op::add, {f32({2, 1}, {1, 2}), f32({1, 3}, {10, 20, 30})}, {}, f32({2, 3}, {11, 21, 31, 12, 22, 32})},
      {"add_higher_rank_on_the_right",
       Op::add,
       {f32({2}, {1, 2}), f32({2, 1, 2}, {10, 20, 30, 40})},
       {},
       f32({2, 1, 2}, {11, 22, 31, 42})},
      {"add_mask",
       Op::add,
       {f32({2, 1, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), f32({1, 1, 2, 2}, {0, -100, 0, 0})},
       {},
       f32({2, 1, 2, 2}, {1, -98, 3, 4, 5, -94, 7, 8})},
      {"add_middle_axis",
       Op::add,
       {f32({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), f32({2, 1, 2}, {10, 20, 30, 40})},
       {},
       f32({2, 2, 2}, {11, 22, 13, 24, 35, 46, 37, 48})},
      {"add_scalars", Op::add, {f32({1}, {1}), f32({1, 1, 1}, {2})}, {}, f32({1, 1, 1}, {3})},
      // 2049 and 2051 lie between two f16 numbers: ties go to the even one.
      {"add_f16_ties", Op::add, {f16({3}, {2048, 2048, 65504}), f16({3}, {1, 3, 65504})}, {}, f16({3}, {2048, 2052, kInfinity})},
      // bf16 has 8 significant bits: 257 and 259 are ties.
      {"add_bf16_ties", Op::add, {bf16({2}, {256, 256}), bf16({2}, {1, 3})}, {}, bf16({2}, {256, 260})},
      {"add_i32_wraps", Op::add, {i32({2}, {2147483647, -5}), i32({1}, {1})}, {}, i32({2}, {-2147483648.0, -4})},
      {"add_i64", Op::add, {i64({2}, {4294967296.0, -7}), i64({2}, {1, 2})}, {}, i64({2}, {4294967297.0, -5})},
      {"sub_scalar_left", Op::sub, {f32({1}, {1}), f32({3}, {1, 2, 3})}, {}, f32({3}, {0, -1, -2})},
      {"sub_i32", Op::sub, {i32({1}, {1}), i32({2}, {3, -3})}, {}, i32({2}, {-2, 4})},
      {"mul_column", Op::mul, {f32({2, 2}, {1, 2, 3, 4}), f32({2, 1}, {10, 100})}, {}, f32({2, 2}, {10, 20, 300, 400})},
      {"mul_i64", Op::mul, {i64({2}, {3, -4}), i64({2}, {5, 6})}, {}, i64({2}, {15, -24})},
      {"div", Op::div, {f32({4}, {1, -1, 0, 3}), f32({4}, {0, 0, 0, 2})}, {}, f32({4}, {kInfinity, -kInfinity, nan, 1.5})},
      {"div_integers_towards_zero",
       Op::div,
       {i32({4}, {7, -7, 7, -2147483648.0}), i32({4}, {2, 2, -2, -1})},
       {},
       i32({4}, {3, -3, -3, -2147483648.0})},
      {"neg", Op::neg, {f32({2}, {1.5, -2})}, {}, f32({2}, {-1.5, 2})},
      {"neg_i32", Op::neg, {i32({3}, {5, -6, -2147483648.0})}, {}, i32({3}, {-5, 6, -2147483648.0})},
      {"neg_i64", Op::neg, {i64({2}, {5, -6})}, {}, i64({2}, {-5, 6})},
      {"sqrt", Op::sqrt, {f32({3}, {4, 2, -1})}, {}, f32({3}, {2, 1.4142135623731, nan}), 1e-7},
      {"sqrt_f16", Op::sqrt, {f16({1}, {2})}, {}, f16({1}, {1.4140625})},
      {"sigmoid", Op::sigmoid, {f32({4}, {0, 1, -100, 100})}, {}, f32({4}, {0.5, 0.73105857863, 3.7200759760e-44, 1}), 1e-7},
      {"tanh", Op::tanh, {f32({3}, {0, 0.5, -20})}, {}, f32({3}, {0, 0.46211715726, -1}), 1e-7},
      {"erf", Op::erf, {f32({3}, {0, 0.5, -2})}, {}, f32({3}, {0, 0.52049987781, -0.99532226502}), 1e-7},
      {"gelu_none",
       Op::gelu,
       {f32({4}, {0, 1, -1, -6})},
       {{"approximate", "none"}},
       f32({4}, {0, 0.84134474607, -0.15865525393, -5.919526e-9}),
       1e-7},
      {"gelu_tanh",
       Op::gelu,
       {f32({4}, {0, 1, -1, 10})},
       {{"approximate", "tanh"}},
       f32({4}, {0, 0.84119199060, -0.15880800940, 10}),
       1e-7},
      {"softmax_last",
       Op::softmax,
       {f32({2, 2}, {0, 0.69314718056, 1000, 1000})},
       {axis(1)},
       f32({2, 2}, {1.0 / 3, 2.0 / 3, 0.5, 0.5}),
       1e-7},
      {"softmax_first",
       Op::softmax,
       {f32({2, 2}, {0, 5, 0.69314718056, 5})},
       {axis(0)},
       f32({2, 2}, {1.0 / 3, 0.5, 2.0 / 3, 0.5}),
       1e-7},
      {"softmax_middle",
       Op::softmax,
       {f32({1, 2, 2}, {0, 5, 0.69314718056, 5})},
       {axis(1)},
       f32({1, 2, 2}, {1.0 / 3, 0.5, 2.0 / 3, 0.5}),
       1e-7},
      {"softmax_closed_columns_get_nothing", Op::softmax, {f32({1, 3}, {-1e9, 3, -1e9})}, {axis(1)}, f32({1, 3}, {0, 1, 0})},
      {"softmax_f16",
       Op::softmax,
       {f16({1, 3}, {1, 1, 1})},
       {axis(1)},
       f16({1, 3}, {0.333251953125, 0.333251953125, 0.333251953125})},
      {"reduce_mean_last", Op::reduce_mean, {f32({2, 2}, {1, 2, 3, 5})}, {{"axes", Ints{1}}}, f32({2, 1}, {1.5, 4})},
      {"reduce_mean_first", Op::reduce_mean, {f32({2, 2}, {1, 2, 3, 5})}, {{"axes", Ints{0}}}, f32({1, 2}, {2, 3.5})},
      {"reduce_mean_outer_two",
       Op::reduce_mean,
       {f32({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})},
       {{"axes", Ints{0, 2}}},
       f32({1, 2, 1}, {3.5, 5.5})},
      {"reduce_mean_all", Op::reduce_mean, {f32({2, 2}, {1, 2, 3, 6})}, {{"axes", Ints{0, 1}}}, f32({1, 1}, {3})},
      {"gemm", Op::gemm, {f32({2, 2}, {1, 2, 3, 4}), f32({3, 2}, {1, 0, 0, 1, 1, 1})}, {}, f32({2, 3}, {1, 2, 3, 3, 4, 7})},
      {"gemm_bias",
       Op::gemm,
       {f32({1, 2}, {1, 2}), f32({3, 2}, {1, 0, 0, 1, 1, 1}), f32({3}, {10, 20, 30})},
       {},
       f32({1, 3}, {11, 22, 33})},
      // 2048 + 1 + 1: rounding the product before the bias would give 2048.
      {"gemm_f16_rounds_once", Op::gemm, {f16({1, 2}, {2048, 1}), f16({1, 2}, {1, 1}), f16({1}, {1})}, {}, f16({1, 1}, {2050})},
      {"matmul", Op::matmul, {f32({2, 2}, {1, 2, 3, 4}), f32({2, 3}, {1, 0, 1, 0, 1, 1})}, {}, f32({2, 3}, {1, 2, 3, 3, 4, 7})},
      {"matmul_batched",
       Op::matmul,
       {f32({2, 1, 2}, {1, 2, 3, 4}), f32({2, 2, 1}, {1, 10, 100, 1000})},
       {},
       f32({2, 1, 1}, {21, 4300})},
      {"matmul_by_one_matrix",
       Op::matmul,
       {f32({2, 1, 2}, {1, 2, 3, 4}), f32({2, 2}, {1, 10, 100, 1000})},
       {},
       f32({2, 1, 2}, {201, 2010, 403, 4030})},
      {"matmul_left_stretches",
       Op::matmul,
       {f32({1, 1, 1, 2}, {1, 2}), f32({1, 2, 2, 1}, {1, 10, 100, 1000})},
       {},
       f32({1, 2, 1, 1}, {21, 2100})},
      {"conv1x1",
       Op::conv1x1,
       {f32({1, 2, 1, 3}, {1, 2, 3, 10, 20, 30}), f32({2, 2, 1, 1}, {1, 1, 2, -1})},
       {},
       f32({1, 2, 1, 3}, {11, 22, 33, -8, -16, -24})},
      {"conv1x1_one_column_and_bias",
       Op::conv1x1,
       {f32({1, 2, 1, 1}, {1, 10}), f32({2, 2, 1, 1}, {1, 1, 2, -1}), f32({2}, {100, 200})},
       {},
       f32({1, 2, 1, 1}, {111, 192})},
      {"reshape", Op::reshape, {f32({2, 3}, {1, 2, 3, 4, 5, 6})}, {{"shape", Ints{3, 2}}}, f32({3, 2}, {1, 2, 3, 4, 5, 6})},
      {"reshape_i64", Op::reshape, {i64({2}, {1, 2})}, {{"shape", Ints{1, 2}}}, i64({1, 2}, {1, 2})},
      {"transpose", Op::transpose, {f32({2, 3}, {1, 2, 3, 4, 5, 6})}, {{"perm", Ints{1, 0}}}, f32({3, 2}, {1, 4, 2, 5, 3, 6})},
      {"transpose_keeps_last",
       Op::transpose,
       {f32({1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})},
       {{"perm", Ints{0, 2, 1, 3}}},
       f32({1, 2, 2, 2}, {1, 2, 5, 6, 3, 4, 7, 8})},
      {"transpose_i32", Op::transpose, {i32({2, 2}, {1, 2, 3, 4})}, {{"perm", Ints{1, 0}}}, i32({2, 2}, {1, 3, 2, 4})},
      {"concat", Op::concat, {f32({2, 1}, {1, 2}), f32({2, 2}, {3, 4, 5, 6})}, {axis(1)}, f32({2, 3}, {1, 3, 4, 2, 5, 6})},
      {"concat_first_axis", Op::concat, {i32({1, 2}, {1, 2}), i32({1, 2}, {3, 4})}, {axis(0)}, i32({2, 2}, {1, 2, 3, 4})},
      {"concat_of_one", Op::concat, {f32({2}, {1, 2})}, {axis(0)}, f32({2}, {1, 2})},
      {"slice", Op::slice, {f32({2, 3}, {1, 2, 3, 4, 5, 6})}, bounds(1, 1, 3), f32({2, 2}, {2, 3, 5, 6})},
      {"slice_first_axis", Op::slice, {i64({3, 2}, {1, 2, 3, 4, 5, 6})}, bounds(0, 1, 2), i64({1, 2}, {3, 4})},
      {"gather", Op::gather, {f32({3, 2}, {1, 2, 3, 4, 5, 6}), i32({1, 2}, {2, 0})}, {}, f32({1, 2, 2}, {5, 6, 1, 2})},
      {"gather_i64", Op::gather, {i64({3}, {7, 8, 9}), i64({2}, {1, 1})}, {}, i64({2}, {8, 8})},
      {"cast_rounds", Op::cast, {f32({3}, {2049, 1e6, 1e-9})}, to(DType::f16), f16({3}, {2048, kInfinity, 0})},
      {"cast_f16_to_bf16", Op::cast, {f16({2}, {257, 1.5})}, to(DType::bf16), bf16({2}, {256, 1.5})},
      {"cast_widens", Op::cast, {f16({2}, {0.1, -2})}, to(DType::f32), f32({2}, {0.0999755859375, -2})},
      {"cast_to_i32_towards_zero",
       Op::cast,
       {f32({5}, {1.9, -1.9, 1e20, -1e20, nan})},
       to(DType::i32),
       i32({5}, {1, -1, 2147483647, -2147483648.0, 0})},
      {"cast_to_i64_saturates",
       Op::cast,
       {f32({2}, {1e20, -1e20})},
       to(DType::i64),
       i64({2}, {9223372036854775807.0, -9223372036854775808.0})},
      {"cast_i64_to_i32_wraps", Op::cast, {i64({2}, {4294967297.0, -1})}, to(DType::i32), i32({2}, {1, -1})},
      {"cast_i32_to_f16", Op::cast, {i32({2}, {2049, -3})}, to(DType::f16), f16({2}, {2048, -3})},
      {"cast_i32_to_i64", Op::cast, {i32({1}, {-3})}, to(DType::i64), i64({1}, {-3})},
  };
}

class InterpreterOp : public testing::TestWithParam<OpCase> {};

TEST_P(InterpreterOp, GivesTheseValues) {
  const OpCase& c = GetParam();
  expect_near(evaluate(c.op, c.operands, c.attributes), c.expected, c.tolerance);
}

// Constants come from the weight store, and those of products and tables as matrices.
TEST_P(InterpreterOp, GivesTheSameValuesFromConstants) {
  const OpCase& c = GetParam();
  for (size_t first = 0; first < c.operands.size(); ++first) {
    SCOPED_TRACE(first);
    expect_near(evaluate(c.op, c.operands, c.attributes, first), c.expected, c.tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, InterpreterOp, testing::ValuesIn(op_cases()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Interpreter, EveryOpHasACaseHere) {
  std::set<Op> covered;
  for (const OpCase& c : op_cases()) covered.insert(c.op);
  static_assert(kOpCount == 21, "a new op needs a case");
  for (int op = 0; op < kOpCount; ++op) EXPECT_TRUE(covered.contains(static_cast<Op>(op))) << op_name(static_cast<Op>(op));
}

// A second implementation over indices, one element at a time.
using Index = std::vector<uint64_t>;

Index index_of(const Shape& shape, uint64_t flat) {
  Index index(shape.size());
  for (size_t i = shape.size(); i-- > 0; flat /= shape[i]) index[i] = flat % shape[i];
  return index;
}

double at(const Data& data, const Index& index) {
  uint64_t flat = 0;
  const size_t skipped = index.size() - data.shape.size();
  for (size_t i = 0; i < data.shape.size(); ++i) {
    flat = flat * data.shape[i] + (data.shape[i] == 1 ? 0 : index[skipped + i]);
  }
  return data.values[flat];
}

class RandomShapes : public testing::TestWithParam<uint32_t> {
 protected:
  RandomShapes() : random_(GetParam()) {}

  uint64_t below(uint64_t end) { return std::uniform_int_distribution<uint64_t>(0, end - 1)(random_); }
  Shape shape(size_t rank, uint64_t largest = 9) {
    Shape sizes(rank);
    for (uint64_t& size : sizes) size = below(4) == 0 ? 1 : 1 + below(largest);
    return sizes;
  }
  Data data(const Shape& sizes) {
    Data made{DType::f32, sizes, {}};
    std::normal_distribution<float> normal;
    for (uint64_t i = 0; i < element_count(sizes); ++i) made.values.push_back(normal(random_));
    return made;
  }
  // A shape that broadcasts to `sizes`.
  Shape narrowed(const Shape& sizes) {
    Shape part(sizes.begin() + static_cast<std::ptrdiff_t>(below(sizes.size())), sizes.end());
    for (uint64_t& size : part) size = below(2) == 0 ? 1 : size;
    return part;
  }
  template <typename Function>
  Data make(const Shape& sizes, Function f) {
    Data made{DType::f32, sizes, {}};
    for (uint64_t i = 0; i < element_count(sizes); ++i) made.values.push_back(f(index_of(sizes, i)));
    return made;
  }

  std::mt19937 random_;
};

TEST_P(RandomShapes, BroadcastingFollowsTheIndices) {
  const Shape sizes = shape(1 + below(4));
  const Data whole = data(sizes);
  const Data part = data(narrowed(sizes));
  const Data expected =
      make(sizes, [&](const Index& i) { return static_cast<float>(at(whole, i)) - static_cast<float>(at(part, i)); });
  expect_near(evaluate(Op::sub, {whole, part}), expected, 0);
  Data negated = expected;
  for (double& value : negated.values) value = -value;
  expect_near(evaluate(Op::sub, {part, whole}), negated, 0);
}

TEST_P(RandomShapes, TransposeFollowsTheIndices) {
  const Data in = data(shape(1 + below(4), 40));
  Ints perm(in.shape.size());
  for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(i);
  std::shuffle(perm.begin(), perm.end(), random_);
  Shape sizes;
  for (const int64_t from : perm) sizes.push_back(in.shape[static_cast<size_t>(from)]);
  const Data expected = make(sizes, [&](const Index& index) {
    Index from(index.size());
    for (size_t i = 0; i < index.size(); ++i) from[static_cast<size_t>(perm[i])] = index[i];
    return at(in, from);
  });
  expect_near(evaluate(Op::transpose, {in}, {{"perm", perm}}), expected, 0);
}

TEST_P(RandomShapes, SliceAndConcatFollowTheIndices) {
  const Data in = data(shape(1 + below(4), 30));
  const size_t along = below(in.shape.size());
  const uint64_t cut = below(in.shape[along]);
  std::vector<Data> parts;
  for (const auto& [begin, end] : {std::pair<uint64_t, uint64_t>{0, cut}, {cut, in.shape[along]}}) {
    if (begin == end) continue;
    Shape sizes = in.shape;
    sizes[along] = end - begin;
    const uint64_t first = begin;
    parts.push_back(make(sizes, [&](Index index) {
      index[along] += first;
      return at(in, index);
    }));
    expect_near(
        evaluate(Op::slice, {in}, bounds(static_cast<int64_t>(along), static_cast<int64_t>(begin), static_cast<int64_t>(end))),
        parts.back(), 0);
  }
  expect_near(evaluate(Op::concat, parts, {axis(static_cast<int64_t>(along))}), in, 0);
}

TEST_P(RandomShapes, SoftmaxAndMeanFollowTheIndices) {
  const Data in = data(shape(1 + below(4)));
  const size_t along = below(in.shape.size());
  const auto line = [&](Index index, auto f) {
    for (index[along] = 0; index[along] < in.shape[along]; ++index[along]) f(at(in, index));
  };
  const Data probabilities = make(in.shape, [&](const Index& index) {
    double sum = 0;
    line(index, [&](double value) { sum += std::exp(value); });
    return std::exp(at(in, index)) / sum;
  });
  expect_near(evaluate(Op::softmax, {in}, {axis(static_cast<int64_t>(along))}), probabilities, 1e-6);

  Ints axes;
  Shape sizes = in.shape;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i != along && below(2) == 0) continue;
    axes.push_back(static_cast<int64_t>(i));
    sizes[i] = 1;
  }
  Data means = make(sizes, [](const Index&) { return 0.0; });
  for (uint64_t i = 0; i < in.values.size(); ++i) {
    const Index index = index_of(in.shape, i);
    uint64_t flat = 0;
    for (size_t a = 0; a < sizes.size(); ++a) flat = flat * sizes[a] + (sizes[a] == 1 ? 0 : index[a]);
    means.values[flat] += in.values[i] * static_cast<double>(means.values.size()) / static_cast<double>(in.values.size());
  }
  expect_near(evaluate(Op::reduce_mean, {in}, {{"axes", axes}}), means, 1e-6);
}

TEST_P(RandomShapes, ProductsFollowTheIndices) {
  const Shape leading = shape(below(3), 4);
  const uint64_t m = 1 + below(40);
  const uint64_t k = 1 + below(50);
  const uint64_t n = 1 + below(600);
  const auto matrix = [](Shape sizes, uint64_t rows, uint64_t columns) {
    sizes.push_back(rows);
    sizes.push_back(columns);
    return sizes;
  };
  const Data a = data(matrix(leading, m, k));
  const Data b = data(matrix(leading.empty() || below(3) == 0 ? Shape{} : narrowed(leading), k, n));
  const size_t row_axis = leading.size();
  const Data expected = make(matrix(leading, m, n), [&](const Index& index) {
    Index left = index;
    Index right = index;
    double sum = 0;
    for (uint64_t i = 0; i < k; ++i) {
      left[row_axis + 1] = i;
      right[row_axis] = i;
      sum += at(a, left) * at(b, right);
    }
    return sum;
  });
  expect_near(evaluate(Op::matmul, {a, b}), expected, 2e-5);
  expect_near(evaluate(Op::matmul, {a, b}, {}, 1), expected, 2e-5);

  // The same product as a gemm and as a convolution, for one batch.
  const Data x = data({m, k});
  const Data w = data({n, k});
  const Data bias = data({n});
  Data product = make({m, n}, [&](const Index& index) {
    double sum = bias.values[index[1]];
    for (uint64_t i = 0; i < k; ++i) sum += at(x, {index[0], i}) * at(w, {index[1], i});
    return sum;
  });
  for (const size_t first_constant : {1U, 3U}) {
    expect_near(evaluate(Op::gemm, {x, w, bias}, {}, first_constant), product, 2e-5);
    const Data image = make({1, k, 1, m}, [&](const Index& i) { return at(x, {i[3], i[1]}); });
    Data weight = w;
    weight.shape = {n, k, 1, 1};
    const Data turned = make({1, n, 1, m}, [&](const Index& i) { return at(product, {i[3], i[1]}); });
    expect_near(evaluate(Op::conv1x1, {image, weight, bias}, {}, first_constant), turned, 2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomShapes, testing::Range(0U, 40U));

TEST(Interpreter, LargeValuesAreSplitOverTheWorkersWithoutSeams) {
  const uint64_t rows = 700;
  const uint64_t columns = 301;
  Data in = f32({rows, columns}, {});
  for (uint64_t i = 0; i < rows * columns; ++i) in.values.push_back(static_cast<double>(i % 1009));
  Data row = f32({columns}, {});
  for (uint64_t i = 0; i < columns; ++i) row.values.push_back(static_cast<double>(i));
  Data sum = in;
  Data turned = f32({columns, rows}, std::vector<double>(rows * columns));
  Data function = in;
  for (uint64_t i = 0; i < rows * columns; ++i) {
    sum.values[i] += static_cast<double>(i % columns);
    turned.values[i % columns * rows + i / columns] = in.values[i];
    function.values[i] = std::sqrt(static_cast<float>(in.values[i]));
  }
  expect_near(evaluate(Op::add, {in, row}), sum, 0);
  expect_near(evaluate(Op::transpose, {in}, {{"perm", Ints{1, 0}}}), turned, 0);
  expect_near(evaluate(Op::sqrt, {in}), function, 0);
  Data twice = f32({rows, 2 * columns}, {});
  for (uint64_t i = 0; i < rows * 2 * columns; ++i) {
    twice.values.push_back(in.values[i / (2 * columns) * columns + i % columns]);
  }
  expect_near(evaluate(Op::concat, {in, in}, {axis(1)}), twice, 0);
  expect_near(evaluate(Op::slice, {twice}, bounds(1, static_cast<int64_t>(columns), 2 * static_cast<int64_t>(columns))), in, 0);
}

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
