// What the tests of the model room share: configs from the test data, checkpoints of zeros, and a model as comparable text.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "model/expected_tensors.h"
#include "transload/checkpoint.h"
#include "transload/decoder_model.h"

namespace transload {

inline std::filesystem::path test_data(std::string_view name) { return std::filesystem::path(TRANSLOAD_TEST_DATA) / name; }

inline Json config_of(std::string_view name) {
  return parse_json(read_text_file(test_data(name)), std::filesystem::path(name).filename().string());
}

// A folder that disappears with its owner.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "transload-model-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder");
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct StoredTensor {
  std::string name;
  Shape shape;
  std::string dtype = "F32";  // F32 or I32: four bytes an element
};

inline std::vector<StoredTensor> stored_tensors(const Json& config) {
  std::vector<StoredTensor> tensors;
  for (const ExpectedTensor& tensor : expected_tensors(config, "config.json")) tensors.push_back({tensor.name, tensor.shape});
  return tensors;
}

// Writes config.json and a sparse model.safetensors of zeros.
inline Checkpoint write_checkpoint(const ScratchFolder& folder, const Json& config, const std::vector<StoredTensor>& tensors) {
  Json header = Json::Object{};
  uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    Json::Array shape;
    for (const uint64_t dimension : tensor.shape) shape.emplace_back(dimension);
    const uint64_t begin = end;
    end += 4 * element_count(tensor.shape);
    header.set(tensor.name, Json::Object{{"dtype", tensor.dtype}, {"shape", shape}, {"data_offsets", Json::Array{begin, end}}});
  }
  std::string text = write_json(header, 0);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto path = folder.path() / "model.safetensors";
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(text.size() >> (8 * i)));
  file << text;
  file.close();
  std::filesystem::resize_file(path, 8 + text.size() + end);
  std::ofstream(folder.path() / "config.json") << write_json(config);
  return Checkpoint::open(folder.path());
}

inline std::string text_of(const Recipe& recipe) {
  return recipe.empty() ? "none" : fmt::format("{} {} {}", recipe.text(), dtype_name(recipe.dtype()), shape_text(recipe.shape()));
}
inline std::string text_of(const Norm& norm) {
  return fmt::format("{} eps {} kind {} bias {}", text_of(norm.weight), static_cast<float>(norm.epsilon),
                     static_cast<int>(norm.kind), text_of(norm.bias));
}
inline std::string text_of(const std::optional<Norm>& norm) { return norm ? text_of(*norm) : "none"; }
inline std::string text_of(const Linear& linear) { return text_of(linear.weight) + " bias " + text_of(linear.bias); }
inline std::string text_of(const std::optional<BlockSparse>& sparse) {
  if (!sparse) return "none";
  return fmt::format("{}/{}/{}/{}", sparse->block, sparse->local_blocks, sparse->vertical_stride, sparse->head_step);
}
inline std::string text_of(const Mlp& mlp) {
  return fmt::format("mlp: activation {} limit {} offset {}\n    {}\n    {}\n    {}", static_cast<int>(mlp.activation),
                     mlp.limit.value_or(-1), mlp.up_offset, text_of(mlp.gate), text_of(mlp.up), text_of(mlp.down));
}

// Every field of a model, one a line; two models are equal when their texts are.
inline std::string text_of(const DecoderModel& model) {
  std::string text =
      fmt::format("{} hidden {} mlp {} vocab {} positions {} factor {} logits {} tied {} bos {} eos {}\n", model.family,
                  model.hidden_size, model.intermediate_size, model.vocab_size, model.max_positions, model.embedding_factor,
                  model.logits_factor, model.tied_head, model.bos_token.value_or(-1), fmt::join(model.eos_tokens, ","));
  text += "embedding " + text_of(model.embedding) + "\nhead " + text_of(model.head) + " bias " + text_of(model.head_bias) +
          "\nnorm " + text_of(model.final_norm) + "\n";
  for (const RopeGroup& group : model.rope_groups) {
    text += fmt::format("rope {} {} factor {}: {}\n", group.name, group.width, group.attention_factor,
                        fmt::join(group.inv_freq, " "));
  }
  for (const Layer& layer : model.layers) {
    const Attention& attention = layer.attention;
    text += fmt::format("layer: window {} sparse {} rope {} heads {}/{} x {} scale {} gate {}\n",
                        attention.window ? int64_t{*attention.window} : -1, text_of(attention.block_sparse), attention.rope_group,
                        attention.heads, attention.kv_heads, attention.head_dim, attention.scale,
                        static_cast<int>(attention.gate_activation));
    for (const Linear* part : {&attention.q, &attention.k, &attention.v, &attention.o}) text += "  " + text_of(*part) + "\n";
    text += "  " + text_of(layer.mlp) + "\n";
    if (layer.experts) {
      text += fmt::format("  experts: routing {} chosen {} jitter {} router {}\n", static_cast<int>(layer.experts->routing),
                          layer.experts->chosen, layer.experts->jitter, text_of(layer.experts->router));
      for (const Mlp& expert : layer.experts->experts) text += "  " + text_of(expert) + "\n";
    }
    text += "  head gate " + (attention.head_gate ? text_of(*attention.head_gate) : std::string("none")) + "\n";
    for (const std::string& norm :
         {text_of(layer.input_norm), text_of(layer.mlp_norm), text_of(attention.q_norm), text_of(attention.k_norm),
          text_of(layer.post_attention_norm), text_of(layer.post_mlp_norm)}) {
      text += "  " + norm + "\n";
    }
  }
  return text;
}

}  // namespace transload
