// Runs the graphs of a bundle and the reference in lockstep on the same tokens and compares every value both know.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "export/bundle_runner.h"
#include "export/verify_compare.h"
#include "export/verify_schedule.h"
#include "graph/graph.h"
#include "runtime/reference.h"
#include "transload/verify.h"

namespace transload {

// Values of one call of the reference, by the names of its taps.
class TapRecord {
 public:
  struct Rows {
    uint64_t first_position = 0;
    uint64_t width = 0;
    std::vector<float> values;  // [rows, width]
    uint64_t count() const { return width > 0 ? values.size() / width : 0; }
  };
  void clear() { rows_.clear(); }
  void add(std::string_view name, uint64_t first_position, uint64_t rows, std::span<const float> values);
  const Rows* find(const std::string& name) const;

 private:
  std::unordered_map<std::string, Rows> rows_;
};

class Lockstep {
 public:
  // `reference`: of the layers up to the end of the bundle's slice. `graphs`: those of the contract's steps, in their order. All
  // must outlive this.
  Lockstep(BundleRunner& runner, Reference& reference, const std::vector<Graph>& graphs, const Tolerance& tolerance);

  // Reads `tokens` with the reference alone, for the usual scale of every value, and with `disturbed`, a reference whose norms
  // are a little off, for how far each value moves. The reference starts anew after it; `disturbed` is used up.
  void learn_scales(std::span<const int32_t> tokens, Reference& disturbed);
  // One call of both; throws tensor_missing when the graph lacks a value that has to be compared.
  void call(const ScheduledCall& call, std::span<const int32_t> tokens);
  // What the caches hold in the end against every key and value the reference made.
  void compare_caches();

  const std::optional<VerifyFailure>& failure() const { return failure_; }
  // The reference's best token after the last call; nothing without a head.
  std::optional<int32_t> best_token() const { return best_token_; }
  uint64_t values_compared() const { return values_compared_; }
  void fill(VerifyReport& report) const;

 private:
  struct CallState;
  struct LayerSums {
    DifferenceSum out, keys, values;
  };

  void read_reference(std::span<const int32_t> tokens);
  std::string tap_of(const std::string& name) const;
  std::optional<uint32_t> layer_of_value(const std::string& name) const;
  void observe(CallState& state, const Value& value, std::span<const float> values);
  void accumulate(CallState& state, const Value& value, const DifferenceSum& sum, double worst);
  void require_values(const CallState& state) const;
  std::vector<std::string> weights_before(const CallState& state, const Value& value);

  BundleRunner& runner_;
  Reference& reference_;
  const std::vector<Graph>& graphs_;
  Tolerance tolerance_;
  uint32_t first_layer_;
  std::vector<std::vector<size_t>> producers_;  // of each graph: by value, its node plus one, or 0
  struct Usual {
    TypicalRow row;
    Tolerance tolerance;
  };
  const Usual& usual(const std::string& tap) const;
  std::unordered_map<std::string, Usual> usual_;  // by the names of taps
  Usual unknown_;
  std::string widest_tensor_;  // the value that was granted most
  double widest_tolerance_ = 0;
  TapRecord taps_;
  std::vector<float> rows_;                        // a value in token-major order
  std::vector<std::vector<float>> keys_, values_;  // of each layer of the slice, all positions, token-major
  std::vector<LayerSums> layers_;
  std::vector<StepResult> steps_;
  HeadSum head_;
  bool has_logits_ = false;
  std::optional<int32_t> best_token_;
  uint64_t values_compared_ = 0;
  std::string worst_tensor_;
  double worst_relative_ = 0;
  std::string noisiest_tensor_;
  double least_sqnr_db_ = std::numeric_limits<double>::infinity();
  std::optional<VerifyFailure> failure_;
};

}  // namespace transload
