// The TensorRT-LLM export pipeline: model -> tensors of each rank -> plan -> written checkpoint with manifests, or a dry run.
#include "transload/export_trtllm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <span>

#include "base/printable.h"
#include "base/workers.h"
#include "export/destination.h"
#include "export/json_differences.h"
#include "export/manifest.h"
#include "export/numeric_warnings.h"
#include "export/trtllm_rank.h"
#include "io/file.h"
#include "io/json.h"
#include "io/output_directory.h"
#include "targets/trtllm/config_text.h"
#include "targets/trtllm/mapping.h"
#include "targets/trtllm/rank_tensors.h"
#include "targets/trtllm/trtllm_config.h"
#include "transload/error.h"
#include "weights/executor.h"

namespace transload {
namespace {

namespace fs = std::filesystem;

void refuse_gguf(const Checkpoint& checkpoint) {
  if (checkpoint.format() == CheckpointFormat::safetensors) return;
  throw Error(
      ErrorCode::config_unsupported,
      "TensorRT-LLM conversion of a GGUF file: got one, expected a Hugging Face checkpoint (config.json and .safetensors)",
      {checkpoint.files().front()->name(), {}, {}});
}

void check_options(const ExportTrtllmOptions& options) {
  const TrtllmOptions& asked = options.trtllm;
  if (asked.layout != QuantLayout::plain && !asked.has_baked_weights()) {
    throw Error(ErrorCode::usage, fmt::format("layout of weights that are not quantised here: got '{}', expected none (baked "
                                              "int8 or int4 weights have one)",
                                              quant_layout_name(asked.layout)));
  }
  if (asked.form == QuantForm::baked && asked.weight_only == WeightOnly::none) {
    throw Error(ErrorCode::usage, "form of quantised weights: got 'baked' and no quantisation, expected int8 or int4");
  }
  if (options.resume && options.overwrite) {
    throw Error(ErrorCode::usage, "resume and overwrite: got both, expected one (resume replaces what is not right)");
  }
}

// The ranks to write, each once, ascending.
std::vector<uint32_t> asked_ranks(const ExportTrtllmOptions& options) {
  const uint32_t world = options.trtllm.mapping.world();
  std::vector<uint32_t> ranks = options.ranks;
  if (ranks.empty()) {
    ranks.resize(world);
    std::iota(ranks.begin(), ranks.end(), 0U);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (ranks.back() >= world) {
    throw Error(ErrorCode::usage,
                fmt::format("rank: got {}, expected at most {} (tp {} x pp {} ranks, counted from 0)", ranks.back(), world - 1,
                            options.trtllm.mapping.tensor, options.trtllm.mapping.pipeline));
  }
  return ranks;
}

// All that is known before the first weight is read.
struct Conversion {
  PlannedFile config;
  std::vector<TrtllmRank> ranks;
  RankManifests manifests;
  ExportTrtllmSummary summary;
};

std::vector<TrtllmRank> plan_ranks(const DecoderModel& model, const TrtllmArchitecture& architecture,
                                   const ExportTrtllmOptions& options, DType dtype) {
  std::vector<TrtllmRank> ranks;
  for (const uint32_t rank : asked_ranks(options)) {
    ranks.push_back({rank, plan_rank_file(rank_tensors(model, architecture, options.trtllm, dtype, rank), dtype, rank)});
  }
  return ranks;
}

// Counts what is read and written, which ranks that are kept are not.
void count_work(const Checkpoint& checkpoint, bool has_config, Conversion& conversion) {
  ExportTrtllmSummary& summary = conversion.summary;
  summary.total_bytes = has_config ? 0 : conversion.config.size;
  std::set<std::string> names;
  for (size_t i = 0; i < conversion.ranks.size(); ++i) {
    if (summary.ranks[i].kept) continue;
    const TrtllmRank& rank = conversion.ranks[i];
    summary.total_bytes += rank.file.size + conversion.manifests.text(rank, {}).size();
    for (const PlannedTensor& tensor : rank.file.tensors) {
      for (std::string& name : source_tensor_names(tensor.recipe)) names.insert(std::move(name));
    }
  }
  for (const std::string& name : names) {
    const TensorInfo& tensor = *checkpoint.find_tensor(name);
    if (tensor.dtype != DType::f16 && tensor.dtype != DType::bf16 && tensor.dtype != DType::f32) {
      throw Error(
          ErrorCode::dtype_unsupported,
          fmt::format("stored type in a TensorRT-LLM conversion: got {}, expected f16, bf16 or f32", dtype_name(tensor.dtype)),
          {tensor.file->name(), printable(name), tensor.offset});
    }
    ++summary.tensor_count;
    summary.parameter_count += element_count(tensor.shape);
    summary.source_bytes += tensor.bytes;
  }
}

std::vector<RankSummary> rank_summaries(const std::vector<TrtllmRank>& ranks, const TrtllmMapping& mapping, uint32_t layers) {
  std::vector<RankSummary> out;
  for (const TrtllmRank& rank : ranks) {
    const uint32_t stage = rank.rank / mapping.tensor;
    const LayerSpan span = stage_layers(layers, mapping.pipeline, stage);
    out.push_back({rank.rank, stage, span.begin, span.end, stored_tensors(rank.file), rank.file.size, false});
  }
  return out;
}

Conversion plan_conversion(const Checkpoint& checkpoint, const ExportTrtllmOptions& options) {
  const Json& config = *checkpoint.config();
  const std::string file = checkpoint.config_file();
  const TrtllmArchitecture& architecture = trtllm_architecture_of(config, file);
  const DecoderModel model = build_model(checkpoint, ModelOptions{.context = 0, .leave_unused = true});
  check_mapping(model, options.trtllm.mapping, options.trtllm.format);
  const DType dtype = trtllm_dtype(config, file, options.trtllm);
  PlannedFile text = planned_text(kTrtllmConfigFile, trtllm_config_text(config, file, architecture, options.trtllm));
  Conversion conversion{text,
                        plan_ranks(model, architecture, options, dtype),
                        RankManifests(checkpoint, manifest_options(options.trtllm, dtype), text),
                        {}};
  ExportTrtllmSummary& summary = conversion.summary;
  summary.family = model.family;
  summary.architecture = architecture.name;
  summary.format = trtllm_format_name(options.trtllm.format);
  summary.dtype = trtllm_dtype_name(dtype);
  summary.warnings = model.warnings;
  for (std::string& warning : trtllm_config_warnings(config, options.trtllm)) {
    summary.warnings.push_back(std::move(warning));
  }
  summary.ranks = rank_summaries(conversion.ranks, options.trtllm.mapping, static_cast<uint32_t>(model.layers.size()));
  const uint32_t workers = options.workers == 0 ? default_workers() : options.workers;
  summary.worker_memory_bytes = workers * worker_buffer_bytes();
  return conversion;
}

// Without any noise the ratio is infinite, also of nothing but zeros.
double sqnr_db(double signal, double noise) { return noise > 0 ? 10 * std::log10(signal / noise) : HUGE_VAL; }

// Takes what an execution found out about one rank into the summary.
void collect(const TrtllmRank& rank, const std::vector<TensorResult>& results, ExportTrtllmSummary& summary) {
  for (TensorWarning& warning : numeric_warnings(Plan{{rank.file}}, results)) {
    warning.file = rank.file.name;
    summary.numeric_warnings.push_back(std::move(warning));
  }
  for (const TensorResult& result : results) {
    if (!result.quant_error) continue;
    const QuantError& error = *result.quant_error;
    summary.quant_errors.push_back(
        {result.name, rank.rank, error.max_abs, sqnr_db(error.signal, error.noise), error.signal, error.noise});
  }
}

void write_whole(const fs::path& destination, const ExportTrtllmOptions& options, Conversion& conversion) {
  OutputDirectory output(destination, options.overwrite);
  const auto start = std::chrono::steady_clock::now();
  Plan plan{{conversion.config}};
  for (const TrtllmRank& rank : conversion.ranks) plan.files.push_back(rank.file);
  const std::vector<TensorResult> results = execute(plan, output, {options.workers, options.progress, {}});
  auto next = results.begin();
  std::vector<std::string> manifests;
  for (size_t i = 0; i < conversion.ranks.size(); ++i) {
    const auto end = next + static_cast<std::ptrdiff_t>(conversion.summary.ranks[i].tensors);
    const std::vector<TensorResult> own(next, end);
    next = end;
    collect(conversion.ranks[i], own, conversion.summary);
    manifests.push_back(conversion.manifests.text(conversion.ranks[i], own));
  }
  if (options.strict) refuse_numeric_faults(conversion.summary.numeric_warnings);
  for (size_t i = 0; i < manifests.size(); ++i) output.write_file(rank_manifest_name(conversion.ranks[i].rank), manifests[i]);
  conversion.summary.write_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  output.commit();
  conversion.summary.flush_seconds = output.flush_seconds();
}

// The line of a position, without the blanks around it.
std::string_view line_around(std::string_view text, size_t position) {
  const size_t before = text.substr(0, position).rfind('\n');
  text.remove_prefix(before == std::string_view::npos ? 0 : before + 1);
  text = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t\r") + 1);
}

// The first field that differs, or else the first line.
std::string config_difference(const std::string& got, const std::string& expected) {
  try {
    const std::vector<std::string> fields =
        differing_fields(parse_json(got, kTrtllmConfigFile), parse_json(expected, kTrtllmConfigFile));
    if (!fields.empty()) return fields.front();
  } catch (const Error&) {  // no JSON: the lines tell
  }
  const auto differ = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  const auto position = static_cast<size_t>(differ.first - got.begin());
  return fmt::format("line {}: got '{}', expected '{}'", 1 + std::count(got.begin(), differ.first, '\n'),
                     printable(line_around(got, position), 80), printable(line_around(expected, position), 80));
}

// Puts config.json there unless another process, or an earlier run, has; then it has to be equal.
void require_config(const fs::path& folder, const PlannedFile& config, bool write) {
  const std::string& expected = config.bytes.front().bytes;
  std::error_code ignored;
  if (!fs::exists(folder / config.name, ignored)) {
    if (!write) return;
    OutputDirectory output = OutputDirectory::inside(folder, OutputDirectory::Existing::kept);
    output.write_file(config.name, expected);
    output.commit();
  }
  const std::string got = read_text_file(folder / config.name);
  if (got == expected) return;
  throw Error(ErrorCode::destination_exists, fmt::format("of another conversion: {}", config_difference(got, expected)),
              {(folder / config.name).string(), {}, {}});
}

void refuse_stored_ranks(const fs::path& folder, const std::vector<TrtllmRank>& ranks) {
  std::vector<std::string> there;
  std::error_code ignored;
  for (const TrtllmRank& rank : ranks) {
    for (const std::string& name : {rank.file.name, rank_manifest_name(rank.rank)}) {
      if (fs::exists(folder / name, ignored)) there.push_back(name);
    }
  }
  if (there.empty()) return;
  throw Error(
      ErrorCode::destination_exists,
      fmt::format("files of these ranks are there: got {}, expected none (or --resume, or --overwrite)", fmt::join(there, ", ")),
      {folder.string(), {}, {}});
}

void write_rank(const fs::path& folder, const TrtllmRank& rank, const ExportTrtllmOptions& options, const Progress& progress,
                Conversion& conversion) {
  const auto start = std::chrono::steady_clock::now();
  OutputDirectory output = OutputDirectory::inside(folder);
  const std::vector<TensorResult> results = execute(Plan{{rank.file}}, output, {options.workers, progress, {}});
  ExportTrtllmSummary found;
  collect(rank, results, found);
  if (options.strict) refuse_numeric_faults(found.numeric_warnings);
  // Last, so that a rank with a manifest is complete.
  output.write_file(rank_manifest_name(rank.rank), conversion.manifests.text(rank, results));
  ExportTrtllmSummary& summary = conversion.summary;
  std::move(found.numeric_warnings.begin(), found.numeric_warnings.end(), std::back_inserter(summary.numeric_warnings));
  std::move(found.quant_errors.begin(), found.quant_errors.end(), std::back_inserter(summary.quant_errors));
  summary.write_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  output.commit();
  summary.flush_seconds += output.flush_seconds();
}

// Looks for ranks that need not be written again and says so in the summary.
void find_kept_ranks(const fs::path& folder, const ExportTrtllmOptions& options, Conversion& conversion) {
  for (size_t i = 0; i < conversion.ranks.size(); ++i) {
    const TrtllmRank& rank = conversion.ranks[i];
    const StoredRank stored = check_stored_rank(folder, rank, conversion.manifests, options.workers);
    std::vector<std::string>& warnings = conversion.summary.warnings;
    // A run without --strict may have written it; this one has to name the tensors.
    const bool keep = stored.exists && stored.fault.empty() && !(options.strict && stored.numeric_fault);
    conversion.summary.ranks[i].kept = keep;
    if (keep && stored.numeric_fault) {
      warnings.push_back(fmt::format("'{}' was kept; some of its values overflow f16 or are NaN", rank.file.name));
    } else if (stored.exists && !stored.fault.empty()) {
      warnings.push_back(fmt::format("'{}' was there and is written again: {}", rank.file.name, stored.fault));
    }
  }
}

// Refuses a folder of another conversion; finds out which ranks are left to do there.
void look_into(const fs::path& folder, const ExportTrtllmOptions& options, Conversion& conversion) {
  require_config(folder, conversion.config, false);
  refuse_foreign_ranks(folder, options.trtllm.mapping.world(), conversion.ranks, conversion.manifests);
  if (options.resume) find_kept_ranks(folder, options, conversion);
}

void write_ranks(const fs::path& folder, const ExportTrtllmOptions& options, Conversion& conversion) {
  if (!options.resume && !options.overwrite) refuse_stored_ranks(folder, conversion.ranks);
  uint64_t total = 0;
  uint64_t done = 0;
  for (size_t i = 0; i < conversion.ranks.size(); ++i) {
    if (!conversion.summary.ranks[i].kept) total += conversion.ranks[i].file.tensor_bytes();
  }
  require_config(folder, conversion.config, true);
  for (size_t i = 0; i < conversion.ranks.size(); ++i) {
    const TrtllmRank& rank = conversion.ranks[i];
    if (conversion.summary.ranks[i].kept) continue;
    Progress progress;
    if (options.progress) progress = [&](uint64_t of_rank, uint64_t) { options.progress(done + of_rank, total); };
    write_rank(folder, rank, options, progress, conversion);
    done += rank.file.tensor_bytes();
  }
}

}  // namespace

std::vector<QuantKindError> quant_kinds(const ExportTrtllmSummary& summary) {
  struct Sum {
    QuantKindError error;
    double signal = 0;
    double noise = 0;
  };
  std::vector<Sum> sums;
  for (const QuantTensorError& error : summary.quant_errors) {
    // Behind "transformer.layers.N."
    size_t begin = 0;
    for (int dots = 0; dots < 3 && begin < error.tensor.size(); ++dots) begin = error.tensor.find('.', begin) + 1;
    const std::string kind = error.tensor.substr(begin);
    auto sum = std::find_if(sums.begin(), sums.end(), [&](const Sum& each) { return each.error.kind == kind; });
    if (sum == sums.end()) sum = sums.insert(sums.end(), Sum{{kind, 0, 0, 0}, 0, 0});
    ++sum->error.tensors;
    sum->error.max_abs = std::max(sum->error.max_abs, error.max_abs);
    sum->signal += error.signal;
    sum->noise += error.noise;
  }
  std::vector<QuantKindError> kinds;
  for (Sum& sum : sums) {
    sum.error.sqnr_db = sqnr_db(sum.signal, sum.noise);
    kinds.push_back(std::move(sum.error));
  }
  return kinds;
}

ExportTrtllmSummary export_trtllm(const Checkpoint& checkpoint, const fs::path& destination, const ExportTrtllmOptions& options) {
  refuse_destination_over(destination, sources_of(checkpoint));
  refuse_gguf(checkpoint);
  check_options(options);
  Conversion conversion = plan_conversion(checkpoint, options);
  if (options.explain) {
    Plan plan{{conversion.config}};
    for (const TrtllmRank& rank : conversion.ranks) plan.files.push_back(rank.file);
    conversion.summary.explanation = explain_plan(plan);
  }
  const bool by_ranks = options.resume || !options.ranks.empty();
  if (by_ranks) look_into(destination, options, conversion);
  std::error_code ignored;
  count_work(checkpoint, by_ranks && fs::exists(destination / conversion.config.name, ignored), conversion);
  if (options.dry_run) return std::move(conversion.summary);
  if (by_ranks) {
    write_ranks(destination, options, conversion);
  } else {
    write_whole(destination, options, conversion);
  }
  return std::move(conversion.summary);
}

}  // namespace transload
