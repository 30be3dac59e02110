// transload import trtllm: options, dry run, and the summary of what was written.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "transload/import_trtllm.h"

namespace transload::cli {
namespace {

struct ImportArguments {
  std::string source;
  std::string destination;
  bool json = false;
  bool quiet = false;
  ImportTrtllmOptions options;
};

int run_import(ImportArguments& arguments) {
  ImportTrtllmOptions& options = arguments.options;
  options.progress = make_progress("importing", arguments.quiet || options.dry_run);
  const ImportTrtllmSummary summary = import_trtllm(arguments.source, arguments.destination, options);
  for (const std::string& warning : summary.warnings) std::fputs(fmt::format("warning: {}\n", warning).c_str(), stderr);
  if (arguments.json) {
    fmt::print("{}\n", import_trtllm_json(summary));
    return 0;
  }
  fmt::print("{} {}: {} in {}, {} tensors, {} parameters, {} in {} shard{}\n", options.dry_run ? "would write" : "wrote",
             arguments.destination, summary.architecture, summary.dtype, grouped(summary.tensor_count),
             grouped(summary.parameter_count), size_text(summary.total_bytes), summary.shards, summary.shards == 1 ? "" : "s");
  return 0;
}

}  // namespace

void add_import(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* group = app.add_subcommand("import", "Write a Hugging Face checkpoint from that of another runtime");
  group->require_subcommand(1);
  CLI::App* command = group->add_subcommand(
      "trtllm", "Write the Hugging Face checkpoint of a TensorRT-LLM checkpoint: ranks joined, publisher's names");
  auto arguments = std::make_shared<ImportArguments>();
  ImportTrtllmOptions& options = arguments->options;
  command->add_option("DIR", arguments->source, "folder with config.json and rank<N>.safetensors")->required();
  command->add_option("-o,--output", arguments->destination, "folder to write; appears whole or not at all")
      ->required()
      ->type_name("HF_DIR");
  add_layout(*command, options.layout, kStoredLayoutHelp, kStoredLayoutDefault);
  add_shards(*command, options.shards);
  add_count(*command, "--workers", options.workers, kMostThreads, kWorkersHelp);
  add_overwrite(*command, options.overwrite);
  command->add_flag("--dry-run", options.dry_run, "read headers and say what would be written");
  command->add_flag("--json", arguments->json, "print the summary as JSON");
  command->add_flag("--quiet", arguments->quiet, "no progress");
  commands.push_back({command, [arguments] { return run_import(*arguments); }});
}

}  // namespace transload::cli
