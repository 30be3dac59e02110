// OutputDirectory: a bundle that appears whole or not at all. Files are staged in a locked hidden folder, then renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace transload {

// A file being written inside the staging folder. write_at and read_at are thread-safe for disjoint ranges.
class OutputFile {
 public:
  const std::string& name() const { return name_; }  // relative to the bundle
  uint64_t size() const { return size_; }
  void write_at(uint64_t offset, std::span<const std::byte> data) const;
  void read_at(uint64_t offset, std::span<std::byte> out) const;  // of what was written

 private:
  friend class OutputDirectory;
  FileDescriptor fd_;
  std::string name_;
  uint64_t size_ = 0;
};

class OutputDirectory {
 public:
  // Refuses a destination that exists and is not an empty folder (destination_exists) unless `overwrite`. Creates parents,
  // removes staging folders that no running process holds, makes and locks a new one. SIGXFSZ must be ignored by the caller's
  // process (the command does so), so that a file limit is EFBIG.
  OutputDirectory(std::filesystem::path destination, bool overwrite);
  // Files that join those of a folder, which is made where it is missing; several processes may do so at once. `existing`: what
  // happens to a file of the same name that is there by then. Commit puts file after file in its place, in the order in which
  // they were created, each flushed before the next; the staging folder is inside `folder`.
  enum class Existing : uint8_t { replaced, kept };
  static OutputDirectory inside(std::filesystem::path folder, Existing existing = Existing::replaced);
  OutputDirectory(const OutputDirectory&) = delete;
  ~OutputDirectory();  // without commit: removes the staging folder

  const std::filesystem::path& destination() const { return destination_; }
  // `name` is a plain file name, used once. A file of exactly `size` bytes, its blocks reserved (fallocate; plain ftruncate where
  // the file system has none or `sparse`).
  OutputFile& create(std::string_view name, uint64_t size, bool sparse = false);
  void write_file(std::string_view name, std::string_view bytes);  // create + write
  // Flushes every file, then renames; exchanges and removes the old folder when overwriting. No file can be used afterwards.
  void commit();
  // Time spent in fsync by commit.
  double flush_seconds() const { return flush_seconds_; }

 private:
  OutputDirectory(std::filesystem::path folder, Existing existing);
  void move_files();
  void discard() noexcept;

  std::filesystem::path destination_;  // as given, without a trailing slash
  std::filesystem::path target_;       // destination_ made absolute, symbolic links followed
  std::filesystem::path staging_;
  std::vector<std::filesystem::path> created_parents_;  // outermost first; removed again when nothing is committed
  std::optional<Existing> existing_;                    // of `inside`
  bool overwrite_ = false;
  bool committed_ = false;
  double flush_seconds_ = 0;
  FileDescriptor lock_;
  std::vector<std::unique_ptr<OutputFile>> files_;
};

}  // namespace transload
