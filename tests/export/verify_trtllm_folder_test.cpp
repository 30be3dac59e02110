// Verification of a TensorRT-LLM folder around its values: progress, manifests of several runs, values that are not finite, text.
#include <gmock/gmock.h>

#include <cstring>

#include "error_matchers.h"
#include "export/trtllm_folder_fixture.h"
#include "transload/import_trtllm.h"
#include "transload/verify_trtllm.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kInput = "phi3-mini-4k";

TrtllmOptions baked(WeightOnly weights, QuantLayout layout = QuantLayout::sm80) {
  return quantised(trtllm_options({2, 1, 1}), weights, QuantForm::baked, layout);
}

TEST(VerifyTrtllmFolder, ProgressNeverExceedsItsTotalAndEndsAtIt) {
  const TrtllmOptions split = trtllm_options({2, 1, 1});
  const std::vector<std::pair<const char*, TrtllmOptions>> cases = {
      {"exact", split},
      {"deferred", quantised(split, WeightOnly::int8, QuantForm::deferred)},
      {"baked 8 bits", baked(WeightOnly::int8, QuantLayout::plain)},
      {"baked 4 bits", baked(WeightOnly::int4, QuantLayout::plain)},
  };
  // The last ties its head: no tensor of the way back.
  for (const char* input : {kInput, "phi35-moe", "phi4-mini"}) {
    for (const auto& [what, trtllm] : cases) {
      SCOPED_TRACE(testing::Message() << input << " " << what);
      const ScratchFolder scratch;
      const std::filesystem::path folder = scratch.path() / "out";
      export_folder(trtllm_input(input), folder, trtllm, true);
      VerifyTrtllmOptions options;
      options.checkpoint = trtllm_input(input);
      options.threads = 2;
      uint64_t last = 0;
      uint64_t last_total = 0;
      bool exceeded = false;
      bool changed = false;
      options.progress = [&](uint64_t done, uint64_t total) {
        exceeded = exceeded || done > total || done < last;
        changed = changed || (last_total != 0 && total != last_total);
        last = done;
        last_total = total;
      };
      const VerifyTrtllmReport report = verify_trtllm(folder, options);
      ASSERT_TRUE(report.passed()) << *report.failure;
      EXPECT_FALSE(exceeded);
      EXPECT_FALSE(changed);
      EXPECT_EQ(last, last_total);
      EXPECT_EQ(last, report.bytes_compared);
    }
  }
}

// Rank 0 of one export and rank 1 of another.
void export_two_runs(const std::filesystem::path& folder, const TrtllmOptions& first, const TrtllmOptions& second) {
  const ScratchFolder scratch;
  export_folder(trtllm_input(kInput), folder, first, true);
  export_folder(trtllm_input(kInput), scratch.path() / "other", second, true);
  for (const char* name : {"rank1.safetensors", "rank1.manifest.json"}) {
    std::filesystem::copy_file(scratch.path() / "other" / name, folder / name, std::filesystem::copy_options::overwrite_existing);
  }
}

TEST(VerifyTrtllmFolder, RanksWhoseManifestsHaveOtherOptionsFailAndAreNotImported) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "out";
  export_two_runs(folder, baked(WeightOnly::int8, QuantLayout::sm80), baked(WeightOnly::int8, QuantLayout::sm90));
  const auto named = AllOf(HasSubstr("rank0.manifest.json"), HasSubstr("rank1.manifest.json"),
                           HasSubstr("'options.quant.layout': got \"sm90\", expected \"sm80\""));
  for (const bool with_checkpoint : {false, true}) {
    for (const bool with_layout : {false, true}) {
      VerifyTrtllmOptions options;
      if (with_checkpoint) options.checkpoint = trtllm_input(kInput);
      if (with_layout) options.layout = QuantLayout::sm80;
      const VerifyTrtllmReport report = verify_trtllm(folder, options);
      ASSERT_FALSE(report.passed());
      EXPECT_THAT(*report.failure, named);
    }
  }
  ImportTrtllmOptions import;
  EXPECT_THAT([&] { import_trtllm(folder, scratch.path() / "model", import); }, Fails(ErrorCode::config_invalid, named));
  import.layout = QuantLayout::sm80;
  EXPECT_THAT([&] { import_trtllm(folder, scratch.path() / "model", import); }, Fails(ErrorCode::config_invalid, named));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "model"));

  export_two_runs(folder, baked(WeightOnly::int8), baked(WeightOnly::int8));
  EXPECT_TRUE(verify_trtllm(folder, {}).passed());
}

// A copy of the input with bf16 values at the start of one tensor.
std::filesystem::path with_values(const ScratchFolder& scratch, const std::string& name, const std::vector<uint16_t>& values) {
  const std::filesystem::path copy = scratch.path() / "model";
  std::filesystem::copy(trtllm_input(kInput), copy);
  for (const TensorInfo& tensor : read_safetensors(InputFile::open(copy / "model.safetensors")).tensors) {
    if (tensor.name != name) continue;
    std::fstream file(copy / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(tensor.offset));
    file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(uint16_t)));
  }
  return copy;
}

constexpr const char* kGateUp = "model.layers.0.mlp.gate_up_proj.weight";
constexpr uint16_t kNan = 0x7FC1;
constexpr uint16_t kMinusInfinity = 0xFF80;

TEST(VerifyTrtllmFolder, SaysWhichValuesAreNotFiniteInBoth) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    SCOPED_TRACE(dtype_name(dtype));
    const ScratchFolder scratch;
    const std::filesystem::path folder = scratch.path() / "out";
    const std::filesystem::path checkpoint = with_values(scratch, kGateUp, {kNan, kMinusInfinity});
    export_folder(checkpoint, folder, trtllm_options({2, 1, 1}, dtype));
    VerifyTrtllmOptions options;
    options.checkpoint = checkpoint;
    const VerifyTrtllmReport report = verify_trtllm(folder, options);
    EXPECT_TRUE(report.passed()) << *report.failure;
    EXPECT_THAT(report.notes, Contains("2 values are NaN or infinite in both, e.g. in 'transformer.layers.0.mlp.fc.weight'"));
    EXPECT_THAT(report.notes,
                Contains(AllOf(HasSubstr("block 'mlp' of layer 0 was not comparable"), HasSubstr("NaN or infinite"))));
    EXPECT_THAT(report.notes, Not(Contains(HasSubstr("of layer 1"))));
    ASSERT_EQ(report.blocks.size(), 5U);
    EXPECT_GT(report.blocks[1].not_comparable, 0U);
    EXPECT_EQ(report.blocks[0].not_comparable, 0U);
  }
}

TEST(VerifyTrtllmFolder, SaysWhichWeightsThatWereQuantisedAreNotFinite) {
  struct Case {
    WeightOnly weights;
    uint16_t value;
    const char* note;
  };
  // An infinite value takes its channel of 128 with it.
  const Case cases[] = {{WeightOnly::int8, kNan, "1 weight was not compared"},
                        {WeightOnly::int4, kNan, "1 weight was not compared"},
                        {WeightOnly::int8, kMinusInfinity, "128 weights were not compared"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.note);
    const ScratchFolder scratch;
    const std::filesystem::path folder = scratch.path() / "out";
    const std::filesystem::path checkpoint = with_values(scratch, kGateUp, {c.value});
    export_folder(checkpoint, folder, baked(c.weights), true);
    VerifyTrtllmOptions options;
    options.checkpoint = checkpoint;
    const VerifyTrtllmReport report = verify_trtllm(folder, options);
    EXPECT_TRUE(report.passed()) << *report.failure;
    EXPECT_THAT(report.notes, Contains(AllOf(testing::StartsWith(c.note), HasSubstr("transformer.layers.0.mlp.fc.weight"))));
    // The ranks are held against their own rounded values, which may be finite; the unquantised layer is not.
    EXPECT_THAT(report.notes, Contains(HasSubstr("block 'mlp' of layer 0 was not comparable")));
    EXPECT_FALSE(report.blocks.at(1).quantisation.has_value());
  }
}

TEST(VerifyTrtllmFolder, TextHasTheLinesOfABundlesReport) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "out";
  export_folder(trtllm_input(kInput), folder, baked(WeightOnly::int8), true);
  VerifyTrtllmOptions options;
  options.checkpoint = trtllm_input(kInput);
  const VerifyTrtllmReport report = verify_trtllm(folder, options);
  const std::string text = verify_trtllm_text(report);
  EXPECT_THAT(text, HasSubstr("folder     " + folder.string() + "\n"));
  EXPECT_THAT(text, HasSubstr("checkpoint " + options.checkpoint->string() + "\n"));
  EXPECT_THAT(text, testing::ContainsRegex("tensors    [0-9]+ compared, [0-9],[0-9]{3},[0-9]{3} bytes\n"));
  EXPECT_THAT(text, HasSubstr("at most 1 quantisation steps off"));
  EXPECT_THAT(text, HasSubstr("block      lm_head: "));
  EXPECT_THAT(text, testing::EndsWith("\nverification passed: the rank files hold what the checkpoint gives\n"));
  EXPECT_THAT(verify_trtllm_json(report), testing::ContainsRegex("\"block\": \"lm_head\",[[:space:]]*\"layer\": null"));
  EXPECT_THAT(verify_trtllm_text(verify_trtllm(folder, {})),
              testing::EndsWith("\nverification passed: digests and structure only\n"));
}

TEST(VerifyTrtllmFolder, ADigestFailureNamesTheAbsoluteOffsetOfTheTensor) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "out";
  export_folder(trtllm_input(kInput), folder, trtllm_options({2, 1, 1}), true);
  edit_tensor(folder, 1, "lm_head.weight", [](std::string& bytes) { bytes[7] = static_cast<char>(bytes[7] ^ 1); });
  const VerifyTrtllmReport report = verify_trtllm(folder, {});
  ASSERT_FALSE(report.passed());
  const uint64_t offset = stored_tensor(folder, 1, "lm_head.weight").offset;
  const std::string place = "rank1.safetensors@" + std::to_string(offset) + ": tensor 'lm_head.weight': digest: got ";
  EXPECT_THAT(*report.failure, testing::StartsWith(place));
  EXPECT_THAT(verify_trtllm_text(report), HasSubstr("\nverification failed: " + place));
}

TEST(VerifyTrtllmFolder, AHuggingFaceFolderIsNamedAsSuchByTheImport) {
  const ScratchFolder scratch;
  EXPECT_THAT([&] { import_trtllm(trtllm_input(kInput), scratch.path() / "model", {}); },
              Fails(ErrorCode::config_missing, AllOf(HasSubstr("no TensorRT-LLM checkpoint"), HasSubstr("'model_type'"),
                                                     HasSubstr("'architecture'"), Not(HasSubstr("\n")))));
}

}  // namespace
}  // namespace transload
