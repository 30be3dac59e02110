// The lowering table. Differences between opsets follow ONNX's operator changelog.
#include "targets/onnx/onnx_lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "transload/error.h"

namespace transload {
namespace {

void lower_plain(OnnxLowering&, const Node&, OnnxNode&) {}

void lower_gelu(OnnxLowering&, const Node& node, OnnxNode& out) { out.attributes = {{"approximate", node.text("approximate")}}; }

void lower_axis(OnnxLowering&, const Node& node, OnnxNode& out) { out.attributes = {{"axis", node.integer("axis")}}; }

void lower_reduction(OnnxLowering& lowering, const Node& node, OnnxNode& out) {
  const std::vector<int64_t>& axes = node.integers("axes");
  if (lowering.opset() < kReduceAxesInput) {
    out.attributes.push_back({"axes", axes});
  } else {
    out.inputs.push_back(lowering.integers(axes));
  }
  out.attributes.push_back({"keepdims", int64_t{1}});
}

void lower_argmax(OnnxLowering&, const Node& node, OnnxNode& out) {
  out.attributes = {{"axis", node.integer("axis")}, {"keepdims", int64_t{1}}};
}

void lower_gemm(OnnxLowering&, const Node&, OnnxNode& out) {
  out.attributes = {{"alpha", 1.0F}, {"beta", 1.0F}, {"transB", int64_t{1}}};
}

void lower_conv1x1(OnnxLowering&, const Node&, OnnxNode& out) { out.attributes = {{"kernel_shape", std::vector<int64_t>{1, 1}}}; }

void lower_reshape(OnnxLowering& lowering, const Node& node, OnnxNode& out) {
  out.inputs.push_back(lowering.integers(node.integers("shape")));
}

void lower_transpose(OnnxLowering&, const Node& node, OnnxNode& out) { out.attributes = {{"perm", node.integers("perm")}}; }

void lower_slice(OnnxLowering& lowering, const Node& node, OnnxNode& out) {
  for (const std::string_view operand : {"begin", "end", "axis"}) {
    out.inputs.push_back(lowering.integers({node.integer(operand)}));
  }
  out.inputs.push_back(lowering.integers({1}));
}

void lower_gather(OnnxLowering&, const Node&, OnnxNode& out) { out.attributes = {{"axis", int64_t{0}}}; }

void lower_cast(OnnxLowering&, const Node& node, OnnxNode& out) {
  out.attributes = {{"to", int64_t{onnx_data_type(static_cast<DType>(node.integer("to")))}}};
}

struct LoweringRow {
  Op op;
  std::string_view op_type;
  int min_opset;
  void (*lower)(OnnxLowering& lowering, const Node& node, OnnxNode& out);
};

constexpr std::array<LoweringRow, kOpCount> kRows = {{
    {Op::add, "Add", 14, lower_plain},
    {Op::sub, "Sub", 14, lower_plain},
    {Op::mul, "Mul", 14, lower_plain},
    {Op::div, "Div", 14, lower_plain},
    {Op::max, "Max", 13, lower_plain},
    {Op::min, "Min", 13, lower_plain},
    {Op::equal, "Equal", 13, lower_plain},
    {Op::greater, "Greater", 13, lower_plain},
    {Op::where, "Where", 16, lower_plain},
    {Op::neg, "Neg", 13, lower_plain},
    {Op::abs, "Abs", 13, lower_plain},
    {Op::sqrt, "Sqrt", 13, lower_plain},
    {Op::sigmoid, "Sigmoid", 13, lower_plain},
    {Op::tanh, "Tanh", 13, lower_plain},
    {Op::erf, "Erf", 13, lower_plain},
    {Op::gelu, "Gelu", 20, lower_gelu},
    {Op::softmax, "Softmax", 13, lower_axis},
    {Op::reduce_mean, "ReduceMean", 13, lower_reduction},
    {Op::reduce_max, "ReduceMax", 13, lower_reduction},
    {Op::argmax, "ArgMax", 13, lower_argmax},
    {Op::gemm, "Gemm", 13, lower_gemm},
    {Op::matmul, "MatMul", 13, lower_plain},
    {Op::conv1x1, "Conv", 11, lower_conv1x1},
    {Op::reshape, "Reshape", 14, lower_reshape},
    {Op::transpose, "Transpose", 13, lower_transpose},
    {Op::concat, "Concat", 13, lower_axis},
    {Op::slice, "Slice", 13, lower_slice},
    {Op::gather, "Gather", 13, lower_gather},
    {Op::cast, "Cast", 13, lower_cast},
}};

constexpr bool in_enumerator_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].op != static_cast<Op>(i)) return false;
  }
  return true;
}
static_assert(in_enumerator_order());

}  // namespace

OnnxLowering::OnnxLowering(const Graph& graph, int opset) : graph_(graph), opset_(opset) {
  if (opset < kMinOnnxOpset || opset > kMaxOnnxOpset) {
    throw Error(ErrorCode::usage, fmt::format("opset: got {}, expected {} to {}", opset, kMinOnnxOpset, kMaxOnnxOpset));
  }
  for (const Value& value : graph.values()) value_names_.insert(value.name);
}

OnnxNode OnnxLowering::lower(const Node& node) {
  const LoweringRow& row = kRows[static_cast<size_t>(node.op)];
  const std::string& output = graph_.value(node.output).name;
  if (opset_ < row.min_opset) {
    throw Error(ErrorCode::op_unsupported, fmt::format("opset for operator {} of '{}': got {}, expected at least {}", row.op_type,
                                                       output, opset_, row.min_opset));
  }
  OnnxNode out{row.op_type, {}, output, {}};
  for (const ValueId input : node.inputs) out.inputs.push_back(graph_.value(input).name);
  row.lower(*this, node, out);
  return out;
}

std::string OnnxLowering::integers(std::vector<int64_t> values) {
  const auto same = [&](const OnnxIntegers& other) { return other.values == values; };
  const auto found = std::find_if(integers_.begin(), integers_.end(), same);
  if (found != integers_.end()) return found->name;
  std::string name = "const_i64";
  for (const int64_t value : values) {
    const std::string digits = fmt::format("{}", value);
    name += value < 0 ? "_m" + digits.substr(1) : "_" + digits;
  }
  while (value_names_.contains(name)) name += "_";
  integers_.push_back({name, std::move(values)});
  return name;
}

OnnxOperator onnx_operator(Op op) {
  const LoweringRow& row = kRows[static_cast<size_t>(op)];
  return {row.op_type, row.min_opset};
}

std::optional<DType> find_dtype_by_onnx_data_type(int64_t data_type) {
  for (const DType dtype : {DType::f32, DType::f16, DType::i32, DType::i64, DType::boolean}) {
    if (onnx_data_type(dtype) == data_type) return dtype;
  }
  return std::nullopt;
}

int32_t onnx_data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 1;
    case DType::i32:
      return 6;
    case DType::i64:
      return 7;
    case DType::boolean:
      return 9;
    case DType::f16:
      return 10;
    case DType::f64:
    case DType::bf16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::i16:
    case DType::i8:
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8:
    case DType::q4_0:
    case DType::q4_1:
    case DType::q5_0:
    case DType::q5_1:
    case DType::q8_0:
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
    case DType::mxfp4:
      break;
  }
  throw Error(ErrorCode::dtype_unsupported,
              fmt::format("type in an ONNX graph: got {}, expected f32, f16, i32, i64 or boolean", dtype_name(dtype)));
}

}  // namespace transload
