// The family table, and how a config or a GGUF file finds its row.
#include "model/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/printable.h"

namespace transload {

std::span<const FamilyRow> family_table() {
  static const auto table =
      std::to_array({kSparkFamily, kLlamaFamily, kMistralFamily, kGemma3Family, kPhi3Family, kPhi3SmallFamily, kPhimoeFamily});
  return table;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const FamilyRow& row : family_table()) names.emplace_back(row.name);
  return names;
}

const FamilyRow& find_family(const Json& config, const std::string& config_file) {
  const Json* type = config.find("model_type");
  std::vector<std::string_view> known;
  for (const FamilyRow& row : family_table()) known.insert(known.end(), row.model_types.begin(), row.model_types.end());
  if (type == nullptr || !type->is_string()) {
    throw Error(
        ErrorCode::config_missing,
        fmt::format("field 'model_type': missing: got {}, expected a string", type == nullptr ? "none" : type->kind_name()),
        {config_file, "", std::nullopt});
  }
  for (const FamilyRow& row : family_table()) {
    if (std::find(row.model_types.begin(), row.model_types.end(), type->string()) != row.model_types.end()) return row;
  }
  throw Error(ErrorCode::arch_unknown,
              fmt::format("field 'model_type': no such model family: got '{}', expected one of {}", printable(type->string(), 60),
                          fmt::join(known, ", ")),
              {config_file, "", std::nullopt});
}

const FamilyRow& find_gguf_family(const Json& metadata, const std::string& file) {
  const Json* architecture = metadata.find("general.architecture");
  if (architecture == nullptr || !architecture->is_string()) {
    throw Error(ErrorCode::config_missing, "field 'general.architecture': missing: got none, expected a string",
                {file, "", std::nullopt});
  }
  std::vector<std::string_view> known;
  for (const FamilyRow& row : family_table()) {
    if (row.gguf == nullptr) continue;
    if (row.gguf->architecture == architecture->string()) return row;
    known.push_back(row.gguf->architecture);
  }
  throw Error(ErrorCode::arch_unknown,
              fmt::format("field 'general.architecture': no such model family: got '{}', expected one of {}",
                          printable(architecture->string(), 60), fmt::join(known, ", ")),
              {file, "", std::nullopt});
}

}  // namespace transload
