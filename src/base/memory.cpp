// MemAvailable of /proc/meminfo: Linux grants more than there is and kills whoever touches it.
#include "base/memory.h"

#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

namespace transload {
namespace {

uint64_t physical_memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return uint64_t{1} << 36;
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
}

}  // namespace

uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  while (file >> name >> kib) {
    if (name == "MemAvailable:") return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return physical_memory_bytes();
}

}  // namespace transload
