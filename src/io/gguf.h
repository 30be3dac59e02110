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
  // Object with the stored keys. Null stands for arrays longer than 1,024 elements and for what JSON cannot hold: text that is
  // not UTF-8, infinities and NaN.
  Json metadata;
  std::vector<TensorInfo> tensors;  // stored names; shapes outermost first
  std::string digest;               // XXH3-128 of the header bytes
  // Byte ranges (absolute offset, bytes) of the raw key-value records whose key starts with "tokenizer." or is
  // "general.architecture", in file order, neighbours joined: what a metadata-only GGUF for the tokenizer is made of.
  std::vector<std::pair<uint64_t, uint64_t>> tokenizer_records;
  uint64_t tokenizer_record_count = 0;
};

// Reads from front to back through a small buffer; what is kept of the header is bounded, whatever the file claims.
// Throws bad_header, bad_offset, size_overflow, shape_mismatch (row not a multiple of the block), duplicate_name,
// dtype_unsupported (IQ and other types: by name), config_unsupported (other versions, big endian, split files).
GgufHeader read_gguf(const std::shared_ptr<const InputFile>& file);

// The 24 bytes before `record_count` key-value records of a GGUF v3 file without tensors.
std::string gguf_tokenizer_header(uint64_t record_count);

}  // namespace transload
