// Vector kernels over blocks that lie in the cache: float conversions with counts, NaN scans, scale and offset, transposition.
// Results are bit for bit those of base/half.h on every instruction set. Pointers need only their element's alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace transload {

struct NumericCounts {
  uint64_t overflow = 0;  // finite values that became infinite in f16
  uint64_t nan = 0;

  NumericCounts& operator+=(const NumericCounts& other) {
    overflow += other.overflow;
    nan += other.nan;
    return *this;
  }
  bool operator==(const NumericCounts&) const = default;
};

// `in` and `out` of one width may be the same address; otherwise they do not overlap.
void convert_bf16_to_f32(const uint16_t* in, float* out, size_t count);
void convert_f16_to_f32(const uint16_t* in, float* out, size_t count);
NumericCounts convert_f32_to_f16(const float* in, uint16_t* out, size_t count);
NumericCounts convert_f32_to_bf16(const float* in, uint16_t* out, size_t count);
NumericCounts convert_bf16_to_f16(const uint16_t* in, uint16_t* out, size_t count);
NumericCounts convert_f16_to_bf16(const uint16_t* in, uint16_t* out, size_t count);

uint64_t count_nan_f32(const float* values, size_t count);
uint64_t count_nan_f16(const uint16_t* values, size_t count);
uint64_t count_nan_bf16(const uint16_t* values, size_t count);

// values[i] = values[i] * scale + offset, rounded twice.
void scale_and_offset(float* values, size_t count, float scale, float offset);

// out[c * out_stride + r] = in[r * in_stride + c] for r < rows, c < columns; strides in elements.
void transpose_u8(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride, size_t rows, size_t columns);
void transpose_u16(const uint16_t* in, size_t in_stride, uint16_t* out, size_t out_stride, size_t rows, size_t columns);
void transpose_u32(const uint32_t* in, size_t in_stride, uint32_t* out, size_t out_stride, size_t rows, size_t columns);

// For tests and benchmarks: the instruction sets compiled in that this machine has, best first, and a way to pin one
// (an empty name goes back to the best). Not thread-safe.
std::vector<std::string> kernel_targets();
void use_kernel_target(std::string_view name);

}  // namespace transload
