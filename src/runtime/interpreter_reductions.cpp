// Ops that join elements along axes: softmax, mean, the greatest and its place. Sums are carried in double, so that long axes
// lose nothing.
#include <algorithm>
#include <cmath>

#include "runtime/interpreter_ops.h"

namespace transload {
namespace {

// `count` elements, `step` apart. The greatest is subtracted first, so that no exponential overflows.
void softmax_line(const float* in, float* out, uint64_t count, uint64_t step) {
  float greatest = in[0];
  for (uint64_t i = 1; i < count; ++i) greatest = std::max(greatest, in[i * step]);
  double sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const float power = std::exp(in[i * step] - greatest);
    out[i * step] = power;
    sum += power;
  }
  const auto factor = static_cast<float>(1.0 / sum);
  for (uint64_t i = 0; i < count; ++i) out[i * step] *= factor;
}

}  // namespace

ValueArray run_softmax(const OpCall& call) {
  const Value& output = call.output();
  const auto axis = static_cast<size_t>(call.node.integer("axis"));
  const uint64_t length = output.shape[axis];
  uint64_t step = 1;
  for (size_t i = axis + 1; i < output.shape.size(); ++i) step *= output.shape[i];
  const uint64_t count = element_count(output.shape);
  const float* const in = call.operands[0]->floats;
  NewValue<float> out = new_value<float>(call.memory, count);
  run_ranges(call.pool, count / length, std::max<uint64_t>(1, 2048 / length), [&](uint64_t begin, uint64_t end) {
    for (uint64_t line = begin; line < end; ++line) {
      const uint64_t start = line / step * length * step + line % step;
      softmax_line(in + start, out.data + start, length, step);
    }
  });
  round_values(call.pool, output.dtype, out.data, count);
  return out.array;
}

namespace {

// Calls join(result, value) for each element of the operand with the index of the result it goes to, in row-major order.
template <typename Join>
void join_elements(const OpCall& call, Join join) {
  const Shape& shape = call.input(0).shape;
  // Reduced axes have size 1 in the output: b_step is 0 there.
  const std::vector<LoopAxis> axes = broadcast_axes(shape, shape, call.output().shape);
  const LoopAxis inner = axes[0];
  const std::span<const LoopAxis> outer = std::span(axes).subspan(1);
  const float* const in = call.operands[0]->floats;
  for (uint64_t run = 0; run < element_count(shape) / inner.size; ++run) {
    const uint64_t result = steps_at(outer, run).b;
    for (uint64_t i = 0; i < inner.size; ++i) join(result + i * inner.b_step, in[run * inner.size + i]);
  }
}

}  // namespace

ValueArray run_reduce_mean(const OpCall& call) {
  const Value& output = call.output();
  const Shape& shape = call.input(0).shape;
  const uint64_t count = element_count(shape);
  const uint64_t results = element_count(output.shape);
  // Reduced axes have size 1 in the output: b_step is 0 there.
  const std::vector<LoopAxis> axes = broadcast_axes(shape, shape, output.shape);
  const LoopAxis inner = axes[0];
  const std::span<const LoopAxis> outer = std::span(axes).subspan(1);
  const float* const in = call.operands[0]->floats;
  const std::shared_ptr<void> sums_owner = call.memory.allocate(results * sizeof(double));
  double* const sums = static_cast<double*>(sums_owner.get());
  std::fill_n(sums, results, 0.0);
  for (uint64_t run = 0; run < count / inner.size; ++run) {
    const float* const from = in + run * inner.size;
    double* const to = sums + steps_at(outer, run).b;
    if (inner.b_step == 0) {
      double sum = 0;
      for (uint64_t i = 0; i < inner.size; ++i) sum += from[i];
      *to += sum;
    } else {
      for (uint64_t i = 0; i < inner.size; ++i) to[i] += from[i];
    }
  }
  NewValue<float> out = new_value<float>(call.memory, results);
  const auto terms = static_cast<double>(count / results);
  std::transform(sums, sums + results, out.data, [terms](double sum) { return static_cast<float>(sum / terms); });
  round_values(output.dtype, out.data, results);
  return out.array;
}

// NaN wins, as ONNX has it.
ValueArray run_reduce_max(const OpCall& call) {
  const uint64_t results = element_count(call.output().shape);
  NewValue<float> out = new_value<float>(call.memory, results);
  std::fill_n(out.data, results, -std::numeric_limits<float>::infinity());
  join_elements(call, [&](uint64_t result, float value) {
    float& greatest = out.data[result];
    if (value > greatest || std::isnan(value)) greatest = value;
  });
  return out.array;
}

ValueArray run_argmax(const OpCall& call) {
  const Shape& shape = call.input(0).shape;
  const auto axis = static_cast<size_t>(call.node.integer("axis"));
  uint64_t step = 1;
  for (size_t i = axis + 1; i < shape.size(); ++i) step *= shape[i];
  const uint64_t results = element_count(call.output().shape);
  const float* const in = call.operands[0]->floats;
  NewValue<int64_t> out = new_value<int64_t>(call.memory, results);
  for (uint64_t line = 0; line < results; ++line) {
    const float* const values = in + line / step * shape[axis] * step + line % step;
    uint64_t greatest = 0;
    for (uint64_t i = 1; i < shape[axis]; ++i) {
      if (values[i * step] > values[greatest * step]) greatest = i;
    }
    out.data[line] = static_cast<int64_t>(greatest);
  }
  return out.array;
}

}  // namespace transload
