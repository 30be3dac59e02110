// The best tokens of a row of logits, at each step of a generation and of an evaluation.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "scripted_decoder.h"
#include "transload/evaluate.h"
#include "transload/generate.h"

namespace transload {
namespace {

std::vector<int32_t> ids_of(const std::vector<ScoredToken>& tokens) {
  std::vector<int32_t> ids;
  for (const ScoredToken& token : tokens) ids.push_back(token.id);
  return ids;
}

TEST(TopLogits, AreTheLargestAndOfEqualOnesTheLowerIds) {
  const std::vector<float> logits{1, 5, -2, 5, 0, 7};
  EXPECT_EQ(ids_of(top_logits(logits, 1)), (std::vector<int32_t>{5}));
  EXPECT_EQ(ids_of(top_logits(logits, 4)), (std::vector<int32_t>{5, 1, 3, 0}));
  EXPECT_EQ(ids_of(top_logits(logits, 100)), (std::vector<int32_t>{5, 1, 3, 0, 4, 2}));
  EXPECT_EQ(top_logits(logits, 2)[1].logit, 5.0F);
  EXPECT_TRUE(top_logits(logits, 0).empty());
}

TEST(TopLogits, PutNanLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits{nan, 1, nan, 3, -std::numeric_limits<float>::infinity()};
  EXPECT_EQ(ids_of(top_logits(logits, 2)), (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(top_logits(logits, 5).size(), 5U);
}

TEST(TopLogits, AreNotedForEachTokenThatIsChosenTheStopTokenToo) {
  ScriptedDecoder decoder;
  GenerateOptions options;
  options.stop_tokens = {4};
  options.top_logits = 2;
  Sampler sampler({});
  const GenerateSummary summary = generate(decoder, std::vector<int32_t>{1}, options, sampler, {});
  ASSERT_EQ(summary.top_logits.size(), 3U);
  EXPECT_EQ(ids_of(summary.top_logits[0]), (std::vector<int32_t>{2, 0}));
  EXPECT_EQ(ids_of(summary.top_logits[2]), (std::vector<int32_t>{4, 0}));
}

TEST(TopLogits, AreKeptForEveryTokenOfAnEvaluationTheLastOfAChunkToo) {
  ScriptedDecoder decoder;
  EvaluateOptions options;
  options.chunk = 2;
  options.top = 1;
  const Evaluation found = evaluate(decoder, std::vector<int32_t>{1, 2, 9}, options);
  ASSERT_EQ(found.top_logits.size(), 3U);
  EXPECT_EQ(ids_of(found.top_logits[1]), (std::vector<int32_t>{3}));
  EXPECT_EQ(ids_of(found.top_logits[2]), (std::vector<int32_t>{10}));
  EXPECT_EQ(found.predictions, 1U);
  ASSERT_EQ(found.logsumexp.size(), 3U);
  EXPECT_NEAR(found.logsumexp[0], std::log(std::exp(3.0) + ScriptedDecoder::kVocab - 1), 1e-5);
}

}  // namespace
}  // namespace transload
