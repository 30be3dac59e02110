// Tensors of a rank: what each holds for every kind of split, how few reads they take, and the files of the handed conversions.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "error_matchers.h"
#include "targets/trtllm/mapping.h"
#include "targets/trtllm/rank_tensors.h"
#include "targets/trtllm_cases.h"
#include "targets/trtllm_models.h"
#include "transload/checkpoint.h"
#include "weights/executor.h"
#include "weights/lower.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using Tensors = std::map<std::string, Recipe>;

const TrtllmArchitecture& architecture(std::string_view name) { return trtllm_architecture(name, "config.json"); }

TrtllmOptions mapped(const TrtllmMapping& mapping) {
  TrtllmOptions options;
  options.mapping = mapping;
  return options;
}

Tensors tensors_of(const DecoderModel& model, std::string_view name, const TrtllmMapping& mapping, uint32_t rank,
                   DType dtype = DType::f32) {
  Tensors found;
  for (const RankTensor& tensor : rank_tensors(model, architecture(name), mapped(mapping), dtype, rank)) {
    EXPECT_TRUE(found.emplace(tensor.name, tensor.recipe).second) << tensor.name;
  }
  return found;
}

std::vector<float> values(const Recipe& recipe) {
  const std::vector<std::byte> bytes = materialize(cast(recipe, DType::f32));
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// First element of each row of a matrix, or of the matrices of a stack in turn.
std::vector<float> row_starts(const Recipe& recipe) {
  const std::vector<float> all = values(recipe);
  std::vector<float> starts;
  for (size_t i = 0; i < all.size(); i += recipe.shape().back()) starts.push_back(all[i]);
  return starts;
}

// Rows begin..end-1 of the part that starts at `start`, 100 apart.
std::vector<float> rows(float start, int begin, int end, float step = 100) {
  std::vector<float> out;
  for (int i = begin; i < end; ++i) out.push_back(start + step * static_cast<float>(i));
  return out;
}

std::vector<float> joined(std::initializer_list<std::vector<float>> parts) {
  std::vector<float> out;
  for (const std::vector<float>& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

const std::string kLayer = "transformer.layers.0.";

TEST(TrtllmRankTensors, AnUnsplitDenseModelHasTheNamesTheLoaderAsksFor) {
  const DecoderModel model = numbered_model({});
  std::vector<std::string> names;
  for (const RankTensor& tensor : rank_tensors(model, architecture("Phi3ForCausalLM"), mapped({}), DType::f16, 0)) {
    names.push_back(tensor.name);
    EXPECT_EQ(tensor.recipe.dtype(), DType::f16);
    EXPECT_EQ(tensor.scales_name, "");
  }
  EXPECT_THAT(
      names, ElementsAre("transformer.vocab_embedding.weight", kLayer + "input_layernorm.weight", kLayer + "attention.qkv.weight",
                         kLayer + "attention.dense.weight", kLayer + "post_layernorm.weight", kLayer + "mlp.fc.weight",
                         kLayer + "mlp.proj.weight", "transformer.ln_f.weight", "lm_head.weight"));
}

TEST(TrtllmRankTensors, UpAndGateAreSplitEachByItself) {
  const DecoderModel model = numbered_model({});
  const auto fc = [&](const TrtllmMapping& mapping, uint32_t rank) {
    return row_starts(tensors_of(model, "Phi3ForCausalLM", mapping, rank).at(kLayer + "mlp.fc.weight"));
  };
  EXPECT_THAT(fc({}, 0), ElementsAreArray(joined({rows(kUp, 0, 4), rows(kGate, 0, 4)})));
  EXPECT_THAT(fc({2, 1, 1}, 0), ElementsAreArray(joined({rows(kUp, 0, 2), rows(kGate, 0, 2)})));
  EXPECT_THAT(fc({2, 1, 1}, 1), ElementsAreArray(joined({rows(kUp, 2, 4), rows(kGate, 2, 4)})));
}

TEST(TrtllmRankTensors, InterleavedRowsKeepTheirOrderAndAreCutInBlocks) {
  const DecoderModel model = numbered_model({.biases = true});
  const auto fc = [&](const TrtllmMapping& mapping, uint32_t rank, const char* part) {
    return tensors_of(model, "Phi3SmallForCausalLM", mapping, rank).at(kLayer + "mlp.fc." + part);
  };
  EXPECT_THAT(row_starts(fc({}, 0, "weight")),
              ElementsAre(kGate, kUp, kGate + 100, kUp + 100, kGate + 200, kUp + 200, kGate + 300, kUp + 300));
  EXPECT_THAT(row_starts(fc({2, 1, 1}, 1, "weight")), ElementsAre(kGate + 200, kUp + 200, kGate + 300, kUp + 300));
  EXPECT_THAT(values(fc({2, 1, 1}, 1, "bias")),
              ElementsAre(kGate + kBias + 2, kUp + kBias + 2, kGate + kBias + 3, kUp + kBias + 3));
}

TEST(TrtllmRankTensors, QueriesKeysAndValuesAreSplitByWholeHeads) {
  const DecoderModel model = numbered_model({.kv_heads = 2, .biases = true});
  const auto qkv = [&](uint32_t tensor, uint32_t rank, const char* part) {
    return tensors_of(model, "Phi3SmallForCausalLM", {tensor, 1, 1}, rank).at(kLayer + "attention.qkv." + part);
  };
  // Heads of two rows: 4 of queries, 2 of keys and values.
  EXPECT_THAT(row_starts(qkv(1, 0, "weight")), ElementsAreArray(joined({rows(kQ, 0, 8), rows(kK, 0, 4), rows(kV, 0, 4)})));
  EXPECT_THAT(row_starts(qkv(2, 1, "weight")), ElementsAreArray(joined({rows(kQ, 4, 8), rows(kK, 2, 4), rows(kV, 2, 4)})));
  // Two ranks share a head of keys and values, weights and biases alike.
  EXPECT_THAT(row_starts(qkv(4, 1, "weight")), ElementsAreArray(joined({rows(kQ, 2, 4), rows(kK, 0, 2), rows(kV, 0, 2)})));
  EXPECT_THAT(row_starts(qkv(4, 2, "weight")), ElementsAreArray(joined({rows(kQ, 4, 6), rows(kK, 2, 4), rows(kV, 2, 4)})));
  EXPECT_THAT(values(qkv(4, 3, "bias")),
              ElementsAreArray(joined({rows(kQ + kBias, 6, 8, 1), rows(kK + kBias, 2, 4, 1), rows(kV + kBias, 2, 4, 1)})));
}

TEST(TrtllmRankTensors, RowParallelWeightsAreSplitByColumnsAndTheirBiasesAreWhole) {
  const DecoderModel model = numbered_model({.biases = true});
  const Tensors last = tensors_of(model, "Phi3SmallForCausalLM", {4, 1, 1}, 3);
  const Recipe& dense = last.at(kLayer + "attention.dense.weight");
  EXPECT_EQ(dense.shape(), (Shape{8, 2}));
  EXPECT_THAT(row_starts(dense), ElementsAreArray(rows(kO + 6, 0, 8)));
  EXPECT_THAT(values(last.at(kLayer + "attention.dense.bias")), ElementsAreArray(rows(kO + kBias, 0, 8, 1)));
  const Recipe& proj = last.at(kLayer + "mlp.proj.weight");
  EXPECT_EQ(proj.shape(), (Shape{8, 1}));
  EXPECT_THAT(row_starts(proj), ElementsAreArray(rows(kDown + 3, 0, 8)));
  EXPECT_THAT(values(last.at(kLayer + "mlp.proj.bias")), ElementsAreArray(rows(kDown + kBias, 0, 8, 1)));
}

TEST(TrtllmRankTensors, EveryRankHasTheWholeNormsAndEmbedding) {
  const DecoderModel model = numbered_model({.biases = true});
  const Tensors last = tensors_of(model, "Phi3SmallForCausalLM", {4, 1, 1}, 3);
  EXPECT_THAT(values(last.at(kLayer + "input_layernorm.weight")), ElementsAreArray(rows(kNorm + 1000, 0, 8, 1)));
  EXPECT_THAT(values(last.at(kLayer + "post_layernorm.bias")), ElementsAreArray(rows(kNorm + 2000 + kBias, 0, 8, 1)));
  EXPECT_THAT(values(last.at("transformer.ln_f.bias")), ElementsAreArray(rows(kNorm + kBias, 0, 8, 1)));
  EXPECT_THAT(row_starts(last.at("transformer.vocab_embedding.weight")), ElementsAreArray(rows(kEmbedding, 0, 6)));
}

TEST(TrtllmRankTensors, TheHeadIsPaddedWithZeroRowsToEqualParts) {
  const DecoderModel model = numbered_model({.vocab = 5, .biases = true});
  const auto part = [&](uint32_t tensor, uint32_t rank, const char* name) {
    return tensors_of(model, "Phi3SmallForCausalLM", {tensor, 1, 1}, rank, DType::bf16).at(name);
  };
  const auto near = [](const std::vector<float>& expected) {
    std::vector<testing::Matcher<float>> matchers;  // bf16 keeps 8 bits
    for (const float value : expected) matchers.emplace_back(testing::FloatNear(value, value / 256));
    return matchers;
  };
  EXPECT_THAT(row_starts(part(1, 0, "lm_head.weight")), ElementsAreArray(near(rows(kHead, 0, 5))));
  EXPECT_THAT(row_starts(part(2, 1, "lm_head.weight")), ElementsAreArray(near({kHead + 300, kHead + 400, 0})));
  EXPECT_THAT(values(part(2, 1, "lm_head.bias")), ElementsAreArray(near({kHead + kBias + 3, kHead + kBias + 4, 0})));
  EXPECT_THAT(row_starts(part(4, 2, "lm_head.weight")), ElementsAreArray(near({kHead + 400, 0})));
  EXPECT_EQ(values(part(4, 3, "lm_head.weight")), std::vector<float>(16));  // nothing but padding
  EXPECT_EQ(values(part(4, 3, "lm_head.bias")), std::vector<float>(2));
  EXPECT_EQ(part(4, 3, "lm_head.weight").dtype(), DType::bf16);
}

TEST(TrtllmRankTensors, ExpertsAreStackedAndSplitByExpertAndByWidth) {
  const DecoderModel model = numbered_model({.experts = 4});
  const auto expert = [](float start, int e, int begin, int end) {
    return rows(start + 10'000.0F * static_cast<float>(e), begin, end);
  };
  const auto of = [&](const TrtllmMapping& mapping, uint32_t rank, const char* name) {
    return tensors_of(model, "PhiMoEForCausalLM", mapping, rank).at(kLayer + "mlp." + name);
  };
  EXPECT_EQ(of({}, 0, "fc.weight").shape(), (Shape{4, 8, 8}));
  EXPECT_EQ(of({}, 0, "proj.weight").shape(), (Shape{4, 8, 4}));
  EXPECT_THAT(
      row_starts(of({2, 1, 1}, 1, "fc.weight")),
      ElementsAreArray(joined({expert(kUp, 0, 2, 4), expert(kGate, 0, 2, 4), expert(kUp, 1, 2, 4), expert(kGate, 1, 2, 4),
                               expert(kUp, 2, 2, 4), expert(kGate, 2, 2, 4), expert(kUp, 3, 2, 4), expert(kGate, 3, 2, 4)})));
  // Rank 3 of 4 with two expert groups: the second group (3 mod 2), the second half of the width (3 div 2).
  EXPECT_THAT(
      row_starts(of({4, 1, 2}, 3, "fc.weight")),
      ElementsAreArray(joined({expert(kUp, 2, 2, 4), expert(kGate, 2, 2, 4), expert(kUp, 3, 2, 4), expert(kGate, 3, 2, 4)})));
  EXPECT_THAT(row_starts(of({4, 1, 2}, 2, "proj.weight")),
              ElementsAreArray(joined({expert(kDown + 2, 0, 0, 8), expert(kDown + 2, 1, 0, 8)})));
}

TEST(TrtllmRankTensors, TheRouterIsWholeAndInF32OnEveryRank) {
  const DecoderModel model = numbered_model({.experts = 4});
  for (const uint32_t rank : {0U, 3U}) {
    const Tensors tensors = tensors_of(model, "PhiMoEForCausalLM", {4, 1, 4}, rank, DType::f16);
    const Recipe& router = tensors.at(kLayer + "mlp.router.weight");
    EXPECT_EQ(router.dtype(), DType::f32);
    EXPECT_THAT(row_starts(router), ElementsAreArray(rows(kRouter, 0, 4)));
    EXPECT_EQ(tensors.at(kLayer + "mlp.fc.weight").dtype(), DType::f16);
  }
}

TEST(TrtllmRankTensors, StagesNumberTheirLayersFromZeroAndShareTheEndsOfTheModel) {
  const DecoderModel model = numbered_model({.layers = 5});
  const TrtllmMapping mapping{2, 3, 1};  // 2, 2 and 1 layers
  for (uint32_t rank = 0; rank < 6; ++rank) {
    const uint32_t stage = rank / 2;
    const Tensors tensors = tensors_of(model, "Phi3ForCausalLM", mapping, rank);
    EXPECT_EQ(tensors.contains("transformer.vocab_embedding.weight"), stage == 0);
    EXPECT_EQ(tensors.contains("transformer.ln_f.weight"), stage == 2);
    EXPECT_EQ(tensors.contains("lm_head.weight"), stage == 2);
    EXPECT_EQ(tensors.contains("transformer.layers.1.mlp.fc.weight"), stage != 2);
    EXPECT_FALSE(tensors.contains("transformer.layers.2.mlp.fc.weight"));
    const float first_layer = 1'000'000.0F * static_cast<float>(2 * stage);
    EXPECT_THAT(row_starts(tensors.at(kLayer + "mlp.proj.weight")),
                ElementsAreArray(rows(first_layer + kDown + static_cast<float>(2 * (rank % 2)), 0, 8)));
  }
}

TEST(TrtllmRankTensors, PartsOfDifferentTypesAreJoinedInTheTypeOfTheCheckpoint) {
  DecoderModel model = numbered_model({});
  model.layers[0].attention.k.weight = cast(model.layers[0].attention.k.weight, DType::f16);
  const Recipe qkv = tensors_of(model, "Phi3ForCausalLM", {}, 0, DType::bf16).at(kLayer + "attention.qkv.weight");
  EXPECT_EQ(qkv.dtype(), DType::bf16);
  EXPECT_EQ(qkv.shape(), (Shape{24, 8}));
}

TEST(TrtllmRankTensors, OnlyLinearLayersOfABlockAreQuantisedAndOnlyWhenBaked) {
  const DecoderModel model = numbered_model({.heads = 8, .kv_heads = 8, .head_dim = 8, .intermediate = 64, .experts = 2});
  TrtllmOptions options;
  options.weight_only = WeightOnly::int4;
  for (const RankTensor& tensor : rank_tensors(model, architecture("PhiMoEForCausalLM"), options, DType::f16, 0)) {
    EXPECT_NE(tensor.recipe.dtype(), DType::i8) << tensor.name;
  }
  options.form = QuantForm::baked;
  std::map<std::string, std::pair<Shape, Shape>> quantised;
  for (const RankTensor& tensor : rank_tensors(model, architecture("PhiMoEForCausalLM"), options, DType::f16, 0)) {
    if (tensor.recipe.dtype() != DType::i8) {
      EXPECT_EQ(tensor.scales_name, "");
      continue;
    }
    EXPECT_EQ(tensor.scales_name, tensor.name.substr(0, tensor.name.rfind('.')) + ".per_channel_scale");
    quantised[tensor.name] = {tensor.recipe.shape(), tensor.scales_shape};
  }
  EXPECT_THAT(quantised, ElementsAre(std::pair(kLayer + "attention.dense.weight", std::pair(Shape{64, 32}, Shape{64})),
                                     std::pair(kLayer + "attention.qkv.weight", std::pair(Shape{64, 96}, Shape{192})),
                                     std::pair(kLayer + "mlp.fc.weight", std::pair(Shape{2, 64, 64}, Shape{2, 128})),
                                     std::pair(kLayer + "mlp.proj.weight", std::pair(Shape{2, 64, 32}, Shape{2, 64}))));
}

TEST(TrtllmRankTensors, StackedExpertsTakeTheLayoutThatTheirKernelsHave) {
  const DecoderModel model = numbered_model({.heads = 8, .kv_heads = 8, .head_dim = 8, .intermediate = 64, .experts = 2});
  const auto tensors = [&](QuantLayout layout) {
    TrtllmOptions options;
    options.weight_only = WeightOnly::int8;
    options.form = QuantForm::baked;
    options.layout = layout;
    Tensors found;
    for (const RankTensor& each : rank_tensors(model, architecture("PhiMoEForCausalLM"), options, DType::f16, 0)) {
      found[each.name] = each.recipe;
    }
    return found;
  };
  const Tensors older = tensors(QuantLayout::sm80);
  const Tensors newer = tensors(QuantLayout::sm90);
  EXPECT_TRUE(newer.at(kLayer + "mlp.fc.weight") == older.at(kLayer + "mlp.fc.weight"));
  EXPECT_TRUE(newer.at(kLayer + "mlp.proj.weight") == older.at(kLayer + "mlp.proj.weight"));
  EXPECT_FALSE(newer.at(kLayer + "attention.qkv.weight") == older.at(kLayer + "attention.qkv.weight"));
}

TEST(TrtllmRankFile, LiesByTypeAndThenByName) {
  const auto zeros = [](DType dtype) { return cast(constant({2, 3}, std::vector<float>(6)), dtype); };
  const std::vector<RankTensor> tensors = {{"layers.2.b", zeros(DType::f16), {}, {}},
                                           {"layers.10.b", zeros(DType::f16), {}, {}},
                                           {"router", zeros(DType::f32), {}, {}},
                                           {"layers.1.b", zeros(DType::f16), {}, {}},
                                           {"early", zeros(DType::bf16), {}, {}}};
  const PlannedFile file = plan_rank_file(tensors, DType::f16, 12);
  EXPECT_EQ(file.name, "rank12.safetensors");
  std::vector<std::string> names;
  std::vector<uint64_t> offsets;
  for (const PlannedTensor& tensor : file.tensors) {
    names.push_back(tensor.name);
    offsets.push_back(tensor.offset);
  }
  EXPECT_THAT(names, ElementsAre("router", "early", "layers.1.b", "layers.10.b", "layers.2.b"));
  ASSERT_EQ(file.bytes.size(), 1U);
  EXPECT_EQ(file.bytes[0].offset, 0U);
  const std::string& header = file.bytes[0].bytes;
  EXPECT_EQ(header.size() % 8, 0U);
  EXPECT_THAT(offsets,
              ElementsAre(header.size(), header.size() + 24, header.size() + 36, header.size() + 48, header.size() + 60));
  EXPECT_EQ(file.size, header.size() + 72);
  EXPECT_THAT(header.substr(8),
              AllOf(testing::StartsWith(R"({"router":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"early":)"),
                    testing::Not(HasSubstr("__metadata__"))));
}

TEST(TrtllmRankFile, ScalesAreEntriesOfTheirOwnPlace) {
  const Recipe weight = cast(constant({64, 64}, std::vector<float>(64 * 64)), DType::f16);
  const std::vector<RankTensor> tensors = {{"b.weight", quantize(weight, {}), "b.per_channel_scale", {64}},
                                           {"a.weight", weight, {}, {}},
                                           {"c.weight", weight, {}, {}}};
  const PlannedFile file = plan_rank_file(tensors, DType::f16, 0);
  const uint64_t begin = file.bytes[0].bytes.size();
  ASSERT_EQ(file.tensors.size(), 3U);
  const PlannedTensor& quantised = file.tensors[2];
  EXPECT_EQ(quantised.name, "b.weight");
  EXPECT_EQ(quantised.offset, begin + 2 * 8192 + 128);
  ASSERT_TRUE(quantised.scales);
  EXPECT_EQ(quantised.scales->name, "b.per_channel_scale");
  EXPECT_EQ(quantised.scales->offset, begin + 8192);
  EXPECT_EQ(quantised.scales->dtype, DType::f16);
  EXPECT_FALSE(file.tensors[0].scales);
  check_plan({{file}});
}

class HandedConversions : public testing::TestWithParam<std::string> {
 protected:
  HandedConversions()
      : checkpoint_(Checkpoint::open(trtllm_data() / GetParam() / "input")),
        model_(build_model(checkpoint_)),
        config_(trtllm_json(std::filesystem::path(GetParam()) / "input" / "config.json")),
        architecture_(trtllm_architecture_of(config_, "config.json")),
        document_(trtllm_json(std::filesystem::path(GetParam()) / "case.json")) {}

  PlannedFile plan(const TrtllmOptions& options, uint32_t rank) const {
    return plan_rank_file(rank_tensors(model_, architecture_, options, *options.dtype, rank), *options.dtype, rank);
  }

  Checkpoint checkpoint_;
  DecoderModel model_;
  Json config_;
  const TrtllmArchitecture& architecture_;
  Json document_;
};

// dtype and shape of every entry of a header, in its order.
std::string header_text(const std::string& header) {
  std::string text;
  const Json entries = parse_json(std::string_view(header).substr(8), "header");
  for (const auto& [name, entry] : entries.object()) {
    text += fmt::format("{} {} {}\n", name, entry.find("dtype")->string(), write_json(*entry.find("shape"), 0));
  }
  return text;
}

TEST_P(HandedConversions, HaveTheirTensorsAndFileSizes) {
  size_t compared = 0;
  std::map<std::string, const Json*> by_id;
  for (const Json& conversion : document_.find("conversions")->array()) by_id[conversion.find("id")->string()] = &conversion;
  for (const auto& [id, conversion] : by_id) {
    if (conversion->find("expect")->string() == "refuse") continue;
    SCOPED_TRACE(id);
    const TrtllmOptions options = trtllm_options(*conversion->find("options"), TrtllmFormat::v1);
    check_mapping(model_, options.mapping, options.format);
    const Json* same = conversion->find("same_tensors_as");
    const Json::Array& ranks = (same != nullptr ? by_id.at(same->string()) : conversion)->find("ranks")->array();
    ASSERT_EQ(ranks.size(), options.mapping.world());
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const PlannedFile file = plan(options, rank);
      std::string expected;
      for (const auto& [name, tensor] : ranks[rank].find("tensors")->object()) {
        expected += fmt::format("{} {} {}\n", name, tensor.array()[0].string(), write_json(tensor.array()[1], 0));
      }
      EXPECT_EQ(header_text(file.bytes[0].bytes), expected);
      EXPECT_EQ(static_cast<int64_t>(file.size), ranks[rank].find("bytes")->integer());
      check_plan({{file}});
      ++compared;
    }
  }
  EXPECT_GT(compared, 40U);
}

TEST_P(HandedConversions, AreRefusedWhereTheyHaveNoCorrectResult) {
  for (const Json& conversion : document_.find("conversions")->array()) {
    if (conversion.find("expect")->string() != "refuse") continue;
    const TrtllmOptions options = trtllm_options(*conversion.find("options"), TrtllmFormat::v1);
    const std::string reason = conversion.find("reason")->string();
    const bool about_tensor = reason.starts_with("transformer.");
    const auto convert = [&] {
      check_mapping(model_, options.mapping, options.format);
      for (uint32_t rank = 0; rank < options.mapping.world(); ++rank) plan(options, rank);
    };
    EXPECT_THAT(convert, Fails(about_tensor ? ErrorCode::quant_unsupported : ErrorCode::shard_indivisible,
                               HasSubstr(about_tensor ? "tensor '" + reason.substr(0, reason.find(':')) + "'" : "")))
        << conversion.find("id")->string();
  }
}

// Every fragment reads along the rows of a stored tensor, and there are few of them.
TEST_P(HandedConversions, AreReadRowByRowInFewFragments) {
  TrtllmOptions options;
  options.dtype = DType::f16;
  const bool separate = GetParam() == "phi3-separate" || architecture_.expert_fields;
  for (const RankTensor& tensor : rank_tensors(model_, architecture_, options, DType::f16, 0)) {
    size_t most = 1;
    if (tensor.name.find("attention.qkv") != std::string::npos)
      most = separate || architecture_.fc == FcOrder::interleaved ? 3 : 1;
    if (tensor.name.find("mlp.fc") != std::string::npos) most = architecture_.fc == FcOrder::interleaved ? 1 : 2;
    if (model_.layers[0].experts && tensor.recipe.shape().size() == 3) most *= model_.layers[0].experts->experts.size();
    const LoweredTensor lowered = lower(tensor.recipe);
    EXPECT_LE(lowered.fragments.size(), most) << tensor.name;
    for (const Fragment& fragment : lowered.fragments) EXPECT_EQ(fragment.in_column_stride, 1U) << tensor.name;
  }
}

TEST_P(HandedConversions, ReadTheEmbeddingForATiedHead) {
  TrtllmOptions options;
  std::map<std::string, Recipe> tensors;
  for (RankTensor& tensor : rank_tensors(model_, architecture_, options, DType::f16, 0)) tensors[tensor.name] = tensor.recipe;
  const bool tied = GetParam() == "phi4-mini" || architecture_.tied_by_default;
  EXPECT_EQ(tensors.at("lm_head.weight") == tensors.at("transformer.vocab_embedding.weight"), tied);
}

INSTANTIATE_TEST_SUITE_P(Cases, HandedConversions, testing::ValuesIn(trtllm_case_names()), [](const auto& test) {
  std::string name = test.param;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace transload
