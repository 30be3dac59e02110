// The check of token ids, which come from users and files.
#pragma once

#include <cstdint>
#include <span>

namespace transload {

// Throws usage for an id outside 0 .. vocab_size - 1.
void require_token_ids(std::span<const int32_t> ids, uint32_t vocab_size);

}  // namespace transload
