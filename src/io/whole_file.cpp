// The temporary file is a sibling of the destination, since rename works within one file system only.
#include "io/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>
#include <utility>

#include "io/file.h"
#include "transload/error.h"

namespace transload {
namespace {

namespace fs = std::filesystem;

// What rename would replace: never a folder, a device or a pipe, and not the link itself.
fs::path replaceable(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) throw_os_error("cannot stat", path.string(), error.value());
  if (!fs::exists(status)) {
    if (!path.has_filename()) {
      throw Error(ErrorCode::io_failure, "cannot write: got a path without a file name, expected a file",
                  {path.string(), {}, {}});
    }
    return path;
  }
  if (!fs::is_regular_file(status)) {
    throw Error(ErrorCode::io_failure, "cannot write: got a folder or a device at this path, expected a regular file or none",
                {path.string(), {}, {}});
  }
  fs::path target = fs::canonical(path, error);
  if (error) throw_os_error("cannot resolve", path.string(), error.value());
  return target;
}

// A new file beside `target` whose name no other run has; mode as of any new file.
std::pair<FileDescriptor, fs::path> create_sibling(const fs::path& target) {
  constexpr int kAttempts = 16;
  std::random_device random;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    fs::path path = target.parent_path() / fmt::format(".{}.{:08x}", target.filename().string(), random());
    FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.valid() || errno != EEXIST) return {std::move(file), std::move(path)};
  }
  return {};
}

// 0, or the errno of what failed.
int write_and_flush(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count == 0 ? ENOSPC : errno;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  int result = -1;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

}  // namespace

void write_file_whole(const fs::path& path, std::string_view bytes) {
  const fs::path target = replaceable(path);
  const auto [file, temporary] = create_sibling(target);
  if (!file.valid()) throw_os_error("cannot create", path.string(), errno);
  struct stat old {};
  if (::stat(target.c_str(), &old) == 0) ::fchmod(file.get(), old.st_mode & 0777);
  int error_number = write_and_flush(file.get(), bytes);
  if (error_number == 0 && ::rename(temporary.c_str(), target.c_str()) != 0) error_number = errno;
  if (error_number == 0) return;
  ::unlink(temporary.c_str());
  throw_os_error("cannot write", path.string(), error_number);
}

}  // namespace transload
