// Splits products over the workers and over blocks that stay in the caches; the arithmetic is in dot_kernels.cpp.
#include "runtime/matmul.h"

#include <algorithm>
#include <vector>

#include "runtime/dot_kernels.h"
#include "weights/convert.h"

namespace transload {
namespace {

constexpr uint64_t kRowGrain = 32;      // weight rows a worker takes at a time
constexpr uint64_t kDecodedTokens = 4;  // up to here decoding in registers costs less than converting a block first
constexpr uint64_t kFewTokens = 8;      // up to here a converted block is read too few times to be worth the way to L2
constexpr uint64_t kL1Floats = 4 << 10;
constexpr uint64_t kL2Floats = 64 << 10;
constexpr uint64_t kColumnBlock = 128;  // with kRowChunk: 32 KiB of converted weights
constexpr uint64_t kRowChunk = 64;
constexpr uint64_t kFloatsOfLine = 16;  // of a cache line
// A block of columns is whole vectors, so what add_column_products reads past the columns stays inside its row of scratch.
static_assert(kColumnBlock % kMostLanes == 0);

// fp32 memory of a worker; it stays for the next product.
float* scratch(uint64_t count) {
  thread_local std::vector<float> values;
  if (values.size() < count + kFloatsOfLine) values.resize(count + kFloatsOfLine);
  const auto address = reinterpret_cast<uintptr_t>(values.data()) / sizeof(float);
  return values.data() + (kFloatsOfLine - address % kFloatsOfLine) % kFloatsOfLine;
}

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

void read_row(const WeightMatrix& weight, uint64_t row, float* out) {
  convert_to_f32(weight.dtype, weight.row(row), weight.columns, out);
}

void multiply_transposed(WorkerPool& pool, const float* x, uint64_t m, const WeightMatrix& weight, const float* bias,
                         float* out) {
  if (m == 0) return;
  if (m <= kDecodedTokens) {
    const RowProduct product{.weight = &weight, .x = x, .m = m, .bias = bias, .out = out};
    return pool.run(weight.rows, kRowGrain, [&](uint64_t begin, uint64_t end, uint32_t) { multiply_rows(product, begin, end); });
  }
  const uint64_t stride = round_up(weight.columns, kFloatsOfLine);
  const uint64_t fit = (m <= kFewTokens ? kL1Floats : kL2Floats) / std::max<uint64_t>(stride, 1);
  const uint64_t block = std::clamp<uint64_t>(fit / 4 * 4, 4, 64);
  const uint64_t blocks = (weight.rows + block - 1) / block;
  const uint64_t grain = std::max<uint64_t>(1, kRowGrain / block);
  pool.run(blocks, grain, [&](uint64_t begin, uint64_t end, uint32_t) {
    float* values = scratch(block * stride);
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t first = i * block;
      const uint64_t rows = std::min(block, weight.rows - first);
      for (uint64_t row = 0; row < rows; ++row) {
        decode_row(weight.dtype, weight.row(first + row), weight.columns, values + row * stride);
      }
      multiply_tiles({.weights = values,
                      .weight_stride = stride,
                      .rows = rows,
                      .x = x,
                      .m = m,
                      .columns = weight.columns,
                      .bias = bias == nullptr ? nullptr : bias + first,
                      .out = out + first,
                      .out_stride = weight.rows});
    }
  });
}

void multiply(WorkerPool& pool, const float* x, uint64_t m, const WeightMatrix& weight, float* out) {
  if (m == 0) return;
  const DTypeInfo& info = dtype_info(weight.dtype);
  const uint64_t block = std::max<uint64_t>(kColumnBlock, info.block_elements);
  const uint64_t blocks = (weight.columns + block - 1) / block;
  pool.run(blocks, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
    float* values = scratch(kRowChunk * block);
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t column = i * block;
      const uint64_t columns = std::min(block, weight.columns - column);
      const uint64_t offset = column / info.block_elements * info.block_bytes;
      for (uint64_t token = 0; token < m; ++token) std::fill_n(out + token * weight.columns + column, columns, 0.0F);
      for (uint64_t first = 0; first < weight.rows; first += kRowChunk) {
        const uint64_t rows = std::min(kRowChunk, weight.rows - first);
        for (uint64_t row = 0; row < rows; ++row) {
          decode_row(weight.dtype, weight.row(first + row) + offset, columns, values + row * block);
        }
        add_column_products({.x = x + first,
                             .x_stride = weight.rows,
                             .m = m,
                             .weights = values,
                             .weight_stride = block,
                             .rows = rows,
                             .columns = columns,
                             .out = out + column,
                             .out_stride = weight.columns});
      }
    }
  });
}

}  // namespace transload
