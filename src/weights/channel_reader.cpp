// Groups of channels are contiguous in every layout but plain, of which a band of columns is read at once.
#include "weights/channel_reader.h"

#include <algorithm>
#include <array>

#include "io/file.h"
#include "weights/convert.h"
#include "weights/lower.h"

namespace transload {
namespace {

bool same_bytes(const TensorInfo& a, const TensorInfo& b) {
  return a.file == b.file && a.offset == b.offset && a.bytes == b.bytes;
}

bool same_pair(const DequantizeLeaf& a, const DequantizeLeaf& b) {
  return a.format == b.format && same_bytes(a.weight, b.weight) && same_bytes(a.scales, b.scales);
}

int nibble(const std::byte* bytes, uint64_t index) { return std::to_integer<int>(bytes[index / 2] >> (index % 2 * 4)) & 15; }

// Two's complement of 4 bits.
int signed_nibble(int value) { return (value ^ 8) - 8; }

// A group of rows in the order of input channels: the row permutation and the register shuffle undone.
void decode_16_int8(const std::byte* bytes, float scale, float* out) {
  for (size_t i = 0; i < 8; ++i) {
    out[i] = static_cast<float>(std::to_integer<int>(bytes[2 * i]) - 128) * scale;
    out[8 + i] = static_cast<float>(std::to_integer<int>(bytes[2 * i + 1]) - 128) * scale;
  }
}
void decode_32_int4(const std::byte* bytes, float scale, float* out) {
  for (size_t i = 0; i < 8; ++i) {
    const int even = std::to_integer<int>(bytes[2 * i]);
    const int odd = std::to_integer<int>(bytes[2 * i + 1]);
    out[i] = static_cast<float>((even & 15) - 8) * scale;
    out[8 + i] = static_cast<float>((even >> 4) - 8) * scale;
    out[16 + i] = static_cast<float>((odd & 15) - 8) * scale;
    out[24 + i] = static_cast<float>((odd >> 4) - 8) * scale;
  }
}

// Channel `place` of `group` interleaved ones.
void decode_tiles(const QuantFormat& format, const std::byte* bytes, uint64_t place, uint64_t group, uint64_t first,
                  uint64_t count, float scale, float* out) {
  const uint64_t rows = format.bits == 8 ? 16 : 32;
  std::array<float, 32> values;
  for (uint64_t done = 0; done < count;) {
    const uint64_t k = first + done;
    const uint64_t lead = k % rows;
    const uint64_t part = std::min(rows - lead, count - done);
    const uint64_t tile = (k / kQuantTileValues * group + place) * kQuantTileValues;
    const std::byte* from = bytes + format.packed_bytes(tile + (k - lead) % kQuantTileValues);
    float* to = part == rows ? out + done : values.data();
    if (format.bits == 8) {
      decode_16_int8(from, scale, to);
    } else {
      decode_32_int4(from, scale, to);
    }
    if (part < rows) std::copy_n(values.begin() + static_cast<ptrdiff_t>(lead), part, out + done);
    done += part;
  }
}

// Values `step` apart, from value `start` of `bytes` on.
void decode_signed(const QuantFormat& format, const std::byte* bytes, uint64_t start, uint64_t step, uint64_t count, float scale,
                   float* out) {
  if (format.bits == 8) {
    for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int8_t>(bytes[start + i * step])) * scale;
  } else {
    for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<float>(signed_nibble(nibble(bytes, start + i * step))) * scale;
  }
}

}  // namespace

void ChannelReader::load_scales(const TensorInfo& scales) {
  std::vector<std::byte> stored(packed_bytes(scales.dtype, channel_count_));
  source_file(scales).read_at(scales.offset + packed_bytes(scales.dtype, first_channel_), stored);
  scales_.resize(channel_count_);
  convert_to_f32(scales.dtype, stored.data(), channel_count_, scales_.data());
}

void ChannelReader::load(const DequantizeLeaf& leaf, uint64_t channel) {
  const bool kept = channel >= first_channel_ && channel - first_channel_ < channel_count_;
  if (kept && same_pair(leaf_, leaf)) return;
  const QuantFormat& format = leaf.format;
  const InputFile& file = source_file(leaf.weight);
  channel_count_ = 0;
  if (format.layout != QuantLayout::plain) {
    const uint64_t group = format.group_channels();
    first_channel_ = channel / group * group;
    bytes_.resize(format.packed_bytes(group * format.in));
    file.read_at(leaf.weight.offset + format.packed_bytes(first_channel_ * format.in), bytes_);
    channel_count_ = group;
  } else {
    const uint64_t matrix = channel / format.out;
    const uint64_t per_byte = 8 / format.bits;
    const uint64_t most = std::max<uint64_t>(1, kMostBytes / format.in) * per_byte;
    const uint64_t column = channel % format.out / most * most;
    const uint64_t columns = std::min(most, format.out - column);
    const uint64_t row_bytes = format.packed_bytes(format.out);
    const uint64_t band_bytes = format.packed_bytes(columns);
    first_channel_ = matrix * format.out + column;
    bytes_.resize(format.in * band_bytes);
    const uint64_t start = leaf.weight.offset + matrix * format.in * row_bytes + format.packed_bytes(column);
    if (columns == format.out) {
      file.read_at(start, bytes_);
    } else {
      for (uint64_t row = 0; row < format.in; ++row) {
        file.read_at(start + row * row_bytes, {bytes_.data() + row * band_bytes, band_bytes});
      }
    }
    channel_count_ = columns;
  }
  try {
    load_scales(leaf.scales);
  } catch (...) {
    channel_count_ = 0;
    throw;
  }
  leaf_ = leaf;
}

void ChannelReader::decode(const QuantFormat& format, uint64_t channel, uint64_t first, uint64_t count, float* out) const {
  const uint64_t place = channel - first_channel_;
  const float scale = scales_[place];
  switch (format.layout) {
    case QuantLayout::plain:
      decode_signed(format, bytes_.data(), first * channel_count_ + place, channel_count_, count, scale, out);
      return;
    case QuantLayout::transpose:
      decode_signed(format, bytes_.data(), place * format.in + first, 1, count, scale, out);
      return;
    case QuantLayout::sm80:
    case QuantLayout::sm90:
      decode_tiles(format, bytes_.data(), place, channel_count_, first, count, scale, out);
      return;
  }
}

void ChannelReader::read(const DequantizeLeaf& leaf, uint64_t first, uint64_t count, float* out) {
  const uint64_t in = leaf.format.in;
  for (uint64_t done = 0; done < count;) {
    const uint64_t channel = (first + done) / in;
    const uint64_t at = (first + done) % in;
    const uint64_t part = std::min(in - at, count - done);
    load(leaf, channel);
    decode(leaf.format, channel, at, part, out + done);
    done += part;
  }
}

}  // namespace transload
