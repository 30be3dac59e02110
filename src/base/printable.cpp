// Escapes and cuts text from files before it enters a message.
#include "base/printable.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace transload {
namespace {

// Characters that steer a terminal or reorder the text around them: C0, DEL, C1 (U+0080..9F), line and paragraph separators
// (U+2028, U+2029) and the bidirectional controls (U+200E, U+200F, U+202A..2E, U+2066..69). And the byte order mark, which some
// editors put before a text and nobody sees.
bool is_control(std::string_view sequence) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(sequence[i]); };
  if (sequence.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  if (sequence.size() == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;
  if (sequence == "\xEF\xBB\xBF") return true;
  if (sequence.size() != 3 || byte(0) != 0xE2) return false;
  const unsigned char last = byte(2);
  if (byte(1) == 0x80) return last == 0x8E || last == 0x8F || (last >= 0xA8 && last <= 0xAE);
  return byte(1) == 0x81 && last >= 0xA6 && last <= 0xA9;
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  std::string result;
  size_t position = 0;
  while (position < text.size()) {
    const size_t length = utf8_sequence_bytes(text.substr(position));
    if (position + (length == 0 ? 1 : length) > max_bytes) {
      result += "...";
      break;
    }
    const std::string_view character = text.substr(position, length == 0 ? 1 : length);
    if (length == 0 || is_control(character)) {
      for (const char c : character) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += character;
    }
    position += character.size();
  }
  return result;
}

}  // namespace transload
