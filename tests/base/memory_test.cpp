// Available memory is a plausible part of the machine's.
#include "base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace transload {
namespace {

TEST(AvailableMemory, IsSomeOfWhatTheMachineHas) {
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t physical = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes;
  EXPECT_GT(available_memory_bytes(), uint64_t{16} << 20);
  EXPECT_LE(available_memory_bytes(), physical);
}

}  // namespace
}  // namespace transload
