// Files: read-only with positioned reads, and small whole-file reads. Every failure names the file and the offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace transload {

// Owns a descriptor, move-only by nature of unique ownership.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Thread-safe: read_at may be called from any number of threads.
class InputFile {
 public:
  static std::shared_ptr<const InputFile> open(const std::filesystem::path& path);  // regular files only
  const std::filesystem::path& path() const { return path_; }
  const std::string& name() const { return name_; }  // the last path component, for messages
  uint64_t size() const { return size_; }
  int descriptor() const { return fd_.get(); }  // stays open as long as this
  // Fills `out` from `offset`; throws bad_offset past the end, io_failure on a read error.
  void read_at(uint64_t offset, std::span<std::byte> out) const;

 private:
  InputFile() = default;
  FileDescriptor fd_;
  std::filesystem::path path_;
  std::string name_;
  uint64_t size_ = 0;
};

// Whole small file as text; throws file_missing when absent, bad_header above `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{256} << 20);

// io_failure with the errno text: "cannot write: No space left on device".
[[noreturn]] void throw_os_error(const std::string& what, const std::string& file, int error_number,
                                 std::optional<uint64_t> offset = std::nullopt);

}  // namespace transload
