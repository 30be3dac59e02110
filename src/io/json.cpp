// The JSON parser: nlohmann's SAX events built into Json, with duplicate keys, depth and literals checked. The only file that
// includes nlohmann.
#include "io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/printable.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr size_t kMaxDepth = 64;
// A value takes some 50 bytes here and 2 in the text, so a long list of digits would fill the memory. Real headers have 6 values
// a tensor.
constexpr size_t kMaxValues = 4'000'000;

// Reads characters and leaves word of how far it came: SAX events carry no position.
class TrackedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator(const char* current, const char** reached) : current_(current), reached_(reached) {}
  reference operator*() const { return *current_; }
  TrackedIterator& operator++() {
    *reached_ = ++current_;
    return *this;
  }
  TrackedIterator operator++(int) {
    TrackedIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const TrackedIterator& a, const TrackedIterator& b) { return a.current_ == b.current_; }

 private:
  const char* current_;
  const char** reached_;
};

class JsonBuilder {
 public:
  using Events = nlohmann::json;

  JsonBuilder(std::string_view text, const std::string& file, uint64_t base_offset)
      : text_(text), reached_(text.data()), file_(file), base_offset_(base_offset) {}

  Json parse() {
    // The lexer takes a zero byte for the end of the text; what follows would pass unread.
    if (const size_t zero = text_.find('\0'); zero != std::string_view::npos) {
      fail("malformed JSON: got a zero byte, expected text", zero);
    }
    const char* end = text_.data() + text_.size();
    Events::sax_parse(TrackedIterator(text_.data(), &reached_), TrackedIterator(end, &reached_), this);
    return std::move(root_);
  }

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(int64_t value) { return add(Json(value)); }
  bool number_unsigned(uint64_t value) { return add(Json(value)); }
  bool number_float(double value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(Events::binary_t&) { return false; }  // no such thing in JSON text

  bool start_object(size_t) { return open(Json(Json::Object())); }
  bool start_array(size_t) { return open(Json(Json::Array())); }

  bool key(std::string& name) {
    Frame& frame = frames_.back();
    frame.key = std::move(name);
    frame.key_ends.push_back(position());
    return true;
  }

  bool end_object() {
    refuse_duplicate_keys(frames_.back());
    return close();
  }
  bool end_array() { return close(); }

  bool parse_error(size_t characters_read, const std::string&, const nlohmann::detail::exception& error) {
    const size_t at = std::min(characters_read == 0 ? 0 : characters_read - 1, text_.size());
    // Python writes these literals for floats that JSON cannot carry.
    for (const std::string_view literal : {"NaN", "Infinity"}) {
      if (text_.substr(at).starts_with(literal)) {
        fail(fmt::format("malformed JSON: got the literal '{}', expected a finite number", literal), at);
      }
    }
    if (at == text_.size()) fail("malformed JSON: got the end of the text, expected more", at);
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) fail("malformed JSON: got a number beyond the range of a double, expected a finite one", at);
    std::string_view reason = error.what();
    const size_t column = reason.find("column ");
    const size_t colon = reason.find(": ", column == std::string_view::npos ? 0 : column);
    if (colon != std::string_view::npos) reason.remove_prefix(colon + 2);
    fail(fmt::format("malformed JSON: {}", printable(reason, 300)), at);
  }

 private:
  struct Frame {
    Json container;
    std::string key;               // of the member whose value comes next
    std::vector<size_t> key_ends;  // positions just behind each key
  };

  size_t position() const { return static_cast<size_t>(reached_ - text_.data()); }

  [[noreturn]] void fail(std::string what, size_t position) const {
    throw Error(ErrorCode::bad_json, std::move(what), {file_, {}, base_offset_ + position});
  }

  bool add(Json value) {
    if (++values_ > kMaxValues) {
      fail(fmt::format("JSON of too many values: got more than {}, expected at most as many", kMaxValues), position());
    }
    if (frames_.empty()) {
      root_ = std::move(value);
    } else if (Frame& frame = frames_.back(); frame.container.is_array()) {
      frame.container.array().push_back(std::move(value));
    } else {
      frame.container.object().emplace_back(std::move(frame.key), std::move(value));
    }
    return true;
  }

  bool open(Json container) {
    if (frames_.size() == kMaxDepth) {
      fail(fmt::format("JSON nested too deep: got level {}, expected at most {}", kMaxDepth + 1, kMaxDepth), position() - 1);
    }
    frames_.push_back({std::move(container), {}, {}});
    return true;
  }

  bool close() {
    Json container = std::move(frames_.back().container);
    frames_.pop_back();
    return add(std::move(container));
  }

  void refuse_duplicate_keys(const Frame& frame) const {
    const Json::Object& members = frame.container.object();
    std::vector<size_t> order(members.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return members[a].first < members[b].first; });
    const auto twice =
        std::adjacent_find(order.begin(), order.end(), [&](size_t a, size_t b) { return members[a].first == members[b].first; });
    if (twice == order.end()) return;
    const size_t second = *std::next(twice);
    fail(fmt::format("duplicate JSON key: got '{}' twice, expected once", printable(members[second].first)),
         start_of_string(frame.key_ends[second]));
  }

  // The opening quote of the string whose closing quote ends at `end`.
  size_t start_of_string(size_t end) const {
    size_t quote = end - 1;
    while (true) {
      quote = text_.rfind('"', quote - 1);
      size_t backslashes = 0;
      while (backslashes < quote && text_[quote - 1 - backslashes] == '\\') ++backslashes;
      if (backslashes % 2 == 0) return quote;
    }
  }

  std::string_view text_;
  const char* reached_;
  const std::string& file_;
  uint64_t base_offset_;
  size_t values_ = 0;
  Json root_;
  std::vector<Frame> frames_;
};

[[noreturn]] void wrong_kind(const Json& value, std::string_view wanted) {
  throw Error(ErrorCode::internal, fmt::format("JSON value of the wrong kind: got {}, expected {}", value.kind_name(), wanted));
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file, uint64_t base_offset) {
  return JsonBuilder(text, file, base_offset).parse();
}

Json::Json(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    value_ = static_cast<int64_t>(value);
  } else {
    value_ = static_cast<double>(value);
  }
}

bool Json::boolean() const {
  if (const auto* value = std::get_if<bool>(&value_)) return *value;
  wrong_kind(*this, "boolean");
}

int64_t Json::integer() const {
  if (const auto* value = std::get_if<int64_t>(&value_)) return *value;
  wrong_kind(*this, "integer");
}

double Json::number() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  wrong_kind(*this, "number");
}

const std::string& Json::string() const {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  wrong_kind(*this, "string");
}

const Json::Array& Json::array() const {
  if (const auto* value = std::get_if<Array>(&value_)) return *value;
  wrong_kind(*this, "array");
}

const Json::Object& Json::object() const {
  if (const auto* value = std::get_if<Object>(&value_)) return *value;
  wrong_kind(*this, "object");
}

Json::Array& Json::array() {
  if (auto* value = std::get_if<Array>(&value_)) return *value;
  wrong_kind(*this, "array");
}

Json::Object& Json::object() {
  if (auto* value = std::get_if<Object>(&value_)) return *value;
  wrong_kind(*this, "object");
}

const Json* Json::find(std::string_view key) const {
  const auto* members = std::get_if<Object>(&value_);
  if (members == nullptr) return nullptr;
  const auto member = std::find_if(members->begin(), members->end(), [&](const Member& each) { return each.first == key; });
  return member == members->end() ? nullptr : &member->second;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object();
  Object& members = object();
  const auto member = std::find_if(members.begin(), members.end(), [&](const Member& each) { return each.first == key; });
  if (member == members.end()) return members.emplace_back(std::string(key), std::move(value)).second;
  member->second = std::move(value);
  return member->second;
}

std::string_view Json::kind_name() const {
  if (is_null()) return "null";
  if (is_bool()) return "boolean";
  if (is_integer()) return "integer";
  if (is_number()) return "float";
  if (is_string()) return "string";
  return is_array() ? "array" : "object";
}

}  // namespace transload
