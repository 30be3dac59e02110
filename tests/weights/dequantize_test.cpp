// Block decoders against values the Python package `gguf` gave for the same random blocks (tests/data/gguf/make_quants.py).
#include "weights/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "error_matchers.h"

namespace transload {
namespace {

using testing::HasSubstr;

std::string file_bytes(const std::string& name) {
  std::ifstream stream(std::string(TRANSLOAD_TEST_DATA "/gguf/") + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class Dequantize : public testing::TestWithParam<DType> {};

TEST_P(Dequantize, EqualsThePythonPackageBitForBit) {
  const DTypeInfo& info = dtype_info(GetParam());
  const std::string blocks = file_bytes("quants_" + std::string(info.name) + ".blocks");
  const std::string expected = file_bytes("quants_" + std::string(info.name) + ".f32");
  const uint64_t block_count = blocks.size() / info.block_bytes;
  ASSERT_EQ(blocks.size(), 20 * info.block_bytes);
  ASSERT_EQ(expected.size(), block_count * info.block_elements * sizeof(float));

  // One value more, to see that nothing is written behind the last block.
  std::vector<float> values(block_count * info.block_elements + 1, 7.0F);
  dequantize(GetParam(), reinterpret_cast<const std::byte*>(blocks.data()), block_count, values.data());

  EXPECT_EQ(values.back(), 7.0F);
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, expected.data() + i * sizeof bits, sizeof bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), bits)
        << "value " << i % info.block_elements << " of block " << i / info.block_elements;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryBlockType, Dequantize,
                         testing::Values(DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0, DType::q2_k,
                                         DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k, DType::mxfp4),
                         [](const auto& row) { return std::string(dtype_name(row.param)); });

TEST(DequantizeScalars, IsABugOfTheCaller) {
  float out = 0;
  const std::byte in[8] = {};
  EXPECT_THAT([&] { dequantize(DType::bf16, in, 1, &out); }, Fails(ErrorCode::internal, HasSubstr("got bf16")));
}

TEST(DequantizeScalars, NoBlocksWriteNothing) {
  float out = 3;
  dequantize(DType::q4_0, nullptr, 0, &out);
  EXPECT_EQ(out, 3.0F);
}

}  // namespace
}  // namespace transload
