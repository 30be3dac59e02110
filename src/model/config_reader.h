// ConfigReader: strict access to a config object. Collects faults and remembers what was read, so that unknown fields are found.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "transload/error.h"

namespace transload {

// Reading a missing or ill-typed field records a fault and returns a harmless value, so that all faults come together.
// Call finish() before believing any of them. Not thread-safe.
class ConfigReader {
 public:
  // `object` must outlive the reader. With a `prefix` ("llama.") the object is no model config: every unread field is unknown.
  ConfigReader(const Json& object, std::string file, std::string prefix = "");

  bool has(std::string_view key) const;  // present and not null; marks nothing as read
  bool is_null(std::string_view key);    // present and null; marks it as read then
  uint32_t u32(std::string_view key, uint32_t minimum = 1, uint32_t maximum = 1U << 30);
  std::optional<uint32_t> maybe_u32(std::string_view key, uint32_t minimum = 1, uint32_t maximum = 1U << 30);
  // `stand_in`: the harmless value, where 1 would cause a second fault.
  double number(std::string_view key, double stand_in = 1.0);
  std::optional<double> maybe_number(std::string_view key, double stand_in = 1.0);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key);
  std::optional<std::string> maybe_text(std::string_view key);
  std::vector<double> numbers(std::string_view key);
  std::vector<std::string> texts(std::string_view key);
  std::vector<int64_t> integers_or_one(std::string_view key);  // an integer or a list of them; empty when absent or null
  const Json* raw(std::string_view key);                       // marks as read; nullptr when absent or null
  // A nested object, whose faults and unknown fields are reported with "key." in front; nothing when absent or null.
  std::optional<ConfigReader> maybe_object(std::string_view key);
  // As maybe_object, for an object that is a model config itself: fields that never change the maths are known in it too.
  std::optional<ConfigReader> maybe_config(std::string_view key);
  // A reader of no fields at all that reports its faults here: for a part whose every setting is implied.
  ConfigReader without_fields() const;
  // Fields that may be present with exactly this value (or null): anything else is config_unsupported.
  void expect(std::string_view key, const Json& only_value);
  void ignore(std::string_view key);  // read and found irrelevant to the maths
  void ignore_rest();                 // every field of this object: it is refused as a whole, one fault is enough

  void fault(ErrorCode code, std::string text);  // code: config_missing, config_invalid or config_unsupported
  // A fault of this field was found while reading it: what it was to agree with need not be compared.
  bool is_faulty(std::string_view key) const;
  const std::string& file() const { return file_; }
  // "field 'rope_scaling.factor'": how messages name a field of this object.
  std::string field(std::string_view key) const;

  // Fields nobody read, apart from those on the list of fields that never change the maths. Dotted paths.
  std::vector<std::string> unknown_fields() const;
  // Throws the collected faults: first missing/invalid ones (together), else unsupported and unknown ones (together).
  void finish();

 private:
  struct Shared;
  ConfigReader(const Json& object, std::string file, std::string prefix, std::shared_ptr<Shared> shared);
  const Json* read(std::string_view key);                                      // marks as read; nullptr when absent or null
  const Json* read_required(std::string_view key, std::string_view expected);  // records the fault
  void field_fault(ErrorCode code, std::string_view key, const std::string& text);
  void wrong_type(std::string_view key, const Json& got, std::string_view expected);
  std::optional<ConfigReader> nested(std::string_view key, bool is_config);

  const Json* object_;
  std::string file_;
  std::string prefix_;
  std::shared_ptr<Shared> shared_;  // faults and read keys, shared with nested readers
};

}  // namespace transload
