// Negative log likelihood: against values worked out by hand over a scripted decoder, chunks, progress, refusals.
#include "transload/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "error_matchers.h"
#include "io/json.h"
#include "scripted_decoder.h"

namespace transload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Of the token that the script wants, and of any other: log(e^3 + 63) - 3 and log(e^3 + 63).
const double kOther = std::log(std::exp(3.0) + ScriptedDecoder::kVocab - 1);
const double kWanted = kOther - 3;

TEST(Evaluate, GivesTheNegativeLogLikelihoodOfEachTokenButTheFirst) {
  ScriptedDecoder decoder;
  const std::vector<int32_t> ids{1, 2, 9, 10};
  const Evaluation found = evaluate(decoder, ids);
  ASSERT_EQ(found.nll.size(), 3U);
  EXPECT_NEAR(found.nll[0], kWanted, 1e-6);
  EXPECT_NEAR(found.nll[1], kOther, 1e-6);
  EXPECT_NEAR(found.nll[2], kWanted, 1e-6);
  EXPECT_NEAR(found.nll_sum, 2 * kWanted + kOther, 1e-6);
  EXPECT_NEAR(found.mean_nll, (2 * kWanted + kOther) / 3, 1e-6);
  EXPECT_NEAR(found.perplexity, std::exp((2 * kWanted + kOther) / 3), 1e-6);
  EXPECT_EQ(found.tokens, 4U);
  EXPECT_EQ(found.predictions, 3U);
  EXPECT_EQ(found.chunks, 1U);
}

TEST(Evaluate, StartsEachChunkFromAnEmptyCache) {
  ScriptedDecoder decoder;
  decoder.read(
      std::vector<int32_t>{30}, [](uint64_t, std::span<const float>) {}, false);
  decoder.reads.clear();
  const Evaluation found = evaluate(decoder, std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7}, {.chunk = 3, .progress = {}});
  // The last token of a chunk predicts nothing in it; a chunk of one token has no prediction.
  EXPECT_THAT(decoder.reads, ElementsAre(ElementsAre(1, 2), ElementsAre(4, 5)));
  EXPECT_EQ(found.chunks, 3U);
  EXPECT_EQ(found.predictions, 4U);
  EXPECT_EQ(found.tokens, 7U);
  EXPECT_EQ(decoder.position(), 2U);
}

TEST(Evaluate, CutsWhatIsLongerThanTheCapacity) {
  ScriptedDecoder decoder(4);
  EXPECT_EQ(evaluate(decoder, std::vector<int32_t>{1, 2, 3, 4}).chunks, 1U);
  EXPECT_EQ(evaluate(decoder, std::vector<int32_t>{1, 2, 3, 4, 5, 6}).chunks, 2U);
}

TEST(Evaluate, ReportsProgressInTokensUpToAllOfThem) {
  ScriptedDecoder decoder;
  std::vector<uint64_t> done;
  evaluate(decoder, std::vector<int32_t>{1, 2, 3, 4, 5}, {.chunk = 3, .progress = [&](uint64_t tokens, uint64_t total) {
                                                            EXPECT_EQ(total, 5U);
                                                            done.push_back(tokens);
                                                          }});
  EXPECT_THAT(done, ElementsAre(2, 3, 5));
}

// A bar on a terminal ends with the total.
TEST(Evaluate, ReportsAllTokensAlsoWhenTheLastChunkIsOneToken) {
  for (const uint32_t top : {0U, 1U}) {
    ScriptedDecoder decoder;
    std::vector<uint64_t> done;
    EvaluateOptions options;
    options.chunk = 2;
    options.top = top;
    options.progress = [&](uint64_t tokens, uint64_t) { done.push_back(tokens); };
    evaluate(decoder, std::vector<int32_t>{1, 2, 3, 4, 5}, options);
    EXPECT_THAT(done, ElementsAre(2, 4, 5)) << top;
  }
}

TEST(Evaluate, KeepsDigitsOfVeryUnlikelyTokens) {
  ScriptedDecoder decoder;
  decoder.best = 1000;
  const Evaluation found = evaluate(decoder, std::vector<int32_t>{1, 9});
  EXPECT_EQ(found.nll_sum, 1000);
  EXPECT_TRUE(std::isinf(found.perplexity));
  const Json json = parse_json(evaluation_json(found, decoder, 0), "evaluation");
  EXPECT_TRUE(json.find("perplexity")->is_null());
  EXPECT_EQ(*json.find("mean_nll"), Json(1000.0));
}

TEST(Evaluate, RefusesWhatHasNoPredictions) {
  ScriptedDecoder decoder(8);
  const auto call = [&](std::vector<int32_t> ids, uint32_t chunk) {
    return [&decoder, ids, chunk] { evaluate(decoder, ids, {.chunk = chunk, .progress = {}}); };
  };
  EXPECT_THAT(call({}, 0), Fails(ErrorCode::usage, HasSubstr("too few tokens: got 0, expected at least 2")));
  EXPECT_THAT(call({5}, 0), Fails(ErrorCode::usage, HasSubstr("got 1, expected at least 2")));
  EXPECT_THAT(call({1, 2}, 1), Fails(ErrorCode::usage, HasSubstr("tokens in a chunk: got 1, expected 2 to 8")));
  EXPECT_THAT(call({1, 2}, 9), Fails(ErrorCode::usage, HasSubstr("got 9, expected 2 to 8")));
  ScriptedDecoder one(1);
  EXPECT_THAT(
      [&] {
        evaluate(one, std::vector<int32_t>{1, 2}, {});
      },
      Fails(ErrorCode::usage, HasSubstr("context holds nothing to predict: got 1, expected at least 2")));
  EXPECT_THAT(call({1, 2, 64}, 0),
              Fails(ErrorCode::usage, HasSubstr("token 2: id outside the vocabulary: got 64, expected 0 to 63")));
  EXPECT_THAT(call({1, -1}, 0), Fails(ErrorCode::usage, HasSubstr("got -1")));
  for (const float best : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    decoder.best = best;
    EXPECT_THAT(call({1, 2, 3}, 0), Fails(ErrorCode::numeric_fault, HasSubstr("logits at position 0 of chunk 0")));
  }
}

}  // namespace
}  // namespace transload
