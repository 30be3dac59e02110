// Progress on standard error, sizes for people, peak memory.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "cli/command.h"

namespace transload::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kBarInterval = std::chrono::milliseconds(100);
constexpr auto kLineInterval = std::chrono::seconds(5);
constexpr size_t kBarWidth = 30;
constexpr size_t kLeastBarWidth = 5;

struct Meter {
  Clock::time_point start = Clock::now();
  Clock::time_point last = start;
  bool terminal = isatty(STDERR_FILENO) != 0;
};

std::string seconds_text(double seconds) {
  const auto whole = static_cast<uint64_t>(seconds + 0.5);
  return whole < 60 ? fmt::format("{} s", whole) : fmt::format("{}:{:02} min", whole / 60, whole % 60);
}

// Asked for each line, since a window may change; 80 where the terminal does not say.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// One line that leaves the last column free: a line that wraps cannot be drawn over.
std::string bar_line(const std::string& verb, double fraction, const std::string& numbers, size_t columns) {
  const std::string tail = fmt::format("{:3.0f} % {}", fraction * 100, numbers);
  const size_t beside = verb.size() + tail.size() + std::string_view(" [] ").size() + 1;
  const size_t width = columns > beside ? std::min(kBarWidth, columns - beside) : 0;
  const size_t filled = std::min(width, static_cast<size_t>(fraction * static_cast<double>(width)));
  std::string line = width < kLeastBarWidth
                         ? fmt::format("{} {}", verb, tail)
                         : fmt::format("{} [{}{}] {}", verb, std::string(filled, '#'), std::string(width - filled, '.'), tail);
  line.resize(std::min(line.size(), columns - 1));
  return line;
}

// `amount` spells how much is done; `unit` follows the last amount of each kind.
Progress metered(const std::string& verb, bool quiet, std::string (*amount)(uint64_t), const char* unit) {
  if (quiet) return {};
  auto meter = std::make_shared<Meter>();
  return [meter, verb, amount, unit](uint64_t done, uint64_t total) {
    const Clock::time_point now = Clock::now();
    const bool finished = done >= total;
    if (!finished && now - meter->last < (meter->terminal ? Clock::duration(kBarInterval) : Clock::duration(kLineInterval)))
      return;
    meter->last = now;
    const double seconds = std::chrono::duration<double>(now - meter->start).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const double fraction = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
    const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
    const std::string numbers = fmt::format("{} of {}{}, {}{}/s, {} left", amount(done), amount(total), unit,
                                            amount(static_cast<uint64_t>(rate)), unit, seconds_text(left));
    if (meter->terminal) {
      const std::string line = bar_line(verb, fraction, numbers, terminal_columns());
      // Not fmt::print, which throws: a progress line that nobody takes must not stop the work.
      std::fputs(fmt::format("\r{}\x1b[K{}", line, finished ? "\n" : "").c_str(), stderr);
    } else {
      std::fputs(fmt::format("{} {:.0f} % {}\n", verb, fraction * 100, numbers).c_str(), stderr);
    }
    std::fflush(stderr);
  };
}

}  // namespace

Progress make_progress(const std::string& verb, bool quiet) { return metered(verb, quiet, size_text, ""); }

Progress make_token_progress(const std::string& verb, bool quiet) { return metered(verb, quiet, grouped, " tokens"); }

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string grouped(uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace transload::cli
