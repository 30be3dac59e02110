// Threads that stay for the life of a pool, for parallel loops too short to start threads for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace transload {

class WorkerPool {
 public:
  explicit WorkerPool(uint32_t workers = 0);  // 0: default_workers(); the calling thread is one of them
  WorkerPool(const WorkerPool&) = delete;
  ~WorkerPool();

  uint32_t size() const;
  // Calls `task` for ranges [begin, end) that cover 0..count-1 once, at most `grain` long (grain >= 1), from all workers;
  // `worker` is below size(). Returns when all are done; the first exception stops the handing out and is rethrown. One call at a
  // time.
  using Task = std::function<void(uint64_t begin, uint64_t end, uint32_t worker)>;
  void run(uint64_t count, uint64_t grain, const Task& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace transload
