// Field numbers of onnx.proto: the messages and fields that are written or read, and those that reading skips.
#pragma once

#include <protozero/types.hpp>

namespace transload::onnx_fields {

enum class Model : protozero::pbf_tag_type {
  ir_version = 1,
  producer_name = 2,
  producer_version = 3,
  domain = 4,
  model_version = 5,
  doc_string = 6,
  graph = 7,
  opset_import = 8,
  metadata_props = 14
};
enum class OperatorSet : protozero::pbf_tag_type { domain = 1, version = 2 };
enum class Graph : protozero::pbf_tag_type {
  node = 1,
  name = 2,
  initializer = 5,
  doc_string = 10,
  input = 11,
  output = 12,
  value_info = 13,
  metadata_props = 16
};
enum class Node : protozero::pbf_tag_type {
  input = 1,
  output = 2,
  name = 3,
  op_type = 4,
  attribute = 5,
  doc_string = 6,
  domain = 7,
  metadata_props = 9
};
enum class Attribute : protozero::pbf_tag_type { name = 1, f = 2, i = 3, s = 4, t = 5, ints = 8, doc_string = 13, type = 20 };
enum class Tensor : protozero::pbf_tag_type {
  dims = 1,
  data_type = 2,
  float_data = 4,
  int32_data = 5,
  int64_data = 7,
  name = 8,
  raw_data = 9,
  doc_string = 12,
  external_data = 13,
  data_location = 14,
  metadata_props = 16
};
enum class StringEntry : protozero::pbf_tag_type { key = 1, value = 2 };
enum class ValueInfo : protozero::pbf_tag_type { name = 1, type = 2, doc_string = 3, metadata_props = 4 };
enum class Type : protozero::pbf_tag_type { tensor_type = 1, denotation = 6 };
enum class TensorType : protozero::pbf_tag_type { elem_type = 1, shape = 2 };
enum class TensorShape : protozero::pbf_tag_type { dim = 1 };
enum class Dimension : protozero::pbf_tag_type { dim_value = 1, dim_param = 2, denotation = 3 };

// AttributeProto.AttributeType
inline constexpr int kAttributeFloat = 1;
inline constexpr int kAttributeInt = 2;
inline constexpr int kAttributeString = 3;
inline constexpr int kAttributeTensor = 4;
inline constexpr int kAttributeInts = 7;
// TensorProto.DataLocation
inline constexpr int kLocationInline = 0;
inline constexpr int kLocationExternal = 1;

}  // namespace transload::onnx_fields
