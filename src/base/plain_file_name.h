// Names of files that one file says of others.
#pragma once

#include <cstddef>
#include <string_view>

namespace transload {

// Whether a name is that of a file in a folder and nothing else: no path that reaches out of it, on any system.
inline bool is_plain_file_name(std::string_view name) {
  constexpr size_t kMaxBytes = 255;
  return !name.empty() && name.size() <= kMaxBytes && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace transload
