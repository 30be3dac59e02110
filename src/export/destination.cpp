// Compares an output folder with the paths a run reads.
#include "export/destination.h"

#include <fmt/format.h>

#include "io/file.h"
#include "transload/error.h"

namespace transload {
namespace {

bool holds(const std::filesystem::path& folder, std::filesystem::path path) {
  for (;; path = path.parent_path()) {
    if (path == folder) return true;
    if (path == path.parent_path()) return false;
  }
}

}  // namespace

std::vector<std::filesystem::path> sources_of(const Checkpoint& checkpoint) {
  std::vector<std::filesystem::path> sources{checkpoint.path(), checkpoint.directory()};
  for (const auto& file : checkpoint.files()) sources.push_back(file->path());
  if (checkpoint.config() != nullptr) sources.push_back(checkpoint.config_path());
  return sources;
}

void refuse_destination_over(const std::filesystem::path& destination, const std::vector<std::filesystem::path>& sources) {
  if (destination.empty()) throw Error(ErrorCode::usage, "no destination: got an empty path, expected a folder to write");
  std::error_code ignored;
  // A trailing slash would leave an empty last component.
  const auto plain = [&](const std::filesystem::path& path) {
    return std::filesystem::absolute(path / ".", ignored).lexically_normal().parent_path();
  };
  const auto resolved = [&](const std::filesystem::path& path) {
    return (std::filesystem::weakly_canonical(plain(path), ignored) / ".").lexically_normal().parent_path();
  };
  for (const std::filesystem::path& source : sources) {
    if (holds(plain(destination), plain(source)) || holds(resolved(destination), resolved(source))) {
      throw Error(ErrorCode::usage,
                  fmt::format("the destination holds what is read: got '{}', expected a folder that does not hold '{}'",
                              destination.string(), source.string()));
    }
  }
}

}  // namespace transload
