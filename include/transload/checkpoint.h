// A checkpoint on disk: named tensors with dtype, shape, file and absolute offset. Opening validates headers only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transload/dtype.h"

namespace transload {

class InputFile;  // src/io/file.h: a read-only file with positioned reads, shared by the tensors in it
class Json;       // src/io/json.h

enum class CheckpointFormat : uint8_t { safetensors, gguf };

struct TensorInfo {
  std::string name;  // as stored
  DType dtype = DType::f32;
  Shape shape;
  uint64_t offset = 0;  // absolute, in bytes from the start of the file
  uint64_t bytes = 0;
  std::shared_ptr<const InputFile> file;
};

// Immutable after open; safe to read from several threads. Copies are cheap.
class Checkpoint {
 public:
  // `path`: a folder with config.json and one or several .safetensors (with or without model.safetensors.index.json),
  // one .safetensors file beside a config.json, or a GGUF v2/v3 file. `config` replaces config.json.
  // A folder that holds exactly one .gguf and no .safetensors opens as that GGUF. An index comes first, then model.safetensors
  // alone, then every .safetensors of the folder. Throws Error: file_missing, usage (ambiguous folder), bad_json, bad_header,
  // bad_offset, size_overflow, duplicate_name, tensor_missing (index and shards disagree), shape_mismatch (a row that no whole
  // number of blocks fills), dtype_unsupported, config_invalid (a config that is no object), config_unsupported (GGUF version,
  // byte order, split files), io_failure.
  static Checkpoint open(const std::filesystem::path& path, const std::optional<std::filesystem::path>& config = std::nullopt);

  CheckpointFormat format() const;
  const std::filesystem::path& path() const;
  const std::filesystem::path& directory() const;  // where tokenizer and generation config are looked for
  const std::vector<TensorInfo>& tensors() const;  // sorted by name
  const TensorInfo* find_tensor(std::string_view name) const;
  const std::vector<std::shared_ptr<const InputFile>>& files() const;
  uint64_t tensor_bytes_total() const;

  // For the rooms behind this header (Json is not installed): config.json as parsed, or nullptr for a GGUF opened without
  // `config`.
  const Json* config() const;
  std::string config_file() const;                   // for messages
  const std::filesystem::path& config_path() const;  // the file config() was read from; empty without one
  // GGUF metadata as one object; arrays of more than 1,024 elements are left out (read as null). nullptr for safetensors.
  const Json* gguf_metadata() const;
  // XXH3-128 (32 hex digits) over the header bytes of a file: its cheap identity, with its size.
  const std::string& header_digest(size_t file_index) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace transload
