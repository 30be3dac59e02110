// Reading GGUF headers. The layout is the one ggml's gguf.h documents: magic, version, counts, key-value records, tensor table,
// padding to the alignment, tensor data.
#include "io/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/checked.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "io/gguf_types.h"
#include "io/sequential_reader.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMaxHeaderBytes = uint64_t{512} << 20;  // a vocabulary of 262,144 tokens with merges takes about 20 MiB
constexpr uint64_t kMaxKeptBytes = uint64_t{64} << 20;     // metadata and tensor table, as they lie in memory
constexpr uint64_t kMaxNameBytes = 65535;                  // the format's limit for keys
constexpr uint64_t kMaxArrayElements = 1024;               // longer arrays are skipped
constexpr uint32_t kMaxDimensions = 4;
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint64_t kMinRecordBytes = 8 + 1 + 4 + 1;          // length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // length, name, dimension count, one dimension, type, offset

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = utf8_sequence_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// "model-00001-of-00003.gguf": how llama.cpp names the parts of a split model.
bool is_part_name(std::string_view name) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (name.size() < kPattern.size()) return false;
  name.remove_prefix(name.size() - kPattern.size());
  return std::equal(name.begin(), name.end(), kPattern.begin(), [](char letter, char pattern) {
    return pattern == '0' ? std::isdigit(static_cast<unsigned char>(letter)) != 0 : letter == pattern;
  });
}

class GgufParser {
 public:
  explicit GgufParser(const std::shared_ptr<const InputFile>& file) : file_(file), reader_(file, kMaxHeaderBytes) {}

  GgufHeader parse() {
    read_magic_and_version();
    const uint64_t tensor_count = read_count("tensor count", kMinTensorBytes);
    const uint64_t record_count = read_count("metadata count", kMinRecordBytes);
    for (uint64_t i = 0; i < record_count; ++i) read_record();
    header_.metadata = Json(std::move(metadata_));
    refuse_split();
    for (uint64_t i = 0; i < tensor_count; ++i) read_tensor();
    header_.digest = reader_.digest();
    place_tensors();
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(ErrorCode code, std::string what, uint64_t offset) const {
    throw Error(code, std::move(what), {file_->name(), {}, offset});
  }

  void read_magic_and_version() {
    const std::string magic = reader_.text(kMagic.size(), "magic");
    if (magic != kMagic) {
      fail(ErrorCode::bad_header, fmt::format("not a GGUF file: got '{}', expected '{}'", printable(magic), kMagic), 0);
    }
    const auto version = reader_.number<uint32_t>("version");
    if (version == 2 || version == 3) return;
    const uint32_t swapped = __builtin_bswap32(version);
    if (version > 0xFFFF && swapped <= 0xFFFF) {
      fail(ErrorCode::config_unsupported,
           fmt::format("big-endian GGUF: got version {} byte-swapped, expected little endian", swapped), kMagic.size());
    }
    fail(ErrorCode::config_unsupported, fmt::format("GGUF version: got {}, expected 2 or 3", version), kMagic.size());
  }

  // A count of things that take at least `min_bytes` each.
  uint64_t read_count(std::string_view what, uint64_t min_bytes) {
    const uint64_t offset = reader_.position();
    const auto count = reader_.number<uint64_t>(what);
    const uint64_t most = reader_.bytes_left() / min_bytes;
    if (count > most) {
      fail(ErrorCode::bad_header, fmt::format("{}: got {}, expected at most {} in the bytes left", what, count, most), offset);
    }
    return count;
  }

  std::string read_name(std::string_view what) {
    const uint64_t offset = reader_.position();
    const auto bytes = reader_.number<uint64_t>(what);
    if (bytes == 0 || bytes > kMaxNameBytes) {
      fail(ErrorCode::bad_header, fmt::format("length of a {}: got {}, expected 1 to {}", what, bytes, kMaxNameBytes), offset);
    }
    std::string name = reader_.text(bytes, what);
    if (!is_utf8(name)) {
      fail(ErrorCode::bad_header, fmt::format("{}: got bytes that are not UTF-8, expected UTF-8", what), offset + 8);
    }
    return name;
  }

  uint64_t read_string_bytes() {
    const uint64_t offset = reader_.position();
    const auto bytes = reader_.number<uint64_t>("string length");
    if (bytes > reader_.bytes_left()) {
      fail(ErrorCode::bad_header,
           fmt::format("string length: got {}, expected at most {} in the bytes left (incomplete download?)", bytes,
                       reader_.bytes_left()),
           offset);
    }
    return bytes;
  }

  // Counts what stays in memory, before it is allocated.
  void keep(uint64_t bytes) {
    kept_bytes_ += std::min(bytes, kMaxKeptBytes + 1);
    if (kept_bytes_ > kMaxKeptBytes) {
      fail(ErrorCode::bad_header,
           fmt::format("metadata and tensor table: got {} bytes or more to keep in memory, expected at most {}", kept_bytes_,
                       kMaxKeptBytes),
           reader_.position());
    }
  }

  void read_record() {
    const uint64_t begin = reader_.position();
    std::string key = read_name("metadata key");
    try {
      keep(key.size() * 2 + sizeof(Json::Member) + sizeof(std::string));
      if (!keys_.insert(key).second) fail(ErrorCode::duplicate_name, "metadata key: got it twice, expected it once", begin);
      const GgufValueType type = read_value_type();
      const uint64_t value_offset = reader_.position();
      Json value = type == GgufValueType::array ? read_array() : read_scalar(type);
      if (key == "general.alignment") set_alignment(type, value, value_offset);
      if (key == "general.architecture" || key.starts_with("tokenizer.")) add_tokenizer_record(begin);
      metadata_.emplace_back(std::move(key), std::move(value));
    } catch (Error& error) {
      error.note(fmt::format("reading metadata key '{}'", printable(key)));
      throw;
    }
  }

  GgufValueType read_value_type() {
    const uint64_t offset = reader_.position();
    const auto type = reader_.number<uint32_t>("value type");
    if (type >= kGgufValueTypeCount) {
      fail(ErrorCode::bad_header, fmt::format("value type: got {}, expected 0 to {}", type, kGgufValueTypeCount - 1), offset);
    }
    return static_cast<GgufValueType>(type);
  }

  Json read_scalar(GgufValueType type) {
    switch (type) {
      case GgufValueType::u8:
        return Json(uint32_t{reader_.number<uint8_t>("value")});
      case GgufValueType::i8:
        return Json(int64_t{reader_.number<int8_t>("value")});
      case GgufValueType::u16:
        return Json(uint32_t{reader_.number<uint16_t>("value")});
      case GgufValueType::i16:
        return Json(int64_t{reader_.number<int16_t>("value")});
      case GgufValueType::u32:
        return Json(reader_.number<uint32_t>("value"));
      case GgufValueType::i32:
        return Json(int64_t{reader_.number<int32_t>("value")});
      case GgufValueType::u64:
        return Json(reader_.number<uint64_t>("value"));
      case GgufValueType::i64:
        return Json(reader_.number<int64_t>("value"));
      case GgufValueType::f32:
        return finite_or_null(reader_.number<float>("value"));
      case GgufValueType::f64:
        return finite_or_null(reader_.number<double>("value"));
      case GgufValueType::boolean: {
        const uint64_t offset = reader_.position();
        const auto byte = reader_.number<uint8_t>("value");
        if (byte > 1) fail(ErrorCode::bad_header, fmt::format("boolean: got {}, expected 0 or 1", byte), offset);
        return Json(byte == 1);
      }
      case GgufValueType::string: {
        const uint64_t bytes = read_string_bytes();
        keep(bytes);
        std::string text = reader_.text(bytes, "string");
        return is_utf8(text) ? Json(std::move(text)) : Json();
      }
      case GgufValueType::array:
        break;
    }
    throw Error(ErrorCode::internal, "an array read as a scalar");
  }

  Json read_array() {
    const uint64_t type_offset = reader_.position();
    const GgufValueType type = read_value_type();
    if (type == GgufValueType::array)
      fail(ErrorCode::bad_header, "array element: got an array, expected a scalar or string", type_offset);
    const uint64_t element_bytes = kGgufValueBytes[static_cast<size_t>(type)];
    const uint64_t count = read_count("array length", element_bytes);
    if (count > kMaxArrayElements) {
      if (type == GgufValueType::string) {
        for (uint64_t i = 0; i < count; ++i) reader_.skip(read_string_bytes(), "string");
      } else {
        reader_.skip(count * element_bytes, "array");
      }
      return {};
    }
    keep(count * sizeof(Json));
    Json::Array elements;
    elements.reserve(count);
    for (uint64_t i = 0; i < count; ++i) elements.push_back(read_scalar(type));
    return Json(std::move(elements));
  }

  void set_alignment(GgufValueType type, const Json& value, uint64_t offset) {
    if (type != GgufValueType::u32) {
      fail(ErrorCode::bad_header,
           fmt::format("alignment: got value type {}, expected {} (u32)", static_cast<uint32_t>(type),
                       static_cast<uint32_t>(GgufValueType::u32)),
           offset);
    }
    const auto alignment = static_cast<uint32_t>(value.integer());
    if (!std::has_single_bit(alignment)) {
      fail(ErrorCode::bad_header, fmt::format("alignment: got {}, expected a power of two", alignment), offset);
    }
    alignment_ = alignment;
  }

  void add_tokenizer_record(uint64_t begin) {
    auto& records = header_.tokenizer_records;
    const uint64_t bytes = reader_.position() - begin;
    if (!records.empty() && records.back().first + records.back().second == begin) {
      records.back().second += bytes;
    } else {
      records.emplace_back(begin, bytes);
    }
    ++header_.tokenizer_record_count;
  }

  // Parts of a split model are whole GGUF files of some of the tensors; the first may hold metadata only.
  void refuse_split() const {
    const auto& records = header_.metadata.object();
    const Json* count = header_.metadata.find("split.count");
    const bool has_split_keys =
        std::any_of(records.begin(), records.end(), [](const auto& m) { return m.first.starts_with("split."); });
    const bool counted = count != nullptr && count->is_integer();
    if (counted ? count->integer() <= 1 : !(has_split_keys && is_part_name(file_->name()))) return;
    fail(ErrorCode::config_unsupported,
         fmt::format("split GGUF: got one of {} parts, expected a whole model; merge the parts with 'gguf-split --merge' first",
                     counted ? std::to_string(count->integer()) : "several"),
         0);
  }

  void read_tensor() {
    const uint64_t begin = reader_.position();
    TensorInfo tensor;
    tensor.name = read_name("tensor name");
    try {
      keep(tensor.name.size() * 2 + sizeof(TensorInfo) + sizeof(std::string) + kMaxDimensions * sizeof(uint64_t));
      if (!tensor_names_.insert(tensor.name).second) {
        fail(ErrorCode::duplicate_name, "tensor name: got it twice, expected it once", begin);
      }
      tensor.shape = read_shape();
      tensor.dtype = read_tensor_type();
      const uint64_t offset_position = reader_.position();
      tensor.bytes = tensor_bytes(tensor.dtype, tensor.shape);
      tensor.offset = reader_.number<uint64_t>("data offset");  // made absolute when the header's end is known
      if (tensor.offset % alignment_ != 0) {
        fail(ErrorCode::bad_offset, fmt::format("data offset: got {}, expected a multiple of {}", tensor.offset, alignment_),
             offset_position);
      }
    } catch (Error& error) {
      error.at({file_->name(), tensor.name, begin});
      throw;
    }
    tensor.file = file_;
    header_.tensors.push_back(std::move(tensor));
  }

  Shape read_shape() {
    const uint64_t offset = reader_.position();
    const auto rank = reader_.number<uint32_t>("dimension count");
    if (rank == 0 || rank > kMaxDimensions) {
      fail(ErrorCode::bad_header, fmt::format("dimension count: got {}, expected 1 to {}", rank, kMaxDimensions), offset);
    }
    Shape shape(rank);
    for (uint32_t i = 0; i < rank; ++i) {
      const uint64_t dimension_offset = reader_.position();
      const auto dimension = reader_.number<uint64_t>("dimension");
      if (dimension == 0)
        fail(ErrorCode::bad_header, fmt::format("dimension {}: got 0, expected at least 1", i), dimension_offset);
      shape[rank - 1 - i] = dimension;  // the file has the innermost dimension first
    }
    return shape;
  }

  DType read_tensor_type() {
    const uint64_t offset = reader_.position();
    const auto id = reader_.number<uint32_t>("tensor type");
    if (id < kGgufTensorTypes.size() && kGgufTensorTypes[id].dtype) return *kGgufTensorTypes[id].dtype;
    std::vector<std::string_view> known;
    for (const GgufTensorType& type : kGgufTensorTypes) {
      if (type.dtype) known.push_back(type.name);
    }
    const std::string got =
        id < kGgufTensorTypes.size() ? std::string(kGgufTensorTypes[id].name) : fmt::format("the unknown type {}", id);
    fail(ErrorCode::dtype_unsupported, fmt::format("tensor type: got {}, expected one of {}", got, fmt::join(known, ", ")),
         offset);
  }

  void place_tensors() {
    const uint64_t table_end = reader_.position();
    const uint64_t data_begin = table_end + (alignment_ - table_end % alignment_) % alignment_;
    std::vector<const TensorInfo*> by_offset;
    by_offset.reserve(header_.tensors.size());
    for (TensorInfo& tensor : header_.tensors) {
      const auto begin = checked_add(data_begin, tensor.offset);
      const auto end = begin ? checked_add(*begin, tensor.bytes) : std::nullopt;
      if (!end) {
        throw Error(
            ErrorCode::size_overflow,
            fmt::format("end of data: got {} + {} + {}, expected less than 2^64", data_begin, tensor.offset, tensor.bytes),
            {file_->name(), tensor.name, data_begin});
      }
      if (*end > file_->size()) {
        throw Error(ErrorCode::bad_offset,
                    fmt::format("data ends past end of file: got end {}, expected at most {} (incomplete download?)", *end,
                                file_->size()),
                    {file_->name(), tensor.name, *begin});
      }
      tensor.offset = *begin;
      by_offset.push_back(&tensor);
    }
    std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
      const TensorInfo& before = *by_offset[i - 1];
      const TensorInfo& tensor = *by_offset[i];
      if (tensor.offset >= before.offset + before.bytes) continue;
      throw Error(ErrorCode::bad_offset,
                  fmt::format("data overlaps tensor '{}': got begin {}, expected at least {}", printable(before.name),
                              tensor.offset, before.offset + before.bytes),
                  {file_->name(), tensor.name, tensor.offset});
    }
  }

  std::shared_ptr<const InputFile> file_;
  SequentialReader reader_;
  GgufHeader header_;
  Json::Object metadata_;
  uint64_t alignment_ = kDefaultAlignment;
  uint64_t kept_bytes_ = 0;
  std::unordered_set<std::string> keys_;
  std::unordered_set<std::string> tensor_names_;
};

}  // namespace

GgufHeader read_gguf(const std::shared_ptr<const InputFile>& file) { return GgufParser(file).parse(); }

std::string gguf_tokenizer_header(uint64_t record_count) {
  const uint32_t version = 3;
  const uint64_t tensor_count = 0;
  std::string header(24, '\0');
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + 4, &version, sizeof version);
  std::memcpy(header.data() + 8, &tensor_count, sizeof tensor_count);
  std::memcpy(header.data() + 16, &record_count, sizeof record_count);
  return header;
}

}  // namespace transload
