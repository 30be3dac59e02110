// Escapes and cuts text from files before it enters a message.
#include "base/printable.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace transload {

std::string printable(std::string_view text, size_t max_bytes) {
  std::string result;
  size_t position = 0;
  while (position < text.size()) {
    const size_t length = utf8_sequence_bytes(text.substr(position));
    if (position + (length == 0 ? 1 : length) > max_bytes) {
      result += "...";
      break;
    }
    const auto value = static_cast<unsigned char>(text[position]);
    if (length == 0 || value < 0x20 || value == 0x7F) {
      result += fmt::format("\\x{:02x}", value);
      ++position;
    } else {
      result += text.substr(position, length);
      position += length;
    }
  }
  return result;
}

}  // namespace transload
