// The tensors of a plan as they are made: equal recipes once, in the order in which their sources lie in the checkpoint.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "io/hash.h"
#include "io/output_directory.h"
#include "weights/executor.h"
#include "weights/lower.h"
#include "weights/plan.h"
#include "weights/quantize.h"

namespace transload {

struct TensorPlace {
  const PlannedTensor* planned = nullptr;
  const OutputFile* file = nullptr;
};

// One recipe while it is made.
struct TensorRun {
  std::vector<TensorPlace> places;  // in plan order
  std::variant<LoweredTensor, LoweredQuant> lowered;
  uint64_t piece_count = 0;
  uint64_t most_piece_bytes = 0;
  bool tiled = false;
  uint64_t first_piece = 0;
  std::atomic<uint64_t> finished{0};  // pieces, in any order when they are tiles; the ticket of the next one to hash
  std::optional<Hasher> hasher;       // from the first piece to the last; whoever has the ticket owns it
  std::atomic<uint64_t> overflow_count{0};
  std::atomic<uint64_t> nan_count{0};
  std::string digest;

  // Of a quantised tensor; the vectors live from its first piece to its last.
  std::once_flag quant_started;
  std::vector<float> scales;             // of each channel, unrounded
  std::vector<QuantError> piece_errors;  // added in order, so that the sum does not depend on the workers
  QuantError quant_error;
  std::string scales_digest;
  uint64_t infinite_scales = 0;

  const PlannedTensor& planned() const { return *places.front().planned; }
  const LoweredQuant* quant() const { return std::get_if<LoweredQuant>(&lowered); }
  uint64_t bytes() const { return planned().recipe.bytes(); }
};

// A planned tensor is one of the places of a run.
struct PlannedRun {
  TensorRun* run = nullptr;
  size_t place = 0;
};

class TensorRunList {
 public:
  explicit TensorRunList(const PieceLimits& limits) : limits_(limits) {}
  // Both outlive the runs.
  void add(const PlannedTensor& tensor, const OutputFile& file);
  const std::vector<PlannedRun>& planned() const { return planned_; }
  // Tensors without a source come first.
  std::vector<std::unique_ptr<TensorRun>> take_in_source_order();

 private:
  const PieceLimits limits_;
  std::unordered_multimap<uint64_t, TensorRun*> by_hash_;
  std::vector<std::unique_ptr<TensorRun>> runs_;
  std::vector<PlannedRun> planned_;
};

}  // namespace transload
