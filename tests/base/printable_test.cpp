// Text made fit for a message, and the UTF-8 rules behind it.
#include "base/printable.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace transload {
namespace {

TEST(Printable, KeepsOrdinaryTextAndWellFormedUtf8) {
  EXPECT_EQ(printable("model.layers.0"), "model.layers.0");
  EXPECT_EQ(printable("größe 模型 😀"), "größe 模型 😀");
}

TEST(Printable, EscapesControlBytesAndBrokenUtf8) {
  EXPECT_EQ(printable(std::string_view("a\0b\n\x7f", 5)), "a\\x00b\\x0a\\x7f");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
}

// A terminal takes U+009B for an escape sequence's beginning, and U+202E turns the rest of the line round.
TEST(Printable, EscapesCharactersThatSteerATerminalOrReorderText) {
  EXPECT_EQ(printable("a\xc2\x9b"
                      "31m\xc2\x80"),
            "a\\xc2\\x9b31m\\xc2\\x80");
  EXPECT_EQ(printable("\u202e\u2028\u2066\u200f"), "\\xe2\\x80\\xae\\xe2\\x80\\xa8\\xe2\\x81\\xa6\\xe2\\x80\\x8f");
  EXPECT_EQ(printable("\u00a0\u2013\u2026\u2070\u200d"), "\u00a0\u2013\u2026\u2070\u200d");
}

TEST(Printable, EscapesTheByteOrderMark) { EXPECT_EQ(printable("\ufeff1 2"), "\\xef\\xbb\\xbf1 2"); }

TEST(Printable, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(printable(std::string(300, 'x'), 10), std::string(10, 'x') + "...");
  EXPECT_EQ(printable("aaaü", 4), "aaa...");
  EXPECT_EQ(printable("aaaü", 5), "aaaü");
}

// Counts the code points whose encoding, written here from the bit layout of RFC 3629, is accepted with its whole length.
TEST(Utf8, AcceptsExactlyTheCodePointsThatExist) {
  for (uint32_t point = 0; point < 0x120000; ++point) {
    std::string bytes;
    const auto tail = [&](int shift) { bytes += static_cast<char>(0x80 | (point >> shift & 0x3F)); };
    if (point < 0x80) {
      bytes += static_cast<char>(point);
    } else if (point < 0x800) {
      bytes += static_cast<char>(0xC0 | point >> 6);
      tail(0);
    } else if (point < 0x10000) {
      bytes += static_cast<char>(0xE0 | point >> 12);
      tail(6), tail(0);
    } else {
      bytes += static_cast<char>(0xF0 | point >> 18);
      tail(12), tail(6), tail(0);
    }
    const bool exists = point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
    ASSERT_EQ(utf8_sequence_bytes(bytes), exists ? bytes.size() : 0) << std::hex << point;
    bytes.pop_back();
    ASSERT_EQ(utf8_sequence_bytes(bytes), 0U) << std::hex << point;
  }
}

TEST(Utf8, RefusesOverlongFormsAndStrayBytes) {
  for (const std::string_view bytes : {"\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\x80", "\xfe", "\xff", ""}) {
    EXPECT_EQ(utf8_sequence_bytes(bytes), 0U);
  }
}

}  // namespace
}  // namespace transload
