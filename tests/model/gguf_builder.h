// A small GGUF v3 file for tests: metadata of a few types, and F32 tensors whose first element tells which tensor it is.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "io/json.h"
#include "transload/dtype.h"

namespace transload {

struct GgufTensor {
  std::string name;
  Shape shape;                // outermost first
  std::vector<float> values;  // zeros when empty
};

class GgufBuilder {
 public:
  Json metadata = Json::Object{};  // strings, integers (u32), floats (f32), booleans and arrays of one of them
  std::vector<GgufTensor> tensors;

  void write(const std::filesystem::path& path) const {
    std::string out = "GGUF";
    put<uint32_t>(out, 3);
    put<uint64_t>(out, tensors.size());
    put<uint64_t>(out, metadata.object().size());
    for (const auto& [key, value] : metadata.object()) {
      put_text(out, key);
      put<uint32_t>(out, value.is_array() ? 9 : kind(value));
      if (value.is_array()) {
        put<uint32_t>(out, kind(value.array().front()));
        put<uint64_t>(out, value.array().size());
        for (const Json& item : value.array()) put_value(out, item);
      } else {
        put_value(out, value);
      }
    }
    uint64_t offset = 0;
    for (const GgufTensor& tensor : tensors) {
      put_text(out, tensor.name);
      put<uint32_t>(out, static_cast<uint32_t>(tensor.shape.size()));
      for (auto dimension = tensor.shape.rbegin(); dimension != tensor.shape.rend(); ++dimension) put<uint64_t>(out, *dimension);
      put<uint32_t>(out, 0);  // F32
      put<uint64_t>(out, offset);
      offset += aligned(4 * element_count(tensor.shape));
    }
    out.resize(aligned(out.size()), '\0');
    for (const GgufTensor& tensor : tensors) {
      const size_t begin = out.size();
      out.resize(begin + aligned(4 * element_count(tensor.shape)), '\0');
      if (!tensor.values.empty()) std::memcpy(out.data() + begin, tensor.values.data(), 4 * tensor.values.size());
    }
    std::ofstream(path, std::ios::binary) << out;
  }

 private:
  static uint64_t aligned(uint64_t bytes) { return (bytes + 31) / 32 * 32; }
  template <class T>
  static void put(std::string& out, T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
  }
  static void put_text(std::string& out, const std::string& text) {
    put<uint64_t>(out, text.size());
    out += text;
  }
  static uint32_t kind(const Json& value) { return value.is_string() ? 8 : value.is_bool() ? 7 : value.is_integer() ? 4 : 6; }
  static void put_value(std::string& out, const Json& value) {
    if (value.is_string()) return put_text(out, value.string());
    if (value.is_bool()) return put<uint8_t>(out, value.boolean() ? 1 : 0);
    if (value.is_integer()) return put<uint32_t>(out, static_cast<uint32_t>(value.integer()));
    put<float>(out, static_cast<float>(value.number()));
  }
};

}  // namespace transload
