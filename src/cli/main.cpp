// transload: the command. Parses arguments, runs one sub-command, turns every error into one message and an exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "cli/command.h"
#include "transload/error.h"
#include "transload/version.h"

namespace {

using transload::ErrorCode;
using transload::exit_code;

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 checkpoint malformed, missing or inconsistent; 2 usage, or the destination exists;\n"
    "3 verification failed; 4 well-formed but not supported; 5 operating system (disk full, permission); 70 our bug.";

// What CLI11 would say of a mistyped command or option is that something else is missing; this names the word itself.
std::string usage_message(const CLI::App* app, const CLI::Error& error) {
  const std::vector<std::string> unknown = app->remaining(true);
  std::string path = app->get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    path += " " + app->get_name();
  }
  std::string message = error.what();
  const bool wants_command = app->get_require_subcommand_min() > 0;
  const auto option =
      std::find_if(unknown.begin(), unknown.end(), [](const std::string& word) { return word.rfind('-', 0) == 0; });
  if (wants_command && (unknown.empty() || option != unknown.begin())) {
    std::vector<std::string> names;
    for (const CLI::App* command : app->get_subcommands({})) names.push_back(command->get_name());
    message = unknown.empty() ? "no command: " : fmt::format("unknown command '{}': ", unknown.front());
    message += fmt::format("{} {}", names.size() == 1 ? "expected" : "expected one of", fmt::join(names, ", "));
  } else if (option != unknown.end()) {
    message = fmt::format("unknown option '{}'", *option);
  } else if (!unknown.empty()) {
    message = fmt::format("unexpected argument '{}'", unknown.front());
  }
  return fmt::format("transload: {}\nRun '{} --help' for more information.\n", message, path);
}

int run(int argc, char** argv) {
  CLI::App app{
      "Exports language-model checkpoints (safetensors, GGUF) to static-shape graphs for phones and servers, and verifies them",
      "transload"};
  app.set_version_flag("--version", std::string("transload ") + transload::version());
  app.footer(kFooter);
  app.failure_message(usage_message);
  app.require_subcommand(1);
  std::vector<transload::cli::Command> commands;
  transload::cli::add_export(app, commands);
  transload::cli::add_eval(app, commands);
  transload::cli::add_import(app, commands);
  transload::cli::add_inspect(app, commands);
  transload::cli::add_kv(app, commands);
  transload::cli::add_run(app, commands);
  transload::cli::add_synth(app, commands);
  transload::cli::add_verify(app, commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_code(ErrorCode::usage);
  }
  for (const transload::cli::Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return exit_code(ErrorCode::usage);
}

// A file opened while 0, 1 or 2 is free would get that number, and messages would be written into it.
void keep_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDWR);
  }
}

int report(const std::string& message, ErrorCode code) {
  std::fputs(("transload: " + message + "\n").c_str(), stderr);
  return exit_code(code);
}

// Weights are read where they are mapped: when their file shrinks meanwhile or its disk fails, the kernel says so by a signal.
void report_lost_page(int number, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {  // not a page: our bug
    std::signal(number, SIG_DFL);
    std::raise(number);
    return;
  }
  // Several threads may meet lost pages at once; the first one speaks and ends the process under the others.
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  while (said.test_and_set()) pause();
  constexpr char kText[] = "transload: cannot read a mapped file: it shrank while it was read, or its disk failed\n";
  const ssize_t unused = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  static_cast<void>(unused);
  _exit(exit_code(ErrorCode::io_failure));
}

void watch_mapped_files() {
  struct sigaction action {};
  action.sa_sigaction = report_lost_page;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

// What was printed counts as said only when it arrived.
int flush_output(int code) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return code;
  return code != 0 ? code : report("cannot write to standard output", ErrorCode::io_failure);
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_descriptors();
  // A file-size limit shall be an error of the write, not a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  watch_mapped_files();
  try {
    return flush_output(run(argc, argv));
  } catch (const transload::Error& error) {
    return report(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return report("out of memory", ErrorCode::io_failure);
  } catch (const std::system_error& error) {
    return report(error.what(), ErrorCode::io_failure);
  } catch (const std::exception& error) {
    return report(fmt::format("internal error: {}", error.what()), ErrorCode::internal);
  }
}
