// The way back from TensorRT-LLM: the import of an export has the checkpoint's tensors, and exports to the same bytes.
#include "transload/import_trtllm.h"

#include <gmock/gmock.h>

#include <map>

#include "error_matchers.h"
#include "export/trtllm_folder_fixture.h"
#include "transload/decoder_model.h"

namespace transload {
namespace {

using testing::HasSubstr;

std::string bytes_of(const TensorInfo& tensor) {
  std::string bytes(tensor.bytes, '\0');
  tensor.file->read_at(tensor.offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

ImportTrtllmOptions plain_options(uint32_t shards = 0) {
  ImportTrtllmOptions options;
  options.shards = shards;
  options.overwrite = true;
  return options;
}

struct Case {
  const char* input;
  TrtllmOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const Split splits[] = {{1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {4, 1, 1}};
  for (const std::string& name : trtllm_inputs()) {
    for (const Split& split : splits) {
      if (split.pipeline > 1 && name == "phi3-small-128k") continue;  // one layer
      list.push_back({name.c_str(), trtllm_options(split, split.tensor == 2 ? DType::bf16 : DType::f16)});
    }
    if (name != "phi35-moe") list.push_back({name.c_str(), trtllm_options({2, 1, 1}, DType::f32, TrtllmFormat::v0_12)});
  }
  list.push_back({"phi35-moe", trtllm_options({2, 1, 2})});
  list.push_back({"phi35-moe", trtllm_options({4, 2, 2}, DType::bf16)});
  list.push_back({"phi35-moe", trtllm_options({4, 1, 4}, DType::f32)});
  list.push_back({"phi3-small-8k", quantised(trtllm_options({8, 1, 1}), WeightOnly::int8, QuantForm::deferred)});
  list.push_back({"phi4-mini",
                  quantised(trtllm_options({2, 1, 1}, DType::bf16, TrtllmFormat::v0_12), WeightOnly::int4, QuantForm::deferred)});
  return list;
}

TEST(ImportTrtllm, ExportsToTheSameRankFilesAndConfigAsTheCheckpointItself) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << c.input << " tp " << c.options.mapping.tensor << " pp " << c.options.mapping.pipeline
                                    << " ep " << c.options.mapping.expert << " " << trtllm_format_name(c.options.format));
    const ScratchFolder scratch;
    export_folder(trtllm_input(c.input), scratch.path() / "first", c.options);
    import_trtllm(scratch.path() / "first", scratch.path() / "model", plain_options());
    export_folder(scratch.path() / "model", scratch.path() / "second", c.options);
    EXPECT_EQ(read_text_file(scratch.path() / "first" / "config.json"),
              read_text_file(scratch.path() / "second" / "config.json"));
    for (uint32_t rank = 0; rank < c.options.mapping.world(); ++rank) {
      EXPECT_EQ(read_text_file(rank_path(scratch.path() / "first", rank)),
                read_text_file(rank_path(scratch.path() / "second", rank)))
          << "rank " << rank;
    }
  }
}

TEST(ImportTrtllm, GivesTheStoredTensorsBackBitForBit) {
  for (const std::string& name : trtllm_inputs()) {
    SCOPED_TRACE(name);
    const Checkpoint original = Checkpoint::open(trtllm_input(name));
    const DType dtype = original.tensors().front().dtype;
    const ScratchFolder scratch;
    export_folder(trtllm_input(name), scratch.path() / "ranks", trtllm_options({2, 1, 1}, dtype));
    const ImportTrtllmSummary summary = import_trtllm(scratch.path() / "ranks", scratch.path() / "model", plain_options(3));
    EXPECT_EQ(summary.shards, 3U);
    const Checkpoint imported = Checkpoint::open(scratch.path() / "model");
    EXPECT_EQ(summary.tensor_count, imported.tensors().size());
    if (name == "phi3-separate") continue;  // is written with fused names
    ASSERT_EQ(original.tensors().size(), imported.tensors().size());
    for (const TensorInfo& tensor : original.tensors()) {
      const TensorInfo* got = imported.find_tensor(tensor.name);
      ASSERT_NE(got, nullptr) << tensor.name;
      EXPECT_EQ(got->shape, tensor.shape) << tensor.name;
      if (tensor.name.ends_with("block_sparse_moe.gate.weight")) {
        EXPECT_EQ(got->dtype, DType::f32);
        continue;
      }
      EXPECT_EQ(got->dtype, tensor.dtype) << tensor.name;
      EXPECT_TRUE(bytes_of(*got) == bytes_of(tensor)) << tensor.name;
    }
  }
}

TEST(ImportTrtllm, GivesTheFieldsOfTheConfigBackThatTheFormatKeeps) {
  for (const std::string& name : trtllm_inputs()) {
    SCOPED_TRACE(name);
    const ScratchFolder scratch;
    export_folder(trtllm_input(name), scratch.path() / "ranks", trtllm_options({}));
    import_trtllm(scratch.path() / "ranks", scratch.path() / "model", plain_options());
    const Json got = parse_json(read_text_file(scratch.path() / "model" / "config.json"), "config.json");
    const Json original = input_config(name);
    for (const auto& [key, value] : got.object()) {
      if (key == "torch_dtype" || key == "rope_scaling") continue;  // as asked for; su becomes longrope
      const Json* expected = original.find(key);
      if (key == "tie_word_embeddings" && expected == nullptr) continue;  // the small model's default
      ASSERT_NE(expected, nullptr) << key;
      EXPECT_EQ(value, *expected) << key;
    }
    EXPECT_NO_THROW(build_model(Checkpoint::open(scratch.path() / "model")));
  }
}

TEST(ImportTrtllm, KeepsALimitOrPatternThatIsNull) {
  const Json::Object cases[] = {
      {{"gegelu_limit", nullptr}},
      {{"dense_attention_every_n_layers", nullptr}},
      {{"dense_attention_every_n_layers", 1},
       {"blocksparse_block_size", nullptr},
       {"blocksparse_num_local_blocks", nullptr},
       {"blocksparse_vert_stride", nullptr}},
  };
  for (const Json::Object& fields : cases) {
    for (const TrtllmFormat format : {TrtllmFormat::v1, TrtllmFormat::v0_12}) {
      const ScratchFolder scratch;
      synthesize_input("phi3-small-8k", fields, scratch.path() / "in");
      export_folder(scratch.path() / "in", scratch.path() / "trt", trtllm_options({2, 1, 1}, DType::bf16, format));
      import_trtllm(scratch.path() / "trt", scratch.path() / "model", plain_options());
      const Json config = parse_json(read_text_file(scratch.path() / "model" / "config.json"), "config.json");
      for (const auto& [key, value] : fields) {
        ASSERT_NE(config.find(key), nullptr) << key;
        EXPECT_EQ(*config.find(key), value) << key;
      }
    }
  }
}

TEST(ImportTrtllm, WritesTheRoundedValuesOfBakedWeights) {
  const ScratchFolder scratch;
  export_folder(trtllm_input("phi3-mini-4k"), scratch.path() / "ranks",
                quantised(trtllm_options({2, 1, 1}, DType::f32), WeightOnly::int8, QuantForm::baked, QuantLayout::sm80), true);
  const ImportTrtllmSummary summary = import_trtllm(scratch.path() / "ranks", scratch.path() / "model", plain_options());
  EXPECT_THAT(summary.warnings, testing::Contains(HasSubstr("int8 baked sm80")));
  const Checkpoint original = Checkpoint::open(trtllm_input("phi3-mini-4k"));
  const Checkpoint imported = Checkpoint::open(scratch.path() / "model");
  const TensorInfo& before = *original.find_tensor("model.layers.1.self_attn.qkv_proj.weight");
  const TensorInfo& after = *imported.find_tensor(before.name);
  const std::string stored = bytes_of(before);
  const std::string rounded = bytes_of(after);
  const uint64_t columns = before.shape[1];
  for (uint64_t row = 0; row < before.shape[0]; ++row) {
    std::vector<float> expected(columns);
    std::vector<float> got(columns);
    std::memcpy(got.data(), rounded.data() + row * columns * 4, columns * 4);
    float largest = 0;
    for (uint64_t i = 0; i < columns; ++i) {
      uint32_t bits = static_cast<uint8_t>(stored[(row * columns + i) * 2]) |
                      static_cast<uint32_t>(static_cast<uint8_t>(stored[(row * columns + i) * 2 + 1])) << 8;
      bits <<= 16;
      std::memcpy(&expected[i], &bits, 4);
      largest = std::max(largest, std::abs(expected[i]));
    }
    for (uint64_t i = 0; i < columns; ++i) ASSERT_LE(std::abs(expected[i] - got[i]), largest / 128) << row << "," << i;
  }
}

TEST(ImportTrtllm, WritesNothingInADryRunAndCountsTheSame) {
  const ScratchFolder scratch;
  export_folder(trtllm_input("phi3-small-8k"), scratch.path() / "ranks", trtllm_options({4, 1, 1}));
  ImportTrtllmOptions options;
  options.dry_run = true;
  const ImportTrtllmSummary dry = import_trtllm(scratch.path() / "ranks", scratch.path() / "model", options);
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "model"));
  options.dry_run = false;
  EXPECT_EQ(import_trtllm_json(import_trtllm(scratch.path() / "ranks", scratch.path() / "model", options)),
            import_trtllm_json(dry));
}

TEST(ImportTrtllm, RefusesALayoutThatNobodyNamesAndADestinationThatIsTheSource) {
  const ScratchFolder scratch;
  const std::filesystem::path ranks = scratch.path() / "ranks";
  export_folder(trtllm_input("phi3-mini-4k"), ranks, quantised(trtllm_options({}), WeightOnly::int8, QuantForm::baked));
  EXPECT_THAT([&] { import_trtllm(ranks, scratch.path() / "model", plain_options()); },
              Fails(ErrorCode::usage, HasSubstr("--layout")));
  EXPECT_THAT([&] { import_trtllm(ranks, ranks, plain_options()); }, Fails(ErrorCode::usage, HasSubstr("ranks")));
}

TEST(ImportTrtllm, SaysWhatFormat012DoesNotKeep) {
  const ScratchFolder scratch;
  export_folder(trtllm_input("phi3-small-8k"), scratch.path() / "ranks", trtllm_options({}, DType::f16, TrtllmFormat::v0_12));
  const ImportTrtllmSummary summary = import_trtllm(scratch.path() / "ranks", scratch.path() / "model", plain_options());
  EXPECT_THAT(summary.warnings, testing::Contains(HasSubstr("layer_norm_epsilon")));
  // How much of a head turns follows from the number of factors.
  export_folder(trtllm_input("phi4-mini"), scratch.path() / "ranks", trtllm_options({}, DType::f16, TrtllmFormat::v0_12));
  import_trtllm(scratch.path() / "ranks", scratch.path() / "model", plain_options());
  const Json config = parse_json(read_text_file(scratch.path() / "model" / "config.json"), "config.json");
  EXPECT_EQ(*config.find("partial_rotary_factor"), Json(0.75));
}

}  // namespace
}  // namespace transload
