// A pool whose threads watch for the next run for a moment, then sleep. One atomic word, the gate, opens a run and counts the
// threads inside it: a thread that comes late finds it closed and nobody waits for it.
#include "base/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/workers.h"
#include "transload/error.h"

namespace transload {
namespace {

// Longer than the gap between two runs of one forward pass, short against a time slice: idle pools leave the cores alone.
constexpr std::chrono::microseconds kSpin{30};

// The gate: bits 0..15 threads inside, bit 16 open, above them the number of the run.
constexpr uint64_t kInsideMask = 0xFFFF;
constexpr uint64_t kOpen = 0x10000;
constexpr uint64_t kRunUnit = 0x20000;
constexpr uint32_t kMostWorkers = 256;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Whether `done` becomes true while spinning.
template <class Done>
bool spin_until(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

struct WorkerPool::State {
  std::atomic<uint64_t> gate{0};
  std::atomic<uint64_t> next{0};  // range to hand out
  std::atomic<bool> stopping{false};
  std::atomic<bool> running{false};
  // Written by run() while the gate is closed and empty.
  uint64_t count = 0;
  uint64_t grain = 1;
  uint64_t ranges = 0;
  const Task* task = nullptr;

  // Who sleeps announces it before a last look at the gate; who changes the gate looks here afterwards: one of them sees the
  // other (all four accesses are sequentially consistent).
  std::mutex mutex;
  std::atomic<uint32_t> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::condition_variable opened;
  std::condition_variable emptied;

  std::mutex error_mutex;
  std::exception_ptr first_error;
  std::vector<std::thread> threads;

  void work(uint32_t worker) {
    try {
      for (;;) {
        const uint64_t range = next.fetch_add(1, std::memory_order_relaxed);
        if (range >= ranges) return;
        const uint64_t begin = range * grain;
        (*task)(begin, count - begin < grain ? count : begin + grain, worker);
      }
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!first_error) first_error = std::current_exception();
      next.store(ranges, std::memory_order_relaxed);
    }
  }

  void serve(uint32_t worker) {
    uint64_t served = 0;
    const auto something_to_do = [&] {
      const uint64_t seen = gate.load();
      return stopping.load() || ((seen & kOpen) != 0 && seen / kRunUnit != served);
    };
    for (;;) {
      if (!spin_until(something_to_do)) {
        std::unique_lock lock(mutex);
        ++sleepers;
        opened.wait(lock, something_to_do);
        --sleepers;
      }
      if (stopping.load()) return;
      uint64_t seen = gate.load();
      bool inside = false;
      while (!inside && (seen & kOpen) != 0) inside = gate.compare_exchange_weak(seen, seen + 1);
      if (!inside) continue;
      served = seen / kRunUnit;
      work(worker);
      const uint64_t left = gate.fetch_sub(1) - 1;
      if ((left & kInsideMask) == 0 && caller_sleeps.load()) {
        { const std::lock_guard lock(mutex); }
        emptied.notify_one();
      }
    }
  }

  void open() {
    gate.store((gate.load() / kRunUnit + 1) * kRunUnit | kOpen);
    if (sleepers.load() == 0) return;
    { const std::lock_guard lock(mutex); }
    opened.notify_all();
  }

  void close() {
    gate.fetch_and(~kOpen);
    const auto empty = [&] { return (gate.load() & kInsideMask) == 0; };
    if (spin_until(empty)) return;
    std::unique_lock lock(mutex);
    caller_sleeps = true;
    emptied.wait(lock, empty);
    caller_sleeps = false;
  }
};

WorkerPool::WorkerPool(uint32_t workers) : state_(std::make_unique<State>()) {
  if (workers == 0) workers = default_workers();
  workers = std::min(workers, kMostWorkers);
  state_->threads.reserve(workers - 1);
  try {
    for (uint32_t worker = 1; worker < workers; ++worker) {
      state_->threads.emplace_back([state = state_.get(), worker] { state->serve(worker); });
    }
  } catch (const std::system_error&) {
    // The system refuses more threads: the pool is as large as it could become.
  }
}

WorkerPool::~WorkerPool() {
  state_->stopping = true;
  { const std::lock_guard lock(state_->mutex); }
  state_->opened.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

uint32_t WorkerPool::size() const { return static_cast<uint32_t>(state_->threads.size()) + 1; }

void WorkerPool::run(uint64_t count, uint64_t grain, const Task& task) {
  if (grain == 0) throw Error(ErrorCode::internal, "grain of a parallel loop: got 0, expected at least 1");
  if (count == 0) return;
  State& s = *state_;
  if (s.running.exchange(true)) {
    throw Error(ErrorCode::internal, "worker pool is busy: got a second run, expected one at a time");
  }
  s.count = count;
  s.grain = grain;
  s.ranges = (count - 1) / grain + 1;
  s.task = &task;
  s.next.store(0, std::memory_order_relaxed);
  const bool shared = s.ranges > 1 && !s.threads.empty();
  if (shared) s.open();
  s.work(0);
  if (shared) s.close();
  const std::exception_ptr error = std::exchange(s.first_error, nullptr);
  s.running = false;
  if (error) std::rethrow_exception(error);
}

}  // namespace transload
