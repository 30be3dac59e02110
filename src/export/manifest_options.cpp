// The options of an export as its manifest states them: all that changes the bytes, and nothing else.
#include "export/bundle.h"
#include "export/manifest.h"
#include "targets/trtllm/config_text.h"

namespace transload {
namespace {

Json::Array numbers(const std::vector<uint32_t>& values) {
  Json::Array out;
  for (const uint32_t value : values) out.push_back(value);
  return out;
}

std::string_view gelu_name(GeluForm form) {
  switch (form) {
    case GeluForm::model:
      return "model";
    case GeluForm::exact:
      return "exact";
    case GeluForm::tanh:
      return "tanh";
    case GeluForm::sigmoid:
      return "sigmoid";
  }
  return {};
}

std::string_view linear_name(LinearForm form) {
  switch (form) {
    case LinearForm::gemm:
      return "gemm";
    case LinearForm::matmul:
      return "matmul";
    case LinearForm::conv1x1:
      return "conv1x1";
  }
  return {};
}

std::string layers_text(const LayerRange& range) {
  switch (range.kind) {
    case LayerRange::Kind::all:
      return "all";
    case LayerRange::Kind::sliding:
      return "sliding";
    case LayerRange::Kind::full:
      return "full";
    case LayerRange::Kind::range:
      return std::to_string(range.begin) + ":" + std::to_string(range.end);
  }
  return {};
}

}  // namespace

Json manifest_options(const ExportOnnxOptions& options) {
  const StepOptions& step = options.step;
  return Json::Object{{"context", numbers(options.contexts)},
                      {"q", numbers(options.queries)},
                      {"cache_layout", cache_layout_name(step.cache_layout)},
                      {"inputs", step.inputs == InputForm::rows ? "rows" : "ids"},
                      {"gelu", gelu_name(step.gelu)},
                      {"linear", linear_name(step.linear)},
                      {"rope_width", step.rope_width == RopeWidth::full ? "full" : "half"},
                      {"logits", step.logits == LogitsRows::all ? "all" : "last"},
                      {"layers", layers_text(step.layers)},
                      {"head", step.head},
                      {"weights", dtype_name(step.weights)},
                      {"compute", dtype_name(step.compute)},
                      {"opset", step.opset}};
}

Json manifest_options(const TrtllmOptions& options, DType dtype) {
  const TrtllmMapping& mapping = options.mapping;
  Json quant;
  if (options.weight_only != WeightOnly::none) {
    const bool baked = options.has_baked_weights();
    quant = Json::Object{{"weights", options.weight_only == WeightOnly::int8 ? "int8" : "int4"},
                         {"form", baked ? "baked" : "deferred"},
                         {"layout", baked ? Json(quant_layout_name(options.layout)) : Json()}};
  }
  return Json::Object{{"dtype", trtllm_dtype_name(dtype)},
                      {"format", trtllm_format_name(options.format)},
                      {"tp", mapping.tensor},
                      {"pp", mapping.pipeline},
                      {"moe_ep", mapping.expert},
                      {"quant", std::move(quant)}};
}

}  // namespace transload
