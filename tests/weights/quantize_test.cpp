// Weight-only quantisation against golden vectors and against its definition, and the way back.
#include "weights/quantize.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "error_matchers.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/output_directory.h"
#include "io/scratch_folder.h"
#include "weights/executor.h"
#include "weights/recipe_node.h"
#include "weights/reference_floats.h"
#include "weights/reference_quant.h"

namespace transload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::array kLayouts{QuantLayout::plain, QuantLayout::transpose, QuantLayout::sm80, QuantLayout::sm90};

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

std::string hex_of(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return hex;
}

TensorInfo stored(const ScratchFolder& folder, const std::string& name, DType dtype, Shape shape, const std::string& bytes) {
  return {name, dtype, std::move(shape), 0, bytes.size(), InputFile::open(folder.write(name, bytes))};
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

std::string bytes_of(const std::vector<float>& values, DType dtype) {
  std::string bytes;
  for (const float value : values) {
    uint32_t bits = reference::bits_of(value);
    if (dtype == DType::f16) bits = reference::f32_to_f16(value);
    if (dtype == DType::bf16) bits = reference::f32_to_bf16(value);
    for (uint32_t i = 0; i < dtype_info(dtype).block_bytes; ++i) bytes += static_cast<char>(bits >> (8 * i) & 0xFF);
  }
  return bytes;
}

std::vector<float> values_of(const std::string& bytes, DType dtype) {
  std::vector<float> values;
  const size_t width = dtype_info(dtype).block_bytes;
  for (size_t i = 0; i < bytes.size(); i += width) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, width);
    if (dtype == DType::f32) values.push_back(std::bit_cast<float>(bits));
    if (dtype == DType::f16) values.push_back(reference::f16_to_f32(static_cast<uint16_t>(bits)));
    if (dtype == DType::bf16) values.push_back(reference::bf16_to_f32(static_cast<uint16_t>(bits)));
  }
  return values;
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

struct Case {
  uint8_t bits;
  QuantLayout layout;
  Shape shape;  // [out, in] or [n, out, in]
  DType dtype;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const uint8_t bits : {uint8_t{8}, uint8_t{4}}) {
    for (const QuantLayout layout : kLayouts) {
      const bool free = layout == QuantLayout::plain || layout == QuantLayout::transpose;
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        list.push_back({bits, layout, free ? Shape{70, 33} : Shape{192, 128}, dtype});
      }
      list.push_back({bits, layout, free ? Shape{3, 34, 50} : Shape{3, 64, 192}, DType::bf16});
    }
    list.push_back({bits, QuantLayout::sm90, {64, bits == 8 ? 96U : 64U}, DType::f16});
    list.push_back({bits, QuantLayout::plain, {2, 1}, DType::f32});
  }
  return list;
}

// Everything about a case by the definition.
struct Expected {
  std::string weight;
  std::vector<float> scales;
  std::vector<float> values;  // q * stored scale
  QuantError error;
};

Expected expect(const Case& c, const std::vector<float>& weights, DType scale_dtype) {
  const QuantFormat format = quant_format({c.bits, c.layout}, c.shape);
  Expected expected;
  for (uint64_t matrix = 0; matrix < format.matrices; ++matrix) {
    std::vector<std::vector<int>> q;
    for (uint64_t n = 0; n < format.out; ++n) {
      const auto begin = weights.begin() + static_cast<ptrdiff_t>((matrix * format.out + n) * format.in);
      const std::vector<float> row(begin, begin + static_cast<ptrdiff_t>(format.in));
      const reference::Channel channel = reference::quantize_channel(row, c.bits);
      const float scale = values_of(bytes_of({channel.scale}, scale_dtype), scale_dtype)[0];
      expected.scales.push_back(scale);
      for (size_t k = 0; k < row.size(); ++k) {
        const float value = static_cast<float>(channel.q[k]) * scale;
        const double difference = static_cast<double>(row[k]) - static_cast<double>(channel.q[k]) * static_cast<double>(scale);
        expected.values.push_back(value);
        expected.error.max_abs = std::max(expected.error.max_abs, std::fabs(difference));
        expected.error.signal += static_cast<double>(row[k]) * static_cast<double>(row[k]);
        expected.error.noise += difference * difference;
      }
      q.push_back(channel.q);
    }
    // Stacked matrices lie as for sm80 where sm90 is asked for.
    const bool stacked = c.shape.size() == 3 && c.layout == QuantLayout::sm90;
    expected.weight += reference::store(q, c.bits, stacked ? QuantLayout::sm80 : c.layout);
  }
  return expected;
}

std::vector<float> normal_values(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
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

// The stored pair of a case.
Recipe pair_of(const ScratchFolder& folder, const Case& c, const Expected& expected, DType scale_dtype) {
  Shape shape = c.shape;
  std::swap(shape.back(), shape[shape.size() - 2]);
  shape.back() = shape.back() * c.bits / 8;
  Shape scales_shape = c.shape;
  scales_shape.pop_back();
  return dequantize(stored(folder, "q", DType::i8, shape, expected.weight),
                    stored(folder, "s", scale_dtype, scales_shape, bytes_of(expected.scales, scale_dtype)), {c.bits, c.layout});
}

std::vector<float> floats_of(const Recipe& recipe) {
  const std::vector<std::byte> bytes = materialize(recipe);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
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
}

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
