// Weight-only quantisation by its definition, one value at a time: the closed form of each layout, none of the steps that the
// project takes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "transload/recipe.h"

namespace transload::reference {

// Of one channel of finite values.
struct Channel {
  float scale = 0;
  std::vector<int> q;
};

inline Channel quantize_channel(const std::vector<float>& values, int bits) {
  Channel channel;
  for (const float value : values) channel.scale = std::max(channel.scale, std::fabs(value));
  channel.scale /= static_cast<float>(1 << (bits - 1));
  const int half = 1 << (bits - 1);
  for (const float value : values) {
    if (channel.scale == 0) {
      channel.q.push_back(0);
      continue;
    }
    const double quotient = static_cast<double>(static_cast<float>(value / channel.scale));
    const auto magnitude = static_cast<int>(std::floor(std::fabs(quotient) + 0.5));  // exact in double
    channel.q.push_back(std::clamp(quotient < 0 ? -magnitude : magnitude, -half, half - 1));
  }
  return channel;
}

inline uint64_t place_in_group(int bits, uint64_t k) {
  static constexpr std::array<uint64_t, 16> kInt8{0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  const uint64_t group = bits == 8 ? 16 : 32;
  for (uint64_t j = 0; j < group; ++j) {
    const uint64_t row = bits == 8 ? kInt8[j] : j % 8 / 2 * 8 + j / 8 * 2 + j % 2;
    if (row == k) return j;
  }
  return group;
}

// Where value (k, n) of a [in, out] matrix is stored, in values.
inline uint64_t place_of(int bits, QuantLayout layout, uint64_t in, uint64_t out, uint64_t k, uint64_t n) {
  if (layout == QuantLayout::plain) return k * out + n;
  if (layout == QuantLayout::transpose) return n * in + k;
  const uint64_t group = bits == 8 ? 16 : 32;
  const uint64_t moved = k / group * group + place_in_group(bits, k % group);
  const uint64_t c = bits == 8 ? 2 : 4;
  const uint64_t place =
      layout == QuantLayout::sm90 ? n * in + moved : n / c * (c * in) + moved / 64 * 64 * c + n % c * 64 + moved % 64;
  // The register shuffle: output i of each unit is input kOrder[i].
  static constexpr std::array<uint64_t, 4> kBytes{0, 2, 1, 3};
  static constexpr std::array<uint64_t, 8> kNibbles{0, 2, 4, 6, 1, 3, 5, 7};
  const uint64_t unit = bits == 8 ? 4 : 8;
  for (uint64_t i = 0; i < unit; ++i) {
    if ((bits == 8 ? kBytes[i] : kNibbles[i]) == place % unit) return place / unit * unit + i;
  }
  return place;
}

// Stored bytes of q[n][k], a matrix of [out, in] values.
inline std::string store(const std::vector<std::vector<int>>& q, int bits, QuantLayout layout) {
  const uint64_t out = q.size();
  const uint64_t in = q.front().size();
  const bool biased = layout == QuantLayout::sm80 || layout == QuantLayout::sm90;
  std::string bytes(in * out * static_cast<uint64_t>(bits) / 8, '\0');
  for (uint64_t n = 0; n < out; ++n) {
    for (uint64_t k = 0; k < in; ++k) {
      const int value = (q[n][k] + (biased ? 1 << (bits - 1) : 0)) & ((1 << bits) - 1);
      const uint64_t place = place_of(bits, layout, in, out, k, n);
      if (bits == 8) {
        bytes[place] = static_cast<char>(value);
      } else {
        bytes[place / 2] = static_cast<char>(bytes[place / 2] | (value << (place % 2 * 4)));
      }
    }
  }
  return bytes;
}

}  // namespace transload::reference
