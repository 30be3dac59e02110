// Plans: totals, ranges that must not meet, and the text for --explain.
#include "weights/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "error_matchers.h"
#include "weights/lower.h"

namespace transload {
namespace {

using testing::HasSubstr;

Recipe stored(DType dtype, Shape shape) {
  TensorInfo info{"w", dtype, std::move(shape), 4096, 0, nullptr};
  info.bytes = tensor_bytes(info.dtype, info.shape);
  return source(info);
}

Plan small_plan() {
  PlannedFile file{"weights.bin", 100, {{0, "head"}}, {}};
  file.tensors.push_back({"a", 8, constant({4}, {1, 2, 3, 4})});
  file.tensors.push_back({"b", 24, constant({2}, {1, 2})});
  return {{file}};
}

TEST(Plan, AddsUpFilesAndTensors) {
  EXPECT_EQ(small_plan().total_bytes(), 100U);
  EXPECT_EQ(small_plan().tensor_bytes(), 24U);
}

TEST(Plan, AcceptsDisjointRangesInAnyOrder) {
  Plan plan = small_plan();
  std::reverse(plan.files[0].tensors.begin(), plan.files[0].tensors.end());
  plan.files[0].tensors.push_back({"empty", 12, constant({0}, {})});
  EXPECT_NO_THROW(check_plan(plan));
}

TEST(Plan, RefusesRangesThatOverlapOrLeaveTheFile) {
  struct Row {
    std::function<void(Plan&)> change;
    std::string text;
  };
  const std::vector<Row> rows = {
      {[](Plan& plan) { plan.files[0].tensors[1].offset = 23; },
       "tensor 'b' overlaps tensor 'a': got begin 23, expected at least 24"},
      {[](Plan& plan) { plan.files[0].bytes[0].offset = 6; }, "tensor 'a' overlaps planned bytes"},
      {[](Plan& plan) { plan.files[0].size = 31; }, "tensor 'b' leaves its file: got end 32, expected at most 31"},
      {[](Plan& plan) { plan.files[0].tensors[0].recipe = {}; }, "tensor 'a' has no recipe"},
      {[](Plan& plan) { plan.files.push_back(plan.files[0]); }, "file planned twice"},
  };
  for (const Row& row : rows) {
    Plan plan = small_plan();
    row.change(plan);
    EXPECT_THAT([&] { check_plan(plan); }, Fails(ErrorCode::internal, HasSubstr(row.text)));
  }
  Plan plan = small_plan();
  plan.files[0].tensors[0].offset = ~uint64_t{0} - 3;
  EXPECT_THAT([&] { check_plan(plan); }, Fails(ErrorCode::size_overflow, HasSubstr("end of a planned tensor")));
}

TEST(Plan, ExplainsEachTensorInAFewLines) {
  PlannedFile file{"weights.bin", 0, {}, {}};
  file.tensors.push_back({"q", 64, cast(slice(stored(DType::bf16, {300, 1024}), 0, 100, 300), DType::f16)});
  EXPECT_EQ(explain_plan({{file}}),
            "file weights.bin: 0 bytes, 1 tensors\n"
            "weights.bin@64 q f16 [200,1024] = cast(slice(src 'w', 0, 100:300), f16)\n"
            "  409600 bytes in 2 pieces of 131072 elements, 1 fragments\n"
            "  piece 0: bytes 0..262144\n"
            "  piece 1: bytes 262144..409600\n"
            "  fragment at element 0: 1 x 204800 <- 'w' bf16 ?@208896\n");
  file.tensors[0].recipe = unpair_rotary_rows(stored(DType::bf16, {8192, 4096}), 64);
  const std::string text = explain_plan({{file}});
  EXPECT_THAT(text, HasSubstr("64 x 4096, row strides 4096 <- 8192 <- 'w'"));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 12);
}

// An 84 GB model: what is kept grows with the expression, not with the bytes.
TEST(Lowering, NeedsNoTableOfPieces) {
  const LoweredTensor straight = lower(cast(stored(DType::bf16, {1 << 20, 1 << 15}), DType::f16));
  EXPECT_EQ(straight.fragments.size(), 1U);
  EXPECT_EQ(straight.piece_count, uint64_t{1} << 18);
  EXPECT_EQ(straight.piece_end(straight.piece_count - 1), straight.elements);
  const LoweredTensor turned = lower(cast(transpose(stored(DType::bf16, {1 << 15, 1 << 20})), DType::f16));
  EXPECT_EQ(turned.fragments.size(), 1U);
}

TEST(Lowering, KeepsContiguousDataContiguous) {
  const Recipe matrix = stored(DType::bf16, {256, 128});
  for (const Recipe& recipe :
       {reshape(matrix, {256, 128, 1, 1}), slice(matrix, 0, 3, 200), reshape(slice(matrix, 0, 0, 64), {64, 128, 1, 1}),
        transpose(reshape(transpose(matrix), {128, 256})), transpose(reshape(matrix, {1, 256 * 128}))}) {
    const LoweredTensor lowered = lower(recipe);
    ASSERT_EQ(lowered.fragments.size(), 1U) << recipe.text();
    EXPECT_EQ(lowered.fragments[0].rows, 1U) << recipe.text();
    EXPECT_EQ(lowered.fragments[0].in_column_stride, 1U) << recipe.text();
  }
}

TEST(Lowering, CutsATransposedMatrixIntoBandsWithLongReads) {
  const LoweredTensor attention = lower(cast(transpose(stored(DType::bf16, {3072, 3072})), DType::f16));
  EXPECT_GE(attention.piece_elements / 3072 * 2, 2048U);        // bytes of one read
  EXPECT_LE(attention.piece_elements * 2, uint64_t{10} << 20);  // bytes of the band
  EXPECT_EQ(attention.piece_elements % 3072, 0U);
  EXPECT_EQ(attention.tile_columns, 0U);
}

TEST(Lowering, CutsAWideTransposedMatrixIntoTilesWithLongWrites) {
  const LoweredTensor head = lower(cast(transpose(stored(DType::bf16, {262144, 640})), DType::f16));
  EXPECT_EQ(head.tile_columns, 8192U);  // 16 KiB of every row
  EXPECT_EQ(head.piece_elements, 8192U * 640);
  EXPECT_EQ(head.piece_count, 262144U / 8192 + 1);
  const LoweredTensor odd = lower(cast(transpose(stored(DType::bf16, {6657, 2048})), DType::f16));
  EXPECT_EQ(odd.tile_columns, 2240U);
  EXPECT_EQ(odd.piece_count, 4U);
  const std::string text = explain_plan({{{"weights.bin", 0, {}, {{"up", 0, transpose(stored(DType::bf16, {6657, 2048}))}}}}});
  EXPECT_THAT(text, HasSubstr("a piece: 2240 columns of every row; the last one: the digest\n  fragment at"));
}

TEST(Lowering, KeepsATransposedMatrixThatFitsInOnePiece) {
  EXPECT_EQ(lower(transpose(stored(DType::bf16, {2048, 2048}))).piece_count, 1U);
  EXPECT_EQ(lower(transpose(stored(DType::bf16, {4096, 512}))).piece_count, 1U);
}

TEST(Lowering, SlicesTheWindowOfEveryRowAsOneFragment) {
  const LoweredTensor fused = lower(slice(stored(DType::bf16, {64, 5, 96}), 1, 3, 4));
  ASSERT_EQ(fused.fragments.size(), 1U);
  EXPECT_EQ(fused.fragments[0].rows, 64U);
  EXPECT_EQ(fused.fragments[0].columns, 96U);
  EXPECT_EQ(fused.fragments[0].in_row_stride, 5U * 96);
}

}  // namespace
}  // namespace transload
