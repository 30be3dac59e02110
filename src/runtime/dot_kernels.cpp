// The product kernels, compiled once for each instruction set and chosen at run time (Highway).
#include "runtime/dot_kernels.h"

#include <algorithm>
#include <cstring>

#include "runtime/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/dot_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks.
#include <hwy/highway.h>

#include "runtime/row_decoder-inl.h"

HWY_BEFORE_NAMESPACE();
namespace transload {
namespace HWY_NAMESPACE {

HWY_INLINE float sum_of(VF32 values) { return hn::GetLane(hn::SumOfLanes(F32(), values)); }

// The first `count` values, then zeros.
HWY_INLINE VF32 load_tail(const float* in, size_t count) {
  HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(tail, in, count * sizeof(float));
  return hn::Load(F32(), tail);
}
HWY_INLINE void store_tail(VF32 values, float* out, size_t count) {
  HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(values, F32(), tail);
  std::memcpy(out, tail, count * sizeof(float));
}

// Sink that multiplies with rows of x and adds up, in kSlots independent sums for each row to hide the latency of additions.
template <int kTokens>
struct DotSink {
  static constexpr int kSlots = kTokens <= 2 ? 4 : 2;
  const float* x;
  size_t x_stride;
  VF32 sums[kTokens][kSlots];

  HWY_INLINE DotSink(const float* first, size_t stride) : x(first), x_stride(stride) {
    for (auto& row : sums) {
      for (VF32& sum : row) sum = hn::Zero(F32());
    }
  }
  template <int kSlot>
  HWY_INLINE void take(VF32 values, size_t index) {
    for (int t = 0; t < kTokens; ++t) add<kSlot % kSlots>(t, values, hn::LoadU(F32(), x + t * x_stride + index));
  }
  HWY_INLINE void take_tail(VF32 values, size_t index, size_t count) {
    for (int t = 0; t < kTokens; ++t) add<1>(t, values, load_tail(x + t * x_stride + index, count));
  }
  HWY_INLINE float sum(int token) const {
    VF32 total = hn::Add(sums[token][0], sums[token][1]);
    if constexpr (kSlots == 4) total = hn::Add(total, hn::Add(sums[token][2], sums[token][3]));
    return sum_of(total);
  }

 private:
  template <int kSlot>
  HWY_INLINE void add(int token, VF32 values, VF32 factors) {
    sums[token][kSlot] = hn::MulAdd(values, factors, sums[token][kSlot]);
  }
};

// Sink that writes the values.
struct StoreSink {
  float* out;

  template <int kSlot>
  HWY_INLINE void take(VF32 values, size_t index) {
    hn::StoreU(values, F32(), out + index);
  }
  HWY_INLINE void take_tail(VF32 values, size_t index, size_t count) { store_tail(values, out + index, count); }
};

template <int kTokens>
HWY_NOINLINE void multiply_rows_of(const RowProduct& p, uint64_t begin, uint64_t end, uint64_t token) {
  const WeightMatrix& weight = *p.weight;
  for (uint64_t row = begin; row < end; ++row) {
    DotSink<kTokens> sink(p.x + token * weight.columns, weight.columns);
    decode_values(weight.dtype, weight.row(row), weight.columns, sink);
    const float bias = p.bias == nullptr ? 0.0F : p.bias[row];
    for (int t = 0; t < kTokens; ++t) p.out[(token + t) * weight.rows + row] = sink.sum(t) + bias;
  }
}

// Each count of tokens is a copy of all decoders: three of them are enough.
void MultiplyRows(const RowProduct& product, uint64_t begin, uint64_t end) {
  uint64_t token = 0;
  for (; token + 4 <= product.m; token += 4) multiply_rows_of<4>(product, begin, end, token);
  for (; token + 2 <= product.m; token += 2) multiply_rows_of<2>(product, begin, end, token);
  if (token < product.m) multiply_rows_of<1>(product, begin, end, token);
}

void DecodeRow(DType dtype, const std::byte* row, uint64_t count, float* out) {
  StoreSink sink{out};
  decode_values(dtype, row, count, sink);
}

float DotProduct(const float* a, const float* b, uint64_t count) {
  DotSink<1> sink(b, 0);
  decode_plain<PlainF32>(a, count, 0, sink);
  return sink.sum(0);
}

void AddScaled(float* y, const float* x, float scale, uint64_t count) {
  const size_t n = lanes();
  const VF32 scales = hn::Set(F32(), scale);
  uint64_t i = 0;
  for (; i + n <= count; i += n) {
    hn::StoreU(hn::MulAdd(scales, hn::LoadU(F32(), x + i), hn::LoadU(F32(), y + i)), F32(), y + i);
  }
  if (i < count) {
    const VF32 sum = hn::MulAdd(scales, load_tail(x + i, count - i), load_tail(y + i, count - i));
    store_tail(sum, y + i, count - i);
  }
}

// A tile's accumulators and operands fit the registers: 32 of AVX-512 and NEON, 16 elsewhere.
constexpr int kTileRows = 4;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kTileTokens = 6;
#else
constexpr int kTileTokens = 2;
#endif

template <int kRows, int kTokens>
HWY_INLINE void accumulate_tile(const VF32 (&w)[kRows], const VF32 (&x)[kTokens], VF32 (&sums)[kRows][kTokens]) {
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) sums[r][t] = hn::MulAdd(w[r], x[t], sums[r][t]);
  }
}

// Rows first..first + kRows - 1 with tokens token..token + kTokens - 1, vectors along the columns.
template <int kRows, int kTokens>
HWY_INLINE void tile(const TileProduct& p, uint64_t first, uint64_t token) {
  const F32 d;
  const size_t n = lanes();
  const float* weights = p.weights + first * p.weight_stride;
  const float* in = p.x + token * p.columns;
  VF32 sums[kRows][kTokens];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) sums[r][t] = hn::Zero(d);
  }
  VF32 w[kRows];
  VF32 x[kTokens];
  uint64_t i = 0;
  for (; i + n <= p.columns; i += n) {
    for (int r = 0; r < kRows; ++r) w[r] = hn::LoadU(d, weights + r * p.weight_stride + i);
    for (int t = 0; t < kTokens; ++t) x[t] = hn::LoadU(d, in + t * p.columns + i);
    accumulate_tile<kRows, kTokens>(w, x, sums);
  }
  if (i < p.columns) {
    const size_t left = p.columns - i;
    for (int r = 0; r < kRows; ++r) w[r] = load_tail(weights + r * p.weight_stride + i, left);
    for (int t = 0; t < kTokens; ++t) x[t] = load_tail(in + t * p.columns + i, left);
    accumulate_tile<kRows, kTokens>(w, x, sums);
  }
  for (int r = 0; r < kRows; ++r) {
    const float bias = p.bias == nullptr ? 0.0F : p.bias[first + r];
    for (int t = 0; t < kTokens; ++t) p.out[(token + t) * p.out_stride + first + r] = sum_of(sums[r][t]) + bias;
  }
}

template <int kTokens>
HWY_INLINE void tile_rows(const TileProduct& p, uint64_t token) {
  uint64_t row = 0;
  for (; row + kTileRows <= p.rows; row += kTileRows) tile<kTileRows, kTokens>(p, row, token);
  for (; row < p.rows; ++row) tile<1, kTokens>(p, row, token);
}

// The last tokens, fewer than kTokens + 1.
template <int kTokens>
HWY_INLINE void tile_last_tokens(const TileProduct& p, uint64_t token) {
  if constexpr (kTokens > 0) {
    if (p.m - token == kTokens) return tile_rows<kTokens>(p, token);
    tile_last_tokens<kTokens - 1>(p, token);
  }
}

void MultiplyTiles(const TileProduct& product) {
  uint64_t token = 0;
  for (; token + kTileTokens <= product.m; token += kTileTokens) tile_rows<kTileTokens>(product, token);
  tile_last_tokens<kTileTokens - 1>(product, token);
}

// kTokens rows of x with kVectors vectors of columns, along the rows of the weights.
template <int kTokens, int kVectors>
HWY_INLINE void column_tile(const ColumnProduct& p, uint64_t token, uint64_t column) {
  const F32 d;
  const size_t n = lanes();
  VF32 sums[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) sums[t][v] = hn::Zero(d);
  }
  for (uint64_t row = 0; row < p.rows; ++row) {
    VF32 w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = hn::LoadU(d, p.weights + row * p.weight_stride + column + v * n);
    for (int t = 0; t < kTokens; ++t) {
      const VF32 x = hn::Set(d, p.x[(token + t) * p.x_stride + row]);
      for (int v = 0; v < kVectors; ++v) sums[t][v] = hn::MulAdd(x, w[v], sums[t][v]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) {
      float* out = p.out + (token + t) * p.out_stride + column + v * n;
      const size_t left = p.columns - column - v * n;
      if (left >= n) {
        hn::StoreU(hn::Add(hn::LoadU(d, out), sums[t][v]), d, out);
      } else {
        store_tail(hn::Add(load_tail(out, left), sums[t][v]), out, left);
      }
    }
  }
}

template <int kTokens>
HWY_INLINE void column_tiles(const ColumnProduct& p, uint64_t token) {
  constexpr int kVectors = 2;
  const size_t n = lanes();
  uint64_t column = 0;
  for (; column + kVectors * n <= p.columns; column += kVectors * n) column_tile<kTokens, kVectors>(p, token, column);
  for (; column < p.columns; column += n) column_tile<kTokens, 1>(p, token, column);
}

void AddColumnProducts(const ColumnProduct& product) {
  uint64_t token = 0;
  for (; token + 4 <= product.m; token += 4) column_tiles<4>(product, token);
  for (; token < product.m; ++token) column_tiles<1>(product, token);
}

}  // namespace HWY_NAMESPACE
}  // namespace transload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload {

HWY_EXPORT(MultiplyRows);
HWY_EXPORT(DecodeRow);
HWY_EXPORT(DotProduct);
HWY_EXPORT(AddScaled);
HWY_EXPORT(MultiplyTiles);
HWY_EXPORT(AddColumnProducts);

void multiply_rows(const RowProduct& product, uint64_t begin, uint64_t end) {
  HWY_DYNAMIC_DISPATCH(MultiplyRows)(product, begin, end);
}
void decode_row(DType dtype, const std::byte* row, uint64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeRow)(dtype, row, count, out);
}
float dot_product(const float* a, const float* b, uint64_t count) { return HWY_DYNAMIC_DISPATCH(DotProduct)(a, b, count); }
void add_scaled(float* y, const float* x, float scale, uint64_t count) { HWY_DYNAMIC_DISPATCH(AddScaled)(y, x, scale, count); }
void multiply_tiles(const TileProduct& product) { HWY_DYNAMIC_DISPATCH(MultiplyTiles)(product); }
void add_column_products(const ColumnProduct& product) { HWY_DYNAMIC_DISPATCH(AddColumnProducts)(product); }

}  // namespace transload
#endif  // HWY_ONCE
