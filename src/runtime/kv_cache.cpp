// The host side of a decode step: cache buffers, masks, rotary rows, and commits that store all or nothing.
#include "transload/kv_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "base/checked.h"
#include "base/memory.h"
#include "runtime/step_inputs.h"
#include "transload/error.h"

namespace transload {
namespace {

using Buffer = std::vector<std::byte>;

[[noreturn]] void refuse(std::string text) { throw Error(ErrorCode::usage, std::move(text)); }

// Any graph of this context: all of them keep the same caches.
const StepContract& layout_at(const BundleContract& contract, uint32_t context) {
  for (const StepFile& step : contract.steps) {
    if (step.contract.context == context) return step.contract;
  }
  refuse(fmt::format("no graph for this context: got {}, expected one of {}", context, fmt::join(contract.contexts(), ", ")));
}

uint64_t capacity_with(const BundleContract& contract, const StepContract& layout) {
  for (const CacheLayer& cache : layout.caches) {
    const uint64_t older = cache.rule == SlotRule::roll ? 0 : 1;  // the current key needs no slot in a ring
    if (!cache.window || uint64_t{cache.slots} + older < *cache.window) return layout.context;
  }
  return contract.max_positions;
}

// [.., heads, entries, head_dim] as bytes: entry `index` of head `head` begins at (head * entries + index) * entry_bytes.
struct Entries {
  std::byte* bytes;
  uint64_t entries;
};

void copy_run(Entries to, uint64_t to_index, const std::byte* from, uint64_t from_entries, uint64_t from_index, uint64_t count,
              uint64_t heads, uint64_t entry_bytes) {
  for (uint64_t head = 0; head < heads; ++head) {
    std::memmove(to.bytes + (head * to.entries + to_index) * entry_bytes, from + (head * from_entries + from_index) * entry_bytes,
                 count * entry_bytes);
  }
}

uint64_t entry_bytes(const CacheLayer& cache, DType dtype) { return tensor_bytes(dtype, {cache.head_dim}); }

std::vector<Buffer> zero_buffers(const StepContract& layout, DType dtype) {
  uint64_t total = 0;
  for (const CacheLayer& cache : layout.caches) {
    const uint64_t bytes = tensor_bytes(dtype, {2, cache.kv_heads, cache.slots, cache.head_dim});
    total = checked_add(total, bytes, "KV cache");
  }
  const auto refuse_size = [&](uint64_t most) {
    throw Error(ErrorCode::io_failure,
                fmt::format("KV cache of context {} does not fit in memory: got {} bytes, expected at most {}", layout.context,
                            total, most));
  };
  const uint64_t available = available_memory_bytes();
  if (total > available) refuse_size(available);
  std::vector<Buffer> buffers;
  try {
    for (const CacheLayer& cache : layout.caches) {
      const uint64_t bytes = uint64_t{cache.kv_heads} * cache.slots * entry_bytes(cache, dtype);
      buffers.emplace_back(bytes);
      buffers.emplace_back(bytes);
    }
  } catch (const std::bad_alloc&) {
    refuse_size(total - 1);
  }
  return buffers;
}

// Elements whose exponent bits are all ones.
template <typename Bits>
uint64_t count_not_finite(std::span<const std::byte> bytes, Bits exponent) {
  uint64_t count = 0;
  for (size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + at, sizeof(Bits));
    count += (bits & exponent) == exponent ? 1 : 0;
  }
  return count;
}

void check_tensor(const TensorView& tensor, const std::string& name, DType dtype, const Shape& shape) {
  const ErrorSite site{{}, name, {}};
  if (tensor.dtype != dtype) {
    throw Error(ErrorCode::dtype_mismatch,
                fmt::format("dtype does not match: got {}, expected {}", dtype_name(tensor.dtype), dtype_name(dtype)), site);
  }
  if (tensor.shape != shape) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("shape does not match: got {}, expected {}", shape_text(tensor.shape), shape_text(shape)), site);
  }
  if (tensor.bytes.size() != tensor_bytes(dtype, shape)) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("bytes do not match the shape: got {}, expected {}", tensor.bytes.size(), tensor_bytes(dtype, shape)),
                site);
  }
  const uint64_t bad = dtype == DType::f16 ? count_not_finite<uint16_t>(tensor.bytes, 0x7C00U)
                                           : count_not_finite<uint32_t>(tensor.bytes, 0x7F800000U);
  if (bad == 0) return;
  throw Error(ErrorCode::numeric_fault, fmt::format("values are not finite: got {} of {}, expected 0", bad, element_count(shape)),
              site);
}

bool is_cache_output(const Port& port) { return port.role == PortRole::k_new || port.role == PortRole::v_new; }

// k, v of each layer.
size_t buffer_index(const Port& port) {
  return size_t{2} * *port.layer + (port.role == PortRole::v_cache || port.role == PortRole::v_new ? 1 : 0);
}

}  // namespace

KvCache::KvCache(std::shared_ptr<const BundleContract> contract, uint32_t context) : contract_(std::move(contract)) {
  context_ = context != 0 ? context : contract_->contexts().front();
  layout_ = &layout_at(*contract_, context_);
  buffers_ = zero_buffers(*layout_, contract_->compute);
}

uint32_t KvCache::context() const { return context_; }
uint64_t KvCache::position() const { return position_; }
uint64_t KvCache::capacity() const { return capacity_with(*contract_, *layout_); }

uint64_t KvCache::capacity_of(const BundleContract& contract, uint32_t context) {
  return capacity_with(contract, layout_at(contract, context));
}

uint64_t KvCache::bytes() const {
  uint64_t sum = 0;
  for (const Buffer& buffer : buffers_) sum += buffer.size();
  return sum;
}

const StepContract& KvCache::checked_step(const StepContract& step, uint64_t position, uint32_t real) const {
  if (step.context != context_) {
    refuse(fmt::format("graph is for another context: got {}, expected {} (grow first)", step.context, context_));
  }
  const StepFile* own = contract_->find_step(step.query, step.context);
  if (own == nullptr)
    refuse(fmt::format("no such graph in the bundle: got q {} of context {}, expected one of q {}", step.query, context_,
                       fmt::join(contract_->queries(context_), ", ")));
  if (position != position_) {
    refuse(fmt::format("{} position: got {}, expected {}", position < position_ ? "repeated" : "skipped", position, position_));
  }
  if (real < 1 || real > step.query) {
    refuse(fmt::format("count of real tokens out of range: got {}, expected 1 to {}", real, step.query));
  }
  if (position + real > capacity()) {
    refuse(fmt::format("position beyond the capacity: got {} tokens, expected at most {}", position + real, capacity()));
  }
  return own->contract;
}

std::vector<TensorView> KvCache::inputs(const StepContract& given, uint64_t position, uint32_t real) {
  const StepContract& step = checked_step(given, position, real);
  scratch_.clear();
  std::vector<TensorView> views;
  const auto add = [&](const Port& port, std::span<const std::byte> bytes) {
    views.push_back({port.name, port.dtype, port.shape, bytes});
  };
  const auto add_made = [&](const Port& port, const std::vector<float>& values) {
    scratch_.push_back(to_compute_dtype(values, contract_->compute));
    add(port, scratch_.back());
  };
  for (const Port& port : step.inputs) {
    switch (port.role) {
      case PortRole::rope_cos:
      case PortRole::rope_sin:
        add_made(port, rope_rows(contract_->rope_rule(port.group), port.role, position, step.query));
        break;
      case PortRole::mask: {
        const auto cache = std::find_if(step.caches.begin(), step.caches.end(),
                                        [&](const CacheLayer& layer) { return layer.mask_group == port.group; });
        add_made(port, mask_rows(*find_mask_group(step, port.group), *cache, position, step.query, contract_->mask_fill));
        break;
      }
      case PortRole::k_cache:
      case PortRole::v_cache:
        add(port, buffers_[buffer_index(port)]);
        break;
      case PortRole::embedding_rows:
      case PortRole::token_ids:
      case PortRole::hidden_in:
      case PortRole::logits:
      case PortRole::hidden:
      case PortRole::k_new:
      case PortRole::v_new:
        break;
    }
  }
  return views;
}

void KvCache::commit(const StepContract& given, std::span<const TensorView> outputs, uint64_t position, uint32_t real) {
  const StepContract& step = checked_step(given, position, real);
  std::vector<const Port*> ports;
  for (const Port& port : step.outputs) {
    if (is_cache_output(port)) ports.push_back(&port);
  }
  if (outputs.size() != ports.size()) {
    refuse(fmt::format("cache tensors: got {}, expected {} (keys and values of {} layers)", outputs.size(), ports.size(),
                       step.caches.size()));
  }
  for (size_t i = 0; i < ports.size(); ++i) check_tensor(outputs[i], ports[i]->name, ports[i]->dtype, ports[i]->shape);
  for (size_t i = 0; i < ports.size(); ++i) {
    const CacheLayer& cache = step.caches[*ports[i]->layer];
    store_new(cache, buffers_[buffer_index(*ports[i])], outputs[i].bytes.data(), step.query, real);
  }
  position_ += real;
}

void KvCache::store_new(const CacheLayer& cache, Buffer& buffer, const std::byte* returned, uint32_t query, uint32_t real) const {
  const Entries slots{buffer.data(), cache.slots};
  const uint64_t bytes = entry_bytes(cache, contract_->compute);
  const auto copy = [&](uint64_t slot, const std::byte* from, uint64_t entries, uint64_t index, uint64_t count) {
    copy_run(slots, slot, from, entries, index, count, cache.kv_heads, bytes);
  };
  const uint64_t kept = std::min<uint64_t>(real, cache.slots);  // only the newest entries of a long call survive in a window
  if (cache.rule != SlotRule::roll) {
    for (uint64_t i = real - kept; i < real; ++i) {
      copy(slot_of_position(cache, position_ + i, position_ + real), returned, query, i, 1);
    }
  } else if (real == query) {
    copy(0, returned, cache.new_entries, cache.new_entries - cache.slots, cache.slots);
  } else {
    copy(0, buffer.data(), cache.slots, kept, cache.slots - kept);
    copy(cache.slots - kept, returned, cache.new_entries, cache.new_entries - query + real - kept, kept);
  }
}

void KvCache::grow(uint32_t context) {
  if (context < context_) {
    refuse(fmt::format("context cannot shrink: got {}, expected at least {}", context, context_));
  }
  const StepContract& target = layout_at(*contract_, context);
  std::vector<Buffer> buffers = zero_buffers(target, contract_->compute);
  for (size_t i = 0; i < buffers.size(); ++i) {
    const CacheLayer& from = layout_->caches[i / 2];
    const CacheLayer& to = target.caches[i / 2];
    const uint64_t kept = std::min<uint64_t>(position_, from.slots);
    for (uint64_t position = position_ - kept; position < position_; ++position) {
      copy_run({buffers[i].data(), to.slots}, slot_of_position(to, position, position_), buffers_[i].data(), from.slots,
               slot_of_position(from, position, position_), 1, to.kv_heads, entry_bytes(to, contract_->compute));
    }
  }
  buffers_ = std::move(buffers);
  layout_ = &target;
  context_ = context;
}

void KvCache::seed(std::span<const SeedLayer> layers, uint64_t count) {
  if (position_ != 0) refuse(fmt::format("cache is not empty: got {} stored tokens, expected 0", position_));
  if (count < 1 || count > capacity()) {
    refuse(fmt::format("count of seed tokens out of range: got {}, expected 1 to {}", count, capacity()));
  }
  if (layers.size() != layout_->caches.size()) {
    refuse(fmt::format("cache tensors: got {}, expected {} (keys and values of {} layers)", 2 * layers.size(), buffers_.size(),
                       layout_->caches.size()));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const Shape shape{layout_->caches[i].kv_heads, count, layout_->caches[i].head_dim};
    check_tensor(layers[i].keys, fmt::format("keys of layer {}", i), contract_->compute, shape);
    check_tensor(layers[i].values, fmt::format("values of layer {}", i), contract_->compute, shape);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const CacheLayer& cache = layout_->caches[i / 2];
    const TensorView& given = i % 2 == 0 ? layers[i / 2].keys : layers[i / 2].values;
    for (uint64_t position = count - std::min<uint64_t>(count, cache.slots); position < count; ++position) {
      copy_run({buffers_[i].data(), cache.slots}, slot_of_position(cache, position, count), given.bytes.data(), count, position,
               1, cache.kv_heads, entry_bytes(cache, contract_->compute));
    }
  }
  position_ = count;
}

KvCache::Snapshot KvCache::snapshot() const { return {contract_.get(), context_, position_, buffers_}; }

void KvCache::restore(const Snapshot& snapshot) {
  if (snapshot.contract != contract_.get()) refuse("snapshot is of another bundle: got one, expected one of this cache's bundle");
  if (snapshot.context != context_) {
    refuse(fmt::format("snapshot is of another context: got {}, expected {}", snapshot.context, context_));
  }
  const auto same_size = [](const Buffer& a, const Buffer& b) { return a.size() == b.size(); };
  if (snapshot.position > capacity() ||
      !std::equal(snapshot.buffers.begin(), snapshot.buffers.end(), buffers_.begin(), buffers_.end(), same_size)) {
    refuse(fmt::format("snapshot is damaged: got {} buffers at position {}, expected {} of this cache's sizes",
                       snapshot.buffers.size(), snapshot.position, buffers_.size()));
  }
  buffers_ = snapshot.buffers;
  position_ = snapshot.position;
}

void KvCache::clear() {
  for (Buffer& buffer : buffers_) std::fill(buffer.begin(), buffer.end(), std::byte{0});
  position_ = 0;
}

LayerEntries KvCache::entries(uint32_t layer) const {
  if (layer >= layout_->caches.size()) {
    refuse(fmt::format("no such layer: got {}, expected 0 to {}", layer, layout_->caches.size() - 1));
  }
  const CacheLayer& cache = layout_->caches[layer];
  LayerEntries out;
  out.count = std::min<uint64_t>(position_, cache.slots);
  out.first = position_ - out.count;
  const auto take = [&](const char* name, const Buffer& buffer) {
    Tensor tensor{name, contract_->compute, {cache.kv_heads, out.count, cache.head_dim}, {}};
    tensor.bytes.resize(tensor_bytes(tensor.dtype, tensor.shape));
    for (uint64_t i = 0; i < out.count; ++i) {
      copy_run({tensor.bytes.data(), out.count}, i, buffer.data(), cache.slots, slot_of_position(cache, out.first + i, position_),
               1, cache.kv_heads, entry_bytes(cache, contract_->compute));
    }
    return tensor;
  };
  out.keys = take("keys", buffers_[size_t{2} * layer]);
  out.values = take("values", buffers_[size_t{2} * layer + 1]);
  return out;
}

}  // namespace transload
