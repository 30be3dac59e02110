// Text from a file made fit for one line of a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace transload {

// Control bytes and bytes that are not UTF-8 become \xNN; what lies beyond `max_bytes` is replaced by "...".
std::string printable(std::string_view text, size_t max_bytes = 200);

}  // namespace transload
