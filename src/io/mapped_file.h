// A file mapped read-only: weights that are read where they lie. Exports never map; the reference and the interpreter do.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "io/file.h"

namespace transload {

// Two open files with one identity are the same file, by whatever path.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  auto operator<=>(const FileIdentity&) const = default;
};
FileIdentity identity_of(const InputFile& file);  // throws io_failure

// Pages are shared with the page cache. A file that another process truncates meanwhile cannot be survived (SIGBUS), so bundles
// and checkpoints must be left alone while they run.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> map(const InputFile& file);  // throws io_failure, bad_offset (it shrank)
  MappedFile(const MappedFile&) = delete;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile() = default;
  std::span<const std::byte> bytes_;
};

}  // namespace transload
