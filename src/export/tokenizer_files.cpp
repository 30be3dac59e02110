// The checkpoint's tokenizer and generation files as planned copies of their bytes.
#include <filesystem>

#include "export/bundle.h"
#include "io/file.h"
#include "io/gguf.h"

namespace transload {
namespace {

constexpr const char* kCopied[] = {"config.json",          "generation_config.json", "tokenizer.json",   "tokenizer_config.json",
                                   "special_tokens_map.json", "added_tokens.json",   "tokenizer.model",  "vocab.json",
                                   "merges.txt",           "chat_template.jinja",    "chat_template.json"};
constexpr const char* kGgufTokenizer = "tokenizer.gguf";

PlannedTensor bytes_of(std::string name, const std::shared_ptr<const InputFile>& file, uint64_t from, uint64_t count,
                       uint64_t to) {
  TensorInfo info;
  info.name = file->name();
  info.dtype = DType::u8;
  info.shape = {count};
  info.offset = from;
  info.bytes = count;
  info.file = file;
  return {std::move(name), to, source(info)};
}

// A GGUF without tensors that holds the tokenizer's records exactly as the checkpoint stores them.
void plan_gguf_tokenizer(const Checkpoint& checkpoint, Plan& plan) {
  const std::shared_ptr<const InputFile>& file = checkpoint.files().front();
  const GgufHeader header = read_gguf(file);
  PlannedFile out;
  out.name = kGgufTokenizer;
  out.bytes.push_back({0, gguf_tokenizer_header(header.tokenizer_record_count)});
  out.size = out.bytes.front().bytes.size();
  for (const auto& [offset, bytes] : header.tokenizer_records) {
    out.tensors.push_back(bytes_of(kGgufTokenizer, file, offset, bytes, out.size));
    out.size += bytes;
  }
  plan.files.push_back(std::move(out));
}

}  // namespace

std::string plan_tokenizer_files(const Checkpoint& checkpoint, Plan& plan) {
  std::string tokenizer;
  if (checkpoint.format() == CheckpointFormat::gguf) {
    plan_gguf_tokenizer(checkpoint, plan);
    tokenizer = kGgufTokenizer;
  }
  for (const char* name : kCopied) {
    const std::filesystem::path path = checkpoint.directory() / name;
    std::error_code ignored;
    if (checkpoint.format() == CheckpointFormat::gguf || !std::filesystem::is_regular_file(path, ignored)) continue;
    const std::shared_ptr<const InputFile> file = InputFile::open(path);
    PlannedFile out;
    out.name = name;
    out.size = file->size();
    if (out.size > 0) out.tensors.push_back(bytes_of(name, file, 0, out.size, 0));
    plan.files.push_back(std::move(out));
    if (std::string_view(name) == "tokenizer.json") tokenizer = name;
  }
  return tokenizer;
}

}  // namespace transload
