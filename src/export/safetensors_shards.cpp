// Deals tensors out to shards, lays each shard out, and writes the index that says where a tensor is.
#include "export/safetensors_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/json.h"
#include "io/safetensors.h"

namespace transload {
namespace {

constexpr uint64_t kShardBytes = 4'000'000'000;

std::vector<std::vector<ShardTensor>> split_shards(const std::vector<ShardTensor>& tensors, uint64_t total, uint32_t shards) {
  std::vector<std::vector<ShardTensor>> out(1);
  const uint64_t target = (total + shards - 1) / shards;
  uint64_t in_shard = 0;
  for (const ShardTensor& tensor : tensors) {
    if (in_shard >= target && out.size() < shards) {
      out.emplace_back();
      in_shard = 0;
    }
    out.back().push_back(tensor);
    in_shard += tensor.recipe.bytes();
  }
  return out;
}

PlannedFile plan_shard(const std::vector<ShardTensor>& tensors, std::string name) {
  std::vector<SafetensorsEntry> entries;
  for (const ShardTensor& tensor : tensors) entries.push_back({tensor.name, tensor.recipe.dtype(), tensor.recipe.shape()});
  SafetensorsLayout layout = plan_safetensors(entries, Json::Object{{"format", "pt"}});
  PlannedFile file;
  file.name = std::move(name);
  file.size = layout.file_bytes;
  file.bytes.push_back({0, std::move(layout.header)});
  for (size_t i = 0; i < tensors.size(); ++i) file.tensors.push_back({tensors[i].name, layout.offsets[i], tensors[i].recipe});
  return file;
}

}  // namespace

PlannedCheckpoint plan_checkpoint(const std::vector<ShardTensor>& tensors, uint32_t shards, std::string config) {
  uint64_t total = 0;
  for (const ShardTensor& tensor : tensors) total += tensor.recipe.bytes();
  const auto wanted = shards != 0 ? shards : static_cast<uint32_t>((total + kShardBytes - 1) / kShardBytes);
  const auto parts = split_shards(tensors, total, std::max(1U, wanted));
  PlannedCheckpoint checkpoint;
  checkpoint.shards = static_cast<uint32_t>(parts.size());
  std::vector<PlannedFile>& files = checkpoint.plan.files;
  Json weight_map{Json::Object{}};
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = parts.size() == 1 ? std::string("model.safetensors")
                                               : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size());
    files.push_back(plan_shard(parts[i], name));
    for (const ShardTensor& tensor : parts[i]) weight_map.object().emplace_back(tensor.name, name);
  }
  if (parts.size() > 1) {
    files.push_back(planned_text(
        "model.safetensors.index.json",
        write_json(Json::Object{{"metadata", Json::Object{{"total_size", total}}}, {"weight_map", std::move(weight_map)}}) +
            "\n"));
  }
  files.push_back(planned_text("config.json", std::move(config)));
  check_plan(checkpoint.plan);
  return checkpoint;
}

}  // namespace transload
