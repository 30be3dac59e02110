// Gives fuzz input to readers that take files, without touching a disk.
#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "io/file.h"

namespace transload {

// One anonymous file whose content is replaced for each input. A file opened from it must be gone before the next call.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz_input", 0)) {
    if (!fd_.valid()) std::abort();
  }
  std::shared_ptr<const InputFile> open_with(std::string_view bytes) {
    if (::ftruncate(fd_.get(), 0) != 0) std::abort();
    if (::pwrite(fd_.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
    return InputFile::open(fmt::format("/proc/self/fd/{}", fd_.get()));
  }

 private:
  FileDescriptor fd_;
};

inline std::string_view as_text(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// A broken promise of the code under test: libFuzzer saves the input.
inline void must(bool promise) {
  if (!promise) std::abort();
}

}  // namespace transload
