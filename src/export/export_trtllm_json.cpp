// The summary of a TensorRT-LLM export as JSON text.
#include <cmath>

#include "export/summary_parts.h"
#include "io/json.h"
#include "transload/export_trtllm.h"

namespace transload {
namespace {

Json rank_json(const RankSummary& rank) {
  return Json::Object{{"rank", rank.rank},
                      {"stage", rank.stage},
                      {"first_layer", rank.first_layer},
                      {"end_layer", rank.end_layer},
                      {"tensors", rank.tensors},
                      {"bytes", rank.bytes},
                      {"kept", rank.kept}};
}

}  // namespace

std::string export_trtllm_json(const ExportTrtllmSummary& summary) {
  Json::Array ranks;
  for (const RankSummary& rank : summary.ranks) ranks.push_back(rank_json(rank));
  const auto decibels = [](double sqnr) { return std::isfinite(sqnr) ? Json(sqnr) : Json(); };
  Json::Array kinds;
  for (const QuantKindError& kind : quant_kinds(summary)) {
    kinds.push_back(Json::Object{
        {"kind", kind.kind}, {"tensors", kind.tensors}, {"max_abs", kind.max_abs}, {"sqnr_db", decibels(kind.sqnr_db)}});
  }
  Json::Array errors;
  for (const QuantTensorError& error : summary.quant_errors) {
    errors.push_back(Json::Object{
        {"tensor", error.tensor}, {"rank", error.rank}, {"max_abs", error.max_abs}, {"sqnr_db", decibels(error.sqnr_db)}});
  }
  return write_json(Json::Object{{"family", summary.family},
                                 {"architecture", summary.architecture},
                                 {"format", summary.format},
                                 {"dtype", summary.dtype},
                                 {"tensors", summary.tensor_count},
                                 {"parameters", summary.parameter_count},
                                 {"source_bytes", summary.source_bytes},
                                 {"total_bytes", summary.total_bytes},
                                 {"ranks", std::move(ranks)},
                                 {"worker_memory_bytes", summary.worker_memory_bytes},
                                 {"write_seconds", summary.write_seconds},
                                 {"flush_seconds", summary.flush_seconds},
                                 {"quant_errors", std::move(errors)},
                                 {"quant_kinds", std::move(kinds)},
                                 {"numeric_warnings", numeric_warnings_json(summary.numeric_warnings)},
                                 {"warnings", strings_json(summary.warnings)}});
}

}  // namespace transload
