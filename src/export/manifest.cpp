// Writes manifest.json: tool version, options, digests of the sources' headers and of everything in the bundle.
#include "export/manifest.h"

#include "export/bundle.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "transload/version.h"

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

Json options_json(const ExportOnnxOptions& options) {
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

}  // namespace

std::string manifest_text(const Checkpoint& checkpoint, const ExportOnnxOptions& options, const Plan& plan,
                          const std::vector<TensorResult>& results) {
  const std::string no_digest(32, '0');
  Json::Array sources;
  for (size_t i = 0; i < checkpoint.files().size(); ++i) {
    const InputFile& file = *checkpoint.files()[i];
    sources.push_back(
        Json::Object{{"file", file.name()}, {"bytes", file.size()}, {"header_xxh3_128", checkpoint.header_digest(i)}});
  }
  Json::Array files;
  Json::Array tensors;
  size_t index = 0;
  for (const PlannedFile& file : plan.files) {
    Json::Object row{{"file", file.name}, {"bytes", file.size}};
    // The bytes we made (a whole text, or a header before the tensors); tensors have digests of their own below.
    if (file.bytes.size() == 1)
      row.emplace_back(file.tensors.empty() ? "xxh3_128" : "header_xxh3_128", digest_of(file.bytes[0].bytes));
    files.push_back(std::move(row));
    for (const PlannedTensor& tensor : file.tensors) {
      tensors.push_back(Json::Object{{"name", tensor.name},
                                     {"file", file.name},
                                     {"offset", tensor.offset},
                                     {"bytes", tensor.recipe.bytes()},
                                     {"xxh3_128", results.empty() ? no_digest : results[index].digest}});
      ++index;
    }
  }
  return write_json(Json::Object{{"format", "transload-manifest"},
                                 {"version", 1},
                                 {"tool_version", TRANSLOAD_VERSION},
                                 {"target", "onnx"},
                                 {"options", options_json(options)},
                                 {"sources", std::move(sources)},
                                 {"files", std::move(files)},
                                 {"tensors", std::move(tensors)}},
                    1) +
         "\n";
}

}  // namespace transload
