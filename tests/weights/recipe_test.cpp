// Recipes check their operands when built and fold what can be folded exactly.
#include "transload/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "error_matchers.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

using testing::HasSubstr;

Recipe stored(const std::string& name, DType dtype, Shape shape, uint64_t offset = 0) {
  TensorInfo info;
  info.name = name;
  info.dtype = dtype;
  info.shape = std::move(shape);
  info.offset = offset;
  info.bytes = tensor_bytes(info.dtype, info.shape);
  return source(info);
}

const Recipe& matrix() {
  static const Recipe recipe = stored("w", DType::bf16, {12, 8});
  return recipe;
}

TEST(Recipe, KnowsDTypeShapeAndBytesWithoutReading) {
  const Recipe recipe = cast(slice(transpose(matrix()), 1, 2, 5), DType::f32);
  EXPECT_EQ(recipe.dtype(), DType::f32);
  EXPECT_EQ(recipe.shape(), (Shape{8, 3}));
  EXPECT_EQ(recipe.bytes(), 8U * 3 * 4);
  EXPECT_EQ(stored("q", DType::q8_0, {2, 64}).bytes(), 4U * 34);
  EXPECT_EQ(affine(matrix(), 2, 0).dtype(), DType::f32);
  EXPECT_EQ(random(DType::bf16, {3, 4}, 1, 0.02F).bytes(), 24U);
  EXPECT_EQ(constant_i64({2}, {1, 2}).dtype(), DType::i64);
}

TEST(Recipe, PrintsItselfOnOneLine) {
  EXPECT_EQ(cast(slice(matrix(), 0, 2, 5), DType::f16).text(), "cast(slice(src 'w', 0, 2:5), f16)");
  EXPECT_EQ(concat({matrix(), stored("v", DType::bf16, {1, 8})}, 0).text(), "concat(src 'w', src 'v', 0)");
  EXPECT_EQ(reshape(unpair_rotary_rows(matrix(), 3), {12, 8, 1, 1}).text(),
            "reshape(unpair_rotary_rows(src 'w', 3), [12,8,1,1])");
  EXPECT_EQ(affine(transpose(matrix()), 0.5F, 1).text(), "affine(transpose(src 'w'), 0.5, 1)");
  EXPECT_EQ(constant({2}, {1, 2}).text(), "constant [2]");
  EXPECT_EQ(quantize(matrix(), {4, QuantLayout::plain}).text(), "quantize(src 'w', int4 plain)");
  EXPECT_EQ(Recipe().text(), "nothing");
}

TEST(Recipe, FoldsOperationsThatChangeNothing) {
  EXPECT_EQ(slice(matrix(), 0, 0, 12), matrix());
  EXPECT_EQ(reshape(matrix(), {12, 8}), matrix());
  EXPECT_EQ(cast(matrix(), DType::bf16), matrix());
  EXPECT_EQ(transpose(transpose(matrix())), matrix());
  EXPECT_EQ(concat({matrix()}, 1), matrix());
  EXPECT_EQ(unpair_rotary_rows(matrix(), 6), matrix());
  EXPECT_EQ(reshape(reshape(matrix(), {96}), {12, 8}), matrix());
}

TEST(Recipe, FoldsSlicesOfSlicesAndOfConcats) {
  EXPECT_EQ(slice(slice(matrix(), 0, 2, 10), 0, 1, 4), slice(matrix(), 0, 3, 6));
  const Recipe other = stored("v", DType::bf16, {4, 8});
  const Recipe both = concat({matrix(), other}, 0);
  EXPECT_EQ(slice(both, 0, 12, 16), other);
  EXPECT_EQ(slice(both, 0, 3, 7), slice(matrix(), 0, 3, 7));
  EXPECT_EQ(slice(both, 0, 10, 14), concat({slice(matrix(), 0, 10, 12), slice(other, 0, 0, 2)}, 0));
}

TEST(Recipe, FoldsConcatsOfAdjacentSlicesAndNestedConcats) {
  EXPECT_EQ(concat({slice(matrix(), 1, 0, 3), slice(matrix(), 1, 3, 5), slice(matrix(), 1, 5, 8)}, 1), matrix());
  EXPECT_EQ(concat({slice(matrix(), 0, 1, 3), slice(matrix(), 0, 3, 5)}, 0), slice(matrix(), 0, 1, 5));
  const Recipe other = stored("v", DType::bf16, {4, 8});
  EXPECT_EQ(concat({concat({matrix(), other}, 0), other}, 0), concat({matrix(), other, other}, 0));
  EXPECT_NE(concat({slice(matrix(), 0, 3, 5), slice(matrix(), 0, 1, 3)}, 0), slice(matrix(), 0, 1, 5));
}

TEST(Recipe, FoldsCastsOnlyWhereExact) {
  EXPECT_EQ(cast(cast(matrix(), DType::f32), DType::f16), cast(matrix(), DType::f16));
  EXPECT_EQ(cast(cast(matrix(), DType::f32), DType::bf16), matrix());
  const Recipe rounded = cast(cast(matrix(), DType::f16), DType::f32);
  EXPECT_EQ(rounded.text(), "cast(cast(src 'w', f16), f32)");
  EXPECT_NE(rounded, cast(matrix(), DType::f32));
}

TEST(Recipe, FoldsAnOffsetThatIsTakenBack) {
  const Recipe norm = stored("norm", DType::f32, {8});
  EXPECT_EQ(affine(affine(norm, 1, -1), 1, 1), norm);
  EXPECT_EQ(affine(cast(affine(matrix(), 1, -1), DType::f32), 1, 1), cast(matrix(), DType::f32));
  EXPECT_EQ(affine(affine(norm, 1, -1), 1, 0.5F).text(), "affine(affine(src 'norm', 1, -1), 1, 0.5)");
  EXPECT_EQ(affine(affine(norm, 2, -1), 1, 1).text(), "affine(affine(src 'norm', 2, -1), 1, 1)");
}

TEST(Recipe, TurnsBlocksByTheirValues) {
  const Recipe blocks = stored("q", DType::q8_0, {4, 64});
  EXPECT_EQ(transpose(blocks), transpose(cast(blocks, DType::f32)));
  EXPECT_EQ(reshape(blocks, {4, 64, 1, 1}), reshape(cast(blocks, DType::f32), {4, 64, 1, 1}));
  EXPECT_EQ(reshape(blocks, {2, 2, 64}).dtype(), DType::q8_0);
}

TEST(Recipe, ComparesByStructure) {
  EXPECT_EQ(slice(matrix(), 0, 1, 2), slice(stored("w", DType::bf16, {12, 8}), 0, 1, 2));
  EXPECT_NE(slice(matrix(), 0, 1, 2), slice(matrix(), 0, 2, 3));
  EXPECT_NE(stored("w", DType::bf16, {12, 8}, 64), matrix());
  EXPECT_NE(stored("v", DType::bf16, {12, 8}), matrix());
  EXPECT_NE(affine(matrix(), 1, 2), affine(matrix(), 1, 3));
  EXPECT_NE(constant({2}, {1, 2}), constant({2}, {1, 3}));
  EXPECT_NE(random(DType::f32, {2}, 1, 1), random(DType::f32, {2}, 2, 1));
  EXPECT_NE(Recipe(), matrix());
  EXPECT_EQ(Recipe(), Recipe());
}

// Recipes that are equal are found by their hash; others should seldom share one.
TEST(Recipe, HashesByStructure) {
  TensorInfo weight{"w", DType::i8, {8, 12}, 0, 96, nullptr};
  TensorInfo scales{"s", DType::f16, {12}, 96, 24, nullptr};
  const auto all = [&] {
    return std::vector<Recipe>{stored("w", DType::bf16, {12, 8}),
                               stored("w", DType::bf16, {12, 8}, 192),
                               slice(matrix(), 0, 0, 4),
                               slice(matrix(), 0, 4, 8),
                               transpose(matrix()),
                               reshape(matrix(), {8, 12}),
                               cast(matrix(), DType::f16),
                               cast(matrix(), DType::f32),
                               concat({matrix(), stored("v", DType::bf16, {1, 8}, 192)}, 0),
                               unpair_rotary_rows(matrix(), 3),
                               affine(matrix(), 2, 1),
                               constant({2}, {1, 2}),
                               constant({2}, {1, 3}),
                               constant_i64({2}, {1, 2}),
                               random(DType::f32, {2}, 1, 1),
                               random(DType::f32, {2}, 2, 1),
                               quantize(matrix(), {8, QuantLayout::plain}),
                               quantize(matrix(), {8, QuantLayout::transpose}),
                               quantize(matrix(), {4, QuantLayout::plain}),
                               dequantize(weight, scales, {8, QuantLayout::plain})};
  };
  const std::vector<Recipe> first = all();
  const std::vector<Recipe> second = all();
  for (size_t i = 0; i < first.size(); ++i) {
    for (size_t j = 0; j < second.size(); ++j) {
      EXPECT_EQ(first[i] == second[j], i == j) << first[i].text() << " " << second[j].text();
      EXPECT_EQ(recipe_hash(first[i]) == recipe_hash(second[j]), i == j) << first[i].text() << " " << second[j].text();
    }
  }
}

TEST(Recipe, RefusesOperandsThatDoNotFit) {
  const Recipe blocks = stored("q", DType::q8_0, {4, 64});
  struct Row {
    std::function<Recipe()> build;
    ErrorCode code;
    std::string text;
  };
  const std::vector<Row> rows = {
      {[] { return slice(matrix(), 2, 0, 1); }, ErrorCode::shape_mismatch, "got axis 2, expected one of [12,8]"},
      {[] { return slice(matrix(), 0, 3, 13); }, ErrorCode::shape_mismatch, "got 3:13, expected a range inside 0:12"},
      {[] { return slice(matrix(), 0, 4, 3); }, ErrorCode::shape_mismatch, "got 4:3"},
      {[&] { return slice(blocks, 1, 0, 40); }, ErrorCode::shape_mismatch, "slice cuts blocks of q8_0"},
      {[] { return concat({}, 0); }, ErrorCode::internal, "concat of nothing"},
      {[] {
         return concat({matrix(), slice(matrix(), 1, 0, 3)}, 0);
       },
       ErrorCode::shape_mismatch, "got [12,3], expected [12,8]"},
      {[] {
         return concat({matrix(), cast(matrix(), DType::f32)}, 0);
       },
       ErrorCode::dtype_mismatch, "got 'f32', expected 'bf16'"},
      {[] { return transpose(reshape(matrix(), {96})); }, ErrorCode::shape_mismatch, "expected a matrix"},
      {[] {
         return reshape(matrix(), {13, 8});
       },
       ErrorCode::shape_mismatch, "got [12,8] to [13,8], expected 96 elements"},
      {[] { return unpair_rotary_rows(matrix(), 4); }, ErrorCode::shape_mismatch, "with 4 heads"},
      {[] { return unpair_rotary_rows(matrix(), 0); }, ErrorCode::shape_mismatch, "with 0 heads"},
      {[] { return cast(matrix(), DType::i64); }, ErrorCode::dtype_mismatch, "got 'i64', expected f32, f16 or bf16"},
      {[] { return cast(Recipe(), DType::f32); }, ErrorCode::internal, "cast of an empty recipe"},
      {[] {
         return constant({3}, {1, 2});
       },
       ErrorCode::shape_mismatch, "got 2, expected 3"},
      {[] { return constant_i64({}, {}); }, ErrorCode::shape_mismatch, "got 0, expected 1"},
      {[] {
         return random(DType::f32, {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 1);
       },
       ErrorCode::size_overflow, ""},
  };
  for (const Row& row : rows) EXPECT_THAT(row.build, Fails(row.code, HasSubstr(row.text)));
  TensorInfo wrong{"short", DType::f32, {4}, 128, 12, nullptr};
  EXPECT_THAT([&] { source(wrong); }, Fails(ErrorCode::shape_mismatch, HasSubstr("tensor 'short'")));
}

}  // namespace
}  // namespace transload
