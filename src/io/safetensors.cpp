// The safetensors container: 8 bytes of header length, a JSON header, then the tensors without gaps.
#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/checked.h"
#include "base/printable.h"
#include "io/hash.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxRank = 32;
constexpr std::string_view kMetadataKey = "__metadata__";

// Faults of the header are placed at its start, faults of the data at the data.
class HeaderReader {
 public:
  explicit HeaderReader(const std::shared_ptr<const InputFile>& file) : file_(file) {}

  SafetensorsHeader read() {
    const std::string bytes = read_bytes();
    data_start_ = bytes.size();
    SafetensorsHeader header;
    header.digest = digest_of(bytes);
    const std::string_view text = std::string_view(bytes).substr(kLengthBytes);
    if (text.empty() || text.front() != '{') {
      fail(ErrorCode::bad_header, "header does not start with '{': got another byte, expected a JSON object");
    }
    const Json root = parse_json(text, file_->name(), kLengthBytes);
    for (const auto& [name, value] : root.object()) {
      if (name == kMetadataKey) {
        header.metadata = read_metadata(value);
      } else {
        header.tensors.push_back(read_entry(name, value));
      }
    }
    check_layout(header.tensors);
    return header;
  }

 private:
  [[noreturn]] void fail(ErrorCode code, std::string what, const std::string& tensor = {}, uint64_t offset = kLengthBytes) const {
    throw Error(code, std::move(what), {file_->name(), tensor, offset});
  }

  // The length field and the header, after the length is known to lie inside the file and below the limit.
  std::string read_bytes() const {
    if (file_->size() < kLengthBytes) {
      fail(
          ErrorCode::bad_header,
          fmt::format("file too small: got {} bytes, expected at least the {} of the header length", file_->size(), kLengthBytes),
          {}, 0);
    }
    std::array<std::byte, kLengthBytes> field{};
    file_->read_at(0, field);
    uint64_t length = 0;
    for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(field[i]);
    if (length > kMaxHeaderBytes) {
      fail(ErrorCode::bad_header, fmt::format("header length: got {}, expected at most {}", length, kMaxHeaderBytes), {}, 0);
    }
    if (length > file_->size() - kLengthBytes) {
      fail(ErrorCode::bad_header,
           fmt::format("header ends past the end of the file: got length {}, expected at most {} (incomplete download?)", length,
                       file_->size() - kLengthBytes),
           {}, 0);
    }
    std::string bytes(kLengthBytes + length, '\0');
    file_->read_at(0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  Json read_metadata(const Json& value) const {
    if (!value.is_object()) {
      fail(ErrorCode::bad_header, fmt::format("'__metadata__': got {}, expected an object of strings", value.kind_name()));
    }
    for (const auto& [key, text] : value.object()) {
      if (text.is_string()) continue;
      fail(ErrorCode::bad_header,
           fmt::format("'__metadata__' key '{}': got {}, expected a string", printable(key), text.kind_name()));
    }
    return value;
  }

  TensorInfo read_entry(const std::string& name, const Json& entry) const {
    if (!entry.is_object())
      fail(ErrorCode::bad_header, fmt::format("entry: got {}, expected an object", entry.kind_name()), name);
    for (const auto& [key, value] : entry.object()) {
      if (key == "dtype" || key == "shape" || key == "data_offsets") continue;
      fail(ErrorCode::bad_header,
           fmt::format("unknown key: got '{}', expected 'dtype', 'shape' and 'data_offsets'", printable(key)), name);
    }
    TensorInfo tensor;
    tensor.name = name;
    tensor.file = file_;
    tensor.dtype = read_dtype(name, required(name, entry, "dtype"));
    tensor.shape = read_shape(name, required(name, entry, "shape"));
    try {
      tensor.bytes = tensor_bytes(tensor.dtype, tensor.shape);
    } catch (Error& error) {
      error.at({file_->name(), name, kLengthBytes});
      throw;
    }
    read_offsets(required(name, entry, "data_offsets"), tensor);
    return tensor;
  }

  const Json& required(const std::string& name, const Json& entry, std::string_view key) const {
    if (const Json* value = entry.find(key)) return *value;
    fail(ErrorCode::bad_header, fmt::format("missing key: got none, expected '{}'", key), name);
  }

  DType read_dtype(const std::string& name, const Json& value) const {
    if (!value.is_string())
      fail(ErrorCode::bad_header, fmt::format("'dtype': got {}, expected a string", value.kind_name()), name);
    if (const auto dtype = find_dtype_by_safetensors_name(value.string())) return *dtype;
    fail(ErrorCode::dtype_unsupported,
         fmt::format("dtype: got '{}', expected F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64..I8, U64..U8 or BOOL",
                     printable(value.string(), 40)),
         name);
  }

  Shape read_shape(const std::string& name, const Json& value) const {
    if (!value.is_array())
      fail(ErrorCode::bad_header, fmt::format("'shape': got {}, expected an array", value.kind_name()), name);
    const Json::Array& dimensions = value.array();
    if (dimensions.size() > kMaxRank) {
      fail(ErrorCode::bad_header, fmt::format("rank: got {}, expected at most {}", dimensions.size(), kMaxRank), name);
    }
    Shape shape;
    for (const Json& dimension : dimensions) shape.push_back(read_unsigned(name, "dimension", dimension));
    return shape;
  }

  // Offsets are stored relative to the data section.
  void read_offsets(const Json& value, TensorInfo& tensor) const {
    if (!value.is_array() || value.array().size() != 2) {
      const std::string got =
          value.is_array() ? fmt::format("{} elements", value.array().size()) : std::string(value.kind_name());
      fail(ErrorCode::bad_header, fmt::format("'data_offsets': got {}, expected an array of two", got), tensor.name);
    }
    const uint64_t begin = read_unsigned(tensor.name, "data offset", value.array()[0], ErrorCode::bad_offset);
    const uint64_t end = read_unsigned(tensor.name, "data offset", value.array()[1], ErrorCode::bad_offset);
    // A JSON integer is below 2^63 and the header below 2^27, so this sum fits.
    tensor.offset = data_start_ + begin;
    if (end < begin) {
      fail(ErrorCode::bad_offset,
           fmt::format("data ends before it begins: got end {}, expected at least {}", data_start_ + end, tensor.offset),
           tensor.name, tensor.offset);
    }
    if (end - begin != tensor.bytes) {
      fail(ErrorCode::bad_offset,
           fmt::format("byte size does not match shape {} {}: got {}, expected {}", shape_text(tensor.shape),
                       dtype_name(tensor.dtype), end - begin, tensor.bytes),
           tensor.name);
    }
  }

  uint64_t read_unsigned(const std::string& name, std::string_view what, const Json& value,
                         ErrorCode code = ErrorCode::bad_header) const {
    if (value.is_integer() && value.integer() >= 0) return static_cast<uint64_t>(value.integer());
    const std::string got = value.is_number() ? write_json(value) : std::string(value.kind_name());
    fail(code, fmt::format("{}: got {}, expected an integer from 0 to 2^63 - 1", what, got), name);
  }

  // Sorts by offset, then walks: each tensor starts where the one before ended, and the last ends with the file.
  void check_layout(std::vector<TensorInfo>& tensors) const {
    std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
      return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
    });
    uint64_t expected = data_start_;
    for (const TensorInfo& tensor : tensors) {
      if (tensor.offset < expected) {
        fail(ErrorCode::bad_offset,
             fmt::format("data overlaps the tensor before it: got start {}, expected {}", tensor.offset, expected), tensor.name,
             tensor.offset);
      }
      if (tensor.offset > expected) {
        fail(ErrorCode::bad_offset, fmt::format("hole before the data: got start {}, expected {}", tensor.offset, expected),
             tensor.name, expected);
      }
      expected += tensor.bytes;
      if (expected > file_->size()) {
        fail(ErrorCode::bad_offset,
             fmt::format("data ends past the end of the file: got end {}, expected at most {} (incomplete download?)", expected,
                         file_->size()),
             tensor.name, tensor.offset);
      }
    }
    if (expected != file_->size()) {
      fail(ErrorCode::bad_offset,
           fmt::format("bytes behind the last tensor: got file end {}, expected {}", file_->size(), expected), {}, expected);
    }
  }

  const std::shared_ptr<const InputFile>& file_;
  uint64_t data_start_ = 0;
};

}  // namespace

SafetensorsHeader read_safetensors(const std::shared_ptr<const InputFile>& file) { return HeaderReader(file).read(); }

SafetensorsLayout plan_safetensors(const std::vector<SafetensorsEntry>& entries, const Json& metadata) {
  Json::Object root;
  if (!metadata.is_null()) root.emplace_back(kMetadataKey, metadata);
  SafetensorsLayout layout;
  std::unordered_set<std::string_view> names;
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    const DTypeInfo& info = dtype_info(entry.dtype);
    if (info.safetensors.empty()) {
      throw Error(ErrorCode::format_limit, fmt::format("dtype: got {}, expected one that safetensors has", info.name),
                  {{}, entry.name, {}});
    }
    if (entry.name == kMetadataKey || !names.insert(entry.name).second) {
      throw Error(ErrorCode::duplicate_name, "two tensors of one name: got a second one, expected distinct names",
                  {{}, entry.name, {}});
    }
    const uint64_t begin = end;
    end = checked_add(begin, tensor_bytes(entry.dtype, entry.shape), "size of a safetensors file");
    Json::Array shape;
    for (const uint64_t dimension : entry.shape) shape.emplace_back(dimension);
    root.emplace_back(entry.name, Json::Object{{"dtype", info.safetensors},
                                               {"shape", std::move(shape)},
                                               {"data_offsets", Json::Array{Json(begin), Json(end)}}});
    layout.offsets.push_back(begin);
  }
  std::string text = write_json(Json(std::move(root)), 0);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw Error(ErrorCode::format_limit,
                fmt::format("safetensors header: got {} bytes, expected at most {}", text.size(), kMaxHeaderBytes));
  }
  for (size_t i = 0; i < kLengthBytes; ++i) layout.header += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  layout.header += text;
  for (uint64_t& offset : layout.offsets) offset += layout.header.size();
  layout.file_bytes = checked_add(end, layout.header.size(), "size of a safetensors file");
  return layout;
}

}  // namespace transload
