// Verification through the public API and its parts: differences, digests, schedules, reports. tests/python/test_mutations.py has
// the faults.
#include "transload/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "error_matchers.h"
#include "export/verify_compare.h"
#include "export/verify_digests.h"
#include "export/verify_schedule.h"
#include "io/file.h"
#include "io/json.h"
#include "io/scratch_folder.h"
#include "transload/export_onnx.h"
#include "transload/kv_cache.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path golden(const std::string& name) { return fs::path(TRANSLOAD_TEST_DATA) / "decoders" / name; }

fs::path write_bundle(const ScratchFolder& scratch, const std::string& name, ExportOnnxOptions options) {
  export_onnx(Checkpoint::open(golden(name)), scratch.path() / "bundle", options);
  return scratch.path() / "bundle";
}

ExportOnnxOptions small_options() {
  ExportOnnxOptions options;
  options.contexts = {32};
  options.queries = {1, 4};
  return options;
}

void flip_byte(const fs::path& file, uint64_t offset) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
}

TEST(DifferenceSum, MeasuresWhatItsDefinitionsSay) {
  DifferenceSum sum;
  const float got[] = {1.0F, -2.5F, 0.0F};
  const float expected[] = {1.0F, -2.0F, 0.0F};
  sum.add(got, expected);
  const Difference difference = sum.result();
  EXPECT_DOUBLE_EQ(difference.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(difference.scale, 2.0);
  EXPECT_DOUBLE_EQ(difference.relative(), 0.25);
  EXPECT_NEAR(difference.sqnr_db, 10 * std::log10(5.0 / 0.25), 1e-12);
  EXPECT_NEAR(difference.cosine, 6.0 / std::sqrt(5.0 * 7.25), 1e-12);
}

TEST(DifferenceSum, EqualValuesHaveNoNoiseAndZerosAreEqual) {
  DifferenceSum sum;
  const float zeros[] = {0.0F, 0.0F};
  sum.add(zeros, zeros);
  EXPECT_EQ(sum.result().relative(), 0.0);
  EXPECT_EQ(sum.result().sqnr_db, std::numeric_limits<double>::infinity());
  EXPECT_EQ(sum.result().cosine, 1.0);
}

TEST(DifferenceSum, CountsWhatIsNotFiniteAndStillJudgesTheRest) {
  DifferenceSum sum;
  const float got[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3.0F};
  const float expected[] = {1.0F, 1.0F, 3.0F};
  sum.add(got, expected);
  EXPECT_EQ(sum.result().not_finite, 2U);
  EXPECT_EQ(sum.result().max_abs, 0.0);
  EXPECT_FALSE((Tolerance{1.0, 0}.holds(sum.result())));
}

TEST(DifferenceSum, PartsAddUpToTheWhole) {
  const float got[] = {1.0F, 2.25F, -3.0F, 0.5F};
  const float expected[] = {1.0F, 2.0F, -3.5F, 0.5F};
  DifferenceSum whole;
  whole.add(got, expected);
  DifferenceSum first;
  DifferenceSum second;
  first.add(std::span(got).first(1), std::span(expected).first(1));
  second.add(std::span(got).subspan(1), std::span(expected).subspan(1));
  first.add(second);
  EXPECT_EQ(first.result().max_abs, whole.result().max_abs);
  EXPECT_EQ(first.result().sqnr_db, whole.result().sqnr_db);
  EXPECT_EQ(first.result().cosine, whole.result().cosine);
}

TEST(HeadSum, KlAndTopTokensAgreeWithASlowComputation) {
  const float got_row[] = {1.0F, 2.0F, 0.5F, -1.0F, 3.0F, 0.0F};
  const float expected_row[] = {1.0F, 2.5F, 0.5F, -2.0F, 2.0F, 0.0F};
  HeadSum sum;
  sum.add_row(got_row, expected_row);
  sum.add_row(expected_row, expected_row);
  const std::vector<double> got(std::begin(got_row), std::end(got_row));
  const std::vector<double> expected(std::begin(expected_row), std::end(expected_row));
  double p_sum = 0;
  double q_sum = 0;
  for (size_t i = 0; i < 6; ++i) {
    p_sum += std::exp(expected[i]);
    q_sum += std::exp(got[i]);
  }
  double kl = 0;
  for (size_t i = 0; i < 6; ++i) {
    const double p = std::exp(expected[i]) / p_sum;
    kl += p * std::log(p / (std::exp(got[i]) / q_sum));
  }
  const HeadResult result = sum.result();
  EXPECT_NEAR(result.max_kl, kl, 1e-12);
  EXPECT_NEAR(result.mean_kl, kl / 2, 1e-12);
  EXPECT_EQ(result.rows, 2U);
  EXPECT_EQ(result.top1_equal, 1U);
  EXPECT_DOUBLE_EQ(result.top5_overlap, 1.0);
}

// A row that cancels to almost nothing is held against what such rows usually are, a massive one against itself.
TEST(RowCloseness, UsesTheLargerOfItsOwnAndTheTypicalScale) {
  const float expected[] = {1e-3F, -1e-3F};
  const float got[] = {1.1e-3F, -1e-3F};
  EXPECT_NEAR(row_closeness(got, expected, {}).relative, 0.1, 1e-6);
  EXPECT_NEAR(row_closeness(got, expected, {1.0, 1.0}).relative, 1e-4, 1e-8);
  EXPECT_NEAR(row_closeness(got, expected, {1.0, 1.0}).sqnr_db, 10 * std::log10(2.0 / 1e-8), 1e-3);
  const float large[] = {100.0F, 0.0F};
  const float near[] = {101.0F, 0.0F};
  EXPECT_NEAR(row_closeness(near, large, {1.0, 1.0}).relative, 0.01, 1e-9);
}

TEST(RowCloseness, TypicalRowsAreMedians) {
  const TypicalRow typical = typical_row({{1e6, 1e9}, {2.0, 3.0}, {1e-6, 1e-9}});
  EXPECT_EQ(typical.scale, 2.0);
  EXPECT_EQ(typical.mean_square, 3.0);
}

TEST(RowCloseness, RowsBelowTheNormalRangeOfF16AreJudgedAtItsEdge) {
  const TypicalRow tiny{3e-7, 9e-14};
  EXPECT_EQ(in_normal_range(tiny, DType::f32).scale, tiny.scale);
  EXPECT_EQ(in_normal_range(tiny, DType::f16).scale, 0x1p-14);
  EXPECT_EQ(in_normal_range(tiny, DType::f16).mean_square, 0x1p-28);
  EXPECT_EQ(in_normal_range({2, 1}, DType::f16).scale, 2);
  // Half a step of the smallest f16 values, which no f16 graph can help.
  const float expected[] = {3e-7F};
  const float got[] = {3e-7F + 0x1p-25F};
  EXPECT_TRUE(
      default_tolerance(VerifyPrecision::f16_compute).holds(row_closeness(got, expected, in_normal_range(tiny, DType::f16))));
  EXPECT_FALSE(default_tolerance(VerifyPrecision::f16_compute).holds(row_closeness(got, expected, tiny)));
}

TEST(Digests, LayerNumbersComeFromNames) {
  EXPECT_EQ(layer_of_name("layers_12_mlp_up_weight"), 12U);
  EXPECT_EQ(layer_of_name("layers_0_out"), 0U);
  for (const char* name : {"layers_", "layers_x_out", "layers_3", "lm_head_weight", "k_new_3", ""}) {
    EXPECT_EQ(layer_of_name(name), std::nullopt) << name;
  }
}

TEST(Digests, EveryByteOfEveryFileIsCovered) {
  ScratchFolder scratch;
  const fs::path bundle = write_bundle(scratch, "spark", small_options());
  const Manifest manifest = read_manifest(bundle);
  EXPECT_TRUE(check_digests(bundle, manifest, 2, {}).mismatches.empty());
  for (const ManifestFile& file : manifest.files) {
    for (const uint64_t offset : {uint64_t{0}, file.bytes / 2, file.bytes - 1}) {
      flip_byte(bundle / file.name, offset);
      const DigestCheck check = check_digests(bundle, manifest, 2, {});
      // weights.bin and host.safetensors end with a tensor; between tensors lies padding that nothing reads.
      ASSERT_EQ(check.mismatches.size(), 1U) << file.name << " at " << offset;
      EXPECT_EQ(check.mismatches[0].file, file.name);
      flip_byte(bundle / file.name, offset);
    }
  }
}

TEST(Digests, NamesTheTensorAndItsLayer) {
  ScratchFolder scratch;
  const fs::path bundle = write_bundle(scratch, "spark", small_options());
  const Manifest manifest = read_manifest(bundle);
  const auto tensor = std::find_if(manifest.tensors.begin(), manifest.tensors.end(),
                                   [](const ManifestTensor& t) { return t.name == "layers_2_mlp_down_weight"; });
  ASSERT_NE(tensor, manifest.tensors.end());
  flip_byte(bundle / tensor->file, tensor->offset + tensor->bytes - 1);
  VerifyOptions options;
  options.checkpoint = golden("spark");
  const VerifyReport report = verify(bundle, options);
  ASSERT_TRUE(report.failure);
  EXPECT_EQ(report.failure->tensor, "layers_2_mlp_down_weight");
  EXPECT_EQ(report.failure->layer, 2U);
  EXPECT_EQ(report.failure->file, "weights.bin");
  EXPECT_TRUE(report.steps.empty());
}

TEST(Digests, ReportTheSameForAnyNumberOfThreadsAndCountEveryByteOnce) {
  ScratchFolder scratch;
  const fs::path bundle = write_bundle(scratch, "gemma3", small_options());
  const Manifest manifest = read_manifest(bundle);
  for (const uint32_t threads : {1U, 3U}) {
    uint64_t last = 0;
    uint64_t total = 0;
    const DigestCheck check = check_digests(bundle, manifest, threads, [&](uint64_t done, uint64_t all) {
      EXPECT_GE(done, last);
      last = done;
      total = all;
    });
    EXPECT_EQ(last, total);
    EXPECT_EQ(check.bytes, total);
    EXPECT_TRUE(check.mismatches.empty());
  }
}

TEST(Digests, RefuseAManifestThatLies) {
  ScratchFolder scratch;
  const fs::path bundle = write_bundle(scratch, "spark", small_options());
  const Json good = parse_json(read_text_file(bundle / "manifest.json"), "manifest.json");
  const auto edited = [&](const char* list, size_t index, const char* field, Json value) {
    Json manifest = good;
    for (auto& [name, member] : manifest.object()) {
      if (name == list) member.array()[index].set(field, std::move(value));
    }
    return manifest;
  };
  Json other_format = good;
  other_format.set("version", 2);
  Json no_files = good;
  no_files.set("files", 3);
  const std::tuple<const char*, Json, ErrorCode, const char*> rows[] = {
      {"version", other_format, ErrorCode::config_unsupported, "version"},
      {"type", no_files, ErrorCode::config_invalid, "files"},
      {"path", edited("files", 0, "file", "../step_q1_c32.onnx"), ErrorCode::config_invalid, "plain file name"},
      {"size", edited("files", 0, "bytes", -1), ErrorCode::config_invalid, "at least 0"},
      {"digest", edited("tensors", 0, "xxh3_128", "12AB"), ErrorCode::config_invalid, "32 lower-case hex digits"},
      {"outside", edited("tensors", 0, "offset", int64_t{1} << 60), ErrorCode::config_invalid, "outside its file"},
      {"unlisted", edited("tensors", 0, "file", "other.bin"), ErrorCode::config_invalid, "not among the files"}};
  for (const auto& [what, manifest, code, text] : rows) {
    scratch.write("bundle/manifest.json", write_json(manifest));
    EXPECT_THAT([&] { read_manifest(bundle); }, Fails(code, HasSubstr(text))) << what;
  }
  fs::remove(bundle / "manifest.json");
  EXPECT_THAT([&] { read_manifest(bundle); }, Fails(ErrorCode::file_missing, HasSubstr("manifest.json")));
}

TEST(Verify, WithoutACheckpointSaysThatOnlyDigestsAndStructureWereVerified) {
  ScratchFolder scratch;
  const VerifyReport report = verify(write_bundle(scratch, "llama", small_options()), {});
  EXPECT_TRUE(report.passed());
  EXPECT_GT(report.digests_checked, 20U);
  EXPECT_EQ(report.graphs, 2U);
  EXPECT_THAT(verify_report_text(report), HasSubstr("digests and structure only: give --checkpoint"));
  VerifyOptions options;
  options.steps = 3;
  EXPECT_THAT([&] { verify(scratch.path() / "bundle", options); }, Fails(ErrorCode::usage, HasSubstr("--checkpoint")));
}

TEST(Verify, RunsEveryGraphAndCrossesAWindowByDefault) {
  ScratchFolder scratch;
  ExportOnnxOptions written = small_options();
  written.contexts = {12, 40};
  written.queries = {1, 3, 8};
  const fs::path bundle = write_bundle(scratch, "spark", written);
  VerifyOptions options;
  options.checkpoint = golden("spark");
  bool stated = false;
  options.on_forecast = [&](const VerifyForecast& forecast) { stated = forecast.total() > forecast.bundle_weights; };
  const VerifyReport report = verify(bundle, options);
  EXPECT_TRUE(report.passed()) << verify_report_text(report);
  EXPECT_TRUE(stated);
  EXPECT_TRUE(report.graphs_not_run.empty());
  EXPECT_TRUE(report.has_windows);
  EXPECT_TRUE(report.wrapped);
  EXPECT_EQ(report.layers.size(), 4U);
  ASSERT_TRUE(report.head);
  EXPECT_EQ(report.head->rows, report.tokens);
  EXPECT_EQ(report.head->top1_equal, report.head->rows);
  EXPECT_EQ(report.forecast.checkpoint_weights, report.forecast.bundle_weights / 2);  // bf16 against f32
}

TEST(Verify, SlicesGetTheReferencesHiddenStates) {
  for (const auto& [begin, end, head] : {std::tuple{0U, 2U, true}, std::tuple{1U, 3U, false}, std::tuple{3U, 4U, true}}) {
    ScratchFolder scratch;
    ExportOnnxOptions written = small_options();
    written.step.layers = {LayerRange::Kind::range, begin, end};
    written.step.head = head;
    const fs::path bundle = write_bundle(scratch, "spark", written);
    VerifyOptions options;
    options.checkpoint = golden("spark");
    const VerifyReport report = verify(bundle, options);
    EXPECT_TRUE(report.passed()) << verify_report_text(report);
    ASSERT_EQ(report.layers.size(), end - begin);
    EXPECT_EQ(report.layers.front().layer, begin);
    EXPECT_EQ(report.head.has_value(), head);
  }
}

TEST(Verify, LastRowsOfLogitsAndTokenIdsAreCompared) {
  ScratchFolder scratch;
  ExportOnnxOptions written = small_options();
  written.step.logits = LogitsRows::last;
  written.step.inputs = InputForm::ids;
  const fs::path bundle = write_bundle(scratch, "llama", written);
  VerifyOptions options;
  options.checkpoint = golden("llama");
  const VerifyReport report = verify(bundle, options);
  EXPECT_TRUE(report.passed()) << verify_report_text(report);
  // A call with padding gives the row of a padding token, which says nothing.
  const auto full =
      std::count_if(report.steps.begin(), report.steps.end(), [](const StepResult& s) { return s.real == s.query; });
  EXPECT_EQ(report.head->rows, static_cast<uint64_t>(full));
  EXPECT_FALSE(report.embedding);
}

TEST(Verify, NamesTheFieldsOfAnotherCheckpoint) {
  ScratchFolder scratch;
  const fs::path bundle = write_bundle(scratch, "spark", small_options());
  for (const auto& [name, field] : {std::pair{"llama", "family"}, std::pair{"spark_3shard_fp32", "vocab_size"}}) {
    VerifyOptions options;
    options.checkpoint = golden(name);
    const VerifyReport report = verify(bundle, options);
    ASSERT_TRUE(report.failure) << name;
    EXPECT_EQ(report.failure->tensor, field);
    EXPECT_EQ(report.failure->file, "contract.json");
  }
}

TEST(Verify, AGeluOfAnotherFormIsNotedAndJudgedByItsError) {
  ScratchFolder scratch;
  ExportOnnxOptions written = small_options();
  written.step.gelu = GeluForm::sigmoid;
  const fs::path bundle = write_bundle(scratch, "spark", written);
  VerifyOptions options;
  options.checkpoint = golden("spark");
  const VerifyReport report = verify(bundle, options);
  ASSERT_TRUE(report.failure);
  EXPECT_EQ(report.failure->tensor, "layers_0_mlp_act");
  EXPECT_THAT(verify_report_text(report), HasSubstr("--gelu sigmoid"));
  options.tolerance = 0.5;
  EXPECT_TRUE(verify(bundle, options).passed());
}

TEST(Verify, RefusesTokensThatDoNotFit) {
  ScratchFolder scratch;
  const fs::path bundle = write_bundle(scratch, "spark", small_options());
  VerifyOptions options;
  options.checkpoint = golden("spark");
  options.prompt = {1, 2, 1000};
  EXPECT_THAT([&] { verify(bundle, options); }, Fails(ErrorCode::usage, HasSubstr("got 1000, expected 0 to 319")));
  options.prompt.assign(30, 1);
  options.steps = 3;
  EXPECT_THAT([&] { verify(bundle, options); }, Fails(ErrorCode::usage, HasSubstr("got 30 and 3, expected at most 32")));
  options.steps = 2;
  EXPECT_TRUE(verify(bundle, options).passed());
  options.prompt_length = 3;
  EXPECT_THAT([&] { verify(bundle, options); }, Fails(ErrorCode::usage, HasSubstr("one of them")));
}

TEST(Verify, RefusesAGoldenFileOfAnotherModel) {
  ScratchFolder scratch;
  const fs::path bundle = write_bundle(scratch, "spark", small_options());
  VerifyOptions options;
  options.checkpoint = golden("spark");
  options.golden = golden("llama");
  EXPECT_THAT([&] { verify(bundle, options); }, Fails(ErrorCode::shape_mismatch, HasSubstr("golden.safetensors")));
  options.golden = golden("spark") / "model.safetensors";
  EXPECT_THAT([&] { verify(bundle, options); }, Fails(ErrorCode::tensor_missing, HasSubstr("tokens")));
  options.golden = scratch.path() / "none.safetensors";
  EXPECT_THAT([&] { verify(bundle, options); }, Fails(ErrorCode::file_missing, HasSubstr("none.safetensors")));
}

// A default prompt stays affordable: a window of 4,096 read token by token would take hours with a large model.
TEST(Schedule, SaysWhenAWindowIsTooFarAway) {
  BundleContract contract;
  contract.max_positions = 1 << 20;
  StepFile step{"step_q1_c8192.onnx", {}};
  step.contract.query = 1;
  step.contract.context = 8192;
  CacheLayer cache;
  cache.rule = SlotRule::ring;
  cache.window = 4096;
  cache.slots = 4095;
  step.contract.caches = {cache};
  contract.steps = {step};
  ScheduleOptions options;
  options.weight_bytes = uint64_t{7} << 30;
  const Schedule large = make_schedule(contract, options);
  EXPECT_FALSE(large.wrapped);
  EXPECT_LT(large.prompt_tokens, 300U);
  ASSERT_EQ(large.notes.size(), 1U);
  EXPECT_THAT(large.notes[0], HasSubstr("--prompt-length 4101"));
  options.weight_bytes = uint64_t{1} << 20;
  EXPECT_TRUE(make_schedule(contract, options).wrapped);
  options.weight_bytes = uint64_t{7} << 30;
  options.prompt_tokens = 4101;
  EXPECT_TRUE(make_schedule(contract, options).wrapped);
}

TEST(Report, HtmlIsSelfContainedAndEscapesNames) {
  VerifyReport report;
  report.bundle = "<script>alert(1)</script>";
  report.checkpoint = "a & b";
  report.precision = "weights f32, compute f32";
  report.tolerance = 1e-4;
  report.layers.resize(3);
  report.steps.push_back({0, 1, 1, "step.onnx", {1e-6, 0, 2e-6}, 1e-6});
  report.failure = VerifyFailure{"layers_1_out", 1, 7, "step.onnx", {"w"}, "got 1, expected 2"};
  const std::string page = verify_report_html(report);
  for (const char* part : {"&lt;script&gt;", "a &amp; b", "<svg", "role=\"img\"", "prefers-color-scheme", "layer 1, tensor"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  for (const char* part : {"<script", "http://", "https://", "src=", "nan", "inf\""}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

TEST(Report, JsonHasNoNumbersThatJsonLacks) {
  VerifyReport report;
  report.layers.resize(1);
  report.layers[0].out.sqnr_db = std::numeric_limits<double>::infinity();
  const Json json = parse_json(verify_report_json(report), "report");
  EXPECT_TRUE(json.find("passed")->boolean());
  EXPECT_TRUE(json.find("layers")->array()[0].find("out")->find("sqnr_db")->is_null());
}

}  // namespace
}  // namespace transload
