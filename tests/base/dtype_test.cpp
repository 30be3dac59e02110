// Sizes of element types and tensors.
#include "transload/dtype.h"

#include <gmock/gmock.h>

#include <set>

#include "base/checked.h"
#include "error_matchers.h"

namespace transload {
namespace {

using testing::HasSubstr;

TEST(DTypes, HaveDistinctNamesAndFindTheirSafetensorsName) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    names.insert(dtype_name(dtype));
    const std::string_view stored = dtype_info(dtype).safetensors;
    if (!stored.empty()) {
      EXPECT_EQ(find_dtype_by_safetensors_name(stored), dtype);
    }
    EXPECT_EQ(stored.empty(), is_block(dtype)) << dtype_name(dtype);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kDTypeCount));
}

TEST(DTypes, DoNotFindNamesThatSafetensorsLacks) {
  for (const std::string_view name : {"", "f32", "F4", "F8_E8M0", "Q4_0", "F32 "}) {
    EXPECT_EQ(find_dtype_by_safetensors_name(name), std::nullopt) << name;
  }
}

TEST(DTypes, KnowWhichOnesAreFloating) {
  EXPECT_TRUE(is_floating(DType::bf16));
  EXPECT_TRUE(is_floating(DType::f8_e5m2));
  EXPECT_TRUE(is_floating(DType::mxfp4));
  EXPECT_FALSE(is_floating(DType::u8));
  EXPECT_FALSE(is_floating(DType::boolean));
}

struct SizeRow {
  DType dtype;
  Shape shape;
  uint64_t bytes;
};

class TensorBytes : public testing::TestWithParam<SizeRow> {};

TEST_P(TensorBytes, MatchTheShape) { EXPECT_EQ(tensor_bytes(GetParam().dtype, GetParam().shape), GetParam().bytes); }

INSTANTIATE_TEST_SUITE_P(Table, TensorBytes,
                         testing::Values(SizeRow{DType::f32, {}, 4}, SizeRow{DType::f64, {3, 5}, 120},
                                         SizeRow{DType::bf16, {7}, 14}, SizeRow{DType::f16, {4, 0, 9}, 0},
                                         SizeRow{DType::boolean, {2, 2, 2, 2}, 16}, SizeRow{DType::q4_0, {2, 64}, 72},
                                         SizeRow{DType::q4_1, {32}, 20}, SizeRow{DType::q5_0, {32}, 22},
                                         SizeRow{DType::q5_1, {32}, 24}, SizeRow{DType::q8_0, {3, 32}, 102},
                                         SizeRow{DType::q2_k, {256}, 84}, SizeRow{DType::q3_k, {256}, 110},
                                         SizeRow{DType::q4_k, {256}, 144}, SizeRow{DType::q5_k, {256}, 176},
                                         SizeRow{DType::q6_k, {2, 512}, 840}, SizeRow{DType::mxfp4, {4, 32}, 68},
                                         SizeRow{DType::i8, {uint64_t{1} << 62, 2}, uint64_t{1} << 63}));

TEST(TensorBytes, RefuseSizesBeyond64Bits) {
  const uint64_t big = uint64_t{1} << 32;
  EXPECT_THAT([&] { element_count({big, big}); }, Fails(ErrorCode::size_overflow, HasSubstr("[4294967296,4294967296]")));
  EXPECT_THAT([&] { element_count({big, big / 2, 3}); }, Fails(ErrorCode::size_overflow, HasSubstr("at most 2^63")));
  EXPECT_THAT([&] { element_count({0, big, big}); }, Fails(ErrorCode::size_overflow, HasSubstr("element count")));
  EXPECT_THAT([&] { tensor_bytes(DType::f64, {big, big / 4}); }, Fails(ErrorCode::size_overflow, HasSubstr("f64")));
}

TEST(TensorBytes, RefuseAnAxisThatBlocksDoNotDivide) {
  EXPECT_THAT(
      [] {
        tensor_bytes(DType::q4_k, {256, 128});
      },
      Fails(ErrorCode::shape_mismatch, HasSubstr("q4_k tensor: got 128, expected a multiple of 256")));
  EXPECT_THAT([] { tensor_bytes(DType::q8_0, {}); }, Fails(ErrorCode::shape_mismatch, HasSubstr("got 1")));
}

TEST(ShapeText, ListsTheDimensions) {
  EXPECT_EQ(shape_text({32064, 3072}), "[32064,3072]");
  EXPECT_EQ(shape_text({}), "[]");
}

TEST(Checked, ReportsOverflow) {
  const uint64_t max = ~uint64_t{0};
  EXPECT_EQ(checked_add(max - 1, 1), max);
  EXPECT_EQ(checked_add(max, 1), std::nullopt);
  EXPECT_EQ(checked_mul(max, 1), max);
  EXPECT_EQ(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_add(2, 3, "size"), 5U);
  EXPECT_THAT([&] { checked_add(max, 1, "file size"); },
              Fails(ErrorCode::size_overflow, HasSubstr("file size: got 18446744073709551615 + 1")));
  EXPECT_THAT([&] { checked_mul(max, 2, "rows"); },
              Fails(ErrorCode::size_overflow, HasSubstr("rows: got 18446744073709551615 x 2")));
}

}  // namespace
}  // namespace transload
