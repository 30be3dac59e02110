// Decodes the forms a TensorProto stores values in: raw bytes, typed lists, a place in another file.
#include "targets/onnx/onnx_constants.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/half.h"
#include "base/plain_file_name.h"
#include "base/printable.h"
#include "graph/graph.h"
#include "targets/onnx/onnx_lowering.h"
#include "transload/error.h"

namespace transload {
namespace {

using onnx_message::Tensor;

constexpr uint64_t kMaxIntegers = 64;  // an operand has one for each axis
static_assert(std::endian::native == std::endian::little);

[[noreturn]] void fail(ErrorCode code, const std::string& what) { throw Error(code, what); }

DType dtype_of(const Tensor& tensor) {
  if (const auto dtype = find_dtype_by_onnx_data_type(tensor.data_type); dtype && *dtype != DType::boolean) return *dtype;
  fail(ErrorCode::dtype_unsupported, fmt::format("data_type: got {}, expected that of f32, f16, i32 or i64", tensor.data_type));
}

Shape shape_of(const Tensor& tensor) {
  if (tensor.dims.empty() || tensor.dims.size() > kMaxGraphRank) {
    fail(ErrorCode::shape_mismatch, fmt::format("rank: got {}, expected 1 to {}", tensor.dims.size(), kMaxGraphRank));
  }
  Shape shape;
  for (const int64_t dim : tensor.dims) {
    if (dim <= 0) fail(ErrorCode::shape_mismatch, fmt::format("dimension: got {}, expected a positive number", dim));
    shape.push_back(static_cast<uint64_t>(dim));
  }
  return shape;
}

// The typed list that holds values of `dtype`.
size_t typed_count(const Tensor& tensor, DType dtype) {
  if (dtype == DType::f32) return tensor.float_data.size();
  return dtype == DType::i64 ? tensor.int64_data.size() : tensor.int32_data.size();
}

// Whether the values are raw bytes, after checking that exactly one form is there and fills the shape.
bool is_raw(const Tensor& tensor, DType dtype, const Shape& shape) {
  const uint64_t expected = tensor_bytes(dtype, shape);
  const size_t typed = typed_count(tensor, dtype);
  const size_t lists = tensor.float_data.size() + tensor.int32_data.size() + tensor.int64_data.size();
  if (lists != typed || (typed != 0 && !tensor.raw_data.empty()) || !tensor.external_data.empty()) {
    fail(ErrorCode::bad_header,
         fmt::format("values of type {}: got several forms or a list of another type, expected raw_data or "
                     "the list of that type",
                     dtype_name(dtype)));
  }
  const uint64_t got = typed == 0 ? tensor.raw_data.size() : uint64_t{typed} * dtype_info(dtype).block_bytes;
  if (got != expected) {
    fail(ErrorCode::shape_mismatch,
         fmt::format("bytes of values of {}{}: got {}, expected {}", dtype_name(dtype), shape_text(shape), got, expected));
  }
  return typed == 0;
}

template <typename Element>
std::vector<Element> elements(std::string_view bytes) {
  std::vector<Element> values(bytes.size() / sizeof(Element));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(Element));
  return values;
}

// Protobuf stores small types as int32; a value outside its type is broken.
template <typename Element>
std::vector<Element> narrowed(const std::vector<int64_t>& list) {
  std::vector<Element> values;
  values.reserve(list.size());
  for (const int64_t value : list) {
    if (value < std::numeric_limits<Element>::min() || value > std::numeric_limits<Element>::max()) {
      fail(ErrorCode::bad_header, fmt::format("value in int32_data: got {}, expected {} to {}", value,
                                              std::numeric_limits<Element>::min(), std::numeric_limits<Element>::max()));
    }
    values.push_back(static_cast<Element>(value));
  }
  return values;
}

Recipe inline_recipe(const Tensor& tensor, DType dtype, const Shape& shape) {
  const bool raw = is_raw(tensor, dtype, shape);
  if (dtype == DType::f32) return constant(shape, raw ? elements<float>(tensor.raw_data) : tensor.float_data);
  if (dtype == DType::i64) return constant_i64(shape, raw ? elements<int64_t>(tensor.raw_data) : tensor.int64_data);
  if (dtype == DType::f16) {
    std::vector<float> values;
    for (const uint16_t half : raw ? elements<uint16_t>(tensor.raw_data) : narrowed<uint16_t>(tensor.int32_data)) {
      values.push_back(f16_to_f32(half));
    }
    return cast(constant(shape, std::move(values)), DType::f16);
  }
  fail(ErrorCode::dtype_unsupported,
       fmt::format("type of values inside the graph: got {}, expected f32, f16 or i64", dtype_name(dtype)));
}

uint64_t decimal(std::string_view key, std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail(ErrorCode::bad_header,
         fmt::format("{} of external data: got '{}', expected a decimal number of bytes", key, printable(text)));
  }
  return value;
}

struct ExternalEntries {
  std::optional<std::string_view> location, offset, length;
};

ExternalEntries external_entries(const Tensor& tensor) {
  ExternalEntries entries;
  for (const auto& [key, value] : tensor.external_data) {
    std::optional<std::string_view>* entry = nullptr;
    if (key == "location") entry = &entries.location;
    if (key == "offset") entry = &entries.offset;
    if (key == "length") entry = &entries.length;
    if (entry == nullptr) {
      fail(ErrorCode::bad_header,
           fmt::format("key of external data: got '{}', expected location, offset or length", printable(key)));
    }
    if (entry->has_value()) fail(ErrorCode::bad_header, fmt::format("{} of external data: got it twice, expected it once", key));
    *entry = value;
  }
  return entries;
}

// Runs `read` and says which tensor an error is about.
template <typename Read>
auto naming(const Tensor& tensor, std::string_view name, Read read) {
  try {
    return read();
  } catch (Error& error) {
    // An error that already names another file has its own offset there.
    const bool elsewhere = !error.site().file.empty();
    error.at({.file = {}, .tensor = std::string(name), .offset = elsewhere ? std::nullopt : std::optional(tensor.offset)});
    throw;
  }
}

}  // namespace

const std::shared_ptr<const InputFile>& OnnxConstants::external_file(std::string_view location) {
  if (!is_plain_file_name(location)) {
    fail(ErrorCode::bad_header, fmt::format("location of external data: got '{}', expected the plain name of a file beside the "
                                            "graph",
                                            printable(location)));
  }
  const auto found = files_.find(location);
  if (found != files_.end()) return found->second;
  return files_.emplace(location, InputFile::open(folder_ / location)).first->second;
}

TensorInfo OnnxConstants::external_place(const Tensor& tensor, std::string_view name, DType dtype, const Shape& shape) {
  const ExternalEntries entries = external_entries(tensor);
  if (!tensor.raw_data.empty() || !tensor.float_data.empty() || !tensor.int32_data.empty() || !tensor.int64_data.empty()) {
    fail(ErrorCode::bad_header, "values of an external tensor: got some inside the graph, expected none");
  }
  const uint64_t bytes = tensor_bytes(dtype, shape);
  const uint64_t offset = entries.offset ? decimal("offset", *entries.offset) : 0;
  const uint64_t length = entries.length ? decimal("length", *entries.length) : bytes;
  if (length != bytes) {
    fail(ErrorCode::shape_mismatch, fmt::format("length of external data of {}{}: got {} bytes, expected {}", dtype_name(dtype),
                                                shape_text(shape), length, bytes));
  }
  const std::shared_ptr<const InputFile>& file = external_file(entries.location.value_or(""));
  const uint64_t end = checked_add(offset, length, "end of external data");
  if (end > file->size()) {
    throw Error(ErrorCode::bad_offset,
                fmt::format("data ends past the end of the file: got end {}, expected at most {}", end, file->size()),
                {.file = file->name(), .tensor = std::string(name), .offset = offset});
  }
  return {std::string(name), dtype, shape, offset, bytes, file};
}

Recipe OnnxConstants::recipe(const Tensor& tensor, std::string_view name) {
  return naming(tensor, name, [&] {
    const DType dtype = dtype_of(tensor);
    const Shape shape = shape_of(tensor);
    return tensor.external ? source(external_place(tensor, name, dtype, shape)) : inline_recipe(tensor, dtype, shape);
  });
}

std::vector<int64_t> OnnxConstants::integers(const Tensor& tensor, std::string_view name) {
  return naming(tensor, name, [&]() -> std::vector<int64_t> {
    const DType dtype = dtype_of(tensor);
    const Shape shape = shape_of(tensor);
    if ((dtype != DType::i64 && dtype != DType::i32) || shape.size() != 1 || shape[0] > kMaxIntegers) {
      fail(ErrorCode::shape_mismatch, fmt::format("integer operand: got {}{}, expected i64 or i32 of rank 1, at most {} elements",
                                                  dtype_name(dtype), shape_text(shape), kMaxIntegers));
    }
    std::string from_file;
    std::string_view bytes = tensor.raw_data;
    if (tensor.external) {
      const TensorInfo place = external_place(tensor, name, dtype, shape);
      from_file.resize(place.bytes);
      place.file->read_at(place.offset, std::as_writable_bytes(std::span(from_file)));
      bytes = from_file;
    } else if (!is_raw(tensor, dtype, shape)) {
      if (dtype == DType::i64) return tensor.int64_data;
      const std::vector<int32_t> values = narrowed<int32_t>(tensor.int32_data);
      return {values.begin(), values.end()};
    }
    if (dtype == DType::i64) return elements<int64_t>(bytes);
    const std::vector<int32_t> values = elements<int32_t>(bytes);
    return {values.begin(), values.end()};
  });
}

}  // namespace transload
