// Every kernel on every instruction set of this machine, bit for bit against base/half.h and against arithmetic on doubles.
#include "weights/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/half.h"
#include "weights/every_target.h"
#include "weights/reference_floats.h"

namespace transload {
namespace {

using reference::bits_of;

std::vector<uint16_t> all_halves() {
  std::vector<uint16_t> values(65536);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  return values;
}

// Ties, limits of the formats, subnormals, NaN payloads, and a million random bit patterns.
const std::vector<float>& hard_floats() {
  static const std::vector<float> values = [] {
    std::vector<float> list;
    const auto add = [&list](uint32_t bits) {
      for (const uint32_t sign : {0U, 0x80000000U}) list.push_back(std::bit_cast<float>(bits | sign));
    };
    for (const uint32_t bits : {0U, 1U, 0x007FFFFFU, 0x00800000U, 0x7F7FFFFFU, 0x7F800000U, 0x7F800001U, 0x7F801FFFU, 0x7F802000U,
                                0x7FBFFFFFU, 0x7FC00000U, 0x7FC12345U, 0x7FFFFFFFU, 0x7F7F8000U, 0x7F7F7FFFU, 0x7F000000U}) {
      add(bits);
    }
    // Every f16 and bf16 value, the middle to its neighbour, and the floats on both sides of that middle.
    for (uint32_t half = 0; half < 0x7C00; ++half) {
      const uint32_t low = bits_of(reference::f16_to_f32(static_cast<uint16_t>(half)));
      const float next = half + 1 == 0x7C00 ? 65536.0F : reference::f16_to_f32(static_cast<uint16_t>(half + 1));
      const uint32_t middle = bits_of((std::bit_cast<float>(low) + next) / 2);
      for (const uint32_t bits : {low, middle - 1, middle, middle + 1}) add(bits);
    }
    for (uint32_t half = 0; half < 0x7F80; ++half) {
      for (const uint32_t rest : {0x0000U, 0x7FFFU, 0x8000U, 0x8001U}) add((half << 16) | rest);
    }
    for (uint32_t bits = bits_of(65504.0F); bits <= bits_of(65520.0F) + 2; ++bits) add(bits);
    std::mt19937 random(20240517);
    for (int i = 0; i < 1'000'000; ++i) list.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    return list;
  }();
  return values;
}

TEST(HalfReference, AgreesWithBaseForEveryHalfValueAndHardFloats) {
  for (const uint16_t half : all_halves()) {
    ASSERT_EQ(bits_of(reference::f16_to_f32(half)), bits_of(f16_to_f32(half))) << half;
    ASSERT_EQ(bits_of(reference::bf16_to_f32(half)), bits_of(bf16_to_f32(half))) << half;
  }
  for (const float value : hard_floats()) {
    ASSERT_EQ(reference::f32_to_f16(value), f32_to_f16(value)) << bits_of(value);
    ASSERT_EQ(reference::f32_to_bf16(value), f32_to_bf16(value)) << bits_of(value);
  }
}

TEST(Kernels, WidenEveryHalfValueOnEveryTarget) {
  on_every_target([] {
    const std::vector<uint16_t> halves = all_halves();
    std::vector<float> values(halves.size());
    convert_f16_to_f32(halves.data(), values.data(), halves.size());
    for (size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(bits_of(values[i]), bits_of(reference::f16_to_f32(halves[i]))) << i;
    convert_bf16_to_f32(halves.data(), values.data(), halves.size());
    for (size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(bits_of(values[i]), bits_of(reference::bf16_to_f32(halves[i]))) << i;
  });
}

TEST(Kernels, ConvertBetweenHalvesInPlaceOnEveryTarget) {
  on_every_target([] {
    const std::vector<uint16_t> halves = all_halves();
    NumericCounts expected;
    for (const uint16_t half : halves) {
      const float value = reference::bf16_to_f32(half);
      expected.overflow += reference::overflows_f16(value) ? 1 : 0;
      expected.nan += std::isnan(value) ? 1 : 0;
    }
    std::vector<uint16_t> values = halves;
    const NumericCounts counts = convert_bf16_to_f16(values.data(), values.data(), values.size());
    EXPECT_EQ(counts, expected);
    for (size_t i = 0; i < halves.size(); ++i)
      ASSERT_EQ(values[i], reference::f32_to_f16(reference::bf16_to_f32(halves[i]))) << i;
    values = halves;
    EXPECT_EQ(convert_f16_to_bf16(values.data(), values.data(), values.size()), (NumericCounts{0, 2046}));
    for (size_t i = 0; i < halves.size(); ++i)
      ASSERT_EQ(values[i], reference::f32_to_bf16(reference::f16_to_f32(halves[i]))) << i;
  });
}

// Whole vectors of one value: the path for vectors without rare values must know every value it may take.
TEST(Kernels, ConvertVectorsOfOneBf16ValueOnEveryTarget) {
  constexpr size_t kRepeat = 64;
  on_every_target([] {
    std::vector<uint16_t> out(kRepeat);
    for (const uint16_t half : all_halves()) {
      const std::vector<uint16_t> in(kRepeat, half);
      const float value = reference::bf16_to_f32(half);
      const NumericCounts counts = convert_bf16_to_f16(in.data(), out.data(), kRepeat);
      ASSERT_EQ(counts, (NumericCounts{reference::overflows_f16(value) ? kRepeat : 0, std::isnan(value) ? kRepeat : 0})) << half;
      ASSERT_EQ(out, std::vector<uint16_t>(kRepeat, reference::f32_to_f16(value))) << half;
    }
  });
}

TEST(Kernels, NarrowHardFloatsAndCountOnEveryTarget) {
  NumericCounts expected;
  std::vector<uint16_t> f16;
  std::vector<uint16_t> bf16;
  for (const float value : hard_floats()) {
    expected.overflow += reference::overflows_f16(value) ? 1 : 0;
    expected.nan += std::isnan(value) ? 1 : 0;
    f16.push_back(reference::f32_to_f16(value));
    bf16.push_back(reference::f32_to_bf16(value));
  }
  ASSERT_GT(expected.overflow, 1000U);
  ASSERT_GT(expected.nan, 1000U);
  on_every_target([&] {
    const std::vector<float>& values = hard_floats();
    std::vector<uint16_t> halves(values.size());
    EXPECT_EQ(convert_f32_to_f16(values.data(), halves.data(), values.size()), expected);
    for (size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(halves[i], f16[i]) << bits_of(values[i]);
    EXPECT_EQ(convert_f32_to_bf16(values.data(), halves.data(), values.size()), (NumericCounts{0, expected.nan}));
    for (size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(halves[i], bf16[i]) << bits_of(values[i]);
    EXPECT_EQ(count_nan_f32(values.data(), values.size()), expected.nan);
  });
}

TEST(Kernels, CountNansOfHalvesOnEveryTarget) {
  on_every_target([] {
    // Long enough that the 16-bit lane counters wrap unless they are flushed.
    std::vector<uint16_t> values(3'000'001, 0xFFFF);
    EXPECT_EQ(count_nan_f16(values.data(), values.size()), values.size());
    EXPECT_EQ(count_nan_bf16(values.data(), values.size()), values.size());
    const std::vector<uint16_t> halves = all_halves();
    EXPECT_EQ(count_nan_f16(halves.data(), halves.size()), 2U * 1023);
    EXPECT_EQ(count_nan_bf16(halves.data(), halves.size()), 2U * 127);
  });
}

// Every length up to 130, from every offset in a cache line: results inside equal the scalar code, nothing outside is touched.
TEST(Kernels, HonourOddLengthsAndUnalignedPointersOnEveryTarget) {
  on_every_target([] {
    constexpr uint16_t kGuard = 0xABCD;
    std::mt19937 random(7);
    std::vector<float> floats(256);
    std::vector<uint16_t> halves(256);
    for (float& value : floats) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    for (uint16_t& value : halves) value = static_cast<uint16_t>(random());
    for (size_t count = 0; count <= 130; ++count) {
      const size_t shift = count % 32;
      const float* in = floats.data() + shift;
      const uint16_t* half_in = halves.data() + shift + 1;
      std::vector<uint16_t> out(256, kGuard);
      std::vector<float> wide(256, 12345.0F);
      uint16_t* to = out.data() + 3 + shift;
      float* wide_to = wide.data() + 1 + shift;
      NumericCounts expected;
      for (size_t i = 0; i < count; ++i) {
        expected.overflow += reference::overflows_f16(in[i]) ? 1 : 0;
        expected.nan += std::isnan(in[i]) ? 1 : 0;
      }
      ASSERT_EQ(convert_f32_to_f16(in, to, count), expected);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(to[i], f32_to_f16(in[i])) << count;
      ASSERT_EQ(to[-1], kGuard);
      ASSERT_EQ(to[count], kGuard);
      ASSERT_EQ(count_nan_f32(in, count), expected.nan);
      convert_f32_to_bf16(in, to, count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(to[i], f32_to_bf16(in[i])) << count;
      convert_bf16_to_f16(half_in, to, count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(to[i], f32_to_f16(bf16_to_f32(half_in[i]))) << count;
      ASSERT_EQ(to[-1], kGuard);
      ASSERT_EQ(to[count], kGuard);
      convert_f16_to_f32(half_in, wide_to, count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(bits_of(wide_to[i]), bits_of(f16_to_f32(half_in[i]))) << count;
      convert_bf16_to_f32(half_in, wide_to, count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(bits_of(wide_to[i]), bits_of(bf16_to_f32(half_in[i]))) << count;
      ASSERT_EQ(wide_to[-1], 12345.0F);
      ASSERT_EQ(wide_to[count], 12345.0F);
      uint64_t nans = 0;
      for (size_t i = 0; i < count; ++i) nans += std::isnan(f16_to_f32(half_in[i])) ? 1 : 0;
      ASSERT_EQ(count_nan_f16(half_in, count), nans);
    }
  });
}

TEST(Kernels, ScaleAndOffsetRoundTwiceOnEveryTarget) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 100);
  std::vector<float> values(1001);
  for (float& value : values) value = normal(random);
  const float scale = 1.1F;
  const float offset = -0.7F;
  on_every_target([&] {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{17}, values.size()}) {
      std::vector<float> scaled = values;
      scale_and_offset(scaled.data(), count, scale, offset);
      for (size_t i = 0; i < values.size(); ++i) {
        // Exact in double, then rounded to float: what one unfused multiplication gives.
        const auto product = static_cast<float>(static_cast<double>(values[i]) * static_cast<double>(scale));
        const auto sum = static_cast<float>(static_cast<double>(product) + static_cast<double>(offset));
        ASSERT_EQ(bits_of(scaled[i]), bits_of(i < count ? sum : values[i])) << i;
      }
    }
  });
}

template <class T, class Transpose>
void check_transpose(const Transpose& transpose) {
  for (const size_t rows : {1, 2, 7, 8, 9, 16, 31, 64}) {
    for (const size_t columns : {1, 3, 4, 8, 15, 16, 40, 65}) {
      const size_t in_stride = columns + 3;
      const size_t out_stride = rows + 5;
      std::vector<T> in(rows * in_stride);
      for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<T>(i * 2654435761U);
      std::vector<T> out(columns * out_stride, T{0x77});
      transpose(in.data(), in_stride, out.data(), out_stride, rows, columns);
      for (size_t c = 0; c < columns; ++c) {
        for (size_t r = 0; r < out_stride; ++r) {
          ASSERT_EQ(out[c * out_stride + r], r < rows ? in[r * in_stride + c] : T{0x77}) << rows << " x " << columns;
        }
      }
    }
  }
}

TEST(Kernels, TransposeEveryTileEdgeOnEveryTarget) {
  on_every_target([] {
    check_transpose<uint16_t>(transpose_u16);
    check_transpose<uint32_t>(transpose_u32);
  });
}

}  // namespace
}  // namespace transload
