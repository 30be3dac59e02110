// Work on many tensors cut into pieces: shared by workers, with the first fault in the order of the list, not of time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/workers.h"
#include "transload/progress.h"

namespace transload {

class PieceTasks {
 public:
  // `units` in pieces of `piece` (at least 1); `bytes` is what the progress counts for all of them.
  void add(uint64_t units, uint64_t piece, uint64_t bytes) {
    const size_t index = list_size_++;
    if (units == 0) return;
    entries_.push_back({index, units, piece, bytes, tasks_});
    tasks_ += (units + piece - 1) / piece;
    bytes_ += bytes;
  }

  // `work(index of add, begin, end, scratch of this worker)` gives the fault of one piece, or nothing.
  template <typename Scratch, typename Work>
  std::optional<std::string> run(uint32_t workers, const Progress& progress, const Work& work) const {
    const uint32_t count = workers == 0 ? default_workers() : workers;
    std::vector<std::unique_ptr<Scratch>> scratch(count);
    std::mutex mutex;
    uint64_t done = 0;
    uint64_t first = tasks_;  // of the tasks with a fault
    std::optional<std::string> fault;
    std::atomic<uint64_t> limit{tasks_};
    parallel_for(tasks_, count, [&](uint64_t task, const WorkerContext& context) {
      if (task > limit.load(std::memory_order_relaxed)) return;
      std::unique_ptr<Scratch>& own = scratch[context.worker];
      if (own == nullptr) own = std::make_unique<Scratch>();
      const Entry& entry = entry_of(task);
      const uint64_t begin = (task - entry.first_task) * entry.piece;
      const uint64_t end = std::min(entry.units, begin + entry.piece);
      std::optional<std::string> found = work(entry.index, begin, end, *own);
      const std::lock_guard lock(mutex);
      done += entry.bytes / entry.units * (end - begin) + (end == entry.units ? entry.bytes % entry.units : 0);
      if (progress) progress(done, bytes_);
      if (!found || task >= first) return;
      first = task;
      limit.store(task, std::memory_order_relaxed);
      fault = std::move(found);
    });
    return fault;
  }

 private:
  struct Entry {
    size_t index = 0;
    uint64_t units = 0;
    uint64_t piece = 0;
    uint64_t bytes = 0;
    uint64_t first_task = 0;
  };
  const Entry& entry_of(uint64_t task) const {
    const auto next = std::upper_bound(entries_.begin(), entries_.end(), task,
                                       [](uint64_t number, const Entry& entry) { return number < entry.first_task; });
    return *(next - 1);
  }

  std::vector<Entry> entries_;
  size_t list_size_ = 0;
  uint64_t tasks_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace transload
