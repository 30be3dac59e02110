// Parses protobuf field by field. Every read checks the wire type, because protozero does so only in debug builds.
#include "targets/onnx/onnx_message.h"

#include <fmt/format.h>

#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>

#include "targets/onnx/onnx_fields.h"
#include "transload/error.h"

namespace transload::onnx_message {
namespace {

namespace fields = onnx_fields;
using protozero::pbf_wire_type;

// Messages and texts of one file together. An empty message takes two bytes in the file and a hundred here.
constexpr uint64_t kMaxItems = uint64_t{1} << 20;
constexpr size_t kMaxExternalEntries = 16;  // three keys are known

// The serialised model, and how much of it has been taken in.
struct File {
  std::string_view bytes;
  uint64_t items = 0;

  uint64_t offset_of(const char* position) const { return static_cast<uint64_t>(position - bytes.data()); }

  void count_item(uint64_t offset) {
    if (++items <= kMaxItems) return;
    throw Error(ErrorCode::bad_header, fmt::format("messages and names: got {}, expected at most {}", items, kMaxItems),
                {.file = {}, .tensor = {}, .offset = offset});
  }
};

// The field that its reader stands at.
class Field {
 public:
  Field(protozero::pbf_reader& reader, File& file, std::string_view message)
      : reader_(reader), file_(file), message_(message), offset_(file.offset_of(reader.data().data())) {}

  bool next() {
    offset_ = file_.offset_of(reader_.data().data());
    taken_ = false;
    return reader_.next();
  }
  uint32_t number() const { return reader_.tag(); }
  uint64_t offset() const { return offset_; }
  bool taken() const { return taken_; }

  int64_t integer() {
    require_once();
    return any_integer();
  }
  float real() {
    require_once();
    require_wire_type(pbf_wire_type::fixed32);
    return reader_.get_float();
  }
  std::string_view bytes() {
    require_once();
    return any_bytes();
  }
  // One more of a repeated field.
  std::string_view next_bytes() {
    file_.count_item(offset_);
    return any_bytes();
  }
  void append_to(std::vector<int64_t>& values) {
    taken_ = true;
    if (!is_packed()) {
      values.push_back(any_integer());
      return;
    }
    for (const int64_t value : reader_.get_packed_int64()) values.push_back(value);
  }
  void append_to(std::vector<float>& values) {
    taken_ = true;
    if (!is_packed()) {
      require_wire_type(pbf_wire_type::fixed32);
      values.push_back(reader_.get_float());
      return;
    }
    for (const float value : reader_.get_packed_float()) values.push_back(value);
  }
  void skip() {
    taken_ = true;
    reader_.skip();
  }

  [[noreturn]] void fail(ErrorCode code, const std::string& what) const {
    throw Error(code, what, {.file = {}, .tensor = {}, .offset = offset_});
  }

 private:
  bool is_packed() const { return reader_.has_wire_type(pbf_wire_type::length_delimited); }

  int64_t any_integer() {
    require_wire_type(pbf_wire_type::varint);
    return reader_.get_int64();
  }
  std::string_view any_bytes() {
    require_wire_type(pbf_wire_type::length_delimited);
    const protozero::data_view view = reader_.get_view();
    return {view.data(), view.size()};
  }

  void require_wire_type(pbf_wire_type expected) {
    taken_ = true;
    if (reader_.has_wire_type(expected)) return;
    fail(ErrorCode::bad_header, fmt::format("wire type of field {} of {}: got {}, expected {}", number(), message_,
                                            static_cast<uint32_t>(reader_.wire_type()), static_cast<uint32_t>(expected)));
  }
  // Protobuf lets the last value win or merges messages; files that rely on it are broken or crafted.
  void require_once() {
    const uint64_t bit = number() < 64 ? uint64_t{1} << number() : 0;
    if ((seen_ & bit) != 0) {
      fail(ErrorCode::bad_header, fmt::format("field {} of {}: got it twice, expected it once", number(), message_));
    }
    seen_ |= bit;
  }

  protozero::pbf_reader& reader_;
  File& file_;
  std::string_view message_;
  uint64_t offset_;
  bool taken_ = false;
  uint64_t seen_ = 0;  // bit n: field n was read
};

// Calls read(number of the field, field) for each field of a message. A field that it leaves alone is refused.
template <typename Number, typename Read>
void read_message(std::string_view bytes, File& file, std::string_view message, Read read) {
  protozero::pbf_reader reader(bytes.data(), bytes.size());
  Field field(reader, file, message);
  file.count_item(field.offset());
  try {
    while (field.next()) {
      read(static_cast<Number>(field.number()), field);
      if (field.taken()) continue;
      field.fail(ErrorCode::op_unsupported,
                 fmt::format("field of {}: got number {}, expected one that a decode graph has", message, field.number()));
    }
  } catch (const protozero::exception& error) {
    field.fail(ErrorCode::bad_header, fmt::format("{}: got {}, expected a whole field", message, error.what()));
  }
}

std::pair<std::string_view, std::string_view> read_string_entry(std::string_view bytes, File& file) {
  std::pair<std::string_view, std::string_view> entry;
  read_message<fields::StringEntry>(bytes, file, "StringStringEntryProto", [&](fields::StringEntry number, Field& field) {
    switch (number) {
      case fields::StringEntry::key:
        entry.first = field.bytes();
        break;
      case fields::StringEntry::value:
        entry.second = field.bytes();
        break;
    }
  });
  return entry;
}

bool read_location(Field& field) {
  const int64_t location = field.integer();
  if (location != fields::kLocationInline && location != fields::kLocationExternal) {
    field.fail(ErrorCode::bad_header, fmt::format("data_location: got {}, expected {} or {}", location, fields::kLocationInline,
                                                  fields::kLocationExternal));
  }
  return location == fields::kLocationExternal;
}

Tensor read_tensor(std::string_view bytes, File& file) {
  Tensor tensor;
  tensor.offset = file.offset_of(bytes.data());
  read_message<fields::Tensor>(bytes, file, "TensorProto", [&](fields::Tensor number, Field& field) {
    switch (number) {
      case fields::Tensor::dims:
        field.append_to(tensor.dims);
        break;
      case fields::Tensor::data_type:
        tensor.data_type = field.integer();
        break;
      case fields::Tensor::float_data:
        field.append_to(tensor.float_data);
        break;
      case fields::Tensor::int32_data:
        field.append_to(tensor.int32_data);
        break;
      case fields::Tensor::int64_data:
        field.append_to(tensor.int64_data);
        break;
      case fields::Tensor::name:
        tensor.name = field.bytes();
        break;
      case fields::Tensor::raw_data:
        tensor.raw_data = field.bytes();
        break;
      case fields::Tensor::external_data:
        if (tensor.external_data.size() == kMaxExternalEntries)
          field.fail(ErrorCode::bad_header,
                     fmt::format("external_data: got more than {} entries, expected 3", kMaxExternalEntries));
        tensor.external_data.push_back(read_string_entry(field.next_bytes(), file));
        break;
      case fields::Tensor::data_location:
        tensor.external = read_location(field);
        break;
      case fields::Tensor::doc_string:
      case fields::Tensor::metadata_props:
        field.skip();
        break;
    }
  });
  return tensor;
}

// Which field of AttributeProto holds the value of an attribute of this type.
std::optional<fields::Attribute> value_field(int64_t type) {
  switch (type) {
    case fields::kAttributeFloat:
      return fields::Attribute::f;
    case fields::kAttributeInt:
      return fields::Attribute::i;
    case fields::kAttributeString:
      return fields::Attribute::s;
    case fields::kAttributeTensor:
      return fields::Attribute::t;
    case fields::kAttributeInts:
      return fields::Attribute::ints;
    default:
      return std::nullopt;
  }
}

Attribute read_attribute(std::string_view bytes, File& file) {
  Attribute attribute;
  attribute.offset = file.offset_of(bytes.data());
  std::vector<fields::Attribute> values;  // the fields that hold one
  const auto value = [&](fields::Attribute number) {
    if (values.empty() || values.back() != number) values.push_back(number);
  };
  read_message<fields::Attribute>(bytes, file, "AttributeProto", [&](fields::Attribute number, Field& field) {
    switch (number) {
      case fields::Attribute::name:
        attribute.name = field.bytes();
        break;
      case fields::Attribute::f:
        attribute.f = field.real();
        value(number);
        break;
      case fields::Attribute::i:
        attribute.i = field.integer();
        value(number);
        break;
      case fields::Attribute::s:
        attribute.s = field.bytes();
        value(number);
        break;
      case fields::Attribute::t:
        attribute.t = field.bytes();
        value(number);
        break;
      case fields::Attribute::ints:
        field.append_to(attribute.ints);
        value(number);
        break;
      case fields::Attribute::type:
        attribute.type = field.integer();
        break;
      case fields::Attribute::doc_string:
        field.skip();
        break;
    }
  });
  const std::optional<fields::Attribute> expected = value_field(attribute.type);
  const auto fail = [&](ErrorCode code, const std::string& what) {
    throw Error(code, what, {.file = {}, .tensor = {}, .offset = attribute.offset});
  };
  if (!expected) {
    fail(ErrorCode::op_unsupported,
         fmt::format("type of an attribute: got {}, expected a number, a text, a tensor or integers", attribute.type));
  }
  // An empty list and, in some serialisations, a zero leave no field behind.
  for (const fields::Attribute number : values) {
    if (number == *expected) continue;
    fail(ErrorCode::bad_header, fmt::format("value of an attribute of type {}: got field {}, expected field {}", attribute.type,
                                            static_cast<uint32_t>(number), static_cast<uint32_t>(*expected)));
  }
  return attribute;
}

Node read_node(std::string_view bytes, File& file) {
  Node node;
  node.offset = file.offset_of(bytes.data());
  read_message<fields::Node>(bytes, file, "NodeProto", [&](fields::Node number, Field& field) {
    switch (number) {
      case fields::Node::input:
        node.inputs.push_back(field.next_bytes());
        break;
      case fields::Node::output:
        node.outputs.push_back(field.next_bytes());
        break;
      case fields::Node::name:
        node.name = field.bytes();
        break;
      case fields::Node::op_type:
        node.op_type = field.bytes();
        break;
      case fields::Node::attribute:
        node.attributes.push_back(read_attribute(field.next_bytes(), file));
        break;
      case fields::Node::domain:
        node.domain = field.bytes();
        break;
      case fields::Node::doc_string:
      case fields::Node::metadata_props:
        field.skip();
        break;
    }
  });
  return node;
}

int64_t read_dimension(std::string_view bytes, File& file) {
  int64_t value = -1;
  read_message<fields::Dimension>(bytes, file, "TensorShapeProto.Dimension", [&](fields::Dimension number, Field& field) {
    switch (number) {
      case fields::Dimension::dim_value:
        value = field.integer();
        if (value < 0) field.fail(ErrorCode::bad_header, fmt::format("dim_value: got {}, expected no negative number", value));
        break;
      case fields::Dimension::dim_param:
      case fields::Dimension::denotation:
        field.skip();
        break;
    }
  });
  return value;
}

std::vector<int64_t> read_shape(std::string_view bytes, File& file) {
  std::vector<int64_t> dims;
  read_message<fields::TensorShape>(bytes, file, "TensorShapeProto", [&](fields::TensorShape number, Field& field) {
    switch (number) {
      case fields::TensorShape::dim:
        dims.push_back(read_dimension(field.next_bytes(), file));
        break;
    }
  });
  return dims;
}

void read_type(std::string_view bytes, File& file, ValueInfo& info) {
  const auto read_tensor_type = [&](fields::TensorType number, Field& field) {
    switch (number) {
      case fields::TensorType::elem_type:
        info.elem_type = field.integer();
        break;
      case fields::TensorType::shape:
        info.dims = read_shape(field.bytes(), file);
        break;
    }
  };
  read_message<fields::Type>(bytes, file, "TypeProto", [&](fields::Type number, Field& field) {
    switch (number) {
      case fields::Type::tensor_type:
        read_message<fields::TensorType>(field.bytes(), file, "TypeProto.Tensor", read_tensor_type);
        break;
      case fields::Type::denotation:
        field.skip();
        break;
    }
  });
}

ValueInfo read_value_info(std::string_view bytes, File& file) {
  ValueInfo info;
  info.offset = file.offset_of(bytes.data());
  read_message<fields::ValueInfo>(bytes, file, "ValueInfoProto", [&](fields::ValueInfo number, Field& field) {
    switch (number) {
      case fields::ValueInfo::name:
        info.name = field.bytes();
        break;
      case fields::ValueInfo::type:
        read_type(field.bytes(), file, info);
        break;
      case fields::ValueInfo::doc_string:
      case fields::ValueInfo::metadata_props:
        field.skip();
        break;
    }
  });
  return info;
}

Graph read_graph(std::string_view bytes, File& file) {
  Graph graph;
  read_message<fields::Graph>(bytes, file, "GraphProto", [&](fields::Graph number, Field& field) {
    switch (number) {
      case fields::Graph::node:
        graph.nodes.push_back(read_node(field.next_bytes(), file));
        break;
      case fields::Graph::name:
        graph.name = field.bytes();
        break;
      case fields::Graph::initializer:
        graph.initializers.push_back(read_tensor(field.next_bytes(), file));
        break;
      case fields::Graph::input:
        graph.inputs.push_back(read_value_info(field.next_bytes(), file));
        break;
      case fields::Graph::output:
        graph.outputs.push_back(read_value_info(field.next_bytes(), file));
        break;
      case fields::Graph::value_info:
        graph.value_info.push_back(read_value_info(field.next_bytes(), file));
        break;
      case fields::Graph::doc_string:
      case fields::Graph::metadata_props:
        field.skip();
        break;
    }
  });
  return graph;
}

OperatorSet read_operator_set(std::string_view bytes, File& file) {
  OperatorSet set;
  set.offset = file.offset_of(bytes.data());
  read_message<fields::OperatorSet>(bytes, file, "OperatorSetIdProto", [&](fields::OperatorSet number, Field& field) {
    switch (number) {
      case fields::OperatorSet::domain:
        set.domain = field.bytes();
        break;
      case fields::OperatorSet::version:
        set.version = field.integer();
        break;
    }
  });
  return set;
}

}  // namespace

Model parse_model(std::string_view bytes) {
  File file{bytes};
  Model model;
  read_message<fields::Model>(bytes, file, "ModelProto", [&](fields::Model number, Field& field) {
    switch (number) {
      case fields::Model::ir_version:
        model.ir_version = field.integer();
        break;
      case fields::Model::graph:
        model.graph = read_graph(field.bytes(), file);
        break;
      case fields::Model::opset_import:
        model.opset_import.push_back(read_operator_set(field.next_bytes(), file));
        break;
      case fields::Model::producer_name:
      case fields::Model::producer_version:
      case fields::Model::domain:
      case fields::Model::model_version:
      case fields::Model::doc_string:
      case fields::Model::metadata_props:
        field.skip();
        break;
    }
  });
  return model;
}

Tensor parse_tensor(std::string_view tensor, std::string_view bytes) {
  File file{bytes};
  return read_tensor(tensor, file);
}

}  // namespace transload::onnx_message
