// Masks, rotary rows and the places of cache slots, by the rules of docs/contract.md.
#include "runtime/step_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"

namespace transload {

int64_t position_of_slot(const CacheLayer& cache, uint64_t slot, uint64_t stored) {
  const auto end = static_cast<int64_t>(stored);
  const auto index = static_cast<int64_t>(slot);
  const int64_t slots = cache.slots;
  switch (cache.rule) {
    case SlotRule::append:
      return index < end ? index : -1;
    case SlotRule::ring: {
      const int64_t turns_back = (end - 1 - index) % slots;
      return end - 1 - (turns_back < 0 ? turns_back + slots : turns_back);
    }
    case SlotRule::roll:
      return end - slots + index;
  }
  return -1;
}

uint64_t slot_of_position(const CacheLayer& cache, uint64_t position, uint64_t stored) {
  switch (cache.rule) {
    case SlotRule::append:
      return position;
    case SlotRule::ring:
      return position % cache.slots;
    case SlotRule::roll:
      return position + cache.slots - stored;
  }
  return position;
}

std::vector<std::byte> to_compute_dtype(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * (dtype == DType::f16 ? sizeof(uint16_t) : sizeof(float)));
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = f32_to_f16(values[i]);
    std::memcpy(bytes.data() + i * sizeof(half), &half, sizeof(half));
  }
  return bytes;
}

std::vector<float> from_compute_dtype(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> values(bytes.size() / (dtype == DType::f16 ? sizeof(uint16_t) : sizeof(float)));
  if (values.empty()) return values;  // memcpy takes no null pointer, also for no bytes
  if (dtype == DType::f32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + i * sizeof(half), sizeof(half));
    values[i] = f16_to_f32(half);
  }
  return values;
}

// Angles are fp32 products, as the models compute them; their cosine is taken exactly and rounded once.
std::vector<float> rope_rows(const RopeRule& rule, PortRole role, uint64_t position, uint32_t query) {
  std::vector<float> rows;
  rows.reserve(uint64_t{query} * rule.table_width);
  const size_t half = rule.inv_freq.size();
  for (uint64_t row = 0; row < query; ++row) {
    for (size_t column = 0; column < rule.table_width; ++column) {
      if (column >= half) {
        rows.push_back(rows[rows.size() - half]);
        continue;
      }
      const float angle = static_cast<float>(position + row) * rule.inv_freq[column];
      const double turned =
          role == PortRole::rope_cos ? std::cos(static_cast<double>(angle)) : std::sin(static_cast<double>(angle));
      rows.push_back(static_cast<float>(turned) * rule.attention_factor);
    }
  }
  return rows;
}

namespace {

// `key` is not after `position`, and neither is negative.
bool sees(const MaskGroup& group, uint64_t head, uint64_t position, uint64_t key) {
  if (group.window && position - key >= *group.window) return false;
  if (!group.block_sparse) return true;
  const BlockSparse& pattern = *group.block_sparse;
  const uint64_t key_block = key / pattern.block;
  return position / pattern.block - key_block < pattern.local_blocks ||
         (key_block + head * pattern.head_step + 1) % pattern.vertical_stride == 0;
}

}  // namespace

std::vector<float> mask_rows(const MaskGroup& group, const CacheLayer& cache, uint64_t position, uint32_t query, float fill) {
  std::vector<int64_t> keys;
  for (uint64_t slot = cache.rule == SlotRule::roll ? 1 : 0; slot < cache.slots; ++slot) {
    keys.push_back(position_of_slot(cache, slot, position));
  }
  for (uint64_t row = 0; row < query; ++row) keys.push_back(static_cast<int64_t>(position + row));
  std::vector<float> rows;
  rows.reserve(group.heads * query * keys.size());
  for (uint64_t head = 0; head < group.heads; ++head) {
    for (uint64_t own = position; own < position + query; ++own) {
      for (const int64_t key : keys) {
        const bool is_open = key >= 0 && static_cast<uint64_t>(key) <= own && sees(group, head, own, static_cast<uint64_t>(key));
        rows.push_back(is_open ? 0.0F : fill);
      }
    }
  }
  return rows;
}

}  // namespace transload
