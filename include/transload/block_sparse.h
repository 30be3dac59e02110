// BlockSparse: the keys each head of a block-sparse attention layer sees.
#pragma once

#include <cstdint>

namespace transload {

// Which keys a head sees of those before it: with blocks of `block` positions, query head h at position p sees position k when
// p / block - k / block < local_blocks, or (k / block + h * head_step + 1) mod vertical_stride is 0.
struct BlockSparse {
  uint32_t block = 0;
  uint32_t local_blocks = 0;
  uint32_t vertical_stride = 0;
  uint32_t head_step = 0;  // 0: one pattern for all heads
  bool operator==(const BlockSparse&) const = default;
};

}  // namespace transload
