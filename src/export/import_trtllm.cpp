// The way back from TensorRT-LLM: rank files -> Hugging Face tensors -> plan -> written checkpoint, or a dry run.
#include "transload/import_trtllm.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "export/destination.h"
#include "export/safetensors_shards.h"
#include "export/summary_parts.h"
#include "export/trtllm_folder.h"
#include "io/json.h"
#include "io/output_directory.h"
#include "targets/trtllm/config_text.h"
#include "targets/trtllm/hf_tensors.h"
#include "transload/error.h"
#include "weights/executor.h"

namespace transload {

ImportTrtllmSummary import_trtllm(const std::filesystem::path& source, const std::filesystem::path& destination,
                                  const ImportTrtllmOptions& options) {
  refuse_destination_over(destination, {source});
  if (const std::optional<std::string> difference = differing_manifests(source)) {
    throw Error(ErrorCode::config_invalid, *difference, {source.string(), {}, {}});
  }
  const TrtllmFolder folder = open_trtllm_folder(source, options.layout);
  const TrtllmCheckpoint& checkpoint = folder.checkpoint;
  ImportTrtllmSummary summary;
  summary.architecture = checkpoint.architecture->name;
  summary.dtype = trtllm_dtype_name(*checkpoint.options.dtype);
  summary.ranks = static_cast<uint32_t>(checkpoint.ranks.size());
  summary.warnings = folder.warnings;
  const Json config = hf_config(checkpoint, summary.warnings);
  if (checkpoint.options.has_baked_weights()) {
    summary.warnings.push_back(fmt::format("weights were quantised ({}): what is written are their rounded values",
                                           quantisation_text(checkpoint.options)));
  }

  std::vector<ShardTensor> tensors;
  for (HuggingFaceTensor& tensor : hf_tensors(checkpoint)) {
    summary.parameter_count += element_count(tensor.recipe.shape());
    tensors.push_back({std::move(tensor.name), std::move(tensor.recipe)});
  }
  summary.tensor_count = tensors.size();
  const auto [plan, shards] = plan_checkpoint(tensors, options.shards, write_json(config) + "\n");
  summary.shards = shards;
  summary.total_bytes = plan.total_bytes();
  if (options.dry_run) return summary;

  OutputDirectory output(destination, options.overwrite);
  execute(plan, output, {options.workers, options.progress, {}});
  output.commit();
  return summary;
}

std::string import_trtllm_json(const ImportTrtllmSummary& summary) {
  return write_json(Json::Object{{"architecture", summary.architecture},
                                 {"dtype", summary.dtype},
                                 {"ranks", summary.ranks},
                                 {"shards", summary.shards},
                                 {"tensors", summary.tensor_count},
                                 {"parameters", summary.parameter_count},
                                 {"total_bytes", summary.total_bytes},
                                 {"warnings", strings_json(summary.warnings)}});
}

}  // namespace transload
