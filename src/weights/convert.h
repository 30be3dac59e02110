// Converts a run of stored values into the output type: load to fp32, apply the steps, round once; direct kernels where there
// are.
#pragma once

#include <cstddef>
#include <vector>

#include "transload/dtype.h"
#include "weights/kernels.h"
#include "weights/lower.h"

namespace transload {

// `count` values of any dtype, whole blocks for block types, as f32.
void convert_to_f32(DType dtype, const std::byte* in, size_t count, float* out);

// Owns the fp32 scratch of one worker; not thread-safe.
class RunConverter {
 public:
  RunConverter();
  // Values first .. first + count - 1 of `in` (whole blocks for block types) to `out`, which may be `in` itself when both types
  // are scalars of one width. Counts NaNs of the result, for scalar types, and f16 overflows.
  NumericCounts convert(DType in_dtype, const std::byte* in, size_t first, size_t count, const ElementSteps& steps,
                        DType out_dtype, std::byte* out);
  static size_t scratch_bytes();

 private:
  float* load(DType dtype, const std::byte* in, size_t first, size_t count);

  std::vector<float> values_;
  std::vector<uint16_t> halves_;
};

// NaNs among `count` values of a scalar type; 0 for integers and block types.
uint64_t count_nan(DType dtype, const std::byte* values, size_t count);

}  // namespace transload
