// Reading a TensorRT-LLM checkpoint: both formats of config.json, and every kind of folder that its loader would refuse.
#include "targets/trtllm/trtllm_reader.h"

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <map>

#include "error_matchers.h"
#include "io/safetensors.h"
#include "io/scratch_folder.h"
#include "targets/trtllm/hf_tensors.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Tensors = std::map<std::string, std::pair<DType, Shape>>;

// A folder to be: hidden 8, 2 heads of 4 over 1 key/value head, 12 inner channels, 5 tokens, 3 layers.
struct Folder {
  Json config;
  std::vector<Tensors> ranks;

  Json& mapping() { return field(config, "mapping"); }
  Json& quantization() { return field(config, "quantization"); }
  static Json& field(Json& object, std::string_view key) {
    for (auto& [name, value] : object.object()) {
      if (name == key) return value;
    }
    throw std::runtime_error("no field " + std::string(key));
  }
};

Json new_config(uint32_t tensor, uint32_t pipeline, Json quant_algo = {}) {
  return Json::Object{{"rotary_base", 10000.0},
                      {"rotary_scaling", nullptr},
                      {"architecture", "Phi3ForCausalLM"},
                      {"dtype", "float16"},
                      {"vocab_size", 5},
                      {"hidden_size", 8},
                      {"num_hidden_layers", 3},
                      {"num_attention_heads", 2},
                      {"hidden_act", "swiglu"},
                      {"logits_dtype", "float32"},
                      {"norm_epsilon", 1e-05},
                      {"position_embedding_type", "rope_gpt_neox"},
                      {"num_key_value_heads", 1},
                      {"intermediate_size", 12},
                      {"max_position_embeddings", 4096},
                      {"mapping", Json::Object{{"world_size", tensor * pipeline},
                                               {"gpus_per_node", 8},
                                               {"cp_size", 1},
                                               {"tp_size", tensor},
                                               {"pp_size", pipeline},
                                               {"moe_tp_size", tensor},
                                               {"moe_cluster_size", 1},
                                               {"moe_ep_size", 1},
                                               {"attn_tp_size", tensor},
                                               {"attn_cp_size", 1},
                                               {"auto_parallel", false}}},
                      {"quantization", Json::Object{{"quant_algo", std::move(quant_algo)},
                                                    {"kv_cache_quant_algo", nullptr},
                                                    {"group_size", 128},
                                                    {"smoothquant_val", 0.5},
                                                    {"clamp_val", nullptr},
                                                    {"use_meta_recipe", false},
                                                    {"has_zero_point", false},
                                                    {"pre_quant_scale", false},
                                                    {"exclude_modules", nullptr}}},
                      {"use_parallel_embedding", false},
                      {"head_size", 4},
                      {"rotary_pct", 1.0},
                      {"tie_word_embeddings", false}};
}

Json old_config(uint32_t tensor) {
  return Json::Object{{"architecture", "Phi3ForCausalLM"},
                      {"dtype", "float16"},
                      {"num_hidden_layers", 3},
                      {"num_attention_heads", 2},
                      {"num_key_value_heads", 1},
                      {"hidden_size", 8},
                      {"intermediate_size", 12},
                      {"vocab_size", 5},
                      {"max_position_embeddings", 4096},
                      {"hidden_act", "swiglu"},
                      {"share_embedding_table", false},
                      {"rotary_base", 10000.0},
                      {"norm_epsilon", 1e-05},
                      {"mapping", Json::Object{{"world_size", tensor}, {"tp_size", tensor}, {"pp_size", 1}}}};
}

void add_layer(Tensors& tensors, int layer, const Tensors& matrices) {
  const std::string prefix = "transformer.layers." + std::to_string(layer) + ".";
  for (const auto& [name, tensor] : matrices) tensors[prefix + name] = tensor;
  for (const char* norm : {"input_layernorm.weight", "post_layernorm.weight"}) tensors[prefix + norm] = {DType::f16, {8}};
}

// One rank of two: a head, the key/value head both ranks have, 6 of 12 channels, 3 of 5 rows and padding.
Tensors rank_of_two() {
  Tensors tensors;
  for (int layer = 0; layer < 3; ++layer) {
    add_layer(tensors, layer,
              {{"attention.qkv.weight", {DType::f16, {12, 8}}},
               {"attention.dense.weight", {DType::f16, {8, 4}}},
               {"mlp.fc.weight", {DType::f16, {12, 8}}},
               {"mlp.proj.weight", {DType::f16, {8, 6}}}});
  }
  tensors["transformer.vocab_embedding.weight"] = {DType::f16, {5, 8}};
  tensors["transformer.ln_f.weight"] = {DType::f16, {8}};
  tensors["lm_head.weight"] = {DType::f16, {3, 8}};
  return tensors;
}

Folder two_ranks() { return {new_config(2, 1), {rank_of_two(), rank_of_two()}}; }

const Tensors kWhole = {{"attention.qkv.weight", {DType::f16, {16, 8}}},
                        {"attention.dense.weight", {DType::f16, {8, 8}}},
                        {"mlp.fc.weight", {DType::f16, {24, 8}}},
                        {"mlp.proj.weight", {DType::f16, {8, 12}}}};

// The first stage has two layers, the second one, numbered from 0.
Folder two_stages() {
  Folder folder{new_config(1, 2), {Tensors(), Tensors()}};
  add_layer(folder.ranks[0], 0, kWhole);
  add_layer(folder.ranks[0], 1, kWhole);
  add_layer(folder.ranks[1], 0, kWhole);
  folder.ranks[0]["transformer.vocab_embedding.weight"] = {DType::f16, {5, 8}};
  folder.ranks[1]["transformer.ln_f.weight"] = {DType::f16, {8}};
  folder.ranks[1]["lm_head.weight"] = {DType::f16, {5, 8}};
  return folder;
}

Folder baked(const char* algorithm, uint64_t parts) {
  Folder folder{new_config(1, 1, algorithm), {Tensors()}};
  for (int layer = 0; layer < 3; ++layer) {
    add_layer(folder.ranks[0], layer,
              {{"attention.qkv.weight", {DType::i8, {8, 16 / parts}}},
               {"attention.qkv.per_channel_scale", {DType::f16, {16}}},
               {"attention.dense.weight", {DType::i8, {8, 8 / parts}}},
               {"attention.dense.per_channel_scale", {DType::f16, {8}}},
               {"mlp.fc.weight", {DType::i8, {8, 24 / parts}}},
               {"mlp.fc.per_channel_scale", {DType::f16, {24}}},
               {"mlp.proj.weight", {DType::i8, {12, 8 / parts}}},
               {"mlp.proj.per_channel_scale", {DType::f16, {8}}}});
  }
  folder.ranks[0]["transformer.vocab_embedding.weight"] = {DType::f16, {5, 8}};
  folder.ranks[0]["transformer.ln_f.weight"] = {DType::f16, {8}};
  folder.ranks[0]["lm_head.weight"] = {DType::f16, {5, 8}};
  return folder;
}

void write(const Folder& folder, const ScratchFolder& scratch) {
  scratch.write("config.json", write_json(folder.config, 4));
  for (size_t rank = 0; rank < folder.ranks.size(); ++rank) {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor] : folder.ranks[rank]) entries.push_back({name, tensor.first, tensor.second});
    const SafetensorsLayout layout = plan_safetensors(entries);
    std::string bytes = layout.header;
    bytes.resize(layout.file_bytes);
    scratch.write("rank" + std::to_string(rank) + ".safetensors", bytes);
  }
}

TrtllmCheckpoint open(const ScratchFolder& scratch) {
  std::vector<std::string> warnings;
  return open_trtllm(scratch.path(), QuantLayout::plain, warnings);
}

TEST(TrtllmReader, OpensBothFormatsAndSaysWhatTheyState) {
  for (const bool old : {false, true}) {
    const ScratchFolder scratch;
    Folder folder = two_ranks();
    if (old) folder.config = old_config(2);
    write(folder, scratch);
    std::vector<std::string> warnings;
    const TrtllmCheckpoint checkpoint = open_trtllm(scratch.path(), QuantLayout::sm80, warnings);
    EXPECT_THAT(warnings, testing::IsEmpty());
    EXPECT_EQ(checkpoint.options.format, old ? TrtllmFormat::v0_12 : TrtllmFormat::v1);
    EXPECT_EQ(checkpoint.options.mapping, (TrtllmMapping{2, 1, 1}));
    EXPECT_EQ(checkpoint.options.dtype, DType::f16);
    EXPECT_EQ(checkpoint.options.weight_only, WeightOnly::none);
    EXPECT_EQ(checkpoint.options.form, QuantForm::deferred);
    EXPECT_EQ(checkpoint.architecture->model_type, "phi3");
    EXPECT_EQ(checkpoint.dimensions.head_dim, 4U);
    EXPECT_EQ(checkpoint.dimensions.kv_heads, 1U);
    EXPECT_EQ(checkpoint.ranks.size(), 2U);
    EXPECT_EQ(checkpoint.tensor(1, "lm_head.weight").shape, (Shape{3, 8}));
    EXPECT_THAT([&] { checkpoint.tensor(1, "lm_head.bias"); }, Fails(ErrorCode::tensor_missing, HasSubstr("lm_head.bias")));
  }
}

TEST(TrtllmReader, OpensStagesAndTellsBakedWeightsFromDeferredOnesByTheirType) {
  const auto form_of = [](Folder folder) {
    const ScratchFolder scratch;
    write(folder, scratch);
    return open(scratch).options;
  };
  EXPECT_EQ(form_of(two_stages()).mapping, (TrtllmMapping{1, 2, 1}));
  const TrtllmOptions eight = form_of(baked("W8A16", 1));
  EXPECT_EQ(eight.weight_only, WeightOnly::int8);
  EXPECT_EQ(eight.form, QuantForm::baked);
  EXPECT_EQ(form_of(baked("W4A16", 2)).weight_only, WeightOnly::int4);
  Folder deferred = two_ranks();
  deferred.quantization().set("quant_algo", "W8A16");
  EXPECT_EQ(form_of(deferred).form, QuantForm::deferred);
  EXPECT_EQ(form_of(deferred).weight_only, WeightOnly::int8);
}

TEST(TrtllmReader, TakesAbsentFieldsAsTheLoaderDoes) {
  const ScratchFolder scratch;
  Folder folder{new_config(1, 1), {Tensors()}};
  Json::Object kept;
  for (auto& [key, value] : folder.config.object()) {
    if (key == "mapping" || key == "quantization" || key == "head_size" || key == "num_key_value_heads") continue;
    kept.emplace_back(key, value);
  }
  folder.config = Json(kept);
  Tensors own = kWhole;
  own["attention.qkv.weight"] = {DType::f16, {24, 8}};
  for (int layer = 0; layer < 3; ++layer) add_layer(folder.ranks[0], layer, own);
  folder.ranks[0]["transformer.vocab_embedding.weight"] = {DType::f16, {5, 8}};
  folder.ranks[0]["transformer.ln_f.weight"] = {DType::f16, {8}};
  folder.ranks[0]["lm_head.weight"] = {DType::f16, {5, 8}};
  write(folder, scratch);
  EXPECT_EQ(open(scratch).dimensions.kv_heads, 2U);
}

TEST(TrtllmReader, WarnsOfTensorsAndRankFilesThatNoRankNeeds) {
  const ScratchFolder scratch;
  Folder folder = two_ranks();
  folder.ranks[1]["transformer.layers.0.attention.rotary_inv_freq"] = {DType::f32, {2}};
  folder.ranks.push_back(rank_of_two());
  write(folder, scratch);
  std::vector<std::string> warnings;
  open_trtllm(scratch.path(), QuantLayout::plain, warnings);
  EXPECT_THAT(warnings, testing::UnorderedElementsAre(AllOf(HasSubstr("rank1.safetensors"), HasSubstr("rotary_inv_freq")),
                                                      HasSubstr("rank2.safetensors")));
}

struct Malformed {
  const char* what;
  std::function<void(Folder&)> edit;
  ErrorCode code;
  std::vector<std::string> named;
  std::function<Folder()> base = two_ranks;
};

std::vector<Malformed> malformed() {
  const auto set = [](const char* key, Json value) { return [=](Folder& f) { f.config.set(key, value); }; };
  const auto map = [](const char* key, Json value) { return [=](Folder& f) { f.mapping().set(key, value); }; };
  const auto quant = [](const char* key, Json value) { return [=](Folder& f) { f.quantization().set(key, value); }; };
  const auto missing = [](const char* key) {
    return [=](Folder& f) {
      Json::Object kept;
      for (auto& member : f.config.object()) {
        if (member.first != key) kept.push_back(member);
      }
      f.config = Json(kept);
    };
  };
  const auto reshaped = [](size_t rank, const char* name, DType dtype, const Shape& shape) {
    return [=](Folder& f) { f.ranks[rank][name] = {dtype, shape}; };
  };
  using E = ErrorCode;
  return {
      {"two formats in one", set("share_embedding_table", false), E::config_invalid, {"share_embedding_table", "logits_dtype"}},
      {"architecture of another model", set("architecture", "LlamaForCausalLM"), E::arch_unknown, {"LlamaForCausalLM"}},
      {"architecture that is no text", set("architecture", 3), E::config_invalid, {"architecture"}},
      {"hostile architecture", set("architecture", "a\nb\x1b[2J"), E::arch_unknown, {"'a\\x0ab\\x1b[2J'"}},
      {"dtype of 8 bits", set("dtype", "fp8"), E::config_unsupported, {"field 'dtype'", "'fp8'"}},
      {"hidden size missing", missing("hidden_size"), E::config_missing, {"field 'hidden_size'"}},
      {"hidden size 0", set("hidden_size", 0), E::config_invalid, {"field 'hidden_size'"}},
      {"hidden size negative", set("hidden_size", -8), E::config_invalid, {"field 'hidden_size'", "-8"}},
      {"hidden size enormous", set("hidden_size", int64_t{1} << 40), E::config_invalid, {"field 'hidden_size'"}},
      {"hidden size a float", set("hidden_size", 8.0), E::config_invalid, {"field 'hidden_size'"}},
      {"layers enormous", set("num_hidden_layers", 1 << 20), E::config_invalid, {"field 'num_hidden_layers'"}},
      {"heads x head size too large", set("head_size", 1 << 30), E::config_invalid, {"field 'head_size'"}},
      {"heads that do not divide",
       missing("head_size"),
       E::config_invalid,
       {"num_attention_heads"},
       [] {
         Folder f = two_ranks();
         f.config.set("num_attention_heads", 3);
         return f;
       }},
      {"more key/value heads than heads", set("num_key_value_heads", 4), E::config_invalid, {"num_key_value_heads"}},
      {"experts of a model without", set("moe", Json::Object{{"num_experts", 4}}), E::config_unsupported, {"moe.num_experts"}},
      {"embedding in parts", set("use_parallel_embedding", true), E::config_unsupported, {"use_parallel_embedding"}},
      {"mapping that is no object", set("mapping", 2), E::config_invalid, {"field 'mapping'"}},
      {"mapping with a field unknown to the loader", map("dp_size", 1), E::config_invalid, {"mapping.dp_size"}},
      {"context parallelism", map("cp_size", 2), E::config_unsupported, {"mapping.cp_size"}},
      {"attention context parallelism", map("attn_cp_size", 2), E::config_unsupported, {"mapping.attn_cp_size"}},
      {"expert clusters", map("moe_cluster_size", 2), E::config_unsupported, {"mapping.moe_cluster_size"}},
      {"automatic parallelism", map("auto_parallel", true), E::config_unsupported, {"mapping.auto_parallel"}},
      {"world of another size", map("world_size", 3), E::config_invalid, {"mapping.world_size", "got 3, expected 2"}},
      {"ranks without end", map("tp_size", 1 << 20), E::config_invalid, {"mapping.tp_size"}},
      {"ranks 0", map("tp_size", 0), E::config_invalid, {"mapping.tp_size"}},
      {"expert ranks that do not fit", map("moe_ep_size", 2), E::config_invalid, {"mapping.moe_tp_size"}},
      {"attention ranks that do not fit", map("attn_tp_size", 1), E::config_invalid, {"mapping.attn_tp_size"}},
      {"more stages than layers",
       [](Folder& f) {
         f.mapping().set("pp_size", 4);
         f.mapping().set("world_size", 8);
       },
       E::shard_indivisible,
       {"pipeline stages"}},
      {"heads that do not split", set("num_attention_heads", 1), E::shard_indivisible, {"attention heads", "tp_size"}},
      {"channels that do not split", set("intermediate_size", 13), E::shard_indivisible, {"channels", "tp_size"}},
      {"quantisation by another algorithm", quant("quant_algo", "W4A16_AWQ"), E::config_unsupported, {"quantization.quant_algo"}},
      {"quantised cache", quant("kv_cache_quant_algo", "FP8"), E::config_unsupported, {"kv_cache_quant_algo"}},
      {"zero points", quant("has_zero_point", true), E::config_unsupported, {"has_zero_point"}},
      {"quantisation field unknown to the loader", quant("granularity", 1), E::config_invalid, {"quantization.granularity"}},
      {"no rank files at all", [](Folder& f) { f.ranks.clear(); }, E::file_missing, {"rank0.safetensors", "rank1.safetensors"}},
      {"one rank file missing", [](Folder& f) { f.ranks.pop_back(); }, E::file_missing, {"'rank1.safetensors' of 2"}},
      {"tensors missing on both ranks",
       [](Folder& f) {
         f.ranks[0].erase("transformer.ln_f.weight");
         f.ranks[1].erase("transformer.layers.2.mlp.fc.weight");
       },
       E::tensor_missing,
       {"rank0.safetensors: tensor 'transformer.ln_f.weight'", "rank1.safetensors: tensor 'transformer.layers.2.mlp.fc"}},
      {"shapes wrong on both ranks",
       [](Folder& f) {
         f.ranks[0]["lm_head.weight"] = {DType::f16, {2, 8}};
         f.ranks[1]["transformer.layers.1.attention.dense.weight"] = {DType::f16, {4, 8}};
       },
       E::shape_mismatch,
       {"rank0.safetensors@", "[2,8], expected [3,8]", "[4,8], expected [8,4]"}},
      {"whole key/value heads left out",
       reshaped(1, "transformer.layers.0.attention.qkv.weight", DType::f16, {8, 8}),
       E::shape_mismatch,
       {"rank1.safetensors", "expected [12,8]"}},
      {"dtype of another conversion",
       reshaped(0, "transformer.ln_f.weight", DType::bf16, {8}),
       E::dtype_mismatch,
       {"transformer.ln_f.weight", "bf16", "f16"}},
      {"8-bit weights that config.json does not announce",
       reshaped(0, "transformer.layers.0.mlp.fc.weight", DType::i8, {12, 8}),
       E::dtype_mismatch,
       {"mlp.fc.weight", "i8"}},
      {"scales missing",
       [](Folder& f) { f.ranks[0].erase("transformer.layers.1.mlp.proj.per_channel_scale"); },
       E::tensor_missing,
       {"transformer.layers.1.mlp.proj.per_channel_scale"},
       [] { return baked("W8A16", 1); }},
      {"8-bit weights announced as 4-bit ones",
       quant("quant_algo", "W4A16"),
       E::shape_mismatch,
       {"expected [8,8]"},
       [] { return baked("W8A16", 1); }},
      {"embedding of the last stage only",
       [](Folder& f) {
         f.ranks[1]["transformer.vocab_embedding.weight"] = f.ranks[0]["transformer.vocab_embedding.weight"];
         f.ranks[0].erase("transformer.vocab_embedding.weight");
       },
       E::tensor_missing,
       {"rank0.safetensors: tensor 'transformer.vocab_embedding.weight'"},
       two_stages},
      {"layers numbered through",
       [](Folder& f) {
         f.ranks[1].erase("transformer.layers.0.mlp.fc.weight");
         f.ranks[1]["transformer.layers.2.mlp.fc.weight"] = {DType::f16, {24, 8}};
       },
       E::tensor_missing,
       {"rank1.safetensors: tensor 'transformer.layers.0.mlp.fc.weight'"},
       two_stages},
      {"stages of format 0.12 that do not divide the layers",
       [](Folder& f) {
         f.config = old_config(1);
         f.mapping().set("pp_size", 2);
         f.mapping().set("world_size", 2);
       },
       E::shard_indivisible,
       {"pp_size"},
       two_stages},
      {"experts in format 0.12",
       [](Folder& f) {
         f.config = old_config(2);
         f.config.set("architecture", "PhiMoEForCausalLM");
       },
       E::arch_unknown,
       {"0.12", "PhiMoEForCausalLM"}},
      {"routing of another kind",
       [](Folder& f) {
         f.config.set("architecture", "PhiMoEForCausalLM");
         f.config.set("moe", Json::Object{{"num_experts", 4}, {"top_k", 2}, {"normalization_mode", 1}});
       },
       E::config_unsupported,
       {"moe.normalization_mode"}},
      {"experts without end",
       [](Folder& f) {
         f.config.set("architecture", "PhiMoEForCausalLM");
         f.config.set("moe", Json::Object{{"num_experts", 1 << 24}, {"top_k", 2}, {"normalization_mode", 2}});
       },
       E::config_invalid,
       {"moe.num_experts"}},
  };
}

TEST(TrtllmReader, RefusesWhatTheLoaderWouldRefuse) {
  for (const Malformed& row : malformed()) {
    SCOPED_TRACE(row.what);
    const ScratchFolder scratch;
    Folder folder = row.base();
    row.edit(folder);
    write(folder, scratch);
    for (const std::string& name : row.named) EXPECT_THAT([&] { open(scratch); }, Fails(row.code, HasSubstr(name)));
  }
}

TEST(TrtllmReader, RefusesDamagedFilesByName) {
  const ScratchFolder scratch;
  write(two_ranks(), scratch);
  std::filesystem::resize_file(scratch.path() / "rank1.safetensors", 500);
  EXPECT_THAT([&] { open(scratch); }, Fails(ErrorCode::bad_header, HasSubstr("rank1.safetensors")));
  scratch.write("config.json", "{\"architecture\": ");
  EXPECT_THAT([&] { open(scratch); }, Fails(ErrorCode::bad_json, HasSubstr("config.json")));
  std::filesystem::remove(scratch.path() / "config.json");
  EXPECT_THAT([&] { open(scratch); }, Fails(ErrorCode::file_missing, HasSubstr("config.json")));
}

TEST(TrtllmReader, KnowsAFolderOfItsKind) {
  const ScratchFolder scratch;
  EXPECT_FALSE(is_trtllm_checkpoint(scratch.path()));
  EXPECT_FALSE(is_trtllm_checkpoint(scratch.path() / "none"));
  scratch.write("config.json", "{\"architectures\": [\"Phi3ForCausalLM\"]}");
  EXPECT_FALSE(is_trtllm_checkpoint(scratch.path())) << "of Hugging Face";
  scratch.write("config.json", "{\"architecture\": \"Phi3ForCausalLM\"}");
  EXPECT_TRUE(is_trtllm_checkpoint(scratch.path()));
  scratch.write("contract.json", "{}");
  EXPECT_FALSE(is_trtllm_checkpoint(scratch.path())) << "a bundle of graphs";
  std::filesystem::remove(scratch.path() / "contract.json");
  scratch.write("config.json", "{");
  EXPECT_FALSE(is_trtllm_checkpoint(scratch.path()));
  scratch.write("rank0.safetensors", "");
  EXPECT_TRUE(is_trtllm_checkpoint(scratch.path())) << "opening it will name the fault";
}

TEST(TrtllmReader, RefusesConfigsThatNoHuggingFaceConfigGives) {
  const auto hf_config_of = [](const std::function<void(Json&)>& edit) {
    const ScratchFolder scratch;
    Folder folder = two_ranks();
    edit(folder.config);
    write(folder, scratch);
    std::vector<std::string> notes;
    return hf_config(open(scratch), notes);
  };
  EXPECT_EQ(*hf_config_of([](Json&) {}).find("rope_theta"), Json(10000.0));
  EXPECT_THAT([&] { hf_config_of([](Json& c) { c.set("hidden_act", "gelu"); }); },
              Fails(ErrorCode::config_unsupported, HasSubstr("hidden_act")));
  EXPECT_THAT([&] { hf_config_of([](Json& c) { c.set("rotary_base", "10000"); }); },
              Fails(ErrorCode::config_invalid, HasSubstr("rotary_base")));
  EXPECT_THAT([&] { hf_config_of([](Json& c) {
                      c.set("rotary_scaling", Json::Object{{"type", "linear"}});
                    }); },
              Fails(ErrorCode::config_unsupported, HasSubstr("rotary_scaling")));
  EXPECT_THAT([&] { hf_config_of([](Json& c) { c.set("max_position_embeddings", 131072); }); },
              Fails(ErrorCode::config_missing, HasSubstr("longrope_scaling_short_factors")));
  EXPECT_THAT(
      [&] {
        hf_config_of([](Json& c) {
          c.set("max_position_embeddings", 131072);
          c.set("longrope_scaling_short_factors", Json::Array{1, 2, 3, 4, 5});
        });
      },
      Fails(ErrorCode::config_invalid, HasSubstr("longrope_scaling_short_factors")));
}

TEST(HuggingFaceTensors, AreNamedAndFusedInLayerOrder) {
  const ScratchFolder scratch;
  write(two_stages(), scratch);
  std::vector<std::string> names;
  for (const HuggingFaceTensor& tensor : hf_tensors(open(scratch)))
    names.push_back(tensor.name + shape_text(tensor.recipe.shape()));
  const auto layer = [](int number) {
    const std::string at = "model.layers." + std::to_string(number) + ".";
    return std::vector<std::string>{at + "input_layernorm.weight[8]",     at + "self_attn.qkv_proj.weight[16,8]",
                                    at + "self_attn.o_proj.weight[8,8]",  at + "post_attention_layernorm.weight[8]",
                                    at + "mlp.gate_up_proj.weight[24,8]", at + "mlp.down_proj.weight[8,12]"};
  };
  std::vector<std::string> expected = {"model.embed_tokens.weight[5,8]"};
  for (int i = 0; i < 3; ++i) {
    for (const std::string& name : layer(i)) expected.push_back(name);
  }
  expected.insert(expected.end(), {"model.norm.weight[8]", "lm_head.weight[5,8]"});
  EXPECT_EQ(names, expected);
}

TEST(HuggingFaceTensors, LeaveTheHeadOutWhereItIsTied) {
  const ScratchFolder scratch;
  Folder folder = two_ranks();
  folder.config.set("tie_word_embeddings", true);
  write(folder, scratch);
  const auto tensors = hf_tensors(open(scratch));
  EXPECT_EQ(tensors.back().name, "model.norm.weight");
  EXPECT_EQ(tensors[2].recipe.shape(), (Shape{16, 8})) << "the key and value head that both ranks have is there once";
}

}  // namespace
}  // namespace transload
