// Reads golden files and compares the reference's values with them, layer by layer.
#include "export/verify_golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "export/verify_compare.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "runtime/reference.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr const char* kGoldenFile = "golden.safetensors";
constexpr uint32_t kBlockTokens = 128;

class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path)
      : header_(read_safetensors(InputFile::open(path))), name_(path.filename()) {}

  const TensorInfo* find(std::string_view name) const {
    for (const TensorInfo& tensor : header_.tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  const TensorInfo& require(std::string_view name) const {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr) {
      throw Error(ErrorCode::tensor_missing, "golden file: got no such tensor, expected it", {name_, std::string(name), {}});
    }
    return *tensor;
  }
  // The tensor's bytes as elements of T; its shape must be `expected`.
  template <typename T>
  std::vector<T> read(const TensorInfo& tensor, DType dtype, const Shape& expected) const {
    if (tensor.dtype != dtype) {
      throw Error(ErrorCode::dtype_mismatch,
                  fmt::format("golden file: got {}, expected {}", dtype_name(tensor.dtype), dtype_name(dtype)),
                  {name_, tensor.name, tensor.offset});
    }
    if (tensor.shape != expected) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("golden file: got {}, expected {}", shape_text(tensor.shape), shape_text(expected)),
                  {name_, tensor.name, tensor.offset});
    }
    std::vector<T> values(tensor.bytes / sizeof(T));
    tensor.file->read_at(tensor.offset, std::as_writable_bytes(std::span(values)));
    return values;
  }
  GoldenValues floats(std::string_view name, const Shape& expected) const {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr) return {};
    return {expected, read<float>(*tensor, DType::f32, expected)};
  }
  uint64_t rows(std::string_view name, size_t axis, size_t rank) const {
    const TensorInfo& tensor = require(name);
    if (tensor.shape.size() != rank) {
      throw Error(ErrorCode::shape_mismatch, fmt::format("golden file: got {}, expected rank {}", shape_text(tensor.shape), rank),
                  {name_, tensor.name, tensor.offset});
    }
    return tensor.shape[axis];
  }

 private:
  SafetensorsHeader header_;
  std::string name_;
};

// Compares rows of one block with rows of the golden and keeps the first failure.
class GoldenComparison {
 public:
  GoldenComparison(const GoldenOutputs& golden, const DecoderModel& model) : golden_(golden), model_(model) {
    layers_.resize(model.layers.size());
  }

  void tap(std::string_view name, uint64_t position, uint64_t rows, std::span<const float> got) {
    const auto count = static_cast<uint32_t>(model_.layers.size());
    if (name == (model_.embedding_factor != 1.0F ? "x_scaled" : "x")) hidden(0, "hidden[0]", std::nullopt, position, rows, got);
    if (name == "final_norm") hidden(count, fmt::format("hidden[{}]", count), std::nullopt, position, rows, got);
    for (uint32_t layer = 0; layer < count; ++layer) {
      if (name == fmt::format("layers_{}_out", layer)) layer_out(layer, position, rows, got);
      if (name == fmt::format("k_new_{}", layer)) entries("k", golden_.keys, layer, layers_[layer].keys, position, rows, got);
      if (name == fmt::format("v_new_{}", layer)) entries("v", golden_.values, layer, layers_[layer].values, position, rows, got);
    }
  }
  void logits(uint64_t position, std::span<const float> got) {
    const uint64_t vocab = model_.vocab_size;
    const std::span<const float> expected(golden_.logits.values.data() + position * vocab, vocab);
    head_.add_row(got, expected);
    compare("logits", std::nullopt, position, got, expected);
  }
  void fill(VerifyReport& report) const {
    for (uint32_t i = 0; i < layers_.size(); ++i) {
      report.golden_layers.push_back({i, layers_[i].out.result(), layers_[i].keys.result(), layers_[i].values.result()});
    }
    report.golden_head = head_.result();
  }
  std::optional<VerifyFailure> failure;

 private:
  struct Sums {
    DifferenceSum out, keys, values;
  };

  void layer_out(uint32_t layer, uint64_t position, uint64_t rows, std::span<const float> got) {
    if (layer + 1 < model_.layers.size()) {
      hidden(layer + 1, fmt::format("hidden[{}]", layer + 1), layer, position, rows, got);
    } else if (!golden_.pre_norm.values.empty()) {
      prompt_rows("pre_norm", golden_.pre_norm.values, layer, position, rows, got);
    }
  }
  void hidden(uint64_t index, const std::string& name, std::optional<uint32_t> layer, uint64_t position, uint64_t rows,
              std::span<const float> got) {
    if (golden_.hidden.values.empty()) return;
    const uint64_t size = golden_.prompt_tokens * model_.hidden_size;
    prompt_rows(name, std::span(golden_.hidden.values).subspan(index * size, size), layer, position, rows, got);
  }
  // `expected`: [prompt, hidden].
  void prompt_rows(const std::string& name, std::span<const float> expected, std::optional<uint32_t> layer, uint64_t position,
                   uint64_t rows, std::span<const float> got) {
    if (position >= golden_.prompt_tokens) return;
    const uint64_t width = model_.hidden_size;
    const uint64_t count = std::min(rows, golden_.prompt_tokens - position) * width;
    const std::span<const float> part = expected.subspan(position * width, count);
    if (layer) layers_[*layer].out.add(got.first(count), part);
    compare(name, layer, position, got.first(count), part);
  }
  void entries(const char* kind, const GoldenValues& golden, uint32_t layer, DifferenceSum& sum, uint64_t position, uint64_t rows,
               std::span<const float> got) {
    if (golden.values.empty()) return;
    const uint64_t heads = golden.shape[1];
    const uint64_t length = golden.shape[2];
    const uint64_t width = golden.shape[3];
    std::vector<float> expected(rows * heads * width);
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t head = 0; head < heads; ++head) {
        const float* from = golden.values.data() + ((layer * heads + head) * length + position + row) * width;
        std::copy(from, from + width, expected.data() + (row * heads + head) * width);
      }
    }
    sum.add(got, expected);
    compare(fmt::format("{}[{}]", kind, layer), layer, position, got, expected);
  }
  void compare(const std::string& name, std::optional<uint32_t> layer, uint64_t position, std::span<const float> got,
               std::span<const float> expected) {
    if (failure) return;
    DifferenceSum sum;
    sum.add(got, expected);
    const Difference difference = sum.result();
    const Tolerance tolerance = golden_tolerance();
    if (tolerance.holds(difference)) return;
    uint64_t worst = 0;
    for (uint64_t i = 0; i < got.size(); ++i) {
      if (!(std::abs(got[i] - expected[i]) <= std::abs(got[worst] - expected[worst]))) worst = i;
    }
    failure = VerifyFailure{name,
                            layer,
                            position,
                            golden_.path.filename().string(),
                            {},
                            "reference and golden file differ: " +
                                difference_text(closeness_of(difference), tolerance, got[worst], expected[worst], worst)};
  }

  const GoldenOutputs& golden_;
  const DecoderModel& model_;
  std::vector<Sums> layers_;
  HeadSum head_;
};

}  // namespace

GoldenOutputs read_golden(const std::filesystem::path& path, const DecoderModel& model) {
  GoldenOutputs golden;
  golden.path = std::filesystem::is_directory(path) ? path / kGoldenFile : path;
  if (!std::filesystem::exists(golden.path)) {
    throw Error(ErrorCode::file_missing, "golden file: got no such file, expected a .safetensors",
                {golden.path.string(), {}, {}});
  }
  const GoldenFile file(golden.path);
  const TensorInfo& tokens = file.require("tokens");
  golden.tokens = file.read<int32_t>(tokens, DType::i32, {file.rows("tokens", 0, 1)});
  golden.read_tokens = file.rows("logits", 0, 2);
  if (golden.read_tokens == 0 || golden.read_tokens > golden.tokens.size()) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("golden file: got {} rows of logits, expected 1 to {}, the number of tokens", golden.read_tokens,
                            golden.tokens.size()),
                {golden.path.filename().string(), "logits", {}});
  }
  const uint64_t layers = model.layers.size();
  const uint64_t hidden = model.hidden_size;
  golden.logits = file.floats("logits", {golden.read_tokens, model.vocab_size});
  golden.prompt_tokens = golden.read_tokens;
  if (file.find("hidden") != nullptr) {
    golden.prompt_tokens = file.rows("hidden", 1, 3);
    if (golden.prompt_tokens > golden.read_tokens) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("golden file: got {} rows, expected at most {}", golden.prompt_tokens, golden.read_tokens),
                  {golden.path.filename().string(), "hidden", {}});
    }
  }
  golden.hidden = file.floats("hidden", {layers + 1, golden.prompt_tokens, hidden});
  golden.pre_norm = file.floats("pre_norm", {golden.prompt_tokens, hidden});
  const Attention& attention = model.layers.front().attention;
  const Shape entries{layers, attention.kv_heads, golden.read_tokens, attention.head_dim};
  golden.keys = file.floats("k", entries);
  golden.values = file.floats("v", entries);
  return golden;
}

std::optional<VerifyFailure> compare_golden(const GoldenOutputs& golden, const DecoderModel& model, WeightStore& store,
                                            WorkerPool& pool, VerifyReport& report) {
  GoldenComparison comparison(golden, model);
  Reference reference(model, store, pool);
  ReferenceSinks sinks;
  sinks.every_row = true;
  sinks.tap = [&](std::string_view name, uint64_t position, uint64_t rows, std::span<const float> values) {
    comparison.tap(name, position, rows, values);
  };
  sinks.logits = [&](uint64_t position, std::span<const float> logits) { comparison.logits(position, logits); };
  reference.read(std::span(golden.tokens).first(golden.read_tokens), sinks, kBlockTokens);
  comparison.fill(report);
  return comparison.failure;
}

}  // namespace transload
