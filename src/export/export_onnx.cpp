// The ONNX export pipeline: model -> graphs -> plan -> written bundle with manifest, or a dry run of it.
#include "transload/export_onnx.h"

#include <algorithm>
#include <chrono>

#include "base/workers.h"
#include "export/bundle.h"
#include "export/destination.h"
#include "export/kv_summary.h"
#include "export/manifest.h"
#include "export/numeric_warnings.h"
#include "graph/graph.h"
#include "io/output_directory.h"
#include "weights/executor.h"

namespace transload {
namespace {

constexpr uint32_t kDefaultContext = 1024;

std::string manifest(const Checkpoint& checkpoint, const ExportOnnxOptions& options, const Plan& plan,
                     const std::vector<TensorResult>& results) {
  return manifest_text(manifest_object(checkpoint, "onnx", manifest_options(options), plan, results));
}

ExportSummary summarize(const Checkpoint& checkpoint, const DecoderModel& model, const Bundle& bundle,
                        const ExportOnnxOptions& options, uint64_t manifest_bytes) {
  ExportSummary summary;
  summary.family = model.family;
  for (const std::string& name : bundle.sources) {
    const TensorInfo& tensor = *checkpoint.find_tensor(name);
    ++summary.tensor_count;
    summary.parameter_count += element_count(tensor.shape);
    summary.source_bytes += tensor.bytes;
  }
  for (const PlannedFile& file : bundle.plan.files) summary.files.push_back({file.name, file.size});
  summary.files.push_back({kManifestFile, manifest_bytes});
  for (const FileSummary& file : summary.files) summary.total_bytes += file.bytes;
  for (const BundleStep& step : bundle.steps) {
    const bool seen = std::any_of(summary.kv.begin(), summary.kv.end(),
                                  [&](const KvSummary& kv) { return kv.context == step.step.contract.context; });
    if (!seen) summary.kv.push_back(kv_summary(step.step.contract));
  }
  const uint32_t workers = options.workers == 0 ? default_workers() : options.workers;
  summary.worker_memory_bytes = workers * worker_buffer_bytes();
  summary.warnings = model.warnings;
  summary.numeric_warnings = bundle.inline_warnings;
  if (options.explain) {
    for (const BundleStep& step : bundle.steps) summary.explanation += graph_text(step.step.graph) + "\n";
    summary.explanation += explain_plan(bundle.plan);
  }
  return summary;
}

}  // namespace

ExportSummary export_onnx(const Checkpoint& checkpoint, const std::filesystem::path& destination,
                          const ExportOnnxOptions& asked) {
  refuse_destination_over(destination, sources_of(checkpoint));
  ExportOnnxOptions options = asked;
  if (options.contexts.empty()) options.contexts = {kDefaultContext};
  const DecoderModel model =
      build_model(checkpoint, ModelOptions{*std::max_element(options.contexts.begin(), options.contexts.end())});
  if (asked.contexts.empty()) options.contexts = {std::min(kDefaultContext, model.max_positions)};
  const Bundle bundle = plan_onnx_bundle(checkpoint, model, options);
  ExportSummary summary = summarize(checkpoint, model, bundle, options, manifest(checkpoint, options, bundle.plan, {}).size());
  if (options.strict) refuse_numeric_faults(summary.numeric_warnings);
  if (options.dry_run) return summary;

  OutputDirectory output(destination, options.overwrite);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<TensorResult> results = execute(bundle.plan, output, {options.workers, options.progress, {}});
  for (TensorWarning& warning : numeric_warnings(bundle.plan, results)) summary.numeric_warnings.push_back(std::move(warning));
  if (options.strict) refuse_numeric_faults(summary.numeric_warnings);
  output.write_file(kManifestFile, manifest(checkpoint, options, bundle.plan, results));
  summary.write_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  output.commit();
  summary.flush_seconds = output.flush_seconds();
  return summary;
}

}  // namespace transload
