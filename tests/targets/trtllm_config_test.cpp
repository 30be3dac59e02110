// config.json of TensorRT-LLM: the texts of the handed conversions and published models, both key layouts, refusals, warnings.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>

#include "error_matchers.h"
#include "targets/trtllm/config_text.h"
#include "targets/trtllm_cases.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::string_view kFile = "config.json";

std::string config_text(const Json& config, const TrtllmOptions& options) {
  return trtllm_config_text(config, std::string(kFile), trtllm_architecture_of(config, std::string(kFile)), options);
}

Json input_config(std::string_view name) { return trtllm_json(std::filesystem::path(name) / "input" / "config.json"); }

TrtllmOptions options_of(TrtllmFormat format, DType dtype = DType::f16) {
  TrtllmOptions options;
  options.format = format;
  options.dtype = dtype;
  return options;
}

// The input of a published model in real_configs.json.
Json published_config(std::string_view model) {
  const Json file = trtllm_json("real_configs.json");
  for (const Json& row : file.find("configs")->array()) {
    if (row.find("model")->string() == model && row.find("input") != nullptr) return *row.find("input");
  }
  return {};
}

// Moves the rope fields into one object and renames torch_dtype, as newer files have them.
Json in_newer_layout(const Json& config) {
  Json rope = Json::Object{};
  Json newer = Json::Object{};
  for (const auto& [key, value] : config.object()) {
    if (key == "rope_scaling") {
      if (!value.is_object()) continue;
      for (const auto& [inner, factor] : value.object()) rope.set(inner == "type" ? "rope_type" : inner, factor);
    } else if (key == "rope_theta" || key == "partial_rotary_factor" || key == "original_max_position_embeddings") {
      rope.set(key, value);
    } else {
      newer.set(key == "torch_dtype" ? "dtype" : key, value);
    }
  }
  newer.set("rope_parameters", rope);
  return newer;
}

TEST(TrtllmConfig, EveryHandedConversionHasItsTextInBothFormats) {
  size_t compared = 0;
  for (const std::string& name : trtllm_case_names()) {
    const Json config = input_config(name);
    const Json document = trtllm_json(std::filesystem::path(name) / "case.json");
    for (const Json& conversion : document.find("conversions")->array()) {
      const Json* styles = conversion.find("config");
      if (styles == nullptr) continue;
      SCOPED_TRACE(name + " " + conversion.find("id")->string());
      for (const auto& [style, format] : {std::pair("seed", TrtllmFormat::v0_12), std::pair("modern", TrtllmFormat::v1)}) {
        const TrtllmOptions options = trtllm_options(*conversion.find("options"), format);
        const Json& key = *styles->find(style);
        if (key.is_null()) {
          EXPECT_THAT([&] { config_text(config, options); }, Fails(ErrorCode::format_limit, HasSubstr("0.12")));
          continue;
        }
        EXPECT_EQ(config_text(config, options), document.find("configs")->find(key.string())->string());
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 800U);
}

TEST(TrtllmConfig, PublishedModelsHaveTheirTextInBothFormats) {
  const Json file = trtllm_json("real_configs.json");
  Json config;
  for (const Json& row : file.find("configs")->array()) {
    if (const Json* input = row.find("input")) config = *input;
    SCOPED_TRACE(row.find("model")->string());
    for (const auto& [style, format] : {std::pair("seed", TrtllmFormat::v0_12), std::pair("modern", TrtllmFormat::v1)}) {
      const TrtllmOptions options = trtllm_options(*row.find("options"), format);
      EXPECT_EQ(config_text(config, options), row.find(style)->string());
    }
  }
}

TEST(TrtllmConfig, PublishedModelsEqualTheExampleFiles) {
  TrtllmOptions small = options_of(TrtllmFormat::v0_12);
  small.mapping.tensor = 2;
  small.weight_only = WeightOnly::int8;
  const TrtllmOptions v0_12 = options_of(TrtllmFormat::v0_12);
  const TrtllmOptions v1 = options_of(TrtllmFormat::v1, DType::bf16);
  const struct {
    std::string_view model;
    std::string_view file;
    const TrtllmOptions& options;
  } cases[] = {
      {"mini-4k", "modern_phi3_mini_4k.json", v1},
      {"mini-128k", "modern_phi3_mini_128k.json", v1},
      {"small-8k", "modern_phi3_small_8k.json", v1},
      {"phi4-mini", "modern_phi4_mini.json", v1},
      {"mini-4k", "seed_phi3_mini_4k.json", v0_12},
      {"mini-128k", "seed_phi3_mini_128k.json", v0_12},
      {"small-8k", "seed_phi3_small_8k_int8_tp2.json", small},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(config_text(published_config(each.model), each.options), read_text_file(trtllm_data() / "examples" / each.file))
        << each.file;
  }
}

TEST(TrtllmConfig, TheNewerKeyLayoutGivesTheSameText) {
  for (const std::string& name : trtllm_case_names()) {
    const Json config = input_config(name);
    const TrtllmOptions options = options_of(TrtllmFormat::v1);
    EXPECT_EQ(config_text(in_newer_layout(config), options), config_text(config, options)) << name;
    TrtllmOptions automatic;
    EXPECT_EQ(trtllm_dtype(in_newer_layout(config), "config.json", automatic), trtllm_dtype(config, "config.json", automatic));
  }
}

TEST(TrtllmConfig, AFieldAtTheTopGoesBeforeOneOfTheRopeObject) {
  Json config = input_config("phi3-mini-128k");
  config.set("rope_parameters", Json::Object{{"rope_theta", 5}, {"original_max_position_embeddings", 6}, {"short_factor", 7}});
  EXPECT_EQ(config_text(config, options_of(TrtllmFormat::v1)),
            config_text(input_config("phi3-mini-128k"), options_of(TrtllmFormat::v1)));
}

TEST(TrtllmConfig, TheOriginalLengthMayStandBesideTheFactorsOnly) {
  Json config = input_config("phi35-moe");  // has it in both places
  std::erase_if(config.object(), [](const Json::Member& member) { return member.first == "original_max_position_embeddings"; });
  EXPECT_EQ(config_text(config, options_of(TrtllmFormat::v1)),
            config_text(input_config("phi35-moe"), options_of(TrtllmFormat::v1)));
}

TEST(TrtllmConfig, NumbersKeepTheirKindAndAreSpelledAsPythonDoes) {
  const auto text_with = [&](const std::string& token) {
    Json config = input_config("phi3-mini-4k");
    config.set("rope_theta", parse_json(token, "token"));
    return config_text(config, options_of(TrtllmFormat::v1));
  };
  const std::pair<std::string, std::string> cases[] = {
      {"10000", "10000"},
      {"10000.0", "10000.0"},
      {"1e4", "10000.0"},
      {"0.00001", "1e-05"},
      {"0.0001", "0.0001"},
      {"1E15", "1000000000000000.0"},
      {"250000", "250000"},
      {"2.000000000000001", "2.000000000000001"},
      {"1e-7", "1e-07"},
      {"1.5e-10", "1.5e-10"},
      {"1000000000000000", "1000000000000000"},
  };
  for (const auto& [token, expected] : cases) {
    EXPECT_THAT(text_with(token), HasSubstr("{\n    \"rotary_base\": " + expected + ",\n")) << token;
  }
}

TEST(TrtllmConfig, AbsentFieldsTakeTheDefaultsOfTheModelClass) {
  Json config = input_config("phi3-mini-4k");
  for (const std::string_view key : {"num_key_value_heads", "tie_word_embeddings"}) {
    std::erase_if(config.object(), [&](const Json::Member& member) { return member.first == key; });
  }
  EXPECT_THAT(config_text(config, options_of(TrtllmFormat::v1)),
              AllOf(HasSubstr("\"num_key_value_heads\": 8,"), HasSubstr("\"tie_word_embeddings\": false\n}")));
  Json small = input_config("phi3-small-8k");
  std::erase_if(small.object(), [&](const Json::Member& member) { return member.first == "tie_word_embeddings"; });
  EXPECT_THAT(config_text(small, options_of(TrtllmFormat::v1)), HasSubstr("\"tie_word_embeddings\": true,\n"));
}

TEST(TrtllmConfig, ALimitOrPatternThatIsNullStaysNull) {
  Json config = input_config("phi3-small-8k");
  config.set("gegelu_limit", nullptr);
  config.set("dense_attention_every_n_layers", nullptr);
  EXPECT_THAT(config_text(config, options_of(TrtllmFormat::v0_12)),
              AllOf(HasSubstr("\"gegelu_limit\": null,"), HasSubstr("\"dense_attention_every_n_layers\": null,")));
}

TEST(TrtllmConfig, LongRopeKeysFollowTheContextLengthAndNotTheFactors) {
  Json config = input_config("phi3-mini-128k");
  config.set("max_position_embeddings", 127999);
  EXPECT_THAT(config_text(config, options_of(TrtllmFormat::v1)),
              AllOf(HasSubstr("\"rope_gpt_neox\""), testing::Not(HasSubstr("longrope"))));
  config.set("max_position_embeddings", 128000);
  EXPECT_THAT(config_text(config, options_of(TrtllmFormat::v1)),
              AllOf(HasSubstr("\"long_rope\""), HasSubstr("longrope_scaling")));
}

TEST(TrtllmConfig, TheDtypeIsTheOneAskedForElseThatOfTheConfig) {
  const auto dtype_of = [](const Json& config, std::optional<DType> asked = std::nullopt) {
    TrtllmOptions options;
    options.dtype = asked;
    return trtllm_dtype(config, std::string(kFile), options);
  };
  EXPECT_EQ(dtype_of(Json::Object{}), DType::f16);
  EXPECT_EQ(dtype_of(Json::Object{{"torch_dtype", nullptr}}), DType::f16);
  EXPECT_EQ(dtype_of(Json::Object{{"torch_dtype", "bfloat16"}}), DType::bf16);
  EXPECT_EQ(dtype_of(Json::Object{{"dtype", "bfloat16"}}), DType::bf16);
  EXPECT_EQ(dtype_of(Json::Object{{"torch_dtype", "float16"}}), DType::f16);
  EXPECT_EQ(dtype_of(Json::Object{{"torch_dtype", "float32"}}), DType::f16);
  EXPECT_EQ(dtype_of(Json::Object{{"torch_dtype", "float32"}}, DType::f32), DType::f32);
  EXPECT_EQ(dtype_of(Json::Object{{"torch_dtype", "int8"}}, DType::bf16), DType::bf16);
  EXPECT_THAT(
      [&] {
        dtype_of(Json::Object{{"torch_dtype", "float8_e4m3fn"}});
      },
      Fails(ErrorCode::config_unsupported,
            HasSubstr("config.json: field 'torch_dtype': not supported: got 'float8_e4m3fn', expected float16")));
  EXPECT_THAT([&] { dtype_of(Json::Object{}, DType::i8); },
              Fails(ErrorCode::usage, HasSubstr("got i8, expected f32, f16 or bf16")));
  EXPECT_THAT([&] { dtype_of(Json::Object{{"dtype", 16}}); }, Fails(ErrorCode::config_invalid, HasSubstr("field 'dtype'")));
}

TEST(TrtllmConfig, BadFieldsAreNamed) {
  const Json list = Json::Array{};
  const struct {
    std::string_view base;
    std::string_view field;
    std::optional<Json> value;  // none: the field is taken out
    ErrorCode code;
    std::string_view text;
  } cases[] = {
      {"phi3-mini-4k", "hidden_size", std::nullopt, ErrorCode::config_missing, "field 'hidden_size': missing"},
      {"phi3-mini-4k", "hidden_size", Json("128"), ErrorCode::config_invalid, "field 'hidden_size': wrong type"},
      {"phi3-mini-4k", "hidden_size", Json(0), ErrorCode::config_invalid, "field 'hidden_size': out of range: got 0"},
      {"phi3-mini-4k", "hidden_size", Json(-1), ErrorCode::config_invalid, "got -1"},
      {"phi3-mini-4k", "hidden_size", Json(128.0), ErrorCode::config_invalid, "field 'hidden_size': wrong type: got 128.0"},
      {"phi3-mini-4k", "hidden_size", Json(int64_t{1} << 40), ErrorCode::config_invalid, "field 'hidden_size': out of range"},
      {"phi3-mini-4k", "num_hidden_layers", Json(nullptr), ErrorCode::config_missing, "'num_hidden_layers'"},
      {"phi3-mini-4k", "num_attention_heads", Json(7), ErrorCode::config_invalid, "got 7, expected a divisor of 128"},
      {"phi3-mini-4k", "num_attention_heads", Json(1 << 20), ErrorCode::config_invalid, "expected a divisor of 128"},
      {"phi3-mini-4k", "num_key_value_heads", Json(3), ErrorCode::config_invalid, "got 3, expected a divisor of 8"},
      {"phi3-mini-4k", "head_dim", Json(32), ErrorCode::config_unsupported, "field 'head_dim'"},
      {"phi3-mini-4k", "intermediate_size", std::nullopt, ErrorCode::config_missing, "'intermediate_size'"},
      {"phi3-mini-4k", "vocab_size", Json(true), ErrorCode::config_invalid, "'vocab_size'"},
      {"phi3-mini-4k", "max_position_embeddings", std::nullopt, ErrorCode::config_missing, "'max_position_embeddings'"},
      {"phi3-mini-4k", "hidden_act", std::nullopt, ErrorCode::config_missing, "'hidden_act'"},
      {"phi3-mini-4k", "hidden_act", Json("gelu"), ErrorCode::config_unsupported, "got \"gelu\", expected \"silu\""},
      {"phi3-mini-4k", "hidden_act", Json(1), ErrorCode::config_invalid, "field 'hidden_act': wrong type"},
      {"phi3-mini-4k", "rms_norm_eps", std::nullopt, ErrorCode::config_missing, "'rms_norm_eps'"},
      {"phi3-mini-4k", "rms_norm_eps", Json("1e-5"), ErrorCode::config_invalid, "'rms_norm_eps'"},
      {"phi3-mini-4k", "rms_norm_eps", Json(-1e-5), ErrorCode::config_invalid, "got -1e-05, expected a number above 0"},
      {"phi3-mini-4k", "rope_theta", std::nullopt, ErrorCode::config_missing, "'rope_theta'"},
      {"phi3-mini-4k", "rope_theta", Json(0), ErrorCode::config_invalid, "field 'rope_theta': out of range: got 0"},
      {"phi3-mini-4k", "rope_theta", Json(1e20), ErrorCode::config_invalid, "field 'rope_theta': out of range: got 1e+20"},
      {"phi3-mini-4k", "tie_word_embeddings", Json("no"), ErrorCode::config_invalid, "'tie_word_embeddings'"},
      {"phi3-mini-4k", "partial_rotary_factor", Json(1.5), ErrorCode::config_invalid, "'partial_rotary_factor': got 1.5"},
      {"phi3-mini-4k", "partial_rotary_factor", Json(0.2), ErrorCode::config_invalid, "expected a part that leaves an even"},
      {"phi3-mini-4k", "max_position_embeddings", Json(128000), ErrorCode::config_missing, "field 'rope_scaling': missing"},
      {"phi3-mini-4k", "rope_scaling", Json("longrope"), ErrorCode::config_invalid, "field 'rope_scaling': wrong type"},
      {"phi3-mini-128k", "original_max_position_embeddings", std::nullopt, ErrorCode::config_missing,
       "'original_max_position_embeddings'"},
      {"phi3-mini-128k", "rope_scaling", Json(Json::Object{}), ErrorCode::config_missing, "field 'rope_scaling.short_factor'"},
      {"phi3-mini-128k", "rope_scaling.long_factor", std::nullopt, ErrorCode::config_missing, "'rope_scaling.long_factor'"},
      {"phi3-mini-128k", "rope_scaling.long_factor", list, ErrorCode::config_invalid,
       "field 'rope_scaling.long_factor': length is not half the rotary width, as when config and weights are of different "
       "revisions: got 0, expected 24"},
      {"phi3-mini-128k", "rope_scaling.short_factor", Json(Json::Array(25, Json(1.0))), ErrorCode::config_invalid,
       "got 25, expected 24"},
      {"phi3-mini-128k", "rope_scaling.short_factor", Json(Json::Array(24, Json("1"))), ErrorCode::config_invalid,
       "'rope_scaling.short_factor'"},
      {"phi3-mini-128k", "rope_scaling.short_factor", Json(Json::Array(24, Json(0))), ErrorCode::config_invalid,
       "factor 0: got 0, expected a positive number"},
      {"phi3-small-8k", "hidden_act", Json("silu"), ErrorCode::config_unsupported, "expected \"gegelu\""},
      {"phi3-small-8k", "intermediate_size", Json(100), ErrorCode::config_invalid, "got 100, expected 256"},
      {"phi3-small-8k", "ff_intermediate_size", std::nullopt, ErrorCode::config_missing, "'ff_intermediate_size'"},
      {"phi3-small-8k", "mup_use_scaling", std::nullopt, ErrorCode::config_missing, "'mup_use_scaling'"},
      {"phi3-small-8k", "mup_use_scaling", Json(1), ErrorCode::config_invalid, "'mup_use_scaling'"},
      {"phi3-small-8k", "gegelu_limit", std::nullopt, ErrorCode::config_missing, "'gegelu_limit'"},
      {"phi3-small-8k", "mup_width_multiplier", Json(nullptr), ErrorCode::config_missing, "'mup_width_multiplier'"},
      {"phi3-small-8k", "blocksparse_vert_stride", Json(0), ErrorCode::config_invalid, "'blocksparse_vert_stride'"},
      {"phi3-small-8k", "rope_embedding_base", std::nullopt, ErrorCode::config_missing, "'rope_embedding_base'"},
      {"phi3-small-8k", "layer_norm_epsilon", std::nullopt, ErrorCode::config_missing, "'layer_norm_epsilon'"},
      {"phi3-small-128k", "rope_scaling.long_mscale", std::nullopt, ErrorCode::config_missing, "'rope_scaling.long_mscale'"},
      {"phi35-moe", "num_local_experts", std::nullopt, ErrorCode::config_missing, "'num_local_experts'"},
      {"phi35-moe", "num_experts_per_tok", Json(-2), ErrorCode::config_invalid, "'num_experts_per_tok'"},
      {"phi35-moe", "router_jitter_noise", Json(-0.1), ErrorCode::config_invalid, "expected a number of at least 0"},
      {"phi35-moe", "rope_scaling.short_mscale", Json("1"), ErrorCode::config_invalid, "'rope_scaling.short_mscale'"},
      {"phi35-moe", "attention_bias", Json(1), ErrorCode::config_invalid, "'attention_bias'"},
  };
  for (const auto& each : cases) {
    Json config = input_config(each.base);
    Json* owner = &config;
    std::string key(each.field);
    if (const size_t dot = key.find('.'); dot != std::string::npos) {
      const std::string outer = key.substr(0, dot);
      key = key.substr(dot + 1);
      for (auto& [name, value] : config.object()) {
        if (name == outer) owner = &value;
      }
    }
    if (each.value) {
      owner->set(key, *each.value);
    } else {
      std::erase_if(owner->object(), [&](const Json::Member& member) { return member.first == key; });
    }
    EXPECT_THAT([&] { config_text(config, options_of(TrtllmFormat::v1)); },
                Fails(each.code, AllOf(HasSubstr("config.json: "), HasSubstr(std::string(each.text)))))
        << each.base << ' ' << each.field;
  }
}

// The engine works out a longrope attention factor from the lengths alone, where config.json has no mscales.
TEST(TrtllmConfig, AnAttentionFactorThatTheEngineWouldNotUseIsRefused) {
  const struct {
    std::string_view base;
    std::string_view key;
    Json value;
    bool taken;
  } cases[] = {
      {"phi3-mini-128k", "attention_factor", Json(3.5), false},
      {"phi3-mini-128k", "attention_factor", Json(1.1902380714238083), true},
      {"phi3-mini-128k", "attention_factor", Json(nullptr), true},
      {"phi3-mini-128k", "factor", Json(3.5), false},
      {"phi3-mini-128k", "factor", Json(32), true},
      {"phi3-mini-128k", "short_mscale", Json(1.0), false},
      {"phi3-mini-128k", "long_mscale", Json(1.3), false},
      {"phi4-mini", "long_mscale", Json(1.3), false},
      // Experts have mscales, which go first in the model as well.
      {"phi35-moe", "attention_factor", Json(3.5), true},
      {"phi35-moe", "factor", Json(3.5), true},
  };
  for (const auto& each : cases) {
    Json config = input_config(each.base);
    const std::string text = config_text(config, options_of(TrtllmFormat::v1));
    for (auto& [name, value] : config.object()) {
      if (name == "rope_scaling") value.set(each.key, each.value);
    }
    SCOPED_TRACE(fmt::format("{} {}", each.base, each.key));
    if (each.taken) {
      EXPECT_EQ(config_text(config, options_of(TrtllmFormat::v1)), text);
      continue;
    }
    EXPECT_THAT(
        [&] { config_text(config, options_of(TrtllmFormat::v1)); },
        Fails(ErrorCode::config_unsupported,
              AllOf(HasSubstr(fmt::format("field 'rope_scaling.{}': config.json of TensorRT-LLM has no field for it", each.key)),
                    HasSubstr(fmt::format("got {}, expected ", write_json(each.value, 0))))));
  }
}

TEST(TrtllmConfig, AFieldOfTheRopeObjectCountsInBothKeyLayouts) {
  for (const std::string_view object : {"rope_scaling", "rope_parameters"}) {
    Json config = input_config("phi3-mini-4k");
    std::erase_if(config.object(), [](const Json::Member& member) { return member.first == "rope_theta"; });
    config.set(object, Json::Object{{"rope_type", "default"}, {"rope_theta", 500.0}, {"partial_rotary_factor", 0.5}});
    const Json text = parse_json(config_text(config, options_of(TrtllmFormat::v1)), "text");
    EXPECT_EQ(*text.find("rotary_base"), Json(500.0)) << object;
    EXPECT_EQ(*text.find("rotary_pct"), Json(0.5)) << object;
    EXPECT_EQ(*text.find("rotary_embedding_dim"), Json(8)) << object;
  }
}

TEST(TrtllmConfig, AnArchitectureOfAnotherFamilyThanTheModelTypeIsRefused) {
  const struct {
    std::string_view base;
    std::string_view architecture;
    std::string_view text;
  } cases[] = {
      {"phi35-moe", "Phi3ForCausalLM", "field 'architectures': got 'Phi3ForCausalLM', expected that of a model of type 'phimoe'"},
      {"phi3-mini-4k", "PhiMoEForCausalLM", "got 'PhiMoEForCausalLM', expected that of a model of type 'phi3'"},
      {"phi3-mini-4k", "Phi3SmallForCausalLM", "got 'Phi3SmallForCausalLM', expected that of a model of type 'phi3'"},
      {"phi3-small-8k", "Phi3ForCausalLM", "got 'Phi3ForCausalLM', expected that of a model of type 'phi3small'"},
  };
  for (const auto& each : cases) {
    Json config = input_config(each.base);
    config.set("architectures", Json::Array{each.architecture});
    EXPECT_THAT([&] { config_text(config, options_of(TrtllmFormat::v1)); },
                Fails(ErrorCode::config_invalid, HasSubstr(std::string(each.text))));
  }
  for (const std::string_view type : {"phi3", "phi3_v", "phi4mm"}) {
    Json config = input_config("phi3-mini-4k");
    config.set("model_type", type);
    EXPECT_NO_THROW(config_text(config, options_of(TrtllmFormat::v1))) << type;
  }
}

TEST(TrtllmConfig, FaultsOfOneConfigComeTogether) {
  Json config = input_config("phi3-mini-4k");
  config.set("vocab_size", -1);
  config.set("rms_norm_eps", "small");
  EXPECT_THAT([&] { config_text(config, options_of(TrtllmFormat::v1)); },
              Fails(ErrorCode::config_invalid, AllOf(HasSubstr("2 faults"), HasSubstr("vocab_size"), HasSubstr("rms_norm_eps"))));
}

TEST(TrtllmConfig, Format012RefusesExpertsAndExpertParallelism) {
  const Json moe = input_config("phi35-moe");
  TrtllmOptions options = options_of(TrtllmFormat::v0_12);
  options.mapping = {2, 1, 2};
  EXPECT_THAT([&] { config_text(moe, options); },
              Fails(ErrorCode::format_limit,
                    AllOf(HasSubstr("format 0.12 has no model with experts: got 'PhiMoEForCausalLM', expected format 1.x"),
                          HasSubstr("format 0.12 has no expert parallelism: got size 2, expected 1"))));
}

TEST(TrtllmConfig, ArchitecturesAreFoundByTheirNameOrRefusedWithTheOnesThereAre) {
  EXPECT_EQ(trtllm_architecture("PhimoeForCausalLM", "config.json").v1_name, "PhiMoEForCausalLM");
  EXPECT_EQ(trtllm_architecture("Phi3VForCausalLM", "config.json").v1_name, "Phi3VForCausalLM");
  EXPECT_EQ(trtllm_architecture("Phi3VForCausalLM", "config.json").v0_12_name, "Phi3ForCausalLM");
  EXPECT_THAT([] { trtllm_architecture("LlamaForCausalLM", "config.json"); },
              Fails(ErrorCode::arch_unknown, AllOf(HasSubstr("got 'LlamaForCausalLM'"), HasSubstr("Phi3SmallForCausalLM"))));
  for (const Json& config : {Json(Json::Object{}), Json(Json::Object{{"architectures", nullptr}}), Json(Json::Array{})}) {
    EXPECT_THAT([&] { trtllm_architecture_of(config, "config.json"); },
                Fails(ErrorCode::config_missing, HasSubstr("field 'architectures': missing: got none")));
  }
  for (const Json& value : {Json(Json::Array{}), Json("Phi3ForCausalLM"), Json(Json::Array{1})}) {
    EXPECT_THAT(
        [&] {
          trtllm_architecture_of(Json::Object{{"architectures", value}}, "config.json");
        },
        Fails(ErrorCode::config_invalid, HasSubstr("field 'architectures': wrong type: got ")));
  }
}

TEST(TrtllmConfig, WarningsNameWhatTheFormatLoses) {
  const auto warnings = [](std::string_view name, const TrtllmOptions& options) {
    return trtllm_config_warnings(input_config(name), options);
  };
  const TrtllmOptions v1 = options_of(TrtllmFormat::v1);
  const TrtllmOptions v0_12 = options_of(TrtllmFormat::v0_12);
  EXPECT_THAT(warnings("phi3-small-8k", v1), IsEmpty());
  EXPECT_THAT(warnings("phi35-moe", v1), IsEmpty());  // its window is the whole context
  EXPECT_THAT(warnings("phi3-mini-4k", v1),
              ElementsAre(AllOf(HasSubstr("sliding window of 2047 positions is dropped"),
                                HasSubstr("the engine attends to all positions"), HasSubstr("max_attention_window"))));
  EXPECT_THAT(warnings("phi3-small-8k", v0_12),
              ElementsAre(HasSubstr("add the line \"position_embedding_type\": \"rope_gpt_neox\" before building")));
  EXPECT_THAT(warnings("phi4-mini", v0_12), ElementsAre(HasSubstr("add the line \"position_embedding_type\": \"long_rope\""),
                                                        AllOf(HasSubstr("turns only 0.75 of each head"),
                                                              HasSubstr("add the line \"rotary_pct\": 0.75 before"))));
  TrtllmOptions staged = v1;
  staged.mapping.pipeline = 2;
  EXPECT_THAT(warnings("phi35-moe", staged), ElementsAre(HasSubstr("upstream's own converter refuses it")));
  TrtllmOptions baked = v0_12;
  baked.weight_only = WeightOnly::int8;
  baked.form = QuantForm::baked;
  baked.layout = QuantLayout::sm90;
  EXPECT_THAT(warnings("phi3-small-8k", baked), ElementsAre(HasSubstr("position_embedding_type"), HasSubstr("sm90")));
  Json shorter = input_config("phi35-moe");
  shorter.set("max_position_embeddings", 8192);
  for (const Json& each : {shorter, in_newer_layout(shorter)}) {
    EXPECT_THAT(trtllm_config_warnings(each, v1),
                ElementsAre(AllOf(HasSubstr("longrope factors are dropped"), HasSubstr("the model has 8192"),
                                  HasSubstr("the engine uses plain rotary frequencies"))));
  }
}

TEST(TrtllmConfig, BakedWeightsInThePlainLayoutComeWithAWarning) {
  TrtllmOptions options = options_of(TrtllmFormat::v1);
  const auto warnings = [&] { return trtllm_config_warnings(input_config("phi35-moe"), options); };
  options.weight_only = WeightOnly::int4;
  EXPECT_THAT(warnings(), IsEmpty());  // deferred: the builder lays them out
  options.form = QuantForm::baked;
  EXPECT_THAT(warnings(),
              ElementsAre(AllOf(HasSubstr("no GPU kernel reads layout plain"), HasSubstr("sm80 (compute capability 7.5"),
                                HasSubstr("sm90"), testing::Not(HasSubstr("\n")))));
  for (const QuantLayout layout : {QuantLayout::sm80, QuantLayout::sm90, QuantLayout::transpose}) {
    options.layout = layout;
    EXPECT_THAT(warnings(), IsEmpty());
  }
}

TEST(TrtllmConfig, RotaryScalingThatTheFormatCannotSayIsRefusedInBothKeyLayouts) {
  for (const std::string_view base : {"phi3-mini-4k", "phi3-mini-128k", "phi3-small-8k", "phi35-moe"}) {
    for (const std::string_view kind : {"yarn", "linear", "llama3", "dynamic", "ntk_of_tomorrow", ""}) {
      for (const std::string_view key : {"type", "rope_type"}) {
        Json config = input_config(base);
        const Json* stored = config.find("rope_scaling");
        Json rope = stored != nullptr && stored->is_object() ? *stored : Json(Json::Object{{"factor", 4.0}});
        std::erase_if(rope.object(), [](const Json::Member& member) { return member.first == "type"; });
        rope.set(key, kind);
        config.set("rope_scaling", rope);
        const Json newer = in_newer_layout(config);
        for (const TrtllmFormat format : {TrtllmFormat::v0_12, TrtllmFormat::v1}) {
          if (base == "phi35-moe" && format == TrtllmFormat::v0_12) continue;
          SCOPED_TRACE(fmt::format("{} {} {}", base, key, kind));
          EXPECT_THAT([&] { config_text(config, options_of(format)); },
                      Fails(ErrorCode::config_unsupported,
                            AllOf(HasSubstr(fmt::format("config.json: field 'rope_scaling.{}': ", key)),
                                  HasSubstr("config.json of TensorRT-LLM has no field for it"),
                                  HasSubstr(fmt::format("got '{}', expected default, su or longrope", kind)))));
          if (base == "phi3-small-8k") continue;  // its base has a name of its own
          EXPECT_THAT([&] { config_text(newer, options_of(format)); },
                      Fails(ErrorCode::config_unsupported, HasSubstr("field 'rope_parameters.rope_type': ")));
        }
      }
    }
  }
  Json plain = input_config("phi3-mini-4k");
  const std::string text = config_text(plain, options_of(TrtllmFormat::v1));
  for (const std::string_view kind : {"default", "su", "longrope"}) {
    plain.set("rope_scaling", Json::Object{{"type", kind}});
    EXPECT_EQ(config_text(plain, options_of(TrtllmFormat::v1)), text) << kind;
    EXPECT_EQ(config_text(in_newer_layout(plain), options_of(TrtllmFormat::v1)), text) << kind;
  }
}

TEST(TrtllmConfig, NamesOfFormatsLayoutsDtypesAndAlgorithms) {
  EXPECT_EQ(trtllm_format_name(TrtllmFormat::v0_12), "0.12");
  EXPECT_EQ(trtllm_format_name(TrtllmFormat::v1), "1.x");
  EXPECT_EQ(quant_layout_name(QuantLayout::plain), "plain");
  EXPECT_EQ(quant_layout_name(QuantLayout::transpose), "transpose");
  EXPECT_EQ(quant_layout_name(QuantLayout::sm80), "sm80");
  EXPECT_EQ(quant_layout_name(QuantLayout::sm90), "sm90");
  EXPECT_EQ(quant_algo_name(WeightOnly::none), "");
  EXPECT_EQ(quant_algo_name(WeightOnly::int8), "W8A16");
  EXPECT_EQ(quant_algo_name(WeightOnly::int4), "W4A16");
  EXPECT_EQ(find_trtllm_dtype("float32"), DType::f32);
  EXPECT_EQ(find_trtllm_dtype("int8"), std::nullopt);
  EXPECT_THAT([] { trtllm_dtype_name(DType::i8); }, Fails(ErrorCode::usage, HasSubstr("got i8")));
}

}  // namespace
}  // namespace transload
