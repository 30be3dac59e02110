// The tensors a config asks for, found without a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "transload/dtype.h"

namespace transload {

// Every tensor a checkpoint of this config holds, in layer order, without a checkpoint: what `synth` writes.
struct ExpectedTensor {
  std::string name;
  Shape shape;
  bool is_norm = false;  // a norm's scale
  float mean = 0.0F;     // random values are drawn around it: 1 for a scale, 0 for matrices and where the family adds 1
};
std::vector<ExpectedTensor> expected_tensors(const Json& config, const std::string& config_file);

}  // namespace transload
