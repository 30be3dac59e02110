// How long work reports itself: bytes done of bytes in all.
#pragma once

#include <cstdint>
#include <functional>

namespace transload {

// Called from worker threads, one call at a time; `done` never decreases. An empty function means silence.
using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

}  // namespace transload
