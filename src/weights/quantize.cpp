// Channels are read in the weight's own type, scaled and rounded one by one, and put in the order of the layout while they are
// in the cache.
#include "weights/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "transload/error.h"
#include "weights/convert.h"
#include "weights/kernels.h"
#include "weights/quant_kernels.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

constexpr uint64_t kChunk = 2048;         // values of a channel in f32 at a time
constexpr uint64_t kPageBytes = 4096;     // of a file
constexpr uint64_t kTurnedChannels = 32;  // whole bytes and whole vectors, for 4 bits too
constexpr uint64_t kRowPad = 64;

// The largest magnitude, NaN left out, and whether all values are finite.
struct Magnitude {
  float value = 0;
  bool finite = true;
};

// `values` are f32, f16 or bf16.
float value_at(DType dtype, const std::byte* values, uint64_t index) {
  float value = 0;
  convert_to_f32(dtype, values + packed_bytes(dtype, index), 1, &value);
  return value;
}

Magnitude magnitude_of(DType dtype, const std::byte* values, uint64_t count) {
  float value = 0;
  if (dtype == DType::f32) {
    value = std::bit_cast<float>(max_magnitude_f32(reinterpret_cast<const float*>(values), count));
  } else {
    const uint16_t bits = max_magnitude_u16(reinterpret_cast<const uint16_t*>(values), count);
    value = dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  if (std::isfinite(value)) return {value, true};
  value = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(value_at(dtype, values, i));
    if (magnitude > value) value = magnitude;  // false for NaN
  }
  return {value, false};
}

float stored_scale(DType dtype, float scale) {
  if (dtype == DType::f16) return f16_to_f32(f32_to_f16(scale));
  if (dtype == DType::bf16) return bf16_to_f32(f32_to_bf16(scale));
  return scale;
}

// A channel with NaN or infinity, value by value, as TensorRT-LLM does on x86: what is no number after the division becomes 127,
// or -8 in 4 bits. Such values count as no error.
UnitError quantize_not_finite(DType dtype, const std::byte* values, uint64_t count, float scale, float ratio, int bits,
                              int8_t* q) {
  const float half = std::ldexp(1.0F, bits - 1);
  UnitError error;
  for (uint64_t i = 0; i < count; ++i) {
    const float x = value_at(dtype, values, i) / scale;
    if (std::isnan(x)) {
      q[i] = bits == 8 ? 127 : -8;
      continue;
    }
    const float rounded = std::clamp(std::round(x), -half, half - 1);
    q[i] = static_cast<int8_t>(rounded);
    const float difference = x - rounded * ratio;
    error.max_abs = std::max(error.max_abs, std::fabs(difference));
    error.signal += static_cast<double>(x) * static_cast<double>(x);
    error.noise += static_cast<double>(difference) * static_cast<double>(difference);
  }
  return error;
}

}  // namespace

QuantError& operator+=(QuantError& sum, const QuantError& part) {
  sum.max_abs = std::max(sum.max_abs, part.max_abs);
  sum.signal += part.signal;
  sum.noise += part.noise;
  return sum;
}

StoredScales store_scales(const std::vector<float>& scales, DType dtype) {
  StoredScales stored;
  stored.bytes.resize(packed_bytes(dtype, scales.size()));
  for (size_t i = 0; i < scales.size(); ++i) {
    std::byte* to = stored.bytes.data() + packed_bytes(dtype, i);
    if (dtype == DType::f32) {
      std::memcpy(to, &scales[i], sizeof(float));
    } else {
      const uint16_t half = dtype == DType::f16 ? f32_to_f16(scales[i]) : f32_to_bf16(scales[i]);
      std::memcpy(to, &half, sizeof(half));
    }
    stored.infinite_count += std::isinf(stored_scale(dtype, scales[i])) ? 1 : 0;
  }
  return stored;
}

uint64_t LoweredQuant::first_channel(uint64_t piece) const {
  return tiles == 0 ? piece * piece_channels : piece / tiles * format.out + piece % tiles * piece_channels;
}

uint64_t LoweredQuant::channel_count(uint64_t piece) const {
  const uint64_t end = tiles == 0 ? format.channels() : (piece / tiles + 1) * format.out;
  return std::min(piece_channels, end - first_channel(piece));
}

Strips LoweredQuant::strips(uint64_t piece) const {
  const uint64_t first = first_channel(piece);
  const uint64_t count = channel_count(piece);
  if (tiles == 0) return {format.packed_bytes(first * format.in), 1, format.packed_bytes(count * format.in), 0};
  const uint64_t matrix = piece / tiles;
  return {format.packed_bytes(matrix * format.out * format.in + first % format.out), format.in, format.packed_bytes(count),
          format.packed_bytes(format.out)};
}

LoweredQuant lower_quantize(const Recipe& recipe, const PieceLimits& limits) {
  const QuantizeOp* op = find_operation<QuantizeOp>(recipe);
  if (op == nullptr)
    throw Error(ErrorCode::internal, "lowering of a quantised weight: got " + recipe.text() + ", expected quantize");
  LoweredQuant lowered;
  lowered.format = op->format;
  lowered.weight = lower(op->input, limits);
  const QuantFormat& format = lowered.format;
  const uint64_t channel_bytes = packed_bytes(lowered.weight.dtype, format.in);
  if (format.layout != QuantLayout::plain) {
    const uint64_t group = format.group_channels();
    const uint64_t groups = std::max<uint64_t>(1, limits.piece_bytes / (group * channel_bytes));
    lowered.piece_channels = std::min(groups * group, format.channels());
    lowered.piece_count = (format.channels() + lowered.piece_channels - 1) / lowered.piece_channels;
    lowered.read_channels = lowered.piece_channels;
    return lowered;
  }
  lowered.read_channels = std::max<uint64_t>(1, limits.piece_bytes / channel_bytes);
  // The rest of a band is for channels on their way.
  const uint64_t fitting = (limits.band_bytes - limits.band_bytes / 8) * 8 / (format.in * format.bits);
  if (fitting >= format.out) {
    lowered.piece_channels = format.out;
    lowered.piece_count = format.matrices;
    return lowered;
  }
  const uint64_t page = kPageBytes * 8 / format.bits;
  const uint64_t multiple = fitting >= page ? page : kTurnedChannels;
  lowered.piece_channels = std::max(multiple, fitting / multiple * multiple);
  lowered.tiles = (format.out + lowered.piece_channels - 1) / lowered.piece_channels;
  lowered.piece_count = lowered.tiles * format.matrices + 1;
  return lowered;
}

// Channels of a plain matrix are turned: a pad keeps them from sharing cache sets.
uint64_t QuantMaker::q_stride(const QuantFormat& format) {
  return format.layout == QuantLayout::plain ? format.in + kRowPad : format.in;
}

// Scales and quantises one channel; the error is against the scale as it is stored, and none where that is infinite.
QuantError QuantMaker::quantize_channel(const QuantFormat& format, DType dtype, const std::byte* values, DType scale_dtype,
                                        float& scale, int8_t* q) {
  const Magnitude largest = magnitude_of(dtype, values, format.in);
  scale = std::ldexp(1.0F, 1 - format.bits) * largest.value;
  if (scale == 0) {
    std::fill_n(q, format.in, int8_t{0});
    return {};
  }
  const float stored = stored_scale(scale_dtype, scale);
  const float ratio = std::isfinite(stored) ? stored / scale : 1;
  UnitError error;
  if (!largest.finite) {
    error = quantize_not_finite(dtype, values, format.in, scale, ratio, format.bits, q);
  } else {
    for (uint64_t done = 0; done < format.in; done += kChunk) {
      const uint64_t count = std::min(kChunk, format.in - done);
      const std::byte* chunk = values + packed_bytes(dtype, done);
      const float* floats = reinterpret_cast<const float*>(chunk);
      if (dtype != DType::f32) {
        convert_to_f32(dtype, chunk, count, values_.data());
        floats = values_.data();
      }
      const UnitError part = quantize_values(floats, count, scale, ratio, format.bits, q + done);
      error.max_abs = std::max(error.max_abs, part.max_abs);
      error.signal += part.signal;
      error.noise += part.noise;
    }
  }
  if (!std::isfinite(stored)) return {};
  const auto unit = static_cast<double>(scale);
  return {static_cast<double>(error.max_abs) * unit, error.signal * unit * unit, error.noise * unit * unit};
}

// Puts `count` channels that q_ holds, the first of them `first` of a piece of `piece_channels`, in their places.
void QuantMaker::store_group(const QuantFormat& format, uint64_t first, uint64_t count, uint64_t piece_channels, uint8_t* out) {
  const uint64_t tile = format.packed_bytes(kQuantTileValues);
  uint8_t* group = out + format.packed_bytes(first * format.in);  // where the channels of a group lie together
  switch (format.layout) {
    case QuantLayout::plain: {
      uint64_t turned = count;
      if (format.bits == 4) {
        turned /= 2;
        for (uint64_t i = 0; i < turned; ++i) {
          const int8_t* even = channel(format, 2 * i);
          pack_int4(even, even + q_stride(format), 1, format.in, reinterpret_cast<uint8_t*>(channel(format, i)));
        }
      }
      transpose_u8(reinterpret_cast<const uint8_t*>(q_.data()), q_stride(format), out + format.packed_bytes(first),
                   format.packed_bytes(piece_channels), turned, format.in);
      return;
    }
    case QuantLayout::transpose:
      if (format.bits == 4) {
        pack_int4(q_.data(), q_.data() + 1, 2, count * format.in / 2, group);
      } else {
        std::memcpy(group, q_.data(), count * format.in);
      }
      return;
    case QuantLayout::sm80:
    case QuantLayout::sm90:
      for (uint64_t i = 0; i < count; ++i) {
        if (format.bits == 8) {
          permute_int8(channel(format, i), format.in, group + i * tile, count * tile);
        } else {
          permute_int4(channel(format, i), format.in, group + i * tile, count * tile);
        }
      }
      return;
  }
}

QuantPieceResult QuantMaker::make(const LoweredQuant& tensor, uint64_t piece, DType scale_dtype, PieceMaker& maker,
                                  std::byte* out, float* scales) {
  const QuantFormat& format = tensor.format;
  const DType dtype = tensor.weight.dtype;
  const uint64_t first = tensor.first_channel(piece);
  const uint64_t count = tensor.channel_count(piece);
  const uint64_t group = format.layout == QuantLayout::plain ? kTurnedChannels : format.group_channels();
  const uint64_t channel_bytes = packed_bytes(dtype, format.in);
  rows_.resize(std::max<size_t>(rows_.size(), tensor.read_channels * channel_bytes));
  q_.resize(std::max<size_t>(q_.size(), group * q_stride(format)));
  values_.resize(kChunk);

  QuantPieceResult result;
  for (uint64_t begin = 0; begin < count; begin += tensor.read_channels) {
    const uint64_t end = std::min(count, begin + tensor.read_channels);
    result.counts += maker.make(tensor.weight, (first + begin) * format.in, (first + end) * format.in, rows_.data());
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t place = i % group;
      result.error += quantize_channel(format, dtype, rows_.data() + (i - begin) * channel_bytes, scale_dtype, scales[i],
                                       channel(format, place));
      if (place + 1 == group || i + 1 == count) {
        store_group(format, i - place, place + 1, count, reinterpret_cast<uint8_t*>(out));
      }
    }
  }
  return result;
}

}  // namespace transload
