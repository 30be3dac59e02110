// Writes a Graph as an ONNX protobuf; large constants refer to an external file that the caller has laid out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "graph/graph.h"

namespace transload {

// A page, so that runtimes can map tensors in place.
inline constexpr uint64_t kExternalAlignment = 4096;
inline constexpr uint64_t kMaxOnnxModelBytes = uint64_t{64} << 20;  // of a serialised graph, without external data

struct ExternalTensor {
  std::string file;     // relative to the .onnx
  uint64_t offset = 0;  // in bytes; a multiple of kExternalAlignment
  uint64_t bytes = 0;
};

struct OnnxWriteOptions {
  int opset = 18;  // 17..23
  std::string producer_version;
  // Where a constant lies; nothing for those stored inline.
  std::function<std::optional<ExternalTensor>(const Value& constant)> external;
};

// The serialised ModelProto. IR version is the lowest that carries the opset. Integer operands of ONNX (axes, shapes, slice
// bounds) become small inline int64 initialisers. Throws op_unsupported when an op has no form at `opset`, format_limit above 64
// MiB.
std::string write_onnx(const Graph& graph, const OnnxWriteOptions& options);

}  // namespace transload
