// GGUF files as models: the mapped config, the names, what converters did to rows and norms, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "error_matchers.h"
#include "gguf_builder.h"
#include "model_fixtures.h"
#include "weights/executor.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<float> values_of(const Recipe& recipe) {
  const std::vector<std::byte> bytes = materialize(cast(recipe, DType::f32));
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// One layer, hidden 8, 2 heads of 4, 1 key/value head, mlp 6, vocabulary 5.
GgufBuilder small_llama() {
  GgufBuilder gguf;
  gguf.metadata = parse_json(R"({"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 64,
      "llama.embedding_length": 8, "llama.feed_forward_length": 6, "llama.attention.head_count": 2,
      "llama.attention.head_count_kv": 1, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 500000.0,
      "llama.rope.dimension_count": 4, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
      "tokenizer.ggml.eot_token_id": 3})",
                             "metadata");
  std::vector<float> q(64);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i / 8);  // a row holds its own number
  gguf.tensors = {
      {"token_embd.weight", {5, 8}, {}},        {"output_norm.weight", {8}, {}},      {"blk.0.attn_norm.weight", {8}, {}},
      {"blk.0.attn_q.weight", {8, 8}, q},       {"blk.0.attn_k.weight", {4, 8}, {}},  {"blk.0.attn_v.weight", {4, 8}, {}},
      {"blk.0.attn_output.weight", {8, 8}, {}}, {"blk.0.ffn_norm.weight", {8}, {}},   {"blk.0.ffn_gate.weight", {6, 8}, {}},
      {"blk.0.ffn_up.weight", {6, 8}, {}},      {"blk.0.ffn_down.weight", {8, 6}, {}}};
  return gguf;
}

GgufBuilder small_gemma3(uint32_t layers) {
  GgufBuilder gguf;
  gguf.metadata = parse_json(R"({"general.architecture": "gemma3", "gemma3.context_length": 64, "gemma3.embedding_length": 8,
      "gemma3.feed_forward_length": 6, "gemma3.attention.head_count": 2, "gemma3.attention.head_count_kv": 1,
      "gemma3.attention.layer_norm_rms_epsilon": 1e-6, "gemma3.attention.key_length": 6, "gemma3.attention.value_length": 6,
      "gemma3.rope.freq_base": 1000000.0, "gemma3.attention.sliding_window": 16})",
                             "metadata");
  gguf.metadata.set("gemma3.block_count", layers);
  gguf.tensors = {{"token_embd.weight", {5, 8}, {}}, {"output_norm.weight", {8}, {1.1F, 0.3F, -2.7F, 1e-9F, 5, 6, 7, 8}}};
  for (uint32_t i = 0; i < layers; ++i) {
    const std::string at = fmt::format("blk.{}.", i);
    for (const char* norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"}) {
      gguf.tensors.push_back({at + norm + ".weight", {8}, {}});
    }
    for (const char* norm : {"attn_q_norm", "attn_k_norm"}) gguf.tensors.push_back({at + norm + ".weight", {6}, {}});
    gguf.tensors.push_back({at + "attn_q.weight", {12, 8}, {}});
    gguf.tensors.push_back({at + "attn_k.weight", {6, 8}, {}});
    gguf.tensors.push_back({at + "attn_v.weight", {6, 8}, {}});
    gguf.tensors.push_back({at + "attn_output.weight", {8, 12}, {}});
    gguf.tensors.push_back({at + "ffn_gate.weight", {6, 8}, {}});
    gguf.tensors.push_back({at + "ffn_up.weight", {6, 8}, {}});
    gguf.tensors.push_back({at + "ffn_down.weight", {8, 6}, {}});
  }
  return gguf;
}

GgufBuilder small_spark() {
  GgufBuilder gguf;
  gguf.metadata = parse_json(R"({"general.architecture": "spark2_5", "spark2_5.block_count": 2, "spark2_5.context_length": 64,
      "spark2_5.embedding_length": 8, "spark2_5.feed_forward_length": 6, "spark2_5.attention.head_count": 2,
      "spark2_5.attention.head_count_kv": 1, "spark2_5.attention.key_length": 8, "spark2_5.attention.value_length": 8,
      "spark2_5.attention.layer_norm_rms_epsilon": 1e-6, "spark2_5.attention.sliding_window": 16,
      "spark2_5.attention.sliding_window_pattern": [true, false], "spark2_5.vocab_size": 5, "spark2_5.rope.freq_base": 5000000.0,
      "spark2_5.rope.freq_base_swa": 10000.0, "spark2_5.rope.dimension_count": 2, "spark2_5.rope.dimension_count_swa": 8})",
                             "metadata");
  gguf.tensors = {{"token_embd.weight", {5, 8}, {}}, {"output_norm.weight", {8}, {}}};
  for (const std::string at : {"blk.0.", "blk.1."}) {
    gguf.tensors.push_back({at + "attn_norm.weight", {8}, {}});
    gguf.tensors.push_back({at + "ffn_norm.weight", {8}, {}});
    gguf.tensors.push_back({at + "attn_qkv.weight", {32, 8}, {}});
    gguf.tensors.push_back({at + "attn_gate.weight", {2, 8}, {}});
    gguf.tensors.push_back({at + "attn_output.weight", {8, 16}, {}});
    gguf.tensors.push_back({at + "ffn_gate.weight", {6, 8}, {}});
    gguf.tensors.push_back({at + "ffn_up.weight", {6, 8}, {}});
    gguf.tensors.push_back({at + "ffn_down.weight", {8, 6}, {}});
  }
  return gguf;
}

DecoderModel model_of(const GgufBuilder& gguf) {
  const ScratchFolder folder;
  gguf.write(folder.path() / "model.gguf");
  return build_model(Checkpoint::open(folder.path() / "model.gguf"));
}

TEST(GgufModel, MapsTheGoldenFilesToTheirReferenceConfig) {
  for (const std::string name : {"llama_gguf_q8_0", "llama_gguf_f16"}) {
    const auto file = test_data("decoders/" + name + "/model.gguf");
    Json config = config_of("decoders/" + name + "/config.json");
    config.set("bos_token_id", nullptr);  // these files hold no tokenizer
    config.set("eos_token_id", nullptr);
    const ScratchFolder folder;
    std::ofstream(folder.path() / "config.json") << write_json(config);
    const DecoderModel mapped = build_model(Checkpoint::open(file));
    EXPECT_EQ(text_of(mapped), text_of(build_model(Checkpoint::open(file, folder.path() / "config.json")))) << name;
    EXPECT_EQ(mapped.tied_head, name == "llama_gguf_f16");
    EXPECT_THAT(mapped.layers[0].attention.q.weight.text(), HasSubstr("unpair"));
  }
}

TEST(GgufModel, ReadsTokensAndImpliesWhatTheMetadataLeavesOut) {
  const DecoderModel model = model_of(small_llama());
  EXPECT_EQ(model.family, "llama");
  EXPECT_EQ(model.vocab_size, 5U);  // from the embedding's shape
  EXPECT_EQ(model.bos_token, 1);
  EXPECT_THAT(model.eos_tokens, ElementsAre(2, 3));
  EXPECT_TRUE(model.tied_head);
  EXPECT_EQ(model.layers[0].attention.head_dim, 4U);
}

TEST(GgufModel, PairedRowsReadBackInHalfSplitOrder) {
  const ScratchFolder folder;
  GgufBuilder gguf = small_llama();
  gguf.tensors.push_back({"blk.0.attn_q.bias", {8}, {0, 1, 2, 3, 4, 5, 6, 7}});
  gguf.tensors.push_back({"blk.0.attn_k.bias", {4}, {0, 1, 2, 3}});
  gguf.tensors.push_back({"blk.0.attn_v.bias", {4}, {0, 1, 2, 3}});
  gguf.tensors.push_back({"blk.0.attn_output.bias", {8}, {}});
  gguf.write(folder.path() / "model.gguf");
  const DecoderModel model = build_model(Checkpoint::open(folder.path() / "model.gguf"));
  const Attention& attention = model.layers[0].attention;
  const std::vector<float> q = values_of(attention.q.weight);
  std::vector<float> rows;
  for (size_t row = 0; row < 8; ++row) rows.push_back(q[row * 8]);
  EXPECT_THAT(rows, ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(values_of(attention.q.bias), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(values_of(attention.k.bias), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(values_of(attention.v.bias), ElementsAre(0, 1, 2, 3));
}

TEST(GgufModel, DividesFrequenciesByTheRopeFreqsTensor) {
  GgufBuilder gguf = small_llama();
  gguf.tensors.push_back({"rope_freqs.weight", {2}, {1.0F, 32.0F}});
  const DecoderModel model = model_of(gguf);
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[0], 1.0F);
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[1], static_cast<float>(std::pow(500'000.0, -0.5) / 32));
}

TEST(GgufModel, AGivenConfigTakesThePlaceOfTheMetadata) {
  const ScratchFolder folder;
  GgufBuilder gguf = small_llama();
  gguf.metadata.set("llama.attention.clamp_kqv", 1.0);  // would be refused
  gguf.tensors.push_back({"rope_freqs.weight", {2}, {1.0F, 32.0F}});
  gguf.tensors.push_back({"rope_factors_long.weight", {2}, {}});
  gguf.write(folder.path() / "model.gguf");
  std::ofstream(folder.path() / "config.json") << R"({"model_type": "mistral", "hidden_size": 8, "intermediate_size": 6,
      "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 5, "hidden_act": "silu",
      "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "sliding_window": 16, "rope_theta": 1000.0,
      "tie_word_embeddings": true})";
  const DecoderModel model = build_model(Checkpoint::open(folder.path() / "model.gguf", folder.path() / "config.json"));
  EXPECT_EQ(model.family, "mistral");
  EXPECT_EQ(model.layers[0].attention.window, std::optional<uint32_t>(16));
  EXPECT_THAT(model.layers[0].attention.k.weight.text(), HasSubstr("unpair"));
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[1], static_cast<float>(std::pow(1000.0, -0.5)));
  EXPECT_THAT(model.warnings, ElementsAre(HasSubstr("'rope_freqs.weight'"), HasSubstr("'rope_factors_long.weight'")));
}

TEST(GgufModel, ReadsRopeScalingOfEachKindItKnows) {
  GgufBuilder gguf = small_llama();
  const float base = model_of(gguf).rope_groups[0].inv_freq[1];
  gguf.metadata.set("llama.rope.scaling.factor", 4.0);
  EXPECT_FLOAT_EQ(model_of(gguf).rope_groups[0].inv_freq[1], base / 4);  // a factor alone is linear
  gguf.metadata.set("llama.rope.scaling.type", "none");
  EXPECT_FLOAT_EQ(model_of(gguf).rope_groups[0].inv_freq[1], base);
  gguf.metadata.set("llama.rope.scaling.type", "yarn");
  gguf.metadata.set("llama.rope.scaling.original_context_length", 16);
  const RopeGroup yarn = model_of(gguf).rope_groups[0];
  EXPECT_FLOAT_EQ(yarn.attention_factor, static_cast<float>(0.1 * std::log(4.0) + 1));
  EXPECT_FLOAT_EQ(yarn.inv_freq[1], base / 4);
}

TEST(GgufModel, Gemma3ImpliesItsPatternAndItsSlidingTheta) {
  const DecoderModel model = model_of(small_gemma3(7));
  EXPECT_EQ(model.family, "gemma3");
  std::string kinds;
  for (const Layer& layer : model.layers) kinds += layer.attention.window ? 'S' : 'F';
  EXPECT_EQ(kinds, "SSSSSFS");
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[1], static_cast<float>(std::pow(1e4, -2.0 / 6)));
  EXPECT_FLOAT_EQ(model.rope_groups[1].inv_freq[1], static_cast<float>(std::pow(1e6, -2.0 / 6)));
  EXPECT_FLOAT_EQ(model.layers[0].attention.scale, static_cast<float>(1 / std::sqrt(6.0)));
  EXPECT_TRUE(model.tied_head);
  EXPECT_FLOAT_EQ(model.embedding_factor, std::sqrt(8.0F));
}

TEST(GgufModel, Gemma3HonoursWhatTheMetadataSays) {
  GgufBuilder gguf = small_gemma3(4);
  gguf.metadata.set("gemma3.attention.sliding_window_pattern", 2);
  gguf.metadata.set("gemma3.rope.freq_base_swa", 20000.0);
  gguf.metadata.set("gemma3.rope.scaling.type", "linear");
  gguf.metadata.set("gemma3.rope.scaling.factor", 8.0);
  const DecoderModel model = model_of(gguf);
  std::string kinds;
  for (const Layer& layer : model.layers) kinds += layer.attention.window ? 'S' : 'F';
  EXPECT_EQ(kinds, "SFSF");
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[1], static_cast<float>(std::pow(2e4, -2.0 / 6)));
  EXPECT_FLOAT_EQ(model.rope_groups[1].inv_freq[0], 1.0F / 8);
}

TEST(GgufModel, Gemma3Of62LayersScalesByItsWidthPerHead) {
  EXPECT_FLOAT_EQ(model_of(small_gemma3(62)).layers[0].attention.scale, 0.5F);  // (8 / 2)^-0.5; key_length is 6
}

TEST(GgufModel, Gemma3NormsComeOutAsStored) {
  const ScratchFolder folder;
  small_gemma3(1).write(folder.path() / "model.gguf");
  const DecoderModel model = build_model(Checkpoint::open(folder.path() / "model.gguf"));
  EXPECT_THAT(values_of(model.final_norm.weight), ElementsAre(1.1F, 0.3F, -2.7F, 1e-9F, 5, 6, 7, 8));
}

TEST(GgufModel, SparkKeysAreReadByTheirClass) {
  const DecoderModel model = model_of(small_spark());
  EXPECT_EQ(model.family, "spark");
  EXPECT_EQ(model.tensors_used, 2U * 8 + 2);
  ASSERT_EQ(model.rope_groups.size(), 2U);
  EXPECT_EQ(model.rope_groups[0].name, "sw");
  EXPECT_EQ(model.rope_groups[0].width, 8U);
  EXPECT_FLOAT_EQ(model.rope_groups[0].inv_freq[1], static_cast<float>(std::pow(1e4, -2.0 / 8)));
  EXPECT_EQ(model.rope_groups[1].width, 2U);
  EXPECT_EQ(model.layers[0].attention.window, std::optional<uint32_t>(16));
  EXPECT_EQ(model.layers[1].attention.window, std::nullopt);
}

struct GgufRefusal {
  const char* key;
  Json value;
  ErrorCode code;
  const char* message;
};

TEST(GgufModel, RefusesEachSettingItCannotHonour) {
  const GgufRefusal rows[] = {
      {"general.architecture", "rwkv7", ErrorCode::arch_unknown, "got 'rwkv7', expected one of spark2_5, llama, gemma3"},
      {"llama.expert_count", 8, ErrorCode::config_unsupported, "field 'llama.expert_count': not supported: got 8, expected 0"},
      {"llama.attention.value_length", 8, ErrorCode::config_unsupported, "field 'llama.attention.value_length'"},
      {"llama.rope.dimension_count", 2, ErrorCode::config_unsupported,
       "field 'llama.rope.dimension_count': not supported: got 2, expected 4"},
      {"llama.rope.scaling.type", "longrope", ErrorCode::config_unsupported, "rope kind not supported: got 'longrope'"},
      {"llama.rope.scaling.attn_factor", 1.5, ErrorCode::config_unsupported, "field 'llama.rope.scaling.attn_factor'"},
      {"llama.attention.sliding_window", 16, ErrorCode::config_unsupported, "field 'llama.attention.sliding_window': not known"},
      {"llama.attention.clamp_kqv", 1.0, ErrorCode::config_unsupported, "field 'llama.attention.clamp_kqv': not known"},
      {"llama.block_count", 0, ErrorCode::config_invalid, "field 'llama.block_count': out of range: got 0, expected 1 to 10000"},
      {"llama.block_count", "one", ErrorCode::config_invalid, "field 'llama.block_count': wrong type"},
      {"llama.attention.head_count", 3, ErrorCode::config_invalid, "rotary width is odd"},
      {"llama.attention.head_count_kv", Json::Array{1, 2}, ErrorCode::config_unsupported, "differs between layers: got [1,2]"},
  };
  for (const GgufRefusal& row : rows) {
    GgufBuilder gguf = small_llama();
    if (std::string_view(row.key) == "llama.attention.head_count") {
      gguf.metadata.set("llama.attention.key_length", 3);
      gguf.metadata.set("llama.rope.dimension_count", 3);
    }
    gguf.metadata.set(row.key, row.value);
    EXPECT_THAT([&] { model_of(gguf); }, Fails(row.code, HasSubstr(row.message))) << row.key;
  }
}

TEST(GgufModel, NamesMissingMetadataTogether) {
  GgufBuilder gguf = small_llama();
  Json::Object& members = gguf.metadata.object();
  std::erase_if(members, [](const Json::Member& member) {
    return member.first == "llama.embedding_length" || member.first == "llama.context_length";
  });
  EXPECT_THAT([&] { model_of(gguf); },
              Fails(ErrorCode::config_missing, AllOf(HasSubstr("field 'llama.embedding_length': missing"),
                                                     HasSubstr("field 'llama.context_length': missing"))));
}

TEST(GgufModel, RefusesTensorsByTheirStoredNames) {
  GgufBuilder gguf = small_llama();
  gguf.tensors.push_back({"rope_factors_long.weight", {2}, {}});
  EXPECT_THAT([&] { model_of(gguf); }, Fails(ErrorCode::config_unsupported, HasSubstr("tensor 'rope_factors_long.weight'")));
  gguf.tensors.back() = {"rope_freqs.weight", {3}, {}};
  EXPECT_THAT([&] { model_of(gguf); },
              Fails(ErrorCode::shape_mismatch, HasSubstr("tensor 'rope_freqs.weight': wrong shape: got [3], expected [2]")));
  gguf.tensors.back() = {"rope_freqs.weight", {2}, {1.0F, 0.0F}};
  EXPECT_THAT([&] { model_of(gguf); }, Fails(ErrorCode::numeric_fault, HasSubstr("element 1: got 0")));
  gguf.tensors.back() = {"blk.0.ffn_gate_inp.weight", {2, 8}, {}};
  EXPECT_THAT([&] { model_of(gguf); },
              Fails(ErrorCode::tensor_unused, HasSubstr("tensor 'blk.0.ffn_gate_inp.weight': not used")));
  gguf.tensors.pop_back();
  gguf.tensors.pop_back();
  EXPECT_THAT(
      [&] { model_of(gguf); },
      Fails(ErrorCode::tensor_missing, HasSubstr("tensor 'blk.0.ffn_down.weight': missing: got none, expected shape [8,6]")));
}

TEST(GgufModel, ListsUnknownMetadataForInspection) {
  const ScratchFolder folder;
  GgufBuilder gguf = small_llama();
  gguf.metadata.set("llama.logit_scale", 2.0);
  gguf.write(folder.path() / "model.gguf");
  EXPECT_THAT(unknown_config_fields(Checkpoint::open(folder.path() / "model.gguf")), ElementsAre("llama.logit_scale"));
  gguf.metadata.set("general.architecture", "rwkv7");
  gguf.write(folder.path() / "model.gguf");
  EXPECT_THAT(unknown_config_fields(Checkpoint::open(folder.path() / "model.gguf")), IsEmpty());
}

}  // namespace
}  // namespace transload
