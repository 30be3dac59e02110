// Quantised pairs read back: a leaf of a recipe like any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "error_matchers.h"
#include "io/scratch_folder.h"
#include "weights/executor.h"
#include "weights/quant_cases.h"

namespace transload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace quant_cases;

TEST(DequantizePair, IsALeafLikeAnyOther) {
  for (const Case& c : cases()) {
    const Expected expected = expect(c, normal_values(element_count(c.shape), 21), DType::bf16);
    ScratchFolder folder;
    const Recipe pair = pair_of(folder, c, expected, DType::bf16);
    const Recipe same = constant(c.shape, expected.values);
    SCOPED_TRACE(pair.text() + shape_text(c.shape));
    for (const DType dtype : {DType::f32, DType::f16}) {
      const auto parts = [&](const Recipe& leaf) {
        const uint64_t rows = element_count(c.shape) / c.shape.back();
        const Recipe matrix = reshape(leaf, {rows, c.shape.back()});
        const Recipe turned = cast(transpose(matrix), dtype);
        const Recipe cut = cast(slice(slice(matrix, 0, 1, rows), 1, c.shape.back() / 3, c.shape.back()), dtype);
        return std::vector<Recipe>{cast(leaf, dtype), turned, cut, cast(concat({matrix, slice(matrix, 0, 0, 1)}, 0), dtype)};
      };
      const std::vector<Recipe> got = parts(pair);
      const std::vector<Recipe> wanted = parts(same);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(materialize(got[i]), materialize(wanted[i])) << got[i].text();
    }
    EXPECT_THAT(source_tensor_names(pair), ElementsAre("q", "s"));
  }
}

TEST(DequantizePair, IsNotTakenForAnotherPairOfItsShape) {
  for (const QuantLayout layout : kLayouts) {
    const Case c{8, layout, {64, 64}, DType::f32};
    const Expected first = expect(c, normal_values(4096, 1), DType::f32);
    const Expected second = expect(c, normal_values(4096, 2), DType::f32);
    ScratchFolder folder;
    ScratchFolder other;
    const Recipe one = pair_of(folder, c, first, DType::f32);
    const Recipe two = pair_of(other, c, second, DType::f32);
    EXPECT_NE(one, two);
    std::vector<float> rows(first.values.begin() + 63 * 64, first.values.end());  // the last row of each
    rows.insert(rows.end(), second.values.begin() + 63 * 64, second.values.end());
    EXPECT_EQ(floats_of(concat({slice(one, 0, 63, 64), slice(two, 0, 63, 64)}, 0)), rows);
  }
}

TEST(DequantizePair, ReadsAPlainMatrixInBandsOfColumns) {
  const uint64_t in = 3000;
  const uint64_t out = 3200;  // 9.6 MB: three bands
  std::string bytes(in * out, '\0');
  for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 11);
  std::vector<float> scales(out);
  for (uint64_t n = 0; n < out; ++n) scales[n] = static_cast<float>(n % 7) + 0.5F;
  ScratchFolder folder;
  const Recipe pair = dequantize(stored(folder, "q", DType::i8, {in, out}, bytes),
                                 stored(folder, "s", DType::f32, {out}, bytes_of(scales, DType::f32)), {8, QuantLayout::plain});
  for (const uint64_t n : {uint64_t{0}, uint64_t{1397}, uint64_t{1398}, out - 1}) {
    const std::vector<float> channel = floats_of(slice(pair, 0, n, n + 1));
    for (uint64_t k = 0; k < in; ++k)
      ASSERT_EQ(channel[k], static_cast<float>(static_cast<int8_t>(bytes[k * out + n])) * scales[n]);
  }
}

TEST(DequantizePair, RefusesPairsThatDoNotFit) {
  const auto info = [](const std::string& name, DType dtype, Shape shape) {
    TensorInfo tensor{name, dtype, std::move(shape), 64, 0, nullptr};
    tensor.bytes = tensor_bytes(tensor.dtype, tensor.shape);
    return tensor;
  };
  struct Row {
    TensorInfo weight;
    TensorInfo scales;
    WeightQuant quant;
    ErrorCode code;
    std::string text;
  };
  TensorInfo cut = info("w", DType::i8, {64, 64});
  cut.bytes = 4095;
  const std::vector<Row> rows = {
      {info("w", DType::u8, {64, 64}),
       info("s", DType::f16, {64}),
       {},
       ErrorCode::dtype_mismatch,
       "tensor 'w': type of a quantised"},
      {info("w", DType::i8, {64, 64}),
       info("s", DType::i8, {64}),
       {},
       ErrorCode::dtype_mismatch,
       "tensor 's': type of a quantised"},
      {info("w", DType::i8, {64}), info("s", DType::f16, {64}), {}, ErrorCode::shape_mismatch, "tensor 'w': quantised weight"},
      {info("w", DType::i8, {64, 64}),
       info("s", DType::f16, {64}),
       {4},
       ErrorCode::shape_mismatch,
       "tensor 's': shape of a quantised pair: got [64] in 128 bytes, expected [128] in 256 bytes"},
      {info("w", DType::i8, {2, 64, 64}), info("s", DType::f16, {64}), {}, ErrorCode::shape_mismatch, "expected [2,64]"},
      {info("w", DType::i8, {96, 64}),
       info("s", DType::f16, {64}),
       {8, QuantLayout::sm80},
       ErrorCode::quant_unsupported,
       "tensor 'w': weight [64,96] does not fit in the int8 sm80 layout"},
      {cut, info("s", DType::f16, {64}), {}, ErrorCode::shape_mismatch, "got [64,64] in 4095 bytes"},
  };
  for (const Row& row : rows) {
    EXPECT_THAT([&] { dequantize(row.weight, row.scales, row.quant); }, Fails(row.code, HasSubstr(row.text)));
  }
  const Recipe unopened = dequantize(info("w", DType::i8, {64, 64}), info("s", DType::f16, {64}), {});
  EXPECT_THAT([&] { materialize(unopened); }, Fails(ErrorCode::internal, HasSubstr("source without a file")));
}

}  // namespace
}  // namespace transload
