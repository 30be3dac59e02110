// The weight-only formats of TensorRT-LLM: which shapes they hold and which channels lie together.
#pragma once

#include <cstdint>
#include <string>

#include "transload/recipe.h"

namespace transload {

inline constexpr uint64_t kQuantTileValues = 64;  // of one channel that lie together where columns are interleaved

// One quantised weight. A channel is a row of the weight [out, in]; channels of stacked matrices are numbered through.
struct QuantFormat {
  uint8_t bits = 8;
  QuantLayout layout = QuantLayout::plain;  // as stored: sm80 also for stacked matrices that sm90 was asked for
  uint64_t matrices = 1;
  uint64_t out = 0;
  uint64_t in = 0;
  bool operator==(const QuantFormat&) const = default;

  uint64_t channels() const { return matrices * out; }
  uint64_t packed_bytes(uint64_t values) const { return values * bits / 8; }
  // Channels that share one run of whole bytes: c interleaved ones, two where a byte joins their ends, all of a plain matrix.
  uint64_t group_channels() const;
};

// Of a weight of shape [out, in] or [n, out, in]; throws shape_mismatch for another rank, quant_unsupported where the layout
// cannot hold it.
QuantFormat quant_format(const WeightQuant& quant, const Shape& weight);
// "int8 sm80"
std::string quant_text(const QuantFormat& format);

}  // namespace transload
