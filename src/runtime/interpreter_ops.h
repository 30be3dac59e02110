// What a node computes: one function for each op, over values in memory. Used by the interpreter alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/worker_pool.h"
#include "graph/graph.h"
#include "runtime/weight_matrix.h"

namespace transload {

// Memory of values: counted, and never more than the machine could give, since a small graph can ask for any amount. Large blocks
// that values have left are kept for the next ones (new pages cost more than the copies that fill them), within the widest point
// of all runs.
class ValueMemory {
 public:
  ValueMemory();
  ValueMemory(const ValueMemory&) = delete;
  ~ValueMemory();
  // Aligned to cache lines, not initialised; counted until the last owner lets go, which must happen before this goes. Throws
  // io_failure.
  std::shared_ptr<void> allocate(uint64_t bytes);
  uint64_t peak_bytes() const { return peak_bytes_; }
  void restart_peak() { peak_bytes_ = live_bytes_; }

 private:
  struct Block {
    void* data = nullptr;
    uint64_t bytes = 0;
  };
  Block take(uint64_t bytes);
  void give_back(Block block, uint64_t used_bytes);
  void shrink_spares(uint64_t most_bytes);

  const uint64_t limit_bytes_;
  uint64_t live_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  uint64_t widest_bytes_ = 0;  // the highest peak there was
  std::multimap<uint64_t, void*> spares_;
  uint64_t spare_bytes_ = 0;
};

// A value in memory, row-major: `floats` for f32, f16 and bf16, `integers` for i32, i64 and boolean (0 or 1). A constant that
// stays in its file has `matrix` alone.
struct ValueArray {
  std::shared_ptr<void> owner;  // starts at the values when an op made them; none for constants and for inputs read in place
  const float* floats = nullptr;
  const int64_t* integers = nullptr;
  const WeightMatrix* matrix = nullptr;
  bool turned = false;  // `floats` hold the value with its last two axes swapped: right operands of matmul only
};

struct OpCall {
  const Graph& graph;
  const Node& node;
  std::span<const ValueArray* const> operands;
  WorkerPool& pool;
  ValueMemory& memory;

  const Value& output() const { return graph.value(node.output); }
  const Value& input(size_t index) const { return graph.value(node.inputs[index]); }
};

// The value of the node's output, rounded to its dtype. Throws bad_offset, numeric_fault (an integer division by zero) and
// io_failure (not enough memory).
ValueArray run_op(const OpCall& call);

// Whether an operand may be a mapped matrix instead of values: a weight or a table.
bool takes_matrix(Op op, size_t operand, const Value& value);

// A transposition of the last two axes: as a right operand of matmul it need not be carried out.
bool turns_matrices(const Graph& graph, const Node& node);

// The rest is shared by the files that define ops.

template <typename T>
const T* values_of(const ValueArray& array) {
  if constexpr (std::is_same_v<T, float>) {
    return array.floats;
  } else {
    return array.integers;
  }
}

// Memory for the output of a node: `data` is where its values go.
template <typename T>
struct NewValue {
  ValueArray array;
  T* data = nullptr;
};
template <typename T>
NewValue<T> new_value(ValueMemory& memory, uint64_t count) {
  NewValue<T> value;
  value.array.owner = memory.allocate(count * sizeof(T));
  value.data = static_cast<T*>(value.array.owner.get());
  if constexpr (std::is_same_v<T, float>) {
    value.array.floats = value.data;
  } else {
    value.array.integers = value.data;
  }
  return value;
}

// One function for both kinds of values: f(float{}) or f(int64_t{}).
template <typename Function>
ValueArray for_kind(DType dtype, Function f) {
  return is_floating(dtype) ? f(float{}) : f(int64_t{});
}

// Ranges that cover 0..count-1, on the pool when there is more than one grain.
void run_ranges(WorkerPool& pool, uint64_t count, uint64_t grain, const std::function<void(uint64_t, uint64_t)>& task);

// Rounds to nearest even when `dtype` is f16 or bf16.
void round_values(DType dtype, float* values, uint64_t count);
void round_values(WorkerPool& pool, DType dtype, float* values, uint64_t count);

// One axis of a loop over several arrays at once; steps in elements.
struct LoopAxis {
  uint64_t size = 1;
  uint64_t a_step = 0;
  uint64_t b_step = 0;
};
// Axes of a loop over `shape` in which `a` and `b` broadcast, innermost first; axes that step alike are joined.
std::vector<LoopAxis> broadcast_axes(const Shape& shape, const Shape& a, const Shape& b);

struct Steps {
  uint64_t a = 0;
  uint64_t b = 0;
};
// Where step `index` of a loop over `axes` starts.
Steps steps_at(std::span<const LoopAxis> axes, uint64_t index);

// out[c * out_step + r] = in[r * in_step + c]
void transpose_plane(const float* in, uint64_t in_step, float* out, uint64_t out_step, uint64_t rows, uint64_t columns);
void transpose_plane(const int64_t* in, uint64_t in_step, int64_t* out, uint64_t out_step, uint64_t rows, uint64_t columns);

// interpreter_elements.cpp
ValueArray run_add(const OpCall& call);
ValueArray run_sub(const OpCall& call);
ValueArray run_mul(const OpCall& call);
ValueArray run_div(const OpCall& call);
ValueArray run_max(const OpCall& call);
ValueArray run_min(const OpCall& call);
ValueArray run_equal(const OpCall& call);
ValueArray run_greater(const OpCall& call);
ValueArray run_where(const OpCall& call);
ValueArray run_neg(const OpCall& call);
ValueArray run_abs(const OpCall& call);
ValueArray run_sqrt(const OpCall& call);
ValueArray run_sigmoid(const OpCall& call);
ValueArray run_tanh(const OpCall& call);
ValueArray run_erf(const OpCall& call);
ValueArray run_gelu(const OpCall& call);
ValueArray run_cast(const OpCall& call);
// interpreter_reductions.cpp
ValueArray run_softmax(const OpCall& call);
ValueArray run_reduce_mean(const OpCall& call);
ValueArray run_reduce_max(const OpCall& call);
ValueArray run_argmax(const OpCall& call);
// interpreter_products.cpp
ValueArray run_gemm(const OpCall& call);
ValueArray run_matmul(const OpCall& call);
ValueArray run_conv1x1(const OpCall& call);
// interpreter_moves.cpp
ValueArray run_reshape(const OpCall& call);
ValueArray run_transpose(const OpCall& call);
ValueArray run_concat(const OpCall& call);
ValueArray run_slice(const OpCall& call);
ValueArray run_gather(const OpCall& call);

}  // namespace transload
