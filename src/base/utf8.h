// Recognises well-formed UTF-8, so that text from files can be put into messages and JSON.
#pragma once

#include <cstddef>
#include <string_view>

namespace transload {

// Bytes of the well-formed sequence that `text` starts with, 1 to 4; 0 when there is none (RFC 3629: no overlong forms, no
// surrogates, nothing above U+10FFFF).
inline size_t utf8_sequence_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  // Only the second byte has bounds tighter than 80..BF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

}  // namespace transload
