// Every index once, the first exception, and leaving when asked to.
#include "base/workers.h"

#include <gmock/gmock.h>

#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "error_matchers.h"

namespace transload {
namespace {

TEST(ParallelFor, CallsEachIndexOnce) {
  for (const uint32_t workers : {0U, 1U, 2U, 7U}) {
    std::vector<std::atomic<int>> calls(1000);
    parallel_for(calls.size(), workers, [&](uint64_t index, const WorkerContext&) { ++calls[index]; });
    for (const auto& count : calls) ASSERT_EQ(count, 1);
  }
}

TEST(ParallelFor, DoesNothingForZeroTasks) {
  parallel_for(0, 4, [](uint64_t, const WorkerContext&) { FAIL(); });
}

TEST(ParallelFor, NumbersItsWorkers) {
  std::mutex mutex;
  std::set<uint32_t> seen;
  parallel_for(64, 3, [&](uint64_t, const WorkerContext& context) {
    {
      const std::lock_guard lock(mutex);
      seen.insert(context.worker);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  EXPECT_EQ(seen, (std::set<uint32_t>{0, 1, 2}));
}

TEST(ParallelFor, RunsNoMoreThreadsThanTasks) {
  parallel_for(1, 8, [caller = std::this_thread::get_id()](uint64_t, const WorkerContext& context) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(context.worker, 0U);
  });
}

TEST(ParallelFor, RethrowsAndStopsHandingOut) {
  for (const uint32_t workers : {1U, 4U}) {
    std::atomic<uint64_t> calls{0};
    EXPECT_THAT(
        [&] {
          parallel_for(1'000'000'000, workers, [&](uint64_t index, const WorkerContext&) {
            ++calls;
            if (index == 10) throw Error(ErrorCode::bad_header, "task ten");
          });
        },
        Fails(ErrorCode::bad_header, testing::HasSubstr("task ten")));
    EXPECT_LT(calls, 1'000'000'000U);
  }
}

TEST(ParallelFor, KeepsTheFirstOfSeveralExceptions) {
  std::atomic<bool> thrown{false};
  EXPECT_THAT(
      [&] {
        parallel_for(2, 2, [&](uint64_t index, const WorkerContext& context) {
          if (index == 0) {
            thrown = true;
            throw Error(ErrorCode::bad_header, "first");
          }
          while (!thrown || !context.stopping()) std::this_thread::yield();
          throw Error(ErrorCode::bad_header, "second");
        });
      },
      Fails(ErrorCode::bad_header, testing::StrEq("first")));
}

// A task that waits for a lower one must see the stop, or the call would never return.
TEST(ParallelFor, ShowsTheStopToTasksThatWait) {
  std::atomic<bool> ready{false};
  EXPECT_THROW(parallel_for(2, 2,
                            [&](uint64_t index, const WorkerContext& context) {
                              if (index == 0) throw std::runtime_error("never gets ready");
                              while (!ready && !context.stopping()) std::this_thread::yield();
                            }),
               std::runtime_error);
}

TEST(DefaultWorkers, LieBetweenOneAndEight) {
  EXPECT_GE(default_workers(), 1U);
  EXPECT_LE(default_workers(), 8U);
}

}  // namespace
}  // namespace transload
