// Manifests of rank files, written and held against what lies in a folder.
#include "export/trtllm_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "export/json_differences.h"
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

std::string RankManifests::first_difference(const Json& manifest) const {
  const Json expected = manifest_object(checkpoint_, "trtllm", options_, Plan{}, {});
  const Json none;
  const auto part = [&](const Json& whole, std::string_view key) -> const Json& {
    const Json* found = whole.find(key);
    return found == nullptr ? none : *found;
  };
  std::vector<std::string> differences = differing_fields(part(manifest, "options"), part(expected, "options"), "options");
  if (!differences.empty()) return differences.front();
  const Json& got_sources = part(manifest, "sources");
  const Json::Array& sources = part(expected, "sources").array();
  if (!got_sources.is_array() || got_sources.array().size() != sources.size()) {
    return fmt::format("source files: got {}, expected {}", got_sources.is_array() ? got_sources.array().size() : 0,
                       sources.size());
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    differences = differing_fields(got_sources.array()[i], sources[i], fmt::format("sources[{}]", i));
    if (!differences.empty()) return differences.front();
  }
  return {};
}

void refuse_foreign_ranks(const std::filesystem::path& folder, uint32_t world, const std::vector<TrtllmRank>& ranks,
                          const RankManifests& manifests) {
  auto next = ranks.begin();  // ascending
  for (uint32_t rank = 0; rank < world; ++rank) {
    if (next != ranks.end() && next->rank == rank) {
      ++next;
      continue;
    }
    const std::string name = rank_manifest_name(rank);
    std::error_code ignored;
    if (!std::filesystem::exists(folder / name, ignored)) continue;
    std::string difference;
    try {
      difference = manifests.first_difference(parse_json(read_text_file(folder / name), name));
    } catch (const Error&) {
      continue;
    }
    if (!difference.empty()) {
      throw Error(ErrorCode::usage, fmt::format("a rank of another conversion is there: {}", difference),
                  {(folder / name).string(), {}, {}});
    }
  }
}

StoredRank check_stored_rank(const std::filesystem::path& folder, const TrtllmRank& rank, const RankManifests& manifests,
                             uint32_t workers) {
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
      const Json stored_manifest = parse_json(text, name);
      std::string difference = manifests.first_difference(stored_manifest);
      if (difference.empty()) {
        const std::vector<std::string> rest = differing_fields(stored_manifest, parse_json(manifests.text(rank, {}), name));
        difference = rest.empty() ? "other text" : rest.front();
      }
      stored.fault = fmt::format("'{}' is of another conversion: {}", name, difference);
      return stored;
    }
    stored.numeric_fault = !results.empty() && results.front().nan_count > 0;
    Manifest manifest = read_file_manifest(folder, name);
    // config.json is the same for all ranks: whoever asks compares it, or writes it, by itself.
    std::erase_if(manifest.files, [&](const ManifestFile& file) { return file.name != rank.file.name; });
    const DigestCheck check = check_digests(folder, manifest, workers, {});
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
