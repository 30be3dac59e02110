// Dequantisation of GGUF blocks to f32, bit-exact with the Python package `gguf`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transload/dtype.h"

namespace transload {

// Decodes `block_count` consecutive blocks of a block dtype; `out` holds block_count * block_elements values. Throws internal for
// a scalar dtype. A scale that is infinite or NaN in the file gives values that are.
void dequantize(DType dtype, const std::byte* blocks, uint64_t block_count, float* out);

}  // namespace transload
