// One rank of a TensorRT-LLM export: its plan, its manifest, and whether a folder holds it already.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "transload/checkpoint.h"
#include "transload/progress.h"
#include "weights/executor.h"
#include "weights/plan.h"

namespace transload {

struct TrtllmRank {
  uint32_t rank = 0;
  PlannedFile file;
};

std::string rank_manifest_name(uint32_t rank);

// Makes the manifests of all ranks of one export.
class RankManifests {
 public:
  RankManifests(const Checkpoint& checkpoint, Json options, PlannedFile config)
      : checkpoint_(checkpoint), options_(std::move(options)), config_(std::move(config)) {}

  // `results`: of that rank's tensors, or empty; the text has the same length either way.
  std::string text(const TrtllmRank& rank, const std::vector<TensorResult>& results) const;

 private:
  const Checkpoint& checkpoint_;
  Json options_;
  PlannedFile config_;
};

// What `folder` holds of a rank.
struct StoredRank {
  bool exists = false;         // a rank file or a manifest
  std::string fault;           // why it is not what would be written now; empty when it is
  bool numeric_fault = false;  // it has values that no runtime can use
};
// Reads the rank file and hashes it, unless its manifest is another than would be written now.
StoredRank check_stored_rank(const std::filesystem::path& folder, const TrtllmRank& rank, const RankManifests& manifests,
                             uint32_t workers, const Progress& progress);

}  // namespace transload
