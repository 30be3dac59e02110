// Products with weight matrices in their stored dtype: fp32 arithmetic, fused conversion, all workers.
#pragma once

#include <cstdint>
#include <span>

#include "base/worker_pool.h"
#include "runtime/weight_matrix.h"

namespace transload {

// out[m, rows] = x[m, columns] weight^T + bias; `bias` [rows] or nullptr. One row of x is a matrix-vector product; several share
// each converted block of weight rows. `out` does not overlap `x`. Sums are fp32; their order does not depend on the number of
// workers, so results do not either.
void multiply_transposed(WorkerPool& pool, const float* x, uint64_t m, const WeightMatrix& weight, const float* bias, float* out);

// out[m, n] = x[m, k] weight[k, n], for weights stored [in, out].
void multiply(WorkerPool& pool, const float* x, uint64_t m, const WeightMatrix& weight, float* out);

// One row as f32: an embedding.
void read_row(const WeightMatrix& weight, uint64_t row, float* out);

// For attention, over f32 in memory.
float dot_product(const float* a, const float* b, uint64_t count);
void add_scaled(float* y, const float* x, float scale, uint64_t count);  // y += scale * x

}  // namespace transload
