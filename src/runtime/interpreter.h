// Executes a Graph: every op of the op table, values freed after their last use. Arithmetic is fp32; a value whose dtype is f16
// is rounded to f16 after each node, as a runtime that computes in f16 would store it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/worker_pool.h"
#include "graph/graph.h"
#include "runtime/weight_matrix.h"
#include "transload/tensor.h"

namespace transload {

// Each floating-point value as a node has made it, row-major in the value's shape; f16 values as f32. Casts and reshapes of
// constants are not shown: they are part of the constant.
using ValueObserver = std::function<void(const Value& value, std::span<const float> values)>;

class Interpreter {
 public:
  // The graph is checked (check_graph) and its constants are opened; `graph`, `store` and `pool` must outlive this. Large
  // constants stay mapped in their stored dtype, also behind a cast that keeps every value. Throws graph_invalid, size_overflow
  // and what WeightStore throws.
  Interpreter(const Graph& graph, WeightStore& store, WorkerPool& pool);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;

  // `inputs`: one view for each graph input, by name, in any order; dtype and shape must be those of the graph. Outputs in graph
  // order. Throws usage (a missing or unknown input), shape_mismatch, dtype_mismatch, and what run_op throws: bad_offset (a
  // gather index outside its table), numeric_fault (an integer division by zero), io_failure (not enough memory).
  std::vector<Tensor> run(std::span<const TensorView> inputs, const ValueObserver& observe = {});

  // Bytes of values at the widest point of the last run.
  uint64_t peak_value_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace transload
