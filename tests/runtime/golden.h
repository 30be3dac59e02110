// Golden decoders of tests/data: the checkpoint, its reference outputs and the tolerance that about.json gives.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "transload/checkpoint.h"
#include "transload/decoder_model.h"
#include "transload/error.h"

namespace transload {

// The tensors of golden.safetensors: tokens [N+16]; logits [T, V] with T = N + 15, row p after reading tokens[0..p]; hidden
// [L+1, N, H]: the input of each layer, and behind the final norm; pre_norm [N, H]; k and v [L, kv_heads, T, head_dim].
struct Golden {
  struct Values {
    Shape shape;
    std::vector<float> data;
  };

  std::filesystem::path folder;
  std::vector<int32_t> tokens;
  uint64_t prompt = 0;     // N
  uint64_t positions = 0;  // T
  double max_abs_logits = 0;
  std::map<std::string, Values, std::less<>> values;

  const Values& at(std::string_view name) const { return values.find(name)->second; }
  std::span<const int32_t> read_tokens() const { return std::span(tokens).first(positions); }
  Checkpoint checkpoint() const {
    const auto gguf = folder / "model.gguf";
    return Checkpoint::open(std::filesystem::exists(gguf) ? gguf : folder);
  }
};

// Those whose family this tool knows.
inline std::vector<std::string> golden_names() {
  return {"spark", "spark_3shard_fp32", "llama", "llama_tied_fp16", "llama_gguf_q8_0", "llama_gguf_f16", "mistral", "gemma3"};
}

inline Golden read_golden(const std::string& name) {
  Golden golden;
  golden.folder = std::filesystem::path(TRANSLOAD_TEST_DATA) / "decoders" / name;
  const auto file = InputFile::open(golden.folder / "golden.safetensors");
  for (const TensorInfo& tensor : read_safetensors(file).tensors) {
    std::vector<std::byte> bytes(tensor.bytes);
    file->read_at(tensor.offset, bytes);
    if (tensor.dtype == DType::i32) {
      golden.tokens.resize(bytes.size() / sizeof(int32_t));
      std::memcpy(golden.tokens.data(), bytes.data(), bytes.size());
    } else {
      Golden::Values& values = golden.values[tensor.name];
      values.shape = tensor.shape;
      values.data.resize(bytes.size() / sizeof(float));
      std::memcpy(values.data.data(), bytes.data(), bytes.size());
    }
  }
  golden.positions = golden.at("logits").shape[0];
  golden.prompt = golden.at("hidden").shape[1];
  const std::string about = (golden.folder / "about.json").string();
  const Json json = parse_json(read_text_file(about), about);
  const Json* place = &json;
  for (const char* key : {"goldens", "golden.safetensors", "tolerance", "fp32_max_abs_logits"}) {
    place = place->find(key);
    if (place == nullptr) throw Error(ErrorCode::config_missing, "no tolerance", {about, {}, {}});
  }
  golden.max_abs_logits = place->number();
  return golden;
}

}  // namespace transload
