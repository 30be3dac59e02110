// KV memory of every layout against the formula written out here, and the picture drawn from it.
#include "transload/kv_memory.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <string>

#include "error_matchers.h"
#include "io/file.h"
#include "io/json.h"
#include "io/scratch_folder.h"
#include "transload/export_onnx.h"
#include "transload/synth.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

Checkpoint golden(const std::string& name) { return Checkpoint::open(fs::path(TRANSLOAD_TEST_DATA) / "decoders" / name); }

uint64_t slots_of(const std::string& layout, bool sliding, uint64_t window, uint64_t context) {
  if (!sliding || layout == "uniform") return context;
  return std::min(context, layout == "roll" ? window : window - 1);
}

TEST(KvMemory, CountsTheSlotsOfEveryLayerInEveryLayout) {
  const struct {
    const char* name;
    uint64_t window, kv_heads, head_dim;
    std::string pattern;  // S = sliding, F = full
  } models[] = {
      {"spark", 8, 2, 32, "SSSF"},
      {"gemma3", 8, 2, 24, "SSSSSF"},
      {"mistral", 8, 2, 24, "SSSS"},
      {"llama", 0, 2, 16, "FFFF"},
      {"llama_gguf_q8_0/model.gguf", 0, 2, 16, "FFFF"},
  };
  for (const auto& model : models) {
    const KvMemory memory = kv_memory(golden(model.name), {3, 64, 8, 1});
    ASSERT_EQ(memory.contexts.size(), 4U) << model.name;
    for (size_t i = 0; i < 4; ++i) {
      const KvContextMemory& entry = memory.contexts[i];
      EXPECT_EQ(entry.context, (std::vector<uint32_t>{3, 64, 8, 1})[i]);
      std::vector<std::string> names;
      for (const KvLayoutMemory& layout : entry.layouts) {
        SCOPED_TRACE(std::string(model.name) + " " + layout.layout + " " + std::to_string(entry.context));
        names.push_back(layout.layout);
        ASSERT_EQ(layout.layers.size(), model.pattern.size());
        uint64_t total = 0;
        uint64_t sliding_total = 0;
        for (size_t l = 0; l < model.pattern.size(); ++l) {
          const bool sliding = model.pattern[l] == 'S';
          const uint64_t slots = slots_of(layout.layout, sliding, model.window, entry.context);
          const KvLayerSummary& layer = layout.layers[l];
          EXPECT_EQ(layer.layer, l);
          EXPECT_EQ(layer.attention, sliding ? "sliding" : "full");
          EXPECT_EQ(layer.rule, !sliding || layout.layout == "uniform" ? "append" : layout.layout == "roll" ? "roll" : "ring");
          EXPECT_EQ(layer.slots, slots);
          EXPECT_EQ(layer.elements, 2 * model.kv_heads * model.head_dim * slots);
          total += layer.elements;
          if (sliding) sliding_total += layer.elements;
        }
        EXPECT_EQ(layout.elements, total);
        EXPECT_EQ(layout.sliding_elements, sliding_total);
      }
      EXPECT_THAT(names, ElementsAre("auto", "ring", "roll", "uniform"));
    }
  }
}

TEST(KvMemory, AgreesWithTheSummaryOfAnExport) {
  const Checkpoint checkpoint = golden("gemma3");
  const KvMemory memory = kv_memory(checkpoint, {64});
  for (const auto& [index, layout] : {std::pair{1, CacheLayout::ring}, std::pair{2, CacheLayout::roll}}) {
    ExportOnnxOptions options;
    options.contexts = {64};
    options.step.cache_layout = layout;
    options.dry_run = true;
    const ExportSummary summary = export_onnx(checkpoint, fs::temp_directory_path() / "transload_never_written", options);
    EXPECT_EQ(memory.contexts[0].layouts[index].elements, summary.kv[0].hybrid_elements);
    EXPECT_EQ(memory.contexts[0].layouts[3].elements, summary.kv[0].uniform_elements);
  }
}

TEST(KvMemory, GivesThePublishedBytesOfSpark) {
  const ScratchFolder folder;
  SynthOptions options;
  options.sparse = true;
  synthesize(fs::path(TRANSLOAD_TEST_DATA) / "configs" / "spark-x2.5-1.7b", folder.path() / "spark", options);
  const KvMemory memory = kv_memory(Checkpoint::open(folder.path() / "spark"), {1024, 4096, 131072});
  const uint64_t fp16[3][4] = {{36657152, 36657152, 36700160, 58720256},
                               {80697344, 80697344, 80740352, 234881024},
                               {1901025280, 1901025280, 1901068288, 7516192768}};
  for (size_t c = 0; c < 3; ++c) {
    for (size_t l = 0; l < 4; ++l) EXPECT_EQ(memory.contexts[c].layouts[l].elements * 2, fp16[c][l]) << c << " " << l;
  }
}

TEST(KvMemory, RefusesContextsThatNoGraphHas) {
  const Checkpoint checkpoint = golden("llama");
  EXPECT_THAT([&] { kv_memory(checkpoint, {}); }, Fails(ErrorCode::usage, HasSubstr("got none, expected at least one")));
  EXPECT_THAT([&] { kv_memory(checkpoint, {16, 0}); }, Fails(ErrorCode::usage, HasSubstr("got 0, expected at least 1")));
  const uint32_t most = kv_memory(checkpoint, {1}).max_positions;
  EXPECT_NO_THROW(kv_memory(checkpoint, {most}));
  EXPECT_THAT(
      [&] {
        kv_memory(checkpoint, {16, most + 1});
      },
      Fails(ErrorCode::usage, HasSubstr("got " + std::to_string(most + 1) + ", expected at most " + std::to_string(most))));
  EXPECT_THAT([&] { kv_memory_svg(kv_memory(checkpoint, {16}), 3); },
              Fails(ErrorCode::usage, HasSubstr("got 3, expected 1, 2 or 4")));
}

TEST(KvMemory, JsonGivesBytesAtTheElementSize) {
  const KvMemory memory = kv_memory(golden("spark"), {32, 64});
  for (const uint32_t size : {1U, 2U, 4U}) {
    const Json json = parse_json(kv_memory_json(memory, size), "kv");
    EXPECT_EQ(json.find("element_bytes")->integer(), size);
    const Json& context = json.find("contexts")->array()[1];
    EXPECT_EQ(context.find("context")->integer(), 64);
    const Json& ring = context.find("layouts")->array()[1];
    // 3 sliding layers of 7 slots and a full one of 64, against 4 of 64; 2 (k, v) x 2 heads x 32.
    EXPECT_EQ(ring.find("bytes")->integer(), (3 * 7 + 64) * 128 * static_cast<int64_t>(size));
    EXPECT_EQ(ring.find("sliding_bytes")->integer(), 3 * 7 * 128 * static_cast<int64_t>(size));
    EXPECT_EQ(ring.find("full_bytes")->integer(), 64 * 128 * static_cast<int64_t>(size));
    EXPECT_EQ(ring.find("saved_bytes")->integer(), 3 * (64 - 7) * 128 * static_cast<int64_t>(size));
    EXPECT_EQ(ring.find("layers")->array()[3].find("bytes")->integer(), 64 * 128 * static_cast<int64_t>(size));
  }
}

TEST(KvMemory, BarsAreAsLongAsTheBytesTheyStandFor) {
  const KvMemory memory = kv_memory(golden("spark"), {16, 64});
  const std::string svg = kv_memory_svg(memory, 2);
  const std::regex bar(R"re(data-context="(\d+)" data-layout="(\w+)" data-kind="(\w+)" x="[\d.]+" y="\d+" width="([\d.]+)")re");
  std::map<std::string, double> widths;
  for (std::sregex_iterator each(svg.begin(), svg.end(), bar), end; each != end; ++each) {
    widths[(*each)[1].str() + (*each)[2].str() + (*each)[3].str()] = std::stod((*each)[4].str());
  }
  ASSERT_EQ(widths.size(), 16U);  // 2 contexts, 4 layouts, 2 kinds
  const double pixels_per_element = widths.at("64uniformfull") / (64 * 128);
  for (const KvContextMemory& entry : memory.contexts) {
    for (const KvLayoutMemory& layout : entry.layouts) {
      const std::string key = std::to_string(entry.context) + layout.layout;
      EXPECT_NEAR(widths.at(key + "sliding"), pixels_per_element * static_cast<double>(layout.sliding_elements), 0.01) << key;
      EXPECT_NEAR(widths.at(key + "full"), pixels_per_element * static_cast<double>(layout.elements - layout.sliding_elements),
                  0.01)
          << key;
    }
  }
}

TEST(KvMemory, EscapesNamesAndDrawsOnlyTheKindsThereAre) {
  KvMemory memory = kv_memory(golden("llama"), {16});
  memory.family = "a<b>&\"c";
  const std::string svg = kv_memory_svg(memory, 2);
  EXPECT_THAT(svg, HasSubstr("KV cache of a&lt;b&gt;&amp;&quot;c"));
  EXPECT_THAT(svg, HasSubstr("full attention: 4 layers"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("sliding window:")));
}

TEST(KvMemory, WritesThePictureAsAFile) {
  const ScratchFolder folder;
  const KvMemory memory = kv_memory(golden("gemma3"), {16});
  write_kv_memory_svg(memory, 4, folder.path() / "kv.svg");
  EXPECT_EQ(read_text_file(folder.path() / "kv.svg"), kv_memory_svg(memory, 4));
  EXPECT_THAT([&] { write_kv_memory_svg(memory, 4, folder.path() / "absent" / "kv.svg"); },
              Fails(ErrorCode::io_failure, HasSubstr("absent")));
  EXPECT_EQ(folder.names(), std::set<std::string>{"kv.svg"});
}

}  // namespace
}  // namespace transload
