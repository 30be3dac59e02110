// Weight-only quantisation of one planned tensor, cut into pieces of whole output channels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weights/executor.h"
#include "weights/lower.h"
#include "weights/piece.h"
#include "weights/quant_format.h"

namespace transload {

// Pieces are ranges of whole groups of channels, contiguous in the output, or for a plain matrix larger than a band some
// columns of every row; then one more piece makes the digest.
struct LoweredQuant {
  QuantFormat format;
  LoweredTensor weight;
  uint64_t piece_channels = 0;
  uint64_t piece_count = 0;
  uint64_t read_channels = 0;  // at a time
  uint64_t tiles = 0;          // of each matrix; 0: the pieces are ranges

  bool tiled() const { return tiles > 0; }
  uint64_t bytes() const { return format.packed_bytes(format.channels() * format.in); }
  uint64_t first_channel(uint64_t piece) const;
  uint64_t channel_count(uint64_t piece) const;
  Strips strips(uint64_t piece) const;  // not of the piece that makes the digest
  uint64_t most_piece_bytes() const { return format.packed_bytes(piece_channels * format.in); }
};

// Of a recipe that quantizes.
LoweredQuant lower_quantize(const Recipe& recipe, const PieceLimits& limits = {});

// Adds up the errors of parts in order.
QuantError& operator+=(QuantError& sum, const QuantError& part);

struct StoredScales {
  std::vector<std::byte> bytes;
  uint64_t infinite_count = 0;
};
// Rounds to nearest even.
StoredScales store_scales(const std::vector<float>& scales, DType dtype);

struct QuantPieceResult {
  NumericCounts counts;  // of the weight before it is quantised
  QuantError error;
};

// The buffers of one worker; not thread-safe.
class QuantMaker {
 public:
  // Makes a piece at `out`, the rows of its strips one behind another, and the unrounded scales of its channels.
  QuantPieceResult make(const LoweredQuant& tensor, uint64_t piece, DType scale_dtype, PieceMaker& maker, std::byte* out,
                        float* scales);

 private:
  static uint64_t q_stride(const QuantFormat& format);
  int8_t* channel(const QuantFormat& format, uint64_t place) { return q_.data() + place * q_stride(format); }
  void store_group(const QuantFormat& format, uint64_t first, uint64_t count, uint64_t piece_channels, uint8_t* out);
  QuantError quantize_channel(const QuantFormat& format, DType dtype, const std::byte* values, DType scale_dtype, float& scale,
                              int8_t* q);

  std::vector<std::byte> rows_;  // in the type of the weight
  std::vector<int8_t> q_;        // of a group of channels
  std::vector<float> values_;    // a chunk of a channel
};

}  // namespace transload
