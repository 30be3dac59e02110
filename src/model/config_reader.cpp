// Strict reading of config fields: types, ranges, faults collected with their dotted path, fields nobody read.
#include "model/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/printable.h"
#include "model/harmless_fields.h"

namespace transload {
namespace {

std::string value_text(const Json& value) { return printable(write_json(value, 0), 60); }

bool same_value(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  return a == b;
}

bool is_unsupported(ErrorCode code) { return code == ErrorCode::config_unsupported; }

}  // namespace

struct ConfigReader::Shared {
  struct Fault {
    ErrorCode code;
    std::string text;
  };
  struct Scope {
    const Json* object;
    std::string prefix;
    bool is_config;
  };
  std::vector<Fault> faults;
  std::set<std::string> read;    // dotted paths
  std::set<std::string> faulty;  // dotted paths
  std::vector<Scope> scopes;
};

ConfigReader::ConfigReader(const Json& object, std::string file, std::string prefix)
    : object_(&object), file_(std::move(file)), prefix_(std::move(prefix)), shared_(std::make_shared<Shared>()) {
  shared_->scopes.push_back({object_, prefix_, prefix_.empty()});
  if (!object.is_object()) {
    fault(ErrorCode::config_invalid, fmt::format("wrong type: got {}, expected an object", object.kind_name()));
  }
}

ConfigReader::ConfigReader(const Json& object, std::string file, std::string prefix, std::shared_ptr<Shared> shared)
    : object_(&object), file_(std::move(file)), prefix_(std::move(prefix)), shared_(std::move(shared)) {}

std::string ConfigReader::field(std::string_view key) const { return fmt::format("field '{}{}'", prefix_, printable(key, 80)); }

// A field may be read twice, from the config as a whole and as a setting of one part; its fault is one.
void ConfigReader::fault(ErrorCode code, std::string text) {
  std::vector<Shared::Fault>& faults = shared_->faults;
  const bool known = std::any_of(faults.begin(), faults.end(), [&](const Shared::Fault& fault) { return fault.text == text; });
  if (!known) faults.push_back({code, std::move(text)});
}

void ConfigReader::field_fault(ErrorCode code, std::string_view key, const std::string& text) {
  shared_->faulty.insert(prefix_ + std::string(key));
  fault(code, fmt::format("{}: {}", field(key), text));
}

bool ConfigReader::is_faulty(std::string_view key) const { return shared_->faulty.contains(prefix_ + std::string(key)); }

bool ConfigReader::has(std::string_view key) const {
  const Json* value = object_->find(key);
  return value != nullptr && !value->is_null();
}

const Json* ConfigReader::read(std::string_view key) {
  shared_->read.insert(prefix_ + std::string(key));
  return has(key) ? object_->find(key) : nullptr;
}

const Json* ConfigReader::read_required(std::string_view key, std::string_view expected) {
  const Json* value = read(key);
  if (value == nullptr) field_fault(ErrorCode::config_missing, key, fmt::format("missing: got none, expected {}", expected));
  return value;
}

void ConfigReader::wrong_type(std::string_view key, const Json& got, std::string_view expected) {
  field_fault(ErrorCode::config_invalid, key, fmt::format("wrong type: got {}, expected {}", value_text(got), expected));
}

std::optional<uint32_t> ConfigReader::maybe_u32(std::string_view key, uint32_t minimum, uint32_t maximum) {
  const Json* value = read(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_integer()) {
    wrong_type(key, *value, "an integer");
    return minimum;
  }
  const int64_t number = value->integer();
  if (number < int64_t{minimum} || number > int64_t{maximum}) {
    field_fault(ErrorCode::config_invalid, key, fmt::format("out of range: got {}, expected {} to {}", number, minimum, maximum));
    return minimum;
  }
  return static_cast<uint32_t>(number);
}

uint32_t ConfigReader::u32(std::string_view key, uint32_t minimum, uint32_t maximum) {
  if (read_required(key, "an integer") == nullptr) return minimum;
  return *maybe_u32(key, minimum, maximum);
}

std::optional<double> ConfigReader::maybe_number(std::string_view key, double stand_in) {
  const Json* value = read(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    wrong_type(key, *value, "a number");
    return stand_in;
  }
  if (!std::isfinite(value->number())) {
    field_fault(ErrorCode::config_invalid, key, fmt::format("got {}, expected a finite number", value->number()));
    return stand_in;
  }
  return value->number();
}

double ConfigReader::number(std::string_view key, double stand_in) {
  if (read_required(key, "a number") == nullptr) return stand_in;
  return *maybe_number(key, stand_in);
}

bool ConfigReader::boolean(std::string_view key, bool fallback) {
  const Json* value = read(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) {
    wrong_type(key, *value, "true or false");
    return fallback;
  }
  return value->boolean();
}

std::optional<std::string> ConfigReader::maybe_text(std::string_view key) {
  const Json* value = read(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    wrong_type(key, *value, "a string");
    return std::nullopt;
  }
  return value->string();
}

std::string ConfigReader::text(std::string_view key) {
  if (read_required(key, "a string") == nullptr) return {};
  return maybe_text(key).value_or("");
}

std::vector<double> ConfigReader::numbers(std::string_view key) {
  std::vector<double> result;
  const Json* value = read_required(key, "a list of numbers");
  if (value == nullptr) return result;
  if (!value->is_array()) {
    wrong_type(key, *value, "a list of numbers");
    return result;
  }
  for (const Json& item : value->array()) {
    if (!item.is_number() || !std::isfinite(item.number())) {
      wrong_type(key, item, "only numbers in the list");
      return {};
    }
    result.push_back(item.number());
  }
  return result;
}

std::vector<std::string> ConfigReader::texts(std::string_view key) {
  std::vector<std::string> result;
  const Json* value = read_required(key, "a list of strings");
  if (value == nullptr) return result;
  if (!value->is_array()) {
    wrong_type(key, *value, "a list of strings");
    return result;
  }
  for (const Json& item : value->array()) {
    if (!item.is_string()) {
      wrong_type(key, item, "only strings in the list");
      return {};
    }
    result.push_back(item.string());
  }
  return result;
}

std::vector<int64_t> ConfigReader::integers_or_one(std::string_view key) {
  const Json* value = read(key);
  if (value == nullptr) return {};
  if (value->is_integer()) return {value->integer()};
  if (!value->is_array()) {
    wrong_type(key, *value, "an integer or a list of integers");
    return {};
  }
  std::vector<int64_t> result;
  for (const Json& item : value->array()) {
    if (!item.is_integer()) {
      wrong_type(key, item, "only integers in the list");
      return {};
    }
    result.push_back(item.integer());
  }
  return result;
}

const Json* ConfigReader::raw(std::string_view key) { return read(key); }

bool ConfigReader::is_null(std::string_view key) {
  const Json* value = object_->find(key);
  if (value == nullptr || !value->is_null()) return false;
  ignore(key);
  return true;
}

std::optional<ConfigReader> ConfigReader::nested(std::string_view key, bool is_config) {
  const Json* value = read(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    wrong_type(key, *value, "an object");
    return std::nullopt;
  }
  ConfigReader reader(*value, file_, fmt::format("{}{}.", prefix_, key), shared_);
  shared_->scopes.push_back({value, reader.prefix_, is_config});
  return reader;
}

std::optional<ConfigReader> ConfigReader::maybe_object(std::string_view key) { return nested(key, false); }
std::optional<ConfigReader> ConfigReader::maybe_config(std::string_view key) { return nested(key, true); }

ConfigReader ConfigReader::without_fields() const {
  static const Json empty = Json::Object{};
  return ConfigReader(empty, file_, prefix_, shared_);
}

void ConfigReader::expect(std::string_view key, const Json& only_value) {
  const Json* value = read(key);
  if (value == nullptr || same_value(*value, only_value)) return;
  fault(ErrorCode::config_unsupported,
        fmt::format("{}: not supported: got {}, expected {}", field(key), value_text(*value), value_text(only_value)));
}

void ConfigReader::ignore(std::string_view key) { read(key); }

void ConfigReader::ignore_rest() {
  if (!object_->is_object()) return;
  for (const auto& [key, value] : object_->object()) read(key);
}

std::vector<std::string> ConfigReader::unknown_fields() const {
  std::vector<std::string> unknown;
  std::set<std::string> seen;
  for (const Shared::Scope& scope : shared_->scopes) {
    if (!scope.object->is_object()) continue;
    for (const auto& [key, value] : scope.object->object()) {
      std::string path = scope.prefix + key;
      if (value.is_null() || shared_->read.contains(path)) continue;
      if (scope.is_config && never_changes_maths(key, value)) continue;
      if (seen.insert(path).second) unknown.push_back(std::move(path));
    }
  }
  return unknown;
}

void ConfigReader::finish() {
  std::vector<std::string> broken;
  std::vector<std::string> unsupported;
  ErrorCode code = ErrorCode::config_invalid;
  for (const Shared::Fault& found : shared_->faults) {
    if (broken.empty() && !is_unsupported(found.code)) code = found.code;
    (is_unsupported(found.code) ? unsupported : broken).push_back(found.text);
  }
  if (!broken.empty()) throw Error(code, join_faults(broken), {file_, "", std::nullopt});
  for (const std::string& path : unknown_fields()) {
    unsupported.push_back(path == "quantization_config"
                              ? "field 'quantization_config': not supported: got a quantised checkpoint, expected plain weights"
                              : fmt::format("field '{}': not known, and it might change the maths: got a field, expected none",
                                            printable(path, 120)));
  }
  if (!unsupported.empty()) throw Error(ErrorCode::config_unsupported, join_faults(unsupported), {file_, "", std::nullopt});
}

}  // namespace transload
