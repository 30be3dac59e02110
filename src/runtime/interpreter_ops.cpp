// The table of op functions, and what they share: memory of values, ranges, rounding, loops over broadcast axes.
#include "runtime/interpreter_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <new>
#include <utility>

#include "base/memory.h"
#include "transload/error.h"
#include "weights/kernels.h"

namespace transload {
namespace {

struct OpRow {
  Op op;
  ValueArray (*run)(const OpCall& call);
};

constexpr std::array<OpRow, kOpCount> kRows = {{
    {Op::add, run_add},
    {Op::sub, run_sub},
    {Op::mul, run_mul},
    {Op::div, run_div},
    {Op::max, run_max},
    {Op::min, run_min},
    {Op::equal, run_equal},
    {Op::greater, run_greater},
    {Op::where, run_where},
    {Op::neg, run_neg},
    {Op::abs, run_abs},
    {Op::sqrt, run_sqrt},
    {Op::sigmoid, run_sigmoid},
    {Op::tanh, run_tanh},
    {Op::erf, run_erf},
    {Op::gelu, run_gelu},
    {Op::softmax, run_softmax},
    {Op::reduce_mean, run_reduce_mean},
    {Op::reduce_max, run_reduce_max},
    {Op::argmax, run_argmax},
    {Op::gemm, run_gemm},
    {Op::matmul, run_matmul},
    {Op::conv1x1, run_conv1x1},
    {Op::reshape, run_reshape},
    {Op::transpose, run_transpose},
    {Op::concat, run_concat},
    {Op::slice, run_slice},
    {Op::gather, run_gather},
    {Op::cast, run_cast},
}};

constexpr bool in_enumerator_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].op != static_cast<Op>(i)) return false;
  }
  return true;
}
static_assert(in_enumerator_order());

constexpr std::align_val_t kAlignment{64};
constexpr uint64_t kLeastSpareBytes = 64 << 10;  // smaller blocks are reused by the allocator itself

}  // namespace

ValueMemory::ValueMemory() : limit_bytes_(available_memory_bytes()) {}

ValueMemory::~ValueMemory() { shrink_spares(0); }

std::shared_ptr<void> ValueMemory::allocate(uint64_t bytes) {
  const Block block = take(bytes);
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  widest_bytes_ = std::max(widest_bytes_, live_bytes_);
  return {block.data, [this, block, bytes](void*) { give_back(block, bytes); }};
}

ValueMemory::Block ValueMemory::take(uint64_t bytes) {
  if (const auto spare = spares_.lower_bound(bytes); spare != spares_.end() && spare->first / 2 <= bytes) {
    const Block block{spare->second, spare->first};
    spares_.erase(spare);
    spare_bytes_ -= block.bytes;
    return block;
  }
  void* data = nullptr;
  if (bytes <= limit_bytes_ - live_bytes_) {
    shrink_spares(std::max(widest_bytes_, live_bytes_ + bytes) - (live_bytes_ + bytes));
    data = ::operator new(bytes, kAlignment, std::nothrow);
  }
  if (data == nullptr) {
    throw Error(ErrorCode::io_failure, fmt::format("memory for a value: got {} bytes in use, expected room for {} more of {}",
                                                   live_bytes_, bytes, limit_bytes_));
  }
  return {data, bytes};
}

void ValueMemory::give_back(Block block, uint64_t used_bytes) {
  live_bytes_ -= used_bytes;
  if (block.bytes < kLeastSpareBytes) return ::operator delete(block.data, kAlignment);
  try {
    spares_.emplace(block.bytes, block.data);
    spare_bytes_ += block.bytes;
  } catch (const std::bad_alloc&) {
    ::operator delete(block.data, kAlignment);
  }
}

void ValueMemory::shrink_spares(uint64_t most_bytes) {
  while (spare_bytes_ > most_bytes) {
    const auto largest = std::prev(spares_.end());
    ::operator delete(largest->second, kAlignment);
    spare_bytes_ -= largest->first;
    spares_.erase(largest);
  }
}

ValueArray run_op(const OpCall& call) { return kRows[static_cast<size_t>(call.node.op)].run(call); }

bool takes_matrix(Op op, size_t operand, const Value& value) {
  if (!is_floating(value.dtype)) return false;
  if (op == Op::gather) return operand == 0;
  if (op == Op::matmul) return operand == 1 && value.shape.size() == 2;
  return (op == Op::gemm || op == Op::conv1x1) && operand == 1;
}

bool turns_matrices(const Graph& graph, const Node& node) {
  if (node.op != Op::transpose || !is_floating(graph.value(node.output).dtype)) return false;
  std::vector<int64_t> perm = node.integers("perm");
  if (perm.size() < 2) return false;
  std::swap(perm[perm.size() - 2], perm[perm.size() - 1]);
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

void run_ranges(WorkerPool& pool, uint64_t count, uint64_t grain, const std::function<void(uint64_t, uint64_t)>& task) {
  if (count <= grain) return task(0, count);
  pool.run(count, grain, [&](uint64_t begin, uint64_t end, uint32_t) { task(begin, end); });
}

void round_values(DType dtype, float* values, uint64_t count) {
  if (dtype != DType::f16 && dtype != DType::bf16) return;
  std::array<uint16_t, 1024> halves;
  for (uint64_t begin = 0; begin < count; begin += halves.size()) {
    const uint64_t part = std::min<uint64_t>(halves.size(), count - begin);
    if (dtype == DType::f16) {
      convert_f32_to_f16(values + begin, halves.data(), part);
      convert_f16_to_f32(halves.data(), values + begin, part);
    } else {
      convert_f32_to_bf16(values + begin, halves.data(), part);
      convert_bf16_to_f32(halves.data(), values + begin, part);
    }
  }
}

void round_values(WorkerPool& pool, DType dtype, float* values, uint64_t count) {
  if (dtype == DType::f32) return;
  run_ranges(pool, count, 65536, [&](uint64_t begin, uint64_t end) { round_values(dtype, values + begin, end - begin); });
}

std::vector<LoopAxis> broadcast_axes(const Shape& shape, const Shape& a, const Shape& b) {
  std::vector<LoopAxis> axes;
  uint64_t a_step = 1;
  uint64_t b_step = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const uint64_t size = shape[shape.size() - 1 - i];
    const uint64_t a_size = i < a.size() ? a[a.size() - 1 - i] : 1;
    const uint64_t b_size = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (size == 1) continue;
    const LoopAxis axis{size, a_size == 1 ? 0 : a_step, b_size == 1 ? 0 : b_step};
    a_step *= a_size;
    b_step *= b_size;
    if (!axes.empty()) {
      LoopAxis& inner = axes.back();
      if (axis.a_step == inner.a_step * inner.size && axis.b_step == inner.b_step * inner.size) {
        inner.size *= size;
        continue;
      }
    }
    axes.push_back(axis);
  }
  if (axes.empty()) axes.push_back({});
  return axes;
}

Steps steps_at(std::span<const LoopAxis> axes, uint64_t index) {
  Steps steps;
  for (const LoopAxis& axis : axes) {
    steps.a += index % axis.size * axis.a_step;
    steps.b += index % axis.size * axis.b_step;
    index /= axis.size;
  }
  return steps;
}

void transpose_plane(const float* in, uint64_t in_step, float* out, uint64_t out_step, uint64_t rows, uint64_t columns) {
  transpose_u32(reinterpret_cast<const uint32_t*>(in), in_step, reinterpret_cast<uint32_t*>(out), out_step, rows, columns);
}

void transpose_plane(const int64_t* in, uint64_t in_step, int64_t* out, uint64_t out_step, uint64_t rows, uint64_t columns) {
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < columns; ++c) out[c * out_step + r] = in[r * in_step + c];
  }
}

}  // namespace transload
