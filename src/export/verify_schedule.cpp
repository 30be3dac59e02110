// Lays out calls over the contexts and query lengths of a bundle.
#include "export/verify_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "transload/error.h"
#include "transload/kv_cache.h"

namespace transload {
namespace {

constexpr uint32_t kDefaultSteps = 8;
constexpr uint64_t kPromptWithoutWindow = 24;
constexpr uint64_t kPastTheWindow = 5;
// A default prompt reads at most this many bytes of weights: about two minutes on two cores.
constexpr uint64_t kPromptBudgetBytes = uint64_t{1600} * 1000 * 1000 * 1000;
constexpr uint64_t kLeastPrompt = 16;

class Scheduler {
 public:
  Scheduler(const BundleContract& contract, Schedule& schedule) : contract_(contract), schedule_(schedule) {
    contexts_ = contract.contexts();
  }

  uint64_t room() const {
    const uint64_t most = capacity(contexts_.back());
    return most > position_ ? most - position_ : 0;
  }

  void read(uint64_t count) {
    while (count > 0) {
      leave_full_context();
      const uint64_t here = std::min(count, capacity(context()) - position_);
      const uint32_t query = query_for(here);
      call(query, std::min<uint64_t>(query, here), false);
      count -= schedule_.calls.back().real;
    }
  }

  void decode(uint64_t steps) {
    for (uint64_t i = 0; i < steps; ++i) {
      leave_full_context();
      call(contract_.queries(context()).front(), 1, true);
    }
  }

  // One call of each graph of this context that has not run, as far as there is room.
  void cover() {
    for (const uint32_t query : contract_.queries(context())) {
      if (used_.contains(contract_.find_step(query, context())->file)) continue;
      const uint64_t here = capacity(context()) > position_ ? capacity(context()) - position_ : 0;
      if (here > 0) call(query, std::min<uint64_t>(query, here), false);
    }
  }

  bool next_context() {
    if (index_ + 1 == contexts_.size()) return false;
    ++index_;
    return true;
  }

  uint64_t position() const { return position_; }
  const std::set<std::string>& used() const { return used_; }

 private:
  uint32_t context() const { return contexts_[index_]; }
  uint64_t capacity(uint32_t context) const { return KvCache::capacity_of(contract_, context); }
  void leave_full_context() {
    while (position_ >= capacity(context()) && next_context()) {
    }
  }
  // The least q that has not run and that `count` fills; then the largest that `count` fills; for a rest the least that holds it.
  uint32_t query_for(uint64_t count) const {
    const std::vector<uint32_t> queries = contract_.queries(context());
    for (const uint32_t query : queries) {
      if (query <= count && !used_.contains(contract_.find_step(query, context())->file)) return query;
    }
    if (count >= queries.back()) return queries.back();
    return *std::lower_bound(queries.begin(), queries.end(), count);
  }
  void call(uint32_t query, uint64_t real, bool decode) {
    const StepFile* step = contract_.find_step(query, context());
    schedule_.calls.push_back({step, static_cast<uint32_t>(real), decode});
    used_.insert(step->file);
    position_ += real;
  }

  const BundleContract& contract_;
  Schedule& schedule_;
  std::vector<uint32_t> contexts_;
  size_t index_ = 0;
  uint64_t position_ = 0;
  std::set<std::string> used_;
};

std::optional<uint32_t> smallest_window(const BundleContract& contract) {
  std::optional<uint32_t> window;
  for (const CacheLayer& cache : contract.steps.front().contract.caches) {
    if (cache.window) window = std::min(window.value_or(*cache.window), *cache.window);
  }
  return window;
}

// Calls that a prompt takes when each reads as many tokens as the largest graph can.
uint64_t calls_of(const BundleContract& contract, uint64_t tokens) {
  uint64_t largest = 1;
  for (const StepFile& step : contract.steps) largest = std::max<uint64_t>(largest, step.contract.query);
  return (tokens + largest - 1) / largest;
}

uint64_t default_prompt(const BundleContract& contract, const ScheduleOptions& options, uint64_t capacity, uint64_t steps,
                        Schedule& schedule) {
  const std::optional<uint32_t> window = smallest_window(contract);
  const uint64_t wanted = window ? uint64_t{*window} + kPastTheWindow : kPromptWithoutWindow;
  uint64_t prompt = std::min(wanted, capacity > steps ? capacity - steps : 1);
  const uint64_t affordable = options.weight_bytes > 0 ? kPromptBudgetBytes / options.weight_bytes : prompt;
  if (calls_of(contract, prompt) > affordable && prompt > kLeastPrompt) {
    const uint64_t per_call = (prompt + calls_of(contract, prompt) - 1) / calls_of(contract, prompt);
    prompt = std::max(kLeastPrompt, std::min(prompt, affordable * per_call));
    if (window && prompt <= *window) {
      schedule.notes.push_back(
          fmt::format("the window of {} was not crossed, which takes {} calls of this model: --prompt-length {} does it", *window,
                      calls_of(contract, wanted), wanted));
    }
  } else if (window && prompt + steps < *window) {
    schedule.notes.push_back(fmt::format(
        "no window can be crossed: the largest context of the bundle holds {} tokens, the window {}", capacity, *window));
  }
  return prompt;
}

// A window is crossed when an entry of the layer was pushed out.
void note_windows(const BundleContract& contract, uint64_t position, Schedule& schedule) {
  for (const StepFile& step : contract.steps) {
    for (const CacheLayer& cache : step.contract.caches) {
      if (!cache.window) continue;
      schedule.has_windows = true;
      if (position >= *cache.window && cache.slots + 1 >= *cache.window) schedule.wrapped = true;
    }
  }
}

}  // namespace

Schedule make_schedule(const BundleContract& contract, const ScheduleOptions& options) {
  Schedule schedule;
  Scheduler scheduler(contract, schedule);
  const uint64_t capacity = scheduler.room();
  uint64_t steps = options.steps.value_or(kDefaultSteps);
  if (!options.steps) steps = std::min(steps, capacity / 2);
  const uint64_t prompt =
      options.prompt_tokens ? *options.prompt_tokens : default_prompt(contract, options, capacity, steps, schedule);
  if (!options.steps && options.prompt_tokens) steps = std::min(steps, capacity > prompt ? capacity - prompt : 0);
  if (prompt == 0) throw Error(ErrorCode::usage, "prompt: got no tokens, expected at least one");
  if (prompt + steps > capacity) {
    throw Error(ErrorCode::usage,
                fmt::format("prompt and steps exceed what the bundle holds: got {} and {}, expected at most {} in all", prompt,
                            steps, capacity));
  }
  scheduler.read(prompt);
  schedule.prompt_tokens = prompt;
  scheduler.decode(steps);
  do {
    scheduler.cover();
  } while (scheduler.next_context());

  schedule.tokens = scheduler.position();
  note_windows(contract, schedule.tokens, schedule);
  for (const StepFile& step : contract.steps) {
    if (!scheduler.used().contains(step.file)) schedule.not_run.push_back(step.file);
  }
  return schedule;
}

}  // namespace transload
