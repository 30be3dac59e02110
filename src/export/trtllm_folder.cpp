// Finds the layout of baked weights, which nothing in the rank files tells, and holds the rank manifests against each other.
#include "export/trtllm_folder.h"

#include <fmt/format.h>

#include <utility>

#include "export/json_differences.h"
#include "export/trtllm_rank.h"
#include "io/file.h"
#include "io/json_fields.h"
#include "targets/trtllm/rank_names.h"
#include "transload/error.h"

namespace transload {
namespace {

struct NamedLayout {
  QuantLayout layout = QuantLayout::plain;
  std::string manifest;
};

struct NamedOptions {
  std::string manifest;
  Json options;
};

Json options_of(const std::filesystem::path& folder, const std::string& name) {
  const Json json = parse_json(read_text_file(folder / name), name);
  JsonFields(json, name).object("options");
  return *json.find("options");
}

std::optional<std::string> difference_of(const NamedOptions& got, const NamedOptions& expected) {
  const std::vector<std::string> differences = differing_fields(got.options, expected.options, "options");
  if (differences.empty()) return std::nullopt;
  return fmt::format("{}: {}, as in '{}': ranks are of different conversions", got.manifest, differences.front(),
                     expected.manifest);
}

// Of the first rank with a manifest.
std::optional<NamedLayout> layout_of_manifests(const TrtllmCheckpoint& checkpoint) {
  for (uint32_t rank = 0; rank < checkpoint.ranks.size(); ++rank) {
    const std::string name = rank_manifest_name(rank);
    std::error_code ignored;
    if (!std::filesystem::exists(checkpoint.folder / name, ignored)) continue;
    const Json json = options_of(checkpoint.folder, name);
    return NamedLayout{JsonFields(json, name, "options")
                           .object("quant")
                           .choice<QuantLayout>("layout", {{"plain", QuantLayout::plain},
                                                           {"transpose", QuantLayout::transpose},
                                                           {"sm80", QuantLayout::sm80},
                                                           {"sm90", QuantLayout::sm90}}),
                       name};
  }
  return std::nullopt;
}

}  // namespace

std::string quantisation_text(const TrtllmOptions& options) {
  if (options.weight_only == WeightOnly::none) return "none";
  const std::string_view weights = options.weight_only == WeightOnly::int8 ? "int8" : "int4";
  return options.has_baked_weights() ? fmt::format("{} baked {}", weights, quant_layout_name(options.layout))
                                     : fmt::format("{} deferred", weights);
}

std::optional<std::string> differing_manifests(const std::filesystem::path& folder) {
  std::optional<NamedOptions> first;
  std::error_code ignored;
  for (uint32_t rank = 0; std::filesystem::exists(folder / rank_file_name(rank), ignored); ++rank) {
    const std::string name = rank_manifest_name(rank);
    if (!std::filesystem::exists(folder / name, ignored)) continue;
    NamedOptions options{name, options_of(folder, name)};
    if (!first) {
      first = std::move(options);
      continue;
    }
    // The second way round finds a field that only this one has.
    if (auto text = difference_of(options, *first)) return text;
    if (auto text = difference_of(*first, options)) return text;
  }
  return std::nullopt;
}

TrtllmFolder open_trtllm_folder(const std::filesystem::path& folder, std::optional<QuantLayout> layout) {
  TrtllmFolder opened;
  opened.checkpoint = open_trtllm(folder, layout.value_or(QuantLayout::plain), opened.warnings);
  if (!opened.checkpoint.options.has_baked_weights()) {
    if (layout) opened.warnings.emplace_back("the weights are not quantised: the layout that was named is not used");
    return opened;
  }
  const std::optional<NamedLayout> named = layout_of_manifests(opened.checkpoint);
  if (!layout && !named) {
    throw Error(
        ErrorCode::usage,
        "layout of the quantised weights: got none, and no rank manifest that says it, expected --layout plain, transpose, "
        "sm80 or sm90",
        {folder.string(), {}, {}});
  }
  if (layout && named && *layout != named->layout) {
    throw Error(ErrorCode::usage,
                fmt::format("--layout: got '{}', expected '{}' as '{}' says", quant_layout_name(*layout),
                            quant_layout_name(named->layout), named->manifest),
                {folder.string(), {}, {}});
  }
  if (!layout) opened.checkpoint.options.layout = named->layout;
  return opened;
}

}  // namespace transload
