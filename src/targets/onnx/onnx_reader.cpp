// Makes a graph of a parsed model in two passes: names and which tensors are values, then constants and nodes with their types.
#include "targets/onnx/onnx_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "graph/names.h"
#include "graph/op_table.h"
#include "io/file.h"
#include "targets/onnx/onnx_constants.h"
#include "targets/onnx/onnx_lowering.h"
#include "targets/onnx/onnx_message.h"
#include "targets/onnx/onnx_raising.h"
#include "targets/onnx/onnx_writer.h"
#include "transload/error.h"

namespace transload {
namespace {

// Opset 17 came with IR 8; 4 was the first where initialisers need not be inputs; 14 is the newest known.
constexpr int64_t kMinIrVersion = 4;
constexpr int64_t kMaxIrVersion = 14;

[[noreturn]] void fail(ErrorCode code, const std::string& what, std::optional<uint64_t> offset = std::nullopt) {
  throw Error(code, what, {.file = {}, .tensor = {}, .offset = offset});
}

// The opset of the default domain. Others may be imported as long as no node is of their domain.
int read_opset(const onnx_message::Model& model) {
  if (model.ir_version < kMinIrVersion || model.ir_version > kMaxIrVersion) {
    fail(ErrorCode::bad_header,
         fmt::format("ir_version: got {}, expected {} to {}", model.ir_version, kMinIrVersion, kMaxIrVersion));
  }
  const onnx_message::OperatorSet* found = nullptr;
  for (const onnx_message::OperatorSet& set : model.opset_import) {
    if (!is_default_domain(set.domain)) continue;
    if (found != nullptr) fail(ErrorCode::bad_header, "opset of the default domain: got it twice, expected it once", set.offset);
    found = &set;
  }
  if (found == nullptr) fail(ErrorCode::bad_header, "opset of the default domain: got none, expected one");
  if (found->version < kMinOnnxOpset || found->version > kMaxOnnxOpset) {
    fail(ErrorCode::op_unsupported, fmt::format("opset: got {}, expected {} to {}", found->version, kMinOnnxOpset, kMaxOnnxOpset),
         found->offset);
  }
  return static_cast<int>(found->version);
}

// The rules of a graph are ours, but a file that breaks one is at fault itself: graph_invalid would call it a bug of the program.
template <typename Build>
auto holding_to_rules(std::optional<uint64_t> offset, Build build) {
  try {
    return build();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::graph_invalid) throw;
    throw Error(ErrorCode::bad_header, error.what(), {.file = {}, .tensor = {}, .offset = offset});
  }
}

struct DeclaredType {
  DType dtype;
  Shape shape;
};

std::string type_text(DType dtype, const Shape& shape) { return fmt::format("{}{}", dtype_name(dtype), shape_text(shape)); }

// Nothing when the file declares no type or no shape.
std::optional<DeclaredType> declared_type(const onnx_message::ValueInfo& info) {
  if (info.elem_type == 0 || !info.dims) return std::nullopt;
  const std::optional<DType> dtype = find_dtype_by_onnx_data_type(info.elem_type);
  if (!dtype) {
    fail(ErrorCode::dtype_unsupported,
         fmt::format("elem_type of '{}': got {}, expected that of f32, f16, i32, i64 or boolean", printable(info.name),
                     info.elem_type),
         info.offset);
  }
  Shape shape;
  for (const int64_t dim : *info.dims) {
    if (dim < 0) {
      fail(ErrorCode::shape_mismatch,
           fmt::format("dimension {} of '{}': got none, expected a number", shape.size(), printable(info.name)), info.offset);
    }
    shape.push_back(static_cast<uint64_t>(dim));
  }
  return DeclaredType{*dtype, std::move(shape)};
}

class GraphReader {
 public:
  GraphReader(const onnx_message::Model& model, std::string_view file, std::filesystem::path folder)
      : source_(model.graph), file_(file), opset_(read_opset(model)), constants_(std::move(folder)) {}

  Graph graph() {
    resolve_names();
    graph_.name = source_.name;
    if (!is_graph_name(graph_.name)) {
      fail(ErrorCode::bad_header,
           fmt::format("name of the graph: got '{}', expected {}", printable(graph_.name), kGraphNamePattern));
    }
    for (const onnx_message::ValueInfo& input : source_.inputs) add_input(input);
    for (const NamedTensor& tensor : tensors_) {
      if (!tensor.is_value) continue;
      const std::string name(tensor.name);
      add(tensor.name, graph_.add_constant(name, constants_.recipe(*tensor.message, name)));
    }
    for (const ResolvedNode& node : nodes_) add_node(node);
    for (const onnx_message::ValueInfo& output : source_.outputs) graph_.add_output(ids_.at(output.name));
    check_declared_types();
    holding_to_rules(std::nullopt, [&] { check_graph(graph_); });
    return std::move(graph_);
  }

 private:
  struct NamedTensor {
    std::string_view name;
    const onnx_message::Tensor* message;
    bool is_value = false;  // some node takes it as a value, or it is an output
  };
  struct ResolvedNode {
    const onnx_message::Node* message;
    const RaisingRow* row;
  };
  static constexpr size_t kNoTensor = ~size_t{0};

  // First pass: every name is well formed, defined once and before it is read.

  void define(std::string_view name, size_t tensor, uint64_t offset) {
    if (!is_graph_name(name)) {
      fail(ErrorCode::bad_header, fmt::format("name of a value: got '{}', expected {}", printable(name), kGraphNamePattern),
           offset);
    }
    if (!defined_.emplace(name, tensor).second) {
      fail(ErrorCode::duplicate_name, fmt::format("name of a value: got '{}' twice, expected it once", name), offset);
    }
  }

  void define_tensor(std::string_view name, const onnx_message::Tensor& tensor) {
    define(name, tensors_.size(), tensor.offset);
    tensors_.push_back({name, &tensor});
  }

  // Index into tensors_, or kNoTensor.
  size_t tensor_index(std::string_view name, const onnx_message::Node& node) const {
    if (const auto found = defined_.find(name); found != defined_.end()) return found->second;
    const bool later = std::any_of(source_.nodes.begin(), source_.nodes.end(), [&](const onnx_message::Node& other) {
      return std::find(other.outputs.begin(), other.outputs.end(), name) != other.outputs.end();
    });
    fail(ErrorCode::bad_header,
         fmt::format("operand of {}: got '{}', which {}, expected a value made before it", node_text(node), printable(name),
                     later ? "a later node makes" : "nothing makes"),
         node.offset);
  }

  void resolve_constant_node(const onnx_message::Node& node) {
    const auto refuse = [&](const std::string& what) {
      fail(ErrorCode::op_unsupported, fmt::format("{}: {}, expected one tensor as its attribute 'value'", node_text(node), what),
           node.offset);
    };
    if (!is_default_domain(node.domain)) refuse(fmt::format("got domain '{}'", printable(node.domain)));
    if (node.outputs.size() != 1 || !node.inputs.empty() || node.attributes.size() != 1) {
      refuse(fmt::format("got {} operands, {} outputs, {} attributes", node.inputs.size(), node.outputs.size(),
                         node.attributes.size()));
    }
    const onnx_message::Attribute& attribute = node.attributes.front();
    if (attribute.name != "value" || attribute.t.data() == nullptr) {
      refuse(fmt::format("got attribute '{}'", printable(attribute.name)));
    }
    constant_nodes_.push_back(onnx_message::parse_tensor(attribute.t, file_));
    define_tensor(node.outputs.front(), constant_nodes_.back());
  }

  void resolve_node(const onnx_message::Node& node) {
    if (node.op_type == "Constant") return resolve_constant_node(node);
    const RaisingRow& row = raising_row(node, opset_);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].empty()) continue;  // an optional operand that is absent
      const size_t index = tensor_index(node.inputs[i], node);
      if (i < row.value_operands && index != kNoTensor) tensors_[index].is_value = true;
    }
    define(node.outputs.front(), kNoTensor, node.offset);
    nodes_.push_back({&node, &row});
  }

  void resolve_names() {
    for (const onnx_message::ValueInfo& input : source_.inputs) define(input.name, kNoTensor, input.offset);
    for (const onnx_message::Tensor& tensor : source_.initializers) define_tensor(tensor.name, tensor);
    for (const onnx_message::Node& node : source_.nodes) resolve_node(node);
    for (const onnx_message::ValueInfo& output : source_.outputs) {
      const auto found = defined_.find(output.name);
      if (found == defined_.end()) {
        fail(ErrorCode::bad_header,
             fmt::format("output of the graph: got '{}', which nothing makes, expected the output of a node",
                         printable(output.name)),
             output.offset);
      }
      if (found->second != kNoTensor) tensors_[found->second].is_value = true;  // check_graph refuses it with its name
    }
  }

  // Second pass: values in order; later ones may rely on the rank and size of earlier ones.

  void add(std::string_view name, ValueId id) {
    const Value& value = graph_.value(id);
    if (value.shape.empty() || value.shape.size() > kMaxGraphRank) {
      fail(ErrorCode::shape_mismatch,
           fmt::format("rank of '{}': got {}, expected 1 to {}", name, value.shape.size(), kMaxGraphRank));
    }
    if (std::find(value.shape.begin(), value.shape.end(), 0) != value.shape.end()) {
      fail(ErrorCode::shape_mismatch,
           fmt::format("shape of '{}': got {}, expected no zero dimension", name, shape_text(value.shape)));
    }
    tensor_bytes(value.dtype, value.shape);  // throws when it does not fit
    ids_.emplace(name, id);
  }

  void add_input(const onnx_message::ValueInfo& input) {
    std::optional<DeclaredType> type = declared_type(input);
    if (!type) {
      fail(ErrorCode::shape_mismatch,
           fmt::format("type of input '{}': got none or one without a shape, expected a tensor of fixed shape", input.name),
           input.offset);
    }
    if (type->dtype == DType::boolean) {
      fail(ErrorCode::dtype_unsupported,
           fmt::format("type of input '{}': got boolean, expected f32, f16, i32 or i64", input.name), input.offset);
    }
    add(input.name, graph_.add_input(std::string(input.name), type->dtype, std::move(type->shape)));
  }

  // A tensor of the file that `node` takes at `index`, as integers.
  std::optional<std::vector<int64_t>> integer_operand(const onnx_message::Node& node, size_t index) {
    if (index >= node.inputs.size() || node.inputs[index].empty()) return std::nullopt;
    const std::string_view name = node.inputs[index];
    const size_t tensor = tensor_index(name, node);
    if (tensor == kNoTensor) {
      fail(ErrorCode::op_unsupported,
           fmt::format("operand {} of {}: got '{}', which is computed, expected a tensor stored in the file", index,
                       node_text(node), name));
    }
    return constants_.integers(*tensors_[tensor].message, name);
  }

  void add_node(const ResolvedNode& resolved) {
    const onnx_message::Node& node = *resolved.message;
    try {
      size_t count = std::min(resolved.row->value_operands, node.inputs.size());
      while (count > 0 && node.inputs[count - 1].empty()) --count;
      std::vector<ValueId> operands;
      std::vector<const Value*> values;
      for (const std::string_view name : std::span(node.inputs).first(count)) {
        if (name.empty()) fail(ErrorCode::bad_header, fmt::format("operand of {}: got none, expected a value", node_text(node)));
        operands.push_back(ids_.at(name));
        values.push_back(&graph_.value(operands.back()));
      }
      std::vector<Attribute> attributes =
          raise(*resolved.row, node, opset_, values, [&](size_t index) { return integer_operand(node, index); });
      const std::string_view output = node.outputs.front();
      const ValueId id = holding_to_rules(node.offset, [&] {
        return graph_.add_node(resolved.row->op, std::string(output), std::move(operands), std::move(attributes));
      });
      add(output, id);
    } catch (Error& error) {
      // A tensor that is an operand has its own offset, perhaps in another file.
      if (error.site().tensor.empty() && error.site().file.empty()) error.at({.file = {}, .tensor = {}, .offset = node.offset});
      throw;
    }
  }

  void check_declared_types() {
    std::unordered_set<std::string_view> seen;
    for (const auto* list : {&source_.outputs, &source_.value_info}) {
      for (const onnx_message::ValueInfo& info : *list) {
        if (list == &source_.value_info && !seen.insert(info.name).second) {
          fail(ErrorCode::duplicate_name,
               fmt::format("name of a declared type: got '{}' twice, expected it once", printable(info.name)), info.offset);
        }
        if (const auto found = ids_.find(info.name); found != ids_.end()) check_declared_type(info, graph_.value(found->second));
      }
    }
  }

  static void check_declared_type(const onnx_message::ValueInfo& info, const Value& value) {
    const std::optional<DeclaredType> declared = declared_type(info);
    if (!declared || (declared->dtype == value.dtype && declared->shape == value.shape)) return;
    fail(declared->shape == value.shape ? ErrorCode::dtype_mismatch : ErrorCode::shape_mismatch,
         fmt::format("declared type of '{}': got {}, expected {} as inferred", value.name,
                     type_text(declared->dtype, declared->shape), type_text(value.dtype, value.shape)),
         info.offset);
  }

  const onnx_message::Graph& source_;
  std::string_view file_;
  int opset_;
  OnnxConstants constants_;
  Graph graph_;
  std::deque<onnx_message::Tensor> constant_nodes_;
  std::vector<NamedTensor> tensors_;  // initialisers, then Constant nodes, in the order of the file
  std::vector<ResolvedNode> nodes_;
  std::unordered_map<std::string_view, size_t> defined_;  // index into tensors_, or kNoTensor
  std::unordered_map<std::string_view, ValueId> ids_;
};

}  // namespace

Graph read_onnx(const std::filesystem::path& path) {
  const std::shared_ptr<const InputFile> file = InputFile::open(path);
  try {
    if (file->size() > kMaxOnnxModelBytes) {
      fail(ErrorCode::bad_header,
           fmt::format("size of the graph: got {} bytes, expected at most {}", file->size(), kMaxOnnxModelBytes));
    }
    std::string bytes(file->size(), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(bytes)));
    const onnx_message::Model model = onnx_message::parse_model(bytes);
    return GraphReader(model, bytes, path.parent_path()).graph();
  } catch (Error& error) {
    error.at({.file = file->name(), .tensor = {}, .offset = std::nullopt});
    throw;
  }
}

}  // namespace transload
