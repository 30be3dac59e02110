// The Phi-3 family: every published config and layout, what its parts are made of, what is left out and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "error_matchers.h"
#include "model_fixtures.h"
#include "weights/executor.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

DecoderModel golden(const std::string& name, uint32_t context = 0) {
  return build_model(Checkpoint::open(test_data("decoders/" + name)), {.context = context});
}

StoredTensor& named(std::vector<StoredTensor>& tensors, std::string_view name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) { return tensor.name == name; });
}

void remove(std::vector<StoredTensor>& tensors, std::string_view name) {
  std::erase_if(tensors, [&](const StoredTensor& tensor) { return tensor.name == name; });
}

void rename(std::vector<StoredTensor>& tensors, std::string_view from, std::string_view to) {
  for (StoredTensor& tensor : tensors) {
    const size_t at = tensor.name.find(from);
    if (at != std::string::npos) tensor.name.replace(at, from.size(), to);
  }
}

DecoderModel built(const Json& config, const std::vector<StoredTensor>& tensors, const ModelOptions& options = {}) {
  const ScratchFolder folder;
  return build_model(write_checkpoint(folder, config, tensors), options);
}

std::vector<float> values_of(const Recipe& recipe) {
  const std::vector<std::byte> bytes = materialize(cast(recipe, DType::f32));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(PhiFamilies, BuildEveryCheckpointOfTheTensorRtCases) {
  const std::pair<const char*, const char*> rows[] = {
      {"phi3-mini-4k", "phi3"}, {"phi3-mini-128k", "phi3"},     {"phi3-medium-4k", "phi3"},       {"phi3-separate", "phi3"},
      {"phi4-mini", "phi3"},    {"phi3-small-8k", "phi3small"}, {"phi3-small-128k", "phi3small"}, {"phi35-moe", "phimoe"}};
  for (const auto& [name, family] : rows) {
    const DecoderModel model = build_model(Checkpoint::open(test_data(std::string("trtllm/") + name + "/input")));
    EXPECT_EQ(model.family, family) << name;
    EXPECT_THAT(model.warnings, IsEmpty()) << name;
  }
}

TEST(PhiFamilies, ExpectTheTensorsOfPublishedConfigs) {
  const std::map<std::string, uint64_t> parameters = {{"mini-4k", 3'821'079'552},
                                                      {"mini-128k", 3'821'079'552},
                                                      {"medium-4k", 13'960'238'080},
                                                      {"small-8k", 7'392'272'384},
                                                      {"phi4-mini", 3'836'021'760}};
  const Json published = parse_json(read_text_file(test_data("trtllm/real_configs.json")), "real_configs.json");
  size_t seen = 0;
  for (const Json& entry : published.find("configs")->array()) {
    const Json* config = entry.find("input");
    if (config == nullptr) continue;
    ++seen;
    uint64_t count = 0;
    for (const ExpectedTensor& tensor : expected_tensors(*config, "config.json")) count += element_count(tensor.shape);
    EXPECT_EQ(count, parameters.at(entry.find("model")->string())) << entry.find("model")->string();
  }
  EXPECT_EQ(seen, parameters.size());
}

TEST(PhiFamilies, SynthesisedTensorsAreThoseOfTheGoldens) {
  for (const char* name : {"phi3", "phi3_longrope", "phi4_mini", "phimoe", "phi3small_unofficial"}) {
    const std::string folder = std::string("decoders/") + name;
    const Checkpoint checkpoint = Checkpoint::open(test_data(folder));
    const std::vector<ExpectedTensor> tensors = expected_tensors(config_of(folder + "/config.json"), "config.json");
    EXPECT_EQ(tensors.size(), checkpoint.tensors().size()) << name;
    for (const ExpectedTensor& tensor : tensors) {
      const TensorInfo* stored = checkpoint.find_tensor(tensor.name);
      ASSERT_NE(stored, nullptr) << name << " " << tensor.name;
      EXPECT_EQ(stored->shape, tensor.shape) << name << " " << tensor.name;
      EXPECT_EQ(tensor.is_norm, tensor.name.ends_with("norm.weight")) << name << " " << tensor.name;
    }
  }
}

TEST(Phi3Family, CutsTheFusedRowsIntoTheirParts) {
  const Checkpoint checkpoint = Checkpoint::open(test_data("decoders/phi4_mini"));
  const DecoderModel model = build_model(checkpoint);
  const Attention& attention = model.layers[1].attention;
  const Recipe qkv = source(*checkpoint.find_tensor("model.layers.1.self_attn.qkv_proj.weight"));
  EXPECT_TRUE(attention.q.weight == slice(qkv, 0, 0, 96));
  EXPECT_TRUE(attention.k.weight == slice(qkv, 0, 96, 128));
  EXPECT_TRUE(attention.v.weight == slice(qkv, 0, 128, 160));
  const Recipe fused = source(*checkpoint.find_tensor("model.layers.1.mlp.gate_up_proj.weight"));
  EXPECT_TRUE(model.layers[1].mlp.gate.weight == slice(fused, 0, 0, 128));
  EXPECT_TRUE(model.layers[1].mlp.up.weight == slice(fused, 0, 128, 256));
  EXPECT_EQ(attention.window, std::optional<uint32_t>(64));
  ASSERT_EQ(model.rope_groups.size(), 1U);
  EXPECT_EQ(model.rope_groups[0].name, "sw");
  EXPECT_EQ(model.rope_groups[0].width, 12U);
  EXPECT_TRUE(model.tied_head);
}

TEST(Phi3Family, ReadsTheOlderNamesAsTheNewerOnes) {
  const Json config = config_of("decoders/phi3/config.json");
  const std::vector<StoredTensor> newer = stored_tensors(config);
  std::vector<StoredTensor> older = newer;
  for (const auto& [from, to] : {std::pair{"self_attn.qkv_proj", "self_attn.Wqkv"},
                                 {"mlp.gate_up_proj", "mlp.fc1"},
                                 {"mlp.down_proj", "mlp.fc2"},
                                 {"model.norm.", "model.final_layernorm."}}) {
    rename(older, from, to);
  }
  const DecoderModel model = built(config, older);
  EXPECT_EQ(model.tensors_used, newer.size());
  EXPECT_THAT(source_tensor_names(model.layers[3].attention.k.weight), ElementsAre("model.layers.3.self_attn.Wqkv.weight"));
  EXPECT_THAT(source_tensor_names(model.layers[0].mlp.gate.weight), ElementsAre("model.layers.0.mlp.fc1.weight"));
  EXPECT_THAT(source_tensor_names(model.final_norm.weight), ElementsAre("model.final_layernorm.weight"));
}

TEST(Phi3Family, TakesTheNewerNameOfTheFinalNormWhereBothAreStored) {
  const Json config = config_of("decoders/phi3/config.json");
  std::vector<StoredTensor> tensors = stored_tensors(config);
  tensors.push_back(named(tensors, "model.norm.weight"));
  tensors.back().name = "model.final_layernorm.weight";
  const DecoderModel model = built(config, tensors, {.leave_unused = true});
  EXPECT_THAT(source_tensor_names(model.final_norm.weight), ElementsAre("model.norm.weight"));
}

TEST(PhiRefusals, AHeadCountOfTheWrongTypeIsOneFault) {
  for (const char* name : {"phi3_longrope", "phimoe", "phi3small_unofficial"}) {
    for (const auto& [field, value] : {std::pair{"num_attention_heads", Json(4.0)}, std::pair{"hidden_size", Json(-1)}}) {
      Json config = config_of(std::string("decoders/") + name + "/config.json");
      config.set(field, value);
      EXPECT_THAT([&] { built(config, {}); },
                  Fails(ErrorCode::config_invalid, AllOf(HasSubstr(fmt::format("field '{}'", field)), Not(HasSubstr("faults")))))
          << name;
    }
  }
}

TEST(Phi3SmallFamily, RefusesASecondRotaryBaseThatContradictsItsOwn) {
  for (const bool inner : {false, true}) {
    Json config = config_of("decoders/phi3small_unofficial/config.json");
    if (inner) {
      config.set("rope_parameters", Json::Object{{"rope_type", "default"}, {"rope_theta", 5}});
    } else {
      config.set("rope_theta", 5);
    }
    EXPECT_THAT([&] { built(config, {}); },
                Fails(ErrorCode::config_invalid,
                      AllOf(HasSubstr("field 'rope_embedding_base': contradicts field 'rope_"), HasSubstr("expected 5"))));
  }
}

TEST(Phi3Family, ReadsSeparateProjections) {
  const DecoderModel model = build_model(Checkpoint::open(test_data("trtllm/phi3-separate/input")));
  EXPECT_THAT(source_tensor_names(model.layers[1].attention.q.weight), ElementsAre("model.layers.1.self_attn.q_proj.weight"));
  EXPECT_THAT(source_tensor_names(model.layers[1].mlp.up.weight), ElementsAre("model.layers.1.mlp.up_proj.weight"));
}

TEST(Phi3Family, SeesEverythingWithAWindowOfAllPositions) {
  const std::vector<StoredTensor> tensors = stored_tensors(config_of("decoders/phi3/config.json"));
  for (const Json& window : {Json(256), Json(262144), Json(nullptr)}) {
    Json config = config_of("decoders/phi3/config.json");
    config.set("sliding_window", window);
    const DecoderModel model = built(config, tensors);
    EXPECT_EQ(model.layers[0].attention.window, std::nullopt);
    EXPECT_EQ(model.rope_groups[0].name, "full");
  }
  EXPECT_EQ(golden("phi3").layers[3].attention.window, std::optional<uint32_t>(8));
}

TEST(Phi3Family, TakesTheRegimeOfTheContext) {
  for (const char* name : {"phi3_longrope", "phimoe"}) {
    const bool is_moe = std::string_view(name) == "phimoe";
    const float factor = static_cast<float>(std::sqrt(1 + std::log(704.0 / 22) / std::log(22.0)));
    const RopeGroup long_regime = golden(name).rope_groups[0];
    const RopeGroup short_regime = golden(name, 22).rope_groups[0];
    EXPECT_FLOAT_EQ(long_regime.inv_freq[0], 1 / (is_moe ? 1.682F : 1.1654F));
    EXPECT_FLOAT_EQ(short_regime.inv_freq[0], 1 / (is_moe ? 1.0257F : 1.0432F));
    EXPECT_FLOAT_EQ(long_regime.attention_factor, is_moe ? 1.31F : factor);
    EXPECT_FLOAT_EQ(short_regime.attention_factor, is_moe ? 1.13F : factor);
    EXPECT_EQ(golden(name, 23).rope_groups[0].inv_freq, long_regime.inv_freq);
  }
}

TEST(Phi3Family, HasAsManyKeyHeadsAsHeadsWhereNoneAreGiven) {
  Json config = config_of("decoders/phi3/config.json");
  config.set("num_key_value_heads", nullptr);
  EXPECT_EQ(built(config, stored_tensors(config)).layers[0].attention.kv_heads, 4U);
}

TEST(Phi3Family, ReadsTheTextOfAVisionCheckpoint) {
  Json config = config_of("decoders/phi3/config.json");
  std::vector<StoredTensor> tensors = stored_tensors(config);
  const size_t text = tensors.size();
  config.set("model_type", "phi3_v");
  config.set("img_processor", Json::Object{{"name", "clip_vision_model"}, {"num_img_tokens", 144}});
  config.set("embd_layer", Json::Object{{"embedding_cls", "image"}});
  tensors.push_back({"model.vision_embed_tokens.glb_GN", {1, 1, 4}});
  tensors.push_back({"model.vision_embed_tokens.img_projection.0.weight", {4, 4}});
  const DecoderModel model = built(config, tensors);
  EXPECT_EQ(model.family, "phi3");
  EXPECT_EQ(model.tensors_used, text);
  EXPECT_THAT(model.warnings, ElementsAre("only the text model is read: the tensors 'model.vision_embed_tokens.*' are left out"));
}

TEST(Phi3Family, ReadsTheBaseWeightsOfAMultimodalCheckpoint) {
  Json config = config_of("decoders/phi4_mini/config.json");
  std::vector<StoredTensor> tensors = stored_tensors(config);
  const size_t text = tensors.size();
  config.set("model_type", "phi4mm");
  for (const char* field : {"audio_processor", "img_processor", "embd_layer", "speech_lora", "vision_lora"}) {
    config.set(field, Json::Object{{"r", 256}});
  }
  for (const char* name : {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}) {
    rename(tensors, std::string(name) + ".weight", std::string(name) + ".base_layer.weight");
  }
  tensors.push_back({"model.layers.0.self_attn.qkv_proj.lora_A.vision.weight", {2, 96}});
  tensors.push_back({"model.layers.0.self_attn.qkv_proj.lora_B.vision.weight", {160, 2}});
  tensors.push_back({"model.layers.3.mlp.down_proj.lora_A.speech.weight", {2, 128}});
  tensors.push_back({"model.embed_tokens_extend.image_embed.glb_GN", {1, 4}});
  const DecoderModel model = built(config, tensors);
  EXPECT_EQ(model.tensors_used, text);
  EXPECT_THAT(source_tensor_names(model.layers[2].mlp.up.weight),
              ElementsAre("model.layers.2.mlp.gate_up_proj.base_layer.weight"));
  EXPECT_THAT(model.warnings, ElementsAre(HasSubstr("'model.embed_tokens_extend.*'"), HasSubstr("lora_A, lora_B")));
}

TEST(Phi3Family, ReadsALanguageModelBelowItsPrefix) {
  const Json config = config_of("decoders/phi3/config.json");
  std::vector<StoredTensor> tensors = stored_tensors(config);
  const size_t text = tensors.size();
  for (StoredTensor& tensor : tensors) tensor.name = "language_model." + tensor.name;
  tensors.push_back({"vision_model.embeddings.class_embedding", {1, 1, 4}});
  const DecoderModel model = built(config, tensors);
  EXPECT_EQ(model.tensors_used, text);
  EXPECT_THAT(model.warnings, ElementsAre(HasSubstr("'vision_model.*'")));
}

TEST(Phi3SmallFamily, TakesEachKeyHeadsQueriesKeyAndValueApart) {
  const Checkpoint checkpoint = Checkpoint::open(test_data("decoders/phi3small_unofficial"));
  const Attention attention = build_model(checkpoint).layers[0].attention;
  // Four query heads of 16 rows over two KV heads: q0 q1 k0 v0 q2 q3 k1 v1.
  for (const char* part : {"weight", "bias"}) {
    const std::vector<float> stored =
        values_of(source(*checkpoint.find_tensor(std::string("model.layers.0.self_attn.query_key_value.") + part)));
    const size_t head = stored.size() / 8;
    const auto heads = [&](std::initializer_list<size_t> places) {
      std::vector<float> values;
      for (const size_t place : places) {
        const auto begin = stored.begin() + static_cast<std::ptrdiff_t>(place * head);
        values.insert(values.end(), begin, begin + static_cast<std::ptrdiff_t>(head));
      }
      return values;
    };
    const auto member = std::string_view(part) == "bias" ? &Linear::bias : &Linear::weight;
    EXPECT_EQ(values_of(attention.q.*member), heads({0, 1, 4, 5})) << part;
    EXPECT_EQ(values_of(attention.k.*member), heads({2, 6})) << part;
    EXPECT_EQ(values_of(attention.v.*member), heads({3, 7})) << part;
  }
  EXPECT_EQ(attention.q.weight.shape(), (Shape{64, 64}));
  EXPECT_EQ(attention.v.bias.shape(), Shape{32});
}

TEST(Phi3SmallFamily, GateAndUpRowsLaidSideBySideAreTheStoredTensor) {
  const Checkpoint checkpoint = Checkpoint::open(test_data("decoders/phi3small_unofficial"));
  const Mlp mlp = build_model(checkpoint).layers[2].mlp;
  const Recipe weight = source(*checkpoint.find_tensor("model.layers.2.mlp.up_proj.weight"));
  const Recipe bias = source(*checkpoint.find_tensor("model.layers.2.mlp.up_proj.bias"));
  const Recipe rows = concat({reshape(mlp.gate.weight, {112, 1, 64}), reshape(mlp.up.weight, {112, 1, 64})}, 1);
  const Recipe biases = concat({reshape(mlp.gate.bias, {112, 1}), reshape(mlp.up.bias, {112, 1})}, 1);
  EXPECT_TRUE(reshape(rows, {224, 64}) == weight) << reshape(rows, {224, 64}).text();
  EXPECT_TRUE(reshape(biases, {224}) == bias) << reshape(biases, {224}).text();
  const std::vector<float> stored = values_of(weight);
  const std::vector<float> gate = values_of(mlp.gate.weight);
  EXPECT_TRUE(std::equal(gate.begin() + 64, gate.begin() + 128, stored.begin() + 128));  // row 1 is stored row 2
}

TEST(Phi3SmallFamily, ReadsItsFactorsAndPatterns) {
  const DecoderModel model = golden("phi3small_unofficial");
  EXPECT_EQ(model.embedding_factor, 2.0F);
  EXPECT_EQ(model.logits_factor, 0.5F);
  EXPECT_EQ(model.final_norm.kind, NormKind::layer);
  EXPECT_EQ(model.final_norm.bias.shape(), Shape{64});
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[1], static_cast<float>(std::pow(1e6, -2.0 / 16)));
  for (size_t i = 0; i < 4; ++i) {
    const BlockSparse expected{.block = 4, .local_blocks = 2, .vertical_stride = 3, .head_step = 1};
    EXPECT_EQ(model.layers[i].attention.block_sparse, i % 2 == 0 ? std::optional(expected) : std::nullopt) << i;
    EXPECT_EQ(model.layers[i].attention.scale, 1.0F / 16);
    EXPECT_EQ(model.layers[i].mlp.activation, Activation::quick_gelu);
    EXPECT_EQ(model.layers[i].mlp.limit, std::optional(1.5F));
    EXPECT_EQ(model.layers[i].mlp.up_offset, 1.0F);
  }

  Json config = config_of("decoders/phi3small_unofficial/config.json");
  const std::vector<StoredTensor> tensors = stored_tensors(config);
  config.set("mup_use_scaling", false);
  config.set("blocksparse_homo_head_pattern", true);
  config.set("gegelu_limit", nullptr);
  config.set("dense_attention_every_n_layers", 0);
  const DecoderModel other = built(config, tensors);
  EXPECT_EQ(other.layers[0].attention.scale, 0.25F);
  EXPECT_EQ(other.layers[3].attention.block_sparse->head_step, 0U);
  EXPECT_EQ(other.layers[0].mlp.limit, std::nullopt);
  config.set("dense_attention_every_n_layers", 1);
  EXPECT_EQ(built(config, tensors).layers[0].attention.block_sparse, std::nullopt);

  config.set("dense_attention_every_n_layers", 2);
  config.set("blocksparse_homo_head_pattern", false);
  config.set("blocksparse_vert_stride", 13);
  EXPECT_EQ(built(config, tensors).layers[0].attention.block_sparse->head_step, 3U);
}

TEST(Phi3SmallFamily, TakesNoDefaultForWhatAClassWouldFillIn) {
  for (const char* key : {"gegelu_limit", "dense_attention_every_n_layers"}) {
    Json config = config_of("decoders/phi3small_unofficial/config.json");
    const std::vector<StoredTensor> tensors = stored_tensors(config);
    std::erase_if(config.object(), [&](const Json::Member& member) { return member.first == key; });
    EXPECT_THAT([&] { built(config, tensors); }, Fails(ErrorCode::config_missing, HasSubstr(key)));
  }
}

TEST(Phi3SmallFamily, IsTiedUnlessTheConfigSaysOtherwise) {
  Json config = config_of("decoders/phi3small_unofficial/config.json");
  config.set("tie_word_embeddings", nullptr);
  std::vector<StoredTensor> tensors = stored_tensors(config);
  EXPECT_TRUE(built(config, tensors).tied_head);
  tensors.push_back({"lm_head.weight", {320, 64}});
  EXPECT_THAT(built(config, tensors).warnings, ElementsAre(HasSubstr("'lm_head.weight'")));
}

TEST(PhimoeFamily, BindsExpertsRouterAndBiases) {
  const DecoderModel model = golden("phimoe");
  EXPECT_EQ(model.head_bias.shape(), Shape{320});
  EXPECT_EQ(model.final_norm.kind, NormKind::layer);
  for (const Layer& layer : model.layers) {
    ASSERT_TRUE(layer.experts.has_value());
    EXPECT_TRUE(layer.mlp.gate.weight.empty());
    EXPECT_EQ(layer.experts->chosen, 2U);
    EXPECT_EQ(layer.experts->jitter, 0.01);
    EXPECT_EQ(layer.experts->router.weight.shape(), (Shape{4, 64}));
    EXPECT_EQ(layer.experts->experts.size(), 4U);
    EXPECT_EQ(layer.attention.o.bias.shape(), Shape{64});
  }
  const Mlp& expert = model.layers[1].experts->experts[3];
  EXPECT_THAT(source_tensor_names(expert.gate.weight), ElementsAre("model.layers.1.block_sparse_moe.experts.3.w1.weight"));
  EXPECT_THAT(source_tensor_names(expert.up.weight), ElementsAre("model.layers.1.block_sparse_moe.experts.3.w3.weight"));
  EXPECT_THAT(source_tensor_names(expert.down.weight), ElementsAre("model.layers.1.block_sparse_moe.experts.3.w2.weight"));
}

TEST(PhimoeFamily, HasNoWindowOfAllPositions) {
  Json config = config_of("decoders/phimoe/config.json");
  const std::vector<StoredTensor> tensors = stored_tensors(config);
  config.set("sliding_window", 704);
  EXPECT_EQ(built(config, tensors).layers[0].attention.window, std::nullopt);
  config.set("sliding_window", 703);
  EXPECT_EQ(built(config, tensors).layers[0].attention.window, std::optional<uint32_t>(703));
}

// Phi-3.5-MoE: 32 layers of 16 experts.
TEST(PhimoeFamily, BuildsAsManyTensorsAsPublishedInNoTime) {
  Json config = config_of("decoders/phimoe/config.json");
  config.set("num_hidden_layers", 32);
  config.set("num_local_experts", 16);
  config.set("vocab_size", 16);
  const ScratchFolder folder;
  const Checkpoint checkpoint = write_checkpoint(folder, config, stored_tensors(config));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(build_model(checkpoint).tensors_used, 32U * (12 + 1 + 16 * 3) + 5);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));  // 10 ms alone on a core
}

TEST(LeaveUnused, NamesWhatIsLeftOutInOneWarning) {
  const Json config = config_of("decoders/phi3/config.json");
  std::vector<StoredTensor> tensors = stored_tensors(config);
  for (int i = 0; i < 23; ++i) tensors.push_back({fmt::format("extra.{:02}", i), {4}});
  EXPECT_THAT([&] { built(config, tensors); }, Fails(ErrorCode::tensor_unused, HasSubstr("23 faults")));
  const DecoderModel model = built(config, tensors, {.leave_unused = true});
  EXPECT_THAT(model.warnings, ElementsAre(AllOf(HasSubstr("23 stored tensors are left out"), HasSubstr("'extra.00', 'extra.01'"),
                                                HasSubstr("'extra.19', and 3 more"))));
  EXPECT_EQ(model.tensors_used, tensors.size() - 23);
  remove(tensors, "model.norm.weight");
  EXPECT_THAT([&] { built(config, tensors, {.leave_unused = true}); },
              Fails(ErrorCode::tensor_missing, HasSubstr("'model.norm.weight'")));
}

TEST(PhiRefusals, MissingAndMisshapenTensorsAreNamed) {
  const auto fails = [](const char* name, const auto& edit, ErrorCode code, const char* text) {
    const Json config = config_of(std::string("decoders/") + name + "/config.json");
    std::vector<StoredTensor> tensors = stored_tensors(config);
    edit(tensors);
    EXPECT_THAT([&] { built(config, tensors); }, Fails(code, HasSubstr(text))) << name;
  };
  fails(
      "phimoe", [](auto& all) { remove(all, "model.layers.2.block_sparse_moe.experts.3.w2.weight"); }, ErrorCode::tensor_missing,
      "'model.layers.2.block_sparse_moe.experts.3.w2.weight': missing: got none, expected shape");
  fails(
      "phimoe",
      [](auto& all) {
        all.push_back({"model.layers.2.block_sparse_moe.experts.4.w2.weight", {64, 64}});
      },
      ErrorCode::tensor_unused, "experts.4.w2.weight");
  fails(
      "phimoe", [](auto& all) { remove(all, "lm_head.bias"); }, ErrorCode::tensor_missing, "'lm_head.bias'");
  fails(
      "phimoe", [](auto& all) { remove(all, "model.norm.bias"); }, ErrorCode::tensor_missing, "'model.norm.bias'");
  fails(
      "phi3",
      [](auto& all) {
        named(all, "model.layers.0.self_attn.qkv_proj.weight").shape = {160, 64};
      },
      ErrorCode::shape_mismatch, "qkv_proj.weight': wrong shape: got [160,64], expected [192,64]");
  fails(
      "phi3",
      [](auto& all) {
        all.push_back({"model.layers.0.self_attn.qkv_proj.bias", {192}});
      },
      ErrorCode::tensor_unused, "qkv_proj.bias");
  fails(
      "phi3",
      [](auto& all) {
        all.push_back({"model.layers.0.self_attn.Wqkv.weight", {192, 64}});
      },
      ErrorCode::tensor_unused, "Wqkv.weight");
  fails(
      "phi3small_unofficial", [](auto& all) { named(all, "model.layers.1.mlp.up_proj.bias").shape = {112}; },
      ErrorCode::shape_mismatch, "up_proj.bias': wrong shape: got [112], expected [224]");
}

}  // namespace
}  // namespace transload
