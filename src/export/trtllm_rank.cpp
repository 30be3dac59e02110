// Manifests of rank files, written and held against what lies in a folder.
#include "export/trtllm_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "export/manifest.h"
#include "export/verify_digests.h"
#include "io/file.h"
#include "io/json_fields.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr const char* kNumericFaults = "numeric_faults";

// Digests and faults of a manifest, for comparing the rest of it as text: every tensor that the plan has, in its order.
std::vector<TensorResult> results_of(const std::string& text, const std::string& name) {
  const Json json = parse_json(text, name);
  const JsonFields root(json, name);
  std::vector<TensorResult> results;
  root.each_object("tensors", [&](const JsonFields& row) {
    TensorResult result;
    result.digest = row.text("xxh3_128");
    results.push_back(std::move(result));
  });
  if (!results.empty()) results.front().nan_count = static_cast<uint64_t>(root.integer(kNumericFaults, 0, 1));
  return results;
}

size_t stored_tensors(const PlannedFile& file) {
  size_t count = 0;
  for (const PlannedTensor& tensor : file.tensors) count += tensor.scales ? 2 : 1;
  return count;
}

}  // namespace

std::string rank_manifest_name(uint32_t rank) { return fmt::format("rank{}.manifest.json", rank); }

std::string RankManifests::text(const TrtllmRank& rank, const std::vector<TensorResult>& results) const {
  Json::Object manifest = manifest_object(checkpoint_, "trtllm", options_, Plan{{config_, rank.file}}, results);
  const bool faults = std::any_of(results.begin(), results.end(),
                                  [](const TensorResult& result) { return result.overflow_count > 0 || result.nan_count > 0; });
  // A digit and not a word: a dry run knows the length of the text.
  manifest.emplace_back(kNumericFaults, faults ? 1 : 0);
  return manifest_text(std::move(manifest));
}

StoredRank check_stored_rank(const std::filesystem::path& folder, const TrtllmRank& rank, const RankManifests& manifests,
                             uint32_t workers, const Progress& progress) {
  const std::string name = rank_manifest_name(rank.rank);
  std::error_code ignored;
  const bool has_file = std::filesystem::exists(folder / rank.file.name, ignored);
  const bool has_manifest = std::filesystem::exists(folder / name, ignored);
  StoredRank stored{.exists = has_file || has_manifest, .fault = {}, .numeric_fault = false};
  if (!has_file || !has_manifest) {
    stored.fault = fmt::format("'{}' is missing", has_file ? name : rank.file.name);
    return stored;
  }
  try {
    const std::string text = read_text_file(folder / name);
    const std::vector<TensorResult> results = results_of(text, name);
    // Of a text that is equal but for its digests, digests are all that is left to check.
    if (results.size() != stored_tensors(rank.file) || text != manifests.text(rank, results)) {
      stored.fault = fmt::format("'{}' is of another conversion: other options, sources or version", name);
      return stored;
    }
    stored.numeric_fault = !results.empty() && results.front().nan_count > 0;
    const DigestCheck check = check_digests(folder, read_file_manifest(folder, name), workers, progress);
    if (!check.mismatches.empty()) {
      const VerifyFailure& first = check.mismatches.front();
      stored.fault = fmt::format("{}{}", first.tensor.empty() ? "" : fmt::format("tensor '{}': ", first.tensor), first.what);
    }
  } catch (const Error& error) {
    // Whatever cannot be read is as good as absent.
    stored.fault = error.what();
  }
  return stored;
}

}  // namespace transload
