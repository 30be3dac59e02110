// Sampling: which tokens the filters keep, how often each is drawn, equal draws for equal seeds, and refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "error_matchers.h"
#include "transload/generate.h"

namespace transload {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Probability of each token by the definitions, in the plainest way: sort everything, filter after filter.
std::map<int32_t, double> expected_shares(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) { return static_cast<double>(logits[static_cast<size_t>(id)]); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (options.top_k > 0) order.resize(std::min<size_t>(order.size(), options.top_k));
  std::vector<double> share;
  for (const int32_t id : order) share.push_back(std::exp((logit(id) - logit(order.front())) / options.temperature));
  const auto normalise = [&] {
    const double total = std::accumulate(share.begin(), share.end(), 0.0);
    for (double& value : share) value /= total;
  };
  normalise();
  size_t count = 0;
  for (double reached = 0; count < share.size() && (options.top_p == 1 || reached < options.top_p);) reached += share[count++];
  share.resize(count);
  while (share.back() < options.min_p * share.front()) share.pop_back();
  normalise();
  std::map<int32_t, double> out;
  for (size_t i = 0; i < share.size(); ++i) out[order[i]] = share[i];
  return out;
}

std::map<int32_t, double> drawn_shares(const std::vector<float>& logits, SamplingOptions options, int draws) {
  options.seed = 7;
  Sampler sampler(options);
  std::map<int32_t, double> out;
  for (int i = 0; i < draws; ++i) out[sampler.choose(logits)] += 1.0 / draws;
  return out;
}

SamplingOptions sampling(double temperature, uint32_t top_k = 0, double top_p = 1, double min_p = 0) {
  return {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = {}};
}

TEST(Sampler, WithoutTemperatureTakesTheBestTokenAndTheLowerOfTwo) {
  Sampler sampler({});
  EXPECT_EQ(sampler.choose(std::vector<float>{1, 4, -2, 4, 3}), 1);
  EXPECT_EQ(sampler.choose(std::vector<float>{-kInfinity, -5}), 1);
  EXPECT_EQ(sampler.choose(std::vector<float>{7}), 0);
}

TEST(Sampler, DrawsTheTokensThatTheFiltersKeepAsOftenAsTheirProbabilitySays) {
  const std::vector<float> logits{0.5F, 2.0F, -1.0F, 1.5F, 2.0F, 0.0F, -kInfinity, 1.0F};
  const SamplingOptions cases[] = {sampling(1),
                                   sampling(0.5),
                                   sampling(4),
                                   sampling(1, 1),
                                   sampling(1, 3),
                                   sampling(1, 8),
                                   sampling(1, 100),
                                   sampling(1, 0, 0.3),
                                   sampling(1, 0, 0.31),
                                   sampling(1, 0, 0.8),
                                   sampling(1, 0, 1e-9),
                                   sampling(1, 0, 1, 0.3),
                                   sampling(1, 0, 1, 1),
                                   sampling(2, 0, 1, 0.3),
                                   sampling(1, 3, 0.6),
                                   sampling(1, 4, 0.9, 0.5),
                                   sampling(0.05, 5, 0.95, 0.01)};
  constexpr int kDraws = 20000;
  for (const SamplingOptions& options : cases) {
    SCOPED_TRACE(testing::Message() << "temperature " << options.temperature << " top_k " << options.top_k << " top_p "
                                    << options.top_p << " min_p " << options.min_p);
    const auto expected = expected_shares(logits, options);
    const auto drawn = drawn_shares(logits, options, kDraws);
    for (const auto& [id, share] : drawn) EXPECT_TRUE(expected.contains(id)) << id << " drawn " << share;
    for (const auto& [id, share] : expected) {
      const double got = drawn.contains(id) ? drawn.at(id) : 0;
      EXPECT_NEAR(got, share, 4.5 * std::sqrt(share * (1 - share) / kDraws) + 1e-12) << "token " << id;
    }
  }
}

TEST(Sampler, KeepsTheSmallestNucleusOfALargeVocabulary) {
  std::mt19937 random(3);
  std::vector<float> logits(5000);
  for (float& logit : logits) logit = static_cast<float>(random() % 10000) / 1000.0F;
  const SamplingOptions options = sampling(0.7, 0, 0.02);
  const auto expected = expected_shares(logits, options);
  ASSERT_GT(expected.size(), 5U);
  const auto drawn = drawn_shares(logits, options, 5000);
  EXPECT_EQ(drawn.size(), expected.size());
  for (const auto& [id, share] : drawn) EXPECT_TRUE(expected.contains(id)) << id << " drawn " << share;
}

TEST(Sampler, AmongEqualTokensTheFiltersKeepTheLowerIds) {
  const std::vector<float> logits(6, 1.5F);
  for (const SamplingOptions& options : {sampling(1, 2), sampling(1, 0, 0.3)}) {
    const auto drawn = drawn_shares(logits, options, 200);
    EXPECT_EQ(drawn.size(), 2U);
    EXPECT_TRUE(drawn.contains(0) && drawn.contains(1));
  }
}

TEST(Sampler, ANucleusEndsWithTheTokenThatReachesItsProbability) {
  EXPECT_EQ(drawn_shares({0.5F, 0.5F}, sampling(1, 0, 0.5), 200).size(), 1U);
  EXPECT_EQ(drawn_shares({0.5F, 0.5F}, sampling(1, 0, 0.51), 200).size(), 2U);
}

// Draws go by id, so a filter that removes next to nothing leaves them as they are.
TEST(Sampler, AFilterDoesNotReorderTheDraws) {
  const std::vector<float> logits{0, 1, 2, 1, 0, -1000};
  const auto draws = [&](SamplingOptions options) {
    options.seed = 11;
    Sampler sampler(options);
    std::vector<int32_t> out;
    for (int i = 0; i < 100; ++i) out.push_back(sampler.choose(logits));
    return out;
  };
  EXPECT_EQ(draws(sampling(1)), draws(sampling(1, 5)));
  EXPECT_EQ(draws(sampling(1)), draws(sampling(1, 0, 1 - 1e-12)));
}

// The engine is specified to the bit: among eight equal tokens its top three bits choose.
TEST(Sampler, DrawsFromTheTopBitsOfTheEngine) {
  std::mt19937_64 engine(12345);
  SamplingOptions options = sampling(1);
  options.seed = 12345;
  Sampler sampler(options);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(sampler.choose(std::vector<float>(8, 0.25F)), static_cast<int32_t>(engine() >> 61));
}

TEST(Sampler, EqualSeedsGiveEqualDrawsAndNoSeedOthers) {
  const std::vector<float> logits(1000, 0.0F);
  const auto draws = [&](std::optional<uint64_t> seed) {
    SamplingOptions options = sampling(1);
    options.seed = seed;
    Sampler sampler(options);
    std::vector<int32_t> out;
    for (int i = 0; i < 20; ++i) out.push_back(sampler.choose(logits));
    return out;
  };
  EXPECT_EQ(draws(5), draws(5));
  EXPECT_NE(draws(5), draws(6));
  EXPECT_NE(draws({}), draws({}));
}

TEST(Sampler, RefusesLogitsThatGiveNoProbabilities) {
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler(sampling(temperature));
    EXPECT_THAT(
        [&] {
          sampler.choose(std::vector<float>{1, 2, kNan});
        },
        Fails(ErrorCode::numeric_fault, HasSubstr("logit of token 2: got NaN")));
    EXPECT_THAT([&] { sampler.choose({}); }, Fails(ErrorCode::usage, HasSubstr("no logits")));
  }
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler(sampling(temperature));
    for (const float value : {kInfinity, -kInfinity}) {
      EXPECT_THAT(
          [&] {
            sampler.choose(std::vector<float>{value, value});
          },
          Fails(ErrorCode::numeric_fault, HasSubstr("expected a finite one")));
    }
  }
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Row {
    SamplingOptions options;
    const char* text;
  };
  const Row rows[] = {{sampling(-1), "'temperature': got -1, expected"},
                      {sampling(nan), "'temperature': got nan"},
                      {sampling(infinity), "'temperature': got inf"},
                      {sampling(1, 0, 0), "'top_p': got 0, expected more than 0 and at most 1"},
                      {sampling(1, 0, 1.01), "'top_p': got 1.01"},
                      {sampling(1, 0, nan), "'top_p': got nan"},
                      {sampling(1, 0, 1, -0.1), "'min_p': got -0.1, expected 0 to 1"},
                      {sampling(1, 0, 1, 1.5), "'min_p': got 1.5"},
                      {sampling(1, 0, 1, nan), "'min_p': got nan"}};
  for (const Row& row : rows) {
    EXPECT_THAT([&] { Sampler sampler(row.options); }, Fails(ErrorCode::usage, HasSubstr(row.text))) << row.text;
  }
}

}  // namespace
}  // namespace transload
