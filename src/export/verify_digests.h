// manifest.json of a written bundle, and its files held against it: presence, sizes, digests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transload/progress.h"
#include "transload/verify.h"

namespace transload {

struct ManifestFile {
  std::string name;  // plain, in the bundle
  uint64_t bytes = 0;
  std::string digest;         // of the whole file, or empty
  std::string header_digest;  // of what lies before its first tensor, or empty
};

struct ManifestTensor {
  std::string name;
  std::string file;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // inside the file
  std::string digest;
};

struct Manifest {
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
  std::string gelu;  // the form that was asked for: "model", "exact", ...
};

// Throws Error: file_missing, bad_json, config_missing, config_invalid (a wrong field, a tensor outside its file),
// config_unsupported (another format version).
Manifest read_manifest(const std::filesystem::path& bundle);

// The same of another manifest than a bundle's, with the files and tensors alone.
Manifest read_file_manifest(const std::filesystem::path& folder, const std::string& name);

struct DigestCheck {
  uint64_t digests = 0;
  uint64_t bytes = 0;
  std::vector<std::string> notes;         // files that the manifest does not list, or has no digest for
  std::vector<VerifyFailure> mismatches;  // in the order of the manifest: presence and sizes first, then digests
};

// Hashes everything the manifest has a digest for, on `threads` threads (0: default_workers()).
DigestCheck check_digests(const std::filesystem::path& bundle, const Manifest& manifest, uint32_t threads,
                          const Progress& progress);

// N of "layers_N_..."; nothing for other names.
std::optional<uint32_t> layer_of_name(std::string_view name);

}  // namespace transload
