// Reads a binary header from front to back through one small buffer, hashing what it passes; memory does not grow with the file.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/hash.h"

namespace transload {

// Numbers are little endian, as on every machine this is built for.
class SequentialReader {
 public:
  // `max_bytes`: the longest header that makes sense; a longer one is refused like a file that ends too early.
  SequentialReader(std::shared_ptr<const InputFile> file, uint64_t max_bytes);

  uint64_t position() const { return buffer_offset_ + cursor_; }  // absolute
  uint64_t bytes_left() const { return end_ - position(); }

  // Each throws bad_header naming `what` when fewer bytes are left.
  template <typename Number>
  Number number(std::string_view what) {
    std::array<std::byte, sizeof(Number)> bytes;
    read(bytes, what);
    return std::bit_cast<Number>(bytes);
  }
  std::string text(uint64_t bytes, std::string_view what);
  void skip(uint64_t bytes, std::string_view what);

  // XXH3-128 of everything read or skipped so far.
  std::string digest();

 private:
  void require(uint64_t bytes, std::string_view what) const;
  void read(std::span<std::byte> out, std::string_view what);
  // Moves the cursor over at most `bytes` and returns them; valid until the next call.
  std::span<const std::byte> take(uint64_t bytes);

  std::shared_ptr<const InputFile> file_;
  uint64_t end_ = 0;
  std::vector<std::byte> buffer_;
  uint64_t buffer_offset_ = 0;  // of the first byte of buffer_ in the file
  size_t filled_ = 0;
  size_t cursor_ = 0;
  size_t hashed_ = 0;  // bytes of buffer_ that hasher_ has seen
  Hasher hasher_;
};

}  // namespace transload
