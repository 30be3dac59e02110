// Ops that multiply matrices. Sums are fp32; a bias is added before the one rounding to f16, as accelerators that keep a wide
// accumulator do.
#include <algorithm>

#include "runtime/dot_kernels.h"
#include "runtime/interpreter_ops.h"
#include "runtime/matmul.h"

namespace transload {
namespace {

// out[m, n] = x[m, k] weight[n, k]^T + bias, the weight mapped or in memory.
void multiply_by_weight(const OpCall& call, const float* x, uint64_t m, uint64_t k, uint64_t n, float* out) {
  const ValueArray& weight = *call.operands[1];
  const float* const bias = call.operands.size() == 3 ? call.operands[2]->floats : nullptr;
  if (weight.matrix != nullptr) return multiply_transposed(call.pool, x, m, *weight.matrix, bias, out);
  run_ranges(call.pool, n, std::max<uint64_t>(1, 32768 / (m * k)), [&](uint64_t begin, uint64_t end) {
    for (uint64_t column = begin; column < end; ++column) {
      for (uint64_t row = 0; row < m; ++row) {
        const float sum = dot_product(x + row * k, weight.floats + column * k, k);
        out[row * n + column] = bias == nullptr ? sum : sum + bias[column];
      }
    }
  });
}

// One product of a batch.
struct MatrixProduct {
  const float* a;  // [m, k]
  const float* b;  // [k, n], or [n, k] when turned
  float* out;      // [m, n]
  uint64_t k;
  uint64_t n;
};

// A block of the output. Its rows of `b`, kDepth at a time, stay in the second cache level.
struct OutputBlock {
  uint64_t row;
  uint64_t rows;
  uint64_t column;
  uint64_t columns;
};
constexpr uint64_t kRows = 64;
constexpr uint64_t kColumns = 256;
constexpr uint64_t kMinColumns = 64;
constexpr uint64_t kDepth = 64;

void multiply_block(const MatrixProduct& p, const OutputBlock& block) {
  const uint64_t end = block.row + block.rows;
  for (uint64_t row = block.row; row < end; ++row) std::fill_n(p.out + row * p.n + block.column, block.columns, 0.0F);
  // Past the last value of `b` there may be nothing to read, so the rest of the columns goes one by one.
  const uint64_t whole = block.columns / kMostLanes * kMostLanes;
  for (uint64_t first = 0; first < p.k; first += kDepth) {
    const uint64_t depth = std::min(kDepth, p.k - first);
    add_column_products({.x = p.a + block.row * p.k + first,
                         .x_stride = p.k,
                         .m = block.rows,
                         .weights = p.b + first * p.n + block.column,
                         .weight_stride = p.n,
                         .rows = depth,
                         .columns = whole,
                         .out = p.out + block.row * p.n + block.column,
                         .out_stride = p.n});
    if (whole == block.columns) continue;
    for (uint64_t row = block.row; row < end; ++row) {
      float* const out = p.out + row * p.n + block.column + whole;
      for (uint64_t i = first; i < first + depth; ++i) {
        add_scaled(out, p.b + i * p.n + block.column + whole, p.a[row * p.k + i], block.columns - whole);
      }
    }
  }
}

void multiply_turned_block(const MatrixProduct& p, const OutputBlock& block) {
  multiply_tiles({.weights = p.b + block.column * p.k,
                  .weight_stride = p.k,
                  .rows = block.columns,
                  .x = p.a + block.row * p.k,
                  .m = block.rows,
                  .columns = p.k,
                  .bias = nullptr,
                  .out = p.out + block.row * p.n + block.column,
                  .out_stride = p.n});
}

}  // namespace

ValueArray run_gemm(const OpCall& call) {
  const Value& output = call.output();
  const uint64_t m = output.shape[0];
  const uint64_t n = output.shape[1];
  NewValue<float> out = new_value<float>(call.memory, m * n);
  multiply_by_weight(call, call.operands[0]->floats, m, call.input(0).shape[1], n, out.data);
  round_values(call.pool, output.dtype, out.data, m * n);
  return out.array;
}

// The weight is applied to every column of the image: columns become rows and the product is turned back.
ValueArray run_conv1x1(const OpCall& call) {
  const Value& output = call.output();
  const uint64_t in = call.input(0).shape[1];
  const uint64_t width = output.shape[3];
  const uint64_t out_count = output.shape[1];
  NewValue<float> out = new_value<float>(call.memory, out_count * width);
  if (width == 1) {
    multiply_by_weight(call, call.operands[0]->floats, 1, in, out_count, out.data);
  } else {
    const NewValue<float> rows = new_value<float>(call.memory, width * in);
    const NewValue<float> product = new_value<float>(call.memory, width * out_count);
    transpose_plane(call.operands[0]->floats, width, rows.data, in, in, width);
    multiply_by_weight(call, rows.data, width, in, out_count, product.data);
    transpose_plane(product.data, out_count, out.data, width, width, out_count);
  }
  round_values(call.pool, output.dtype, out.data, out_count * width);
  return out.array;
}

ValueArray run_matmul(const OpCall& call) {
  const Value& output = call.output();
  const Shape& a = call.input(0).shape;
  const Shape& b = call.input(1).shape;
  const uint64_t m = a[a.size() - 2];
  const uint64_t k = a.back();
  const uint64_t n = b.back();
  const uint64_t count = element_count(output.shape);
  NewValue<float> out = new_value<float>(call.memory, count);

  if (const WeightMatrix* matrix = call.operands[1]->matrix) {
    multiply(call.pool, call.operands[0]->floats, count / n, *matrix, out.data);
    round_values(call.pool, output.dtype, out.data, count);
    return out.array;
  }
  const auto leading = [](const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); };
  const std::vector<LoopAxis> batches = broadcast_axes(leading(output.shape), leading(a), leading(b));
  const uint64_t batch_count = count / (m * n);
  const uint64_t row_blocks = (m + kRows - 1) / kRows;
  uint64_t columns = kColumns;
  while (columns > kMinColumns && batch_count * row_blocks * ((n + columns - 1) / columns) < 2 * call.pool.size()) columns /= 2;
  const uint64_t column_blocks = (n + columns - 1) / columns;

  const uint64_t block_cost = std::min(m, kRows) * std::min(n, columns) * k;
  const uint64_t grain = std::max<uint64_t>(1, 131072 / block_cost);
  run_ranges(call.pool, batch_count * row_blocks * column_blocks, grain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t batch = i / (row_blocks * column_blocks);
      const Steps start = steps_at(batches, batch);
      const uint64_t row = i / column_blocks % row_blocks * kRows;
      const uint64_t column = i % column_blocks * columns;
      const auto multiply_one = call.operands[1]->turned ? multiply_turned_block : multiply_block;
      multiply_one({.a = call.operands[0]->floats + start.a * m * k,
                    .b = call.operands[1]->floats + start.b * k * n,
                    .out = out.data + batch * m * n,
                    .k = k,
                    .n = n},
                   {.row = row, .rows = std::min(kRows, m - row), .column = column, .columns = std::min(columns, n - column)});
    }
  });
  round_values(call.pool, output.dtype, out.data, count);
  return out.array;
}

}  // namespace transload
