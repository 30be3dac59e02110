// A plan: every output file with its small fixed bytes and the tensors in it, all sizes known before the first byte is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transload/recipe.h"

namespace transload {

struct PlannedBytes {
  uint64_t offset = 0;
  std::string bytes;
};

// Where the scales of a quantized tensor go: one for each output channel, [out] or [n, out].
struct PlannedScales {
  std::string name;
  uint64_t offset = 0;  // absolute in the file of the tensor
  DType dtype = DType::f32;
};

struct PlannedTensor {
  std::string name;     // as messages and the manifest call it
  uint64_t offset = 0;  // absolute in its file
  Recipe recipe;
  std::optional<PlannedScales> scales = {};  // of a recipe that quantizes, and of no other
};

struct PlannedFile {
  std::string name;  // relative to the bundle
  uint64_t size = 0;
  std::vector<PlannedBytes> bytes;
  std::vector<PlannedTensor> tensors;
  uint64_t tensor_bytes() const;  // of its tensors and their scales
};

struct Plan {
  std::vector<PlannedFile> files;
  uint64_t total_bytes() const;   // of all files
  uint64_t tensor_bytes() const;  // of all files: what progress counts
};

// Planned tensors of a file and their scales: how many results execute() gives for it.
uint64_t stored_tensors(const PlannedFile& file);
// Bytes of a tensor's scales; 0 without any.
uint64_t scales_bytes(const PlannedTensor& tensor);
// A file whose whole content is known now.
PlannedFile planned_text(std::string name, std::string bytes);

// Throws internal when two ranges of a file overlap or leave it.
void check_plan(const Plan& plan);
// For --explain: one line for each tensor and, below it, its pieces.
std::string explain_plan(const Plan& plan);

}  // namespace transload
