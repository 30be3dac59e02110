// Vector kernels of the products: stored rows with a few vectors, and tiles of fp32 rows. The order of each sum depends on the
// instruction set and the shapes alone.
#pragma once

#include <cstdint>

#include "runtime/weight_matrix.h"

namespace transload {

inline constexpr uint64_t kMostLanes = 16;  // floats of the longest vector

// Rows begin..end-1 of the weights with a few rows of x, decoded in registers: once for each 4, 2 or 1 rows of x.
struct RowProduct {
  const WeightMatrix* weight;
  const float* x;  // [m, columns]
  uint64_t m;
  const float* bias;  // [rows] or nullptr
  float* out;         // [m, rows]
};
void multiply_rows(const RowProduct& product, uint64_t begin, uint64_t end);

// Values of a row as f32, within one rounding of convert_to_f32; `count` is in whole blocks.
void decode_row(DType dtype, const std::byte* row, uint64_t count, float* out);

struct TileProduct {
  const float* weights;  // [rows, columns], `weight_stride` floats from row to row
  uint64_t weight_stride;
  uint64_t rows;
  const float* x;  // [m, columns]
  uint64_t m;
  uint64_t columns;
  const float* bias;  // [rows] or nullptr
  float* out;         // out[i * out_stride + row]
  uint64_t out_stride;
};
void multiply_tiles(const TileProduct& product);

// Whole vectors of weights are read: from each row up to kMostLanes - 1 floats past its last column, which must be readable and
// are of no effect, unless `columns` is a multiple of kMostLanes. Nothing else is touched past its end.
struct ColumnProduct {
  const float* x;  // [m, rows], `x_stride` floats from row to row
  uint64_t x_stride;
  uint64_t m;
  const float* weights;  // [rows, columns], `weight_stride` floats from row to row
  uint64_t weight_stride;
  uint64_t rows;
  uint64_t columns;
  float* out;  // [m, columns], `out_stride` floats from row to row; the product is added
  uint64_t out_stride;
};
void add_column_products(const ColumnProduct& product);

}  // namespace transload
