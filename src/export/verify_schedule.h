// Which calls a verification makes: a prompt, then single decode steps, so that every graph of the bundle runs at least once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transload/contract.h"

namespace transload {

// Tokens that the reference reads before the first call, to learn how large values usually are.
inline constexpr uint64_t kScaleTokens = 16;

struct ScheduledCall {
  const StepFile* step = nullptr;
  uint32_t real = 0;    // tokens read, at most the step's q
  bool decode = false;  // one token that follows from the logits before it
};

struct Schedule {
  std::vector<ScheduledCall> calls;
  uint64_t prompt_tokens = 0;
  uint64_t tokens = 0;
  bool has_windows = false;
  bool wrapped = false;  // some window was crossed
  std::vector<std::string> not_run;
  std::vector<std::string> notes;
};

struct ScheduleOptions {
  std::optional<uint64_t> prompt_tokens;  // none: enough to cross the smallest window, within the budget
  std::optional<uint32_t> steps;
  uint64_t weight_bytes = 0;  // read by one call, of bundle and checkpoint: what the budget counts
};

// Contexts in ascending order: a context serves until it is full, then the cache grows. Throws usage when what was asked for does
// not fit into the bundle.
Schedule make_schedule(const BundleContract& contract, const ScheduleOptions& options);

}  // namespace transload
