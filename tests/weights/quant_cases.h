// Shapes and types for each weight-only layout, with everything about them by the definition.
#pragma once

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/scratch_folder.h"
#include "weights/executor.h"
#include "weights/quant_format.h"
#include "weights/reference_floats.h"
#include "weights/reference_quant.h"

namespace transload::quant_cases {

inline constexpr std::array kLayouts{QuantLayout::plain, QuantLayout::transpose, QuantLayout::sm80, QuantLayout::sm90};

inline std::string hex_of(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return hex;
}

inline TensorInfo stored(const ScratchFolder& folder, const std::string& name, DType dtype, Shape shape,
                         const std::string& bytes) {
  return {name, dtype, std::move(shape), 0, bytes.size(), InputFile::open(folder.write(name, bytes))};
}

inline std::string bytes_of(const std::vector<float>& values, DType dtype) {
  std::string bytes;
  for (const float value : values) {
    uint32_t bits = reference::bits_of(value);
    if (dtype == DType::f16) bits = reference::f32_to_f16(value);
    if (dtype == DType::bf16) bits = reference::f32_to_bf16(value);
    for (uint32_t i = 0; i < dtype_info(dtype).block_bytes; ++i) bytes += static_cast<char>(bits >> (8 * i) & 0xFF);
  }
  return bytes;
}

inline std::vector<float> values_of(const std::string& bytes, DType dtype) {
  std::vector<float> values;
  const size_t width = dtype_info(dtype).block_bytes;
  for (size_t i = 0; i < bytes.size(); i += width) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, width);
    if (dtype == DType::f32) values.push_back(std::bit_cast<float>(bits));
    if (dtype == DType::f16) values.push_back(reference::f16_to_f32(static_cast<uint16_t>(bits)));
    if (dtype == DType::bf16) values.push_back(reference::bf16_to_f32(static_cast<uint16_t>(bits)));
  }
  return values;
}

struct Case {
  uint8_t bits;
  QuantLayout layout;
  Shape shape;  // [out, in] or [n, out, in]
  DType dtype;
};

inline std::vector<Case> cases() {
  std::vector<Case> list;
  for (const uint8_t bits : {uint8_t{8}, uint8_t{4}}) {
    for (const QuantLayout layout : kLayouts) {
      const bool free = layout == QuantLayout::plain || layout == QuantLayout::transpose;
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        list.push_back({bits, layout, free ? Shape{70, 33} : Shape{192, 128}, dtype});
      }
      list.push_back({bits, layout, free ? Shape{3, 34, 50} : Shape{3, 64, 192}, DType::bf16});
    }
    list.push_back({bits, QuantLayout::sm90, {64, bits == 8 ? 96U : 64U}, DType::f16});
    list.push_back({bits, QuantLayout::plain, {2, 1}, DType::f32});
  }
  return list;
}

// Everything about a case by the definition.
struct Expected {
  std::string weight;
  std::vector<float> scales;
  std::vector<float> values;  // q * stored scale
  QuantError error;
};

inline Expected expect(const Case& c, const std::vector<float>& weights, DType scale_dtype) {
  const QuantFormat format = quant_format({c.bits, c.layout}, c.shape);
  Expected expected;
  for (uint64_t matrix = 0; matrix < format.matrices; ++matrix) {
    std::vector<std::vector<int>> q;
    for (uint64_t n = 0; n < format.out; ++n) {
      const auto begin = weights.begin() + static_cast<ptrdiff_t>((matrix * format.out + n) * format.in);
      const std::vector<float> row(begin, begin + static_cast<ptrdiff_t>(format.in));
      const reference::Channel channel = reference::quantize_channel(row, c.bits);
      const float scale = values_of(bytes_of({channel.scale}, scale_dtype), scale_dtype)[0];
      expected.scales.push_back(scale);
      for (size_t k = 0; k < row.size(); ++k) {
        const float value = static_cast<float>(channel.q[k]) * scale;
        const double difference = static_cast<double>(row[k]) - static_cast<double>(channel.q[k]) * static_cast<double>(scale);
        expected.values.push_back(value);
        expected.error.max_abs = std::max(expected.error.max_abs, std::fabs(difference));
        expected.error.signal += static_cast<double>(row[k]) * static_cast<double>(row[k]);
        expected.error.noise += difference * difference;
      }
      q.push_back(channel.q);
    }
    // Stacked matrices lie as for sm80 where sm90 is asked for.
    const bool stacked = c.shape.size() == 3 && c.layout == QuantLayout::sm90;
    expected.weight += reference::store(q, c.bits, stacked ? QuantLayout::sm80 : c.layout);
  }
  return expected;
}

inline std::vector<float> normal_values(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The stored pair of a case.
inline Recipe pair_of(const ScratchFolder& folder, const Case& c, const Expected& expected, DType scale_dtype) {
  Shape shape = c.shape;
  std::swap(shape.back(), shape[shape.size() - 2]);
  shape.back() = shape.back() * c.bits / 8;
  Shape scales_shape = c.shape;
  scales_shape.pop_back();
  return dequantize(stored(folder, "q", DType::i8, shape, expected.weight),
                    stored(folder, "s", scale_dtype, scales_shape, bytes_of(expected.scales, scale_dtype)), {c.bits, c.layout});
}

inline std::vector<float> floats_of(const Recipe& recipe) {
  const std::vector<std::byte> bytes = materialize(recipe);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace transload::quant_cases
