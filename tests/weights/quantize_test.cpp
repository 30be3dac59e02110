// Weight-only quantisation against golden vectors and against its definition.
#include "weights/quantize.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "error_matchers.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/output_directory.h"
#include "io/scratch_folder.h"
#include "weights/executor.h"
#include "weights/quant_cases.h"
#include "weights/reference_quant.h"

namespace transload {
namespace {

using testing::HasSubstr;
using namespace quant_cases;

QuantLayout layout_of(const std::string& name) {
  for (const QuantLayout layout : kLayouts) {
    if (quant_text(QuantFormat{8, layout}) == "int8 " + name) return layout;
  }
  throw std::runtime_error("no such layout: " + name);
}

const Json& vectors() {
  static const Json json = parse_json(read_text_file(TRANSLOAD_TEST_DATA "/trtllm/vectors.json"), "vectors.json");
  return json;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

struct Made {
  std::string weight;
  std::string scales;
  std::vector<TensorResult> results;
};

// A plan of one quantised tensor, its scales in front of it.
Plan plan_of(const Recipe& recipe, DType scale_dtype) {
  PlannedTensor tensor{"w", 0, recipe, PlannedScales{"s", 3, scale_dtype}};
  tensor.offset = 3 + scales_bytes(tensor) + 1;
  return {{{"out", tensor.offset + recipe.bytes(), {}, {tensor}}}};
}

// Reads the staged file: flushing it would take most of the time.
Made run(const Recipe& recipe, DType scale_dtype, const ExecuteOptions& options = {}) {
  ScratchFolder folder;
  const Plan plan = plan_of(recipe, scale_dtype);
  OutputDirectory output(folder.path() / "bundle", false);
  Made made;
  made.results = execute(plan, output, options);
  std::string file;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename() == "out") file = read_text_file(entry.path());
  }
  const PlannedTensor& tensor = plan.files[0].tensors[0];
  made.weight = file.substr(tensor.offset);
  made.scales = file.substr(tensor.scales->offset, scales_bytes(tensor));
  return made;
}

TEST(Quantize, GivesTheScalesAndValuesOfTheVectors) {
  for (const Json& row : vectors().find("quantise")->array()) {
    SCOPED_TRACE(row.find("dtype")->string() + " " + row.find("column")->string());
    const std::string name = row.find("dtype")->string();
    const DType dtype = name == "float16" ? DType::f16 : name == "bfloat16" ? DType::bf16 : DType::f32;
    const auto bits = static_cast<uint8_t>(row.find("bits")->integer());
    const std::string column = from_hex(row.find("weights_hex_le")->string());
    ScratchFolder folder;
    const Recipe weight = source(stored(folder, "w", dtype, {2, 8}, column + column));
    const Recipe recipe = quantize(weight, {bits, QuantLayout::transpose});
    const Made made = run(recipe, dtype);
    std::vector<int> q;
    for (const Json& value : row.find("q")->array()) q.push_back(static_cast<int>(value.integer()));
    EXPECT_EQ(hex_of(made.weight), hex_of(reference::store({q, q}, bits, QuantLayout::transpose)));
    const std::string scale = row.find("stored_scale_hex_le")->string();
    EXPECT_EQ(hex_of(made.scales), scale + scale);
    const auto unrounded = static_cast<float>(row.find("scale_float32")->number());
    EXPECT_EQ(run(recipe, DType::f32).scales, bytes_of({unrounded, unrounded}, DType::f32));
  }
}

TEST(Quantize, StoresAndReadsTheLayoutsOfTheVectors) {
  for (const Json& row : vectors().find("layout")->array()) {
    const auto bits = static_cast<uint8_t>(row.find("bits")->integer());
    const QuantLayout layout = layout_of(row.find("layout")->string());
    const auto in = static_cast<uint64_t>(row.find("K")->integer());
    const auto out = static_cast<uint64_t>(row.find("N")->integer());
    SCOPED_TRACE(fmt::format("int{} {} {} x {}", bits, row.find("layout")->string(), in, out));
    const int values = 1 << bits;
    std::vector<std::vector<int>> q(out, std::vector<int>(in));
    std::vector<float> expected;
    for (uint64_t n = 0; n < out; ++n) {
      for (uint64_t k = 0; k < in; ++k) {
        q[n][k] = static_cast<int>((5 * k + 3 * n) % static_cast<uint64_t>(values)) - values / 2;
        expected.push_back(static_cast<float>(q[n][k]));
      }
    }
    const std::string bytes = reference::store(q, bits, layout);
    EXPECT_EQ(hex_of(bytes.substr(0, 32)), row.find("first_32_bytes")->string());

    ScratchFolder folder;
    const TensorInfo weight = stored(folder, "w", DType::i8, {in, out * bits / 8}, bytes);
    const TensorInfo scales = stored(folder, "s", DType::f32, {out}, bytes_of(std::vector<float>(out, 1), DType::f32));
    const Recipe read = dequantize(weight, scales, {bits, layout});
    const std::vector<std::byte> back = materialize(read);
    ASSERT_EQ(back.size(), expected.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(back.data(), expected.data(), back.size()), 0);
    // Channels of 4 bits hold -8 each, so that quantising these integers gives them back; those of 8 bits get a last value -128.
    if (bits == 8) {
      for (uint64_t n = 0; n < out; ++n) q[n][in - 1] = -128;
      for (uint64_t n = 0; n < out; ++n) expected[n * in + in - 1] = -128;
    }
    const Made made = run(quantize(constant({out, in}, expected), {bits, layout}), DType::f16);
    EXPECT_EQ(hex_of(made.weight), hex_of(reference::store(q, bits, layout)));
    EXPECT_EQ(made.scales, bytes_of(std::vector<float>(out, 1), DType::f16));
    EXPECT_EQ(made.results[0].quant_error->noise, 0);
  }
}

void expect_definition(const Case& c, const Recipe& recipe, const Expected& expected, DType scale_dtype) {
  SCOPED_TRACE(recipe.text() + " " + shape_text(c.shape) + " " + std::string(dtype_name(c.dtype)));
  std::vector<TensorResult> first;
  for (const PieceLimits& limits : {PieceLimits{}, PieceLimits{700, 1500, 64, 300}, PieceLimits{1, 1, 1, 1}}) {
    for (const uint32_t workers : {1U, 3U}) {
      ExecuteOptions options;
      options.workers = workers;
      options.limits = limits;
      const Made made = run(recipe, scale_dtype, options);
      ASSERT_EQ(hex_of(made.weight), hex_of(expected.weight));
      ASSERT_EQ(made.scales, bytes_of(expected.scales, scale_dtype));
      ASSERT_EQ(made.results.size(), 2U);
      EXPECT_EQ(made.results[0].digest, digest_of(made.weight));
      EXPECT_EQ(made.results[1].digest, digest_of(made.scales));
      EXPECT_EQ(made.results[1].name, "s");
      EXPECT_EQ(made.results[1].bytes, made.scales.size());
      if (workers == 1) first = made.results;
      EXPECT_EQ(made.results, first);  // the sums of the error too
      const QuantError& error = *made.results[0].quant_error;
      EXPECT_NEAR(error.max_abs, expected.error.max_abs, expected.error.max_abs * 1e-4);
      EXPECT_NEAR(error.signal, expected.error.signal, expected.error.signal * 1e-5);
      EXPECT_NEAR(error.noise, expected.error.noise, expected.error.noise * 1e-4);
    }
  }
}

TEST(Quantize, FollowsTheDefinitionForAnyWorkersAndPiecesAndReadsBack) {
  uint32_t seed = 0;
  for (const Case& c : cases()) {
    const DType scale_dtype = ++seed % 2 == 0 ? DType::f16 : DType::f32;
    std::vector<float> weights = normal_values(element_count(c.shape), seed);
    for (uint64_t k = 0; k < c.shape.back(); ++k) {
      weights[k] = 0;                                                 // a channel of zeros
      weights[c.shape.back() + k] = std::ldexp(weights.back(), -12);  // a tiny one: its f16 scale is subnormal
    }
    weights = values_of(bytes_of(weights, c.dtype), c.dtype);
    const Expected expected = expect(c, weights, scale_dtype);
    ScratchFolder folder;
    const Recipe weight = source(stored(folder, "w", c.dtype, c.shape, bytes_of(weights, c.dtype)));
    expect_definition(c, quantize(weight, {c.bits, c.layout}), expected, scale_dtype);
    EXPECT_EQ(floats_of(pair_of(folder, c, expected, scale_dtype)), expected.values);
  }
}

TEST(Quantize, TakesAWeightThatIsCutJoinedTurnedAndCast) {
  ScratchFolder folder;
  const std::vector<float> values = normal_values(uint64_t{96} * 200, 3);
  const Recipe wide = source(stored(folder, "w", DType::f32, {96, 200}, bytes_of(values, DType::f32)));
  const Recipe padded = concat({slice(wide, 1, 8, 136), constant({32, 128}, std::vector<float>(4096, 0))}, 0);
  const Recipe turned = slice(transpose(wide), 0, 3, 131);
  for (const uint8_t bits : {uint8_t{8}, uint8_t{4}}) {
    for (const QuantLayout layout : {QuantLayout::sm80, QuantLayout::plain}) {
      for (const Recipe& weight : {cast(padded, DType::bf16), cast(reshape(turned, {2, 64, 96}), DType::f16), padded}) {
        if (weight.shape().back() % 64 != 0 && layout == QuantLayout::sm80) continue;
        const Case c{bits, layout, weight.shape(), weight.dtype()};
        const Expected expected = expect(c, floats_of(cast(weight, DType::f32)), DType::f16);
        expect_definition(c, quantize(weight, {bits, layout}), expected, DType::f16);
      }
    }
  }
}

TEST(Quantize, CountsNansWhichRaiseNoScaleAndInfinitiesWhichMakeOneInfinite) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  const Recipe weight = constant({4, 4}, {1, nan, -0.5F, 0.25F,       //
                                          3, -infinity, infinity, 1,  //
                                          nan, nan, 0, -0.0F,         //
                                          -2, 1, 0.5F, 1.984375F});
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [bits, none, half] : {std::tuple(uint8_t{8}, 127, 128), {uint8_t{4}, -8, 8}}) {
      const Made made = run(quantize(cast(weight, dtype), {bits, QuantLayout::transpose}), DType::f32);
      const std::vector<std::vector<int>> q{
          {half - 1, none, -half / 2, half / 4}, {0, none, none, 0}, {0, 0, 0, 0}, {-half, half / 2, half / 4, half - 1}};
      EXPECT_EQ(hex_of(made.weight), hex_of(reference::store(q, bits, QuantLayout::transpose)));
      const auto unit = 1 / static_cast<float>(half);
      EXPECT_EQ(made.scales, bytes_of({unit, infinity, 0, 2 * unit}, DType::f32));
      EXPECT_EQ(made.results[0].nan_count, 3U);
      EXPECT_EQ(made.results[1].nan_count, 0U);
      EXPECT_EQ(made.results[1].overflow_count, 1U);
      // Of the channels with finite scales: 1 - 127/128 once, and of the last one 2 * 0.9921875 - 2 * 127/128.
      EXPECT_TRUE(std::isfinite(made.results[0].quant_error->noise));
      EXPECT_NEAR(made.results[0].quant_error->signal, 1.3125 + 4 + 1 + 0.25 + 1.984375 * 1.984375, 1e-5);
    }
  }
}

TEST(Quantize, CountsAScaleThatOverflowsF16) {
  const Made made = run(quantize(constant({2, 2}, {1e7F, 1, 2, 1}), {8, QuantLayout::transpose}), DType::f16);
  EXPECT_EQ(hex_of(made.weight), "7f007f40");
  EXPECT_EQ(made.scales, bytes_of({std::numeric_limits<float>::infinity(), 0.015625F}, DType::f16));
  EXPECT_EQ(made.results[1].overflow_count, 1U);
  EXPECT_EQ(made.results[0].overflow_count, 0U);
  EXPECT_NEAR(made.results[0].quant_error->signal, 5, 1e-6);
}

TEST(Quantize, RefusesShapesThatALayoutCannotHold) {
  struct Row {
    WeightQuant quant;
    Shape shape;
    std::string text;
  };
  const std::vector<Row> rows = {
      {{8, QuantLayout::sm80},
       {48, 64},
       "weight [48,64] does not fit in the int8 sm80 layout: got row bytes 64 and column bytes 48"},
      {{8, QuantLayout::sm90}, {64, 48}, "got row bytes 48 and column bytes 64, expected multiples of 32"},
      {{4, QuantLayout::sm80}, {96, 64}, "got row bytes 32 and column bytes 48, expected multiples of 32"},
      {{4, QuantLayout::sm90}, {64, 65}, "got row bytes 32 and column bytes 32, expected multiples of 32"},
      {{8, QuantLayout::sm80}, {64, 800}, "got 800 input channels, expected a multiple of 64"},
      {{8, QuantLayout::sm90}, {2, 64, 96}, "int8 sm80 layout: got 96 input channels, expected a multiple of 64"},
      {{4, QuantLayout::plain}, {3, 64}, "got 3 output channels, expected an even number"},
      {{4, QuantLayout::transpose}, {5, 4}, "got 5 output channels, expected an even number"},
      {{8, QuantLayout::plain}, {0, 4}, "got no elements, expected at least one"},
  };
  for (const Row& row : rows) {
    EXPECT_THAT([&] { quantize(random(DType::f16, row.shape, 1, 1), row.quant); },
                Fails(ErrorCode::quant_unsupported, HasSubstr(row.text)));
  }
  EXPECT_THAT([] { quantize(random(DType::f16, {4}, 1, 1), {}); }, Fails(ErrorCode::shape_mismatch, HasSubstr("got shape [4]")));
  EXPECT_THAT([] { quantize(constant_i64({2, 1}, {1, 2}), {}); }, Fails(ErrorCode::dtype_mismatch, HasSubstr("got 'i64'")));
  EXPECT_THAT(
      [] {
        quantize(constant({2, 1}, {1, 2}), {3, QuantLayout::plain});
      },
      Fails(ErrorCode::internal, HasSubstr("got 3, expected 8 or 4")));
  EXPECT_THAT([] { quantize(Recipe(), {}); }, Fails(ErrorCode::internal, HasSubstr("empty recipe")));
}

TEST(Quantize, IsOnlyTheRootOfAPlannedTensorWithScales) {
  const Recipe recipe = quantize(constant({2, 1}, {1, 2}), {});
  EXPECT_THAT([&] { materialize(recipe); }, Fails(ErrorCode::internal, HasSubstr("expected the root")));
  EXPECT_THAT([&] { lower(slice(recipe, 0, 0, 1)); }, Fails(ErrorCode::internal, HasSubstr("expected the root")));
  Plan plan = plan_of(recipe, DType::f32);
  plan.files[0].tensors[0].scales.reset();
  EXPECT_THAT([&] { check_plan(plan); }, Fails(ErrorCode::internal, HasSubstr("'w' that quantizes has no scales")));
  plan = plan_of(recipe, DType::f32);
  plan.files[0].tensors[0].recipe = constant({2}, {1, 2});
  EXPECT_THAT([&] { check_plan(plan); }, Fails(ErrorCode::internal, HasSubstr("'w' that does not quantize has scales")));
  plan = plan_of(recipe, DType::i8);
  EXPECT_THAT([&] { check_plan(plan); }, Fails(ErrorCode::internal, HasSubstr("got type 'i8', expected f32, f16 or bf16")));
  plan = plan_of(recipe, DType::f16);
  plan.files[0].tensors[0].scales->offset = 6;
  EXPECT_THAT([&] { check_plan(plan); }, Fails(ErrorCode::internal, HasSubstr("'w' overlaps scales 's': got begin 8")));
}

TEST(Quantize, IsExplainedWithItsScalesAndPieces) {
  const Plan plan = plan_of(quantize(random(DType::bf16, {256, 1024}, 1, 1), {4, QuantLayout::sm80}), DType::f16);
  EXPECT_EQ(plan.tensor_bytes(), 256U * 1024 / 2 + 256 * 2);
  EXPECT_EQ(explain_plan(plan),
            "file out: 131588 bytes, 1 tensors\n"
            "out@516 w i8 [1024,128] = quantize(cast(random(seed 1, stddev 1, mean 0), bf16), int4 sm80)\n"
            "  scales out@3 s f16, int4 sm80 for 256 channels of 1024 values\n"
            "  131072 bytes in 2 pieces of 128 channels, 1 fragments\n"
            "  fragment at element 0: 1 x 262144 <- random(seed 1, stddev 1, mean 0) at element 0\n");
  const Plan wide = plan_of(quantize(random(DType::bf16, {16384, 3072}, 1, 1), {8, QuantLayout::plain}), DType::f16);
  EXPECT_THAT(explain_plan(wide), HasSubstr("in 7 pieces of 2976 channels, 1 fragments\n"
                                            "  a piece: 2976 bytes of every row; the last one: the digest\n"));
}

}  // namespace
}  // namespace transload
