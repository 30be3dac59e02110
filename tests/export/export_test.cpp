// The pipelines through the public API: bundles whole or absent, exact dry runs, equal bytes for any worker count, synth,
// inspect.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "error_matchers.h"
#include "io/file.h"
#include "io/json.h"
#include "transload/export_onnx.h"
#include "transload/inspect.h"
#include "transload/synth.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path golden(const std::string& name) { return fs::path(TRANSLOAD_TEST_DATA) / "decoders" / name; }

class Export : public testing::Test {
 protected:
  Export() {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::temp_directory_path() / ("transload_export_" + test + "_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Export() override { fs::remove_all(folder_); }

  std::map<std::string, std::string> contents(const fs::path& bundle) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::directory_iterator(bundle)) {
      std::ifstream in(entry.path(), std::ios::binary);
      std::stringstream bytes;
      bytes << in.rdbuf();
      out[entry.path().filename()] = bytes.str();
    }
    return out;
  }
  // No staging folder stays behind.
  size_t entries() { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator())); }

  fs::path folder_;
};

ExportOnnxOptions small_options() {
  ExportOnnxOptions options;
  options.contexts = {16, 32};
  options.queries = {1, 4};
  return options;
}

TEST_F(Export, WritesOneGraphForEachPairAndOneWeightFile) {
  const ExportSummary summary = export_onnx(Checkpoint::open(golden("spark")), folder_ / "out", small_options());
  const auto files = contents(folder_ / "out");
  for (const char* name : {"step_q1_c16.onnx", "step_q4_c16.onnx", "step_q1_c32.onnx", "step_q4_c32.onnx", "weights.bin",
                           "contract.json", "host.safetensors", "manifest.json", "config.json", "generation_config.json"}) {
    EXPECT_TRUE(files.contains(name)) << name;
  }
  EXPECT_EQ(summary.tensor_count, 34U);
  EXPECT_EQ(summary.files.size(), files.size());
  for (const FileSummary& file : summary.files) EXPECT_EQ(file.bytes, files.at(file.name).size()) << file.name;
  EXPECT_EQ(entries(), 1U);
}

TEST_F(Export, DryRunForecastsEveryByteAndWritesNothing) {
  ExportOnnxOptions options = small_options();
  const Checkpoint checkpoint = Checkpoint::open(golden("spark"));
  options.dry_run = true;
  const ExportSummary forecast = export_onnx(checkpoint, folder_ / "out", options);
  EXPECT_EQ(entries(), 0U);
  options.dry_run = false;
  const ExportSummary real = export_onnx(checkpoint, folder_ / "out", options);
  EXPECT_EQ(forecast.total_bytes, real.total_bytes);
  ASSERT_EQ(forecast.files.size(), real.files.size());
  for (size_t i = 0; i < real.files.size(); ++i) EXPECT_EQ(forecast.files[i].bytes, real.files[i].bytes) << real.files[i].name;
}

TEST_F(Export, BytesDoNotDependOnWorkersOrRun) {
  for (const char* name : {"spark_3shard_fp32", "gemma3", "llama_gguf_q8_0/model.gguf"}) {
    for (const LinearForm linear : {LinearForm::gemm, LinearForm::matmul}) {
      ExportOnnxOptions options = small_options();
      options.step.linear = linear;
      options.step.weights = DType::f16;
      options.overwrite = true;
      options.workers = 1;
      export_onnx(Checkpoint::open(golden(name)), folder_ / "one", options);
      options.workers = 4;
      export_onnx(Checkpoint::open(golden(name)), folder_ / "four", options);
      EXPECT_EQ(contents(folder_ / "one"), contents(folder_ / "four")) << name;
    }
  }
}

TEST_F(Export, EmbeddingPlaceHoldsTheRows) {
  // Tied gemm head: inside weights.bin; transposed or absent head: in host.safetensors. The bytes are equal.
  const Checkpoint checkpoint = Checkpoint::open(golden("spark_3shard_fp32"));
  std::map<std::string, std::string> rows;
  for (const auto& [name, linear, head, file] : {std::tuple{"gemm", LinearForm::gemm, true, "weights.bin"},
                                                 std::tuple{"matmul", LinearForm::matmul, true, "host.safetensors"},
                                                 std::tuple{"conv", LinearForm::conv1x1, true, "weights.bin"},
                                                 std::tuple{"no_head", LinearForm::gemm, false, "host.safetensors"}}) {
    ExportOnnxOptions options = small_options();
    options.step.linear = linear;
    options.step.head = head;
    export_onnx(checkpoint, folder_ / name, options);
    const auto files = contents(folder_ / name);
    const Json contract = parse_json(files.at("contract.json"), "contract.json");
    const Json& place = *contract.find("embedding");
    ASSERT_EQ(place.find("file")->string(), file) << name;
    const auto offset = static_cast<size_t>(place.find("offset")->integer());
    rows[name] = files.at(file).substr(offset, 256 * 64 * 4);
  }
  const TensorInfo& stored = *checkpoint.find_tensor("model.embedding.weight");
  std::string expected(stored.bytes, '\0');
  stored.file->read_at(stored.offset, std::as_writable_bytes(std::span(expected)));
  for (const auto& [name, bytes] : rows) EXPECT_EQ(bytes, expected) << name;
}

TEST_F(Export, RefusesADestinationThatExistsUnlessOverwriting) {
  const Checkpoint checkpoint = Checkpoint::open(golden("spark"));
  export_onnx(checkpoint, folder_ / "out", small_options());
  const auto before = contents(folder_ / "out");
  EXPECT_THAT([&] { export_onnx(checkpoint, folder_ / "out", small_options()); },
              Fails(ErrorCode::destination_exists, HasSubstr("out")));
  EXPECT_EQ(contents(folder_ / "out"), before);
  ExportOnnxOptions options = small_options();
  options.overwrite = true;
  options.contexts = {8};
  export_onnx(checkpoint, folder_ / "out", options);
  EXPECT_TRUE(contents(folder_ / "out").contains("step_q1_c8.onnx"));
  EXPECT_EQ(entries(), 1U);
}

TEST_F(Export, RefusesToReplaceTheCheckpointItself) {
  fs::copy(golden("spark"), folder_ / "checkpoint");
  ExportOnnxOptions options = small_options();
  options.overwrite = true;
  for (const fs::path& destination :
       {folder_ / "checkpoint", folder_, folder_ / "checkpoint" / ".." / "checkpoint", folder_ / "checkpoint" / "", fs::path()}) {
    EXPECT_THAT([&] { export_onnx(Checkpoint::open(folder_ / "checkpoint"), destination, options); },
                Fails(ErrorCode::usage, HasSubstr("expected a folder")));
  }
  EXPECT_NO_THROW(export_onnx(Checkpoint::open(folder_ / "checkpoint"), folder_ / "checkpoint" / "onnx", options));
}

TEST_F(Export, RefusesContextsAndQueriesGivenTwice) {
  ExportOnnxOptions options = small_options();
  options.contexts = {16, 16};
  EXPECT_THAT([&] { export_onnx(Checkpoint::open(golden("spark")), folder_ / "out", options); },
              Fails(ErrorCode::usage, HasSubstr("context given twice: got 16")));
}

TEST_F(Export, DefaultContextStaysInsideTheModel) {
  ExportOnnxOptions options;
  options.dry_run = true;
  EXPECT_EQ(export_onnx(Checkpoint::open(golden("spark")), folder_ / "out", options).kv.front().context, 1024U);
  EXPECT_EQ(export_onnx(Checkpoint::open(golden("llama")), folder_ / "out", options).kv.front().context, 256U);
}

// Hub caches keep the files elsewhere and a folder of links to them: the folder must not be replaced either.
TEST_F(Export, RefusesToReplaceAFolderOfLinksToTheCheckpoint) {
  fs::create_directories(folder_ / "hub" / "snapshot");
  for (const auto& entry : fs::directory_iterator(golden("spark"))) {
    fs::create_symlink(entry.path(), folder_ / "hub" / "snapshot" / entry.path().filename());
  }
  fs::create_directory_symlink(folder_ / "hub", folder_ / "link");
  ExportOnnxOptions options = small_options();
  options.overwrite = true;
  for (const fs::path& destination :
       {folder_ / "hub" / "snapshot", folder_ / "hub", folder_ / "link" / "snapshot", folder_ / "link"}) {
    EXPECT_THAT([&] { export_onnx(Checkpoint::open(folder_ / "hub" / "snapshot"), destination, options); },
                Fails(ErrorCode::usage, HasSubstr("expected a folder")))
        << destination;
  }
  EXPECT_TRUE(fs::exists(folder_ / "hub" / "snapshot" / "config.json"));
}

TEST_F(Export, CarriesTheConfigThatWasRead) {
  const fs::path other = golden("llama") / "config_v4.json";
  export_onnx(Checkpoint::open(golden("llama"), other), folder_ / "out", small_options());
  EXPECT_EQ(contents(folder_ / "out").at("config.json"), read_text_file(other));
}

// A copy of the float32 golden with two values of one tensor replaced: NaN and a number beyond f16.
fs::path poisoned(const fs::path& folder, const std::string& name) {
  fs::copy(golden("spark_3shard_fp32"), folder / "poisoned");
  const Checkpoint checkpoint = Checkpoint::open(folder / "poisoned");
  const TensorInfo& tensor = *checkpoint.find_tensor(name);
  std::fstream file(tensor.file->path(), std::ios::binary | std::ios::in | std::ios::out);
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), 70000.0F};
  file.seekp(static_cast<std::streamoff>(tensor.offset));
  file.write(reinterpret_cast<const char*>(values), sizeof values);
  return folder / "poisoned";
}

TEST_F(Export, CountsNanAndOverflowAndStrictRefusesThem) {
  const Checkpoint checkpoint = Checkpoint::open(poisoned(folder_, "model.layers.1.mlp.up_proj.weight"));
  ExportOnnxOptions options = small_options();
  options.step.weights = DType::f16;
  const ExportSummary summary = export_onnx(checkpoint, folder_ / "out", options);
  ASSERT_EQ(summary.numeric_warnings.size(), 1U);
  EXPECT_EQ(summary.numeric_warnings[0].tensor, "layers_1_mlp_up_weight");
  EXPECT_EQ(summary.numeric_warnings[0].sources, std::vector<std::string>{"model.layers.1.mlp.up_proj.weight"});
  EXPECT_EQ(summary.numeric_warnings[0].nan_count, 1U);
  EXPECT_EQ(summary.numeric_warnings[0].overflow_count, 1U);
  options.strict = true;
  EXPECT_THAT([&] { export_onnx(checkpoint, folder_ / "strict", options); },
              Fails(ErrorCode::numeric_fault, HasSubstr("layers_1_mlp_up_weight")));
  EXPECT_FALSE(fs::exists(folder_ / "strict"));
}

TEST_F(Export, CountsNanInTensorsStoredInsideTheGraphs) {
  const Checkpoint checkpoint = Checkpoint::open(poisoned(folder_, "model.layers.0.input_layernorm.weight"));
  ExportOnnxOptions options = small_options();
  options.dry_run = true;
  const ExportSummary summary = export_onnx(checkpoint, folder_ / "out", options);
  ASSERT_EQ(summary.numeric_warnings.size(), 1U);
  EXPECT_EQ(summary.numeric_warnings[0].sources, std::vector<std::string>{"model.layers.0.input_layernorm.weight"});
  options.dry_run = false;
  options.strict = true;
  EXPECT_THAT([&] { export_onnx(checkpoint, folder_ / "strict", options); },
              Fails(ErrorCode::numeric_fault, HasSubstr("model.layers.0.input_layernorm.weight")));
}

TEST_F(Export, CountsOnlyTheTensorsOfTheSlice) {
  ExportOnnxOptions options = small_options();
  options.dry_run = true;
  options.step.head = false;
  options.step.layers = {LayerRange::Kind::sliding, 0, 0};
  // Eight of the layer, and the embedding rows for the host.
  EXPECT_EQ(export_onnx(Checkpoint::open(golden("spark")), folder_ / "out", options).tensor_count, 9U);
}

TEST_F(Export, ExplainShowsGraphsRecipesAndPieces) {
  ExportOnnxOptions options = small_options();
  options.explain = options.dry_run = true;
  const std::string text = export_onnx(Checkpoint::open(golden("spark")), folder_ / "out", options).explanation;
  for (const char* part : {"step_q4_c32", "layers_3_out", "model.layers.0.self_attn.q_k_v_proj.weight", "weights.bin"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(Export, SynthWritesWhatTheConfigAsksFor) {
  SynthOptions options;
  options.seed = 7;
  options.shards = 3;
  options.workers = 1;
  const SynthSummary summary = synthesize(golden("gemma3"), folder_ / "one", options);
  EXPECT_EQ(summary.shards, 3U);
  options.workers = 4;
  synthesize(golden("gemma3") / "config.json", folder_ / "four", options);
  EXPECT_EQ(contents(folder_ / "one"), contents(folder_ / "four"));
  const Inspection found = inspect(Checkpoint::open(folder_ / "one"));
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.family, "gemma3");
  EXPECT_EQ(found.tensor_count, summary.tensor_count);
  EXPECT_EQ(found.parameter_count, summary.parameter_count);
  options.seed = 8;
  options.overwrite = true;
  synthesize(golden("gemma3"), folder_ / "four", options);
  EXPECT_NE(contents(folder_ / "one"), contents(folder_ / "four"));
}

TEST_F(Export, SparseSynthHasFullLengthWithoutBlocks) {
  SynthOptions options;
  options.sparse = true;
  const SynthSummary summary = synthesize(fs::path(TRANSLOAD_TEST_DATA) / "configs" / "spark-x2.5-4b", folder_ / "big", options);
  EXPECT_EQ(summary.tensor_count, 290U);
  EXPECT_EQ(summary.parameter_count, 4'112'079'360U);
  const Checkpoint checkpoint = Checkpoint::open(folder_ / "big");
  EXPECT_EQ(checkpoint.tensor_bytes_total(), 8'224'158'720U);
  ExportOnnxOptions export_options;
  export_options.dry_run = true;
  const ExportSummary forecast = export_onnx(checkpoint, folder_ / "out", export_options);
  EXPECT_EQ(forecast.tensor_count, 290U);
  EXPECT_GT(forecast.total_bytes, 16'448'317'440U);  // fp32
}

TEST_F(Export, DryRunOfAModelOf84GigabytesReadsHeadersOnly) {
  const fs::path small = fs::path(TRANSLOAD_TEST_DATA) / "configs" / "llama-3.2-1b" / "config.json";
  Json config = parse_json(read_text_file(small), "config.json");
  for (const auto& [field, value] :
       {std::pair{"hidden_size", 8192}, std::pair{"intermediate_size", 28672}, std::pair{"head_dim", 128},
        std::pair{"num_attention_heads", 64}, std::pair{"num_hidden_layers", 48}}) {
    config.set(field, value);
  }
  fs::create_directories(folder_ / "config");
  std::ofstream(folder_ / "config" / "config.json") << write_json(config);
  SynthOptions options;
  options.sparse = true;
  const SynthSummary summary = synthesize(folder_ / "config", folder_ / "huge", options);
  EXPECT_GT(summary.total_bytes, 84'000'000'000U);
  EXPECT_GT(summary.shards, 20U);
  ExportOnnxOptions export_options;
  export_options.dry_run = true;
  export_options.step.weights = DType::f16;
  export_options.contexts = {1024, 8192};
  export_options.queries = {1, 128};
  const ExportSummary forecast = export_onnx(Checkpoint::open(folder_ / "huge"), folder_ / "out", export_options);
  EXPECT_EQ(forecast.tensor_count, summary.tensor_count);
  EXPECT_GT(forecast.total_bytes, 84'000'000'000U);
  for (const FileSummary& file : forecast.files) {
    if (file.name.ends_with(".onnx")) {
      EXPECT_LT(file.bytes, 4'000'000U) << file.name;
    }
  }
}

TEST_F(Export, InspectDescribesHybridModelsAndNamesProblems) {
  const Inspection spark = inspect(Checkpoint::open(golden("spark_3shard_fp32")));
  EXPECT_EQ(spark.layers, 6U);
  EXPECT_EQ(spark.layer_pattern, "SSSFSS");
  EXPECT_EQ(spark.window, 8U);
  EXPECT_TRUE(spark.tied_head);
  EXPECT_THAT(inspection_json(spark), HasSubstr("\"layer_pattern\": \"SSSFSS\""));

  fs::copy(golden("spark"), folder_ / "odd");
  Json config = parse_json(read_text_file(folder_ / "odd" / "config.json"), "config.json");
  config.set("attention_sinks_of_tomorrow", 4);
  std::ofstream(folder_ / "odd" / "config.json") << write_json(config);
  const Inspection odd = inspect(Checkpoint::open(folder_ / "odd"));
  EXPECT_EQ(odd.unknown_fields, std::vector<std::string>{"attention_sinks_of_tomorrow"});
  EXPECT_EQ(odd.family, "spark");
  EXPECT_THAT(odd.problem, HasSubstr("attention_sinks_of_tomorrow"));
}

}  // namespace
}  // namespace transload
