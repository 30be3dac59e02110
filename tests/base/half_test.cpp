// Half and quarter floats against a reference in double arithmetic, over every stored value and the edges of rounding.
#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace transload {
namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

// The value of a small float from its definition: sign, 2^(e - bias), mantissa; subnormals at e = 0.
double decode(uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto mantissa = static_cast<double>(bits & ((1U << mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1U << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits) & 1) != 0 ? -1.0 : 1.0;
  const bool top = exponent == (1 << exponent_bits) - 1;
  if (top && has_infinity) return mantissa == 0 ? sign * INFINITY : std::copysign(NAN, sign);
  if (top && mantissa == (1 << mantissa_bits) - 1) return std::copysign(NAN, sign);
  const double scale = std::ldexp(1.0, (exponent == 0 ? 1 : exponent) - bias);
  return sign * scale * ((exponent == 0 ? 0.0 : 1.0) + std::ldexp(mantissa, -mantissa_bits));
}

void expect_decodes(float got, double expected, uint32_t stored) {
  ASSERT_EQ(std::signbit(got), std::signbit(expected)) << stored;
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(got)) << stored;
    ASSERT_NE(bits_of(got) & 0x00400000U, 0U) << "a signalling NaN from " << stored;
  } else {
    ASSERT_EQ(static_cast<double>(got), expected) << stored;
  }
}

// Nearest value with ties to even, by scaling to units of the last place and rounding a double there.
uint16_t encode(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto sign = static_cast<uint32_t>(std::signbit(value)) << (exponent_bits + mantissa_bits);
  const uint32_t infinity = ((1U << exponent_bits) - 1) << mantissa_bits;
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  const int exponent = magnitude == 0 ? 1 - bias : std::max(std::ilogb(magnitude), 1 - bias);
  const double units = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  // Units carry into the exponent by themselves, and past the largest value into infinity.
  const double code = units + static_cast<double>((exponent + bias - 1)) * std::ldexp(1.0, mantissa_bits);
  return static_cast<uint16_t>(sign | std::min(static_cast<uint32_t>(code), infinity));
}

TEST(Half, DecodesEveryF16) {
  for (uint32_t i = 0; i < 65536; ++i) expect_decodes(f16_to_f32(static_cast<uint16_t>(i)), decode(i, 5, 10, true), i);
}

TEST(Half, DecodesEveryBf16) {
  for (uint32_t i = 0; i < 65536; ++i) expect_decodes(bf16_to_f32(static_cast<uint16_t>(i)), decode(i, 8, 7, true), i);
}

TEST(Half, DecodesEveryF8) {
  for (uint32_t i = 0; i < 256; ++i) {
    expect_decodes(f8_e4m3_to_f32(static_cast<uint8_t>(i)), decode(i, 4, 3, false), i);
    expect_decodes(f8_e5m2_to_f32(static_cast<uint8_t>(i)), decode(i, 5, 2, true), i);
  }
  EXPECT_EQ(f8_e4m3_to_f32(0x7E), 448.0F);
  EXPECT_EQ(f8_e5m2_to_f32(0x7B), 57344.0F);
}

TEST(Half, ReturnsEveryHalfUnchanged) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const bool f16_nan = (i & 0x7FFF) > 0x7C00;
    const bool bf16_nan = (i & 0x7FFF) > 0x7F80;
    ASSERT_EQ(f32_to_f16(f16_to_f32(half)), f16_nan ? half | 0x0200 : half);
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(half)), bf16_nan ? half | 0x0040 : half);
  }
}

// Between two neighbouring halves: the middle, and one f32 step to each side of it.
TEST(Half, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t i = 0; i < 0x7C00; ++i) {
    const double middle = (decode(i, 5, 10, true) + (i == 0x7BFF ? 65536.0 : decode(i + 1, 5, 10, true))) / 2;
    const auto tie = static_cast<float>(middle);
    for (const float value : {tie, std::nextafterf(tie, 0), std::nextafterf(tie, INFINITY), -tie}) {
      ASSERT_EQ(f32_to_f16(value), encode(static_cast<double>(value), 5, 10)) << value;
    }
  }
  for (uint32_t i = 0; i < 0x7F80; ++i) {
    const uint32_t tie = i << 16 | 0x8000;
    for (const uint32_t bits : {tie, tie - 1, tie + 1, tie | 0x80000000U}) {
      ASSERT_EQ(f32_to_bf16(float_of(bits)), encode(static_cast<double>(float_of(bits)), 8, 7)) << bits;
    }
  }
}

TEST(Half, RoundsRandomFloatsAsTheReferenceDoes) {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = float_of(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(f32_to_f16(value), encode(static_cast<double>(value), 5, 10)) << value;
    ASSERT_EQ(f32_to_bf16(value), encode(static_cast<double>(value), 8, 7)) << value;
  }
}

TEST(Half, KnowsTheEdgesOfF16) {
  EXPECT_EQ(f32_to_f16(65504.0F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65519.996F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(f32_to_f16(-65520.0F), 0xFC00);
  EXPECT_EQ(f32_to_f16(INFINITY), 0x7C00);
  EXPECT_EQ(f32_to_f16(0x1p-24F), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1p-25F), 0x0000);
  EXPECT_EQ(f32_to_f16(0x1.000002p-25F), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1.8p-24F), 0x0002);
  EXPECT_EQ(f32_to_f16(0x1.ff8p-15F), 0x03FF);
  EXPECT_EQ(f32_to_f16(0x1.ffbffep-15F), 0x03FF);
  EXPECT_EQ(f32_to_f16(0x1.ffcp-15F), 0x0400);
  EXPECT_EQ(f32_to_f16(-0.0F), 0x8000);
  EXPECT_EQ(f32_to_f16(float_of(1)), 0x0000);
}

TEST(Half, QuietsNanAndKeepsItsSign) {
  EXPECT_EQ(f32_to_f16(float_of(0x7F800001)), 0x7E00);
  EXPECT_EQ(f32_to_f16(float_of(0xFFC02000)), 0xFE01);
  EXPECT_EQ(f32_to_bf16(float_of(0x7F800001)), 0x7FC0);
  EXPECT_EQ(f32_to_bf16(float_of(0xFFFFFFFF)), 0xFFFF);
  EXPECT_EQ(bits_of(f16_to_f32(0x7C01)), 0x7FC02000U);
  EXPECT_EQ(bits_of(bf16_to_f32(0xFF81)), 0xFFC10000U);
}

}  // namespace
}  // namespace transload
