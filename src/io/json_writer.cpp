// Writes Json as text: deterministic, always valid UTF-8, doubles as Python's repr writes them.
#include <fmt/format.h>

#include <cmath>

#include "base/utf8.h"
#include "io/json.h"
#include "transload/error.h"

namespace transload {
namespace {

class JsonWriter {
 public:
  explicit JsonWriter(int indent) : indent_(indent) {}

  void write(const Json& value, int level) {
    if (value.is_null()) {
      text_ += "null";
    } else if (value.is_bool()) {
      text_ += value.boolean() ? "true" : "false";
    } else if (value.is_integer()) {
      text_ += fmt::format("{}", value.integer());
    } else if (value.is_number()) {
      write_double(value.number());
    } else if (value.is_string()) {
      write_string(value.string());
    } else if (value.is_array()) {
      write_list(value.array(), '[', ']', level, [&](const Json& element) { write(element, level + 1); });
    } else {
      write_list(value.object(), '{', '}', level, [&](const Json::Member& member) {
        write_string(member.first);
        text_ += indent_ == 0 ? ":" : ": ";
        write(member.second, level + 1);
      });
    }
  }

  std::string take() { return std::move(text_); }

 private:
  template <typename List, typename WriteElement>
  void write_list(const List& list, char open, char close, int level, const WriteElement& write_element) {
    text_ += open;
    bool first = true;
    for (const auto& element : list) {
      if (!first) text_ += ',';
      first = false;
      break_line(level + 1);
      write_element(element);
    }
    if (!list.empty()) break_line(level);
    text_ += close;
  }

  void break_line(int level) {
    if (indent_ == 0) return;
    text_ += '\n';
    text_.append(static_cast<size_t>(indent_) * static_cast<size_t>(level), ' ');
  }

  void write_double(double value) {
    if (!std::isfinite(value)) {
      throw Error(ErrorCode::internal, fmt::format("JSON cannot hold this number: got {}, expected a finite one", value));
    }
    std::string digits = fmt::format("{}", value);
    if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
    text_ += digits;
  }

  // Bytes that are not UTF-8 become the replacement character: metadata of a GGUF file may hold any bytes.
  void write_string(std::string_view string) {
    text_ += '"';
    while (!string.empty()) {
      const size_t length = utf8_sequence_bytes(string);
      if (length == 1) {
        write_ascii(string.front());
      } else if (length == 0) {
        text_ += "\xEF\xBF\xBD";
      } else {
        text_ += string.substr(0, length);
      }
      string.remove_prefix(length == 0 ? 1 : length);
    }
    text_ += '"';
  }

  void write_ascii(char character) {
    switch (character) {
      case '"':
        text_ += "\\\"";
        return;
      case '\\':
        text_ += "\\\\";
        return;
      case '\n':
        text_ += "\\n";
        return;
      case '\r':
        text_ += "\\r";
        return;
      case '\t':
        text_ += "\\t";
        return;
      default:
        if (static_cast<unsigned char>(character) < 0x20) {
          text_ += fmt::format("\\u{:04x}", static_cast<unsigned>(character));
        } else {
          text_ += character;
        }
    }
  }

  int indent_;
  std::string text_;
};

}  // namespace

std::string write_json(const Json& value, int indent) {
  JsonWriter writer(indent);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace transload
