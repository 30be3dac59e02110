// What the programs share that write samples for the Python tests: whole files, and a main that names its one argument.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "transload/error.h"

namespace transload {

inline void write_sample(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw Error(ErrorCode::io_failure, fmt::format("'{}' cannot be written", path.string()));
}

inline int run_sample_program(int argc, char** argv, const char* name, void (*write)(const std::filesystem::path& directory)) {
  if (argc != 2) {
    std::fputs(fmt::format("usage: {} DIRECTORY\n", name).c_str(), stderr);
    return 2;
  }
  try {
    write(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace transload
