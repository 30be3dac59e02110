// The peak resident memory of this process, as reports and summaries state it.
#pragma once

#include <cstdint>

namespace transload {

// In bytes, mapped files included; 0 where the system does not tell.
uint64_t peak_memory_bytes();

}  // namespace transload
