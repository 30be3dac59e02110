// Names of the files of a bundle beside its graphs, which their exporter writes and their reader looks for.
#pragma once

namespace transload {

inline constexpr const char* kContractFile = "contract.json";
inline constexpr const char* kHostFile = "host.safetensors";
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kWeightsFile = "weights.bin";

}  // namespace transload
