// The checkpoint's tokenizer and generation files as planned copies of their bytes.
#include <filesystem>

#include "export/bundle.h"
#include "io/file.h"
#include "io/gguf.h"

namespace transload {
namespace {

constexpr const char* kCopied[] = {"generation_config.json",
                                   "tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "tokenizer.model",
                                   "vocab.json",
                                   "merges.txt",
                                   "chat_template.jinja",
                                   "chat_template.json"};
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

void plan_copy(std::string name, const std::filesystem::path& path, Plan& plan) {
  const std::shared_ptr<const InputFile> file = InputFile::open(path);
  PlannedFile out;
  out.name = std::move(name);
  out.size = file->size();
  if (out.size > 0) out.tensors.push_back(bytes_of(out.name, file, 0, out.size, 0));
  plan.files.push_back(std::move(out));
}

// A GGUF without tensors that holds the tokenizer's records exactly as the checkpoint stores them. False when it stores none.
bool plan_gguf_tokenizer(const Checkpoint& checkpoint, Plan& plan) {
  if (checkpoint.gguf_metadata()->find("tokenizer.ggml.tokens") == nullptr) return false;
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
  return true;
}

}  // namespace

bool has_entry(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

std::string plan_tokenizer_files(const Checkpoint& checkpoint, Plan& plan) {
  if (checkpoint.config() != nullptr) plan_copy("config.json", checkpoint.config_path(), plan);
  if (checkpoint.format() == CheckpointFormat::gguf) return plan_gguf_tokenizer(checkpoint, plan) ? kGgufTokenizer : "";
  std::string tokenizer;
  for (const char* name : kCopied) {
    const std::filesystem::path path = checkpoint.directory() / name;
    if (!has_entry(path)) continue;
    plan_copy(name, path, plan);
    if (std::string_view(name) == "tokenizer.json") tokenizer = name;
  }
  return tokenizer;
}

}  // namespace transload
