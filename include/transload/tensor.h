// Dense row-major tensors in memory, as a graph takes and gives them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "transload/dtype.h"

namespace transload {

// Bytes that somebody else owns. `bytes` is exactly tensor_bytes(dtype, shape), aligned to its elements.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;
};

struct Tensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;

  TensorView view() const { return {name, dtype, shape, bytes}; }
};

}  // namespace transload
