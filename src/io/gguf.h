// The GGUF v2/v3 container: metadata (long arrays skipped by offset) and tensor table, validated before any view exists.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "transload/checkpoint.h"

namespace transload {

struct GgufHeader {
  Json metadata;                    // object; arrays longer than 1,024 elements appear as null
  std::vector<TensorInfo> tensors;  // stored names; shapes outermost first
  std::string digest;               // XXH3-128 of the header bytes
  // Byte ranges (absolute offset, bytes) of the raw key-value records whose key starts with "tokenizer." or is
  // "general.architecture", in file order: what a metadata-only GGUF for the tokenizer is made of.
  std::vector<std::pair<uint64_t, uint64_t>> tokenizer_records;
  uint64_t tokenizer_record_count = 0;
};

// Throws bad_header, bad_offset, size_overflow, duplicate_name, dtype_unsupported (IQ types, split files: by name).
GgufHeader read_gguf(const std::shared_ptr<const InputFile>& file);

}  // namespace transload
