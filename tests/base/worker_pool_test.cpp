// Every index once from all workers, the first exception, many short runs in a row, and threads that sleep when idle.
#include "base/worker_pool.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/workers.h"
#include "error_matchers.h"

namespace transload {
namespace {

using std::chrono::milliseconds;

double processor_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

TEST(WorkerPool, CoversEveryIndexOnce) {
  for (const uint32_t workers : {0U, 1U, 2U, 7U}) {
    WorkerPool pool(workers);
    for (const uint64_t grain : {1U, 3U, 64U, 1000U, 5000U}) {
      std::vector<std::atomic<int>> calls(1000);
      pool.run(calls.size(), grain, [&](uint64_t begin, uint64_t end, uint32_t worker) {
        ASSERT_LT(begin, end);
        ASSERT_LE(end - begin, grain);
        ASSERT_LT(worker, pool.size());
        for (uint64_t i = begin; i < end; ++i) ++calls[i];
      });
      for (const auto& count : calls) ASSERT_EQ(count, 1);
    }
  }
}

TEST(WorkerPool, CoversRangesAtTheEndOfTheNumbers) {
  WorkerPool pool(2);
  const uint64_t most = UINT64_MAX;
  std::atomic<uint64_t> sum{0};
  pool.run(most, most / 2 + 1, [&](uint64_t begin, uint64_t end, uint32_t) { sum += end - begin; });
  EXPECT_EQ(sum, most);
}

TEST(WorkerPool, HasTheSizeAskedFor) {
  EXPECT_EQ(WorkerPool(3).size(), 3U);
  EXPECT_EQ(WorkerPool(1).size(), 1U);
  EXPECT_EQ(WorkerPool().size(), default_workers());
}

TEST(WorkerPool, DoesNothingForZeroTasks) {
  WorkerPool pool(4);
  pool.run(0, 1, [](uint64_t, uint64_t, uint32_t) { FAIL(); });
}

TEST(WorkerPool, LetsAllWorkersTakePart) {
  WorkerPool pool(3);
  std::mutex mutex;
  std::set<uint32_t> seen;
  pool.run(64, 1, [&](uint64_t, uint64_t, uint32_t worker) {
    {
      const std::lock_guard lock(mutex);
      seen.insert(worker);
    }
    std::this_thread::sleep_for(milliseconds(2));
  });
  EXPECT_EQ(seen, (std::set<uint32_t>{0, 1, 2}));
}

TEST(WorkerPool, KeepsOneRangeOnTheCallingThread) {
  WorkerPool pool(4);
  pool.run(10, 10, [caller = std::this_thread::get_id()](uint64_t, uint64_t, uint32_t worker) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(worker, 0U);
  });
}

TEST(WorkerPool, SeesTheResultsOfOneRunInTheNext) {
  for (const uint32_t workers : {2U, 5U}) {
    WorkerPool pool(workers);
    std::vector<uint64_t> values(97, 0);  // plain memory: the runs themselves must order the accesses
    for (int round = 0; round < 3000; ++round) {
      pool.run(values.size(), 7, [&](uint64_t begin, uint64_t end, uint32_t) {
        for (uint64_t i = begin; i < end; ++i) values[i] += i;
      });
      if (round % 500 == 0) std::this_thread::sleep_for(milliseconds(1));  // long enough to fall asleep
    }
    for (uint64_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 3000 * i);
  }
}

TEST(WorkerPool, RethrowsStopsHandingOutAndGoesOn) {
  for (const uint32_t workers : {1U, 4U}) {
    WorkerPool pool(workers);
    std::atomic<uint64_t> calls{0};
    EXPECT_THAT(
        [&] {
          pool.run(1'000'000'000, 1, [&](uint64_t begin, uint64_t, uint32_t) {
            ++calls;
            if (begin == 10) throw Error(ErrorCode::bad_header, "range ten");
          });
        },
        Fails(ErrorCode::bad_header, testing::HasSubstr("range ten")));
    EXPECT_LT(calls, 1'000'000'000U);
    uint64_t sum = 0;
    pool.run(10, 10, [&](uint64_t begin, uint64_t end, uint32_t) { sum += end - begin; });
    EXPECT_EQ(sum, 10U);
  }
}

TEST(WorkerPool, KeepsTheFirstOfSeveralExceptions) {
  WorkerPool pool(2);
  std::atomic<bool> inside{false};
  EXPECT_THAT(
      [&] {
        pool.run(2, 1, [&](uint64_t begin, uint64_t, uint32_t) {
          if (begin == 0) {
            while (!inside) std::this_thread::yield();
            throw Error(ErrorCode::bad_header, "first");
          }
          inside = true;
          std::this_thread::sleep_for(milliseconds(100));
          throw Error(ErrorCode::bad_header, "second");
        });
      },
      Fails(ErrorCode::bad_header, testing::StrEq("first")));
}

TEST(WorkerPool, WaitsForRangesThatTakeLongerThanTheSpin) {
  WorkerPool pool(3);
  std::atomic<int> finished{0};
  pool.run(3, 1, [&](uint64_t begin, uint64_t, uint32_t) {
    std::this_thread::sleep_for(milliseconds(begin == 0 ? 1 : 30));
    ++finished;
  });
  EXPECT_EQ(finished, 3);
}

TEST(WorkerPool, RefusesASecondRunAndAGrainOfNothing) {
  WorkerPool pool(2);
  EXPECT_THAT([&] { pool.run(1, 0, [](uint64_t, uint64_t, uint32_t) {}); },
              Fails(ErrorCode::internal, testing::HasSubstr("got 0")));
  EXPECT_THAT([&] { pool.run(1, 1, [&](uint64_t, uint64_t, uint32_t) { pool.run(1, 1, [](uint64_t, uint64_t, uint32_t) {}); }); },
              Fails(ErrorCode::internal, testing::HasSubstr("busy")));
}

TEST(WorkerPool, LeavesTheProcessorAloneWhenIdle) {
  WorkerPool pool(8);
  pool.run(64, 1, [](uint64_t, uint64_t, uint32_t) {});
  std::this_thread::sleep_for(milliseconds(20));
  const double before = processor_seconds();
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_LT(processor_seconds() - before, 0.05);
}

}  // namespace
}  // namespace transload
