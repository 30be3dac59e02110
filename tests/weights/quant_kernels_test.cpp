// The quantiser's kernels on every instruction set, bit for bit against their definition.
#include "weights/quant_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "io/file.h"
#include "io/json.h"
#include "weights/every_target.h"
#include "weights/kernels.h"
#include "weights/reference_quant.h"

namespace transload {
namespace {

TEST(QuantKernels, FindTheLargestMagnitudeWithNansAboveAll) {
  on_every_target([] {
    std::mt19937 random(5);
    for (size_t count = 0; count < 200; ++count) {
      std::vector<uint16_t> halves(count + 1);
      std::vector<float> floats(count + 1);
      uint16_t most16 = 0;
      uint32_t most32 = 0;
      for (size_t i = 1; i <= count; ++i) {  // from an odd address
        halves[i] = static_cast<uint16_t>(random() & (count % 3 == 0 ? 0xFFFF : 0x83FF));
        const auto bits = static_cast<uint32_t>(random());
        floats[i] = std::bit_cast<float>(bits);
        most16 = std::max<uint16_t>(most16, halves[i] & 0x7FFF);
        most32 = std::max(most32, std::bit_cast<uint32_t>(floats[i]) & 0x7FFFFFFF);
      }
      ASSERT_EQ(max_magnitude_u16(halves.data() + 1, count), most16) << count;
      ASSERT_EQ(max_magnitude_f32(floats.data() + 1, count), most32) << count;
    }
  });
}

// Ties and both their neighbours, for every integer and beyond the limits, and random values.
std::vector<float> hard_quotients(int bits) {
  std::vector<float> values{0.0F, -0.0F, std::numeric_limits<float>::denorm_min()};
  for (int i = -(1 << (bits - 1)) - 1; i <= 1 << (bits - 1); ++i) {
    const auto tie = static_cast<float>(i) + 0.5F;
    for (const float value : {static_cast<float>(i), tie, std::nextafter(tie, -1000.0F), std::nextafter(tie, 1000.0F)}) {
      values.push_back(value);
    }
  }
  std::mt19937 random(6);
  std::uniform_real_distribution<float> uniform(-static_cast<float>(1 << (bits - 1)), static_cast<float>(1 << (bits - 1)));
  for (int i = 0; i < 5000; ++i) values.push_back(uniform(random));
  return values;
}

int rounded(float value, float scale, int bits) {
  const auto quotient = static_cast<double>(value / scale);
  const double magnitude = std::floor(std::fabs(quotient) + 0.5);  // the sum is exact
  return static_cast<int>(std::clamp(std::copysign(magnitude, quotient), -std::ldexp(1, bits - 1), std::ldexp(1, bits - 1) - 1));
}

TEST(QuantKernels, DivideRoundHalfAwayFromZeroAndClampOnEveryTarget) {
  for (const int bits : {8, 4}) {
    for (const float scale : {1.0F, 0.0023441314697265625F, 3.9070844650268555e-05F, 1e-40F, 1e30F}) {
      std::vector<float> values = hard_quotients(bits);
      for (float& value : values) value *= scale;
      on_every_target([&] {
        std::vector<int8_t> q(values.size(), 99);
        quantize_values(values.data(), values.size(), scale, 1, bits, q.data());
        for (size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(q[i], rounded(values[i], scale, bits)) << values[i] << " / " << scale;
      });
    }
  }
}

TEST(QuantKernels, SumErrorsAlikeForEveryLengthOnEveryTarget) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> values(300);
  for (float& value : values) value = normal(random);
  const float scale = 0.0007F;
  const float ratio = 1.01F;
  for (size_t count = 0; count <= values.size(); count += 1 + count / 40) {
    UnitError expected;
    for (size_t i = 0; i < count; ++i) {
      const double x = static_cast<double>(values[i] / scale);
      const double difference = x - rounded(values[i], scale, 8) * static_cast<double>(ratio);
      expected.max_abs = std::max(expected.max_abs, static_cast<float>(std::fabs(difference)));
      expected.signal += x * x;
      expected.noise += difference * difference;
    }
    std::vector<UnitError> found;
    on_every_target([&] {
      std::vector<int8_t> q(count + 1, 99);
      found.push_back(quantize_values(values.data(), count, scale, ratio, 8, q.data()));
      EXPECT_EQ(q[count], 99);
      EXPECT_NEAR(found.back().max_abs, expected.max_abs, 1e-4);
      EXPECT_NEAR(found.back().signal, expected.signal, expected.signal * 1e-5);
      EXPECT_NEAR(found.back().noise, expected.noise, expected.noise * 1e-4);
      EXPECT_EQ(found.back().max_abs, found.front().max_abs);
      EXPECT_EQ(found.back().signal, found.front().signal);
      EXPECT_EQ(found.back().noise, found.front().noise);
    });
  }
}

TEST(QuantKernels, PermuteTilesAtAnyStrideOnEveryTarget) {
  std::mt19937 random(9);
  for (const int bits : {8, 4}) {
    for (const size_t count : {32U, 64U, 96U, 320U}) {
      std::vector<int> values(count);
      std::vector<int8_t> q(count);
      for (size_t i = 0; i < count; ++i) {
        values[i] = static_cast<int>(random() % (1U << bits)) - (1 << (bits - 1));
        q[i] = static_cast<int8_t>(values[i]);
      }
      const std::string expected = reference::store({values}, bits, QuantLayout::sm90);
      const auto tile = static_cast<size_t>(8 * bits);
      on_every_target([&] {
        for (const size_t stride : {tile, 3 * tile}) {
          std::vector<uint8_t> out((count + 63) / 64 * stride + 1, 0xEE);
          (bits == 8 ? permute_int8 : permute_int4)(q.data(), count, out.data(), stride);
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(out[i / tile * stride + i % tile], static_cast<uint8_t>(expected[i])) << count << " " << bits << " " << i;
          }
          if (stride > tile) {
            ASSERT_EQ(out[tile], 0xEE);
          }
          ASSERT_EQ(out[(expected.size() - 1) / tile * stride + (expected.size() - 1) % tile + 1], 0xEE);
        }
      });
    }
  }
}

std::vector<int> integers(const Json& list) {
  std::vector<int> values;
  for (const Json& value : list.array()) values.push_back(static_cast<int>(value.integer()));
  return values;
}

TEST(QuantKernels, GiveTheLastStepAndTheNibblesOfTheVectors) {
  const Json vectors = parse_json(read_text_file(TRANSLOAD_TEST_DATA "/trtllm/vectors.json"), "vectors.json");
  on_every_target([&] {
    for (const Json& row : vectors.find("last_step")->array()) {
      const auto bits = static_cast<int>(row.find("bits")->integer());
      const std::vector<int> last = integers(*row.find("q"));
      const std::vector<int> expected = integers(*row.find("bytes_signed"));
      // The vector is what the row permutation leaves: undo that one, over 32 values.
      std::vector<int8_t> q(32);
      const size_t group = bits == 8 ? 16 : 32;
      for (size_t k = 0; k < q.size(); ++k) {
        const size_t moved = k / group * group + reference::place_in_group(bits, k % group);
        q[k] = static_cast<int8_t>(last[moved % last.size()]);
      }
      std::vector<uint8_t> out(static_cast<size_t>(4 * bits));
      (bits == 8 ? permute_int8 : permute_int4)(q.data(), q.size(), out.data(), 64);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(static_cast<int8_t>(out[i]), expected[i % expected.size()]) << bits;
    }
    const std::vector<int> packing = integers(*vectors.find("packing_int4")->find("q"));
    const std::vector<int> expected = integers(*vectors.find("packing_int4")->find("bytes_signed"));
    std::vector<int8_t> q(packing.begin(), packing.end());
    std::vector<uint8_t> out(q.size() / 2);
    pack_int4(q.data(), q.data() + 1, 2, out.size(), out.data());
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(static_cast<int8_t>(out[i]), expected[i]);
  });
}

TEST(QuantKernels, TransposeBytesOfEveryTileEdgeOnEveryTarget) {
  on_every_target([] {
    for (const size_t rows : {1, 2, 15, 16, 17, 32, 50}) {
      for (const size_t columns : {1, 3, 16, 31, 48, 65}) {
        const size_t in_stride = columns + 3;
        const size_t out_stride = rows + 5;
        std::vector<uint8_t> in(rows * in_stride);
        for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i * 2654435761U >> 7);
        std::vector<uint8_t> out(columns * out_stride, 0x77);
        transpose_u8(in.data(), in_stride, out.data(), out_stride, rows, columns);
        for (size_t c = 0; c < columns; ++c) {
          for (size_t r = 0; r < out_stride; ++r) {
            ASSERT_EQ(out[c * out_stride + r], r < rows ? in[r * in_stride + c] : 0x77) << rows << " x " << columns;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace transload
