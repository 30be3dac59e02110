// Strict access to the objects of a JSON file of a bundle: every complaint names the file and the field by its path.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/plain_file_name.h"
#include "base/printable.h"
#include "io/json.h"
#include "transload/dtype.h"
#include "transload/error.h"

namespace transload {

inline constexpr uint32_t kMaxDimension = 1U << 30;  // of one axis: sums of a few stay inside 32 bits

template <typename T>
using Choices = std::initializer_list<std::pair<std::string_view, T>>;

// One object. A missing field is config_missing, a wrong one config_invalid. The JSON value must outlive this.
class JsonFields {
 public:
  // `file`: its name, for messages; `path`: of the object inside the file, empty for the whole.
  JsonFields(const Json& value, std::string file, std::string path = {})
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {
    if (!value.is_object()) wrong_type("", value, "an object");
  }

  [[noreturn]] void fault(std::string_view field, const std::string& text, ErrorCode code = ErrorCode::config_invalid) const {
    const std::string name = path_.empty() || field.empty() ? path_ + std::string(field) : fmt::format("{}.{}", path_, field);
    throw Error(code, name.empty() ? text : fmt::format("field '{}': {}", name, text), {file_, {}, {}});
  }

  std::string text(std::string_view field) const { return get(field, &Json::is_string, "a string").string(); }
  bool flag(std::string_view field) const { return get(field, &Json::is_bool, "true or false").boolean(); }
  int64_t integer(std::string_view field, int64_t least = 0, int64_t most = std::numeric_limits<int64_t>::max()) const {
    return in_range(field, get(field, &Json::is_integer, "an integer"), least, most);
  }
  uint32_t u32(std::string_view field, uint32_t least = 1) const {
    return static_cast<uint32_t>(integer(field, least, kMaxDimension));
  }
  std::optional<int64_t> maybe_integer(std::string_view field, int64_t least, int64_t most) const {
    return is_null(field) ? std::nullopt : std::optional(integer(field, least, most));
  }
  std::optional<uint32_t> maybe_u32(std::string_view field) const {
    return is_null(field) ? std::nullopt : std::optional(u32(field));
  }
  float number(std::string_view field) const {
    const auto value = static_cast<float>(get(field, &Json::is_number, "a number").number());
    if (!std::isfinite(value)) fault(field, fmt::format("out of range: got {}, expected a finite number", value));
    return value;
  }
  template <typename T>
  T choice(std::string_view field, Choices<T> choices) const {
    const std::string got = text(field);
    std::string names;
    for (const auto& [name, value] : choices) {
      if (got == name) return value;
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", name);
    }
    fault(field, fmt::format("unknown value: got '{}', expected one of {}", printable(got, 60), names));
  }
  std::vector<int64_t> integers(std::string_view field, int64_t least) const {
    std::vector<int64_t> out;
    for (const Json& item : get(field, &Json::is_array, "a list of integers").array()) {
      if (!item.is_integer()) wrong_type(field, item, "integers in the list");
      out.push_back(in_range(field, item, least, std::numeric_limits<int64_t>::max()));
    }
    return out;
  }
  Shape shape(std::string_view field) const {
    const std::vector<int64_t> dims = integers(field, 1);
    return {dims.begin(), dims.end()};
  }
  JsonFields object(std::string_view field) const { return {get(field, &Json::is_object, "an object"), file_, nested(field)}; }
  template <typename Read>
  void each_object(std::string_view field, Read read) const {
    const Json::Array& items = get(field, &Json::is_array, "a list of objects").array();
    for (size_t i = 0; i < items.size(); ++i) read(JsonFields(items[i], file_, fmt::format("{}[{}]", nested(field), i)));
  }
  std::string plain_file(std::string_view field) const {
    const std::string name = text(field);
    if (!is_plain_file_name(name)) {
      fault(field,
            fmt::format("not a plain file name: got '{}', expected a file of the bundle's own folder", printable(name, 80)));
    }
    return name;
  }
  bool has(std::string_view field) const { return value_->find(field) != nullptr; }
  // Whether it is null; a field that is absent is a fault.
  bool is_null(std::string_view field) const { return present(field, "a value or null").is_null(); }

 private:
  const Json& present(std::string_view field, std::string_view expected) const {
    const Json* value = value_->find(field);
    if (value == nullptr) fault(field, fmt::format("missing: got none, expected {}", expected), ErrorCode::config_missing);
    return *value;
  }
  const Json& get(std::string_view field, bool (Json::*is_kind)() const, std::string_view expected) const {
    const Json& value = present(field, expected);
    if (!(value.*is_kind)()) wrong_type(field, value, expected);
    return value;
  }
  [[noreturn]] void wrong_type(std::string_view field, const Json& got, std::string_view expected) const {
    fault(field, fmt::format("wrong type: got {}, expected {}", printable(write_json(got, 0), 60), expected));
  }
  int64_t in_range(std::string_view field, const Json& value, int64_t least, int64_t most) const {
    const int64_t number = value.integer();
    if (number < least || number > most) {
      const std::string bound =
          most == std::numeric_limits<int64_t>::max() ? fmt::format("at least {}", least) : fmt::format("{} to {}", least, most);
      fault(field, fmt::format("out of range: got {}, expected {}", number, bound));
    }
    return number;
  }
  std::string nested(std::string_view field) const {
    return path_.empty() ? std::string(field) : fmt::format("{}.{}", path_, field);
  }

  const Json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace transload
