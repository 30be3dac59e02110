// Tensors held against what they should be, streamed in pieces by workers: bit for bit, or within a quantisation step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transload/progress.h"
#include "transload/recipe.h"

namespace transload {

// A pair of recipes of one dtype and shape.
struct TensorComparison {
  std::string name;
  Recipe expected;
  Recipe got;
  std::optional<TensorInfo> stored;  // what `got` is, when it is one stored tensor: messages then name file and offset
  // Of f32 rows that were quantised: the largest difference allowed, in parts of the largest value of the row. 0: equal bits.
  double row_tolerance = 0;
};

// A baked weight. q of channel n and input k is right within one step of w / s, where s = max|w| 2^-(bits-1) over the channel in
// fp32; its stored scale is s rounded.
struct QuantComparison {
  Recipe weight;  // [out, in] or [experts, out, in], in the dtype of the scales
  TensorInfo quantised;
  TensorInfo scales;
  WeightQuant quant;
};

struct ComparisonResult {
  uint64_t bytes = 0;  // of what was expected
  double worst_steps = 0;
  std::string worst_tensor;
  // Exact pairs: values that are NaN or infinite, and equal. Baked weights: those without a quantised value to be held against,
  // because they or the scale of their channel are not finite.
  uint64_t not_finite = 0;
  std::string not_finite_tensor;       // the first in the list that has some
  std::optional<std::string> failure;  // the first difference in the order of the list

  void add_not_finite(uint64_t count, const std::string& tensor) {
    if (not_finite == 0 && count > 0) not_finite_tensor = tensor;
    not_finite += count;
  }
};

ComparisonResult compare_tensors(const std::vector<TensorComparison>& list, uint32_t workers, const Progress& progress);
ComparisonResult compare_quantised(const std::vector<QuantComparison>& list, uint32_t workers, const Progress& progress);

}  // namespace transload
