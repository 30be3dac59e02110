// The high-water mark that the kernel keeps of this process.
#include "transload/peak_memory.h"

#include <sys/resource.h>

namespace transload {

uint64_t peak_memory_bytes() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace transload
