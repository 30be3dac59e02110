// Finds the layout of baked weights: nothing in the rank files tells it.
#include "export/trtllm_folder.h"

#include <fmt/format.h>

#include "export/trtllm_rank.h"
#include "io/file.h"
#include "io/json_fields.h"
#include "transload/error.h"

namespace transload {
namespace {

struct NamedLayout {
  QuantLayout layout = QuantLayout::plain;
  std::string manifest;
};

// Of the first rank with a manifest.
std::optional<NamedLayout> layout_of_manifests(const TrtllmCheckpoint& checkpoint) {
  for (uint32_t rank = 0; rank < checkpoint.ranks.size(); ++rank) {
    const std::string name = rank_manifest_name(rank);
    std::error_code ignored;
    if (!std::filesystem::exists(checkpoint.folder / name, ignored)) continue;
    const Json json = parse_json(read_text_file(checkpoint.folder / name), name);
    const JsonFields options = JsonFields(json, name).object("options");
    return NamedLayout{options.object("quant").choice<QuantLayout>("layout", {{"plain", QuantLayout::plain},
                                                                              {"transpose", QuantLayout::transpose},
                                                                              {"sm80", QuantLayout::sm80},
                                                                              {"sm90", QuantLayout::sm90}}),
                       name};
  }
  return std::nullopt;
}

}  // namespace

bool has_baked_weights(const TrtllmOptions& options) {
  return options.weight_only != WeightOnly::none && options.form == QuantForm::baked;
}

std::string quantisation_text(const TrtllmOptions& options) {
  if (options.weight_only == WeightOnly::none) return "none";
  const std::string_view weights = options.weight_only == WeightOnly::int8 ? "int8" : "int4";
  return has_baked_weights(options) ? fmt::format("{} baked {}", weights, quant_layout_name(options.layout))
                                    : fmt::format("{} deferred", weights);
}

TrtllmFolder open_trtllm_folder(const std::filesystem::path& folder, std::optional<QuantLayout> layout) {
  TrtllmFolder opened;
  opened.checkpoint = open_trtllm(folder, layout.value_or(QuantLayout::plain), opened.warnings);
  if (!has_baked_weights(opened.checkpoint.options)) {
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
