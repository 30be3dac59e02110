// Plans an ONNX bundle: the graphs, one weight file they share, the host's tables and the small files around them.
#include "export/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "export/eos_tokens.h"
#include "io/safetensors.h"
#include "targets/onnx/onnx_writer.h"
#include "transload/error.h"
#include "transload/version.h"
#include "weights/executor.h"

namespace transload {
namespace {

constexpr uint64_t kInlineBelowBytes = 1024;  // the protobuf stays small at any model size

struct SharedWeight {
  uint64_t offset = 0;
  Recipe recipe;
};

// Lays the large constants of all graphs out in one file, each once, in order of first use.
class WeightLayout {
 public:
  void add(const Graph& graph) {
    for (const ValueId id : graph.constants()) {
      const Value& value = graph.value(id);
      if (value.constant.bytes() < kInlineBelowBytes) continue;
      const auto [place, is_new] = by_name_.try_emplace(value.name, SharedWeight{file_.size, value.constant});
      if (!is_new) {
        if (!(place->second.recipe == value.constant)) {
          throw Error(ErrorCode::graph_invalid,
                      fmt::format("constant differs between graphs: got {}, expected {}", value.constant.text(),
                                  place->second.recipe.text()),
                      {{}, value.name, {}});
        }
        continue;
      }
      file_.tensors.push_back({value.name, place->second.offset, value.constant});
      const uint64_t end = place->second.offset + value.constant.bytes();
      file_.size = (end + kExternalAlignment - 1) / kExternalAlignment * kExternalAlignment;
    }
  }
  const SharedWeight* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &found->second;
  }
  PlannedFile take() {
    file_.name = kWeightsFile;
    return std::move(file_);
  }

 private:
  PlannedFile file_;
  std::map<std::string, SharedWeight> by_name_;
};

// Notes what the constants of a graph are made from, and looks through those that are stored inside it.
void survey_constants(const Graph& graph, const WeightLayout& layout, Bundle& bundle, std::set<std::string>& seen) {
  for (const ValueId id : graph.constants()) {
    const Value& value = graph.value(id);
    if (!seen.insert(value.name).second) continue;
    const std::vector<std::string> names = source_tensor_names(value.constant);
    bundle.sources.insert(names.begin(), names.end());
    if (names.empty() || layout.find(value.name) != nullptr) continue;
    NumericCounts counts;
    materialize(value.constant, &counts);
    if (counts.overflow > 0 || counts.nan > 0) bundle.inline_warnings.push_back({value.name, names, counts.overflow, counts.nan});
  }
}

// host.safetensors: rotary frequencies and, when the graphs do not hold them, the embedding rows.
PlannedFile host_file(const DecoderModel& model, const StepContract& contract, const std::optional<Recipe>& embedding,
                      uint64_t& embedding_offset) {
  std::vector<SafetensorsEntry> entries;
  std::vector<Recipe> recipes;
  for (const RopeGroup& group : model.rope_groups) {
    if (!uses_rope_group(contract, group.name)) continue;
    recipes.push_back(constant({group.inv_freq.size()}, group.inv_freq));
    entries.push_back({inv_freq_tensor_name(group), recipes.back().dtype(), recipes.back().shape()});
  }
  if (embedding) {
    recipes.push_back(*embedding);
    entries.push_back({"embedding", embedding->dtype(), embedding->shape()});
  }
  SafetensorsLayout layout = plan_safetensors(entries);
  PlannedFile file;
  file.name = kHostFile;
  file.size = layout.file_bytes;
  file.bytes.push_back({0, std::move(layout.header)});
  for (size_t i = 0; i < entries.size(); ++i) file.tensors.push_back({entries[i].name, layout.offsets[i], recipes[i]});
  if (embedding) embedding_offset = layout.offsets.back();
  return file;
}

void require_distinct(std::vector<uint32_t> values, const char* what) {
  if (values.empty()) throw Error(ErrorCode::usage, fmt::format("no {}: got an empty list, expected at least one", what));
  std::sort(values.begin(), values.end());
  const auto twice = std::adjacent_find(values.begin(), values.end());
  if (twice != values.end())
    throw Error(ErrorCode::usage, fmt::format("{} given twice: got {} again, expected distinct values", what, *twice));
}

}  // namespace

std::string inv_freq_tensor_name(const RopeGroup& group) { return "rope_" + group.name + "_inv_freq"; }

Bundle plan_onnx_bundle(const Checkpoint& checkpoint, const DecoderModel& model, const ExportOnnxOptions& options) {
  require_distinct(options.contexts, "context");
  require_distinct(options.queries, "query length");
  Bundle bundle;
  WeightLayout layout;
  for (const uint32_t context : options.contexts) {
    for (const uint32_t query : options.queries) {
      StepOptions step = options.step;
      step.context = context;
      step.query = query;
      bundle.steps.push_back({fmt::format("step_q{}_c{}.onnx", query, context), build_decode_step(model, step)});
      layout.add(bundle.steps.back().step.graph);
    }
  }

  std::set<std::string> seen;
  for (const BundleStep& step : bundle.steps) {
    survey_constants(step.step.graph, layout, bundle, seen);
    OnnxWriteOptions write;
    write.opset = options.step.opset;
    write.producer_version = TRANSLOAD_VERSION;
    write.external = [&](const Value& constant) -> std::optional<ExternalTensor> {
      const SharedWeight* weight = layout.find(constant.name);
      if (weight == nullptr) return std::nullopt;
      return ExternalTensor{kWeightsFile, weight->offset, constant.constant.bytes()};
    };
    bundle.plan.files.push_back(planned_text(step.file, write_onnx(step.step.graph, write)));
  }

  const DecodeStep& first = bundle.steps.front().step;
  const Recipe rows = cast(model.embedding, options.step.weights);
  const bool host_looks_up = first.contract.inputs.front().role == PortRole::embedding_rows;
  const SharedWeight* shared = first.embedding_constant.empty() ? nullptr : layout.find(first.embedding_constant);
  std::optional<Recipe> own_rows;
  if (host_looks_up) {
    bundle.embedding = EmbeddingPlace{kHostFile, 0, rows.dtype(), rows.shape()};
    if (shared != nullptr) {
      bundle.embedding->file = kWeightsFile;
      bundle.embedding->offset = shared->offset;
    } else {
      own_rows = rows;
      const std::vector<std::string> names = source_tensor_names(rows);
      bundle.sources.insert(names.begin(), names.end());
    }
  }
  uint64_t embedding_offset = 0;
  PlannedFile host = host_file(model, first.contract, own_rows, embedding_offset);
  if (own_rows) bundle.embedding->offset = embedding_offset;

  bundle.plan.files.push_back(layout.take());
  bundle.plan.files.push_back(std::move(host));
  bundle.eos_tokens = eos_tokens_of(checkpoint, model);
  bundle.tokenizer = plan_tokenizer_files(checkpoint, bundle.plan);
  bundle.plan.files.push_back(planned_text(kContractFile, write_json(contract_json(model, bundle, options), 1) + "\n"));
  check_plan(bundle.plan);
  return bundle;
}

}  // namespace transload
