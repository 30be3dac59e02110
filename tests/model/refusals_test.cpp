// One row for each config that must be refused, and the faults of binding tensors, each with its code and its words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "error_matchers.h"
#include "model_fixtures.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Refusal {
  const char* config;  // of tests/data/decoders
  const char* field;   // dotted; set to `value`, which null removes
  Json value;
  ErrorCode code;
  const char* message;
};

void set_at(Json& object, std::string_view path, const Json& value) {
  const size_t dot = path.find('.');
  if (dot != std::string_view::npos) {
    Json inner = *object.find(path.substr(0, dot));
    set_at(inner, path.substr(dot + 1), value);
    object.set(path.substr(0, dot), inner);
  } else {
    object.set(path, value);
  }
}

TEST(Refusals, EachConfigFaultHasItsCodeAndNamesItsField) {
  const Json seven = Json::Array{"sliding_attention", "full_attention"};
  const Json chunked = Json::Array{"sliding_attention", "chunked_attention", "full_attention", "full_attention"};
  const ErrorCode unsupported = ErrorCode::config_unsupported, invalid = ErrorCode::config_invalid,
                  missing = ErrorCode::config_missing;
  const Refusal rows[] = {
      {"llama", "model_type", "mamba", ErrorCode::arch_unknown,
       "got 'mamba', expected one of spark2_5, llama, mistral, gemma3_text, gemma3, phi3, phi3_v, phi4mm, phi3small, phimoe"},
      {"llama", "model_type", nullptr, missing, "field 'model_type': missing"},
      {"llama", "hidden_size", nullptr, missing, "field 'hidden_size': missing: got none, expected an integer"},
      {"llama", "hidden_size", "64", invalid, "field 'hidden_size': wrong type: got \"64\", expected an integer"},
      {"llama", "hidden_size", 64.5, invalid, "field 'hidden_size': wrong type: got 64.5"},
      {"llama", "hidden_size", int64_t{1} << 40, invalid, "field 'hidden_size': out of range: got 1099511627776"},
      {"llama", "num_hidden_layers", 0, invalid, "field 'num_hidden_layers': out of range: got 0, expected 1 to 10000"},
      {"llama", "num_hidden_layers", 1'000'000, invalid, "field 'num_hidden_layers': out of range"},
      {"llama", "num_key_value_heads", 3, invalid,
       "field 'num_key_value_heads': does not divide 'num_attention_heads': got 3, expected a divisor of 4"},
      {"llama", "num_attention_heads", -4, invalid, "field 'num_attention_heads': out of range: got -4"},
      {"llama", "head_dim", 15, invalid, "rotary width is odd"},
      {"llama", "rms_norm_eps", "small", invalid, "field 'rms_norm_eps': wrong type"},
      {"llama", "rms_norm_eps", -1.0, invalid, "field 'rms_norm_eps': out of range: got -1, expected 0 to 1"},
      {"llama", "tie_word_embeddings", 1, invalid, "field 'tie_word_embeddings': wrong type: got 1, expected true or false"},
      {"llama", "eos_token_id", "</s>", invalid, "field 'eos_token_id': wrong type"},
      {"llama", "hidden_act", "gelu", unsupported, "field 'hidden_act': not supported: got \"gelu\", expected \"silu\""},
      {"llama", "pretraining_tp", 2, unsupported, "field 'pretraining_tp': not supported: got 2, expected 1"},
      {"llama", "rope_interleaved", true, unsupported, "field 'rope_interleaved': not known"},
      {"llama", "quantization_config", Json::Object{{"quant_method", "gptq"}}, unsupported,
       "field 'quantization_config': not supported"},
      {"llama", "attn_temperature_tuning", 4, unsupported,
       "field 'attn_temperature_tuning': not known, and it might change the maths"},
      {"llama", "rope_parameters.rope_type", "dynamic", unsupported,
       "field 'rope_parameters.rope_type': rope kind not supported"},
      {"llama", "rope_parameters.high_freq", 4.0, unsupported, "field 'rope_parameters.high_freq': not known"},
      {"mistral", "sliding_window", 0, invalid, "field 'sliding_window': out of range: got 0"},
      {"mistral", "num_key_value_heads", nullptr, missing, "field 'num_key_value_heads': missing"},
      {"mistral", "attention_bias", true, unsupported, "field 'attention_bias': not supported: got true, expected false"},
      {"mistral", "layer_types", chunked, unsupported, "field 'layer_types': layer 1: got 'chunked_attention'"},
      {"spark", "layer_types", seven, invalid,
       "field 'layer_types': wrong number of layers: got 2, expected 'num_hidden_layers' 4"},
      {"spark", "layer_types", nullptr, missing, "field 'layer_types': missing"},
      {"spark", "layer_types", chunked, unsupported, "got 'chunked_attention', expected sliding_attention or full_attention"},
      {"spark", "hidden_act", "gelu_pytorch_tanh", unsupported, "field 'hidden_act': not supported"},
      {"spark", "gate_attn_act_mode", "tanh", unsupported, "field 'gate_attn_act_mode': not supported: got \"tanh\""},
      {"spark", "gate_attn_act_mode", nullptr, missing, "field 'gate_attn_act_mode': missing"},
      {"spark", "headwise_attn_output_gate", nullptr, missing, "field 'headwise_attn_output_gate': missing"},
      {"spark", "elementwise_attn_output_gate", true, unsupported, "field 'elementwise_attn_output_gate': not known"},
      {"spark", "rope_scaling", Json::Object{{"rope_type", "linear"}, {"factor", 2.0}}, unsupported,
       "field 'rope_scaling': not known"},
      {"spark", "rope_parameters.full_attention.rope_type", "yarn", unsupported,
       "field 'rope_parameters.full_attention.rope_type': not supported"},
      {"spark", "rope_parameters.full_attention.factor", 2.0, unsupported,
       "field 'rope_parameters.full_attention.factor': not known"},
      {"spark", "rope_parameters.sliding_attention", nullptr, missing, "field 'rope_parameters.sliding_attention': missing"},
      {"spark", "rope_parameters.full_attention.partial_rotary_factor", 0.1, invalid,
       "rotary width is odd or outside the head: got 3.2 of 32"},
      {"spark", "sliding_window", nullptr, missing, "field 'sliding_window': missing"},
      {"spark", "attention_bias", true, unsupported, "field 'attention_bias'"},
      {"gemma3", "attn_logit_softcapping", 50.0, unsupported,
       "field 'attn_logit_softcapping': not supported: got 50.0, expected null"},
      {"gemma3", "final_logit_softcapping", 30.0, unsupported, "field 'final_logit_softcapping'"},
      {"gemma3", "use_bidirectional_attention", true, unsupported, "field 'use_bidirectional_attention'"},
      {"gemma3", "hidden_activation", "gelu", unsupported, "field 'hidden_activation': not supported"},
      {"gemma3", "query_pre_attn_scalar", 0, invalid, "field 'query_pre_attn_scalar': out of range: got 0"},
      {"gemma3", "query_pre_attn_scalar", 1e-80, invalid, "field 'query_pre_attn_scalar': out of range: got 1e-80"},
      {"gemma3", "query_pre_attn_scalar", 1e300, invalid, "field 'query_pre_attn_scalar': out of range: got 1e+300"},
      // One mistake is one fault: the length of layer_types is not compared with a number that is none.
      {"spark", "num_hidden_layers", "4", invalid, "config.json: field 'num_hidden_layers': wrong type: got \"4\""},
      {"spark", "layer_types", "full_attention", invalid, "config.json: field 'layer_types': wrong type"},
      {"gemma3", "query_pre_attn_scalar", nullptr, missing, "field 'query_pre_attn_scalar': missing"},
      {"gemma3", "rope_parameters.full_attention", nullptr, missing, "field 'rope_parameters.full_attention': missing"},
      {"gemma3", "rope_parameters.full_attention.rope_type", "dynamic", unsupported, "rope kind not supported"},
      {"phi3", "num_attention_heads", 5, invalid, "field 'num_attention_heads': does not divide 'hidden_size'"},
      {"phi3", "num_key_value_heads", 3, invalid, "field 'num_key_value_heads': does not divide 'num_attention_heads'"},
      {"phi3", "hidden_act", "gelu", unsupported, "field 'hidden_act': not supported"},
      {"phi3", "attention_bias", true, unsupported, "field 'attention_bias': not supported: got true, expected false"},
      {"phi3", "full_attn_mod", 2, unsupported, "field 'full_attn_mod': not supported: got 2, expected 1"},
      {"phi3", "interpolate_factor", 4, unsupported, "field 'interpolate_factor': not supported"},
      {"phi3", "mup_width_multiplier", 8.0, unsupported, "field 'mup_width_multiplier': not known"},
      {"phi3", "img_processor", Json::Object{{"name", "clip"}}, unsupported, "field 'img_processor': not known"},
      {"phi3", "quantization_config", Json::Object{{"quant_method", "awq"}}, unsupported,
       "field 'quantization_config': not supported: got a quantised checkpoint"},
      {"phi3_longrope", "rope_parameters.long_factor", Json::Array{1, 1.5}, invalid,
       "field 'rope_parameters.long_factor': wrong number of factors: got 2, expected 8"},
      {"phi3_longrope", "rope_parameters.short_factor", Json::Array{1, 1, 1, 1, 1, 1, 1, 0}, invalid,
       "field 'rope_parameters.short_factor': got a factor that is not positive"},
      {"phi3_longrope", "rope_parameters.rope_type", "longest", unsupported, "rope kind not supported: got 'longest'"},
      {"phi3_longrope", "rope_parameters.long_mscale", 1.2, missing,
       "field 'rope_parameters.short_mscale': missing: got only 'long_mscale', expected both"},
      {"phi4_mini", "rope_parameters.partial_rotary_factor", 0.5, invalid, "wrong number of factors: got 6, expected 4"},
      {"phimoe", "num_experts_per_tok", 3, unsupported, "field 'num_experts_per_tok': not supported: got 3, expected 2"},
      {"phimoe", "num_local_experts", nullptr, missing, "field 'num_local_experts': missing"},
      {"phimoe", "num_local_experts", 1, invalid, "field 'num_local_experts': out of range: got 1, expected 2 to 1024"},
      {"phimoe", "num_hidden_layers", 10000, invalid,
       "field 'num_local_experts': too many experts: got 4 in each of 10000 layers, expected at most 16384 in all"},
      {"phimoe", "router_jitter_noise", nullptr, missing, "field 'router_jitter_noise': missing"},
      {"phimoe", "router_jitter_noise", -0.1, invalid, "field 'router_jitter_noise': out of range: got -0.1"},
      {"phimoe", "rope_parameters.short_mscale", 0, invalid, "field 'rope_parameters.short_mscale': out of range: got 0"},
      {"phimoe", "mlp_bias", true, unsupported, "field 'mlp_bias': not known"},
      {"phi3small_unofficial", "hidden_act", "silu", unsupported, "field 'hidden_act': not supported"},
      {"phi3small_unofficial", "ff_dim_multiplier", 4, unsupported, "field 'ff_dim_multiplier': not supported"},
      {"phi3small_unofficial", "ff_intermediate_size", nullptr, missing, "field 'ff_intermediate_size': missing"},
      {"phi3small_unofficial", "layer_norm_epsilon", 2.0, invalid, "field 'layer_norm_epsilon': out of range"},
      {"phi3small_unofficial", "rope_position_scale", 2.0, unsupported, "field 'rope_position_scale': not supported"},
      {"phi3small_unofficial", "rope_embedding_base", nullptr, missing, "field 'rope_embedding_base': missing"},
      {"phi3small_unofficial", "blocksparse_vert_stride", nullptr, missing, "field 'blocksparse_vert_stride': missing"},
      {"phi3small_unofficial", "blocksparse_block_size", 0, invalid, "field 'blocksparse_block_size': out of range"},
      {"phi3small_unofficial", "gegelu_limit", 0, invalid, "field 'gegelu_limit': out of range: got 0"},
      {"phi3small_unofficial", "mup_width_multiplier", 0, invalid, "field 'mup_width_multiplier': out of range: got 0"},
      {"phi3small_unofficial", "num_key_value_heads", 3, invalid, "does not divide 'num_attention_heads'"},
      {"phi3small_unofficial", "sliding_window", 8, unsupported, "field 'sliding_window': not known"},
  };
  const ScratchFolder folder;
  for (const Refusal& row : rows) {
    const auto directory = test_data(std::string("decoders/") + row.config);
    Json config = config_of(std::string("decoders/") + row.config + "/config.json");
    set_at(config, row.field, row.value);
    std::ofstream(folder.path() / "config.json") << write_json(config);
    EXPECT_THAT([&] { build_model(Checkpoint::open(directory, folder.path() / "config.json")); },
                Fails(row.code, AllOf(HasSubstr("config.json: "), HasSubstr(row.message))))
        << row.config << " " << row.field;
  }
}

TEST(Refusals, AllConfigFaultsOfAKindComeTogether) {
  Json config = config_of("decoders/spark/config.json");
  config.set("hidden_act", "relu");
  config.set("logit_scale", 2.0);
  config.set("attention_bias", true);
  EXPECT_THAT([&] { expected_tensors(config, "config.json"); },
              Fails(ErrorCode::config_unsupported, AllOf(HasSubstr("3 faults"), HasSubstr("'hidden_act'"),
                                                         HasSubstr("'logit_scale'"), HasSubstr("'attention_bias'"))));
  config.set("num_key_value_heads", 5);
  config.set("vocab_size", nullptr);
  EXPECT_THAT([&] { expected_tensors(config, "config.json"); },
              Fails(ErrorCode::config_invalid, AllOf(HasSubstr("got 5, expected a divisor of 8"),
                                                     HasSubstr("'vocab_size': missing"), Not(HasSubstr("hidden_act")))));
}

TEST(Refusals, HeadsMustDivideTheHiddenSizeWhereThereIsNoHeadSize) {
  Json config = config_of("configs/smollm2-135m/config.json");
  config.set("num_attention_heads", 7);
  config.set("num_key_value_heads", 7);
  EXPECT_THAT(
      [&] { expected_tensors(config, "config.json"); },
      Fails(ErrorCode::config_invalid, HasSubstr("field 'num_attention_heads': does not divide 'hidden_size', and there is no "
                                                 "'head_dim': got 7, expected a divisor of 576")));
}

TEST(Refusals, UnknownFieldsAreListedForInspection) {
  const ScratchFolder folder;
  Json config = config_of("decoders/spark/config.json");
  const std::vector<StoredTensor> tensors = stored_tensors(config);
  set_at(config, "rope_parameters.full_attention.factor", 2.0);
  config.set("logit_scale", 2.0);
  const Checkpoint checkpoint = write_checkpoint(folder, config, tensors);
  EXPECT_THAT(unknown_config_fields(checkpoint), ElementsAre("logit_scale", "rope_parameters.full_attention.factor"));
}

// A checkpoint of the llama golden's shape, changed by `edit`.
DecoderModel build_edited(const std::function<void(std::vector<StoredTensor>&)>& edit) {
  const Json config = config_of("decoders/llama/config.json");
  std::vector<StoredTensor> tensors = stored_tensors(config);
  edit(tensors);
  const ScratchFolder folder;
  return build_model(write_checkpoint(folder, config, tensors));
}

StoredTensor& named(std::vector<StoredTensor>& tensors, std::string_view name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) { return tensor.name == name; });
}

TEST(TensorBinding, ReportsAllMissingTensorsTogetherAndWhatIsLeftOver) {
  const auto rename = [](std::vector<StoredTensor>& tensors) {
    named(tensors, "model.layers.1.mlp.up_proj.weight").name = "model.layers.1.mlp.w3.weight";
    named(tensors, "model.norm.weight").name = "model.final.weight";
  };
  EXPECT_THAT([&] { build_edited(rename); },
              Fails(ErrorCode::tensor_missing,
                    AllOf(HasSubstr("2 faults"),
                          HasSubstr("tensor 'model.layers.1.mlp.up_proj.weight': missing: got none, expected shape [144,64]"),
                          HasSubstr("tensor 'model.norm.weight': missing"),
                          HasSubstr("2 stored tensors were left over, the first 'model.final.weight'"))));
}

TEST(TensorBinding, ReportsAllMisshapenTensorsTogether) {
  const auto swap = [](std::vector<StoredTensor>& tensors) {
    named(tensors, "model.layers.0.mlp.down_proj.weight").shape = {144, 64};
    named(tensors, "lm_head.weight").shape = {64, 320};
  };
  EXPECT_THAT([&] { build_edited(swap); },
              Fails(ErrorCode::shape_mismatch,
                    AllOf(HasSubstr("model.safetensors@"),
                          HasSubstr("tensor 'model.layers.0.mlp.down_proj.weight': wrong shape: got [144,64], expected [64,144]"),
                          HasSubstr("tensor 'lm_head.weight': wrong shape: got [64,320], expected [320,64]"))));
}

TEST(TensorBinding, RefusesIntegerWeights) {
  EXPECT_THAT([&] { build_edited([](auto& tensors) { named(tensors, "model.norm.weight").dtype = "I32"; }); },
              Fails(ErrorCode::dtype_mismatch,
                    HasSubstr("tensor 'model.norm.weight': wrong type: got i32, expected a floating or block type")));
}

TEST(TensorBinding, ReportsAllUnusedTensorsTogether) {
  const auto add = [](std::vector<StoredTensor>& tensors) {
    tensors.push_back({"model.layers.0.self_attn.q_norm.weight", {16}});
    tensors.push_back({"model.layers.4.input_layernorm.weight", {64}});
  };
  EXPECT_THAT([&] { build_edited(add); },
              Fails(ErrorCode::tensor_unused,
                    AllOf(HasSubstr("2 faults"), HasSubstr("'model.layers.0.self_attn.q_norm.weight': not used"),
                          HasSubstr("'model.layers.4.input_layernorm.weight': not used"))));
}

TEST(TensorBinding, PassesOverStoredRotaryBuffers) {
  const DecoderModel model = build_edited([](auto& tensors) {
    tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {8}});
    tensors.push_back({"model.rotary_emb.inv_freq", {8}});
  });
  EXPECT_EQ(model.tensors_used, 4U * 9 + 3);
}

TEST(TensorBinding, GateRowsMustMatchTheQueryHeads) {
  const Json config = config_of("decoders/spark/config.json");
  std::vector<StoredTensor> tensors = stored_tensors(config);
  named(tensors, "model.layers.2.self_attn.g_proj.weight").shape = {4, 64};
  const ScratchFolder folder;
  EXPECT_THAT([&] { build_model(write_checkpoint(folder, config, tensors)); },
              Fails(ErrorCode::shape_mismatch,
                    HasSubstr("tensor 'model.layers.2.self_attn.g_proj.weight': wrong shape: got [4,64], expected [8,64]")));
}

}  // namespace
}  // namespace transload
