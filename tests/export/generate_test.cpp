// Generation over a scripted decoder: what is read, when it ends, what is reported.
#include "transload/generate.h"

#include <gtest/gtest.h>

#include "error_matchers.h"
#include "io/json.h"
#include "scripted_decoder.h"

namespace transload {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Generated {
  GenerateSummary summary;
  std::vector<int32_t> seen;
};

Generated run(Decoder& decoder, std::vector<int32_t> prompt, uint32_t count, std::vector<int64_t> stop = {}) {
  Generated out;
  GenerateOptions options;
  options.max_new_tokens = count;
  options.stop_tokens = std::move(stop);
  Sampler sampler({});
  out.summary = generate(decoder, prompt, options, sampler, [&](int32_t token) { out.seen.push_back(token); });
  return out;
}

TEST(Generate, ReadsThePromptInOneCallThenEachTokenButTheLast) {
  ScriptedDecoder decoder;
  const Generated found = run(decoder, {5, 6}, 3);
  EXPECT_THAT(found.summary.tokens, ElementsAre(7, 8, 9));
  EXPECT_EQ(found.seen, found.summary.tokens);
  EXPECT_THAT(decoder.reads, ElementsAre(ElementsAre(5, 6), ElementsAre(7), ElementsAre(8)));
  EXPECT_EQ(found.summary.finish, FinishReason::length);
  EXPECT_EQ(found.summary.prompt_tokens, 2U);
  EXPECT_FALSE(found.summary.stop_token);
}

TEST(Generate, EndsAfterAnyStopTokenWhichIsSeenButNotCounted) {
  ScriptedDecoder decoder;
  const Generated found = run(decoder, {1}, 100, {50, 4, 3});
  EXPECT_THAT(found.summary.tokens, ElementsAre(2));
  EXPECT_THAT(found.seen, ElementsAre(2, 3));
  EXPECT_EQ(found.summary.stop_token, 3);
  EXPECT_EQ(found.summary.finish, FinishReason::stop);
  EXPECT_EQ(decoder.position(), 2U);
}

TEST(Generate, StopsAtOnceWhenTheFirstTokenIsAStopToken) {
  ScriptedDecoder decoder;
  const Generated found = run(decoder, {1}, 1, {2});
  EXPECT_THAT(found.summary.tokens, IsEmpty());
  EXPECT_EQ(found.summary.finish, FinishReason::stop);
}

TEST(Generate, EndsWhenTheContextIsFull) {
  ScriptedDecoder decoder(4);
  const Generated found = run(decoder, {1, 2}, 100);
  EXPECT_THAT(found.summary.tokens, ElementsAre(3, 4, 5));  // the last one comes from a full context and cannot be read
  EXPECT_EQ(found.summary.finish, FinishReason::context);
  EXPECT_EQ(decoder.position(), 4U);
}

TEST(Generate, ReportsLengthWhenTheLastTokenWantedFillsTheContext) {
  ScriptedDecoder decoder(4);
  EXPECT_EQ(run(decoder, {1, 2}, 3).summary.finish, FinishReason::length);
}

TEST(Generate, ContinuesWhatWasReadBefore) {
  ScriptedDecoder decoder;
  run(decoder, {1}, 2);
  const Generated found = run(decoder, {3, 10}, 2);
  EXPECT_THAT(found.summary.tokens, ElementsAre(11, 12));
  EXPECT_THAT(decoder.reads, ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(3, 10), ElementsAre(11)));
}

TEST(Generate, ChoosesNothingWhenNoTokensAreWanted) {
  ScriptedDecoder decoder;
  const Generated found = run(decoder, {1}, 0);
  EXPECT_THAT(found.seen, IsEmpty());
  EXPECT_EQ(decoder.position(), 1U);
}

TEST(Generate, RatesCountTokensThatTookACallOfTheirOwn) {
  GenerateSummary summary;
  summary.prompt_tokens = 10;
  summary.prompt_seconds = 2;
  summary.decode_seconds = 4;
  EXPECT_EQ(summary.tokens_per_second(), 0);
  summary.tokens = {1};
  EXPECT_EQ(summary.tokens_per_second(), 0);
  summary.stop_token = 2;
  EXPECT_EQ(summary.tokens_per_second(), 0.25);
  summary.tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(summary.tokens_per_second(), 2);
  EXPECT_EQ(summary.prompt_tokens_per_second(), 5);
}

TEST(Generate, JsonTellsTokensEndAndDecoder) {
  ScriptedDecoder decoder;
  const std::vector<int32_t> prompt{1, 2};
  const Generated found = run(decoder, prompt, 10, {5});
  const Json json = parse_json(generate_json(found.summary, prompt, decoder, 4096), "summary");
  EXPECT_EQ(*json.find("prompt_tokens"), Json(Json::Array{1, 2}));
  EXPECT_EQ(*json.find("tokens"), Json(Json::Array{3, 4}));
  EXPECT_EQ(*json.find("finish_reason"), Json("stop"));
  EXPECT_EQ(*json.find("stop_token"), Json(5));
  EXPECT_EQ(*json.find("kind"), Json("scripted"));
  EXPECT_EQ(*json.find("prompt_seconds"), Json(found.summary.prompt_seconds));
  EXPECT_EQ(*json.find("prompt_tokens_per_second"), Json(found.summary.prompt_tokens_per_second()));
  EXPECT_EQ(*json.find("tokens_per_second"), Json(found.summary.tokens_per_second()));
  EXPECT_EQ(*json.find("kv_bytes"), Json(decoder.kv_bytes()));
  EXPECT_EQ(*json.find("peak_memory_bytes"), Json(4096));
  const Generated single = run(decoder, prompt, 1);
  const Json short_json = parse_json(generate_json(single.summary, prompt, decoder, 0), "summary");
  EXPECT_TRUE(short_json.find("tokens_per_second")->is_null());
  EXPECT_TRUE(short_json.find("stop_token")->is_null());
}

}  // namespace
}  // namespace transload
