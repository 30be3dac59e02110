// Where a family's tensors come from, under their Hugging Face names: a safetensors checkpoint, a GGUF file, or nothing (synth).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transload/recipe.h"

namespace transload {

// require() never throws for a missing or mis-shaped tensor: it records the fault and returns a placeholder of the right shape.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool has(std::string_view name) const = 0;
  // The tensor as Hugging Face would store it, with exactly this shape.
  virtual Recipe require(const std::string& name, const Shape& shape) = 0;
  // A norm scale; as require, but synth draws it around `around` (0 for families that add 1).
  virtual Recipe require_norm(const std::string& name, const Shape& shape, float around = 1.0F) = 0;
  // Present but not needed (a stored lm_head of a tied model).
  virtual void ignore(const std::string& name) = 0;
  // The same for every tensor whose name starts so (the vision tower of a multimodal checkpoint); whether there are any.
  virtual bool ignore_prefix(std::string_view prefix) = 0;
};

}  // namespace transload
