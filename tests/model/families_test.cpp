// Every family on the golden checkpoints and on published configs: tensors, parameters, both config spellings, family facts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "error_matchers.h"
#include "model_fixtures.h"

namespace transload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

DecoderModel golden(const std::string& name, const std::string& config = "config.json") {
  return build_model(Checkpoint::open(test_data("decoders/" + name), test_data("decoders/" + name + "/" + config)));
}

DecoderModel golden_gguf(const std::string& name) {
  return build_model(Checkpoint::open(test_data("decoders/" + name + "/model.gguf")));
}

struct GoldenRow {
  const char* name;
  const char* family;
  uint64_t tensors;
  bool gguf = false;
};

TEST(Families, BuildEveryGoldenCheckpoint) {
  const GoldenRow rows[] = {{"spark", "spark", 4 * 8 + 2},
                            {"spark_3shard_fp32", "spark", 6 * 8 + 2},
                            {"llama", "llama", 4 * 9 + 3},
                            {"llama_tied_fp16", "llama", 4 * 9 + 2},
                            {"mistral", "mistral", 4 * 9 + 3},
                            {"gemma3", "gemma3", 6 * 13 + 2},
                            {"phi3", "phi3", 4 * 6 + 3},
                            {"phi3_longrope", "phi3", 4 * 6 + 3},
                            {"phi4_mini", "phi3", 4 * 6 + 2},
                            {"phimoe", "phimoe", 4 * (12 + 1 + 4 * 3) + 5},
                            {"phi3small_unofficial", "phi3small", 4 * 12 + 3},
                            {"llama_gguf_q8_0", "llama", 4 * 9 + 3, true},
                            {"llama_gguf_f16", "llama", 4 * 9 + 2, true}};
  for (const GoldenRow& row : rows) {
    const DecoderModel model = row.gguf ? golden_gguf(row.name) : golden(row.name);
    EXPECT_EQ(model.family, row.family) << row.name;
    EXPECT_EQ(model.tensors_used, row.tensors) << row.name;
    EXPECT_THAT(model.warnings, IsEmpty()) << row.name;
    EXPECT_EQ(model.embedding.shape(), (Shape{model.vocab_size, model.hidden_size})) << row.name;
    EXPECT_EQ(model.head.shape(), model.embedding.shape()) << row.name;
  }
}

TEST(Families, BothConfigSpellingsGiveTheSameModel) {
  for (const char* name : {"llama", "llama_tied_fp16", "mistral", "gemma3", "phi3", "phi3_longrope", "phi4_mini", "phimoe"}) {
    EXPECT_EQ(text_of(golden(name)), text_of(golden(name, "config_v4.json"))) << name;
  }
}

struct PublishedRow {
  const char* name;
  size_t tensors;
  uint64_t parameters;
};

TEST(Families, ExpectTheTensorsOfPublishedModels) {
  const PublishedRow rows[] = {
      {"spark-x2.5-1.7b", 226, 1'707'657'216}, {"spark-x2.5-4b", 290, 4'112'079'360}, {"llama-3.2-1b", 146, 1'235'814'400},
      {"smollm2-135m", 272, 134'515'008},      {"mistral-7b", 291, 7'241'732'096},    {"gemma3-270m", 236, 268'098'176},
      {"gemma3-1b", 340, 999'885'952},         {"gemma3-4b", 444, 3'880'263'168},
  };
  for (const PublishedRow& row : rows) {
    const std::vector<ExpectedTensor> tensors =
        expected_tensors(config_of(std::string("configs/") + row.name + "/config.json"), "config.json");
    uint64_t parameters = 0;
    std::set<std::string> names;
    for (const ExpectedTensor& tensor : tensors) {
      parameters += element_count(tensor.shape);
      names.insert(tensor.name);
      EXPECT_EQ(tensor.is_norm, tensor.shape.size() == 1) << tensor.name;
    }
    EXPECT_EQ(tensors.size(), row.tensors) << row.name;
    EXPECT_EQ(names.size(), row.tensors) << row.name;
    EXPECT_EQ(parameters, row.parameters) << row.name;
  }
}

TEST(Families, ExpectedTensorsComeInLayerOrderWithTheirMeans) {
  const std::vector<ExpectedTensor> spark = expected_tensors(config_of("decoders/spark/config.json"), "config.json");
  EXPECT_EQ(spark.front().name, "model.embedding.weight");
  EXPECT_EQ(spark[1].name, "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(spark[1].mean, 1.0F);
  EXPECT_EQ(spark.back().name, "model.norm.weight");
  const std::vector<ExpectedTensor> gemma = expected_tensors(config_of("decoders/gemma3/config.json"), "config.json");
  EXPECT_TRUE(gemma[1].is_norm);
  EXPECT_EQ(gemma[1].mean, 0.0F);
  const std::vector<ExpectedTensor> llama = expected_tensors(config_of("decoders/llama/config.json"), "config.json");
  EXPECT_EQ(llama.back().name, "lm_head.weight");
}

TEST(Families, TheTableNamesEveryFamilyOnce) {
  const std::vector<std::string> names = family_names();
  EXPECT_THAT(names, ElementsAre("spark", "llama", "mistral", "gemma3", "phi3", "phi3small", "phimoe"));
}

TEST(SparkFamily, MixesSlidingAndFullLayersWithTheirOwnRotaryWidths) {
  const DecoderModel model = golden("spark");
  ASSERT_EQ(model.rope_groups.size(), 2U);
  EXPECT_EQ(model.rope_groups[0].name, "sw");
  EXPECT_EQ(model.rope_groups[0].width, 32U);
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[1], static_cast<float>(std::pow(1e4, -2.0 / 32)));
  EXPECT_EQ(model.rope_groups[1].name, "full");
  EXPECT_EQ(model.rope_groups[1].width, 8U);
  EXPECT_FLOAT_EQ(model.rope_groups[1].inv_freq[1], static_cast<float>(std::pow(5e6, -2.0 / 8)));
  for (size_t i = 0; i < 4; ++i) {
    const Attention& attention = model.layers[i].attention;
    EXPECT_EQ(attention.window, i == 3 ? std::optional<uint32_t>() : std::optional<uint32_t>(8));
    EXPECT_EQ(attention.rope_group, i == 3 ? 1U : 0U);
    ASSERT_TRUE(attention.head_gate.has_value());
    EXPECT_EQ(attention.head_gate->weight.shape(), (Shape{8, 64}));
    EXPECT_EQ(attention.gate_activation, GateActivation::sigmoid);
  }
  EXPECT_TRUE(model.tied_head);
  EXPECT_EQ(model.layers[0].mlp.activation, Activation::gelu_erf);
  EXPECT_EQ(model.eos_tokens, std::vector<int64_t>{1});
  EXPECT_EQ(model.bos_token, 0);
}

TEST(SparkFamily, CutsTheFusedRowsIntoQueriesKeysAndValues) {
  const Checkpoint checkpoint = Checkpoint::open(test_data("decoders/spark"));
  const Attention attention = build_model(checkpoint).layers[1].attention;
  const Recipe fused = source(*checkpoint.find_tensor("model.layers.1.self_attn.q_k_v_proj.weight"));
  EXPECT_TRUE(attention.q.weight == slice(fused, 0, 0, 256));
  EXPECT_TRUE(attention.k.weight == slice(fused, 0, 256, 320));
  EXPECT_TRUE(attention.v.weight == slice(fused, 0, 320, 384));
  EXPECT_FLOAT_EQ(attention.scale, static_cast<float>(1 / std::sqrt(32.0)));
}

TEST(SparkFamily, TakesSiluGatesAndNone) {
  Json config = config_of("decoders/spark/config.json");
  config.set("gate_attn_act_mode", "silu");
  const ScratchFolder folder;
  EXPECT_EQ(build_model(write_checkpoint(folder, config, stored_tensors(config))).layers[0].attention.gate_activation,
            GateActivation::silu);
  config.set("headwise_attn_output_gate", false);
  config.set("gate_attn_act_mode", nullptr);
  const DecoderModel model = build_model(write_checkpoint(folder, config, stored_tensors(config)));
  EXPECT_FALSE(model.layers[0].attention.head_gate.has_value());
  EXPECT_EQ(model.tensors_used, 4U * 7 + 2);
}

TEST(SparkFamily, KeepsOnlyTheRopeGroupsThatLayersUse) {
  Json config = config_of("decoders/spark/config.json");
  config.set("layer_types", Json::Array{"full_attention", "full_attention", "full_attention", "full_attention"});
  const ScratchFolder folder;
  const DecoderModel model = build_model(write_checkpoint(folder, config, stored_tensors(config)));
  ASSERT_EQ(model.rope_groups.size(), 1U);
  EXPECT_EQ(model.rope_groups[0].name, "full");
  EXPECT_EQ(model.layers[3].attention.rope_group, 0U);
}

TEST(LlamaFamily, DerivesHeadSizeAndKeyHeadsWhereTheConfigLeavesThemOut) {
  Json config = config_of("configs/smollm2-135m/config.json");
  config.set("num_key_value_heads", nullptr);
  config.set("num_hidden_layers", 1);
  config.set("vocab_size", 32);
  const ScratchFolder folder;
  const DecoderModel model = build_model(write_checkpoint(folder, config, stored_tensors(config)));
  EXPECT_EQ(model.layers[0].attention.head_dim, 64U);
  EXPECT_EQ(model.layers[0].attention.kv_heads, 9U);
  EXPECT_EQ(model.rope_groups[0].name, "full");
  EXPECT_TRUE(model.tied_head);
}

TEST(LlamaFamily, BindsBiasesWhenTheConfigHasThem) {
  Json config = config_of("decoders/llama/config.json");
  config.set("attention_bias", true);
  config.set("mlp_bias", true);
  const ScratchFolder folder;
  const DecoderModel model = build_model(write_checkpoint(folder, config, stored_tensors(config)));
  EXPECT_EQ(model.tensors_used, 4U * 16 + 3);
  EXPECT_EQ(model.layers[2].attention.k.bias.shape(), Shape{32});
  EXPECT_EQ(model.layers[2].mlp.down.bias.shape(), Shape{64});
}

TEST(LlamaFamily, WantsAHeadWhenNothingTiesIt) {
  Json config = config_of("decoders/llama_tied_fp16/config.json");
  config.set("tie_word_embeddings", nullptr);
  const ScratchFolder folder;
  std::ofstream(folder.path() / "untied.json") << write_json(config);
  EXPECT_THAT([&] { build_model(Checkpoint::open(test_data("decoders/llama_tied_fp16"), folder.path() / "untied.json")); },
              Fails(ErrorCode::tensor_missing, HasSubstr("tensor 'lm_head.weight': missing: got none, expected shape [256,96]")));
}

TEST(LlamaFamily, PassesOverAStoredHeadWithAWarningWhenTied) {
  Json config = config_of("decoders/llama/config.json");
  config.set("tie_word_embeddings", true);
  const ScratchFolder folder;
  std::ofstream(folder.path() / "tied.json") << write_json(config);
  const DecoderModel model = build_model(Checkpoint::open(test_data("decoders/llama"), folder.path() / "tied.json"));
  EXPECT_TRUE(model.head == model.embedding);
  EXPECT_EQ(model.tensors_used, 4U * 9 + 2);
  EXPECT_THAT(model.warnings, ElementsAre(HasSubstr("'lm_head.weight'")));
}

TEST(MistralFamily, SlidesEverywhereNowhereOrByLayer) {
  const DecoderModel sliding = golden("mistral");
  ASSERT_EQ(sliding.rope_groups.size(), 1U);
  EXPECT_EQ(sliding.rope_groups[0].name, "sw");
  EXPECT_EQ(sliding.layers[3].attention.window, std::optional<uint32_t>(8));
  EXPECT_EQ(sliding.layers[0].attention.head_dim, 24U);

  Json config = config_of("decoders/mistral/config.json");
  const ScratchFolder folder;
  const std::vector<StoredTensor> tensors = stored_tensors(config);
  config.set("sliding_window", nullptr);
  const DecoderModel full = build_model(write_checkpoint(folder, config, tensors));
  EXPECT_EQ(full.rope_groups[0].name, "full");
  EXPECT_EQ(full.layers[0].attention.window, std::nullopt);

  config.set("sliding_window", 8);
  config.set("layer_types", Json::Array{"sliding_attention", "full_attention", "full_attention", "sliding_attention"});
  const DecoderModel mixed = build_model(write_checkpoint(folder, config, tensors));
  ASSERT_EQ(mixed.rope_groups.size(), 2U);
  EXPECT_EQ(mixed.rope_groups[0].inv_freq, mixed.rope_groups[1].inv_freq);
  EXPECT_EQ(mixed.layers[1].attention.rope_group, 1U);
  EXPECT_EQ(mixed.layers[1].attention.window, std::nullopt);
  EXPECT_EQ(mixed.layers[3].attention.window, std::optional<uint32_t>(8));
}

TEST(Gemma3Family, ReadsItsOwnFacts) {
  const DecoderModel model = golden("gemma3");
  EXPECT_EQ(model.embedding_factor, 8.0F);
  ASSERT_EQ(model.rope_groups.size(), 2U);
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[1], static_cast<float>(std::pow(1e4, -2.0 / 24)));
  EXPECT_FLOAT_EQ(model.rope_groups[1].inv_freq[1], static_cast<float>(std::pow(1e6, -2.0 / 24) / 8));
  const Layer& layer = model.layers[5];
  EXPECT_EQ(layer.attention.window, std::nullopt);
  EXPECT_EQ(model.layers[4].attention.window, std::optional<uint32_t>(8));
  EXPECT_FLOAT_EQ(layer.attention.scale, static_cast<float>(1 / std::sqrt(20.0)));
  ASSERT_TRUE(layer.attention.q_norm && layer.attention.k_norm && layer.post_attention_norm && layer.post_mlp_norm);
  EXPECT_EQ(layer.attention.q_norm->weight.shape(), Shape{24});
  EXPECT_THAT(layer.mlp_norm.weight.text(), HasSubstr("model.layers.5.pre_feedforward_layernorm.weight"));
  EXPECT_EQ(layer.mlp.activation, Activation::gelu_tanh);
  EXPECT_TRUE(model.tied_head);
}

TEST(Gemma3Family, KeepsTheEmbeddingFactorInSinglePrecision) {
  Json config = config_of("configs/gemma3-270m/config.json");
  config.set("vocab_size", 16);
  const ScratchFolder folder;
  const DecoderModel model = build_model(write_checkpoint(folder, config, stored_tensors(config)));
  EXPECT_EQ(model.embedding_factor, std::sqrt(640.0F));
  EXPECT_EQ(model.layers[4].attention.window, std::optional<uint32_t>(512));
  EXPECT_EQ(model.layers[5].attention.window, std::nullopt);
}

TEST(Gemma3Family, TakesTheTextDecoderOfAMultimodalCheckpoint) {
  Json config = config_of("configs/gemma3-4b/config.json");
  Json text = *config.find("text_config");
  text.set("num_hidden_layers", 6);
  text.set("vocab_size", 16);
  config.set("text_config", text);
  std::vector<StoredTensor> tensors = stored_tensors(config);
  EXPECT_EQ(tensors[1].name, "model.language_model.layers.0.input_layernorm.weight");
  tensors.push_back({"model.vision_tower.vision_model.post_layernorm.weight", {4}});
  tensors.push_back({"model.multi_modal_projector.mm_soft_emb_norm.weight", {4}});
  const ScratchFolder folder;
  const DecoderModel newer = build_model(write_checkpoint(folder, config, tensors));
  EXPECT_EQ(newer.tensors_used, 6U * 13 + 2);
  EXPECT_EQ(newer.layers[0].attention.window, std::optional<uint32_t>(1024));
  EXPECT_EQ(newer.layers[0].attention.scale, 1.0F / 16);
  EXPECT_EQ(newer.eos_tokens, (std::vector<int64_t>{1, 106}));
  EXPECT_FLOAT_EQ(newer.rope_groups[1].inv_freq[0], 1.0F / 8);

  const std::string prefix = "model.language_model.";
  for (StoredTensor& tensor : tensors) {
    if (tensor.name.starts_with(prefix)) tensor.name = "language_model.model." + tensor.name.substr(prefix.size());
  }
  EXPECT_EQ(build_model(write_checkpoint(folder, config, tensors)).tensors_used, 6U * 13 + 2);
}

}  // namespace
}  // namespace transload
