// Staging folder, lock and rename. The lock (flock on the staging folder itself) dies with its process, so a staging folder
// that can be locked belongs to nobody.
#include "io/output_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <limits>
#include <random>
#include <tuple>

#include "transload/error.h"

namespace transload {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRandomDigits = 16;
constexpr int kStagingAttempts = 16;

// Where staging folders of one destination lie, and what their names begin with.
struct StagingPlace {
  fs::path folder;
  std::string prefix;
};
StagingPlace place_beside(const fs::path& target) {
  return {target.parent_path(), fmt::format(".{}.transload-", target.filename().string())};
}
StagingPlace place_inside(const fs::path& target) { return {target, ".transload-"}; }

fs::path random_name(const StagingPlace& place) {
  std::random_device random;
  const uint64_t number = static_cast<uint64_t>(random()) << 32 | random();
  return place.folder / fmt::format("{}{:016x}", place.prefix, number);
}

bool is_staging_name(const std::string& name, const std::string& prefix) {
  return name.size() == prefix.size() + kRandomDigits && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos;
}

FileDescriptor open_folder(const fs::path& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// True when `path` still is the folder that `fd` was opened on.
bool is_same_folder(int fd, const fs::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

void remove_abandoned_staging(const StagingPlace& place) {
  std::error_code ignored;
  std::vector<fs::path> candidates;
  for (fs::directory_iterator each(place.folder, ignored), end; !ignored && each != end; each.increment(ignored)) {
    if (is_staging_name(each->path().filename().string(), place.prefix)) candidates.push_back(each->path());
  }
  for (const fs::path& path : candidates) {
    const FileDescriptor folder = open_folder(path);
    if (!folder.valid() || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (is_same_folder(folder.get(), path)) fs::remove_all(path, ignored);
  }
}

// Waits for a run that is removing the same folder, or has just committed it; throws when something cannot be removed.
void remove_replaced(const fs::path& path) {
  const FileDescriptor folder = open_folder(path);
  if (!folder.valid() && errno == ENOENT) return;
  while (folder.valid() && ::flock(folder.get(), LOCK_EX) != 0 && errno == EINTR) continue;
  if (folder.valid() && !is_same_folder(folder.get(), path)) return;
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_os_error("the new folder is in place, but the old one cannot be removed", path.string(), error.value());
}

// A new folder and the descriptor that holds its lock. Another run may take an unlocked folder for an abandoned one in the
// moment between mkdir and flock; then the next name is tried.
std::pair<fs::path, FileDescriptor> make_locked_staging(const StagingPlace& place) {
  for (int attempt = 0; attempt < kStagingAttempts; ++attempt) {
    const fs::path path = random_name(place);
    if (::mkdir(path.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw_os_error("cannot create folder", path.string(), errno);
    }
    FileDescriptor folder = open_folder(path);
    if (!folder.valid()) {
      const int error_number = errno;
      if (error_number == ENOENT) continue;
      ::rmdir(path.c_str());
      throw_os_error("cannot open folder", path.string(), error_number);
    }
    // Any other errno: a file system without locks (some network ones); there nobody can lock it, so nobody removes it.
    if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
    if (is_same_folder(folder.get(), path)) return {path, std::move(folder)};
  }
  throw Error(ErrorCode::io_failure, "cannot lock a staging folder: got it removed by other runs each time, expected to hold it",
              {place.folder.string(), {}, {}});
}

[[noreturn]] void refuse_destination(ErrorCode code, const fs::path& destination, std::string what) {
  throw Error(code, std::move(what), {destination.string(), {}, {}});
}

fs::path strip_trailing_slashes(const fs::path& path) {
  std::string text = path.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

void create_parents(const fs::path& folder, std::vector<fs::path>& created) {
  std::error_code error;
  if (folder.empty() || fs::exists(folder, error)) return;
  create_parents(folder.parent_path(), created);
  if (::mkdir(folder.c_str(), 0777) == 0) {
    created.push_back(folder);
  } else if (errno != EEXIST) {
    throw_os_error("cannot create folder", folder.string(), errno);
  }
}

// Absolute, with symbolic links followed as far as the path exists.
fs::path resolve(const fs::path& destination) {
  std::error_code error;
  fs::path resolved = fs::exists(destination, error) ? fs::canonical(destination, error)
                                                     : fs::weakly_canonical(fs::absolute(destination, error), error);
  if (error) throw_os_error("cannot resolve", destination.string(), error.value());
  return resolved;
}

bool holds_current_folder(const fs::path& folder) {
  std::error_code error;
  const fs::path current = fs::current_path(error);
  return !error && std::mismatch(folder.begin(), folder.end(), current.begin(), current.end()).first == folder.end();
}

// Whether there is a folder; anything else under that name is refused.
bool folder_exists(const fs::path& destination, std::string_view expected) {
  std::error_code error;
  const fs::file_status link = fs::symlink_status(destination, error);
  const fs::file_status status = fs::status(destination, error);
  if (fs::is_symlink(link) && !fs::exists(status)) {
    refuse_destination(ErrorCode::destination_exists, destination,
                       "destination: got a symbolic link to nothing, expected a folder");
  }
  if (fs::exists(status) && !fs::is_directory(status)) {
    refuse_destination(ErrorCode::destination_exists, destination, fmt::format("destination: got a file, expected {}", expected));
  }
  return fs::exists(status);
}

void check_destination(const fs::path& destination, const fs::path& target, bool overwrite) {
  if (!folder_exists(destination, "a new or empty folder")) return;
  std::error_code error;
  const bool empty = fs::is_empty(target, error);
  if (error) throw_os_error("cannot list folder", destination.string(), error.value());
  // An empty folder is replaced too, so a shell standing in it would be left in a folder without name.
  if (target == target.root_path() || holds_current_folder(target)) {
    refuse_destination(ErrorCode::usage, destination,
                       "destination: got the current folder or one that holds it, expected a folder of its own");
  }
  if (!empty && !overwrite) {
    refuse_destination(ErrorCode::destination_exists, destination,
                       "destination is not empty: got files in it, expected a new or empty folder (or --overwrite)");
  }
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

void reserve(int fd, uint64_t size, bool sparse, const std::string& name) {
  if (size == 0) return;
  if (size > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) throw_os_error("cannot reserve", name, EFBIG);
  const auto length = static_cast<off_t>(size);
  int result = -1;
  if (!sparse) {
    do {
      result = ::fallocate(fd, 0, 0, length);
    } while (result != 0 && errno == EINTR);
    if (result == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS) throw_os_error(fmt::format("cannot reserve {} bytes", size), name, errno);
  }
  do {
    result = ::ftruncate(fd, length);
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw_os_error(fmt::format("cannot extend to {} bytes", size), name, errno);
}

void flush(int fd, const std::string& name) {
  int result = -1;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  // EINVAL: a file system that cannot flush folders.
  if (result != 0 && errno != EINVAL) throw_os_error("cannot flush", name, errno);
}

// Moves a staged file to its place. False when a file is there already and `keep` is set.
bool move_file(const fs::path& staged, const fs::path& place, bool keep) {
  if (!keep) {
    if (::rename(staged.c_str(), place.c_str()) == 0) return true;
  } else {
    if (::renameat2(AT_FDCWD, staged.c_str(), AT_FDCWD, place.c_str(), RENAME_NOREPLACE) == 0) return true;
    // A file system without that flag: a second name, and the first one goes with the staging folder.
    if ((errno == EINVAL || errno == ENOSYS) && ::link(staged.c_str(), place.c_str()) == 0) return true;
    if (errno == EEXIST) return false;
  }
  throw_os_error("cannot rename the staged file", place.string(), errno);
}

// Puts `staging` in the place of the folder `target`, which ends up under the name returned.
fs::path exchange(const fs::path& staging, const fs::path& target) {
  if (::renameat2(AT_FDCWD, staging.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return staging;
  if (errno != EINVAL && errno != ENOSYS) throw_os_error("cannot exchange with the staged folder", target.string(), errno);
  // No exchange on this file system: two renames, the first undone when the second fails.
  const fs::path aside = random_name(place_beside(target));
  if (::rename(target.c_str(), aside.c_str()) != 0) throw_os_error("cannot rename", target.string(), errno);
  if (::rename(staging.c_str(), target.c_str()) != 0) {
    const int error_number = errno;
    ::rename(aside.c_str(), target.c_str());
    throw_os_error("cannot rename the staged folder", target.string(), error_number);
  }
  return aside;
}

}  // namespace

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> data) const {
  if (offset > size_ || data.size() > size_ - offset) {
    throw Error(ErrorCode::internal,
                fmt::format("write past the end: got end {}, expected at most {}", offset + data.size(), size_),
                {name_, {}, offset});
  }
  while (!data.empty()) {
    const size_t wanted = std::min<size_t>(data.size(), size_t{1} << 30);
    const ssize_t count = ::pwrite(fd_.get(), data.data(), wanted, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw_os_error("cannot write", name_, count == 0 ? ENOSPC : errno, offset);
    data = data.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

void OutputFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    throw Error(ErrorCode::internal,
                fmt::format("read past the end: got end {}, expected at most {}", offset + out.size(), size_),
                {name_, {}, offset});
  }
  while (!out.empty()) {
    const size_t wanted = std::min<size_t>(out.size(), size_t{1} << 30);
    const ssize_t count = ::pread(fd_.get(), out.data(), wanted, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_os_error("cannot read back", name_, errno, offset);
    if (count == 0) {
      throw Error(ErrorCode::io_failure,
                  fmt::format("another process cut the file short: got its end, expected {} more bytes", out.size()),
                  {name_, {}, offset});
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

OutputDirectory::OutputDirectory(fs::path destination, bool overwrite)
    : destination_(strip_trailing_slashes(destination)), overwrite_(overwrite) {
  if (!is_plain_name(destination_.filename().string())) {
    refuse_destination(ErrorCode::usage, destination_,
                       fmt::format("destination: got '{}', expected a path that ends in a folder's name", destination.string()));
  }
  target_ = resolve(destination_);
  check_destination(destination_, target_, overwrite_);
  try {
    create_parents(target_.parent_path(), created_parents_);
    remove_abandoned_staging(place_beside(target_));
    std::tie(staging_, lock_) = make_locked_staging(place_beside(target_));
  } catch (...) {
    discard();
    throw;
  }
}

OutputDirectory OutputDirectory::inside(fs::path folder, Existing existing) { return {std::move(folder), existing}; }

OutputDirectory::OutputDirectory(fs::path folder, Existing existing)
    : destination_(strip_trailing_slashes(folder)), existing_(existing) {
  if (destination_.empty()) {
    refuse_destination(ErrorCode::usage, destination_, "destination: got an empty path, expected a folder");
  }
  folder_exists(destination_, "a folder");
  target_ = resolve(destination_);
  try {
    create_parents(target_, created_parents_);
    // A whole export of this folder may have been killed as well.
    remove_abandoned_staging(place_beside(target_));
    remove_abandoned_staging(place_inside(target_));
    std::tie(staging_, lock_) = make_locked_staging(place_inside(target_));
  } catch (...) {
    discard();
    throw;
  }
}

OutputDirectory::~OutputDirectory() {
  if (!committed_) discard();
}

void OutputDirectory::discard() noexcept {
  std::error_code ignored;
  // Removing what is in a folder takes a descriptor, and the lack of one may be why we are here.
  files_.clear();
  if (!staging_.empty() && ::rmdir(staging_.c_str()) != 0) fs::remove_all(staging_, ignored);
  for (auto parent = created_parents_.rbegin(); parent != created_parents_.rend(); ++parent) ::rmdir(parent->c_str());
}

OutputFile& OutputDirectory::create(std::string_view name, uint64_t size, bool sparse) {
  if (!is_plain_name(name)) {
    throw Error(ErrorCode::internal, fmt::format("output file: got '{}', expected a plain file name", name));
  }
  auto file = std::make_unique<OutputFile>();
  file->name_ = name;
  file->size_ = size;
  file->fd_ = FileDescriptor(::openat(lock_.get(), file->name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file->fd_.valid()) throw_os_error("cannot create", file->name_, errno);
  reserve(file->fd_.get(), size, sparse, file->name_);
  return *files_.emplace_back(std::move(file));
}

void OutputDirectory::write_file(std::string_view name, std::string_view bytes) {
  create(name, bytes.size()).write_at(0, std::as_bytes(std::span(bytes)));
}

void OutputDirectory::commit() {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& file : files_) flush(file->fd_.get(), file->name_);
  flush(lock_.get(), staging_.string());
  if (existing_) move_files();
  flush_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (existing_) return;

  // rename(2) puts a folder in the place of nothing or of an empty folder, and never of anything else.
  fs::path replaced;
  if (::rename(staging_.c_str(), target_.c_str()) != 0) {
    const int error_number = errno;
    const bool occupied = error_number == ENOTEMPTY || error_number == EEXIST;
    if (occupied && !overwrite_) {
      refuse_destination(ErrorCode::destination_exists, destination_,
                         "destination was filled while this run was working: got files in it, expected none");
    }
    if (!occupied) throw_os_error("cannot rename the staged folder", destination_.string(), error_number);
    replaced = exchange(staging_, target_);
  }
  committed_ = true;

  const FileDescriptor parent = open_folder(target_.parent_path());
  if (parent.valid()) flush(parent.get(), target_.parent_path().string());
  lock_ = FileDescriptor();
  if (!replaced.empty()) remove_replaced(replaced);
}

void OutputDirectory::move_files() {
  const FileDescriptor folder = open_folder(target_);
  if (!folder.valid()) throw_os_error("cannot open folder", target_.string(), errno);
  for (const auto& file : files_) {
    move_file(staging_ / file->name_, target_ / file->name_, *existing_ == Existing::kept);
    // A later file says that an earlier one is complete, so the names have to reach the disk in this order.
    flush(folder.get(), target_.string());
  }
  files_.clear();
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  committed_ = true;
  lock_ = FileDescriptor();
}

}  // namespace transload
