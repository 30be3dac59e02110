// What the exports have in common on the command line: paths, the options of a run, warnings, verification after writing.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cli/command.h"
#include "transload/checkpoint.h"
#include "transload/tensor_warning.h"

namespace transload::cli {

struct ExportArguments {
  std::string checkpoint;
  std::string destination;
  std::string config;
  bool json = false;
  bool quiet = false;
  bool verify = false;
};

// Words of the options that say something of the format.
struct ExportHelp {
  std::string checkpoint;
  std::string output;
  std::string strict;
  std::string dry_run;
  std::string verify;
  std::string explain;
};

inline constexpr const char* kRunningGroup = "Running";

void add_export_paths(CLI::App& app, ExportArguments& arguments, const ExportHelp& help);
Checkpoint open_checkpoint(const ExportArguments& arguments);
void print_warnings(const std::vector<std::string>& warnings, const std::vector<TensorWarning>& numeric_warnings);
// The line after a summary; `seconds` from opening the checkpoint on.
void print_export_time(double seconds, double write_seconds, double flush_seconds);
// Exit code after --verify, with a line that says what a failure leaves.
int verified(bool passed, const std::string& what, const ExportArguments& arguments);

// `Options`: ExportOnnxOptions or ExportTrtllmOptions.
template <typename Options>
void add_export_running(CLI::App& app, ExportArguments& arguments, Options& options, const ExportHelp& help) {
  add_count(app, "--workers", options.workers, kMostThreads, std::string(kWorkersHelp) + "; the output does not depend on it")
      ->group(kRunningGroup);
  add_overwrite(app, options.overwrite)->group(kRunningGroup);
  app.add_flag("--strict", options.strict, help.strict)->group(kRunningGroup);
  CLI::Option* dry_run = app.add_flag("--dry-run", options.dry_run, help.dry_run)->group(kRunningGroup);
  app.add_flag("--verify", arguments.verify, help.verify)->excludes(dry_run)->group(kRunningGroup);
  app.add_flag("--explain", options.explain, help.explain)->group(kRunningGroup);
  app.add_flag("--json", arguments.json, "print the summary as JSON on standard output")->group(kRunningGroup);
  app.add_flag("--quiet", arguments.quiet, "no progress")->group(kRunningGroup);
}

// Each adds one export to the command of that name.
void add_export_onnx(CLI::App& exports, std::vector<Command>& commands);
void add_export_trtllm(CLI::App& exports, std::vector<Command>& commands);

}  // namespace transload::cli
