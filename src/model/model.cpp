// From a checkpoint, or a config alone, to a DecoderModel: finds the family, reads strictly, binds every tensor.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint_tensors.h"
#include "model/expected_tensors.h"
#include "model/families.h"
#include "transload/decoder_model.h"
#include "weights/executor.h"

namespace transload {
namespace {

constexpr std::string_view kRopeDivisors = "rope_freqs.weight";
constexpr std::array<std::string_view, 2> kLongropeFactors{"rope_factors_long.weight", "rope_factors_short.weight"};

// Remembers what a family asks for; there is no checkpoint.
class RecordingTensors final : public TensorSource {
 public:
  bool has(std::string_view) const override { return false; }
  Recipe require(const std::string& name, const Shape& shape) override { return record(name, shape, false, 0); }
  Recipe require_norm(const std::string& name, const Shape& shape, float around) override {
    return record(name, shape, true, around);
  }
  void ignore(const std::string&) override {}
  bool ignore_prefix(std::string_view) override { return false; }
  std::vector<ExpectedTensor> take() { return std::move(recorded_); }

 private:
  Recipe record(const std::string& name, const Shape& shape, bool is_norm, float around) {
    recorded_.push_back({name, shape, is_norm, around});
    return random(DType::f32, shape, 0, 1.0F);
  }
  std::vector<ExpectedTensor> recorded_;
};

std::string gguf_file_name(const Checkpoint& checkpoint) { return checkpoint.path().filename().string(); }

std::string architecture_prefix(const GgufFamily& family) { return std::string(family.architecture) + "."; }

Json metadata_below(const Json& metadata, const std::string& prefix) {
  Json::Object below;
  for (const auto& [key, value] : metadata.object()) {
    if (key.starts_with(prefix)) below.emplace_back(key.substr(prefix.size()), value);
  }
  return below;
}

// llama.cpp stops at any of these three.
Json stop_tokens(const Json& metadata) {
  Json::Array stops;
  for (const std::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const Json* id = metadata.find(key);
    if (id != nullptr && id->is_integer() && std::find(stops.begin(), stops.end(), *id) == stops.end()) stops.push_back(*id);
  }
  return stops;
}

Json map_gguf_config(const Checkpoint& checkpoint, const GgufFamily& family) {
  const Json& metadata = *checkpoint.gguf_metadata();
  const Json below = metadata_below(metadata, architecture_prefix(family));
  ConfigReader reader(below, gguf_file_name(checkpoint), architecture_prefix(family));
  Json config = family.config(reader, {checkpoint});
  reader.finish();
  config.set("eos_token_id", stop_tokens(metadata));
  const Json* begin = metadata.find("tokenizer.ggml.bos_token_id");
  if (begin != nullptr) config.set("bos_token_id", *begin);
  return config;
}

// A number of heads; what is no such number here is refused when the config is read.
uint64_t heads_in(const Json& config, std::string_view key, uint64_t fallback) {
  const Json* text = config.find("text_config");
  const Json* value = (text != nullptr ? *text : config).find(key);
  return value != nullptr && value->is_integer() && value->integer() > 0 ? static_cast<uint64_t>(value->integer()) : fallback;
}

// Llama 3's scaling arrives in GGUF as one divisor for each frequency.
void divide_frequencies(const Checkpoint& checkpoint, DecoderModel& model) {
  const TensorInfo* tensor = checkpoint.find_tensor(kRopeDivisors);
  if (tensor == nullptr) return;
  const ErrorSite site{gguf_file_name(checkpoint), tensor->name, tensor->offset};
  for (RopeGroup& group : model.rope_groups) {
    const Shape expected{group.inv_freq.size()};
    if (tensor->shape != expected) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("wrong shape: got {}, expected {}", shape_text(tensor->shape), shape_text(expected)), site);
    }
    if (tensor->dtype != DType::f32) {
      throw Error(ErrorCode::dtype_mismatch, fmt::format("wrong type: got {}, expected f32", dtype_name(tensor->dtype)), site);
    }
    const std::vector<std::byte> bytes = materialize(source(*tensor));
    std::vector<float> divisors(group.inv_freq.size());
    std::memcpy(divisors.data(), bytes.data(), divisors.size() * sizeof(float));
    for (size_t j = 0; j < divisors.size(); ++j) {
      if (!std::isfinite(divisors[j]) || divisors[j] <= 0) {
        throw Error(ErrorCode::numeric_fault, fmt::format("element {}: got {}, expected more than 0", j, divisors[j]), site);
      }
      group.inv_freq[j] /= divisors[j];
    }
  }
}

// Without a config that lists them, the factors of longrope are in two tensors.
void refuse_longrope_tensors(const Checkpoint& checkpoint) {
  for (const std::string_view name : kLongropeFactors) {
    const TensorInfo* tensor = checkpoint.find_tensor(name);
    if (tensor == nullptr) continue;
    throw Error(ErrorCode::config_unsupported, "longrope in a GGUF file is not supported: got its factors, expected none",
                {gguf_file_name(checkpoint), tensor->name, tensor->offset});
  }
}

DecoderModel finish_model(const FamilyRow& family, DecoderModel model, const CheckpointTensors& tensors,
                          const ModelOptions& options) {
  if (const auto warning = tensors.finish(options.leave_unused)) model.warnings.push_back(*warning);
  model.family = family.name;
  model.tensors_used = tensors.used_count();
  return model;
}

DecoderModel build_gguf_model(const Checkpoint& checkpoint, const ModelOptions& options) {
  const FamilyRow& stored = find_gguf_family(*checkpoint.gguf_metadata(), gguf_file_name(checkpoint));
  const Json* given = checkpoint.config();  // takes the place of the metadata
  const Json config = given != nullptr ? *given : map_gguf_config(checkpoint, *stored.gguf);
  const uint64_t heads = heads_in(config, "num_attention_heads", 1);
  CheckpointTensors tensors(checkpoint, *stored.gguf, heads, heads_in(config, "num_key_value_heads", heads));
  if (stored.gguf->rope_divisors) tensors.ignore(std::string(kRopeDivisors));
  if (given == nullptr) refuse_longrope_tensors(checkpoint);
  for (const std::string_view name : kLongropeFactors) tensors.ignore(std::string(name));
  const std::string config_file = given != nullptr ? checkpoint.config_file() : gguf_file_name(checkpoint);
  const FamilyRow& family = find_family(config, config_file);
  ConfigReader reader(config, config_file);
  DecoderModel model = finish_model(family, family.build(reader, tensors, options), tensors, options);
  if (given == nullptr) {
    if (stored.gguf->rope_divisors) divide_frequencies(checkpoint, model);
    return model;
  }
  for (const std::string_view name : {kRopeDivisors, kLongropeFactors[0], kLongropeFactors[1]}) {
    if (checkpoint.find_tensor(name) == nullptr) continue;
    model.warnings.push_back(
        fmt::format("tensor '{}' is not used: the rotary settings of '{}' take its place", name, config_file));
  }
  return model;
}

}  // namespace

DecoderModel build_model(const Checkpoint& checkpoint, const ModelOptions& options) {
  if (checkpoint.format() == CheckpointFormat::gguf) return build_gguf_model(checkpoint, options);
  const Json& config = *checkpoint.config();
  const FamilyRow& family = find_family(config, checkpoint.config_file());
  ConfigReader reader(config, checkpoint.config_file());
  CheckpointTensors tensors(checkpoint);
  return finish_model(family, family.build(reader, tensors, options), tensors, options);
}

std::vector<ExpectedTensor> expected_tensors(const Json& config, const std::string& config_file) {
  const FamilyRow& family = find_family(config, config_file);
  ConfigReader reader(config, config_file);
  RecordingTensors tensors;
  family.build(reader, tensors, {});
  return tensors.take();
}

std::string family_of(const Checkpoint& checkpoint) {
  if (checkpoint.config() != nullptr) return std::string(find_family(*checkpoint.config(), checkpoint.config_file()).name);
  return std::string(find_gguf_family(*checkpoint.gguf_metadata(), gguf_file_name(checkpoint)).name);
}

std::vector<std::string> unknown_config_fields(const Checkpoint& checkpoint) {
  const auto ask = [](const FamilyRow& family, ConfigReader& reader) {
    RecordingTensors tensors;
    try {
      family.build(reader, tensors, {});
    } catch (const Error&) {
      // The faults are build_model's to report.
    }
    return reader.unknown_fields();
  };
  try {
    if (checkpoint.config() != nullptr) {
      ConfigReader reader(*checkpoint.config(), checkpoint.config_file());
      return ask(find_family(*checkpoint.config(), checkpoint.config_file()), reader);
    }
    const Json& metadata = *checkpoint.gguf_metadata();
    const GgufFamily& family = *find_gguf_family(metadata, gguf_file_name(checkpoint)).gguf;
    const Json below = metadata_below(metadata, architecture_prefix(family));
    ConfigReader reader(below, gguf_file_name(checkpoint), architecture_prefix(family));
    family.config(reader, {checkpoint});
    return reader.unknown_fields();
  } catch (const Error&) {
    return {};  // no such family
  }
}

}  // namespace transload
