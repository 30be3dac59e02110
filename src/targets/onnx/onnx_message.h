// A ModelProto as parsed: plain structs whose texts and bytes are views into the serialised model, which must outlive them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace transload::onnx_message {

// Of a message: where it begins in the file, in bytes.
using Offset = uint64_t;

struct Tensor {
  Offset offset = 0;
  std::string_view name;
  std::vector<int64_t> dims;
  int64_t data_type = 0;  // TensorProto.DataType
  std::string_view raw_data;
  std::vector<float> float_data;
  std::vector<int64_t> int32_data;  // f16 as bit patterns, too
  std::vector<int64_t> int64_data;
  bool external = false;
  std::vector<std::pair<std::string_view, std::string_view>> external_data;
};

struct Attribute {
  Offset offset = 0;
  std::string_view name;
  int64_t type = 0;  // AttributeProto.AttributeType; the one field that it names is set
  float f = 0;
  int64_t i = 0;
  std::string_view s;
  std::string_view t;  // a serialised Tensor
  std::vector<int64_t> ints;
};

struct Node {
  Offset offset = 0;
  std::string_view name;
  std::string_view op_type;
  std::string_view domain;
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
  std::vector<Attribute> attributes;
};

struct ValueInfo {
  Offset offset = 0;
  std::string_view name;
  int64_t elem_type = 0;                     // TensorProto.DataType; 0: not declared
  std::optional<std::vector<int64_t>> dims;  // -1: a dimension without a number
};

struct Graph {
  std::string_view name;
  std::vector<Node> nodes;
  std::vector<Tensor> initializers;
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  std::vector<ValueInfo> value_info;
};

struct OperatorSet {
  Offset offset = 0;
  std::string_view domain;
  int64_t version = 0;
};

struct Model {
  int64_t ir_version = 0;
  std::vector<OperatorSet> opset_import;
  Graph graph;
};

// Fields that change nothing (documentation, metadata) are skipped. Throws Error with the offset in the file: bad_header (what is
// not protobuf, a field of another wire type, a singular field twice, an attribute without its value), op_unsupported (a field
// that a decode graph never has). Memory is bounded by a small multiple of the size of `file`.
Model parse_model(std::string_view file);
// `tensor` lies in `file`.
Tensor parse_tensor(std::string_view tensor, std::string_view file);

}  // namespace transload::onnx_message
