// The verification report as JSON. SQNR is null where the values are equal (infinite).
#include <cmath>

#include "io/json.h"
#include "transload/verify.h"

namespace transload {
namespace {

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json difference_json(const Difference& difference) {
  return Json::Object{{"max_abs", difference.max_abs},     {"scale", difference.scale},
                      {"relative", difference.relative()}, {"sqnr_db", finite(difference.sqnr_db)},
                      {"cosine", difference.cosine},       {"not_finite", difference.not_finite}};
}

Json layers_json(const std::vector<LayerResult>& layers) {
  Json::Array out;
  for (const LayerResult& layer : layers) {
    out.push_back(Json::Object{{"layer", layer.layer},
                               {"out", difference_json(layer.out)},
                               {"keys", difference_json(layer.keys)},
                               {"values", difference_json(layer.values)}});
  }
  return out;
}

Json head_json(const std::optional<HeadResult>& head) {
  if (!head) return {};
  return Json::Object{{"logits", difference_json(head->logits)},
                      {"max_kl", head->max_kl},
                      {"mean_kl", head->mean_kl},
                      {"rows", head->rows},
                      {"top1_equal", head->top1_equal},
                      {"top5_overlap", head->top5_overlap}};
}

Json steps_json(const std::vector<StepResult>& steps) {
  Json::Array out;
  for (const StepResult& step : steps) {
    Json::Array relative;
    for (const double value : step.layer_relative) relative.push_back(value);
    out.push_back(Json::Object{{"position", step.position},
                               {"q", step.query},
                               {"real", step.real},
                               {"file", step.file},
                               {"layer_relative", std::move(relative)},
                               {"head_relative", step.head_relative}});
  }
  return out;
}

Json strings(const std::vector<std::string>& values) {
  Json::Array out;
  for (const std::string& value : values) out.push_back(value);
  return out;
}

Json failure_json(const std::optional<VerifyFailure>& failure) {
  if (!failure) return {};
  return Json::Object{{"tensor", failure->tensor},
                      {"layer", failure->layer ? Json(*failure->layer) : Json()},
                      {"position", failure->position ? Json(*failure->position) : Json()},
                      {"file", failure->file},
                      {"weights", strings(failure->weights)},
                      {"what", failure->what}};
}

}  // namespace

std::string verify_report_json(const VerifyReport& report) {
  const VerifyForecast& forecast = report.forecast;
  return write_json(Json::Object{{"passed", report.passed()},
                                 {"failure", failure_json(report.failure)},
                                 {"bundle", report.bundle},
                                 {"checkpoint", report.checkpoint.empty() ? Json() : Json(report.checkpoint)},
                                 {"golden", report.golden.empty() ? Json() : Json(report.golden)},
                                 {"family", report.family},
                                 {"precision", report.precision},
                                 {"tolerance", report.tolerance},
                                 {"sqnr_floor_db", report.sqnr_floor_db},
                                 {"widest_tensor", report.widest_tensor},
                                 {"widest_tolerance", report.widest_tolerance},
                                 {"digests_checked", report.digests_checked},
                                 {"bytes_hashed", report.bytes_hashed},
                                 {"graphs", report.graphs},
                                 {"graphs_not_run", strings(report.graphs_not_run)},
                                 {"prompt_tokens", report.prompt_tokens},
                                 {"tokens", report.tokens},
                                 {"values_compared", report.values_compared},
                                 {"worst_tensor", report.worst_tensor},
                                 {"worst_relative", report.worst_relative},
                                 {"noisiest_tensor", report.noisiest_tensor},
                                 {"least_sqnr_db", finite(report.least_sqnr_db)},
                                 {"has_windows", report.has_windows},
                                 {"wrapped", report.wrapped},
                                 {"notes", strings(report.notes)},
                                 {"memory", Json::Object{{"forecast", forecast.total()},
                                                         {"bundle_weights", forecast.bundle_weights},
                                                         {"checkpoint_weights", forecast.checkpoint_weights},
                                                         {"kv", forecast.kv},
                                                         {"activations", forecast.activations},
                                                         {"base", forecast.base},
                                                         {"peak", report.peak_memory}}},
                                 {"embedding", report.embedding ? difference_json(*report.embedding) : Json()},
                                 {"layers", layers_json(report.layers)},
                                 {"head", head_json(report.head)},
                                 {"steps", steps_json(report.steps)},
                                 {"golden_layers", layers_json(report.golden_layers)},
                                 {"golden_head", head_json(report.golden_head)},
                                 {"seconds", report.seconds}},
                    2);
}

}  // namespace transload
