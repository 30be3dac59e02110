// A small JSON value (order-preserving objects, exact integers) with a strict parser and a deterministic writer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace transload {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in file order; the parser refuses duplicate keys

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value);  // stored as int64 when it fits, else as double
  Json(uint32_t value) : value_(static_cast<int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // Each throws internal when the value is of another kind: check first.
  bool boolean() const;
  int64_t integer() const;
  double number() const;  // integers widen
  const std::string& string() const;
  const Array& array() const;
  const Object& object() const;
  Array& array();
  Object& object();

  // Member of an object, or nullptr (also when this is not an object).
  const Json* find(std::string_view key) const;
  // Replaces or appends a member; this becomes an object when null.
  Json& set(std::string_view key, Json value);

  std::string_view kind_name() const;  // "object", "integer", ... for messages

  friend bool operator==(const Json&, const Json&) = default;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

// Strict: UTF-8, no duplicate keys, nesting at most 64, no trailing bytes. Throws bad_json naming `file` and the absolute offset
// (`base_offset` + position in `text`).
Json parse_json(std::string_view text, const std::string& file, uint64_t base_offset = 0);

// Deterministic: insertion order, shortest doubles that read back equal (1.0, 1e-06), `indent` spaces or one line for 0.
std::string write_json(const Json& value, int indent = 2);

}  // namespace transload
