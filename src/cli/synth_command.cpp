// transload synth: a random checkpoint in real dimensions, for tests, dry runs and benchmarks.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "transload/synth.h"

namespace transload::cli {
namespace {

struct SynthArguments {
  std::string config;
  std::string destination;
  bool json = false;
  bool quiet = false;
  SynthOptions options;
};

int run_synth(SynthArguments& arguments) {
  arguments.options.progress = make_progress("writing", arguments.quiet || arguments.options.sparse);
  const SynthSummary summary = synthesize(arguments.config, arguments.destination, arguments.options);
  if (arguments.json) {
    fmt::print("{}\n", synth_json(summary));
  } else {
    fmt::print("wrote {}: {} tensors, {} parameters, {} in {} shard{}{}\n", arguments.destination, grouped(summary.tensor_count),
               grouped(summary.parameter_count), size_text(summary.total_bytes), summary.shards, summary.shards == 1 ? "" : "s",
               arguments.options.sparse ? ", without data" : "");
  }
  return 0;
}

}  // namespace

void add_synth(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* command = app.add_subcommand("synth", "Write a random checkpoint with the tensors a config asks for");
  auto arguments = std::make_shared<SynthArguments>();
  SynthOptions& options = arguments->options;
  command->add_option("CONFIG", arguments->config, "config.json, or a folder that holds one")->required();
  command->add_option("-o,--output", arguments->destination, "folder to write; appears whole or not at all")
      ->required()
      ->type_name("DIR");
  command->add_option("--seed", options.seed, "equal seeds give equal bytes")
      ->check(whole_number())
      ->type_name("N")
      ->default_str("0");
  add_shards(*command, options.shards);
  add_choice<DType>(*command, "--dtype", options.dtype, {{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}},
                    "dtype of the weights", "bf16");
  command->add_flag("--sparse", options.sparse, "full-length files without data: dry runs of huge models");
  add_count(*command, "--workers", options.workers, kMostThreads, kWorkersHelp);
  add_overwrite(*command, options.overwrite);
  command->add_flag("--json", arguments->json, "print the summary as JSON");
  command->add_flag("--quiet", arguments->quiet, "no progress");
  commands.push_back({command, [arguments] { return run_synth(*arguments); }});
}

}  // namespace transload::cli
