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
// [L+1, N, H]: the input of each layer, and behind the final norm; pre_norm [N, H]; k and v [L, kv_heads, T, head_dim]; experts
// [L, T, 2], the better one first.
struct Golden {
  struct Values {
    Shape shape;
    std::vector<float> data;
  };

  std::filesystem::path folder;
  std::vector<int32_t> tokens;
  std::vector<int32_t> experts;
  uint64_t prompt = 0;     // N
  uint64_t positions = 0;  // T: also the context whose rotary regime the run has
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

// Those of the Phi-3 family; "_short" is the second run of a longrope model, within its original length.
inline std::vector<std::string> phi_golden_names() {
  return {"phi3",   "phi3_longrope", "phi3_longrope_short", "phi4_mini", "phi4_mini_short",
          "phimoe", "phimoe_short",  "phi3small_unofficial"};
}

inline Golden read_golden(const std::string& name) {
  constexpr std::string_view kShort = "_short";
  const bool is_short = name.ends_with(kShort);
  const std::string file_name = is_short ? "golden_short.safetensors" : "golden.safetensors";
  Golden golden;
  golden.folder =
      std::filesystem::path(TRANSLOAD_TEST_DATA) / "decoders" / (is_short ? name.substr(0, name.size() - kShort.size()) : name);
  const auto file = InputFile::open(golden.folder / file_name);
  for (const TensorInfo& tensor : read_safetensors(file).tensors) {
    std::vector<std::byte> bytes(tensor.bytes);
    file->read_at(tensor.offset, bytes);
    if (tensor.dtype == DType::i32) {
      std::vector<int32_t>& values = tensor.name == "tokens" ? golden.tokens : golden.experts;
      values.resize(bytes.size() / sizeof(int32_t));
      std::memcpy(values.data(), bytes.data(), bytes.size());
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
  for (const char* key : {"goldens", file_name.c_str(), "tolerance", "fp32_max_abs_logits"}) {
    place = place->find(key);
    if (place == nullptr) throw Error(ErrorCode::config_missing, "no tolerance", {about, {}, {}});
  }
  golden.max_abs_logits = place->number();
  return golden;
}

}  // namespace transload
