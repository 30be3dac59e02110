// Serialises a graph as a ModelProto. Fields are written in the order of their numbers, so equal graphs give equal bytes.
#include "targets/onnx/onnx_writer.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <protozero/pbf_builder.hpp>
#include <string_view>
#include <vector>

#include "targets/onnx/onnx_fields.h"
#include "targets/onnx/onnx_lowering.h"
#include "transload/error.h"
#include "weights/executor.h"

namespace transload {
namespace {

namespace fields = onnx_fields;
template <typename Field>
using Message = protozero::pbf_builder<Field>;

// raw_data is little-endian, and so are the bytes that are copied into it.
static_assert(std::endian::native == std::endian::little);

// The release of ONNX that brought an opset fixed its IR version; older runtimes refuse a newer one.
int64_t ir_version(int opset) {
  if (opset <= 18) return 8;
  if (opset <= 20) return 9;
  return opset <= 22 ? 10 : 11;
}

void require_room(uint64_t bytes) {
  if (bytes <= kMaxOnnxModelBytes) return;
  throw Error(ErrorCode::format_limit,
              fmt::format("size of the ONNX graph: got {} bytes, expected at most {} (store large tensors externally)", bytes,
                          kMaxOnnxModelBytes));
}

struct AttributeValueWriter {
  Message<fields::Attribute>& attribute;

  void operator()(int64_t value) const {
    attribute.add_int64(fields::Attribute::i, value);
    attribute.add_enum(fields::Attribute::type, fields::kAttributeInt);
  }
  void operator()(const std::vector<int64_t>& values) const {
    for (const int64_t value : values) attribute.add_int64(fields::Attribute::ints, value);
    attribute.add_enum(fields::Attribute::type, fields::kAttributeInts);
  }
  void operator()(const std::string& value) const {
    attribute.add_bytes(fields::Attribute::s, value);
    attribute.add_enum(fields::Attribute::type, fields::kAttributeString);
  }
  void operator()(float value) const {
    attribute.add_float(fields::Attribute::f, value);
    attribute.add_enum(fields::Attribute::type, fields::kAttributeFloat);
  }
};

void write_node(Message<fields::Graph>& graph, const OnnxNode& node) {
  Message<fields::Node> message(graph, fields::Graph::node);
  for (const std::string& input : node.inputs) message.add_string(fields::Node::input, input);
  message.add_string(fields::Node::output, node.output);
  message.add_string(fields::Node::name, node.output);
  message.add_string(fields::Node::op_type, node.op_type.data(), node.op_type.size());
  for (const OnnxAttribute& attribute : node.attributes) {
    Message<fields::Attribute> attribute_message(message, fields::Node::attribute);
    attribute_message.add_string(fields::Attribute::name, attribute.name.data(), attribute.name.size());
    std::visit(AttributeValueWriter{attribute_message}, attribute.value);
  }
}

void write_value_info(Message<fields::Graph>& graph, fields::Graph field, const Value& value) {
  Message<fields::ValueInfo> info(graph, field);
  info.add_string(fields::ValueInfo::name, value.name);
  Message<fields::Type> type(info, fields::ValueInfo::type);
  Message<fields::TensorType> tensor_type(type, fields::Type::tensor_type);
  tensor_type.add_int32(fields::TensorType::elem_type, onnx_data_type(value.dtype));
  Message<fields::TensorShape> shape(tensor_type, fields::TensorType::shape);
  for (const uint64_t dimension : value.shape) {
    Message<fields::Dimension> dim(shape, fields::TensorShape::dim);
    dim.add_int64(fields::Dimension::dim_value, static_cast<int64_t>(dimension));
  }
}

void write_string_entry(Message<fields::Tensor>& tensor, std::string_view key, const std::string& value) {
  Message<fields::StringEntry> entry(tensor, fields::Tensor::external_data);
  entry.add_string(fields::StringEntry::key, key.data(), key.size());
  entry.add_string(fields::StringEntry::value, value);
}

void write_external(Message<fields::Tensor>& tensor, const Value& constant, const ExternalTensor& place) {
  const uint64_t expected = constant.constant.bytes();
  if (place.bytes != expected || place.offset % kExternalAlignment != 0) {
    throw Error(ErrorCode::internal,
                fmt::format("external place of constant '{}': got {} bytes at {}, expected {} bytes at a multiple of {}",
                            constant.name, place.bytes, place.offset, expected, kExternalAlignment));
  }
  write_string_entry(tensor, "location", place.file);
  write_string_entry(tensor, "offset", fmt::format("{}", place.offset));
  write_string_entry(tensor, "length", fmt::format("{}", place.bytes));
  tensor.add_enum(fields::Tensor::data_location, fields::kLocationExternal);
}

// Serialises one graph; `bytes_` is the whole model so far.
class Writer {
 public:
  Writer(const Graph& graph, const OnnxWriteOptions& options)
      : graph_(graph), options_(options), lowering_(graph, options.opset) {}

  std::string model() {
    {
      Message<fields::Model> model(bytes_);
      model.add_int64(fields::Model::ir_version, ir_version(options_.opset));
      model.add_string(fields::Model::producer_name, "transload");
      model.add_string(fields::Model::producer_version, options_.producer_version);
      write_graph(model);
      Message<fields::OperatorSet> opset(model, fields::Model::opset_import);
      opset.add_string(fields::OperatorSet::domain, "");
      opset.add_int64(fields::OperatorSet::version, options_.opset);
    }
    require_room(bytes_.size());
    return std::move(bytes_);
  }

 private:
  void write_graph(Message<fields::Model>& model) {
    Message<fields::Graph> graph(model, fields::Model::graph);
    for (const Node& node : graph_.nodes()) write_node(graph, lowering_.lower(node));
    graph.add_string(fields::Graph::name, graph_.name);
    for (const ValueId id : graph_.constants()) write_constant(graph, graph_.value(id));
    for (const OnnxIntegers& integers : lowering_.all_integers()) write_integers(graph, integers);
    for (const ValueId id : graph_.inputs()) write_value_info(graph, fields::Graph::input, graph_.value(id));
    std::vector<bool> is_output(graph_.values().size());
    for (const ValueId id : graph_.outputs()) {
      write_value_info(graph, fields::Graph::output, graph_.value(id));
      is_output[id] = true;
    }
    for (const Node& node : graph_.nodes()) {
      if (!is_output[node.output]) write_value_info(graph, fields::Graph::value_info, graph_.value(node.output));
    }
  }

  void write_constant(Message<fields::Graph>& graph, const Value& constant) {
    Message<fields::Tensor> tensor(graph, fields::Graph::initializer);
    for (const uint64_t dimension : constant.shape) tensor.add_int64(fields::Tensor::dims, static_cast<int64_t>(dimension));
    tensor.add_int32(fields::Tensor::data_type, onnx_data_type(constant.dtype));
    tensor.add_string(fields::Tensor::name, constant.name);
    const auto place = options_.external ? options_.external(constant) : std::nullopt;
    if (place) {
      write_external(tensor, constant, *place);
      return;
    }
    const uint64_t size = constant.constant.bytes();
    require_room(size > kMaxOnnxModelBytes ? size : bytes_.size() + size);  // before the bytes are made
    const std::vector<std::byte> data = materialize(constant.constant);
    tensor.add_bytes(fields::Tensor::raw_data, reinterpret_cast<const char*>(data.data()), data.size());
  }

  static void write_integers(Message<fields::Graph>& graph, const OnnxIntegers& integers) {
    Message<fields::Tensor> tensor(graph, fields::Graph::initializer);
    tensor.add_int64(fields::Tensor::dims, static_cast<int64_t>(integers.values.size()));
    tensor.add_int32(fields::Tensor::data_type, onnx_data_type(DType::i64));
    tensor.add_string(fields::Tensor::name, integers.name);
    tensor.add_bytes(fields::Tensor::raw_data, reinterpret_cast<const char*>(integers.values.data()),
                     integers.values.size() * sizeof(int64_t));
  }

  const Graph& graph_;
  const OnnxWriteOptions& options_;
  OnnxLowering lowering_;
  std::string bytes_;
};

}  // namespace

std::string write_onnx(const Graph& graph, const OnnxWriteOptions& options) { return Writer(graph, options).model(); }

}  // namespace transload
