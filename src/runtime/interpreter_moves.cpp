// Ops that move elements without computing: reshape, transpose, concat, slice, gather.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/interpreter_ops.h"
#include "runtime/matmul.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr uint64_t kCopyGrain = 65536;  // elements

uint64_t elements_after(const Shape& shape, size_t axis) {
  uint64_t count = 1;
  for (size_t i = axis + 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

// `runs` runs of `length` elements, each `in_step` after the one before, to places `out_step` apart.
template <typename T>
void copy_runs(WorkerPool& pool, const T* in, uint64_t in_step, T* out, uint64_t out_step, uint64_t length, uint64_t runs) {
  run_ranges(pool, length * runs, kCopyGrain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t at = begin; at < end;) {
      const uint64_t run = at / length;
      const uint64_t offset = at % length;
      const uint64_t part = std::min(length - offset, end - at);
      std::copy_n(in + run * in_step + offset, part, out + run * out_step + offset);
      at += part;
    }
  });
}

// Axes of a permutation in output order, those that stay neighbours joined and those of size 1 dropped: a_step is where the
// output's axis steps in the input, b_step in the output.
std::vector<LoopAxis> permuted_axes(const Shape& in, const std::vector<int64_t>& perm) {
  std::vector<LoopAxis> axes;
  uint64_t out_step = element_count(in);
  for (const int64_t from : perm) {
    const auto axis = static_cast<size_t>(from);
    const uint64_t size = in[axis];
    out_step /= size;
    if (size == 1) continue;
    const LoopAxis next{size, elements_after(in, axis), out_step};
    if (!axes.empty() && axes.back().a_step == next.a_step * next.size) {
      axes.back() = {axes.back().size * size, next.a_step, next.b_step};
    } else {
      axes.push_back(next);
    }
  }
  return axes;
}

template <typename T>
ValueArray transpose_of(const OpCall& call) {
  std::vector<LoopAxis> axes = permuted_axes(call.input(0).shape, call.node.integers("perm"));
  if (axes.size() < 2) return *call.operands[0];  // nothing but axes of size 1 has moved
  const uint64_t count = element_count(call.output().shape);
  const T* const in = values_of<T>(*call.operands[0]);
  NewValue<T> out = new_value<T>(call.memory, count);

  const LoopAxis last = axes.back();
  axes.pop_back();
  if (last.a_step == 1) {
    run_ranges(call.pool, count / last.size, std::max<uint64_t>(1, kCopyGrain / last.size), [&](uint64_t begin, uint64_t end) {
      for (uint64_t run = begin; run < end; ++run) {
        uint64_t from = 0;
        uint64_t index = run;
        for (size_t i = axes.size(); i-- > 0; index /= axes[i].size) from += index % axes[i].size * axes[i].a_step;
        std::copy_n(in + from, last.size, out.data + run * last.size);
      }
    });
    return out.array;
  }
  // The last axis of the output (rows of the input) and the last of the input (columns) span planes, cut into strips of columns.
  const auto found = std::find_if(axes.begin(), axes.end(), [](const LoopAxis& axis) { return axis.a_step == 1; });
  const LoopAxis columns = *found;
  axes.erase(found);
  constexpr uint64_t kStrip = 64;
  const uint64_t strips = (columns.size + kStrip - 1) / kStrip;
  const uint64_t planes = count / (last.size * columns.size);
  const uint64_t grain = std::max<uint64_t>(1, kCopyGrain / (last.size * std::min(kStrip, columns.size)));
  run_ranges(call.pool, planes * strips, grain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const Steps plane = steps_at(axes, i / strips);
      const uint64_t first = i % strips * kStrip;
      transpose_plane(in + plane.a + first, last.a_step, out.data + plane.b + first * columns.b_step, columns.b_step, last.size,
                      std::min(kStrip, columns.size - first));
    }
  });
  return out.array;
}

template <typename T>
ValueArray concat_of(const OpCall& call) {
  const Value& output = call.output();
  const auto axis = static_cast<size_t>(call.node.integer("axis"));
  const uint64_t inner = elements_after(output.shape, axis);
  const uint64_t out_step = output.shape[axis] * inner;
  const uint64_t count = element_count(output.shape);
  NewValue<T> out = new_value<T>(call.memory, count);
  T* to = out.data;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const uint64_t length = call.input(i).shape[axis] * inner;
    copy_runs(call.pool, values_of<T>(*call.operands[i]), length, to, out_step, length, count / out_step);
    to += length;
  }
  return out.array;
}

template <typename T>
ValueArray slice_of(const OpCall& call) {
  const Value& output = call.output();
  const auto axis = static_cast<size_t>(call.node.integer("axis"));
  const uint64_t inner = elements_after(output.shape, axis);
  const uint64_t length = output.shape[axis] * inner;
  const uint64_t count = element_count(output.shape);
  NewValue<T> out = new_value<T>(call.memory, count);
  const T* const in = values_of<T>(*call.operands[0]) + static_cast<uint64_t>(call.node.integer("begin")) * inner;
  copy_runs(call.pool, in, call.input(0).shape[axis] * inner, out.data, length, length, count / length);
  return out.array;
}

template <typename T>
ValueArray gather_of(const OpCall& call) {
  const ValueArray& table = *call.operands[0];
  const int64_t* const indices = call.operands[1]->integers;
  const uint64_t rows = call.input(0).shape[0];
  const uint64_t width = elements_after(call.input(0).shape, 0);
  const uint64_t count = element_count(call.input(1).shape);
  for (uint64_t i = 0; i < count; ++i) {
    if (indices[i] >= 0 && static_cast<uint64_t>(indices[i]) < rows) continue;
    throw Error(ErrorCode::bad_offset, fmt::format("gather '{}': got index {} at place {} of '{}', expected 0 <= index < {}",
                                                   call.output().name, indices[i], i, call.input(1).name, rows));
  }
  NewValue<T> out = new_value<T>(call.memory, count * width);
  for (uint64_t i = 0; i < count; ++i) {
    const auto row = static_cast<uint64_t>(indices[i]);
    if constexpr (std::is_same_v<T, float>) {
      if (table.matrix != nullptr) {
        read_row(*table.matrix, row, out.data + i * width);
        continue;
      }
    }
    std::copy_n(values_of<T>(table) + row * width, width, out.data + i * width);
  }
  return out.array;
}

}  // namespace

ValueArray run_reshape(const OpCall& call) { return *call.operands[0]; }

ValueArray run_transpose(const OpCall& call) {
  return for_kind(call.output().dtype, [&](auto kind) { return transpose_of<decltype(kind)>(call); });
}

ValueArray run_concat(const OpCall& call) {
  if (call.operands.size() == 1) return *call.operands[0];
  return for_kind(call.output().dtype, [&](auto kind) { return concat_of<decltype(kind)>(call); });
}

ValueArray run_slice(const OpCall& call) {
  return for_kind(call.output().dtype, [&](auto kind) { return slice_of<decltype(kind)>(call); });
}

ValueArray run_gather(const OpCall& call) {
  return for_kind(call.output().dtype, [&](auto kind) { return gather_of<decltype(kind)>(call); });
}

}  // namespace transload
