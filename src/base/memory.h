// Memory that the machine can still give, to refuse what cannot fit before the system ends the program.
#pragma once

#include <cstdint>

namespace transload {

// Free memory and caches that the system would give up; where that is unknown, all the machine has.
uint64_t available_memory_bytes();

}  // namespace transload
