// What the sub-commands share: registration, progress on standard error, sizes for people.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "transload/progress.h"

namespace transload::cli {

// Each adds its sub-command to `app`; the returned action runs when it was chosen and gives the exit code.
using Action = std::function<int()>;
struct Command {
  CLI::App* app = nullptr;
  Action run;
};
void add_export(CLI::App& app, std::vector<Command>& commands);
void add_inspect(CLI::App& app, std::vector<Command>& commands);
void add_synth(CLI::App& app, std::vector<Command>& commands);

// A bar with bytes, rate and time left on a terminal; otherwise a plain line every few seconds. Silent when `quiet`.
Progress make_progress(const std::string& verb, bool quiet);

// "3.42 GB", decimal as disks are sold.
std::string size_text(uint64_t bytes);
// "80,697,344"
std::string grouped(uint64_t number);
// Peak resident memory of this process in bytes.
uint64_t peak_memory_bytes();

}  // namespace transload::cli
