// Writes a small file that appears whole or not at all: a sibling temporary file, flushed, then renamed over the path.
#pragma once

#include <filesystem>
#include <string_view>

namespace transload {

// Replaces a regular file; follows a symbolic link to one. Leaves nothing behind on failure. Throws io_failure naming the path
// (no folder, permission, disk full, a path that is a folder or a device). SIGXFSZ must be ignored by the caller's process, so
// that a file limit is EFBIG.
void write_file_whole(const std::filesystem::path& path, std::string_view bytes);

}  // namespace transload
