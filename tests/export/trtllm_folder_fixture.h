// TensorRT-LLM checkpoints made for one test: exports of the tiny inputs and of synthetic models, and edits of their tensors.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/scratch_folder.h"
#include "transload/checkpoint.h"
#include "transload/export_trtllm.h"
#include "transload/synth.h"

namespace transload {

inline const std::vector<std::string>& trtllm_inputs() {
  static const std::vector<std::string> names = {"phi3-mini-4k",    "phi3-mini-128k", "phi3-medium-4k", "phi3-small-8k",
                                                 "phi3-small-128k", "phi35-moe",      "phi4-mini",      "phi3-separate"};
  return names;
}

inline std::filesystem::path trtllm_input(const std::string& name) {
  return std::filesystem::path(TRANSLOAD_TEST_DATA) / "trtllm" / name / "input";
}

inline Json input_config(const std::string& name) {
  return parse_json(read_text_file(trtllm_input(name) / "config.json"), "config.json");
}

// A random checkpoint of an input's config with some fields replaced.
inline void synthesize_input(const std::string& name, const Json::Object& fields, const std::filesystem::path& folder) {
  Json config = input_config(name);
  for (const auto& [key, value] : fields) config.set(key, value);
  const ScratchFolder scratch;
  SynthOptions options;
  options.overwrite = true;
  synthesize(scratch.write("config.json", write_json(config)), folder, options);
}

struct Split {
  uint32_t tensor = 1;
  uint32_t pipeline = 1;
  uint32_t expert = 1;
};

inline TrtllmOptions trtllm_options(const Split& split, DType dtype = DType::f16, TrtllmFormat format = TrtllmFormat::v1) {
  TrtllmOptions options;
  options.format = format;
  options.dtype = dtype;
  options.mapping = {split.tensor, split.pipeline, split.expert};
  return options;
}

inline TrtllmOptions quantised(TrtllmOptions options, WeightOnly weights, QuantForm form,
                               QuantLayout layout = QuantLayout::plain) {
  options.weight_only = weights;
  options.form = form;
  options.layout = layout;
  return options;
}

// Manifests are taken away: their digests would find every edit before any value is compared.
inline void export_folder(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                          const TrtllmOptions& options, bool manifests = false) {
  ExportTrtllmOptions all;
  all.trtllm = options;
  all.overwrite = true;
  all.workers = 1;
  export_trtllm(Checkpoint::open(checkpoint), folder, all);
  for (uint32_t rank = 0; !manifests && rank < options.mapping.world(); ++rank) {
    std::filesystem::remove(folder / ("rank" + std::to_string(rank) + ".manifest.json"));
  }
}

inline std::filesystem::path rank_path(const std::filesystem::path& folder, uint32_t rank) {
  return folder / ("rank" + std::to_string(rank) + ".safetensors");
}

inline TensorInfo stored_tensor(const std::filesystem::path& folder, uint32_t rank, const std::string& name) {
  for (const TensorInfo& tensor : read_safetensors(InputFile::open(rank_path(folder, rank))).tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + name);
}

inline std::string tensor_bytes_of(const std::filesystem::path& folder, uint32_t rank, const std::string& name) {
  const TensorInfo tensor = stored_tensor(folder, rank, name);
  std::string bytes(tensor.bytes, '\0');
  tensor.file->read_at(tensor.offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

inline void write_tensor(const std::filesystem::path& folder, uint32_t rank, const std::string& name, const std::string& bytes) {
  const TensorInfo tensor = stored_tensor(folder, rank, name);
  std::fstream file(rank_path(folder, rank), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(tensor.offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void edit_tensor(const std::filesystem::path& folder, uint32_t rank, const std::string& name,
                        const std::function<void(std::string&)>& edit) {
  std::string bytes = tensor_bytes_of(folder, rank, name);
  edit(bytes);
  write_tensor(folder, rank, name, bytes);
}

}  // namespace transload
