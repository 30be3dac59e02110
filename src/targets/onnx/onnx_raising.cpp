// The raising table. Attribute defaults follow ONNX's operator documentation for opsets 17 to 23.
#include "targets/onnx/onnx_raising.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.h"
#include "base/printable.h"
#include "graph/op_table.h"
#include "targets/onnx/onnx_fields.h"
#include "targets/onnx/onnx_lowering.h"
#include "transload/error.h"

namespace transload {

namespace fields = onnx_fields;
using Ints = std::vector<int64_t>;

// One node with its operands; each attribute is asked for by name, and in the end none may be left.
class NodeReader {
 public:
  NodeReader(const onnx_message::Node& node, const RaisingRow& row, int opset, std::span<const Value* const> operands,
             const IntegerOperand& integers)
      : node_(node), row_(row), opset_(opset), operands_(operands), integers_(integers), taken_(node.attributes.size()) {}

  int opset() const { return opset_; }
  const Shape& shape() const { return operands_[0]->shape; }  // of the first operand

  int64_t integer(std::string_view name, std::optional<int64_t> absent = std::nullopt) {
    const onnx_message::Attribute* attribute = take(name, fields::kAttributeInt);
    if (attribute != nullptr) return attribute->i;
    if (!absent) unsupported(fmt::format("attribute '{}'", name), "none", "an integer");
    return *absent;
  }
  // Nothing when absent.
  std::optional<Ints> integers(std::string_view name) {
    const onnx_message::Attribute* attribute = take(name, fields::kAttributeInts);
    return attribute == nullptr ? std::nullopt : std::optional(attribute->ints);
  }
  std::string text(std::string_view name, std::string_view absent) {
    const onnx_message::Attribute* attribute = take(name, fields::kAttributeString);
    return std::string(attribute == nullptr ? absent : attribute->s);
  }

  // For what the op fixes.
  void require_integer(std::string_view name, int64_t expected, int64_t absent) {
    if (const int64_t got = integer(name, absent); got != expected)
      unsupported(fmt::format("attribute '{}'", name), got, expected);
  }
  void require_float(std::string_view name, float expected) {
    const onnx_message::Attribute* attribute = take(name, fields::kAttributeFloat);
    if (attribute != nullptr && attribute->f != expected)
      unsupported(fmt::format("attribute '{}'", name), attribute->f, expected);
  }
  void require_integers(std::string_view name, const Ints& expected) {
    const std::optional<Ints> got = integers(name);
    if (got && *got != expected) unsupported(fmt::format("attribute '{}'", name), list_text(*got), list_text(expected));
  }
  void require_text(std::string_view name, std::string_view expected) {
    if (const std::string got = text(name, expected); got != expected) {
      unsupported(fmt::format("attribute '{}'", name), printable(got), expected);
    }
  }
  void require_no_attribute_left() const {
    for (size_t i = 0; i < taken_.size(); ++i) {
      if (taken_[i]) continue;
      unsupported("attribute", fmt::format("'{}'", printable(node_.attributes[i].name)),
                  "one that this operator is written with");
    }
  }

  // The n-th operand after the values.
  std::optional<Ints> find_integers(size_t n) const { return integers_(row_.value_operands + n); }
  Ints operand_integers(size_t n, std::string_view what) const {
    std::optional<Ints> values = find_integers(n);
    if (!values) unsupported(what, "none", "a constant operand");
    return std::move(*values);
  }

  // ONNX counts a negative axis from the end.
  int64_t axis(int64_t axis) const {
    const auto rank = static_cast<int64_t>(shape().size());
    if (axis < -rank || axis >= rank) invalid("axis", axis, fmt::format("{} to {}", -rank, rank - 1));
    return axis < 0 ? axis + rank : axis;
  }

  template <typename Got, typename Expected>
  [[noreturn]] void unsupported(std::string_view what, const Got& got, const Expected& expected) const {
    fail(ErrorCode::op_unsupported, what, fmt::format("{}", got), fmt::format("{}", expected));
  }
  template <typename Got, typename Expected>
  [[noreturn]] void invalid(std::string_view what, const Got& got, const Expected& expected) const {
    fail(ErrorCode::bad_header, what, fmt::format("{}", got), fmt::format("{}", expected));
  }
  static std::string list_text(const Ints& values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

 private:
  [[noreturn]] void fail(ErrorCode code, std::string_view what, const std::string& got, const std::string& expected) const {
    throw Error(code, fmt::format("{} of {}: got {}, expected {}", what, node_text(node_), got, expected),
                {.file = {}, .tensor = {}, .offset = node_.offset});
  }

  // Two of one name would hide one of them.
  const onnx_message::Attribute* take(std::string_view name, int64_t type) {
    const onnx_message::Attribute* found = nullptr;
    for (size_t i = 0; i < taken_.size(); ++i) {
      const onnx_message::Attribute& attribute = node_.attributes[i];
      if (attribute.name != name) continue;
      if (found != nullptr) invalid("attribute", fmt::format("'{}' twice", name), "it once");
      if (attribute.type != type) invalid(fmt::format("type of attribute '{}'", name), attribute.type, type);
      found = &attribute;
      taken_[i] = true;
    }
    return found;
  }

  const onnx_message::Node& node_;
  const RaisingRow& row_;
  int opset_;
  std::span<const Value* const> operands_;
  const IntegerOperand& integers_;
  std::vector<bool> taken_;
};

namespace {

constexpr size_t kAnyNumber = 65536;
constexpr size_t kMaxAttributes = 32;  // no operator of the table has half as many

std::vector<Attribute> raise_plain(NodeReader&) { return {}; }

std::vector<Attribute> raise_gelu(NodeReader& node) { return {{"approximate", node.text("approximate", "none")}}; }

std::vector<Attribute> raise_softmax(NodeReader& node) { return {{"axis", node.axis(node.integer("axis", -1))}}; }

std::vector<Attribute> raise_concat(NodeReader& node) { return {{"axis", node.axis(node.integer("axis"))}}; }

std::vector<Attribute> raise_reduction(NodeReader& node) {
  node.require_integer("keepdims", 1, 1);
  const bool as_operand = node.opset() >= kReduceAxesInput;
  std::optional<Ints> axes = as_operand ? node.find_integers(0) : node.integers("axes");
  if (as_operand) {
    node.require_integer("noop_with_empty_axes", 0, 0);
  } else if (node.find_integers(0)) {
    node.unsupported("axes", "an operand", fmt::format("an attribute below opset {}", kReduceAxesInput));
  }
  if (!axes || axes->empty()) node.unsupported("axes", "none", "at least one");
  for (int64_t& axis : *axes) axis = node.axis(axis);
  std::sort(axes->begin(), axes->end());
  return {{"axes", std::move(*axes)}};
}

std::vector<Attribute> raise_argmax(NodeReader& node) {
  node.require_integer("keepdims", 1, 1);
  node.require_integer("select_last_index", 0, 0);
  return {{"axis", node.axis(node.integer("axis", 0))}};
}

std::vector<Attribute> raise_gemm(NodeReader& node) {
  node.require_float("alpha", 1.0F);
  node.require_float("beta", 1.0F);
  node.require_integer("transA", 0, 0);
  node.require_integer("transB", 1, 0);
  return {};
}

std::vector<Attribute> raise_conv1x1(NodeReader& node) {
  node.require_text("auto_pad", "NOTSET");
  node.require_integers("dilations", {1, 1});
  node.require_integer("group", 1, 1);
  node.require_integers("kernel_shape", {1, 1});
  node.require_integers("pads", {0, 0, 0, 0});
  node.require_integers("strides", {1, 1});
  return {};
}

// 0 copies the dimension of the input, one -1 takes what is left.
std::vector<Attribute> raise_reshape(NodeReader& node) {
  node.require_integer("allowzero", 0, 0);
  Ints shape = node.operand_integers(0, "shape");
  const std::string text = NodeReader::list_text(shape);
  uint64_t known = 1;
  int64_t* open = nullptr;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1 && open == nullptr) {
      open = &shape[i];
      continue;
    }
    if (shape[i] == 0 && i < node.shape().size()) shape[i] = static_cast<int64_t>(node.shape()[i]);
    if (shape[i] <= 0) node.invalid("shape", text, "positive numbers, 0 where the input has a dimension, and -1 at most once");
    known = checked_mul(known, static_cast<uint64_t>(shape[i]), "elements of a shape");
  }
  if (open != nullptr) {
    const uint64_t elements = element_count(node.shape());
    if (elements % known != 0) node.invalid("shape", text, fmt::format("one of {} elements", elements));
    *open = static_cast<int64_t>(elements / known);
  }
  return {{"shape", std::move(shape)}};
}

std::vector<Attribute> raise_transpose(NodeReader& node) {
  std::optional<Ints> perm = node.integers("perm");
  if (!perm) {
    perm.emplace();
    for (size_t axis = node.shape().size(); axis > 0; --axis) perm->push_back(static_cast<int64_t>(axis - 1));
  }
  return {{"perm", std::move(*perm)}};
}

// Bounds count from the end when negative, and are cut to the axis.
std::vector<Attribute> raise_slice(NodeReader& node) {
  const auto single = [&](const Ints& values, std::string_view what) {
    if (values.size() != 1) node.unsupported(what, fmt::format("{} values", values.size()), "1 (one axis a slice)");
    return values.front();
  };
  const int64_t begin = single(node.operand_integers(0, "starts"), "starts");
  const int64_t end = single(node.operand_integers(1, "ends"), "ends");
  const int64_t axis = node.axis(single(node.find_integers(2).value_or(Ints{0}), "axes"));
  const int64_t step = single(node.find_integers(3).value_or(Ints{1}), "steps");
  if (step != 1) node.unsupported("steps", step, 1);
  const auto size = static_cast<int64_t>(node.shape()[static_cast<size_t>(axis)]);
  const auto bound = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  return {{"axis", axis}, {"begin", bound(begin)}, {"end", bound(end)}};
}

std::vector<Attribute> raise_gather(NodeReader& node) {
  const int64_t axis = node.axis(node.integer("axis", 0));
  if (axis != 0) node.unsupported("attribute 'axis'", axis, 0);
  return {};
}

std::vector<Attribute> raise_cast(NodeReader& node) {
  node.require_integer("saturate", 1, 1);
  const int64_t to = node.integer("to");
  const std::optional<DType> dtype = find_dtype_by_onnx_data_type(to);
  if (!dtype || *dtype == DType::boolean) node.unsupported("attribute 'to'", to, "the number of f32, f16, i32 or i64");
  return {{"to", static_cast<int64_t>(*dtype)}};
}

constexpr std::array<RaisingRow, kOpCount> kRows = {{
    {Op::add, 2, 0, raise_plain},
    {Op::sub, 2, 0, raise_plain},
    {Op::mul, 2, 0, raise_plain},
    {Op::div, 2, 0, raise_plain},
    {Op::max, 2, 0, raise_plain},
    {Op::min, 2, 0, raise_plain},
    {Op::equal, 2, 0, raise_plain},
    {Op::greater, 2, 0, raise_plain},
    {Op::where, 3, 0, raise_plain},
    {Op::neg, 1, 0, raise_plain},
    {Op::abs, 1, 0, raise_plain},
    {Op::sqrt, 1, 0, raise_plain},
    {Op::sigmoid, 1, 0, raise_plain},
    {Op::tanh, 1, 0, raise_plain},
    {Op::erf, 1, 0, raise_plain},
    {Op::gelu, 1, 0, raise_gelu},
    {Op::softmax, 1, 0, raise_softmax},
    {Op::reduce_mean, 1, 1, raise_reduction},
    {Op::reduce_max, 1, 1, raise_reduction},
    {Op::argmax, 1, 0, raise_argmax},
    {Op::gemm, 3, 0, raise_gemm},
    {Op::matmul, 2, 0, raise_plain},
    {Op::conv1x1, 3, 0, raise_conv1x1},
    {Op::reshape, 1, 1, raise_reshape},
    {Op::transpose, 1, 0, raise_transpose},
    {Op::concat, kAnyNumber, 0, raise_concat},
    {Op::slice, 1, 4, raise_slice},
    {Op::gather, 2, 0, raise_gather},
    {Op::cast, 1, 0, raise_cast},
}};

constexpr bool in_enumerator_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].op != static_cast<Op>(i)) return false;
  }
  return true;
}
static_assert(in_enumerator_order());

[[noreturn]] void refuse(const onnx_message::Node& node, std::string_view what, const std::string& got,
                         const std::string& expected) {
  throw Error(ErrorCode::op_unsupported, fmt::format("{} of {}: got {}, expected {}", what, node_text(node), got, expected),
              {.file = {}, .tensor = {}, .offset = node.offset});
}

const RaisingRow* find_row(std::string_view op_type) {
  for (const RaisingRow& row : kRows) {
    if (onnx_operator(row.op).op_type == op_type) return &row;
  }
  return nullptr;
}

std::string known_operators() {
  std::vector<std::string_view> names;
  for (const RaisingRow& row : kRows) names.push_back(onnx_operator(row.op).op_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string node_text(const onnx_message::Node& node) {
  const std::string_view name = node.name.empty() && !node.outputs.empty() ? node.outputs.front() : node.name;
  return fmt::format("{} '{}'", printable(node.op_type), printable(name));
}

bool is_default_domain(std::string_view domain) { return domain.empty() || domain == "ai.onnx"; }

const RaisingRow& raising_row(const onnx_message::Node& node, int opset) {
  const RaisingRow* row = find_row(node.op_type);
  if (row == nullptr) refuse(node, "operator", printable(node.op_type), "one of " + known_operators());
  if (!is_default_domain(node.domain)) {
    refuse(node, "domain", fmt::format("'{}'", printable(node.domain)), "that of ONNX's own operators");
  }
  if (const int first = onnx_operator(row->op).min_opset; opset < first) {
    refuse(node, "opset", fmt::format("{}", opset), fmt::format("at least {}", first));
  }
  if (node.outputs.size() != 1) refuse(node, "outputs", fmt::format("{}", node.outputs.size()), "1");
  const size_t most = row->value_operands + row->integer_operands;
  if (node.inputs.size() > most) refuse(node, "operands", fmt::format("{}", node.inputs.size()), fmt::format("at most {}", most));
  if (node.attributes.size() > kMaxAttributes) {
    refuse(node, "attributes", fmt::format("{}", node.attributes.size()), fmt::format("at most {}", kMaxAttributes));
  }
  return *row;
}

std::vector<Attribute> raise(const RaisingRow& row, const onnx_message::Node& node, int opset,
                             std::span<const Value* const> operands, const IntegerOperand& integers) {
  NodeReader reader(node, row, opset, operands, integers);
  if (const size_t least = op_info(row.op).min_inputs; operands.size() < least) {
    const bool any_number = row.op == Op::max || row.op == Op::min;  // of operands, in ONNX
    if (any_number && !operands.empty()) reader.unsupported("operands", operands.size(), least);
    reader.invalid("operands", operands.size(), fmt::format("at least {}", least));
  }
  std::vector<Attribute> attributes = row.raise(reader);
  reader.require_no_attribute_left();
  return attributes;
}

}  // namespace transload
