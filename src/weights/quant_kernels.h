// Vector kernels of weight-only quantisation, over one channel at a time. Results are the same on every instruction set, sums
// of errors included.
#pragma once

#include <cstddef>
#include <cstdint>

namespace transload {

// Largest bits without the sign: a magnitude, an infinity, or above that a NaN.
uint16_t max_magnitude_u16(const uint16_t* values, size_t count);  // of f16 or bf16
uint32_t max_magnitude_f32(const float* values, size_t count);

// Differences between values and their quantised form, in units of the scale that divided them.
struct UnitError {
  float max_abs = 0;
  double signal = 0;  // sum of squares of value / scale
  double noise = 0;   // sum of squares of value / scale - q * ratio
};

// q[i] = values[i] / scale rounded half away from zero and clamped to `bits` bits. No value is NaN; `scale` is finite and
// positive. `ratio` is the stored scale over `scale`.
UnitError quantize_values(const float* values, size_t count, float scale, float ratio, int bits, int8_t* q);

// The last steps of the sm80 and sm90 layouts for one channel, in tiles of 64 values that start `stride` bytes apart: rows
// permuted, biased, shuffled in registers, packed. `count` is a multiple of 32.
void permute_int8(const int8_t* q, size_t count, uint8_t* out, size_t stride);
void permute_int4(const int8_t* q, size_t count, uint8_t* out, size_t stride);

// out[i] = the low nibbles of low[i * step] and, above it, high[i * step]: signed values of 4 bits. `out` may be `low`.
void pack_int4(const int8_t* low, const int8_t* high, size_t step, size_t count, uint8_t* out);

}  // namespace transload
