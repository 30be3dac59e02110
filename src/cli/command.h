// What the sub-commands share: registration, progress on standard error, sizes for people.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transload/progress.h"
#include "transload/trtllm.h"
#include "transload/verify.h"

namespace transload::cli {

// Each adds its sub-command to `app`; the returned action runs when it was chosen and gives the exit code.
using Action = std::function<int()>;
struct Command {
  CLI::App* app = nullptr;
  Action run;
};
void add_export(CLI::App& app, std::vector<Command>& commands);
void add_eval(CLI::App& app, std::vector<Command>& commands);
void add_import(CLI::App& app, std::vector<Command>& commands);
void add_inspect(CLI::App& app, std::vector<Command>& commands);
void add_kv(CLI::App& app, std::vector<Command>& commands);
void add_run(CLI::App& app, std::vector<Command>& commands);
void add_synth(CLI::App& app, std::vector<Command>& commands);
void add_verify(CLI::App& app, std::vector<Command>& commands);

// Names on the command line for the values of an enumeration; nothing else is taken, so no number of an enumerator.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, T& value, const std::map<std::string, T>& choices,
                        const std::string& help, const std::string& fallback) {
  std::string names;
  std::vector<std::string> allowed;
  for (const auto& [name, unused] : choices) {
    names += (names.empty() ? "" : "|") + name;
    allowed.push_back(name);
  }
  return app
      .add_option_function<std::string>(
          flag, [&value, choices](const std::string& name) { value = choices.at(name); }, help)
      ->check(CLI::IsMember(allowed).description(""))
      ->type_name(names)
      ->default_str(fallback);
}

// --layout of baked weights. `Layout`: QuantLayout, or an optional one.
template <typename Layout>
CLI::Option* add_layout(CLI::App& app, Layout& layout, const std::string& help, const std::string& fallback) {
  return add_choice<Layout>(app, "--layout", layout,
                            {{"plain", QuantLayout::plain},
                             {"transpose", QuantLayout::transpose},
                             {"sm80", QuantLayout::sm80},
                             {"sm90", QuantLayout::sm90}},
                            help, fallback);
}
inline constexpr const char* kStoredLayoutHelp = "layout of baked weights, where no rank manifest says it";
inline constexpr const char* kStoredLayoutDefault = "from the manifests";

// An option whose value N is 1 to `most`.
CLI::Option* add_count(CLI::App& app, const std::string& flag, uint32_t& value, uint32_t most, const std::string& help);
inline constexpr uint32_t kMostThreads = 256;
inline constexpr const char* kThreadsHelp = "threads (default: one per core, at most 8)";
inline constexpr const char* kWorkersHelp = "worker threads (default: one per core, at most 8)";
// --shards of a checkpoint that is written.
CLI::Option* add_shards(CLI::App& app, uint32_t& shards);
// --overwrite of an output folder.
CLI::Option* add_overwrite(CLI::App& app, bool& overwrite);

// Plain decimal digits: CLI11 alone takes 010 for eight and a negative number for a huge one.
CLI::Validator whole_number();
CLI::Validator number();  // any that strtod reads; its range is checked where it is used
CLI::Validator not_empty();
// "1,128" as numbers; `flag` names the option in the message.
std::vector<uint32_t> parse_numbers(const std::string& flag, const std::string& text);
// Throws usage when `output` is one of `inputs` or a file of one that is a folder, symbolic links followed or not. Empty paths
// are those of options that were not given.
void refuse_output_among(const std::string& flag, const std::string& output, const std::vector<std::string>& inputs);

// A bar with bytes, rate and time left on a terminal; otherwise a plain line every few seconds. Silent when `quiet`.
Progress make_progress(const std::string& verb, bool quiet);
Progress make_token_progress(const std::string& verb, bool quiet);  // counts tokens instead

// Runs `main` of a module of the Python package in place of this process, with `--command <this command>` before `arguments`.
// Returns only by throwing io_failure, when Python cannot be started.
int run_python_module(const std::string& module, const std::vector<std::string>& arguments);

// The line that says how much memory a verification will take, on standard error.
void print_forecast(const VerifyForecast& forecast);
void print_verify_report(const VerifyReport& report);

// "3.42 GB", decimal as disks are sold.
std::string size_text(uint64_t bytes);
// "80,697,344"
std::string grouped(uint64_t number);

}  // namespace transload::cli
