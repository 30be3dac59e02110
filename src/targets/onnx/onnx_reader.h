// Reads an ONNX file back into a Graph: the operators this project writes, at any opset it writes; anything else is refused by
// name.
#pragma once

#include <filesystem>

#include "graph/graph.h"

namespace transload {

// External tensors become constants that are `source` recipes into the file they name, a plain name beside the .onnx; inline ones
// become constants of their values. Tensors that no operator takes as a value (axes, shapes, unused ones) do not appear. Other
// spellings of the same graph are read, too: typed lists instead of raw bytes, Constant nodes, defaults left out, negative axes,
// any topological order. Input is hostile: sizes, offsets and names are validated, and check_graph has passed.
// Declared types of inputs, outputs and intermediate values must be those inferred. Throws Error: file_missing, bad_header (not
// a protobuf, a broken field, a graph that breaks a rule of ONNX or of check_graph), op_unsupported (names operator and node),
// dtype_unsupported, bad_offset (external data outside its file), shape_mismatch, dtype_mismatch, duplicate_name, size_overflow,
// io_failure.
Graph read_onnx(const std::filesystem::path& path);

}  // namespace transload
