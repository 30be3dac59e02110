// The buffer behind SequentialReader.
#include "io/sequential_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "transload/error.h"

namespace transload {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kBufferBytes = uint64_t{256} << 10;

}  // namespace

SequentialReader::SequentialReader(std::shared_ptr<const InputFile> file, uint64_t max_bytes)
    : file_(std::move(file)), end_(std::min(file_->size(), max_bytes)), buffer_(std::min(kBufferBytes, end_)) {}

std::string SequentialReader::text(uint64_t bytes, std::string_view what) {
  require(bytes, what);
  std::string result(bytes, '\0');
  read(std::as_writable_bytes(std::span(result)), what);
  return result;
}

void SequentialReader::skip(uint64_t bytes, std::string_view what) {
  require(bytes, what);
  while (bytes > 0) bytes -= take(bytes).size();
}

std::string SequentialReader::digest() {
  hasher_.update(std::span(buffer_).subspan(hashed_, cursor_ - hashed_));
  hashed_ = cursor_;
  return hasher_.hex();
}

void SequentialReader::require(uint64_t bytes, std::string_view what) const {
  if (bytes <= bytes_left()) return;
  const bool end_of_file = end_ == file_->size();
  throw Error(ErrorCode::bad_header,
              fmt::format("{} past the end of the {}: got {} bytes left, expected at least {}{}", what,
                          end_of_file ? "file" : "largest possible header", bytes_left(), bytes,
                          end_of_file ? " (incomplete download?)" : ""),
              {file_->name(), {}, position()});
}

void SequentialReader::read(std::span<std::byte> out, std::string_view what) {
  require(out.size(), what);
  while (!out.empty()) {
    const auto chunk = take(out.size());
    std::memcpy(out.data(), chunk.data(), chunk.size());
    out = out.subspan(chunk.size());
  }
}

std::span<const std::byte> SequentialReader::take(uint64_t bytes) {
  if (cursor_ == filled_) {
    hasher_.update(std::span(buffer_).subspan(hashed_, filled_ - hashed_));
    buffer_offset_ += filled_;
    filled_ = std::min<uint64_t>(buffer_.size(), end_ - buffer_offset_);
    cursor_ = 0;
    hashed_ = 0;
    file_->read_at(buffer_offset_, std::span(buffer_).first(filled_));
  }
  const auto chunk = std::span<const std::byte>(buffer_).subspan(cursor_, std::min<uint64_t>(bytes, filled_ - cursor_));
  cursor_ += chunk.size();
  return chunk;
}

}  // namespace transload
