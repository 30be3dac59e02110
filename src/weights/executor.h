// Runs a plan: workers read, convert, write and hash blocks that stay in the CPU cache; the result does not depend on their
// number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/output_directory.h"
#include "transload/progress.h"
#include "transload/recipe.h"
#include "weights/kernels.h"
#include "weights/lower.h"
#include "weights/plan.h"

namespace transload {

// Of what quantisation changed: the quantised values, with their stored scales, against the values that were quantised.
struct QuantError {
  double max_abs = 0;
  double signal = 0;  // sum of squares of the values
  double noise = 0;   // sum of squares of the differences
  bool operator==(const QuantError&) const = default;
};

struct TensorResult {
  std::string name;
  std::string file;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::string digest;           // XXH3-128 of the tensor's bytes as written
  uint64_t overflow_count = 0;  // finite values that became infinite in f16; of scales: the infinite ones
  uint64_t nan_count = 0;       // of a quantised tensor: NaNs among its weights, which raise no scale and become 127 (int4: -8)
  std::optional<QuantError> quant_error = {};  // of quantised tensors
  bool operator==(const TensorResult&) const = default;
};

struct ExecuteOptions {
  uint32_t workers = 0;  // 0: one per core, at most 8
  Progress progress;
  PieceLimits limits;
};

// Results in plan order, the scales of a quantised tensor right behind it. Equal recipes anywhere in the plan are read and
// converted once and written to each of their places; tensors are made in the order in which their sources lie in the checkpoint.
// On an error every worker stops, all are joined, and the first error is rethrown with the tensor's name.
std::vector<TensorResult> execute(const Plan& plan, OutputDirectory& output, const ExecuteOptions& options = {});

// Bytes of buffers one worker holds: what a dry run reports.
uint64_t worker_buffer_bytes();

// A small tensor in memory (inline initialisers, biases folded by a target); throws internal above 64 MiB and for a recipe that
// quantizes.
// `counts`, when given, receives its NaN and overflow counts.
std::vector<std::byte> materialize(const Recipe& recipe, NumericCounts* counts = nullptr);

}  // namespace transload
