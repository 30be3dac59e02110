// Writes a random checkpoint in the shape a config asks for: safetensors shards, index and config.
#include "transload/synth.h"

#include <fmt/format.h>

#include <span>

#include "export/destination.h"
#include "export/safetensors_shards.h"
#include "io/file.h"
#include "io/json.h"
#include "io/output_directory.h"
#include "model/expected_tensors.h"
#include "transload/decoder_model.h"
#include "transload/error.h"
#include "weights/executor.h"
#include "weights/plan.h"

namespace transload {
namespace {

constexpr float kWeightStddev = 0.02F;
constexpr float kNormStddev = 0.1F;

// A tensor's values depend on the seed and its name only, so shards and order do not change them (FNV-1a over the name).
uint64_t tensor_seed(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
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
  std::vector<ShardTensor> random_tensors;
  for (const ExpectedTensor& tensor : tensors) {
    const float stddev = tensor.is_norm ? kNormStddev : kWeightStddev;
    random_tensors.push_back(
        {tensor.name, random(options.dtype, tensor.shape, tensor_seed(options.seed, tensor.name), stddev, tensor.mean)});
    summary.parameter_count += element_count(tensor.shape);
  }
  summary.tensor_count = tensors.size();
  const auto [plan, shards] = plan_checkpoint(random_tensors, options.shards, config_text);
  summary.shards = shards;
  summary.total_bytes = plan.total_bytes();

  OutputDirectory output(destination, options.overwrite);
  if (options.sparse) {
    write_sparse(plan, output);
  } else {
    execute(plan, output, {options.workers, options.progress, {}});
  }
  output.commit();
  return summary;
}

}  // namespace transload
