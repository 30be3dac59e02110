// The op table: every op has a row, and inference takes what fits and refuses what does not.
#include "graph/op_table.h"

#include <gtest/gtest.h>

#include <ostream>
#include <set>

#include "error_matchers.h"
#include "graph/graph.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Type {
  DType dtype;
  Shape shape;
  bool operator==(const Type&) const = default;
};
Type f32(Shape shape) { return {DType::f32, std::move(shape)}; }
Type f16(Shape shape) { return {DType::f16, std::move(shape)}; }
Type i32(Shape shape) { return {DType::i32, std::move(shape)}; }
Type boolean(Shape shape) { return {DType::boolean, std::move(shape)}; }

using Ints = std::vector<int64_t>;
Attribute axis(int64_t value) { return {"axis", value}; }
std::vector<Attribute> slice_of(int64_t a, int64_t begin, int64_t end) { return {axis(a), {"begin", begin}, {"end", end}}; }
std::vector<Attribute> to(DType dtype) { return {{"to", static_cast<int64_t>(dtype)}}; }

ValueId add_op(Graph& graph, Op op, const std::vector<Type>& inputs, std::vector<Attribute> attributes) {
  static const char* const kNames[] = {"a", "b", "c", "d"};
  std::vector<ValueId> ids;
  for (const Type& input : inputs) ids.push_back(graph.add_input(kNames[ids.size()], input.dtype, input.shape));
  return graph.add_node(op, "y", ids, std::move(attributes));
}

TEST(OpTable, HasOneRowForEachOpInEnumeratorOrder) {
  std::set<std::string_view> names;
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    const OpInfo& info = op_info(op);
    EXPECT_EQ(info.op, op) << i;
    EXPECT_EQ(info.name, op_name(op));
    EXPECT_NE(info.infer, nullptr) << info.name;
    EXPECT_LE(info.min_inputs, info.max_inputs) << info.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " twice";
  }
}

struct GoodRow {
  Op op;
  std::vector<Type> inputs;
  std::vector<Attribute> attributes;
  Type expected;
};
void PrintTo(const GoodRow& row, std::ostream* out) { *out << op_name(row.op); }

class Inference : public testing::TestWithParam<GoodRow> {};

TEST_P(Inference, GivesTheTypeOfTheOutput) {
  const GoodRow& row = GetParam();
  Graph graph;
  const Value& value = graph.value(add_op(graph, row.op, row.inputs, row.attributes));
  EXPECT_EQ(dtype_name(value.dtype), dtype_name(row.expected.dtype));
  EXPECT_EQ(shape_text(value.shape), shape_text(row.expected.shape));
}

const GoodRow kGood[] = {
    {Op::add, {f32({2, 3}), f32({2, 3})}, {}, f32({2, 3})},
    {Op::add, {f32({2, 3}), f32({3})}, {}, f32({2, 3})},
    {Op::sub, {f32({1}), f32({4, 1, 3})}, {}, f32({4, 1, 3})},
    {Op::mul, {f16({2, 1, 3}), f16({5, 1})}, {}, f16({2, 5, 3})},
    {Op::div, {i32({4}), i32({1})}, {}, i32({4})},
    {Op::max, {f16({2, 1}), f16({3})}, {}, f16({2, 3})},
    {Op::min, {f32({2, 3}), f32({1})}, {}, f32({2, 3})},
    {Op::equal, {{DType::i64, {1, 4}}, {DType::i64, {2, 1}}}, {}, boolean({2, 4})},
    {Op::equal, {f16({2}), f16({2})}, {}, boolean({2})},
    {Op::greater, {f32({2, 4}), f32({1})}, {}, boolean({2, 4})},
    {Op::where, {boolean({2, 4}), f32({1}), f32({2, 1})}, {}, f32({2, 4})},
    {Op::where, {boolean({1}), i32({3, 1}), i32({5})}, {}, i32({3, 5})},
    {Op::neg, {i32({2, 2})}, {}, i32({2, 2})},
    {Op::abs, {f16({2, 2})}, {}, f16({2, 2})},
    {Op::sqrt, {f16({2})}, {}, f16({2})},
    {Op::sigmoid, {f32({1, 2})}, {}, f32({1, 2})},
    {Op::tanh, {f32({1, 2})}, {}, f32({1, 2})},
    {Op::erf, {f32({1, 2})}, {}, f32({1, 2})},
    {Op::gelu, {f32({1, 2})}, {{"approximate", "none"}}, f32({1, 2})},
    {Op::gelu, {f32({1, 2})}, {{"approximate", "tanh"}}, f32({1, 2})},
    {Op::softmax, {f32({1, 2, 3, 4})}, {axis(3)}, f32({1, 2, 3, 4})},
    {Op::reduce_mean, {f32({2, 3, 4})}, {{"axes", Ints{2}}}, f32({2, 3, 1})},
    {Op::reduce_mean, {f32({2, 3, 4})}, {{"axes", Ints{0, 2}}}, f32({1, 3, 1})},
    {Op::reduce_max, {f16({2, 3, 4})}, {{"axes", Ints{0, 2}}}, f16({1, 3, 1})},
    {Op::argmax, {f32({2, 3, 4})}, {axis(1)}, {DType::i64, {2, 1, 4}}},
    {Op::gemm, {f32({2, 3}), f32({5, 3})}, {}, f32({2, 5})},
    {Op::gemm, {f32({2, 3}), f32({5, 3}), f32({5})}, {}, f32({2, 5})},
    {Op::matmul, {f32({2, 3}), f32({3, 5})}, {}, f32({2, 5})},
    {Op::matmul, {f32({1, 4, 2, 3}), f32({1, 1, 3, 5})}, {}, f32({1, 4, 2, 5})},
    {Op::matmul, {f32({4, 2, 3}), f32({3, 5})}, {}, f32({4, 2, 5})},
    {Op::conv1x1, {f32({1, 3, 1, 7}), f32({5, 3, 1, 1})}, {}, f32({1, 5, 1, 7})},
    {Op::conv1x1, {f16({1, 3, 1, 7}), f16({5, 3, 1, 1}), f16({5})}, {}, f16({1, 5, 1, 7})},
    {Op::reshape, {f32({2, 6})}, {{"shape", Ints{3, 1, 4}}}, f32({3, 1, 4})},
    {Op::transpose, {f32({2, 3, 4})}, {{"perm", Ints{2, 0, 1}}}, f32({4, 2, 3})},
    {Op::concat, {f32({2, 3}), f32({2, 4}), f32({2, 1})}, {axis(1)}, f32({2, 8})},
    {Op::concat, {i32({3})}, {axis(0)}, i32({3})},
    {Op::slice, {f32({2, 6})}, slice_of(1, 2, 5), f32({2, 3})},
    {Op::slice, {f32({2, 6})}, slice_of(0, 0, 2), f32({2, 6})},
    {Op::gather, {f32({9, 4}), i32({1, 3})}, {}, f32({1, 3, 4})},
    {Op::gather, {f16({9}), {DType::i64, {2}}}, {}, f16({2})},
    {Op::cast, {f32({2, 6})}, to(DType::f16), f16({2, 6})},
    {Op::cast, {i32({2})}, to(DType::i64), {DType::i64, {2}}},
};
INSTANTIATE_TEST_SUITE_P(Rows, Inference, testing::ValuesIn(kGood));

TEST(OpTable, HasAGoodRowInThisTestForEachOp) {
  std::set<Op> seen;
  for (const GoodRow& row : kGood) seen.insert(row.op);
  EXPECT_EQ(seen.size(), static_cast<size_t>(kOpCount));
}

struct BadRow {
  Op op;
  std::vector<Type> inputs;
  std::vector<Attribute> attributes;
  const char* message;
};
void PrintTo(const BadRow& row, std::ostream* out) { *out << op_name(row.op) << ": " << row.message; }

class Refusal : public testing::TestWithParam<BadRow> {};

TEST_P(Refusal, NamesTheOpTheOutputAndWhatWasExpected) {
  const BadRow& row = GetParam();
  Graph graph;
  EXPECT_THAT(
      [&] { add_op(graph, row.op, row.inputs, row.attributes); },
      Fails(ErrorCode::graph_invalid, AllOf(HasSubstr(std::string(op_name(row.op)) + " 'y' of ("), HasSubstr(row.message))));
  EXPECT_TRUE(graph.nodes().empty());
  EXPECT_EQ(graph.values().size(), row.inputs.size());
}

const uint64_t kHuge = uint64_t{1} << 63;

const BadRow kBad[] = {
    {Op::add, {f32({2, 3})}, {}, "operands: got 1, expected 2"},
    {Op::add, {f32({2, 3}), f32({2, 4})}, {}, "shapes do not broadcast: got [2,3] and [2,4], expected equal dimensions or 1"},
    {Op::mul, {f32({2, 3}), f16({2, 3})}, {}, "operand types differ: got f16, expected f32"},
    {Op::sub, {{DType::u8, {2}}, {DType::u8, {2}}}, {}, "operand type: got u8, expected f32, f16, bf16, i32 or i64"},
    {Op::div, {f32({2}), f32({2})}, {axis(0)}, "attributes: got [axis], expected []"},
    {Op::neg, {{DType::q8_0, {32}}}, {}, "operand type: got q8_0, expected f32, f16, bf16, i32 or i64"},
    {Op::sqrt, {i32({2})}, {}, "operand type: got i32, expected f32, f16 or bf16"},
    {Op::abs, {i32({2})}, {}, "operand type: got i32, expected f32, f16 or bf16"},
    {Op::max, {i32({2}), i32({2})}, {}, "operand type: got i32, expected f32, f16 or bf16"},
    {Op::min, {f32({2}), f32({3})}, {}, "shapes do not broadcast: got [2] and [3]"},
    {Op::equal, {boolean({2}), boolean({2})}, {}, "operand type: got boolean, expected f32, f16, bf16, i32 or i64"},
    {Op::greater, {f32({2}), f16({2})}, {}, "operand types differ: got f16, expected f32"},
    {Op::where, {f32({2}), f32({2}), f32({2})}, {}, "type of 'a': got f32, expected boolean"},
    {Op::where, {boolean({2}), boolean({2}), boolean({2})}, {}, "operand type: got boolean"},
    {Op::where, {boolean({2}), f32({2}), f16({2})}, {}, "operand types differ: got f16, expected f32"},
    {Op::where, {boolean({2}), f32({1}), f32({3})}, {}, "shapes do not broadcast: got [2] and [3]"},
    {Op::add, {boolean({2}), boolean({2})}, {}, "operand type: got boolean, expected f32, f16, bf16, i32 or i64"},
    {Op::cast, {boolean({2})}, to(DType::f32), "operand type: got boolean, expected f32, f16, bf16, i32 or i64"},
    {Op::cast, {f32({2})}, to(DType::boolean), "attribute 'to': got boolean, expected f32, f16, bf16, i32 or i64"},
    {Op::reduce_max, {f32({2, 3})}, {{"axes", Ints{1, 0}}}, "attribute 'axes': got [1, 0], expected ascending axes"},
    {Op::argmax, {{DType::i64, {2}}}, {axis(0)}, "operand type: got i64, expected f32, f16 or bf16"},
    {Op::argmax, {f32({2, 3})}, {axis(2)}, "axis: got 2, expected 0 <= axis < 2"},
    {Op::gelu, {f32({2})}, {{"approximate", "fast"}}, "attribute 'approximate': got 'fast', expected 'none' or 'tanh'"},
    {Op::gelu, {f32({2})}, {{"approximate", int64_t{1}}}, "attribute 'approximate' of gelu: got an integer, expected a text"},
    {Op::softmax, {f32({2, 3})}, {axis(2)}, "axis: got 2, expected 0 <= axis < 2"},
    {Op::softmax, {f32({2, 3})}, {axis(-1)}, "axis: got -1, expected 0 <= axis < 2"},
    {Op::softmax, {f32({2, 3})}, {}, "attributes: got [], expected [axis]"},
    {Op::softmax, {f32({2, 3})}, {axis(1), axis(1)}, "attributes: got [axis, axis], expected [axis]"},
    {Op::reduce_mean, {f32({2, 3})}, {{"axes", Ints{}}}, "attribute 'axes': got none, expected at least one axis"},
    {Op::reduce_mean, {f32({2, 3})}, {{"axes", Ints{1, 1}}}, "attribute 'axes': got [1, 1], expected ascending axes"},
    {Op::reduce_mean, {f32({2, 3})}, {{"axes", Ints{2}}}, "axis: got 2, expected 0 <= axis < 2"},
    {Op::reduce_mean, {f32({2, 3})}, {{"axes", int64_t{1}}}, "got an integer, expected a list of integers"},
    {Op::gemm, {f32({2, 3}), f32({3, 5})}, {}, "columns of 'b': got 5, expected 3"},
    {Op::gemm, {f32({1, 2, 3}), f32({5, 3})}, {}, "rank of 'a': got 3, expected 2"},
    {Op::gemm, {f32({2, 3}), f32({5, 3, 1})}, {}, "rank of 'b': got 3, expected 2"},
    {Op::gemm, {f32({2, 3}), f16({5, 3})}, {}, "operand types differ: got f16, expected f32"},
    {Op::gemm, {f32({2, 3}), f32({5, 3}), f32({1, 5})}, {}, "shape of 'c': got [1,5], expected [5]"},
    {Op::gemm, {f32({2, 3}), f32({5, 3}), f32({5}), f32({5})}, {}, "operands: got 4, expected 2 to 3"},
    {Op::matmul, {f32({2, 3}), f32({4, 5})}, {}, "rows of 'b': got 4, expected 3"},
    {Op::matmul, {f32({3}), f32({3, 5})}, {}, "rank of 'a': got 1, expected at least 2"},
    {Op::matmul, {f32({2, 2, 3}), f32({4, 3, 5})}, {}, "shapes do not broadcast: got [2] and [4]"},
    {Op::conv1x1, {f32({1, 3, 2, 7}), f32({5, 3, 1, 1})}, {}, "shape of 'a': got [1,3,2,7], expected [1,3,1,7]"},
    {Op::conv1x1, {f32({2, 3, 1, 7}), f32({5, 3, 1, 1})}, {}, "shape of 'a': got [2,3,1,7], expected [1,3,1,7]"},
    {Op::conv1x1, {f32({1, 3, 1, 7}), f32({5, 4, 1, 1})}, {}, "shape of 'b': got [5,4,1,1], expected [5,3,1,1]"},
    {Op::conv1x1, {f32({1, 3, 1, 7}), f32({5, 3, 1, 1}), f32({3})}, {}, "shape of 'c': got [3], expected [5]"},
    {Op::reshape, {f32({2, 6})}, {{"shape", Ints{5, 2}}}, "elements in shape [5,2]: got 10, expected 12"},
    {Op::reshape, {f32({2, 6})}, {{"shape", Ints{-1, 2}}}, "dimension in attribute 'shape': got -1, expected a positive number"},
    {Op::reshape, {f32({2, 6})}, {{"shape", Ints{0, 12}}}, "dimension in attribute 'shape': got 0, expected a positive number"},
    {Op::transpose, {f32({2, 6})}, {{"perm", Ints{0}}}, "length of attribute 'perm': got 1, expected 2"},
    {Op::transpose, {f32({2, 6})}, {{"perm", Ints{0, 0}}}, "attribute 'perm': got [0, 0], expected each axis once"},
    {Op::transpose, {f32({2, 6})}, {{"perm", Ints{0, 2}}}, "axis: got 2, expected 0 <= axis < 2"},
    {Op::concat, {}, {axis(0)}, "operands: got 0, expected at least 1"},
    {Op::concat, {f32({2, 3}), f32({3, 3})}, {axis(1)}, "shape of 'b': got [3,3], expected [2,3]"},
    {Op::concat, {f32({2, 3}), f32({2, 3, 1})}, {axis(1)}, "rank of 'b': got 3, expected 2"},
    {Op::concat, {f32({2, 3}), f16({2, 3})}, {axis(1)}, "operand types differ: got f16, expected f32"},
    {Op::concat, {f32({kHuge}), f32({kHuge})}, {axis(0)}, "length of the joined axis"},
    {Op::slice, {f32({2, 6})}, slice_of(1, 0, 7), "slice bounds: got 0:7, expected 0 <= begin < end <= 6"},
    {Op::slice, {f32({2, 6})}, slice_of(1, 3, 3), "slice bounds: got 3:3, expected 0 <= begin < end <= 6"},
    {Op::slice, {f32({2, 6})}, slice_of(1, -2, 3), "slice bounds: got -2:3, expected 0 <= begin < end <= 6"},
    {Op::slice, {f32({2, 6})}, slice_of(2, 0, 1), "axis: got 2, expected 0 <= axis < 2"},
    {Op::gather, {f32({9, 4}), f32({1})}, {}, "type of 'b': got f32, expected i32 or i64"},
    {Op::gather, {f32({}), i32({1})}, {}, "rank of 'a': got 0, expected at least 1"},
    {Op::cast, {f32({2})}, to(DType::q4_k), "attribute 'to': got q4_k, expected f32, f16, bf16, i32 or i64"},
    {Op::cast, {f32({2})}, {{"to", int64_t{kDTypeCount}}}, "expected a dtype"},
    {Op::cast, {f32({2})}, {{"to", int64_t{-1}}}, "attribute 'to': got -1, expected a dtype"},
};
INSTANTIATE_TEST_SUITE_P(Rows, Refusal, testing::ValuesIn(kBad));

TEST(OpTable, NamesEveryOperandWithItsType) {
  Graph graph;
  const ValueId x = graph.add_input("x", DType::f32, {2, 3});
  const ValueId w = graph.add_input("w", DType::f16, {5, 3});
  EXPECT_THAT(
      [&] {
        graph.add_node(Op::gemm, "layers_0_q", {x, w});
      },
      Fails(ErrorCode::graph_invalid,
            "gemm 'layers_0_q' of ('x' f32[2,3], 'w' f16[5,3]): operand types differ: got f16, "
            "expected f32"));
}

}  // namespace
}  // namespace transload
