// Read-only mapping of a whole file.
#include "io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "transload/error.h"

namespace transload {
namespace {

struct stat status_of(const InputFile& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) throw_os_error("cannot stat", file.name(), errno);
  return status;
}

}  // namespace

FileIdentity identity_of(const InputFile& file) {
  const struct stat status = status_of(file);
  return {static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino)};
}

std::shared_ptr<const MappedFile> MappedFile::map(const InputFile& file) {
  // Offsets were validated against the size at opening; a page past the end would be fatal.
  const auto size_now = static_cast<uint64_t>(status_of(file).st_size);
  if (size_now < file.size()) {
    throw Error(ErrorCode::bad_offset,
                fmt::format("the file shrank after it was opened: got {} bytes, expected {}", size_now, file.size()),
                {.file = file.name(), .tensor = {}, .offset = {}});
  }
  auto mapped = std::shared_ptr<MappedFile>(new MappedFile);
  if (file.size() == 0) return mapped;
  void* address = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (address == MAP_FAILED) throw_os_error("cannot map", file.name(), errno);
  mapped->bytes_ = {static_cast<const std::byte*>(address), file.size()};
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace transload
