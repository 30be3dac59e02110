// Finding equal recipes by hash and comparison, and the order of tensors.
#include "weights/tensor_run.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "io/file.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

// Quantised tensors are alike when their scales are stored alike too.
bool makes(const TensorRun& run, const PlannedTensor& tensor) {
  const PlannedTensor& made = run.planned();
  if (made.scales && tensor.scales && made.scales->dtype != tensor.scales->dtype) return false;
  return made.recipe == tensor.recipe;
}

// Files by path, so that the order is that of no address in memory.
class SourceOrder {
 public:
  explicit SourceOrder(const std::vector<std::unique_ptr<TensorRun>>& runs) {
    std::map<std::filesystem::path, std::vector<const InputFile*>> paths;
    for (const std::unique_ptr<TensorRun>& run : runs) {
      const TensorInfo* tensor = first_source(run->planned().recipe);
      if (tensor == nullptr || tensor->file == nullptr || !ranks_.emplace(tensor->file.get(), 0).second) continue;
      paths[tensor->file->path()].push_back(tensor->file.get());
    }
    uint64_t rank = 0;
    for (const auto& [path, files] : paths) {
      for (const InputFile* file : files) ranks_[file] = ++rank;
    }
  }
  std::pair<uint64_t, uint64_t> operator()(const TensorRun& run) const {
    const TensorInfo* tensor = first_source(run.planned().recipe);
    if (tensor == nullptr || tensor->file == nullptr) return {0, 0};
    return {ranks_.at(tensor->file.get()), tensor->offset};
  }

 private:
  std::unordered_map<const InputFile*, uint64_t> ranks_;
};

}  // namespace

void TensorRunList::add(const PlannedTensor& tensor, const OutputFile& file) {
  const uint64_t hash = recipe_hash(tensor.recipe);
  const auto [first, last] = by_hash_.equal_range(hash);
  const auto same = std::find_if(first, last, [&](const auto& entry) { return makes(*entry.second, tensor); });
  if (same != last) {
    planned_.push_back({same->second, same->second->places.size()});
    same->second->places.push_back({&tensor, &file});
    return;
  }
  auto run = std::make_unique<TensorRun>();
  run->places.push_back({&tensor, &file});
  if (tensor.scales) {
    run->lowered = lower_quantize(tensor.recipe, limits_);
  } else {
    run->lowered = lower(tensor.recipe, limits_);
  }
  std::visit(
      [&](const auto& lowered) {
        run->piece_count = lowered.piece_count;
        run->most_piece_bytes = lowered.most_piece_bytes();
        run->tiled = lowered.tiled();
      },
      run->lowered);
  if (run->piece_count == 0) run->digest = digest_of({});
  by_hash_.emplace(hash, run.get());
  planned_.push_back({run.get(), 0});
  runs_.push_back(std::move(run));
}

std::vector<std::unique_ptr<TensorRun>> TensorRunList::take_in_source_order() {
  const SourceOrder order(runs_);
  std::stable_sort(runs_.begin(), runs_.end(), [&](const auto& a, const auto& b) { return order(*a) < order(*b); });
  return std::move(runs_);
}

}  // namespace transload
