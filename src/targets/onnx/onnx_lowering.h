// Lowers graph nodes to ONNX operators at one opset, through a table with one row for each op.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <variant>
#include <vector>

#include "graph/graph.h"

namespace transload {

inline constexpr int kMinOnnxOpset = 17;
inline constexpr int kMaxOnnxOpset = 23;
inline constexpr int kReduceAxesInput = 18;  // the first opset where axes of a reduction are an operand; before: an attribute

struct OnnxAttribute {
  std::string_view name;
  std::variant<int64_t, std::vector<int64_t>, std::string, float> value;
};

struct OnnxNode {
  std::string_view op_type;
  std::vector<std::string> inputs;
  std::string output;  // names the node, too
  std::vector<OnnxAttribute> attributes;
};

// A 1-D int64 initialiser: ONNX takes axes, shapes and slice bounds as tensors.
struct OnnxIntegers {
  std::string name;
  std::vector<int64_t> values;
};

// Not thread-safe; lives as long as one writing.
class OnnxLowering {
 public:
  // `graph` must outlive this. Throws usage for an opset outside 17..23.
  OnnxLowering(const Graph& graph, int opset);

  // Throws op_unsupported when the op has no form at this opset.
  OnnxNode lower(const Node& node);

  int opset() const { return opset_; }
  // Adds the values once, whoever asks; the name is made of them: [1, -1] is const_i64_1_m1.
  std::string integers(std::vector<int64_t> values);
  const std::vector<OnnxIntegers>& all_integers() const { return integers_; }  // in order of first use

 private:
  const Graph& graph_;
  int opset_;
  std::vector<OnnxIntegers> integers_;
  std::unordered_set<std::string_view> value_names_;
};

// The operator that an op becomes, in the default domain, and the first opset that has it in the form written.
struct OnnxOperator {
  std::string_view op_type;
  int min_opset;
};
OnnxOperator onnx_operator(Op op);

// TensorProto.DataType; throws dtype_unsupported for types that a decode graph never holds.
int32_t onnx_data_type(DType dtype);
// The inverse: nothing for those types.
std::optional<DType> find_dtype_by_onnx_data_type(int64_t data_type);

}  // namespace transload
