// Positioned reads over regular files, safe against interruption and against paths that are not files.
#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "transload/error.h"

namespace transload {
namespace {

// Linux moves at most 0x7ffff000 bytes in one call.
constexpr uint64_t kMaxReadBytes = uint64_t{1} << 30;

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "another kind of file";
}

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void throw_os_error(const std::string& what, const std::string& file, int error_number, std::optional<uint64_t> offset) {
  throw Error(ErrorCode::io_failure, fmt::format("{}: {}", what, std::generic_category().message(error_number)),
              {file, {}, offset});
}

// O_NONBLOCK: opening a pipe that nobody writes to would wait for ever. Symbolic links are followed, as hub caches use them.
std::shared_ptr<const InputFile> InputFile::open(const std::filesystem::path& path) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    const int error_number = errno;
    if (error_number == ENOENT || error_number == ENOTDIR) {
      throw Error(ErrorCode::file_missing, "no such file or folder: got nothing at this path, expected a file",
                  {path.string(), {}, {}});
    }
    throw_os_error("cannot open", path.string(), error_number);
  }
  auto file = std::shared_ptr<InputFile>(new InputFile);
  file->fd_ = FileDescriptor(fd);
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_os_error("cannot stat", path.string(), errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::io_failure, fmt::format("cannot read: got {}, expected a regular file", kind_of(status.st_mode)),
                {path.string(), {}, {}});
  }
  file->path_ = path;
  file->name_ = path.filename().string();
  file->size_ = static_cast<uint64_t>(status.st_size);
  return file;
}

void InputFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    throw Error(ErrorCode::bad_offset,
                fmt::format("read past the end of the file: got {} bytes, expected at most {} (incomplete download?)", out.size(),
                            offset > size_ ? 0 : size_ - offset),
                {name_, {}, offset});
  }
  while (!out.empty()) {
    const size_t wanted = std::min<uint64_t>(out.size(), kMaxReadBytes);
    const ssize_t count = ::pread(fd_.get(), out.data(), wanted, static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_os_error("cannot read", name_, errno, offset);
    }
    if (count == 0) {
      throw Error(ErrorCode::bad_offset,
                  fmt::format("the file shrank while it was read: got its end, expected {} more bytes", out.size()),
                  {name_, {}, offset});
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const auto file = InputFile::open(path);
  if (file->size() > max_bytes) {
    throw Error(ErrorCode::bad_header, fmt::format("file too large: got {} bytes, expected at most {}", file->size(), max_bytes),
                {path.string(), {}, {}});
  }
  std::string text(file->size(), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace transload
