// transload: the command. Parses arguments, runs one sub-command, turns every error into one message and an exit code.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "cli/command.h"
#include "transload/error.h"
#include "transload/version.h"

namespace {

constexpr int kUsage = 2;
constexpr int kInternal = 70;

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 checkpoint malformed, missing or inconsistent; 2 usage, or the destination exists;\n"
    "3 verification failed; 4 well-formed but not supported; 5 operating system (disk full, permission); 70 our bug.";

int run(int argc, char** argv) {
  CLI::App app{"transload: language-model checkpoints to what phones and servers load", "transload"};
  app.set_version_flag("--version", std::string("transload ") + transload::version());
  app.footer(kFooter);
  app.require_subcommand(1);
  std::vector<transload::cli::Command> commands;
  transload::cli::add_export(app, commands);
  transload::cli::add_inspect(app, commands);
  transload::cli::add_synth(app, commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  for (const transload::cli::Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  // A file-size limit shall be an error of the write, not a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const transload::Error& error) {
    fmt::print(stderr, "transload: {}\n", error.what());
    return transload::exit_code(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "transload: out of memory\n");
    return transload::exit_code(transload::ErrorCode::io_failure);
  } catch (const std::exception& error) {
    fmt::print(stderr, "transload: internal error: {}\n", error.what());
    return kInternal;
  }
}
