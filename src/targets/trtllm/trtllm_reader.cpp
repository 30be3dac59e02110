// Opens all rank files of a TensorRT-LLM checkpoint and checks every tensor against what the loader allocates for its rank.
#include "targets/trtllm/trtllm_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "base/printable.h"
#include "targets/trtllm/rank_names.h"
#include "targets/trtllm/trtllm_config.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr size_t kNamesShown = 5;

struct RequiredTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// What the loader allocates for one rank, from config.json alone.
class RankLoader {
 public:
  RankLoader(const TrtllmCheckpoint& checkpoint, uint32_t rank)
      : row_(*checkpoint.architecture),
        options_(checkpoint.options),
        d_(checkpoint.dimensions),
        tensor_(checkpoint.options.mapping.tensor),
        stage_(rank / tensor_),
        has_bias_(row_.block_sparse_fields || has_attention_bias(checkpoint)) {}

  std::vector<RequiredTensor> required(bool head_bias) {
    const uint32_t stages = options_.mapping.pipeline;
    const uint32_t layers = d_.layers / stages + (stage_ < d_.layers % stages ? 1 : 0);
    if (stage_ == 0) add("transformer.vocab_embedding.weight", {d_.vocab, d_.hidden});
    for (uint32_t i = 0; i < layers; ++i) add_layer(fmt::format("transformer.layers.{}.", i));
    if (stage_ + 1 == stages) {
      add_norm("transformer.ln_f");
      const uint64_t rows = (uint64_t{d_.vocab} + tensor_ - 1) / tensor_;
      add("lm_head.weight", {rows, d_.hidden});
      if (head_bias) add("lm_head.bias", {rows});
    }
    return std::move(tensors_);
  }

 private:
  static bool has_attention_bias(const TrtllmCheckpoint& checkpoint) {
    const Json* bias = checkpoint.config.find("attention_bias");
    return checkpoint.architecture->expert_fields && bias != nullptr && bias->is_bool() && bias->boolean();
  }

  void add(std::string name, Shape shape) { tensors_.push_back({std::move(name), *options_.dtype, std::move(shape)}); }

  // Rows are output channels; a baked weight lies turned, with one scale for each channel.
  void add_linear(const std::string& name, std::optional<uint64_t> stack, uint64_t out, uint64_t in) {
    const auto with_stack = [&](Shape shape) {
      if (stack) shape.insert(shape.begin(), *stack);
      return shape;
    };
    if (!options_.has_baked_weights()) return add(name + ".weight", with_stack({out, in}));
    if (options_.weight_only == WeightOnly::int4 && out % 2 != 0) {
      throw Error(ErrorCode::quant_unsupported,
                  fmt::format("4-bit weights of an odd number of output channels: got {}, expected an even one", out),
                  {kTrtllmConfigFile, name + ".weight", {}});
    }
    const uint64_t columns = options_.weight_only == WeightOnly::int8 ? out : out / 2;
    tensors_.push_back({name + ".weight", DType::i8, with_stack({in, columns})});
    add(name + kScalesSuffix, with_stack({out}));
  }

  void add_norm(const std::string& name) {
    add(name + ".weight", {d_.hidden});
    if (row_.block_sparse_fields || row_.expert_fields) add(name + ".bias", {d_.hidden});
  }

  void add_layer(const std::string& prefix) {
    const uint64_t kv_heads = (uint64_t{d_.kv_heads} + tensor_ - 1) / tensor_;
    const uint64_t query_rows = uint64_t{d_.heads} / tensor_ * d_.head_dim;
    const uint64_t rows = query_rows + 2 * kv_heads * d_.head_dim;
    add_norm(prefix + "input_layernorm");
    add_linear(prefix + "attention.qkv", {}, rows, d_.hidden);
    add_linear(prefix + "attention.dense", {}, d_.hidden, query_rows);
    if (has_bias_) {
      add(prefix + "attention.qkv.bias", {rows});
      add(prefix + "attention.dense.bias", {d_.hidden});
    }
    add_norm(prefix + "post_layernorm");
    if (d_.experts > 0) {
      const uint64_t own = d_.experts / options_.mapping.expert;
      const uint64_t width = d_.intermediate / options_.mapping.moe_tensor();
      tensors_.push_back({prefix + "mlp.router.weight", DType::f32, {d_.experts, d_.hidden}});
      add_linear(prefix + "mlp.fc", own, 2 * width, d_.hidden);
      add_linear(prefix + "mlp.proj", own, d_.hidden, width);
      return;
    }
    const uint64_t width = d_.intermediate / tensor_;
    add_linear(prefix + "mlp.fc", {}, 2 * width, d_.hidden);
    add_linear(prefix + "mlp.proj", {}, d_.hidden, width);
    if (row_.block_sparse_fields) {
      add(prefix + "mlp.fc.bias", {2 * width});
      add(prefix + "mlp.proj.bias", {d_.hidden});
    }
  }

  const TrtllmArchitecture& row_;
  const TrtllmOptions& options_;
  const TrtllmDimensions& d_;
  uint32_t tensor_;
  uint32_t stage_;
  bool has_bias_;
  std::vector<RequiredTensor> tensors_;
};

void open_ranks(TrtllmCheckpoint& checkpoint, std::vector<std::string>& warnings) {
  const uint32_t world = checkpoint.options.mapping.world();
  std::vector<std::string> missing;
  for (uint32_t rank = 0; rank < world; ++rank) {
    std::error_code ignored;
    if (!std::filesystem::exists(checkpoint.folder / rank_file_name(rank), ignored)) {
      missing.push_back(fmt::format("rank file: got none, expected '{}' of {}", rank_file_name(rank), world));
    }
  }
  if (!missing.empty()) throw Error(ErrorCode::file_missing, join_faults(missing), {checkpoint.folder.string(), {}, {}});
  for (uint32_t rank = 0; rank < world; ++rank) {
    auto& tensors = checkpoint.ranks.emplace_back();
    for (TensorInfo& tensor : read_safetensors(InputFile::open(checkpoint.folder / rank_file_name(rank))).tensors) {
      std::string name = tensor.name;
      tensors.emplace(std::move(name), std::move(tensor));
    }
  }
  if (std::error_code ignored; std::filesystem::exists(checkpoint.folder / rank_file_name(world), ignored)) {
    warnings.push_back(fmt::format("'{}' and later files are of no rank: got world_size {}", rank_file_name(world), world));
  }
}

// Baked weights are the only 8-bit tensors there are.
QuantForm form_of(const TrtllmCheckpoint& checkpoint) {
  for (const auto& rank : checkpoint.ranks) {
    for (const auto& [name, tensor] : rank) {
      if (tensor.dtype == DType::i8 || name.ends_with(kScalesSuffix)) return QuantForm::baked;
    }
  }
  return QuantForm::deferred;
}

struct TensorFaults {
  std::vector<std::string> missing;
  std::vector<std::string> shapes;
  std::vector<std::string> dtypes;
};

void check_rank(const TrtllmCheckpoint& checkpoint, uint32_t rank, bool head_bias, TensorFaults& faults,
                std::vector<std::string>& warnings) {
  const auto& tensors = checkpoint.ranks[rank];
  std::set<std::string, std::less<>> wanted;
  for (RequiredTensor& need : RankLoader(checkpoint, rank).required(head_bias)) {
    const auto found = tensors.find(need.name);
    if (found == tensors.end()) {
      faults.missing.push_back(fmt::format("{}: tensor '{}': got none, expected {} {}", rank_file_name(rank), need.name,
                                           dtype_name(need.dtype), shape_text(need.shape)));
    } else if (const TensorInfo& got = found->second; got.shape != need.shape) {
      faults.shapes.push_back(fmt::format("{}@{}: tensor '{}': shape: got {}, expected {}", rank_file_name(rank), got.offset,
                                          need.name, shape_text(got.shape), shape_text(need.shape)));
    } else if (got.dtype != need.dtype) {
      faults.dtypes.push_back(fmt::format("{}@{}: tensor '{}': dtype: got {}, expected {}", rank_file_name(rank), got.offset,
                                          need.name, dtype_name(got.dtype), dtype_name(need.dtype)));
    }
    wanted.insert(std::move(need.name));
  }
  std::vector<std::string> extra;
  size_t extra_count = 0;
  for (const auto& [name, tensor] : tensors) {
    if (wanted.contains(name)) continue;
    if (++extra_count <= kNamesShown) extra.push_back(printable(name, 80));
  }
  if (extra_count > 0) {
    warnings.push_back(fmt::format("{}: {} tensor{} that the model does not need: '{}'{}", rank_file_name(rank), extra_count,
                                   extra_count == 1 ? "" : "s", fmt::join(extra, "', '"),
                                   extra_count > kNamesShown ? ", …" : ""));
  }
}

void check_tensors(const TrtllmCheckpoint& checkpoint, std::vector<std::string>& warnings) {
  // Nothing in config.json says whether the head of a model with experts has a bias: one rank with it asks for all of them.
  const bool head_bias =
      checkpoint.architecture->expert_fields && std::any_of(checkpoint.ranks.begin(), checkpoint.ranks.end(),
                                                            [](const auto& rank) { return rank.contains("lm_head.bias"); });
  TensorFaults faults;
  for (uint32_t rank = 0; rank < checkpoint.ranks.size(); ++rank) check_rank(checkpoint, rank, head_bias, faults, warnings);
  const auto refuse = [&](ErrorCode code, const std::vector<std::string>& texts) {
    if (!texts.empty()) throw Error(code, join_faults(texts), {checkpoint.folder.string(), {}, {}});
  };
  refuse(ErrorCode::tensor_missing, faults.missing);
  refuse(ErrorCode::shape_mismatch, faults.shapes);
  refuse(ErrorCode::dtype_mismatch, faults.dtypes);
}

}  // namespace

const TensorInfo& TrtllmCheckpoint::tensor(uint32_t rank, const std::string& name) const {
  const auto found = ranks.at(rank).find(name);
  if (found == ranks[rank].end()) {
    throw Error(ErrorCode::tensor_missing, "not in its rank file: got none, expected the tensor",
                {rank_file_name(rank), name, {}});
  }
  return found->second;
}

bool is_trtllm_checkpoint(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path config = folder / kTrtllmConfigFile;
  if (!std::filesystem::is_regular_file(config, ignored) || std::filesystem::exists(folder / "contract.json", ignored))
    return false;
  try {
    const Json json = parse_json(read_text_file(config), kTrtllmConfigFile);
    return json.find("architecture") != nullptr;
  } catch (const Error&) {
    // Opening it shall say what is wrong with the file.
    return std::filesystem::exists(folder / rank_file_name(0), ignored);
  }
}

TrtllmCheckpoint open_trtllm(const std::filesystem::path& folder, QuantLayout layout, std::vector<std::string>& warnings) {
  TrtllmCheckpoint checkpoint;
  checkpoint.folder = folder;
  checkpoint.config = parse_json(read_text_file(folder / kTrtllmConfigFile), kTrtllmConfigFile);
  if (checkpoint.config.find("architecture") == nullptr && checkpoint.config.find("model_type") != nullptr) {
    throw Error(ErrorCode::config_missing,
                "no TensorRT-LLM checkpoint: got a Hugging Face config.json with 'model_type', expected one with 'architecture'",
                {folder.string(), {}, {}});
  }
  read_trtllm_config(checkpoint);
  open_ranks(checkpoint, warnings);
  if (checkpoint.options.weight_only != WeightOnly::none) checkpoint.options.form = form_of(checkpoint);
  checkpoint.options.layout = layout;
  check_tensors(checkpoint, warnings);
  return checkpoint;
}

}  // namespace transload
