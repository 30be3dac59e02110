// Lowering: a recipe becomes a few rectangular fragments that say where each output element comes from, and a piece size.
#pragma once

#include <cstdint>
#include <vector>

#include "transload/recipe.h"

namespace transload {

// Values flow in fp32 from the leaf through these; the last rounding is that of the output type.
struct ElementStep {
  enum class Kind : uint8_t { affine, round };
  Kind kind = Kind::affine;
  float scale = 1;  // affine: value * scale + offset
  float offset = 0;
  DType dtype = DType::f32;  // round: f16 or bf16
  bool operator==(const ElementStep&) const = default;
};
using ElementSteps = std::vector<ElementStep>;

// out[out + r * out_row_stride + c] = steps(leaf[in + r * in_row_stride + c * in_column_stride]); all in elements, row-major.
struct Fragment {
  uint64_t out = 0;
  uint64_t rows = 1;
  uint64_t columns = 0;
  uint64_t out_row_stride = 0;
  uint64_t in = 0;
  uint64_t in_row_stride = 0;
  uint64_t in_column_stride = 1;
  uint32_t leaf = 0;   // index in LoweredTensor::leaves
  uint32_t steps = 0;  // index in LoweredTensor::steps
  uint64_t out_end() const { return out + (rows - 1) * out_row_stride + columns; }
};

struct PieceLimits {
  uint64_t piece_bytes = uint64_t{256} << 10;    // of output or of source, whichever is wider: stays in the L2 cache
  uint64_t band_bytes = uint64_t{10} << 20;      // of output, a band or a tile, where the source is read across its rows
  uint64_t band_read_bytes = uint64_t{2} << 10;  // what one of those reads should reach
  uint64_t staging_bytes = uint64_t{512} << 10;  // of one read that is converted on its way
};

// Where the bytes of a piece lie in its tensor: rows of `row_bytes`, `stride` bytes from one to the next.
struct Strips {
  uint64_t offset = 0;
  uint64_t rows = 1;
  uint64_t row_bytes = 0;
  uint64_t stride = 0;
  uint64_t bytes() const { return rows * row_bytes; }
};

// Pieces are contiguous ranges of the output, numbered in order; no table of them is kept. A matrix that is turned whole may be
// cut into tiles instead, each the same columns of every row: its source is read in order. One more piece, without elements
// of its own, makes the digest.
struct LoweredTensor {
  DType dtype = DType::f32;
  uint64_t elements = 0;
  uint64_t bytes = 0;
  std::vector<Recipe> leaves;
  std::vector<ElementSteps> steps;
  std::vector<Fragment> fragments;  // by `out`; together they cover every element once
  std::vector<uint64_t> reach;      // reach[i]: the furthest out_end() of fragments 0..i
  uint64_t piece_elements = 0;      // of the largest piece
  uint64_t piece_count = 0;
  uint64_t tile_columns = 0;  // 0: the pieces are ranges

  bool tiled() const { return tile_columns > 0; }
  uint64_t most_piece_bytes() const;
  uint64_t piece_begin(uint64_t piece) const { return piece * piece_elements; }
  uint64_t piece_end(uint64_t piece) const { return piece + 1 == piece_count ? elements : (piece + 1) * piece_elements; }
  Strips strips(uint64_t piece) const;  // not of the piece that makes the digest
};

// Throws internal for a recipe that quantizes, which quantize.h lowers.
LoweredTensor lower(const Recipe& recipe, const PieceLimits& limits = {});

// Bytes of `elements` values, a multiple of the block length for block types.
uint64_t packed_bytes(DType dtype, uint64_t elements);

}  // namespace transload
