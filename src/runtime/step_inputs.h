// What the host computes for each call of a decode step: which slot holds which position, masks, rotary rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transload/contract.h"

namespace transload {

// Position that a slot holds when `stored` tokens are; negative where it is empty.
int64_t position_of_slot(const CacheLayer& cache, uint64_t slot, uint64_t stored);
// Slot of a position that is held when `stored` tokens are.
uint64_t slot_of_position(const CacheLayer& cache, uint64_t position, uint64_t stored);

// [query, table_width] cosines or sines for positions `position` and up, times the attention factor.
std::vector<float> rope_rows(const RopeRule& rule, PortRole role, uint64_t position, uint32_t query);
// [heads of the group, query, columns]: 0 where a row may see a key of the cache or of the call, else `fill`.
std::vector<float> mask_rows(const MaskGroup& group, const CacheLayer& cache, uint64_t position, uint32_t query, float fill);

// f32, or f16 rounded to nearest even.
std::vector<std::byte> to_compute_dtype(const std::vector<float>& values, DType dtype);
// f32 or f16 values as f32.
std::vector<float> from_compute_dtype(std::span<const std::byte> bytes, DType dtype);

}  // namespace transload
