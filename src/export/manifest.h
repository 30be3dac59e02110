// manifest.json: what made a bundle and what is in it, without anything that differs between two equal runs.
#pragma once

#include <string>
#include <vector>

#include "transload/checkpoint.h"
#include "transload/export_onnx.h"
#include "weights/executor.h"
#include "weights/plan.h"

namespace transload {

// `results` as execute() gives them, or empty for a dry run: the text has the same length either way.
std::string manifest_text(const Checkpoint& checkpoint, const ExportOnnxOptions& options, const Plan& plan,
                          const std::vector<TensorResult>& results);

}  // namespace transload
