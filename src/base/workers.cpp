// Workers over one atomic index: no queue, no pool, nothing that outlives the call.
#include "base/workers.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace transload {

void parallel_for(uint64_t count, uint32_t workers, const WorkerTask& task) {
  if (workers == 0) workers = default_workers();
  const auto thread_count = static_cast<uint32_t>(std::min<uint64_t>(workers, count));
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr first_error;

  const auto run = [&](uint32_t worker) {
    const WorkerContext context{worker, stop};
    try {
      while (!context.stopping()) {
        const uint64_t index = next.fetch_add(1, std::memory_order_relaxed);
        if (index >= count) return;
        task(index, context);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first_error) first_error = std::current_exception();
      stop.store(true, std::memory_order_release);
    }
  };

  {
    std::vector<std::jthread> threads;
    threads.reserve(thread_count);
    try {
      for (uint32_t worker = 1; worker < thread_count; ++worker) threads.emplace_back(run, worker);
    } catch (const std::system_error&) {
      // The system refuses more threads; those that run, and this one, do the work.
    }
    run(0);
  }
  if (first_error) std::rethrow_exception(first_error);
}

uint32_t default_workers() { return std::clamp(std::thread::hardware_concurrency(), 1U, 8U); }

}  // namespace transload
