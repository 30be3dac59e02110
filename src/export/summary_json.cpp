// The summaries of export, inspect and synth as JSON text.
#include "export/summary_parts.h"
#include "io/json.h"
#include "transload/export_onnx.h"
#include "transload/inspect.h"
#include "transload/synth.h"

namespace transload {
namespace {

Json files_json(const std::vector<FileSummary>& files) {
  Json::Array out;
  for (const FileSummary& file : files) out.push_back(Json::Object{{"file", file.name}, {"bytes", file.bytes}});
  return out;
}

Json kv_json(const KvSummary& kv) {
  Json::Object bytes;
  for (const auto& [name, size] : {std::pair{"fp32", 4U}, std::pair{"fp16", 2U}, std::pair{"int8", 1U}}) {
    bytes.emplace_back(name, Json::Object{{"hybrid", kv.hybrid_elements * size},
                                          {"uniform", kv.uniform_elements * size},
                                          {"saved", (kv.uniform_elements - kv.hybrid_elements) * size}});
  }
  Json::Array layers;
  for (const KvLayerSummary& layer : kv.layers) {
    layers.push_back(Json::Object{{"layer", layer.layer},
                                  {"attention", layer.attention},
                                  {"rule", layer.rule},
                                  {"slots", layer.slots},
                                  {"elements", layer.elements}});
  }
  return Json::Object{{"context", kv.context},
                      {"hybrid_elements", kv.hybrid_elements},
                      {"uniform_elements", kv.uniform_elements},
                      {"bytes", std::move(bytes)},
                      {"layers", std::move(layers)}};
}

}  // namespace

Json strings_json(const std::vector<std::string>& strings) {
  Json::Array out;
  for (const std::string& text : strings) out.push_back(text);
  return out;
}

Json numeric_warnings_json(const std::vector<TensorWarning>& warnings) {
  Json::Array out;
  for (const TensorWarning& warning : warnings) {
    Json::Object row{{"tensor", warning.tensor},
                     {"sources", strings_json(warning.sources)},
                     {"overflow_count", warning.overflow_count},
                     {"nan_count", warning.nan_count}};
    if (!warning.file.empty()) row.emplace(row.begin(), "file", warning.file);
    out.push_back(std::move(row));
  }
  return out;
}

std::string summary_json(const ExportSummary& summary) {
  Json::Array kv;
  for (const KvSummary& entry : summary.kv) kv.push_back(kv_json(entry));
  return write_json(Json::Object{{"family", summary.family},
                                 {"tensors", summary.tensor_count},
                                 {"parameters", summary.parameter_count},
                                 {"source_bytes", summary.source_bytes},
                                 {"total_bytes", summary.total_bytes},
                                 {"files", files_json(summary.files)},
                                 {"kv", std::move(kv)},
                                 {"worker_memory_bytes", summary.worker_memory_bytes},
                                 {"write_seconds", summary.write_seconds},
                                 {"flush_seconds", summary.flush_seconds},
                                 {"numeric_warnings", numeric_warnings_json(summary.numeric_warnings)},
                                 {"warnings", strings_json(summary.warnings)}});
}

std::string inspection_json(const Inspection& inspection) {
  Json::Array dtypes;
  for (const DTypeCount& count : inspection.dtypes) {
    dtypes.push_back(Json::Object{{"dtype", count.dtype}, {"tensors", count.tensors}, {"bytes", count.bytes}});
  }
  Json::Object out{{"format", inspection.format},
                   {"family", inspection.family.empty() ? Json() : Json(inspection.family)},
                   {"files", files_json(inspection.files)},
                   {"tensors", inspection.tensor_count},
                   {"tensor_bytes", inspection.tensor_bytes},
                   {"parameters", inspection.parameter_count},
                   {"dtypes", std::move(dtypes)},
                   {"unknown_fields", strings_json(inspection.unknown_fields)},
                   {"problem", inspection.problem.empty() ? Json() : Json(inspection.problem)}};
  if (inspection.problem.empty()) {
    out.emplace_back("model", Json::Object{{"layers", inspection.layers},
                                           {"hidden_size", inspection.hidden_size},
                                           {"intermediate_size", inspection.intermediate_size},
                                           {"heads", inspection.heads},
                                           {"kv_heads", inspection.kv_heads},
                                           {"head_dim", inspection.head_dim},
                                           {"vocab_size", inspection.vocab_size},
                                           {"max_positions", inspection.max_positions},
                                           {"tied_head", inspection.tied_head},
                                           {"layer_pattern", inspection.layer_pattern},
                                           {"window", inspection.window == 0 ? Json() : Json(inspection.window)}});
  }
  return write_json(std::move(out));
}

std::string synth_json(const SynthSummary& summary) {
  return write_json(Json::Object{{"tensors", summary.tensor_count},
                                 {"parameters", summary.parameter_count},
                                 {"total_bytes", summary.total_bytes},
                                 {"shards", summary.shards}});
}

}  // namespace transload
