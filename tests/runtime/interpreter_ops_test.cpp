// The interpreter op by op: expected values written by hand, and loops over indices as a second implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "runtime/op_evaluation.h"

namespace transload {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
      {"max", Op::max, {f32({2, 2}, {1, -2, 3, nan}), f32({2}, {2, -3})}, {}, f32({2, 2}, {2, -2, 3, nan})},
      {"max_nan_on_the_right", Op::max, {f32({2}, {1, 2}), f32({2}, {nan, 3})}, {}, f32({2}, {nan, 3})},
      {"min", Op::min, {f32({1}, {1}), f32({4}, {2, -3, nan, 1})}, {}, f32({4}, {1, -3, nan, 1})},
      {"min_f16", Op::min, {f16({2}, {0.1, 4}), f16({1}, {2})}, {}, f16({2}, {0.0999755859375, 2})},
      {"equal", Op::equal, {f32({4}, {1, -0.0, nan, 2}), f32({4}, {1, 0, nan, 3})}, {}, f32({4}, {1, 1, 0, 0})},
      {"equal_indices", Op::equal, {i64({1, 3}, {0, 1, 2}), i64({2, 1}, {2, 0})}, {}, f32({2, 3}, {0, 0, 1, 1, 0, 0})},
      {"equal_f16", Op::equal, {f16({2}, {2049, 3}), f16({1}, {2048})}, {}, f32({2}, {1, 0})},
      {"greater", Op::greater, {f32({4}, {1, 2, 3, nan}), f32({1}, {2})}, {}, f32({4}, {0, 0, 1, 0})},
      {"greater_i32", Op::greater, {i32({2}, {-1, 5}), i32({2}, {-2, 5})}, {}, f32({2}, {1, 0})},
      {"where", Op::where, {f32({2, 2}, {1, 0, 0, 1}), f32({2}, {10, 20}), f32({1}, {-1})}, {}, f32({2, 2}, {10, -1, -1, 20})},
      {"where_condition_stretches",
       Op::where,
       {f32({2, 1}, {0, 1}), f32({1, 3}, {1, 2, 3}), f32({2, 3}, {4, 5, 6, 7, 8, 9})},
       {},
       f32({2, 3}, {4, 5, 6, 1, 2, 3})},
      {"where_i64", Op::where, {f32({3}, {1, 0, 1}), i64({3}, {1, 2, 3}), i64({1}, {9})}, {}, i64({3}, {1, 9, 3})},
      {"where_leaves_out_what_is_not_finite",
       Op::where,
       {f32({2}, {1, 0}), f32({1}, {1}), f32({2}, {nan, 2})},
       {},
       f32({2}, {1, 2})},
      {"abs", Op::abs, {f32({3}, {-1.5, 2, -0.0})}, {}, f32({3}, {1.5, 2, 0})},
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
      {"reduce_max_last", Op::reduce_max, {f32({2, 2}, {-1, -2, 3, 5})}, {{"axes", Ints{1}}}, f32({2, 1}, {-1, 5})},
      {"reduce_max_outer_two",
       Op::reduce_max,
       {f32({2, 2, 2}, {1, 9, 3, 4, 5, 6, 7, nan})},
       {{"axes", Ints{0, 2}}},
       f32({1, 2, 1}, {9, nan})},
      {"argmax_takes_the_first", Op::argmax, {f32({2, 3}, {1, 3, 3, -2, -2, -5})}, {axis(1)}, i64({2, 1}, {1, 0})},
      {"argmax_middle", Op::argmax, {f32({1, 2, 2}, {1, 9, 2, 3})}, {axis(1)}, i64({1, 1, 2}, {1, 0})},
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
  static_assert(kOpCount == 29, "a new op needs a case");
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

}  // namespace
}  // namespace transload
