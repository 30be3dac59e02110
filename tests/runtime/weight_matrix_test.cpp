// What stays where it lies and what is computed, and that both give the values of the recipe.
#include "runtime/weight_matrix.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "base/half.h"
#include "error_matchers.h"
#include "io/scratch_folder.h"
#include "weights/dequantize.h"
#include "weights/executor.h"

namespace transload {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// A file of pseudo-random bytes that are finite as f16, bf16, f32 and f64, and tensors in it.
class StoredTensors {
 public:
  explicit StoredTensors(size_t bytes = 1 << 16) {
    std::mt19937 generator(7);
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(generator() & 0xFF);
    for (size_t i = 1; i < bytes; i += 2) text[i] = static_cast<char>(0x30 | (text[i] & 0x8F));  // exponents away from the ends
    path_ = folder_.write("weights.bin", text);
    file_ = InputFile::open(path_);
  }

  Recipe tensor(DType dtype, Shape shape, uint64_t offset) const {
    const uint64_t bytes = tensor_bytes(dtype, shape);
    return source({fmt::format("{}_at_{}", dtype_name(dtype), offset), dtype, std::move(shape), offset, bytes, file_});
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  ScratchFolder folder_;
  std::filesystem::path path_;
  std::shared_ptr<const InputFile> file_;
};

std::vector<float> read(const WeightMatrix& matrix) {
  std::vector<float> values(matrix.rows * matrix.columns);
  for (uint64_t row = 0; row < matrix.rows; ++row) {
    const std::byte* in = matrix.row(row);
    float* out = values.data() + row * matrix.columns;
    if (is_block(matrix.dtype)) {
      dequantize(matrix.dtype, in, matrix.columns / dtype_info(matrix.dtype).block_elements, out);
      continue;
    }
    for (uint64_t i = 0; i < matrix.columns; ++i) {
      uint16_t half = 0;
      if (matrix.dtype == DType::f32) {
        std::memcpy(out + i, in + i * sizeof(float), sizeof(float));
      } else {
        std::memcpy(&half, in + i * sizeof half, sizeof half);
        out[i] = matrix.dtype == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
      }
    }
  }
  return values;
}

std::vector<float> expected_values(const Recipe& recipe) {
  const std::vector<std::byte> bytes = materialize(cast(recipe, DType::f32));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// `mapped`: the stored type when it must be read in place.
void expect_matrix(const Recipe& recipe, std::optional<DType> mapped) {
  SCOPED_TRACE(recipe.text());
  WeightStore store;
  const WeightMatrix matrix = store.matrix(recipe);
  EXPECT_EQ(matrix.rows, recipe.shape()[0]);
  EXPECT_EQ(matrix.rows * matrix.columns, element_count(recipe.shape()));
  EXPECT_EQ(matrix.dtype, mapped.value_or(DType::f32));
  EXPECT_EQ(store.owned_bytes(), mapped ? 0 : element_count(recipe.shape()) * sizeof(float));
  EXPECT_EQ(store.mapped_bytes() > 0, mapped.has_value());
  EXPECT_TRUE(same_bits(read(matrix), expected_values(recipe)));
}

TEST(WeightStore, ReadsWholeTensorsInPlace) {
  const StoredTensors stored;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) expect_matrix(stored.tensor(dtype, {6, 10}, 64), dtype);
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (is_block(dtype)) expect_matrix(stored.tensor(dtype, {4, 512}, 64), dtype);
  }
  expect_matrix(stored.tensor(DType::f64, {6, 10}, 64), std::nullopt);
  expect_matrix(stored.tensor(DType::f8_e4m3, {6, 10}, 64), std::nullopt);
}

TEST(WeightStore, DropsCastsThatKeepEveryValue) {
  const StoredTensors stored;
  const Recipe f16 = stored.tensor(DType::f16, {6, 10}, 64);
  const Recipe bf16 = stored.tensor(DType::bf16, {6, 10}, 64);
  const Recipe blocks = stored.tensor(DType::q8_0, {6, 64}, 64);
  expect_matrix(cast(f16, DType::f32), DType::f16);
  expect_matrix(cast(bf16, DType::f32), DType::bf16);
  expect_matrix(cast(blocks, DType::f32), DType::q8_0);
  expect_matrix(cast(cast(f16, DType::f32), DType::f16), DType::f16);
  expect_matrix(cast(reshape(cast(f16, DType::f32), {12, 5}), DType::f16), DType::f16);
  expect_matrix(cast(bf16, DType::f16), std::nullopt);
  expect_matrix(cast(cast(f16, DType::bf16), DType::f16), std::nullopt);
  expect_matrix(cast(blocks, DType::f16), std::nullopt);
  expect_matrix(cast(stored.tensor(DType::f32, {6, 10}, 64), DType::bf16), std::nullopt);
}

TEST(WeightStore, ReadsRowsOfFusedTensorsInPlace) {
  const StoredTensors stored;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q4_1, DType::q6_k}) {
    const Recipe fused = stored.tensor(dtype, {24, 256}, 128);
    expect_matrix(slice(fused, 0, 0, 12), dtype);
    expect_matrix(slice(fused, 0, 12, 18), dtype);
    expect_matrix(cast(slice(fused, 0, 18, 24), DType::f32), dtype);
    expect_matrix(concat({slice(fused, 0, 20, 24), slice(fused, 0, 3, 9)}, 0), dtype);
    expect_matrix(concat({fused, stored.tensor(dtype, {3, 256}, 30720)}, 0), dtype);
    // [groups, parts, head_dim, hidden], the query parts of every group
    const Recipe grouped = reshape(fused, {3, 4, 2, 256});
    expect_matrix(reshape(slice(grouped, 1, 0, 2), {12, 256}), dtype);
    expect_matrix(unpair_rotary_rows(slice(fused, 0, 8, 24), 2), dtype);
    expect_matrix(unpair_rotary_rows(fused, 4), dtype);
  }
}

TEST(WeightStore, ReadsColumnsOfWholeBlocksInPlace) {
  const StoredTensors stored;
  expect_matrix(slice(stored.tensor(DType::f16, {6, 10}, 64), 1, 3, 8), DType::f16);
  expect_matrix(slice(stored.tensor(DType::q8_0, {6, 128}, 64), 1, 32, 96), DType::q8_0);
  expect_matrix(reshape(stored.tensor(DType::bf16, {6, 10}, 64), {60}), DType::bf16);
  expect_matrix(reshape(stored.tensor(DType::bf16, {6, 10}, 64), {2, 3, 10}), DType::bf16);
  expect_matrix(reshape(stored.tensor(DType::q8_0, {3, 64}, 64), {6, 32}), DType::q8_0);
  // Rows that no whole number of blocks fills, or that begin inside a block.
  expect_matrix(slice(reshape(cast(stored.tensor(DType::q8_0, {6, 128}, 64), DType::f32), {16, 48}), 1, 0, 32), std::nullopt);
  expect_matrix(slice(cast(stored.tensor(DType::q8_0, {6, 128}, 64), DType::f32), 1, 16, 80), std::nullopt);
  expect_matrix(reshape(stored.tensor(DType::q8_0, {6, 32}, 64), {12, 16}), std::nullopt);
}

TEST(WeightStore, ComputesWhatIsNotStoredInRows) {
  const StoredTensors stored;
  const Recipe a = stored.tensor(DType::bf16, {6, 10}, 64);
  const Recipe b = stored.tensor(DType::bf16, {6, 4}, 1024);
  expect_matrix(transpose(a), std::nullopt);
  expect_matrix(slice(a, 1, 2, 3), std::nullopt);
  expect_matrix(transpose(stored.tensor(DType::q5_0, {6, 64}, 64)), std::nullopt);
  expect_matrix(concat({a, b}, 1), std::nullopt);
  expect_matrix(affine(a, 2, 1), std::nullopt);
  expect_matrix(affine(slice(stored.tensor(DType::q4_k, {4, 512}, 64), 0, 1, 3), 0.5F, 0), std::nullopt);
  expect_matrix(concat({cast(a, DType::f32), stored.tensor(DType::f32, {2, 10}, 2048)}, 0), std::nullopt);
  expect_matrix(reshape(slice(a, 1, 1, 9), {12, 4}), DType::bf16);
  expect_matrix(reshape(slice(a, 1, 1, 8), {21, 2}), std::nullopt);  // a row out of two stored ones
  expect_matrix(constant({2, 3}, {1, 2, 3, 4, 5, 6}), std::nullopt);
  expect_matrix(random(DType::bf16, {5, 7}, 3, 0.1F), std::nullopt);
}

TEST(WeightStore, ComputesFromPlacesThatAreNotAligned) {
  const StoredTensors stored;
  expect_matrix(stored.tensor(DType::f32, {6, 10}, 62), std::nullopt);
  expect_matrix(stored.tensor(DType::f16, {6, 10}, 62), DType::f16);
  expect_matrix(stored.tensor(DType::q6_k, {2, 256}, 63), DType::q6_k);
}

TEST(WeightStore, KeepsTheOrderOfRowsThatTheRecipeGives) {
  const auto steps = [](const WeightMatrix& matrix) {
    std::vector<std::ptrdiff_t> bytes;
    for (uint64_t row = 1; row < matrix.rows; ++row) bytes.push_back(matrix.row(row) - matrix.row(row - 1));
    return bytes;
  };
  const StoredTensors stored;
  const Recipe matrix = stored.tensor(DType::bf16, {6, 10}, 64);
  WeightStore store;
  EXPECT_THAT(steps(store.matrix(slice(matrix, 0, 2, 6))), Each(20));
  EXPECT_THAT(steps(store.matrix(matrix, 12)), Each(10));
  EXPECT_THAT(steps(store.matrix(transpose(matrix))), Each(24));
  EXPECT_THAT(steps(store.matrix(slice(matrix, 1, 2, 6))), Each(20));
  EXPECT_THAT(steps(store.matrix(unpair_rotary_rows(slice(matrix, 0, 0, 4), 1))), ElementsAre(40, -20, 40));
}

TEST(WeightStore, SharesMappingsAndResults) {
  const StoredTensors stored;
  const Recipe a = stored.tensor(DType::bf16, {6, 10}, 64);
  const Recipe again = source({"by another handle", DType::bf16, {6, 10}, 64, 120, InputFile::open(stored.path())});
  WeightStore store;
  EXPECT_EQ(store.matrix(a).row(1), store.matrix(again).row(1));
  EXPECT_EQ(store.matrix(slice(a, 0, 2, 4)).row(0), store.matrix(a).row(2));
  EXPECT_EQ(store.mapped_bytes(), 120U);
  const std::byte* computed = store.matrix(affine(a, 2, 1)).row(0);
  EXPECT_EQ(store.matrix(affine(a, 2, 1)).row(0), computed);
  EXPECT_EQ(store.owned_bytes(), 240U);
  EXPECT_NE(store.matrix(affine(a, 2, 0)).row(0), computed);
  EXPECT_EQ(store.owned_bytes(), 480U);
  // Constants whose text is one: the values decide.
  EXPECT_NE(store.matrix(constant({1, 2}, {1, 2})).row(0), store.matrix(constant({1, 2}, {1, 3})).row(0));
}

TEST(WeightStore, GivesSmallTensorsAsValues) {
  const StoredTensors stored;
  const Recipe norm = affine(stored.tensor(DType::bf16, {64}, 64), 1, 1);
  WeightStore store;
  EXPECT_TRUE(same_bits(store.values(norm), expected_values(norm)));
  EXPECT_EQ(store.owned_bytes() + store.mapped_bytes(), 0U);
  EXPECT_THAT(store.values(constant({3}, {1, 2, 3})), testing::ElementsAre(1, 2, 3));
  EXPECT_TRUE(store.values(constant({0}, {})).empty());
}

TEST(WeightStore, RefusesWhatIsNoMatrixOfWeights) {
  const StoredTensors stored(1024);
  const Recipe matrix = stored.tensor(DType::bf16, {6, 10}, 64);
  WeightStore store;
  EXPECT_THAT([&] { store.matrix(matrix, 7); }, Fails(ErrorCode::shape_mismatch, HasSubstr("got [6,10], expected 7 rows")));
  EXPECT_THAT([&] { store.matrix(matrix, 0); }, Fails(ErrorCode::shape_mismatch, HasSubstr("expected 0 rows")));
  EXPECT_THAT([&] { store.matrix(constant({0, 4}, {})); }, Fails(ErrorCode::shape_mismatch, HasSubstr("[0,4]")));
  EXPECT_THAT([&] { store.matrix(constant_i64({2}, {1, 2})); }, Fails(ErrorCode::dtype_mismatch, HasSubstr("got 'i64'")));
  EXPECT_THAT([&] { store.values(Recipe()); }, Fails(ErrorCode::internal, HasSubstr("got nothing")));
  EXPECT_THAT([&] { store.matrix(Recipe()); }, Fails(ErrorCode::internal, HasSubstr("got nothing")));
}

TEST(WeightStore, RefusesTensorsOutsideTheirFile) {
  const StoredTensors stored(1024);
  WeightStore store;
  EXPECT_THAT(
      [&] {
        store.matrix(stored.tensor(DType::f32, {16, 16}, 4));
      },
      Fails(ErrorCode::bad_offset, testing::AllOf(HasSubstr("weights.bin@4: tensor 'f32_at_4'"),
                                                  HasSubstr("got 1024 bytes from 4, expected an end of at most 1024"))));
  EXPECT_THAT(
      [&] {
        store.matrix(stored.tensor(DType::f32, {4, 4}, UINT64_MAX - 3));
      },
      Fails(ErrorCode::bad_offset, HasSubstr("data ends past")));
  EXPECT_THAT(
      [&] {
        store.matrix(affine(stored.tensor(DType::f32, {16, 16}, 4), 2, 0));
      },
      Fails(ErrorCode::bad_offset, HasSubstr("read past the end")));
  EXPECT_THAT(
      [&] {
        store.matrix(source({"nowhere", DType::f32, {1, 1}, 0, 4, nullptr}));
      },
      Fails(ErrorCode::internal, HasSubstr("tensor 'nowhere'")));
}

TEST(WeightStore, RefusesComputedValuesBeyondWhatTheMachineCouldGive) {
  const ScratchFolder folder;
  const auto path = folder.write("weights.bin", "");
  constexpr uint64_t kBytes = uint64_t{1} << 42;
  std::filesystem::resize_file(path, kBytes);  // without data
  const auto file = InputFile::open(path);
  const Recipe eighths = source({"eighths", DType::f8_e4m3, {kBytes / 8, 8}, 0, kBytes, file});
  WeightStore store;
  const auto too_large = Fails(ErrorCode::io_failure, HasSubstr("weights in f32 do not fit in memory: got 17592186044416 bytes"));
  EXPECT_THAT([&] { store.matrix(eighths); }, too_large);
  EXPECT_THAT([&] { store.values(eighths); }, too_large);
  EXPECT_EQ(store.owned_bytes(), 0U);
}

}  // namespace
}  // namespace transload
