// Writes a random checkpoint in the shape a config asks for: safetensors shards, index and config.
#include "transload/synth.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "export/destination.h"
#include "io/file.h"
#include "io/json.h"
#include "io/output_directory.h"
#include "io/safetensors.h"
#include "model/expected_tensors.h"
#include "transload/decoder_model.h"
#include "transload/error.h"
#include "weights/executor.h"
#include "weights/plan.h"

namespace transload {
namespace {

constexpr uint64_t kShardBytes = 4'000'000'000;
constexpr float kWeightStddev = 0.02F;
constexpr float kNormStddev = 0.1F;

// A tensor's values depend on the seed and its name only, so shards and order do not change them (FNV-1a over the name).
uint64_t tensor_seed(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

std::vector<std::vector<ExpectedTensor>> split_shards(const std::vector<ExpectedTensor>& tensors, uint64_t total, uint32_t shards,
                                                      DType dtype) {
  std::vector<std::vector<ExpectedTensor>> out(1);
  const uint64_t target = (total + shards - 1) / shards;
  uint64_t in_shard = 0;
  for (const ExpectedTensor& tensor : tensors) {
    if (in_shard >= target && out.size() < shards) {
      out.emplace_back();
      in_shard = 0;
    }
    out.back().push_back(tensor);
    in_shard += tensor_bytes(dtype, tensor.shape);
  }
  return out;
}

PlannedFile plan_shard(const std::vector<ExpectedTensor>& tensors, std::string name, const SynthOptions& options) {
  std::vector<SafetensorsEntry> entries;
  for (const ExpectedTensor& tensor : tensors) entries.push_back({tensor.name, options.dtype, tensor.shape});
  SafetensorsLayout layout = plan_safetensors(entries, Json::Object{{"format", "pt"}});
  PlannedFile file;
  file.name = std::move(name);
  file.size = layout.file_bytes;
  file.bytes.push_back({0, std::move(layout.header)});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ExpectedTensor& tensor = tensors[i];
    const float stddev = tensor.is_norm ? kNormStddev : kWeightStddev;
    file.tensors.push_back({tensor.name, layout.offsets[i],
                            random(options.dtype, tensor.shape, tensor_seed(options.seed, tensor.name), stddev, tensor.mean)});
  }
  return file;
}

void write_sparse(const Plan& plan, OutputDirectory& output) {
  for (const PlannedFile& file : plan.files) {
    const OutputFile& out = output.create(file.name, file.size, true);
    for (const PlannedBytes& bytes : file.bytes) out.write_at(bytes.offset, std::as_bytes(std::span(bytes.bytes)));
  }
}

}  // namespace

SynthSummary synthesize(const std::filesystem::path& config, const std::filesystem::path& destination,
                        const SynthOptions& options) {
  if (options.dtype != DType::bf16 && options.dtype != DType::f16 && options.dtype != DType::f32) {
    throw Error(ErrorCode::usage,
                fmt::format("dtype of a random checkpoint: got {}, expected bf16, f16 or f32", dtype_name(options.dtype)));
  }
  std::error_code ignored;
  const std::filesystem::path config_path = std::filesystem::is_directory(config, ignored) ? config / "config.json" : config;
  refuse_destination_over(destination, {config_path});
  const std::string config_text = read_text_file(config_path);
  const std::string config_name = config_path.filename().string();
  const std::vector<ExpectedTensor> tensors = expected_tensors(parse_json(config_text, config_name), config_name);

  SynthSummary summary;
  uint64_t total = 0;
  for (const ExpectedTensor& tensor : tensors) {
    summary.parameter_count += element_count(tensor.shape);
    total += tensor_bytes(options.dtype, tensor.shape);
  }
  summary.tensor_count = tensors.size();
  const auto wanted = options.shards != 0 ? options.shards : static_cast<uint32_t>((total + kShardBytes - 1) / kShardBytes);
  const auto shards = split_shards(tensors, total, std::max(1U, wanted), options.dtype);
  summary.shards = static_cast<uint32_t>(shards.size());

  Plan plan;
  Json weight_map{Json::Object{}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? std::string("model.safetensors")
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    plan.files.push_back(plan_shard(shards[i], name, options));
    for (const ExpectedTensor& tensor : shards[i]) weight_map.object().emplace_back(tensor.name, name);
  }
  if (shards.size() > 1) {
    plan.files.push_back(planned_text(
        "model.safetensors.index.json",
        write_json(Json::Object{{"metadata", Json::Object{{"total_size", total}}}, {"weight_map", std::move(weight_map)}}) +
            "\n"));
  }
  plan.files.push_back(planned_text("config.json", config_text));
  check_plan(plan);
  summary.total_bytes = plan.total_bytes();

  OutputDirectory output(destination, options.overwrite);
  if (options.sparse) {
    write_sparse(plan, output);
  } else {
    ExecuteOptions execute_options;
    execute_options.workers = options.workers;
    execute_options.progress = options.progress;
    execute(plan, output, execute_options);
  }
  output.commit();
  return summary;
}

}  // namespace transload
