// The safetensors container: header validation on reading, header bytes on writing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "transload/checkpoint.h"

namespace transload {

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // file order
  Json metadata;                    // "__metadata__" or null
  std::string digest;               // XXH3-128 of the header bytes, length field included
};

// Validates everything before returning: length, JSON, dtypes, shape x dtype, offsets contiguous from 0 without hole, overlap or
// trailing bytes, no duplicate names. Header at most 100,000,000 bytes.
SafetensorsHeader read_safetensors(const std::shared_ptr<const InputFile>& file);

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// Header bytes (length field included, padded with spaces to a multiple of 8) for entries laid out in the given order, and the
// absolute offset of each.
struct SafetensorsLayout {
  std::string header;
  std::vector<uint64_t> offsets;
  uint64_t file_bytes = 0;
};
SafetensorsLayout plan_safetensors(const std::vector<SafetensorsEntry>& entries, const Json& metadata = {});

}  // namespace transload
