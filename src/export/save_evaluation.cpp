// An evaluation as a .safetensors file, for other tools to compare token by token.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "io/whole_file.h"
#include "transload/evaluate.h"

namespace transload {
namespace {

template <typename T>
std::string bytes_of(std::span<const T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

void save_evaluation(const std::filesystem::path& path, std::span<const int32_t> ids, const Evaluation& evaluation) {
  std::vector<std::pair<SafetensorsEntry, std::string>> tensors;
  tensors.emplace_back(SafetensorsEntry{"tokens", DType::i32, {ids.size()}}, bytes_of(ids));
  tensors.emplace_back(SafetensorsEntry{"nll", DType::f32, {evaluation.nll.size()}},
                       bytes_of(std::span<const float>(evaluation.nll)));
  if (!evaluation.top_logits.empty()) {
    const Shape shape{evaluation.top_logits.size(), evaluation.top_logits.front().size()};
    std::vector<int32_t> top_ids;
    std::vector<float> top_values;
    for (const std::vector<ScoredToken>& row : evaluation.top_logits) {
      for (const ScoredToken& token : row) {
        top_ids.push_back(token.id);
        top_values.push_back(token.logit);
      }
    }
    tensors.emplace_back(SafetensorsEntry{"top_ids", DType::i32, shape}, bytes_of(std::span<const int32_t>(top_ids)));
    tensors.emplace_back(SafetensorsEntry{"top_values", DType::f32, shape}, bytes_of(std::span<const float>(top_values)));
    tensors.emplace_back(SafetensorsEntry{"logsumexp", DType::f32, {evaluation.logsumexp.size()}},
                         bytes_of(std::span<const float>(evaluation.logsumexp)));
  }
  std::vector<SafetensorsEntry> entries;
  for (const auto& [entry, unused] : tensors) entries.push_back(entry);
  std::string file = plan_safetensors(entries).header;
  for (const auto& [unused, bytes] : tensors) file += bytes;
  write_file_whole(path, file);
}

}  // namespace transload
