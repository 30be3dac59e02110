// KvCache: the host side of a decode step for one sequence. Owns the cache buffers, makes masks and rotary rows, and stores new
// entries all or nothing. The Python package mirrors it (python/transload/kv_cache.py); docs/contract.md states the rules.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transload/contract.h"
#include "transload/tensor.h"

namespace transload {

// What one layer holds: `count` entries of positions first .. first + count - 1, oldest first, in the compute dtype.
struct LayerEntries {
  uint64_t first = 0;
  uint64_t count = 0;
  Tensor keys;  // [kv_heads, count, head_dim]
  Tensor values;
};

// Not thread-safe. Copies are independent caches of the same content: fork() for a second continuation.
class KvCache {
 public:
  // `context`: 0 takes the smallest of the bundle. Throws usage when the bundle has no graph of this context; size_overflow and
  // io_failure for buffers that cannot be had.
  explicit KvCache(std::shared_ptr<const BundleContract> contract, uint32_t context = 0);

  uint32_t context() const;
  uint64_t position() const;  // tokens stored = absolute position of row 0 of the next call
  // Positions that can be stored: the context when some layer is full attention or its slots cannot hold its window, else
  // max_positions.
  uint64_t capacity() const;
  static uint64_t capacity_of(const BundleContract& contract, uint32_t context);
  // Bytes of all buffers: what `transload kv` says for this layout, context and dtype.
  uint64_t bytes() const;

  // All inputs of `step` except the tokens, in graph order, for `real` tokens from `position` on. Views of the live buffers and
  // of scratch: valid until the next call of any member that is not const. Throws usage: another context, a repeated or skipped
  // position, real outside 1..q, a position beyond the capacity.
  std::vector<TensorView> inputs(const StepContract& step, uint64_t position, uint32_t real);

  // Stores the first `real` new entries. `outputs`: the k_new and v_new tensors in graph order. Everything is checked before any
  // buffer changes: the count, dtypes, shapes, values (finite), and what inputs() checks; names are not compared. Throws
  // usage (the call), shape_mismatch, dtype_mismatch, numeric_fault (NaN or infinity).
  void commit(const StepContract& step, std::span<const TensorView> outputs, uint64_t position, uint32_t real);

  // Moves to a larger context: full caches keep their slots, windows are laid out again by position. Throws usage when the
  // context shrinks or has no graph, size_overflow and io_failure as the constructor; nothing changes then.
  void grow(uint32_t context);

  // Fills an empty cache from a prefill done elsewhere: for each layer of the slice, keys (after rotary embedding) and values
  // [kv_heads, count, head_dim] of positions 0..count-1, in the compute dtype. Sliding layers keep what fits. Throws usage when
  // something is stored already or `count` is 0 or beyond the capacity; shape_mismatch, dtype_mismatch, numeric_fault; nothing
  // changes then.
  struct SeedLayer {
    TensorView keys;
    TensorView values;
  };
  void seed(std::span<const SeedLayer> layers, uint64_t count);

  // A copy of the state; restore() takes it back. Throws usage for a snapshot of another bundle or context.
  struct Snapshot {
    const BundleContract* contract = nullptr;
    uint32_t context = 0;
    uint64_t position = 0;
    std::vector<std::vector<std::byte>> buffers;  // k, v of each layer
  };
  Snapshot snapshot() const;
  void restore(const Snapshot& snapshot);

  KvCache fork() const { return *this; }
  void clear();  // position 0, zeros

  LayerEntries entries(uint32_t layer) const;  // copies; `layer` counts in the slice; throws usage for one outside it

 private:
  // The bundle's own contract of this graph: throws usage unless it can be called now.
  const StepContract& checked_step(const StepContract& step, uint64_t position, uint32_t real) const;
  // `returned`: a checked k_new or v_new tensor of a call that carried `real` of `query` tokens.
  void store_new(const CacheLayer& cache, std::vector<std::byte>& buffer, const std::byte* returned, uint32_t query,
                 uint32_t real) const;

  std::shared_ptr<const BundleContract> contract_;
  const StepContract* layout_ = nullptr;  // any step of this context: its caches say how the buffers lie
  uint32_t context_ = 0;
  uint64_t position_ = 0;
  std::vector<std::vector<std::byte>> buffers_;  // k, v of each layer
  std::vector<std::vector<std::byte>> scratch_;  // masks and rotary rows of the last inputs()
};

}  // namespace transload
