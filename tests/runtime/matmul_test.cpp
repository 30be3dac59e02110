// Products on every instruction set of this machine against double-precision sums over exactly dequantised weights.
#include "runtime/matmul.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/half.h"
#include "io/scratch_folder.h"
#include "weights/convert.h"
#include "weights/kernels.h"

namespace transload {
namespace {

constexpr double kTolerance = 1e-6;  // of the sum of magnitudes
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Where a block holds f16 numbers.
std::vector<size_t> half_offsets(DType dtype) {
  if (dtype == DType::q4_0 || dtype == DType::q5_0 || dtype == DType::q8_0) return {0};
  if (dtype == DType::q4_1 || dtype == DType::q5_1 || dtype == DType::q4_k || dtype == DType::q5_k) return {0, 2};
  if (dtype == DType::q2_k) return {80, 82};
  if (dtype == DType::q3_k) return {108};
  if (dtype == DType::q6_k) return {208};
  return {};
}

// Random weights of a dtype in a file, read in place, and the same values in double precision.
class Weights {
 public:
  // `lead`: bytes before the first value, so that blocks may start anywhere.
  Weights(DType dtype, uint64_t rows, uint64_t columns, uint64_t lead = 64) : dtype_(dtype), rows_(rows), columns_(columns) {
    std::mt19937 generator(static_cast<uint32_t>(rows * 31 + columns));
    std::normal_distribution<float> normal(0.0F, 0.05F);
    const DTypeInfo& info = dtype_info(dtype);
    bytes_.resize(tensor_bytes(dtype, {rows, columns}));
    const uint64_t blocks = bytes_.size() / info.block_bytes;
    for (uint64_t i = 0; i < blocks; ++i) {
      char* block = bytes_.data() + i * info.block_bytes;
      const float value = normal(generator);
      const double wide = value;
      const uint16_t half = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
      if (dtype == DType::f64) std::memcpy(block, &wide, sizeof wide);
      if (dtype == DType::f32) std::memcpy(block, &value, sizeof value);
      if (dtype == DType::f16 || dtype == DType::bf16) std::memcpy(block, &half, sizeof half);
      if (!is_block(dtype)) continue;
      for (uint32_t j = 0; j < info.block_bytes; ++j) block[j] = static_cast<char>(generator());
      for (const size_t offset : half_offsets(dtype)) {
        const uint16_t scale = f32_to_f16(normal(generator) / 16);  // some are subnormal
        std::memcpy(block + offset, &scale, sizeof scale);
      }
      if (dtype == DType::mxfp4) block[0] = static_cast<char>(120 + generator() % 8);
    }
    store(lead);
  }

  // Replaces the stored bytes at an offset.
  void patch(size_t offset, uint16_t half) {
    std::memcpy(bytes_.data() + offset, &half, sizeof half);
    store(64);
  }

  const WeightMatrix& matrix() const { return matrix_; }
  double at(uint64_t row, uint64_t column) const { return values_[row * columns_ + column]; }
  Recipe recipe() const { return recipe_; }
  WeightStore& weight_store() { return *store_; }

 private:
  void store(uint64_t lead) {
    const auto path = folder_.write("weights.bin", std::string(lead, '\1') + bytes_);
    recipe_ = source({"weights", dtype_, {rows_, columns_}, lead, bytes_.size(), InputFile::open(path)});
    store_ = std::make_unique<WeightStore>();
    matrix_ = store_->matrix(recipe_);
    values_.resize(rows_ * columns_);
    convert_to_f32(dtype_, reinterpret_cast<const std::byte*>(bytes_.data()), values_.size(), values_.data());
  }

  DType dtype_;
  uint64_t rows_;
  uint64_t columns_;
  ScratchFolder folder_;
  std::string bytes_;
  Recipe recipe_;
  std::unique_ptr<WeightStore> store_;
  WeightMatrix matrix_;
  std::vector<float> values_;
};

// Activations with one float in front, so that rows are aligned to nothing wider.
std::vector<float> activations(uint64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.1F, 1.0F);
  std::vector<float> values(count + 1);
  for (float& value : values) value = normal(generator);
  return values;
}

template <class Test>
void on_every_target(const Test& test) {
  for (const std::string& target : kernel_targets()) {
    SCOPED_TRACE(target);
    use_kernel_target(target);
    test();
    if (testing::Test::HasFatalFailure()) break;
  }
  use_kernel_target("");
}

// `weight_at(output, k)` is the factor of x[k] in an output.
template <class WeightAt>
void expect_products(const std::vector<float>& out, uint64_t m, uint64_t outputs, uint64_t sum_length, const float* x,
                     const float* bias, const WeightAt& weight_at) {
  for (uint64_t i = 0; i < m; ++i) {
    for (uint64_t o = 0; o < outputs; ++o) {
      double sum = bias == nullptr ? 0.0 : bias[o];
      double magnitude = std::abs(sum);
      for (uint64_t k = 0; k < sum_length; ++k) {
        const double term = weight_at(o, k) * static_cast<double>(x[i * sum_length + k]);
        sum += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(out[i * outputs + o], sum, kTolerance * magnitude) << "token " << i << ", output " << o;
    }
  }
}

constexpr uint64_t kTokenCounts[] = {1, 2, 3, 4, 5, 17, 130};

class Products : public testing::TestWithParam<DType> {
 protected:
  WorkerPool pool_{2};
};

TEST_P(Products, AreThoseOfDoublePrecisionOnEveryTarget) {
  const DType dtype = GetParam();
  struct Size {
    uint64_t rows;
    uint64_t columns;
  };
  const uint64_t block = dtype_info(dtype).block_elements;
  const std::vector<Size> sizes = block == 1 ? std::vector<Size>{{1, 1}, {3, 7}, {70, 64}, {37, 83}, {9, 1029}}
                                             : std::vector<Size>{{1, block}, {37, 3 * block}, {6, 1280}};
  for (const Size size : sizes) {
    for (const uint64_t m : kTokenCounts) {
      SCOPED_TRACE(fmt::format("{} x {}, {} tokens", size.rows, size.columns, m));
      const Weights weights(dtype, size.rows, size.columns, is_block(dtype) ? 63 : 64);
      const std::vector<float> x = activations(m * size.columns, 1);
      const std::vector<float> bias = activations(size.rows, 2);
      on_every_target([&] {
        std::vector<float> out(m * size.rows, kNan);
        multiply_transposed(pool_, x.data() + 1, m, weights.matrix(), bias.data() + 1, out.data());
        expect_products(out, m, size.rows, size.columns, x.data() + 1, bias.data() + 1,
                        [&](uint64_t row, uint64_t column) { return weights.at(row, column); });
      });
    }
  }
}

TEST_P(Products, OfTheOtherOrderAreThoseOfDoublePrecisionOnEveryTarget) {
  const DType dtype = GetParam();
  const uint64_t block = dtype_info(dtype).block_elements;
  for (const uint64_t m : kTokenCounts) {
    for (const uint64_t rows : {1, 5, 67, 200}) {
      const uint64_t columns = block == 1 ? 131 + rows : 2 * block;
      SCOPED_TRACE(fmt::format("{} x {}, {} tokens", rows, columns, m));
      const Weights weights(dtype, rows, columns);
      const std::vector<float> x = activations(m * rows, 3);
      on_every_target([&] {
        std::vector<float> out(m * columns, kNan);
        multiply(pool_, x.data() + 1, m, weights.matrix(), out.data());
        expect_products(out, m, columns, rows, x.data() + 1, nullptr,
                        [&](uint64_t column, uint64_t row) { return weights.at(row, column); });
      });
    }
  }
}

TEST_P(Products, DoNotDependOnTheNumberOfWorkers) {
  const DType dtype = GetParam();
  const Weights weights(dtype, 203, 768);
  for (const uint64_t m : kTokenCounts) {
    const std::vector<float> x = activations(m * 768, 4);
    std::vector<float> first;
    std::vector<float> first_of_columns;
    for (const uint32_t workers : {1, 2, 3}) {
      WorkerPool pool(workers);
      std::vector<float> out(m * 203);
      std::vector<float> columns(m * 768);
      multiply_transposed(pool, x.data(), m, weights.matrix(), nullptr, out.data());
      multiply(pool, x.data(), m, weights.matrix(), columns.data());
      if (first.empty()) {
        first = out;
        first_of_columns = columns;
      }
      EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size() * sizeof(float)), 0) << workers << " workers, " << m;
      EXPECT_EQ(std::memcmp(columns.data(), first_of_columns.data(), columns.size() * sizeof(float)), 0) << workers;
    }
  }
}

// What one token gives must not depend on the tokens that are read with it, beyond rounding; a NaN stays in its row.
TEST_P(Products, KeepNansInTheirRow) {
  const Weights weights(GetParam(), 37, 512);
  for (const float bad : {kNan, kInfinity}) {
    for (const uint64_t m : {1, 3, 9, 20}) {
      std::vector<float> x = activations(m * 512, 5);
      const uint64_t poisoned = m / 2;
      x[poisoned * 512 + 300] = bad;
      on_every_target([&] {
        std::vector<float> out(m * 37);
        multiply_transposed(pool_, x.data(), m, weights.matrix(), nullptr, out.data());
        for (uint64_t i = 0; i < out.size(); ++i) {
          const bool is_zero_times_infinity = std::isnan(out[i]) && weights.at(i % 37, 300) == 0;
          ASSERT_EQ(std::isfinite(out[i]), i / 37 != poisoned) << i;
          if (i / 37 != poisoned || is_zero_times_infinity) continue;
          ASSERT_EQ(std::isnan(out[i]), std::isnan(bad)) << i;
        }
      });
    }
  }
}

TEST_P(Products, ReadRowsExactly) {
  const Weights weights(GetParam(), 5, 512);
  std::vector<float> row(512);
  for (uint64_t r = 0; r < 5; ++r) {
    read_row(weights.matrix(), r, row.data());
    for (uint64_t i = 0; i < row.size(); ++i) ASSERT_EQ(static_cast<double>(row[i]), weights.at(r, i)) << r << ", " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryType, Products,
                         testing::Values(DType::f64, DType::f32, DType::f16, DType::bf16, DType::q4_0, DType::q4_1, DType::q5_0,
                                         DType::q5_1, DType::q8_0, DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k,
                                         DType::q6_k, DType::mxfp4),
                         [](const auto& row) { return std::string(dtype_name(row.param)); });

TEST(ProductsOfRowTables, ReadEachRowWhereItLies) {
  WorkerPool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16, DType::q4_1, DType::q6_k}) {
    Weights weights(dtype, 96, 256);
    const WeightMatrix rotary = weights.weight_store().matrix(unpair_rotary_rows(weights.recipe(), 4));
    ASSERT_LT(rotary.row(12), rotary.row(11));  // the second half of a head begins with its second stored row
    for (const uint64_t m : {1, 7}) {
      const std::vector<float> x = activations(m * 256, 6);
      std::vector<float> out(m * 96);
      multiply_transposed(pool, x.data(), m, rotary, nullptr, out.data());
      expect_products(out, m, 96, 256, x.data(), nullptr, [&](uint64_t row, uint64_t column) {
        const uint64_t in_head = row % 24;
        return weights.at(row / 24 * 24 + 2 * (in_head % 12) + in_head / 12, column);
      });
    }
  }
}

TEST(ProductsOfInfinities, ComeOutOfStoredHalvesOnEveryTarget) {
  WorkerPool pool(1);
  for (const DType dtype : {DType::f16, DType::bf16, DType::q8_0, DType::q4_k}) {
    const uint16_t infinity = dtype == DType::bf16 ? 0x7F80 : 0x7C00;
    for (const uint16_t bits : {infinity, static_cast<uint16_t>(infinity | 0x8000), static_cast<uint16_t>(infinity | 1)}) {
      Weights weights(dtype, 3, 256);
      weights.patch(tensor_bytes(dtype, {1, 256}), bits);  // of the second row
      for (const uint64_t m : {1, 2}) {
        const std::vector<float> x(m * 256, 1.0F);
        on_every_target([&] {
          std::vector<float> out(m * 3);
          multiply_transposed(pool, x.data(), m, weights.matrix(), nullptr, out.data());
          for (uint64_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isfinite(out[i]), i % 3 != 1) << dtype_name(dtype) << i;
          const bool is_nan = bits == (infinity | 1);
          if (is_nan || !is_block(dtype)) {
            ASSERT_EQ(std::isnan(out[1]), is_nan) << dtype_name(dtype);
            ASSERT_TRUE(is_nan || std::signbit(out[1]) == ((bits & 0x8000) != 0)) << dtype_name(dtype);
          }
        });
      }
    }
  }
}

TEST(ProductsOfNothing, WriteNothing) {
  WorkerPool pool(1);
  const Weights weights(DType::f32, 3, 4);
  float out = 7;
  multiply_transposed(pool, nullptr, 0, weights.matrix(), nullptr, &out);
  multiply(pool, nullptr, 0, weights.matrix(), &out);
  EXPECT_EQ(out, 7.0F);
}

TEST(DotProduct, IsThatOfDoublePrecisionForEveryLengthOnEveryTarget) {
  for (uint64_t count = 0; count < 200; ++count) {
    const std::vector<float> a = activations(count, 7);
    const std::vector<float> b = activations(count, 8);
    on_every_target([&] {
      const std::vector<float> out = {dot_product(a.data() + 1, b.data() + 1, count)};
      expect_products(out, 1, 1, count, b.data() + 1, nullptr,
                      [&](uint64_t, uint64_t k) { return static_cast<double>(a[1 + k]); });
    });
  }
}

TEST(AddScaled, AddsEveryValueAndNoOtherOnEveryTarget) {
  for (uint64_t count = 0; count < 100; ++count) {
    const std::vector<float> x = activations(count, 9);
    const std::vector<float> y = activations(count + 1, 10);
    on_every_target([&] {
      std::vector<float> out = y;
      add_scaled(out.data() + 1, x.data() + 1, 0.75F, count);
      EXPECT_EQ(out[0], y[0]);
      EXPECT_EQ(out[count + 1], y[count + 1]);
      for (uint64_t i = 1; i <= count; ++i) {
        const double exact = static_cast<double>(y[i]) + 0.75 * static_cast<double>(x[i]);
        ASSERT_NEAR(out[i], exact, 2e-7 * (std::abs(exact) + std::abs(x[i]))) << i;
      }
    });
  }
}

}  // namespace
}  // namespace transload
