// One rank of a TensorRT-LLM export: its plan, its manifest, and whether a folder holds it already.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "transload/checkpoint.h"
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
  // In what the manifest of any rank is not of this conversion: the first option, else source file, that differs; empty when
  // none does.
  std::string first_difference(const Json& manifest) const;

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
// Throws usage, naming the manifest and what differs, for a rank of `world` in `folder` that is not among `ranks` and was made
// with other options or from other sources. Manifests that cannot be read say nothing.
void refuse_foreign_ranks(const std::filesystem::path& folder, uint32_t world, const std::vector<TrtllmRank>& ranks,
                          const RankManifests& manifests);

// Reads the rank file and hashes it, unless its manifest is another than would be written now.
StoredRank check_stored_rank(const std::filesystem::path& folder, const TrtllmRank& rank, const RankManifests& manifests,
                             uint32_t workers);

}  // namespace transload
