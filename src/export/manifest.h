// A manifest: what made some files and what is in them, without anything that differs between two equal runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "transload/checkpoint.h"
#include "transload/export_onnx.h"
#include "transload/trtllm.h"
#include "weights/executor.h"
#include "weights/plan.h"

namespace transload {

// The options that change the bytes.
Json manifest_options(const ExportOnnxOptions& options);
Json manifest_options(const TrtllmOptions& options, DType dtype);

// `results` as execute() gives them for `plan`, or empty: the text has the same length either way.
Json::Object manifest_object(const Checkpoint& checkpoint, std::string_view target, Json options, const Plan& plan,
                             const std::vector<TensorResult>& results);
std::string manifest_text(Json::Object manifest);

}  // namespace transload
