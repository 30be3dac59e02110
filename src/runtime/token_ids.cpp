// Refuses token ids that are in no vocabulary of this size.
#include "runtime/token_ids.h"

#include <fmt/format.h>

#include "transload/error.h"

namespace transload {

void require_token_ids(std::span<const int32_t> ids, uint32_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab_size) {
      throw Error(ErrorCode::usage, fmt::format("token id outside the vocabulary: got {}, expected 0 to {}", id, vocab_size - 1));
    }
  }
}

}  // namespace transload
