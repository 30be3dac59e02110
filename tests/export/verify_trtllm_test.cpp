// Verification of TensorRT-LLM checkpoints: passes for every split there is, and finds every fault put into a good folder.
#include "transload/verify_trtllm.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "error_matchers.h"
#include "export/trtllm_folder.h"
#include "export/trtllm_folder_fixture.h"
#include "export/verify_trtllm_blocks.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::HasSubstr;

VerifyTrtllmReport verified(const std::filesystem::path& folder, const std::filesystem::path& checkpoint) {
  VerifyTrtllmOptions options;
  options.checkpoint = checkpoint;
  options.threads = 1;
  return verify_trtllm(folder, options);
}

// What the splits of a model have to divide.
struct Sizes {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t intermediate = 0;
  uint32_t layers = 0;
  uint32_t experts = 0;
};

Sizes sizes_of(const Json& config) {
  const auto number = [&](const char* key) {
    const Json* value = config.find(key);
    return value == nullptr ? 0U : static_cast<uint32_t>(value->integer());
  };
  const uint32_t inner = number("ff_intermediate_size") != 0 ? number("ff_intermediate_size") : number("intermediate_size");
  return {number("num_attention_heads"), number("num_key_value_heads"), inner, number("num_hidden_layers"),
          number("num_local_experts")};
}

// The rules of the loader, written down once more.
bool is_feasible(const Sizes& sizes, const Split& split, TrtllmFormat format) {
  if (sizes.heads % split.tensor != 0) return false;
  if (sizes.kv_heads % split.tensor != 0 && split.tensor % sizes.kv_heads != 0) return false;
  if (split.tensor % split.expert != 0) return false;
  if (sizes.experts == 0 ? split.expert > 1 : sizes.experts % split.expert != 0) return false;
  if (sizes.intermediate % (split.tensor / split.expert) != 0) return false;
  if (split.pipeline > sizes.layers) return false;
  return format == TrtllmFormat::v1 || (sizes.layers % split.pipeline == 0 && sizes.experts == 0);
}

std::vector<Split> splits_up_to(uint32_t ranks, bool experts) {
  std::vector<Split> splits;
  for (uint32_t tensor = 1; tensor <= ranks; ++tensor) {
    for (uint32_t pipeline = 1; tensor * pipeline <= ranks; ++pipeline) {
      for (uint32_t expert = 1; expert <= (experts ? tensor : 1); ++expert) splits.push_back({tensor, pipeline, expert});
    }
  }
  return splits;
}

// Every feasible split verifies and every other one is refused; a dtype and format for each, in turn.
void sweep(const std::filesystem::path& checkpoint, const Json& config, uint32_t& passed) {
  const Sizes sizes = sizes_of(config);
  const ScratchFolder scratch;
  const Checkpoint opened = Checkpoint::open(checkpoint);
  constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32};
  for (const Split& split : splits_up_to(16, sizes.experts > 0)) {
    for (const TrtllmFormat format : {TrtllmFormat::v1, TrtllmFormat::v0_12}) {
      SCOPED_TRACE(testing::Message() << checkpoint << " tp " << split.tensor << " pp " << split.pipeline << " ep "
                                      << split.expert << " format " << trtllm_format_name(format));
      ExportTrtllmOptions options;
      options.trtllm = trtllm_options(split, kDTypes[passed % 3], format);
      options.workers = 1;
      if (!is_feasible(sizes, split, format)) {
        options.dry_run = true;
        try {
          export_trtllm(opened, scratch.path() / "refused", options);
          ADD_FAILURE() << "was not refused";
        } catch (const Error& error) {
          EXPECT_EQ(exit_code(error.code()), 4) << error.what();
        }
        continue;
      }
      // The other generation writes the same rank files: one of four is enough.
      if (format == TrtllmFormat::v0_12 && passed % 4 != 0) continue;
      const std::filesystem::path folder = scratch.path() / "out";
      options.overwrite = true;
      export_trtllm(opened, folder, options);
      const VerifyTrtllmReport report = verified(folder, checkpoint);
      EXPECT_TRUE(report.passed()) << report.failure.value_or("");
      EXPECT_GT(report.tensors_compared, 0U);
      EXPECT_EQ(report.blocks.size(), sizes.layers > 1 ? 5U : 3U);
      ++passed;
    }
  }
}

TEST(VerifyTrtllm, PassesForEveryFeasibleSplitUpTo16RanksAndEveryOtherOneIsRefused) {
  uint32_t passed = 0;
  for (const std::string& name : trtllm_inputs()) sweep(trtllm_input(name), input_config(name), passed);
  EXPECT_GE(passed, 60U);
}

TEST(VerifyTrtllm, PassesForEverySplitOfModelsWhoseLayersNoNumberOfStagesDivides) {
  uint32_t passed = 0;
  const std::vector<std::pair<std::string, Json::Object>> models = {
      {"phi3-medium-4k", {{"num_hidden_layers", 5}, {"vocab_size", 157}}},
      {"phi3-small-128k", {{"num_hidden_layers", 7}, {"hidden_size", 256}, {"num_attention_heads", 8}}},
      {"phi35-moe", {{"num_hidden_layers", 5}, {"num_local_experts", 6}, {"vocab_size", 131}}},
  };
  for (const auto& [name, fields] : models) {
    const ScratchFolder scratch;
    synthesize_input(name, fields, scratch.path() / "model");
    Json config = input_config(name);
    for (const auto& [key, value] : fields) config.set(key, value);
    sweep(scratch.path() / "model", config, passed);
  }
  EXPECT_GE(passed, 60U);
}

TEST(VerifyTrtllm, PassesForWeightOnlyConversionsInEveryLayoutAndSaysHowFarOffTheyAre) {
  struct Case {
    const char* input;
    TrtllmOptions options;
    const char* quantisation;
  };
  const TrtllmOptions one = trtllm_options({});
  const TrtllmOptions two = trtllm_options({2, 1, 1}, DType::bf16);
  const Case cases[] = {
      {"phi3-mini-4k", quantised(one, WeightOnly::int8, QuantForm::deferred), "int8 deferred"},
      {"phi3-small-8k", quantised(two, WeightOnly::int4, QuantForm::deferred), "int4 deferred"},
      {"phi3-small-8k", quantised(one, WeightOnly::int8, QuantForm::baked), "int8 baked plain"},
      {"phi3-medium-4k", quantised(two, WeightOnly::int4, QuantForm::baked), "int4 baked plain"},
      {"phi3-mini-4k", quantised(one, WeightOnly::int8, QuantForm::baked, QuantLayout::sm80), "int8 baked sm80"},
      {"phi3-medium-4k", quantised(two, WeightOnly::int8, QuantForm::baked, QuantLayout::sm90), "int8 baked sm90"},
      {"phi3-small-8k", quantised(one, WeightOnly::int4, QuantForm::baked, QuantLayout::sm80), "int4 baked sm80"},
      {"phi35-moe", quantised(one, WeightOnly::int8, QuantForm::baked, QuantLayout::sm90), "int8 baked sm90"},
      {"phi35-moe", quantised(one, WeightOnly::int4, QuantForm::baked, QuantLayout::sm80), "int4 baked sm80"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.input << " " << c.quantisation);
    const ScratchFolder scratch;
    export_folder(trtllm_input(c.input), scratch.path() / "out", c.options);
    VerifyTrtllmOptions options;
    options.checkpoint = trtllm_input(c.input);
    if (c.options.form == QuantForm::baked) options.layout = c.options.layout;
    const VerifyTrtllmReport report = verify_trtllm(scratch.path() / "out", options);
    ASSERT_TRUE(report.passed()) << report.failure.value_or("");
    EXPECT_EQ(report.quantisation, c.quantisation);
    const bool is_baked = c.options.form == QuantForm::baked;
    // The positive maximum of a channel is one step above what 8 or 4 bits hold.
    EXPECT_EQ(report.worst_steps, is_baked ? 1.0 : 0.0);
    EXPECT_EQ(report.blocks.front().quantisation.value_or(0) > 0, is_baked);
  }
}

constexpr const char* kFc = "transformer.layers.0.mlp.fc.weight";
constexpr const char* kQkv = "transformer.layers.0.attention.qkv.weight";
constexpr const char* kDense = "transformer.layers.1.attention.dense.weight";

void swap_halves(std::string& bytes) {
  std::rotate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.end());
}

void swap_tensors(const std::filesystem::path& folder, uint32_t rank, const std::string& name, uint32_t other_rank,
                  const std::string& other_name) {
  const std::string first = tensor_bytes_of(folder, rank, name);
  write_tensor(folder, rank, name, tensor_bytes_of(folder, other_rank, other_name));
  write_tensor(folder, other_rank, other_name, first);
}

// f16 with the exponent one lower.
void halve_values(std::string& bytes) {
  for (size_t i = 1; i < bytes.size(); i += 2) {
    if ((bytes[i] & 0x7C) > 0x04) bytes[i] = static_cast<char>(bytes[i] - 0x04);
  }
}

void flip(std::string& bytes, size_t byte, int bit) { bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit)); }

enum class Model : uint8_t { mini, small, moe, padded, staged, baked8, baked4 };

struct Fault {
  const char* what;
  Model model;
  std::function<void(const std::filesystem::path&)> apply;
  std::vector<std::string> named;  // in the failure
  bool in_blocks = true;           // running the blocks finds it as well
};

std::vector<Fault> faults() {
  using Path = std::filesystem::path;
  return {
      {"fc halves swapped", Model::mini, [](const Path& p) { edit_tensor(p, 1, kFc, swap_halves); }, {"rank1.safetensors", kFc}},
      {"naive row split of fc",
       Model::mini,
       [](const Path& p) {
         std::string first = tensor_bytes_of(p, 0, kFc);
         std::string second = tensor_bytes_of(p, 1, kFc);
         const size_t half = first.size() / 2;
         write_tensor(p, 0, kFc, first.substr(0, half) + second.substr(0, half));
         write_tensor(p, 1, kFc, first.substr(half) + second.substr(half));
       },
       {"rank0.safetensors", kFc}},
      {"KV head of another rank",
       Model::small,
       [](const Path& p) {
         // Key rows lie behind 2 query heads of 32 rows, in f16 with 256 columns.
         const std::string other = tensor_bytes_of(p, 3, kQkv);
         edit_tensor(p, 0, kQkv, [&](std::string& bytes) {
           bytes.replace(size_t{64} * 512, size_t{32} * 512, other.substr(size_t{64} * 512, size_t{32} * 512));
         });
       },
       {"rank0.safetensors", kQkv}},
      {"bias divided by the ranks",
       Model::small,
       [](const Path& p) {
         for (uint32_t rank = 0; rank < 4; ++rank)
           edit_tensor(p, rank, "transformer.layers.1.attention.dense.bias", halve_values);
       },
       {"rank0.safetensors", "transformer.layers.1.attention.dense.bias"}},
      {"bias left out but on one rank",
       Model::small,
       [](const Path& p) {
         edit_tensor(p, 2, "transformer.layers.0.mlp.proj.bias", [](std::string& bytes) { bytes.assign(bytes.size(), '\0'); });
       },
       {"rank2.safetensors", "transformer.layers.0.mlp.proj.bias"},
       false},
      {"fc rows of gegelu not interleaved",
       Model::small,
       [](const Path& p) {
         edit_tensor(p, 1, kFc, [](std::string& bytes) {
           std::string out;
           for (const size_t parity : {0U, 1U}) {
             for (size_t row = parity; row < bytes.size() / 512; row += 2) out += bytes.substr(row * 512, 512);
           }
           bytes = out;
         });
       },
       {"rank1.safetensors", kFc}},
      {"experts in another order",
       Model::moe,
       [](const Path& p) { edit_tensor(p, 1, kFc, swap_halves); },
       {"rank1.safetensors", kFc}},
      {"expert blocks of other ranks",
       Model::moe,
       [](const Path& p) {
         swap_tensors(p, 0, "transformer.layers.0.mlp.proj.weight", 1, "transformer.layers.0.mlp.proj.weight");
       },
       {"rank0.safetensors", "transformer.layers.0.mlp.proj.weight"}},
      {"router of one rank",
       Model::moe,
       [](const Path& p) { edit_tensor(p, 3, "transformer.layers.1.mlp.router.weight", swap_halves); },
       {"rank3.safetensors", "transformer.layers.1.mlp.router.weight"}},
      {"padding rows not zero",
       Model::padded,
       [](const Path& p) { edit_tensor(p, 1, "lm_head.weight", [](std::string& bytes) { bytes[bytes.size() - 1] = 0x3C; }); },
       {"rank1.safetensors", "lm_head.weight", "element [78,127]: got"}},
      {"ranks swapped",
       Model::mini,
       [](const Path& p) {
         std::filesystem::rename(rank_path(p, 0), p / "kept");
         std::filesystem::rename(rank_path(p, 1), rank_path(p, 0));
         std::filesystem::rename(p / "kept", rank_path(p, 1));
       },
       {"rank0.safetensors", kQkv}},
      {"layers swapped",
       Model::mini,
       [](const Path& p) { swap_tensors(p, 0, kDense, 0, "transformer.layers.0.attention.dense.weight"); },
       {"rank0.safetensors", "transformer.layers.0.attention.dense.weight"}},
      {"stages swapped", Model::staged, [](const Path& p) { swap_tensors(p, 0, kFc, 1, kFc); }, {"rank0.safetensors", kFc}},
      {"norm of another layer",
       Model::mini,
       [](const Path& p) {
         swap_tensors(p, 1, "transformer.layers.0.input_layernorm.weight", 1, "transformer.layers.1.input_layernorm.weight");
       },
       {"rank1.safetensors", "transformer.layers.0.input_layernorm.weight"},
       false},
      {"embedding row",
       Model::mini,
       [](const Path& p) {
         edit_tensor(p, 1, "transformer.vocab_embedding.weight", [](std::string& bytes) { flip(bytes, 600, 0); });
       },
       {"rank1.safetensors", "transformer.vocab_embedding.weight", "element [2,44]"},
       false},
      {"scale of a channel",
       Model::baked8,
       [](const Path& p) {
         edit_tensor(p, 1, "transformer.layers.0.mlp.fc.per_channel_scale", [](std::string& b) { flip(b, 5, 3); });
       },
       {"rank1.safetensors", "transformer.layers.0.mlp.fc.per_channel_scale", "channel 2"},
       false},
      {"sign of an 8-bit value",
       Model::baked8,
       [](const Path& p) { edit_tensor(p, 0, kDense, [](std::string& bytes) { flip(bytes, 1000, 7); }); },
       {"rank0.safetensors", kDense},
       false},
      {"bit of a 4-bit value",
       Model::baked4,
       [](const Path& p) { edit_tensor(p, 1, kFc, [](std::string& bytes) { flip(bytes, 2001, 6); }); },
       {"rank1.safetensors", kFc},
       false},
  };
}

// The model of a row, exported without manifests.
std::filesystem::path make(Model model, const ScratchFolder& scratch, std::filesystem::path& checkpoint) {
  const std::filesystem::path folder = scratch.path() / "out";
  switch (model) {
    case Model::mini:
      checkpoint = trtllm_input("phi3-mini-4k");
      export_folder(checkpoint, folder, trtllm_options({2, 1, 1}));
      break;
    case Model::small:
      checkpoint = trtllm_input("phi3-small-8k");
      export_folder(checkpoint, folder, trtllm_options({4, 1, 1}));
      break;
    case Model::moe:
      checkpoint = trtllm_input("phi35-moe");
      export_folder(checkpoint, folder, trtllm_options({4, 1, 2}));
      break;
    case Model::padded:
      checkpoint = scratch.path() / "model";
      synthesize_input("phi3-mini-4k", {{"vocab_size", 157}}, checkpoint);
      export_folder(checkpoint, folder, trtllm_options({2, 1, 1}));
      break;
    case Model::staged:
      checkpoint = trtllm_input("phi3-mini-4k");
      export_folder(checkpoint, folder, trtllm_options({1, 2, 1}));
      break;
    case Model::baked8:
      checkpoint = trtllm_input("phi3-mini-4k");
      export_folder(checkpoint, folder,
                    quantised(trtllm_options({2, 1, 1}), WeightOnly::int8, QuantForm::baked, QuantLayout::sm80));
      break;
    case Model::baked4:
      checkpoint = trtllm_input("phi3-mini-4k");
      export_folder(checkpoint, folder,
                    quantised(trtllm_options({2, 1, 1}), WeightOnly::int4, QuantForm::baked, QuantLayout::sm80));
      break;
  }
  return folder;
}

TEST(VerifyTrtllm, FindsEveryFaultAndNamesFileAndTensor) {
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.what);
    const ScratchFolder scratch;
    VerifyTrtllmOptions options;
    std::filesystem::path checkpoint;
    const std::filesystem::path folder = make(fault.model, scratch, checkpoint);
    fault.apply(folder);
    options.checkpoint = checkpoint;
    if (fault.model == Model::baked8 || fault.model == Model::baked4) options.layout = QuantLayout::sm80;
    const VerifyTrtllmReport report = verify_trtllm(folder, options);
    ASSERT_FALSE(report.passed());
    for (const std::string& name : fault.named) EXPECT_THAT(*report.failure, HasSubstr(name));
    EXPECT_TRUE(report.blocks.empty()) << "values are compared before blocks are run";
  }
}

TEST(VerifyTrtllm, BlocksAloneFindEveryFaultOfASplit) {
  for (const Fault& fault : faults()) {
    if (!fault.in_blocks) continue;
    SCOPED_TRACE(fault.what);
    const ScratchFolder scratch;
    std::filesystem::path checkpoint;
    const std::filesystem::path folder = make(fault.model, scratch, checkpoint);
    const DecoderModel model = build_model(Checkpoint::open(checkpoint), ModelOptions{.context = 0, .leave_unused = true});
    WorkerPool pool(1);
    const auto worst = [&] {
      double most = 0;
      for (const TrtllmBlockResult& block : run_trtllm_blocks(open_trtllm_folder(folder, std::nullopt).checkpoint, model, pool)) {
        most = std::max(most, block.relative / block.allowed);
      }
      return most;
    };
    EXPECT_LE(worst(), 1.0);
    fault.apply(folder);
    EXPECT_GT(worst(), 1.0);
  }
}

TEST(VerifyTrtllm, FindsOneFlippedBitAnywhereAndNamesItsOffset) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "out";
  const std::filesystem::path checkpoint = trtllm_input("phi3-small-128k");
  export_folder(checkpoint, folder, trtllm_options({2, 1, 1}, DType::bf16));
  for (const TensorInfo& tensor : read_safetensors(InputFile::open(rank_path(folder, 1))).tensors) {
    SCOPED_TRACE(tensor.name);
    const size_t byte = (tensor.bytes * 2 / 3) | 1;
    const auto flip_it = [&](std::string& bytes) { flip(bytes, byte, 0); };
    edit_tensor(folder, 1, tensor.name, flip_it);
    const VerifyTrtllmReport report = verified(folder, checkpoint);
    ASSERT_FALSE(report.passed());
    const std::string place = "rank1.safetensors@" + std::to_string(tensor.offset + byte - 1) + ": tensor '" + tensor.name + "'";
    EXPECT_THAT(*report.failure, HasSubstr(place));
    edit_tensor(folder, 1, tensor.name, flip_it);
  }
  EXPECT_TRUE(verified(folder, checkpoint).passed());
}

TEST(VerifyTrtllm, HoldsFilesAgainstTheirManifestsFirst) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "out";
  export_folder(trtllm_input("phi3-mini-4k"), folder,
                quantised(trtllm_options({2, 1, 1}), WeightOnly::int8, QuantForm::baked, QuantLayout::sm90), true);
  const VerifyTrtllmReport good = verify_trtllm(folder, {});
  EXPECT_TRUE(good.passed());
  EXPECT_EQ(good.quantisation, "int8 baked sm90") << "the layout is in the manifest";
  EXPECT_GT(good.digests_checked, 0U);
  EXPECT_EQ(good.tensors_compared, 0U);
  // One step up: within what the values are allowed.
  edit_tensor(folder, 1, kDense, [](std::string& bytes) { flip(bytes, 77, 0); });
  const VerifyTrtllmReport bad = verify_trtllm(folder, {});
  ASSERT_FALSE(bad.passed());
  EXPECT_THAT(*bad.failure, AllOf(HasSubstr("rank1.safetensors"), HasSubstr(kDense), HasSubstr("digest")));
}

TEST(VerifyTrtllm, NamesTheFieldsOfConfigJsonThatDiffer) {
  struct Case {
    const char* from;
    const char* to;
    const char* named;
  };
  const Case cases[] = {
      {"\"norm_epsilon\": 1e-05", "\"norm_epsilon\": 1e-06", "field 'norm_epsilon': got 1e-06, expected 1e-05"},
      {"\"rotary_base\": 10000.0", "\"rotary_base\": 10000", "field 'rotary_base': got 10000, expected 10000.0"},
      {"\"gpus_per_node\": 8", "\"gpus_per_node\": 4", "field 'mapping.gpus_per_node': got 4, expected 8"},
      {"\"rope_gpt_neox\"", "\"learned_absolute\"", "field 'position_embedding_type'"},
      {"\"logits_dtype\": \"float32\",", "", "field 'logits_dtype': got none"},
      {"\"Phi3ForCausalLM\"", "\"Phi4MMForCausalLM\"", "field 'architecture': got 'Phi4MMForCausalLM'"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.to);
    const ScratchFolder scratch;
    const std::filesystem::path folder = scratch.path() / "out";
    export_folder(trtllm_input("phi3-mini-4k"), folder, trtllm_options({}));
    std::string text = read_text_file(folder / "config.json");
    const size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, std::strlen(c.from), c.to);
    std::ofstream(folder / "config.json") << text;
    const VerifyTrtllmReport report = verified(folder, trtllm_input("phi3-mini-4k"));
    ASSERT_FALSE(report.passed());
    EXPECT_THAT(*report.failure, AllOf(HasSubstr("config.json"), HasSubstr(c.named)));
  }
}

TEST(VerifyTrtllm, TakesFieldsThatLoadersIgnoreAndOtherSpellingsAsNotes) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "out";
  export_folder(trtllm_input("phi3-mini-4k"), folder, trtllm_options({}, DType::f16, TrtllmFormat::v0_12));
  const std::string text = read_text_file(folder / "config.json");
  std::ofstream(folder / "config.json") << "{\"position_embedding_type\": \"rope_gpt_neox\"," << text.substr(1);
  const VerifyTrtllmReport added = verified(folder, trtllm_input("phi3-mini-4k"));
  EXPECT_TRUE(added.passed()) << added.failure.value_or("");
  EXPECT_THAT(added.notes, testing::Contains(HasSubstr("'position_embedding_type'")));
  std::ofstream(folder / "config.json") << write_json(parse_json(text, "config.json"), 0);
  const VerifyTrtllmReport spelled = verified(folder, trtllm_input("phi3-mini-4k"));
  EXPECT_TRUE(spelled.passed());
  EXPECT_THAT(spelled.notes, testing::Contains(HasSubstr("another spelling")));
}

TEST(VerifyTrtllm, RefusesAMappingThatTheRankFilesDoNotHave) {
  struct Case {
    const char* tensor;
    const char* world;
    ErrorCode code;
    const char* named;
  };
  const Case cases[] = {{"\"tp_size\": 1", "\"world_size\": 1", ErrorCode::shape_mismatch, "attention.qkv.weight"},
                        {"\"tp_size\": 4", "\"world_size\": 4", ErrorCode::file_missing, "rank2.safetensors"},
                        {"\"tp_size\": 3", "\"world_size\": 3", ErrorCode::shard_indivisible, "tp_size"}};
  for (const Case& c : cases) {
    const ScratchFolder scratch;
    const std::filesystem::path folder = scratch.path() / "out";
    export_folder(trtllm_input("phi3-mini-4k"), folder, trtllm_options({2, 1, 1}, DType::f16, TrtllmFormat::v0_12));
    std::string text = read_text_file(folder / "config.json");
    text.replace(text.find("\"tp_size\": 2"), 12, c.tensor);
    text.replace(text.find("\"world_size\": 2"), 15, c.world);
    std::ofstream(folder / "config.json") << text;
    EXPECT_THAT([&] { verified(folder, trtllm_input("phi3-mini-4k")); }, Fails(c.code, HasSubstr(c.named)));
  }
}

TEST(VerifyTrtllm, AsksForTheLayoutThatNothingNames) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "out";
  const auto options = quantised(trtllm_options({}), WeightOnly::int8, QuantForm::baked, QuantLayout::sm80);
  export_folder(trtllm_input("phi3-mini-4k"), folder, options);
  EXPECT_THAT([&] { verify_trtllm(folder, {}); }, Fails(ErrorCode::usage, HasSubstr("--layout")));
  export_folder(trtllm_input("phi3-mini-4k"), folder, options, true);
  VerifyTrtllmOptions other;
  other.layout = QuantLayout::plain;
  EXPECT_THAT([&] { verify_trtllm(folder, other); },
              Fails(ErrorCode::usage, AllOf(HasSubstr("'plain'"), HasSubstr("'sm80'"), HasSubstr("rank0.manifest.json"))));
}

TEST(VerifyTrtllm, ReportsTheSameWhateverTheNumberOfThreads) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "out";
  export_folder(trtllm_input("phi35-moe"), folder, trtllm_options({2, 1, 1}));
  for (uint32_t rank = 0; rank < 2; ++rank) edit_tensor(folder, rank, kFc, swap_halves);
  std::vector<std::string> failures;
  for (const uint32_t threads : {1U, 2U, 8U}) {
    VerifyTrtllmOptions options;
    options.checkpoint = trtllm_input("phi35-moe");
    options.threads = threads;
    failures.push_back(verify_trtllm(folder, options).failure.value_or("passed"));
  }
  EXPECT_THAT(failures, testing::Each(HasSubstr("rank0.safetensors")));
  EXPECT_EQ(failures[0], failures[1]);
  EXPECT_EQ(failures[0], failures[2]);
}

}  // namespace
}  // namespace transload
