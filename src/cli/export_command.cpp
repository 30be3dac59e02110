// transload export: the command that holds the exports, and what they share.
#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "cli/export_arguments.h"
#include "transload/error.h"
#include "transload/peak_memory.h"

namespace transload::cli {

void add_export_paths(CLI::App& app, ExportArguments& arguments, const ExportHelp& help) {
  app.add_option("CHECKPOINT", arguments.checkpoint, help.checkpoint)->required();
  app.add_option("-o,--output", arguments.destination, help.output)->required()->type_name("DIR");
  app.add_option("--config", arguments.config, "config.json to use instead of the checkpoint's")
      ->type_name("FILE")
      ->check(not_empty());
}

Checkpoint open_checkpoint(const ExportArguments& arguments) {
  return Checkpoint::open(arguments.checkpoint,
                          arguments.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(arguments.config));
}

void print_warnings(const std::vector<std::string>& warnings, const std::vector<TensorWarning>& numeric_warnings) {
  for (const std::string& warning : warnings) std::fputs(fmt::format("warning: {}\n", warning).c_str(), stderr);
  for (const TensorWarning& warning : numeric_warnings) {
    std::fputs(fmt::format("warning: {}\n", warning_text(warning)).c_str(), stderr);
  }
}

void print_export_time(double seconds, double write_seconds, double flush_seconds) {
  fmt::print("time: {:.2f} s ({:.2f} s to the last write, {:.2f} s flush), peak memory {}\n", seconds, write_seconds,
             flush_seconds, size_text(peak_memory_bytes()));
}

int verified(bool passed, const std::string& what, const ExportArguments& arguments) {
  if (passed) return 0;
  std::fputs(fmt::format("transload: verification failed; the {} was left in '{}'\n", what, arguments.destination).c_str(),
             stderr);
  return exit_code(ErrorCode::verify_mismatch);
}

void add_export(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* exports = app.add_subcommand("export", "Export a checkpoint to the format of a runtime");
  exports->require_subcommand(1);
  add_export_onnx(*exports, commands);
  add_export_trtllm(*exports, commands);
}

}  // namespace transload::cli
