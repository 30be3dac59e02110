// Tensors of an ONNX file as recipes (constants of the graph) and as integers (axes, shapes, slice bounds).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "targets/onnx/onnx_message.h"
#include "transload/recipe.h"

namespace transload {

// Opens each external file once. Not thread-safe.
class OnnxConstants {
 public:
  // `folder` holds the external files.
  explicit OnnxConstants(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // `name`: of the value; a tensor inside a node has its own. Both throw Error naming the tensor: dtype_unsupported,
  // shape_mismatch (rank, a zero dimension, values that do not fill the shape), bad_header (external data without a plain place),
  // bad_offset, file_missing, size_overflow, io_failure.
  Recipe recipe(const onnx_message::Tensor& tensor, std::string_view name);
  // Of a tensor of rank 1, i64 or i32, of at most 64 elements.
  std::vector<int64_t> integers(const onnx_message::Tensor& tensor, std::string_view name);

 private:
  const std::shared_ptr<const InputFile>& external_file(std::string_view location);
  TensorInfo external_place(const onnx_message::Tensor& tensor, std::string_view name, DType dtype, const Shape& shape);

  std::filesystem::path folder_;
  std::map<std::string, std::shared_ptr<const InputFile>, std::less<>> files_;
};

}  // namespace transload
