// Verification of a TensorRT-LLM checkpoint in order: digests, structure, config.json, every tensor, blocks.
#include "transload/verify_trtllm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "base/grouped.h"
#include "base/printable.h"
#include "base/worker_pool.h"
#include "export/json_differences.h"
#include "export/trtllm_folder.h"
#include "export/trtllm_rank.h"
#include "export/verify_digests.h"
#include "export/verify_trtllm_blocks.h"
#include "export/verify_trtllm_tensors.h"
#include "io/file.h"
#include "targets/trtllm/config_text.h"
#include "targets/trtllm/hf_tensors.h"
#include "targets/trtllm/rank_names.h"
#include "targets/trtllm/rank_tensors.h"
#include "targets/trtllm/trtllm_config.h"
#include "transload/checkpoint.h"
#include "transload/decoder_model.h"
#include "transload/error.h"

namespace transload {
namespace {

// As messages have it: "block 'mlp' of layer 0".
std::string block_name(const TrtllmBlockResult& block) {
  return fmt::format("block '{}'{}", block.block, block.layer ? fmt::format(" of layer {}", *block.layer) : "");
}

class TrtllmVerification {
 public:
  TrtllmVerification(const std::filesystem::path& folder, const VerifyTrtllmOptions& options) : path_(folder), options_(options) {
    report_.folder = folder.string();
  }

  VerifyTrtllmReport run() {
    const auto start = std::chrono::steady_clock::now();
    if (options_.config && !options_.checkpoint) {
      throw Error(ErrorCode::usage, "config of a checkpoint: got one without the checkpoint, expected --checkpoint as well");
    }
    if (digests() && manifests()) {
      structure();
      if (options_.checkpoint) {
        compare();
      } else {
        report_.notes.emplace_back("digests and structure only: give --checkpoint to compare values");
      }
    }
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(report_);
  }

 private:
  bool fail(std::string what) {
    report_.failure = std::move(what);
    return false;
  }

  // Each manifest is checked by itself: ranks may have been written by different runs.
  bool digests() {
    for (uint32_t rank = 0;; ++rank) {
      const std::string name = rank_manifest_name(rank);
      std::error_code ignored;
      if (!std::filesystem::exists(path_ / rank_file_name(rank), ignored)) break;
      if (!std::filesystem::exists(path_ / name, ignored)) {
        report_.notes.push_back(fmt::format("'{}' has no manifest: its digests are not checked", rank_file_name(rank)));
        continue;
      }
      const DigestCheck check = check_digests(path_, read_file_manifest(path_, name), options_.threads, {});
      report_.digests_checked += check.digests;
      report_.bytes_hashed += check.bytes;
      if (check.mismatches.empty()) continue;
      const VerifyFailure& first = check.mismatches.front();
      return fail(fmt::format("{}{}: {}{}", first.file, first.offset ? fmt::format("@{}", *first.offset) : "",
                              first.tensor.empty() ? "" : fmt::format("tensor '{}': ", first.tensor), first.what));
    }
    return true;
  }

  bool manifests() {
    const std::optional<std::string> difference = differing_manifests(path_);
    return !difference || fail(*difference);
  }

  void structure() {
    TrtllmFolder opened = open_trtllm_folder(path_, options_.layout);
    folder_ = std::move(opened.checkpoint);
    for (std::string& warning : opened.warnings) report_.notes.push_back(std::move(warning));
    report_.architecture = folder_.architecture->name;
    report_.format = trtllm_format_name(folder_.options.format);
    report_.dtype = trtllm_dtype_name(*folder_.options.dtype);
    report_.quantisation = quantisation_text(folder_.options);
    report_.mapping = folder_.options.mapping;
  }

  void compare() {
    const Checkpoint checkpoint = Checkpoint::open(*options_.checkpoint, options_.config);
    report_.checkpoint = options_.checkpoint->string();
    if (checkpoint.format() != CheckpointFormat::safetensors || checkpoint.config() == nullptr) {
      throw Error(ErrorCode::config_unsupported,
                  "comparison with a GGUF file: got one, expected a Hugging Face checkpoint (config.json and .safetensors)",
                  {options_.checkpoint->string(), {}, {}});
    }
    const DecoderModel model = build_model(checkpoint, ModelOptions{.context = 0, .leave_unused = true});
    if (!config(checkpoint) || !plan_ranks(model)) return;
    plan_way_back(checkpoint, model);
    if (values()) blocks(model);
  }

  bool config(const Checkpoint& checkpoint) {
    architecture_ = &trtllm_architecture_of(*checkpoint.config(), checkpoint.config_file());
    const std::string_view name = folder_.options.format == TrtllmFormat::v1 ? architecture_->v1_name : architecture_->v0_12_name;
    const std::string& got_name = folder_.config.find("architecture")->string();
    if (got_name != name) {
      return fail(fmt::format("{}: field 'architecture': got '{}', expected '{}'", kTrtllmConfigFile, got_name, name));
    }
    const std::string expected =
        trtllm_config_text(*checkpoint.config(), checkpoint.config_file(), *architecture_, folder_.options);
    const std::string got = read_text_file(path_ / kTrtllmConfigFile);
    if (got == expected) return true;
    const Json expected_json = parse_json(expected, kTrtllmConfigFile);
    const std::vector<std::string> differences = differing_fields(folder_.config, expected_json);
    if (!differences.empty()) return fail(fmt::format("{}: {}", kTrtllmConfigFile, join_faults(differences)));
    std::vector<std::string> extra;
    for (const auto& [key, value] : folder_.config.object()) {
      if (expected_json.find(key) == nullptr) extra.push_back(printable(key, 60));
    }
    report_.notes.push_back(extra.empty() ? fmt::format("{} has the right fields in another spelling or order", kTrtllmConfigFile)
                                          : fmt::format("{} has fields that no conversion writes: '{}'", kTrtllmConfigFile,
                                                        fmt::join(extra, "', '")));
    return true;
  }

  // All lists are made by now: the total of the progress is the sum of what they report.
  bool values() {
    for (const auto* list : {&exact_, &back_}) {
      for (const TensorComparison& pair : *list) progress_total_ += pair.expected.bytes();
    }
    for (const QuantComparison& pair : baked_) progress_total_ += pair.weight.bytes();
    const ComparisonResult exact = compare_tensors(exact_, options_.threads, part_progress());
    if (!take(exact, exact_.size())) return false;
    if (exact.not_finite > 0) {
      report_.notes.push_back(fmt::format("{} {} NaN or infinite in both, e.g. in '{}'", grouped(exact.not_finite),
                                          exact.not_finite == 1 ? "value is" : "values are", exact.not_finite_tensor));
    }
    const ComparisonResult baked = compare_quantised(baked_, options_.threads, part_progress());
    if (!take(baked, baked_.size())) return false;
    if (baked.not_finite > 0) {
      report_.notes.push_back(fmt::format(
          "{} not compared once quantised: NaN or infinite in the checkpoint, or of a channel with an infinite value, e.g. in "
          "'{}'",
          baked.not_finite == 1 ? "1 weight was" : grouped(baked.not_finite) + " weights were", baked.not_finite_tensor));
    }
    return take(compare_tensors(back_, options_.threads, part_progress()), back_.size());
  }

  Progress part_progress() {
    if (!options_.progress) return {};
    return [this, before = progress_done_](uint64_t done, uint64_t) { options_.progress(before + done, progress_total_); };
  }

  bool take(const ComparisonResult& result, size_t count) {
    report_.tensors_compared += count;
    report_.bytes_compared += result.bytes;
    progress_done_ += result.bytes;
    if (result.worst_steps > report_.worst_steps) {
      report_.worst_steps = result.worst_steps;
      report_.worst_tensor = result.worst_tensor;
    }
    report_.failure = result.failure;
    return !result.failure;
  }

  // The forward route: what this checkpoint gives for every rank, against the rank files.
  bool plan_ranks(const DecoderModel& model) {
    TrtllmOptions unquantised = folder_.options;
    unquantised.weight_only = WeightOnly::none;
    const DType dtype = *folder_.options.dtype;
    for (uint32_t rank = 0; rank < folder_.ranks.size(); ++rank) {
      for (const RankTensor& tensor : rank_tensors(model, *architecture_, unquantised, dtype, rank)) {
        if (!folder_.has(rank, tensor.name)) {
          return fail(fmt::format("{}: tensor '{}': got none, expected {} {}", rank_file_name(rank), tensor.name,
                                  dtype_name(tensor.recipe.dtype()), shape_text(tensor.recipe.shape())));
        }
        const TensorInfo& stored = folder_.tensor(rank, tensor.name);
        if (stored.dtype == DType::i8) {
          baked_.push_back(quantised_pair(tensor, stored, rank));
          continue;
        }
        if (stored.dtype != tensor.recipe.dtype() || stored.shape != tensor.recipe.shape()) {
          return fail(fmt::format("{}@{}: tensor '{}': got {} {}, expected {} {}", rank_file_name(rank), stored.offset,
                                  tensor.name, dtype_name(stored.dtype), shape_text(stored.shape),
                                  dtype_name(tensor.recipe.dtype()), shape_text(tensor.recipe.shape())));
        }
        exact_.push_back({tensor.name, tensor.recipe, source(stored), stored, 0});
      }
    }
    return true;
  }

  QuantComparison quantised_pair(const RankTensor& tensor, const TensorInfo& stored, uint32_t rank) const {
    const std::string scales = tensor.name.substr(0, tensor.name.size() - std::string_view(".weight").size()) + kScalesSuffix;
    WeightQuant quant = folder_.options.weight_quant();
    // Kernels for experts take the sm80 layout on every GPU.
    if (stored.shape.size() == 3 && quant.layout == QuantLayout::sm90) quant.layout = QuantLayout::sm80;
    return {.weight = tensor.recipe, .quantised = stored, .scales = folder_.tensor(rank, scales), .quant = quant};
  }

  // The way back: the ranks joined under Hugging Face names, against the checkpoint's own tensors of those names. A checkpoint
  // with other names (separate or older ones) is compared in the parts that its family made of them.
  void plan_way_back(const Checkpoint& checkpoint, const DecoderModel& model) {
    const bool is_baked = folder_.options.has_baked_weights();
    const DType dtype = *folder_.options.dtype;
    std::map<std::string, Recipe> expected;
    for (HuggingFaceTensor& tensor : hf_tensors(model, *architecture_, dtype)) {
      const TensorInfo* own = checkpoint.find_tensor(tensor.name);
      if (own != nullptr && own->shape == tensor.recipe.shape()) tensor.recipe = cast(source(*own), tensor.recipe.dtype());
      expected.emplace(std::move(tensor.name), std::move(tensor.recipe));
    }
    // Of dequantised weights no cast would be exact.
    const DType compared = is_baked ? DType::f32 : dtype;
    for (HuggingFaceTensor& tensor : hf_tensors(join_ranks(folder_), *architecture_, compared)) {
      const auto found = expected.find(tensor.name);
      // A head that the checkpoint ties: the forward route has compared it with the embedding.
      if (found == expected.end()) continue;
      const Recipe as_compared = cast(found->second, tensor.recipe.dtype());
      const double tolerance = is_quantised(tensor.recipe) ? std::ldexp(1.0, 1 - folder_.options.weight_quant().bits) : 0;
      back_.push_back({tensor.name, as_compared, tensor.recipe, std::nullopt, tolerance});
    }
  }

  static bool is_quantised(const Recipe& recipe) {
    const std::vector<std::string> names = source_tensor_names(recipe);
    return std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.ends_with(kScalesSuffix); });
  }

  void blocks(const DecoderModel& model) {
    WorkerPool pool(options_.threads);
    report_.blocks = run_trtllm_blocks(folder_, model, pool);
    for (const TrtllmBlockResult& block : report_.blocks) {
      if (block.not_comparable == 0) continue;
      report_.notes.push_back(fmt::format("{} was not comparable in {} of {} values: NaN or infinite in the checkpoint's own",
                                          block_name(block), grouped(block.not_comparable), grouped(block.values)));
    }
    for (const TrtllmBlockResult& block : report_.blocks) {
      if (block.relative <= block.allowed) continue;
      fail(fmt::format("{} over the ranks: relative error: got {:.3g}, expected at most {:.3g}", block_name(block),
                       block.relative, block.allowed));
      return;
    }
  }

  std::filesystem::path path_;
  const VerifyTrtllmOptions& options_;
  VerifyTrtllmReport report_;
  TrtllmCheckpoint folder_;
  const TrtllmArchitecture* architecture_ = nullptr;
  std::vector<TensorComparison> exact_;
  std::vector<QuantComparison> baked_;
  std::vector<TensorComparison> back_;
  uint64_t progress_done_ = 0;
  uint64_t progress_total_ = 0;
};

}  // namespace

bool is_trtllm_folder(const std::filesystem::path& folder) { return is_trtllm_checkpoint(folder); }

VerifyTrtllmReport verify_trtllm(const std::filesystem::path& folder, const VerifyTrtllmOptions& options) {
  return TrtllmVerification(folder, options).run();
}

}  // namespace transload
