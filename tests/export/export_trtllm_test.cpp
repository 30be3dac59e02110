// Exporting TensorRT-LLM checkpoints through the public API: options that do not apply, which ranks, sums over kinds.
#include "transload/export_trtllm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "error_matchers.h"
#include "io/file.h"
#include "io/json.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

Checkpoint golden(const std::string& name) { return Checkpoint::open(fs::path(TRANSLOAD_TEST_DATA) / "trtllm" / name / "input"); }

ExportTrtllmOptions over_ranks(uint32_t tensor, std::vector<uint32_t> ranks = {}) {
  ExportTrtllmOptions options;
  options.trtllm.mapping.tensor = tensor;
  options.ranks = std::move(ranks);
  return options;
}

TEST(ExportTrtllm, WritesARankAskedForTwiceOnce) {
  const ScratchFolder folder;
  const ExportTrtllmSummary summary = export_trtllm(golden("phi3-mini-4k"), folder.path() / "out", over_ranks(2, {1, 1}));
  ASSERT_EQ(summary.ranks.size(), 1U);
  EXPECT_EQ(summary.ranks[0].rank, 1U);
  EXPECT_TRUE(fs::exists(folder.path() / "out" / "rank1.safetensors"));
  EXPECT_FALSE(fs::exists(folder.path() / "out" / "rank0.safetensors"));
}

TEST(ExportTrtllm, RefusesOptionsThatDoNotApply) {
  const ScratchFolder folder;
  const Checkpoint checkpoint = golden("phi3-mini-4k");
  const auto refused = [&](const ExportTrtllmOptions& options, const char* text) {
    EXPECT_THAT([&] { export_trtllm(checkpoint, folder.path() / "out", options); }, Fails(ErrorCode::usage, HasSubstr(text)));
  };
  ExportTrtllmOptions layout;
  layout.trtllm.layout = QuantLayout::sm80;
  refused(layout, "layout of weights that are not quantised here: got 'sm80'");
  layout.trtllm.weight_only = WeightOnly::int8;
  refused(layout, "layout of weights that are not quantised here");
  ExportTrtllmOptions form;
  form.trtllm.form = QuantForm::baked;
  refused(form, "got 'baked' and no quantisation");
  ExportTrtllmOptions both;
  both.resume = both.overwrite = true;
  refused(both, "resume and overwrite: got both");
  refused(over_ranks(2, {2}), "rank: got 2, expected at most 1 (tp 2 x pp 1 ranks");
  EXPECT_TRUE(folder.names().empty());
}

TEST(ExportTrtllm, LeavesNothingBehindWhereASplitIsImpossible) {
  const ScratchFolder folder;
  EXPECT_THAT([&] { export_trtllm(golden("phi3-mini-4k"), folder.path() / "out", over_ranks(3)); },
              Fails(ErrorCode::shard_indivisible, HasSubstr("got --tp 3")));
  EXPECT_TRUE(folder.names().empty());
}

// Progress counts the ranks that are written, and not those that are kept.
TEST(ExportTrtllm, CountsProgressOverAllRanksThatAreWritten) {
  const ScratchFolder folder;
  const Checkpoint checkpoint = golden("phi3-mini-4k");
  const fs::path out = folder.path() / "out";
  uint64_t last = 0;
  uint64_t end = 0;
  ExportTrtllmOptions options = over_ranks(4);
  options.resume = true;
  options.workers = 1;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    end = total;
  };
  export_trtllm(checkpoint, out, options);
  EXPECT_GT(end, 0U);
  EXPECT_EQ(last, end);
  const uint64_t all = end;
  fs::remove(out / "rank2.safetensors");
  last = 0;
  const ExportTrtllmSummary again = export_trtllm(checkpoint, out, options);
  EXPECT_EQ(last, end);
  EXPECT_EQ(end, all / 4);
  EXPECT_TRUE(again.ranks[1].kept);
  EXPECT_FALSE(again.ranks[2].kept);
}

TEST(ExportTrtllm, PoolsErrorsOfOneKindOverAllValues) {
  ExportTrtllmSummary summary;
  summary.quant_errors = {{"transformer.layers.0.mlp.fc.weight", 0, 0.5, 20, 100, 1},
                          {"transformer.layers.11.attention.qkv.weight", 0, 0.1, HUGE_VAL, 7, 0},
                          {"transformer.layers.3.mlp.fc.weight", 1, 0.25, 10, 900, 99}};
  const std::vector<QuantKindError> kinds = quant_kinds(summary);
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(kinds[0].kind, "mlp.fc.weight");
  EXPECT_EQ(kinds[0].tensors, 2U);
  EXPECT_EQ(kinds[0].max_abs, 0.5);
  EXPECT_NEAR(kinds[0].sqnr_db, 10, 1e-12);
  EXPECT_EQ(kinds[1].kind, "attention.qkv.weight");
  const std::string json = export_trtllm_json(summary);
  const Json parsed = parse_json(json, "summary");
  EXPECT_TRUE(parsed.find("quant_kinds")->array()[1].find("sqnr_db")->is_null());
}

}  // namespace
}  // namespace transload
