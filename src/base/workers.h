// Runs numbered tasks on a few threads that live for one call; the first exception wins.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace transload {

// What a task knows of the run it belongs to.
struct WorkerContext {
  uint32_t worker;                // 0 .. workers - 1: the index of a per-worker buffer
  const std::atomic<bool>& stop;  // set by the first task that throws

  // A task that waits for another one must leave when this becomes true: that other may never come.
  bool stopping() const { return stop.load(std::memory_order_acquire); }
};

using WorkerTask = std::function<void(uint64_t index, const WorkerContext& context)>;

// Calls `task` once for each index below `count`, handing indices out in ascending order to at most `workers` threads, of which
// the caller is one (0: default_workers()). After the first exception no index is handed out; all threads are joined before it
// is rethrown. A task may wait only for tasks of lower index: fewer threads than asked for may run.
void parallel_for(uint64_t count, uint32_t workers, const WorkerTask& task);

// One per core, at most 8.
uint32_t default_workers();

}  // namespace transload
