// Reads values of quantised pairs back: q * scale in f32, by flat position in the weight [out, in] or [n, out, in].
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weights/recipe_node.h"

namespace transload {

// Keeps the stored bytes of the channels it read last, since the layouts interleave channels: at most kMostBytes, or one group
// of channels where that is larger. Not thread-safe.
class ChannelReader {
 public:
  // Values first .. first + count - 1.
  void read(const DequantizeLeaf& leaf, uint64_t first, uint64_t count, float* out);

  static constexpr uint64_t kMostBytes = uint64_t{4} << 20;

 private:
  void load(const DequantizeLeaf& leaf, uint64_t channel);
  void load_scales(const TensorInfo& scales);
  void decode(const QuantFormat& format, uint64_t channel, uint64_t first, uint64_t count, float* out) const;

  // What bytes_ and scales_ hold.
  DequantizeLeaf leaf_;
  uint64_t first_channel_ = 0;
  uint64_t channel_count_ = 0;  // 0: nothing
  std::vector<std::byte> bytes_;
  std::vector<float> scales_;
};

}  // namespace transload
