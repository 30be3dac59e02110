// The golden decoders of tests/data: their tokens and reference logits.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace transload {

inline constexpr const char* kGoldenNames[] = {"spark",           "spark_3shard_fp32", "llama",   "llama_tied_fp16",
                                               "llama_gguf_q8_0", "llama_gguf_f16",    "mistral", "gemma3"};

struct GoldenDecoder {
  explicit GoldenDecoder(const std::string& name) {
    const std::filesystem::path folder = std::filesystem::path(TRANSLOAD_TEST_DATA) / "decoders" / name;
    checkpoint = std::filesystem::exists(folder / "model.gguf") ? folder / "model.gguf" : folder;
    const Json about = parse_json(read_text_file(folder / "about.json"), "about.json");
    const Json* run = about.find("goldens")->find("golden.safetensors");
    prompt_length = static_cast<size_t>(run->find("prompt_len")->integer());
    tolerance = run->find("tolerance")->find("fp32_max_abs_logits")->number();
    const auto file = InputFile::open(folder / "golden.safetensors");
    for (const TensorInfo& tensor : read_safetensors(file).tensors) {
      if (tensor.name == "tokens") read(*file, tensor, tokens);
      if (tensor.name == "logits") {
        read(*file, tensor, logits);
        vocab = static_cast<size_t>(tensor.shape[1]);
      }
    }
  }
  std::vector<int32_t> prompt() const { return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(prompt_length)}; }
  std::vector<int32_t> greedy() const { return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt_length), tokens.end()}; }
  // Logits after reading tokens[0..position].
  std::span<const float> row(size_t position) const { return std::span(logits).subspan(position * vocab, vocab); }

  std::filesystem::path checkpoint;
  size_t prompt_length = 0;
  size_t vocab = 0;
  double tolerance = 0;
  std::vector<int32_t> tokens;
  std::vector<float> logits;

 private:
  template <typename T>
  static void read(const InputFile& file, const TensorInfo& tensor, std::vector<T>& out) {
    out.resize(tensor.bytes / sizeof(T));
    file.read_at(tensor.offset, std::as_writable_bytes(std::span(out)));
  }
};

}  // namespace transload
