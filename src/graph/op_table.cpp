// The op table: one row for each op, in the order of the enumerators, and the shape inference it points to.
#include "graph/op_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/checked.h"
#include "transload/error.h"

namespace transload {
namespace {

using Operands = std::span<const Value* const>;

template <typename Got, typename Expected>
[[noreturn]] void fail(std::string_view what, const Got& got, const Expected& expected) {
  throw Error(ErrorCode::graph_invalid, fmt::format("{}: got {}, expected {}", what, got, expected));
}

// The types a graph computes with; stored-only types (blocks, fp8, small integers) never reach a node.
bool is_compute_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }
bool is_index(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

void require_number(const Value& value) {
  if (!is_compute_float(value.dtype) && !is_index(value.dtype)) {
    fail("operand type", dtype_name(value.dtype), "f32, f16, bf16, i32 or i64");
  }
}

void require_float(const Value& value) {
  if (!is_compute_float(value.dtype)) fail("operand type", dtype_name(value.dtype), "f32, f16 or bf16");
}

void require_one_dtype(Operands inputs) {
  for (const Value* input : inputs) {
    if (input->dtype != inputs[0]->dtype) fail("operand types differ", dtype_name(input->dtype), dtype_name(inputs[0]->dtype));
  }
}

void require_rank(const Value& value, size_t rank) {
  if (value.shape.size() != rank) fail(fmt::format("rank of '{}'", value.name), value.shape.size(), rank);
}

void require_shape(const Value& value, const Shape& expected) {
  if (value.shape != expected) fail(fmt::format("shape of '{}'", value.name), shape_text(value.shape), shape_text(expected));
}

// Axes are never negative: one spelling for one graph.
size_t require_axis(int64_t axis, size_t rank) {
  if (axis < 0 || static_cast<uint64_t>(axis) >= rank) fail("axis", axis, fmt::format("0 <= axis < {}", rank));
  return static_cast<size_t>(axis);
}

// NumPy's rule: aligned at the last axis, a dimension of 1 stretches.
Shape broadcast(const Shape& a, const Shape& b) {
  Shape result(std::max(a.size(), b.size()));
  for (size_t i = 0; i < result.size(); ++i) {
    const uint64_t da = i < a.size() ? a[a.size() - 1 - i] : 1;
    const uint64_t db = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (da != db && da != 1 && db != 1) {
      fail("shapes do not broadcast", fmt::format("{} and {}", shape_text(a), shape_text(b)), "equal dimensions or 1");
    }
    result[result.size() - 1 - i] = da == 1 ? db : da;
  }
  return result;
}

InferredType infer_binary(const Node&, Operands inputs) {
  require_number(*inputs[0]);
  require_one_dtype(inputs);
  return {inputs[0]->dtype, broadcast(inputs[0]->shape, inputs[1]->shape)};
}

InferredType infer_binary_float(const Node& node, Operands inputs) {
  require_float(*inputs[0]);
  return infer_binary(node, inputs);
}

InferredType infer_comparison(const Node& node, Operands inputs) { return {DType::boolean, infer_binary(node, inputs).shape}; }

InferredType infer_where(const Node& node, Operands inputs) {
  const Value& condition = *inputs[0];
  if (condition.dtype != DType::boolean) {
    fail(fmt::format("type of '{}'", condition.name), dtype_name(condition.dtype), dtype_name(DType::boolean));
  }
  InferredType chosen = infer_binary(node, inputs.subspan(1));
  chosen.shape = broadcast(condition.shape, chosen.shape);
  return chosen;
}

InferredType infer_neg(const Node&, Operands inputs) {
  require_number(*inputs[0]);
  return {inputs[0]->dtype, inputs[0]->shape};
}

InferredType infer_unary(const Node&, Operands inputs) {
  require_float(*inputs[0]);
  return {inputs[0]->dtype, inputs[0]->shape};
}

InferredType infer_gelu(const Node& node, Operands inputs) {
  const std::string& approximate = node.text("approximate");
  if (approximate != "none" && approximate != "tanh") {
    fail("attribute 'approximate'", fmt::format("'{}'", approximate), "'none' or 'tanh'");
  }
  return infer_unary(node, inputs);
}

InferredType infer_softmax(const Node& node, Operands inputs) {
  require_axis(node.integer("axis"), inputs[0]->shape.size());
  return infer_unary(node, inputs);
}

InferredType infer_reduction(const Node& node, Operands inputs) {
  InferredType result = infer_unary(node, inputs);
  const std::vector<int64_t>& axes = node.integers("axes");
  if (axes.empty()) fail("attribute 'axes'", "none", "at least one axis");
  for (size_t i = 0; i < axes.size(); ++i) {
    if (i > 0 && axes[i] <= axes[i - 1]) fail("attribute 'axes'", fmt::format("{}", axes), "ascending axes");
    result.shape[require_axis(axes[i], result.shape.size())] = 1;
  }
  return result;
}

InferredType infer_argmax(const Node& node, Operands inputs) {
  InferredType result = infer_unary(node, inputs);
  result.shape[require_axis(node.integer("axis"), result.shape.size())] = 1;
  result.dtype = DType::i64;
  return result;
}

InferredType infer_gemm(const Node&, Operands inputs) {
  const Value& a = *inputs[0];
  const Value& b = *inputs[1];
  require_float(a);
  require_one_dtype(inputs);
  require_rank(a, 2);
  require_rank(b, 2);
  if (b.shape[1] != a.shape[1]) fail(fmt::format("columns of '{}'", b.name), b.shape[1], a.shape[1]);
  if (inputs.size() == 3) require_shape(*inputs[2], {b.shape[0]});
  return {a.dtype, {a.shape[0], b.shape[0]}};
}

InferredType infer_matmul(const Node&, Operands inputs) {
  require_float(*inputs[0]);
  require_one_dtype(inputs);
  Shape leading[2];
  for (size_t i = 0; i < 2; ++i) {
    const Shape& shape = inputs[i]->shape;
    if (shape.size() < 2) fail(fmt::format("rank of '{}'", inputs[i]->name), shape.size(), "at least 2");
    leading[i].assign(shape.begin(), shape.end() - 2);
  }
  const Shape& a = inputs[0]->shape;
  const Shape& b = inputs[1]->shape;
  const uint64_t inner = a.back();
  if (b[b.size() - 2] != inner) fail(fmt::format("rows of '{}'", inputs[1]->name), b[b.size() - 2], inner);
  Shape shape = broadcast(leading[0], leading[1]);
  shape.push_back(a[a.size() - 2]);
  shape.push_back(b.back());
  return {inputs[0]->dtype, std::move(shape)};
}

InferredType infer_conv1x1(const Node&, Operands inputs) {
  const Value& x = *inputs[0];
  const Value& w = *inputs[1];
  require_float(x);
  require_one_dtype(inputs);
  require_rank(x, 4);
  require_rank(w, 4);
  require_shape(x, {1, x.shape[1], 1, x.shape[3]});
  require_shape(w, {w.shape[0], x.shape[1], 1, 1});
  if (inputs.size() == 3) require_shape(*inputs[2], {w.shape[0]});
  return {x.dtype, {1, w.shape[0], 1, x.shape[3]}};
}

InferredType infer_reshape(const Node& node, Operands inputs) {
  require_number(*inputs[0]);
  Shape shape;
  for (const int64_t dimension : node.integers("shape")) {
    if (dimension <= 0) fail("dimension in attribute 'shape'", dimension, "a positive number");
    shape.push_back(static_cast<uint64_t>(dimension));
  }
  const uint64_t got = element_count(shape);
  const uint64_t expected = element_count(inputs[0]->shape);
  if (got != expected) fail(fmt::format("elements in shape {}", shape_text(shape)), got, expected);
  return {inputs[0]->dtype, std::move(shape)};
}

InferredType infer_transpose(const Node& node, Operands inputs) {
  require_number(*inputs[0]);
  const std::vector<int64_t>& perm = node.integers("perm");
  const Shape& input = inputs[0]->shape;
  if (perm.size() != input.size()) fail("length of attribute 'perm'", perm.size(), input.size());
  Shape shape;
  std::vector<bool> seen(perm.size());
  for (const int64_t axis : perm) {
    const size_t from = require_axis(axis, input.size());
    if (seen[from]) fail("attribute 'perm'", fmt::format("{}", perm), "each axis once");
    seen[from] = true;
    shape.push_back(input[from]);
  }
  return {inputs[0]->dtype, std::move(shape)};
}

InferredType infer_concat(const Node& node, Operands inputs) {
  require_number(*inputs[0]);
  require_one_dtype(inputs);
  Shape shape = inputs[0]->shape;
  const size_t axis = require_axis(node.integer("axis"), shape.size());
  for (const Value* input : inputs.subspan(1)) {
    require_rank(*input, shape.size());
    Shape expected = shape;
    expected[axis] = input->shape[axis];
    require_shape(*input, expected);
    shape[axis] = checked_add(shape[axis], input->shape[axis], "length of the joined axis");
  }
  return {inputs[0]->dtype, std::move(shape)};
}

InferredType infer_slice(const Node& node, Operands inputs) {
  require_number(*inputs[0]);
  Shape shape = inputs[0]->shape;
  const size_t axis = require_axis(node.integer("axis"), shape.size());
  const int64_t begin = node.integer("begin");
  const int64_t end = node.integer("end");
  if (begin < 0 || end <= begin || static_cast<uint64_t>(end) > shape[axis]) {
    fail("slice bounds", fmt::format("{}:{}", begin, end), fmt::format("0 <= begin < end <= {}", shape[axis]));
  }
  shape[axis] = static_cast<uint64_t>(end - begin);
  return {inputs[0]->dtype, std::move(shape)};
}

InferredType infer_gather(const Node&, Operands inputs) {
  const Value& table = *inputs[0];
  const Value& indices = *inputs[1];
  require_number(table);
  if (!is_index(indices.dtype)) fail(fmt::format("type of '{}'", indices.name), dtype_name(indices.dtype), "i32 or i64");
  if (table.shape.empty()) fail(fmt::format("rank of '{}'", table.name), 0, "at least 1");
  Shape shape = indices.shape;
  shape.insert(shape.end(), table.shape.begin() + 1, table.shape.end());
  return {table.dtype, std::move(shape)};
}

InferredType infer_cast(const Node& node, Operands inputs) {
  require_number(*inputs[0]);
  const int64_t to = node.integer("to");
  if (to < 0 || to >= kDTypeCount) fail("attribute 'to'", to, "a dtype");
  const auto dtype = static_cast<DType>(to);
  if (!is_compute_float(dtype) && !is_index(dtype)) fail("attribute 'to'", dtype_name(dtype), "f32, f16, bf16, i32 or i64");
  return {dtype, inputs[0]->shape};
}

constexpr std::array<std::string_view, 1> kApproximate = {"approximate"};
constexpr std::array<std::string_view, 1> kAxis = {"axis"};
constexpr std::array<std::string_view, 1> kAxes = {"axes"};
constexpr std::array<std::string_view, 1> kShape = {"shape"};
constexpr std::array<std::string_view, 1> kPerm = {"perm"};
constexpr std::array<std::string_view, 3> kSlice = {"axis", "begin", "end"};
constexpr std::array<std::string_view, 1> kTo = {"to"};
constexpr uint8_t kAnyNumber = 255;

constexpr std::array<OpInfo, kOpCount> kOps = {{
    {Op::add, "add", 2, 2, {}, infer_binary},
    {Op::sub, "sub", 2, 2, {}, infer_binary},
    {Op::mul, "mul", 2, 2, {}, infer_binary},
    {Op::div, "div", 2, 2, {}, infer_binary},
    {Op::max, "max", 2, 2, {}, infer_binary_float},
    {Op::min, "min", 2, 2, {}, infer_binary_float},
    {Op::equal, "equal", 2, 2, {}, infer_comparison},
    {Op::greater, "greater", 2, 2, {}, infer_comparison},
    {Op::where, "where", 3, 3, {}, infer_where},
    {Op::neg, "neg", 1, 1, {}, infer_neg},
    {Op::abs, "abs", 1, 1, {}, infer_unary},
    {Op::sqrt, "sqrt", 1, 1, {}, infer_unary},
    {Op::sigmoid, "sigmoid", 1, 1, {}, infer_unary},
    {Op::tanh, "tanh", 1, 1, {}, infer_unary},
    {Op::erf, "erf", 1, 1, {}, infer_unary},
    {Op::gelu, "gelu", 1, 1, kApproximate, infer_gelu},
    {Op::softmax, "softmax", 1, 1, kAxis, infer_softmax},
    {Op::reduce_mean, "reduce_mean", 1, 1, kAxes, infer_reduction},
    {Op::reduce_max, "reduce_max", 1, 1, kAxes, infer_reduction},
    {Op::argmax, "argmax", 1, 1, kAxis, infer_argmax},
    {Op::gemm, "gemm", 2, 3, {}, infer_gemm},
    {Op::matmul, "matmul", 2, 2, {}, infer_matmul},
    {Op::conv1x1, "conv1x1", 2, 3, {}, infer_conv1x1},
    {Op::reshape, "reshape", 1, 1, kShape, infer_reshape},
    {Op::transpose, "transpose", 1, 1, kPerm, infer_transpose},
    {Op::concat, "concat", 1, kAnyNumber, kAxis, infer_concat},
    {Op::slice, "slice", 1, 1, kSlice, infer_slice},
    {Op::gather, "gather", 2, 2, {}, infer_gather},
    {Op::cast, "cast", 1, 1, kTo, infer_cast},
}};

constexpr bool in_enumerator_order() {
  for (size_t i = 0; i < kOps.size(); ++i) {
    if (kOps[i].op != static_cast<Op>(i) || kOps[i].infer == nullptr) return false;
  }
  return true;
}
static_assert(in_enumerator_order());

void require_arity(const OpInfo& info, size_t count) {
  if (count >= info.min_inputs && (count <= info.max_inputs || info.max_inputs == kAnyNumber)) return;
  if (info.max_inputs == kAnyNumber) fail("operands", count, fmt::format("at least {}", info.min_inputs));
  if (info.min_inputs == info.max_inputs) fail("operands", count, info.min_inputs);
  fail("operands", count, fmt::format("{} to {}", info.min_inputs, info.max_inputs));
}

void require_attributes(const OpInfo& info, const std::vector<Attribute>& attributes) {
  std::vector<std::string_view> got;
  for (const Attribute& attribute : attributes) got.push_back(attribute.name);
  std::vector<std::string_view> expected(info.attributes.begin(), info.attributes.end());
  std::sort(got.begin(), got.end());
  std::sort(expected.begin(), expected.end());
  if (got != expected) {
    fail("attributes", fmt::format("[{}]", fmt::join(got, ", ")), fmt::format("[{}]", fmt::join(expected, ", ")));
  }
}

}  // namespace

const OpInfo& op_info(Op op) { return kOps[static_cast<size_t>(op)]; }

std::string_view op_name(Op op) { return op_info(op).name; }

InferredType infer_type(const Node& node, std::string_view output_name, std::span<const Value* const> inputs) {
  const OpInfo& info = op_info(node.op);
  try {
    require_arity(info, inputs.size());
    require_attributes(info, node.attributes);
    return info.infer(node, inputs);
  } catch (const Error& error) {
    std::vector<std::string> operands;
    for (const Value* input : inputs) {
      operands.push_back(fmt::format("'{}' {}{}", input->name, dtype_name(input->dtype), shape_text(input->shape)));
    }
    throw Error(ErrorCode::graph_invalid,
                fmt::format("{} '{}' of ({}): {}", info.name, output_name, fmt::join(operands, ", "), error.what()));
  }
}

}  // namespace transload
