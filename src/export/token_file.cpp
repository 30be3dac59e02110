// Reads token ids from text or from a safetensors file.
#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "base/printable.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "transload/error.h"
#include "transload/evaluate.h"

namespace transload {
namespace {

constexpr std::string_view kBetween = " \t\r\n\f\v,";
constexpr const char* kTensor = "tokens";
constexpr uint64_t kMostTokens = uint64_t{1} << 26;  // the bytes that a text may have

std::vector<int32_t> read_tensor(const std::filesystem::path& path) {
  const auto file = InputFile::open(path);
  for (const TensorInfo& tensor : read_safetensors(file).tensors) {
    if (tensor.name != kTensor) continue;
    if (tensor.dtype != DType::i32) {
      throw Error(ErrorCode::dtype_mismatch, fmt::format("token ids: got {}, expected i32", dtype_name(tensor.dtype)),
                  {file->name(), kTensor, tensor.offset});
    }
    if (tensor.bytes / sizeof(int32_t) > kMostTokens) {
      throw Error(ErrorCode::bad_header,
                  fmt::format("too many token ids: got {}, expected at most {}", tensor.bytes / sizeof(int32_t), kMostTokens),
                  {file->name(), kTensor, tensor.offset});
    }
    std::vector<int32_t> ids(tensor.bytes / sizeof(int32_t));
    file->read_at(tensor.offset, std::as_writable_bytes(std::span(ids)));
    return ids;
  }
  throw Error(ErrorCode::tensor_missing, "token ids: got no such tensor, expected one of i32", {file->name(), kTensor, {}});
}

// "1 2 3", "1,2,3", one in a line, or "[1, 2, 3]".
std::vector<int32_t> read_text(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  const auto refuse = [&](size_t offset) {
    const size_t end = std::min(text.find_first_of(kBetween, offset), text.size());
    throw Error(ErrorCode::config_invalid,
                fmt::format("got '{}', expected token ids with blanks or commas between",
                            printable(std::string_view(text).substr(offset, end - offset), 40)),
                {path.string(), {}, offset});
  };
  size_t at = text.find_first_not_of(kBetween);
  size_t end = text.find_last_not_of(kBetween) + 1;
  if (at != std::string::npos && text[at] == '[') {
    if (text[end - 1] != ']' || end - at < 2) refuse(at);
    ++at;
    --end;
  }
  std::vector<int32_t> ids;
  for (at = text.find_first_not_of(kBetween, at); at < end; at = text.find_first_not_of(kBetween, at)) {
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    const auto next = static_cast<size_t>(stop - text.data());
    if (error != std::errc() || id < 0 || (next < end && kBetween.find(text[next]) == std::string_view::npos)) refuse(at);
    ids.push_back(id);
    at = next;
  }
  return ids;
}

}  // namespace

std::vector<int32_t> read_token_file(const std::filesystem::path& path) {
  return path.extension() == ".safetensors" ? read_tensor(path) : read_text(path);
}

}  // namespace transload
