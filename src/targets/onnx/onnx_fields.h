// Field numbers of onnx.proto: only the messages and fields that are written.
#pragma once

#include <protozero/types.hpp>

namespace transload::onnx_fields {

enum class Model : protozero::pbf_tag_type {
  ir_version = 1,
  producer_name = 2,
  producer_version = 3,
  graph = 7,
  opset_import = 8
};
enum class OperatorSet : protozero::pbf_tag_type { domain = 1, version = 2 };
enum class Graph : protozero::pbf_tag_type { node = 1, name = 2, initializer = 5, input = 11, output = 12, value_info = 13 };
enum class Node : protozero::pbf_tag_type { input = 1, output = 2, name = 3, op_type = 4, attribute = 5 };
enum class Attribute : protozero::pbf_tag_type { name = 1, f = 2, i = 3, s = 4, ints = 8, type = 20 };
enum class Tensor : protozero::pbf_tag_type {
  dims = 1,
  data_type = 2,
  name = 8,
  raw_data = 9,
  external_data = 13,
  data_location = 14
};
enum class StringEntry : protozero::pbf_tag_type { key = 1, value = 2 };
enum class ValueInfo : protozero::pbf_tag_type { name = 1, type = 2 };
enum class Type : protozero::pbf_tag_type { tensor_type = 1 };
enum class TensorType : protozero::pbf_tag_type { elem_type = 1, shape = 2 };
enum class TensorShape : protozero::pbf_tag_type { dim = 1 };
enum class Dimension : protozero::pbf_tag_type { dim_value = 1 };

// AttributeProto.AttributeType
inline constexpr int kAttributeFloat = 1;
inline constexpr int kAttributeInt = 2;
inline constexpr int kAttributeString = 3;
inline constexpr int kAttributeInts = 7;
// TensorProto.DataLocation
inline constexpr int kLocationExternal = 1;

}  // namespace transload::onnx_fields
