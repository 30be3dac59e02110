// Rotary tables against the published formulas, computed here in double precision, and the refusals of rope settings.
#include "model/rope.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>

#include "error_matchers.h"

namespace transload {
namespace {

using testing::HasSubstr;

RopeGroup group_of(const std::string& text, const RopeDefaults& defaults) {
  const Json config = parse_json(text, "config.json");
  ConfigReader reader(config, "config.json");
  RopeGroup group = rope_of_config(reader, "full", defaults);
  reader.finish();
  return group;
}

void expect_frequencies(const RopeGroup& group, uint32_t width, const std::function<double(uint32_t, double)>& scaled,
                        double theta) {
  ASSERT_EQ(group.width, width);
  ASSERT_EQ(group.inv_freq.size(), width / 2);
  for (uint32_t j = 0; j < width / 2; ++j) {
    const double expected = scaled(j, std::pow(theta, -2.0 * j / width));
    EXPECT_NEAR(group.inv_freq[j], expected, 4e-7 * expected) << "frequency " << j;
  }
}

const RopeDefaults kHead64{.head_dim = 64, .max_positions = 131'072};

TEST(Rope, DefaultKindFromEitherSpelling) {
  const auto plain = [](uint32_t, double frequency) { return frequency; };
  for (const char* text : {R"({"rope_theta": 500000.0, "rope_scaling": null})", R"({"rope_theta": 500000})",
                           R"({"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}})",
                           R"({"rope_theta": 500000.0, "rope_scaling": {"type": "default"}})"}) {
    const RopeGroup group = group_of(text, kHead64);
    expect_frequencies(group, 64, plain, 500'000);
    EXPECT_EQ(group.attention_factor, 1.0F);
    EXPECT_EQ(group.name, "full");
  }
}

TEST(Rope, TakesTheFamilysThetaWhenTheConfigHasNone) {
  RopeDefaults defaults = kHead64;
  defaults.theta = 10'000;
  expect_frequencies(
      group_of("{}", defaults), 64, [](uint32_t, double frequency) { return frequency; }, 10'000);
  // A class default is no contradiction of what the config says.
  expect_frequencies(
      group_of(R"({"rope_parameters": {"rope_theta": 500.0}})", defaults), 64,
      [](uint32_t, double frequency) { return frequency; }, 500);
}

TEST(Rope, DefaultTableIsTheOneOfSinglePrecisionSteps) {
  const RopeGroup group = group_of(R"({"rope_theta": 10000.0})", {.head_dim = 128, .max_positions = 4096});
  for (uint32_t j = 0; j < 64; ++j) {
    const float exponent = static_cast<float>(2 * j) / 128.0F;
    // The power is rounded once to single precision, then inverted in single precision.
    const auto period = static_cast<float>(std::pow(10'000.0, static_cast<double>(exponent)));
    EXPECT_FLOAT_EQ(group.inv_freq[j], 1.0F / period);
  }
  EXPECT_EQ(group.inv_freq[0], 1.0F);
  EXPECT_EQ(group.inv_freq[32], 0.01F);
}

TEST(Rope, PartialRotaryTurnsTheFirstElementsOnly) {
  const auto plain = [](uint32_t, double frequency) { return frequency; };
  expect_frequencies(
      group_of(R"({"rope_theta": 5000000, "partial_rotary_factor": 0.25})", {.head_dim = 256, .max_positions = 4096}), 64, plain,
      5'000'000);
  expect_frequencies(group_of(R"({"rope_parameters": {"rope_theta": 5000000, "partial_rotary_factor": 0.75}})",
                              {.head_dim = 128, .max_positions = 4096}),
                     96, plain, 5'000'000);
}

TEST(Rope, LinearDividesEveryFrequency) {
  expect_frequencies(
      group_of(R"({"rope_theta": 1000000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})", kHead64), 64,
      [](uint32_t, double frequency) { return frequency / 8; }, 1e6);
}

TEST(Rope, Llama3HasThreeBands) {
  const RopeGroup group = group_of(R"({"rope_theta": 500000.0, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
      "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})",
                                   kHead64);
  int kept = 0, blended = 0, divided = 0;
  expect_frequencies(
      group, 64,
      [&](uint32_t, double frequency) {
        const double wavelength = 2 * std::numbers::pi / frequency;
        if (wavelength < 8192.0 / 4) return ++kept, frequency;
        if (wavelength > 8192.0 / 1) return ++divided, frequency / 32;
        const double smooth = (8192.0 / wavelength - 1) / (4.0 - 1);
        return ++blended, (1 - smooth) * frequency / 32 + smooth * frequency;
      },
      500'000);
  EXPECT_GT(kept, 5);
  EXPECT_GT(blended, 1);
  EXPECT_GT(divided, 5);
  // The values of Llama 3.2 as published in its rope_freqs tensor: 1 in front, 32 at the end.
  EXPECT_FLOAT_EQ(group.inv_freq[0], 1.0F);
  EXPECT_NEAR(group.inv_freq[31] * 32, std::pow(500'000.0, -62.0 / 64), 1e-12);
}

TEST(Rope, YarnRampsBetweenTheCorrectionDimensions) {
  for (const bool truncate : {true, false}) {
    const RopeGroup group =
        group_of(R"({"rope_theta": 150000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0)" +
                     std::string(truncate ? "" : R"(, "truncate": false)") + R"(, "original_max_position_embeddings": 4096}})",
                 kHead64);
    const auto dimension = [](double rotations) {
      return 64 * std::log(4096 / (rotations * 2 * std::numbers::pi)) / (2 * std::log(150'000.0));
    };
    double low = dimension(32), high = dimension(1);
    if (truncate) low = std::floor(low), high = std::ceil(high);
    expect_frequencies(
        group, 64,
        [&](uint32_t j, double frequency) {
          const double ramp = std::min(1.0, std::max(0.0, (j - low) / (high - low)));
          return frequency / 4 * ramp + frequency * (1 - ramp);
        },
        150'000);
    EXPECT_FLOAT_EQ(group.attention_factor, static_cast<float>(0.1 * std::log(4.0) + 1));
  }
}

TEST(Rope, YarnAttentionFactorFollowsWhatIsGiven) {
  const auto factor_of = [](const std::string& extra) {
    return group_of(R"({"rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 40.0,
        "original_max_position_embeddings": 4096)" +
                        extra + "}}",
                    kHead64)
        .attention_factor;
  };
  EXPECT_FLOAT_EQ(factor_of(R"(, "attention_factor": 1.5)"), 1.5F);
  EXPECT_FLOAT_EQ(factor_of(R"(, "mscale": 1.0, "mscale_all_dim": 1.0)"), 1.0F);
  EXPECT_FLOAT_EQ(factor_of(R"(, "mscale": 0.707, "mscale_all_dim": 1.0)"),
                  static_cast<float>((0.0707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1)));
}

TEST(Rope, LongropeTakesTheListOfItsRegime) {
  const std::string text = R"({"rope_theta": 10000.0, "original_max_position_embeddings": 32, "rope_scaling": {"type": "longrope",
      "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 4.0, 8.0, 16.0]}})";
  const double short_factor[] = {1.0, 1.5, 2.0, 2.5}, long_factor[] = {2.0, 4.0, 8.0, 16.0};
  RopeDefaults defaults{.head_dim = 8, .max_positions = 256};
  const auto longer = [&](uint32_t j, double frequency) { return frequency / long_factor[j]; };
  const auto shorter = [&](uint32_t j, double frequency) { return frequency / short_factor[j]; };
  expect_frequencies(group_of(text, defaults), 8, longer, 10'000);
  defaults.context = 33;
  expect_frequencies(group_of(text, defaults), 8, longer, 10'000);
  defaults.context = 32;
  const RopeGroup group = group_of(text, defaults);
  expect_frequencies(group, 8, shorter, 10'000);
  EXPECT_FLOAT_EQ(group.attention_factor, static_cast<float>(std::sqrt(1 + std::log(8.0) / std::log(32.0))));
}

struct RopeRefusal {
  const char* text;
  ErrorCode code;
  const char* message;
};

// Each factor is a positive number, and the frequencies made with them are none.
TEST(Rope, RefusesFactorsThatGiveNoFrequencies) {
  for (const char* factor : {"1e-300", "1e300"}) {
    std::string list = factor;
    for (int i = 1; i < 32; ++i) list += ", 1";
    const std::string text = fmt::format(
        R"({{"rope_theta": 1e4, "rope_scaling": {{"rope_type": "longrope", "short_factor": [{0}], "long_factor": [{0}]}}}})",
        list);
    EXPECT_THAT([&] { group_of(text, kHead64); },
                Fails(ErrorCode::config_invalid, HasSubstr("its parameters give an unusable frequency")))
        << factor;
  }
}

TEST(Rope, AListThatIsNoneIsOneFault) {
  for (const char* list : {R"("x")", "[null]", "7"}) {
    const std::string text = fmt::format(
        R"({{"rope_theta": 1e4, "rope_scaling": {{"rope_type": "longrope", "short_factor": {0}, "long_factor": {0}}}}})", list);
    EXPECT_THAT([&] { group_of(text, kHead64); },
                Fails(ErrorCode::config_invalid, AllOf(HasSubstr("2 faults"), HasSubstr("short_factor': wrong type"),
                                                       HasSubstr("long_factor': wrong type"))))
        << list;
  }
}

TEST(Rope, RefusesEachBadSettingByName) {
  const RopeRefusal rows[] = {
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})", ErrorCode::config_unsupported,
       "field 'rope_scaling.rope_type': rope kind not supported (its frequencies change with the running length"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "mrope", "sections": [1]}})", ErrorCode::config_unsupported,
       "got 'mrope', expected default, linear, llama3, yarn or longrope"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear"}})", ErrorCode::config_missing,
       "field 'rope_scaling.factor'"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 0}})", ErrorCode::config_invalid,
       "field 'rope_scaling.factor': out of range: got 0, expected more than 0"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2, "low_freq_factor": 1}})",
       ErrorCode::config_unsupported, "field 'rope_scaling.low_freq_factor'"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}})", ErrorCode::config_invalid,
       "field 'rope_scaling.type': contradicts 'rope_type': got 'yarn', expected 'linear'"},
      {R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 2e4}})", ErrorCode::config_invalid,
       "field 'rope_theta': contradicts field 'rope_parameters.rope_theta': got 10000, expected 20000"},
      {R"({"rope_theta": 1e4, "partial_rotary_factor": 1, "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}})",
       ErrorCode::config_invalid,
       "field 'partial_rotary_factor': contradicts field 'rope_scaling.partial_rotary_factor': got 1, expected 0.5"},
      {R"({"rope_theta": 1e4, "original_max_position_embeddings": 4096,
          "rope_parameters": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 2048}})",
       ErrorCode::config_invalid,
       "field 'original_max_position_embeddings': contradicts field 'rope_parameters.original_max_position_embeddings': got "
       "4096, "
       "expected 2048"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "longrope", "short_factor": "x", "long_factor": [1]}})",
       ErrorCode::config_invalid, "field 'rope_scaling.long_factor': wrong number of factors: got 1, expected 32"},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 2e4}})",
       ErrorCode::config_invalid, "field 'rope_scaling': given together with 'rope_parameters'"},
      {R"({"rope_parameters": {"rope_type": "default"}})", ErrorCode::config_missing,
       "field 'rope_parameters.rope_theta': missing"},
      {R"({"rope_theta": 1.0})", ErrorCode::config_invalid, "field 'rope_theta': out of range: got 1, expected more than 1"},
      {R"({"rope_theta": 1e4, "partial_rotary_factor": 0.05})", ErrorCode::config_invalid,
       "rotary width is odd or outside the head"},
      {R"({"rope_theta": 1e4, "partial_rotary_factor": 1.5})", ErrorCode::config_invalid,
       "rotary width is odd or outside the head"},
      {R"({"rope_theta": 1e4, "rope_scaling": "linear"})", ErrorCode::config_invalid, "field 'rope_scaling': wrong type"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
          "original_max_position_embeddings": 8192}})",
       ErrorCode::config_invalid, "field 'rope_scaling.high_freq_factor': got 1, expected more than 'low_freq_factor' 4"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 8, "beta_fast": 1, "beta_slow": 32}})",
       ErrorCode::config_invalid, "field 'rope_scaling.beta_fast': got 1, expected at least 'beta_slow' 32"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [1]}})",
       ErrorCode::config_invalid, "field 'rope_scaling.short_factor': wrong number of factors: got 2, expected 32"},
      {R"({"rope_theta": 1e300})", ErrorCode::config_invalid, "config.json: field 'rope_theta': out of range: got 1e+300"},
      {R"({"rope_theta": "1e4"})", ErrorCode::config_invalid, "config.json: field 'rope_theta': wrong type: got \"1e4\""},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": 1e308, "mscale_all_dim": 1e-308}})",
       ErrorCode::config_invalid, "field 'rope_scaling.rope_type': its parameters give an unusable attention factor: got inf"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": -1000, "mscale_all_dim": 1}})",
       ErrorCode::config_invalid, "field 'rope_scaling.rope_type': its parameters give an unusable attention factor: got -"},
  };
  for (const RopeRefusal& row : rows) {
    EXPECT_THAT([&] { group_of(row.text, kHead64); }, Fails(row.code, HasSubstr(row.message))) << row.text;
  }
}

}  // namespace
}  // namespace transload
