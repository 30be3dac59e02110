// Splits over ranks: feasible sizes of the published models, refusals with the sizes that would do, stages, shared KV heads.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <limits>

#include "error_matchers.h"
#include "targets/trtllm/mapping.h"
#include "targets/trtllm_models.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Only what a mapping looks at: no weights.
DecoderModel sizes_only(uint32_t heads, uint32_t kv_heads, uint32_t intermediate, uint32_t layers, uint32_t experts = 0) {
  DecoderModel model;
  model.intermediate_size = intermediate;
  Layer layer;
  layer.attention.heads = heads;
  layer.attention.kv_heads = kv_heads;
  if (experts > 0) layer.experts.emplace().experts.resize(experts);
  model.layers.assign(layers, layer);
  return model;
}

const DecoderModel& mini() {
  static const DecoderModel model = sizes_only(32, 32, 8192, 32);
  return model;
}
const DecoderModel& medium() {
  static const DecoderModel model = sizes_only(40, 10, 17920, 40);
  return model;
}
const DecoderModel& moe() {
  static const DecoderModel model = sizes_only(32, 8, 6400, 32, 16);
  return model;
}

auto checking(const DecoderModel& model, const TrtllmMapping& mapping, TrtllmFormat format = TrtllmFormat::v1) {
  return [&model, mapping, format] { check_mapping(model, mapping, format); };
}

// The tensor-parallel sizes up to 64 that are not refused.
std::vector<uint32_t> allowed_sizes(const DecoderModel& model, uint32_t expert) {
  std::vector<uint32_t> allowed;
  for (uint32_t tensor = 1; tensor <= 64; ++tensor) {
    try {
      check_mapping(model, {tensor, 1, expert}, TrtllmFormat::v1);
      allowed.push_back(tensor);
    } catch (const Error&) {
    }
  }
  return allowed;
}

TEST(TrtllmMapping, PublishedModelsHaveTheTensorSizesOfTheirHeads) {
  EXPECT_THAT(allowed_sizes(mini(), 1), ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_THAT(allowed_sizes(medium(), 1), ElementsAre(1, 2, 5, 10, 20, 40));
  EXPECT_THAT(allowed_sizes(sizes_only(32, 8, 14336, 32), 1), ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_THAT(allowed_sizes(sizes_only(24, 8, 8192, 32), 1), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(allowed_sizes(moe(), 1), ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_THAT(allowed_sizes(moe(), 4), ElementsAre(4, 8, 16, 32));
  EXPECT_THAT(allowed_sizes(mini(), 2), IsEmpty());
  EXPECT_THAT(allowed_sizes(moe(), 3), IsEmpty());
  EXPECT_THAT(allowed_sizes(moe(), 0), IsEmpty());
}

TEST(TrtllmMapping, RefusalsListExactlyTheSizesThatPass) {
  for (const DecoderModel* model : {&mini(), &medium(), &moe()}) {
    for (const uint32_t expert : {1U, 2U, 16U}) {
      const std::vector<uint32_t> allowed = allowed_sizes(*model, expert);
      for (uint32_t tensor = 1; tensor <= 64; ++tensor) {
        try {
          check_mapping(*model, {tensor, 1, expert}, TrtllmFormat::v1);
        } catch (const Error& error) {
          if (std::string_view(error.what()).find("cannot split") == std::string_view::npos) continue;
          if (allowed.empty()) continue;  // experts are asked for where there are none
          EXPECT_THAT(error.what(), HasSubstr(fmt::format("expected one of {}", fmt::join(allowed, ", "))));
        }
      }
    }
  }
}

TEST(TrtllmMapping, RefusalsNameTheSizesThatWouldDo) {
  EXPECT_THAT(checking(medium(), {4, 1, 1}),
              Fails(ErrorCode::shard_indivisible, HasSubstr("cannot split 10 key/value heads: got --tp 4, expected one of "
                                                            "1, 2, 5, 10, 20, 40")));
  EXPECT_THAT(
      checking(mini(), {3, 1, 1}),
      Fails(
          ErrorCode::shard_indivisible,
          HasSubstr("cannot split 32 attention heads, 32 key/value heads and intermediate size 8192: got --tp 3, expected one of "
                    "1, 2, 4, 8, 16, 32")));
  EXPECT_THAT(checking(sizes_only(24, 8, 8192, 32), {24, 1, 1}),
              Fails(ErrorCode::shard_indivisible,
                    AllOf(HasSubstr("cannot split intermediate size 8192: got --tp 24, expected one of 1, 2, 4, 8"),
                          Not(HasSubstr("config.json")), Not(HasSubstr("\n")))));
  EXPECT_THAT(
      checking(sizes_only(32, 8, 6400, 32, 12), {8, 1, 8}),
      Fails(ErrorCode::shard_indivisible, HasSubstr("--moe-ep does not divide 12 experts: got 8, expected one of 1, 2, 4")));
  EXPECT_THAT(checking(mini(), {1, 33, 1}),
              Fails(ErrorCode::shard_indivisible, HasSubstr("--pp of a model of 32 layers: got 33, expected at most 32")));
}

TEST(TrtllmMapping, ExpertParallelismLeavesTheInnerWidthToTheOtherRanks) {
  const DecoderModel narrow = sizes_only(8, 8, 2, 1, 4);
  EXPECT_THAT(checking(narrow, {8, 1, 2}),
              Fails(ErrorCode::shard_indivisible,
                    HasSubstr("cannot split intermediate size 2: got --tp 8 with --moe-ep 2, expected one of 2, 4")));
  check_mapping(narrow, {8, 1, 4}, TrtllmFormat::v1);
  EXPECT_THAT(checking(sizes_only(4, 4, 3, 1, 2), {2, 1, 1}),
              Fails(ErrorCode::shard_indivisible, HasSubstr("got --tp 2, expected 1")));
}

TEST(TrtllmMapping, Format012WantsStagesOfEqualSize) {
  check_mapping(mini(), {1, 5, 1}, TrtllmFormat::v1);
  check_mapping(mini(), {1, 4, 1}, TrtllmFormat::v0_12);
  EXPECT_THAT(
      checking(mini(), {1, 5, 1}, TrtllmFormat::v0_12),
      Fails(ErrorCode::shard_indivisible,
            HasSubstr("--pp does not divide 32 layers, which format 0.12 asks for: got 5, expected one of 1, 2, 4, 8, 16, 32")));
}

TEST(TrtllmMapping, ImpossibleOptionsAreNamed) {
  const uint32_t huge = std::numeric_limits<uint32_t>::max();
  EXPECT_THAT(checking(mini(), {0, 0, 0}),
              Fails(ErrorCode::usage, AllOf(HasSubstr("--tp: got 0, expected at least 1"), HasSubstr("--pp: got 0"),
                                            HasSubstr("--moe-ep: got 0"))));
  EXPECT_THAT(checking(mini(), {2, 1, 2}),
              Fails(ErrorCode::shard_indivisible, HasSubstr("--moe-ep of a model without experts: got 2, expected 1")));
  EXPECT_THAT(checking(moe(), {4, 1, 3}),
              Fails(ErrorCode::shard_indivisible,
                    HasSubstr("--moe-ep does not divide --tp 4 and 16 experts: got 3, expected one of 1, 2, 4")));
  EXPECT_THAT(checking(moe(), {4, 1, 8}),
              Fails(ErrorCode::shard_indivisible, HasSubstr("--moe-ep does not divide --tp 4: got 8, expected one of 1, 2, 4")));
  EXPECT_THAT(checking(moe(), {1, 1, 2}),
              Fails(ErrorCode::shard_indivisible, HasSubstr("--moe-ep does not divide --tp 1: got 2, expected 1")));
  EXPECT_THAT(checking(moe(), {huge, huge, huge}),
              Fails(ErrorCode::shard_indivisible,
                    AllOf(HasSubstr("32 attention heads, 8 key/value heads and intermediate size 6400: got --tp 4294967295"),
                          HasSubstr("16 experts: got 4294967295"), HasSubstr("32 layers: got 4294967295"))));
}

TEST(TrtllmMapping, TooManyRanksAreRefusedEvenWhereTheModelAllowsThem) {
  const DecoderModel wide = sizes_only(1U << 20, 1U << 20, 1U << 20, 1000);
  EXPECT_THAT(checking(wide, {1U << 20, 1000, 1}),
              Fails(ErrorCode::shard_indivisible,
                    HasSubstr("ranks of --tp 1048576 and --pp 1000: got 1048576000, expected at most 65536")));
}

TEST(TrtllmMapping, EarlyStagesHaveTheLayersThatAreLeftOver) {
  const auto ends = [](uint32_t layers, uint32_t stages) {
    std::vector<uint32_t> found;
    uint32_t begin = 0;
    for (uint32_t stage = 0; stage < stages; ++stage) {
      const LayerSpan span = stage_layers(layers, stages, stage);
      EXPECT_EQ(span.begin, begin);
      found.push_back(begin = span.end);
    }
    return found;
  };
  EXPECT_THAT(ends(32, 5), ElementsAre(7, 14, 20, 26, 32));
  EXPECT_THAT(ends(32, 4), ElementsAre(8, 16, 24, 32));
  EXPECT_THAT(ends(7, 5), ElementsAre(2, 4, 5, 6, 7));
  EXPECT_THAT(ends(3, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(ends(5, 1), ElementsAre(5));
}

TEST(TrtllmMapping, RanksShareKvHeadsInOrderWhereThereAreFewer) {
  const auto heads = [](uint32_t kv_heads, uint32_t tensor) {
    std::vector<std::pair<uint32_t, uint32_t>> spans;
    for (uint32_t rank = 0; rank < tensor; ++rank) {
      const HeadSpan span = rank_kv_heads(kv_heads, tensor, rank);
      spans.emplace_back(span.begin, span.end);
    }
    return spans;
  };
  using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;
  EXPECT_EQ(heads(8, 2), (Pairs{{0, 4}, {4, 8}}));
  EXPECT_EQ(heads(2, 2), (Pairs{{0, 1}, {1, 2}}));
  EXPECT_EQ(heads(2, 4), (Pairs{{0, 1}, {0, 1}, {1, 2}, {1, 2}}));
  EXPECT_EQ(heads(2, 6), (Pairs{{0, 1}, {0, 1}, {0, 1}, {1, 2}, {1, 2}, {1, 2}}));
  const HeadSpan last = rank_kv_heads(1U << 30, 1U << 30, (1U << 30) - 1);
  EXPECT_EQ(last.begin, (1U << 30) - 1);
}

}  // namespace
}  // namespace transload
