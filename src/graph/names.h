// Names in a graph: of the graph and of its values.
#pragma once

#include <string_view>

namespace transload {

inline constexpr std::string_view kGraphNamePattern = "[A-Za-z_][A-Za-z0-9_]*";

inline bool is_graph_name(std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || is_digit(name.front())) return false;
  for (const char c : name) {
    if (!is_letter(c) && !is_digit(c)) return false;
  }
  return true;
}

}  // namespace transload
