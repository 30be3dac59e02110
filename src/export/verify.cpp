// Verification in order: digests, structure, contract against model, golden file, then every call of a schedule.
#include "transload/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/worker_pool.h"
#include "decode/decode_step.h"
#include "export/bundle_runner.h"
#include "export/verify_digests.h"
#include "export/verify_embedding.h"
#include "export/verify_forecast.h"
#include "export/verify_golden.h"
#include "export/verify_run.h"
#include "export/verify_schedule.h"
#include "export/verify_structure.h"
#include "runtime/reference.h"
#include "runtime/token_ids.h"
#include "transload/checkpoint.h"
#include "transload/error.h"
#include "transload/peak_memory.h"

namespace transload {
namespace {

bool is_half(const Checkpoint& checkpoint, const Recipe& recipe) {
  const std::vector<std::string> names = source_tensor_names(recipe);
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    const TensorInfo* tensor = checkpoint.find_tensor(name);
    return tensor != nullptr && (tensor->dtype == DType::bf16 || tensor->dtype == DType::f16);
  });
}

VerifyPrecision precision_of(const BundleContract& contract, const Checkpoint& checkpoint, const DecoderModel& model) {
  if (contract.compute == DType::f16) return VerifyPrecision::f16_compute;
  if (contract.weights != DType::f16) return VerifyPrecision::f32_exact;
  bool exact = is_half(checkpoint, model.embedding) && is_half(checkpoint, model.head);
  for (const Layer& layer : model.layers) {
    const Attention& attention = layer.attention;
    std::vector<const Linear*> linears{&attention.q, &attention.k, &attention.v, &attention.o};
    const auto add = [&](const Mlp& mlp) { linears.insert(linears.end(), {&mlp.gate, &mlp.up, &mlp.down}); };
    if (attention.head_gate) linears.push_back(&*attention.head_gate);
    if (layer.experts) {
      linears.push_back(&layer.experts->router);
      std::for_each(layer.experts->experts.begin(), layer.experts->experts.end(), add);
    } else {
      add(layer.mlp);
    }
    exact = exact && std::all_of(linears.begin(), linears.end(),
                                 [&](const Linear* linear) { return is_half(checkpoint, linear->weight); });
  }
  return exact ? VerifyPrecision::f16_exact : VerifyPrecision::f16_rounded;
}

// Equal on every machine: a hash of the index (splitmix64).
int32_t pseudo_random_token(uint64_t index, uint32_t vocab) {
  uint64_t z = (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<int32_t>((z ^ (z >> 31)) % vocab);
}

// The model with every norm weight moved up or down by `disturbance`, relative: small rounding, wherever it matters most.
DecoderModel disturbed_model(const DecoderModel& model, WeightStore& store, double disturbance) {
  DecoderModel out = model;
  uint64_t index = 0;
  const auto disturb = [&](Norm& norm) {
    std::vector<float> values = store.values(norm.weight);
    for (float& value : values) {
      const double sign = pseudo_random_token(index++, 2) == 0 ? -1 : 1;
      value = static_cast<float>(value * (1 + sign * disturbance));
    }
    norm.weight = constant(norm.weight.shape(), std::move(values));
  };
  for (Layer& layer : out.layers) {
    disturb(layer.input_norm);
    disturb(layer.mlp_norm);
    for (std::optional<Norm>* norm :
         {&layer.attention.q_norm, &layer.attention.k_norm, &layer.post_attention_norm, &layer.post_mlp_norm}) {
      if (*norm) disturb(**norm);
    }
  }
  disturb(out.final_norm);
  return out;
}

// The bundle's graphs with a GELU of another form than the model's are not what the model computes, by request.
void note_gelu(const Manifest& manifest, const DecoderModel& model, VerifyReport& report) {
  if (has_gelu(model) && manifest.gelu != "model") {
    report.notes.push_back(
        fmt::format("the bundle was exported with --gelu {}: it may differ from the model by that", manifest.gelu));
  }
}

// Tokens for one call: the prompt and a golden's continuation are given, decode steps follow the reference, the rest is random.
class TokenSource {
 public:
  TokenSource(std::vector<int32_t> given, uint32_t vocab) : given_(std::move(given)), vocab_(vocab) {}
  std::vector<int32_t> take(const ScheduledCall& call, std::optional<int32_t> best) {
    std::vector<int32_t> tokens;
    for (uint32_t i = 0; i < call.real; ++i, ++position_) {
      if (position_ < given_.size()) {
        tokens.push_back(given_[position_]);
      } else if (call.decode && best) {
        tokens.push_back(*best);
      } else {
        tokens.push_back(pseudo_random_token(position_, vocab_));
      }
    }
    return tokens;
  }

 private:
  std::vector<int32_t> given_;
  uint32_t vocab_;
  uint64_t position_ = 0;
};

class Verification {
 public:
  Verification(const std::filesystem::path& bundle, const VerifyOptions& options)
      : bundle_(bundle), options_(options), pool_(options.threads) {
    report_.bundle = bundle.string();
  }

  VerifyReport run() {
    if (!options_.checkpoint && (options_.golden || !options_.prompt.empty() || options_.prompt_length || options_.steps)) {
      throw Error(ErrorCode::usage, "tokens and golden files are compared with a checkpoint: got none, expected --checkpoint");
    }
    if (!options_.prompt.empty() && options_.prompt_length) {
      throw Error(ErrorCode::usage, "prompt: got ids and a length, expected one of them");
    }
    if (digests() && structure() && options_.checkpoint) compare();
    if (!options_.checkpoint && report_.passed()) {
      report_.notes.emplace_back("digests and structure only: give --checkpoint to compare values");
    }
    return std::move(report_);
  }

 private:
  bool failed_with(std::optional<VerifyFailure> failure) {
    report_.failure = std::move(failure);
    return report_.failure.has_value();
  }

  bool digests() {
    manifest_ = read_manifest(bundle_);
    DigestCheck check = check_digests(bundle_, manifest_, options_.threads, options_.hash_progress);
    report_.digests_checked = check.digests;
    report_.bytes_hashed = check.bytes;
    report_.notes = std::move(check.notes);
    if (check.mismatches.empty()) return true;
    for (size_t i = 1; i < check.mismatches.size(); ++i) {
      const VerifyFailure& other = check.mismatches[i];
      report_.notes.push_back(fmt::format("'{}'{}: {}", other.file,
                                          other.tensor.empty() ? "" : fmt::format(", tensor '{}'", other.tensor), other.what));
    }
    report_.failure = std::move(check.mismatches.front());
    return false;
  }

  bool structure() {
    contract_ = read_contract(bundle_);
    report_.family = contract_.family;
    graphs_ = read_graphs(contract_);
    report_.graphs = graphs_.size();
    return !failed_with(compare_graphs(contract_, graphs_, manifest_));
  }

  void compare() {
    report_.checkpoint = options_.checkpoint->string();
    const Checkpoint checkpoint = Checkpoint::open(*options_.checkpoint, options_.config);
    const DecoderModel model = build_model(checkpoint, ModelOptions{contract_.contexts().back()});
    if (failed_with(compare_contract(contract_, model))) return;
    note_gelu(manifest_, model, report_);
    const VerifyPrecision precision = precision_of(contract_, checkpoint, model);
    report_.precision = precision_name(precision);
    tolerance_ = options_.tolerance ? Tolerance{*options_.tolerance, 0, 0} : default_tolerance(precision);
    report_.tolerance = tolerance_.relative;
    report_.sqnr_floor_db = tolerance_.sqnr_floor_db;

    std::optional<GoldenOutputs> golden;
    if (options_.golden) golden = read_golden(*options_.golden, model);
    // The reference ends where the bundle's slice does; so does its head.
    DecoderModel slice = model;
    slice.layers.resize(contract_.steps.front().contract.end_layer);
    WeightStore checkpoint_store;
    Reference reference(slice, checkpoint_store, pool_);
    const uint64_t checkpoint_bytes = checkpoint_store.mapped_bytes() + checkpoint_store.owned_bytes();
    const Schedule schedule = plan_calls(golden, checkpoint_bytes);
    report_.forecast = forecast_memory(contract_, graphs_, schedule, checkpoint_bytes);
    if (options_.on_forecast) options_.on_forecast(report_.forecast);

    if (golden) {
      report_.golden = golden->path.string();
      if (failed_with(compare_golden(*golden, model, checkpoint_store, pool_, report_))) return;
    }
    run_calls(schedule, slice, checkpoint_store, reference);
  }

  Schedule plan_calls(const std::optional<GoldenOutputs>& golden, uint64_t checkpoint_bytes) {
    ScheduleOptions asked;
    asked.steps = options_.steps;
    asked.weight_bytes = bundle_weight_bytes(contract_, graphs_) + checkpoint_bytes;
    given_ = options_.prompt;
    if (given_.empty() && golden && !options_.prompt_length) take_golden_tokens(*golden, asked);
    require_token_ids(given_, contract_.vocab_size);
    if (!given_.empty() && !asked.prompt_tokens) asked.prompt_tokens = given_.size();
    if (options_.prompt_length) asked.prompt_tokens = *options_.prompt_length;
    Schedule schedule = make_schedule(contract_, asked);
    report_.prompt_tokens = schedule.prompt_tokens;
    report_.tokens = schedule.tokens;
    report_.has_windows = schedule.has_windows;
    report_.wrapped = schedule.wrapped;
    report_.graphs_not_run = schedule.not_run;
    report_.notes.insert(report_.notes.end(), schedule.notes.begin(), schedule.notes.end());
    return schedule;
  }

  // As much of the golden's prompt and continuation as the bundle holds.
  void take_golden_tokens(const GoldenOutputs& golden, ScheduleOptions& asked) {
    const uint64_t capacity = KvCache::capacity_of(contract_, contract_.contexts().back());
    given_.assign(golden.tokens.begin(), golden.tokens.begin() + static_cast<std::ptrdiff_t>(golden.read_tokens));
    asked.prompt_tokens = std::min(golden.prompt_tokens, capacity);
    if (!asked.steps) {
      const uint64_t rest = std::min(golden.read_tokens, capacity) - *asked.prompt_tokens;
      asked.steps = static_cast<uint32_t>(rest);
    }
  }

  // Enough tokens for medians: the prompt's first, then pseudo-random ones.
  std::vector<int32_t> scale_tokens(const DecoderModel& model) const {
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < std::min<uint64_t>(kScaleTokens, model.max_positions); ++i) {
      tokens.push_back(i < given_.size() ? given_[i] : pseudo_random_token(i, model.vocab_size));
    }
    return tokens;
  }

  void run_calls(const Schedule& schedule, const DecoderModel& slice, WeightStore& checkpoint_store, Reference& reference) {
    WeightStore bundle_store;
    BundleRunner runner(bundle_, bundle_store, pool_, schedule.calls.front().step->contract.context);
    if (contract_.input_form == RowForm::rows) {
      EmbeddingCheck check = compare_embedding(runner, slice, checkpoint_store, manifest_, tolerance_);
      report_.embedding = check.difference;
      if (failed_with(std::move(check.failure))) return;
    }
    Lockstep lockstep(runner, reference, graphs_, tolerance_);
    {
      const DecoderModel near = disturbed_model(slice, checkpoint_store, tolerance_.disturbance);
      Reference disturbed(near, checkpoint_store, pool_);
      lockstep.learn_scales(scale_tokens(slice), disturbed);
    }
    TokenSource source(given_, contract_.vocab_size);
    uint64_t done = 0;
    for (const ScheduledCall& call : schedule.calls) {
      lockstep.call(call, source.take(call, lockstep.best_token()));
      done += call.real;
      if (options_.run_progress) options_.run_progress(done, schedule.tokens);
      if (lockstep.failure()) break;
    }
    lockstep.compare_caches();
    lockstep.fill(report_);
    report_.tokens = done;
  }

  std::filesystem::path bundle_;
  const VerifyOptions& options_;
  WorkerPool pool_;
  VerifyReport report_;
  Manifest manifest_;
  BundleContract contract_;
  std::vector<Graph> graphs_;
  Tolerance tolerance_;
  std::vector<int32_t> given_;  // tokens that are not ours to choose
};

}  // namespace

VerifyReport verify(const std::filesystem::path& bundle, const VerifyOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  VerifyReport report = Verification(bundle, options).run();
  report.peak_memory = peak_memory_bytes();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace transload
