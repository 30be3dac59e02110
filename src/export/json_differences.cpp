// Walks two JSON objects side by side.
#include "export/json_differences.h"

#include <fmt/format.h>

#include "base/printable.h"

namespace transload {
namespace {

void find_differences(const Json& got, const Json& expected, const std::string& path, std::vector<std::string>& differences) {
  for (const auto& [key, value] : expected.object()) {
    const std::string name = path.empty() ? key : path + "." + key;
    const Json* other = got.find(key);
    if (other != nullptr && other->is_object() && value.is_object()) {
      find_differences(*other, value, name, differences);
    } else if (other == nullptr || *other != value) {
      differences.push_back(fmt::format("field '{}': got {}, expected {}", printable(name, 120),
                                        other == nullptr ? "none" : printable(write_json(*other, 0), 60),
                                        printable(write_json(value, 0), 60)));
    }
  }
}

}  // namespace

std::vector<std::string> differing_fields(const Json& got, const Json& expected, const std::string& path) {
  std::vector<std::string> differences;
  find_differences(got, expected, path, differences);
  return differences;
}

}  // namespace transload
