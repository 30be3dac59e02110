// Builds ONNX files field by field, so that tests can spell them as other tools do, and break them. Field numbers of onnx.proto.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/scratch_folder.h"
#include "targets/onnx/onnx_reader.h"

namespace transload::onnx_bytes {

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(0x80 | (value & 0x7F));
  return bytes + static_cast<char>(value);
}
inline std::string key(uint32_t field, uint32_t wire_type) { return varint(field << 3 | wire_type); }
inline std::string number(uint32_t field, int64_t value) { return key(field, 0) + varint(static_cast<uint64_t>(value)); }
inline std::string bytes(uint32_t field, std::string_view value) {
  return key(field, 2) + varint(value.size()) + std::string(value);
}

template <typename Element>
std::string raw(const std::vector<Element>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Element)};
}
inline std::string packed(const std::vector<int64_t>& values) {
  std::string result;
  for (const int64_t value : values) result += varint(static_cast<uint64_t>(value));
  return result;
}

using Ints = std::vector<int64_t>;
constexpr int kFloat = 1;
constexpr int kInt32 = 6;
constexpr int kInt64 = 7;
constexpr int kFloat16 = 10;

// Serialised AttributeProto; the last field is its type.
inline std::string attribute(std::string_view name, int64_t value) { return bytes(1, name) + number(3, value) + number(20, 2); }
inline std::string attribute(std::string_view name, const Ints& values) {
  std::string result = bytes(1, name);
  for (const int64_t value : values) result += number(8, value);
  return result + number(20, 7);
}
inline std::string attribute(std::string_view name, std::string_view text) {
  return bytes(1, name) + bytes(4, text) + number(20, 3);
}
inline std::string attribute_float(std::string_view name, float value) {
  return bytes(1, name) + key(2, 5) + raw(std::vector<float>{value}) + number(20, 1);
}
inline std::string attribute_tensor(std::string_view name, std::string_view tensor) {
  return bytes(1, name) + bytes(5, tensor) + number(20, 4);
}

inline std::string node(std::string_view op_type, const std::vector<std::string>& inputs, const std::string& output,
                        const std::vector<std::string>& attributes = {}) {
  std::string result;
  for (const std::string& input : inputs) result += bytes(1, input);
  result += bytes(2, output) + bytes(4, op_type);
  for (const std::string& attribute : attributes) result += bytes(5, attribute);
  return result;
}

// TensorProto without values, which follow as `values`: bytes(9, raw(..)), packed or single fields 4, 5, 7, external entries.
inline std::string tensor(std::string_view name, int data_type, const Ints& dims, std::string_view values) {
  std::string result;
  for (const int64_t dim : dims) result += number(1, dim);
  return result + number(2, data_type) + bytes(8, name) + std::string(values);
}
inline std::string integers(std::string_view name, const Ints& values) {
  return tensor(name, kInt64, {static_cast<int64_t>(values.size())}, bytes(9, raw(values)));
}
inline std::string external(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string result;
  for (const auto& [entry, value] : entries) result += bytes(13, bytes(1, entry) + bytes(2, value));
  return result + number(14, 1);
}

inline std::string value_info(std::string_view name, int elem_type, const Ints& dims) {
  std::string shape;
  for (const int64_t dim : dims) shape += bytes(1, number(1, dim));
  return bytes(1, name) + bytes(2, bytes(1, number(1, elem_type) + bytes(2, shape)));
}

// A model of serialised parts; `graph_fields` and `model_fields` come last.
struct Model {
  std::vector<std::string> nodes;
  std::vector<std::string> initializers;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> value_info;
  std::string graph_fields;
  std::string model_fields;
  std::string graph_name = "g";
  int64_t ir_version = 8;
  int64_t opset = 18;

  std::string file() const {
    std::string graph = bytes(2, graph_name);
    for (const std::string& part : nodes) graph += bytes(1, part);
    for (const std::string& part : initializers) graph += bytes(5, part);
    for (const std::string& part : inputs) graph += bytes(11, part);
    for (const std::string& part : outputs) graph += bytes(12, part);
    for (const std::string& part : value_info) graph += bytes(13, part);
    return number(1, ir_version) + bytes(7, graph + graph_fields) + bytes(8, number(2, opset)) + model_fields;
  }
};

// One node that takes x, f32[2,3,4], and gives y, whose type is not declared.
inline Model unary_model(std::string node, std::vector<std::string> initializers = {}) {
  Model model;
  model.nodes = {std::move(node)};
  model.initializers = std::move(initializers);
  model.inputs = {value_info("x", kFloat, {2, 3, 4})};
  model.outputs = {bytes(1, "y")};
  return model;
}

// Read beside w.bin, 64 bytes of 1.
inline Graph read_bytes(const std::string& file) {
  const ScratchFolder folder;
  folder.write("w.bin", std::string(64, '\1'));
  return read_onnx(folder.write("g.onnx", file));
}

}  // namespace transload::onnx_bytes
