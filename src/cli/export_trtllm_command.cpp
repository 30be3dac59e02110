// transload export trtllm: options, dry run, the table of ranks and that of quantisation errors.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "cli/export_arguments.h"
#include "transload/export_trtllm.h"
#include "transload/verify_trtllm.h"

namespace transload::cli {
namespace {

struct TrtllmArguments : ExportArguments {
  std::string ranks;
  bool report = false;
  ExportTrtllmOptions options;
};

// "0-3,7": numbers and ranges, in any order.
std::vector<uint32_t> parse_ranks(const std::string& text) {
  const auto fail = [&] {
    throw CLI::ValidationError("--ranks",
                               fmt::format("got '{}', expected ranks and ranges A-B with A <= B and commas between", text));
  };
  std::vector<uint32_t> ranks;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const size_t dash = std::min(part.find('-'), part.size());
    if (part.find_first_not_of("0123456789-") != std::string::npos || part.find('-', dash + 1) != std::string::npos) fail();
    const uint32_t first = parse_numbers("--ranks", part.substr(0, dash)).front();
    const uint32_t last = dash == part.size() ? first : parse_numbers("--ranks", part.substr(dash + 1)).front();
    if (first > last || last >= kMaxTrtllmRanks) fail();
    for (uint32_t rank = first; rank <= last; ++rank) ranks.push_back(rank);
    begin = end + 1;
  }
  return ranks;
}

std::string decibels(double sqnr) { return std::isfinite(sqnr) ? fmt::format("{:.2f}", sqnr) : "exact"; }

void print_quant_errors(const ExportTrtllmSummary& summary) {
  std::vector<QuantTensorError> errors = summary.quant_errors;
  std::stable_sort(errors.begin(), errors.end(),
                   [](const QuantTensorError& a, const QuantTensorError& b) { return a.sqnr_db < b.sqnr_db; });
  fmt::print("quantisation errors, worst first\n");
  fmt::print("  {:<52}{:>6}{:>14}{:>12}\n", "tensor", "rank", "largest", "SQNR (dB)");
  for (const QuantTensorError& error : errors) {
    fmt::print("  {:<52}{:>6}{:>14.6g}{:>12}\n", error.tensor, error.rank, error.max_abs, decibels(error.sqnr_db));
  }
  fmt::print("quantisation errors by kind\n");
  for (const QuantKindError& kind : quant_kinds(summary)) {
    fmt::print("  {:<40}{:>6} tensors{:>18.6g}{:>12}\n", kind.kind, kind.tensors, kind.max_abs, decibels(kind.sqnr_db));
  }
}

void print_ranks(const ExportTrtllmSummary& summary) {
  fmt::print("  {:<24}{:>6}{:>12}{:>10}{:>20}\n", "rank file", "stage", "layers", "tensors", "bytes");
  for (const RankSummary& rank : summary.ranks) {
    fmt::print("  {:<24}{:>6}{:>12}{:>10}{:>20}{}\n", fmt::format("rank{}.safetensors", rank.rank), rank.stage,
               fmt::format("{}-{}", rank.first_layer, rank.end_layer - 1), rank.tensors, grouped(rank.bytes),
               rank.kept ? "  kept" : "");
  }
}

void print_summary(const ExportTrtllmSummary& summary, const TrtllmArguments& arguments, double seconds) {
  const bool dry = arguments.options.dry_run;
  if (summary.total_bytes == 0) {
    const size_t ranks = summary.ranks.size();
    fmt::print("nothing to do: {} complete\n", ranks == 1 ? "the rank file is" : fmt::format("all {} rank files are", ranks));
  } else {
    fmt::print("{} {} tensors, {} parameters, {} of {} weights\n", dry ? "would read" : "read", grouped(summary.tensor_count),
               grouped(summary.parameter_count), size_text(summary.source_bytes), summary.family);
    fmt::print("{} {} ({} bytes): {} in {}, format {}\n", dry ? "would write" : "wrote", arguments.destination,
               grouped(summary.total_bytes), summary.architecture, summary.dtype, summary.format);
  }
  print_ranks(summary);
  if (arguments.report) print_quant_errors(summary);
  if (dry) {
    fmt::print("memory: at most {} of block buffers\n", size_text(summary.worker_memory_bytes));
  } else {
    print_export_time(seconds, summary.write_seconds, summary.flush_seconds);
  }
}

VerifyTrtllmReport verify_written(const TrtllmArguments& arguments) {
  VerifyTrtllmOptions options;
  options.checkpoint = arguments.checkpoint;
  if (!arguments.config.empty()) options.config = arguments.config;
  if (arguments.options.trtllm.has_baked_weights()) options.layout = arguments.options.trtllm.layout;
  options.threads = arguments.options.workers;
  options.progress = make_progress("comparing", arguments.quiet);
  return verify_trtllm(arguments.destination, options);
}

int run_export(TrtllmArguments& arguments) {
  ExportTrtllmOptions& options = arguments.options;
  options.progress = make_progress("writing", arguments.quiet || options.dry_run);
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint = open_checkpoint(arguments);
  const ExportTrtllmSummary summary = export_trtllm(checkpoint, arguments.destination, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // The explanation must not stand before the JSON on standard output.
  if (options.explain) fmt::print(arguments.json ? stderr : stdout, "{}", summary.explanation);
  if (!arguments.json) print_summary(summary, arguments, seconds);
  print_warnings(summary.warnings, summary.numeric_warnings);
  if (!arguments.verify) {
    if (arguments.json) fmt::print("{}\n", export_trtllm_json(summary));
    return 0;
  }
  const VerifyTrtllmReport report = verify_written(arguments);
  if (arguments.json) {
    fmt::print("{{\"export\": {},\n\"verify\": {}}}\n", export_trtllm_json(summary), verify_trtllm_json(report));
  } else {
    fmt::print("{}", verify_trtllm_text(report));
  }
  return verified(report.passed(), "checkpoint", arguments);
}

void add_split(CLI::App& app, TrtllmMapping& mapping) {
  const std::string group = "Split";
  const auto add = [&](const std::string& flag, uint32_t& value, const std::string& help) {
    app.add_option(flag, value, help)
        ->check(whole_number())
        ->check(CLI::Range(1U, kMaxTrtllmRanks).description(""))
        ->type_name("N")
        ->default_str("1")
        ->group(group);
  };
  add("--tp", mapping.tensor, "tensor-parallel ranks: heads, inner width and vocabulary are cut");
  add("--pp", mapping.pipeline, "pipeline stages: layers are cut; trtllm-build may refuse more than 1");
  add("--moe-ep", mapping.expert, "expert-parallel groups of the --tp ranks, each with whole experts of its own; divides --tp");
}

}  // namespace

void add_export_trtllm(CLI::App& exports, std::vector<Command>& commands) {
  CLI::App* trtllm = exports.add_subcommand(
      "trtllm", "Write a TensorRT-LLM checkpoint of the Phi-3 family: config.json and a file for each rank");
  auto arguments = std::make_shared<TrtllmArguments>();
  ExportTrtllmOptions& options = arguments->options;
  TrtllmOptions& target = options.trtllm;
  const ExportHelp help{
      .checkpoint = "local folder with config.json and .safetensors, or one .safetensors beside its config.json",
      .output = "folder to write; appears whole or not at all, but for --ranks and --resume",
      .strict = "refuse weights with NaN or with values that overflow float16",
      .dry_run = "read headers only; print exact sizes, memory and what each rank gets",
      .verify = "then compare every written tensor with the checkpoint, as 'transload verify' does",
      .explain = "also print recipes and pieces (long)"};
  add_export_paths(*trtllm, *arguments, help);

  const std::string format = "Format";
  add_choice<std::optional<DType>>(*trtllm, "--dtype", target.dtype,
                                   {{"auto", std::nullopt},
                                    {"float16", DType::f16},
                                    {"fp16", DType::f16},
                                    {"bfloat16", DType::bf16},
                                    {"bf16", DType::bf16},
                                    {"float32", DType::f32},
                                    {"fp32", DType::f32}},
                                   "type of the weights; auto is that of the config, float16 where that is float32", "auto")
      ->group(format);
  add_choice<TrtllmFormat>(*trtllm, "--format", target.format, {{"1.x", TrtllmFormat::v1}, {"0.12", TrtllmFormat::v0_12}},
                           "generation of config.json: releases 0.13 to 1.x, or about 0.12", "1.x")
      ->group(format);

  add_split(*trtllm, target.mapping);
  CLI::Option* ranks =
      trtllm
          ->add_option("--ranks", arguments->ranks,
                       "write these ranks only, counted from 0, file by file into DIR, beside those that are there")
          ->type_name("A-B[,C...]")
          ->group("Split");

  const std::string quantisation = "Weight-only quantisation";
  CLI::Option* quant =
      add_choice<WeightOnly>(*trtllm, "--quant", target.weight_only, {{"int8", WeightOnly::int8}, {"int4", WeightOnly::int4}},
                             "quantise the weights of linear layers (default: none)", "")
          ->group(quantisation);
  CLI::Option* form =
      add_choice<QuantForm>(*trtllm, "--form", target.form, {{"deferred", QuantForm::deferred}, {"baked", QuantForm::baked}},
                            "deferred: trtllm-build quantises; baked: this command does, for one kind of GPU", "deferred")
          ->needs(quant)
          ->group(quantisation);
  CLI::Option* layout =
      add_layout(*trtllm, target.layout,
                 "order of baked weights in memory: sm80, sm90 and transpose by GPU, plain for none; see docs/trtllm.md", "plain")
          ->needs(quant)
          ->group(quantisation);
  CLI::Option* report = trtllm->add_flag("--report", arguments->report, "print what quantisation changed, by tensor and by kind")
                            ->group(quantisation);

  add_export_running(*trtllm, *arguments, options, help);
  ranks->excludes("--verify");  // which asks for all ranks
  trtllm->add_flag("--resume", options.resume, "keep ranks that DIR holds complete and right, and write the others file by file")
      ->excludes("--overwrite")
      ->group(kRunningGroup);

  trtllm->final_callback([arguments, ranks, form, layout, report] {
    const ExportTrtllmOptions& asked = arguments->options;
    const bool baked = form->count() > 0 && asked.trtllm.form == QuantForm::baked;
    if (layout->count() > 0 && !baked) throw CLI::ValidationError("--layout", "is of baked weights: expected --form baked too");
    if (report->count() > 0 && (!baked || asked.dry_run)) {
      throw CLI::ValidationError("--report", "is of weights that are quantised here: expected --form baked, and no --dry-run");
    }
    if (ranks->count() > 0) arguments->options.ranks = parse_ranks(arguments->ranks);
  });
  commands.push_back({trtllm, [arguments] { return run_export(*arguments); }});
}

}  // namespace transload::cli
