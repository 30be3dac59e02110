// Binds stored tensors to the names a family asks for, undoing what a GGUF converter did to them.
#include "model/checkpoint_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "io/file.h"

namespace transload {
namespace {

constexpr std::string_view kIndexMark = "{}";
constexpr size_t kMostNames = 20;  // of tensors, in a warning

// The layer index in `name` where it fits `pattern` ("blk.{}.attn_q.weight"); empty text for a pattern without one.
std::optional<std::string_view> match_index(std::string_view pattern, std::string_view name) {
  const size_t mark = pattern.find(kIndexMark);
  if (mark == std::string_view::npos) return pattern == name ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view before = pattern.substr(0, mark);
  const std::string_view after = pattern.substr(mark + kIndexMark.size());
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) return std::nullopt;
  const std::string_view index = name.substr(before.size(), name.size() - before.size() - after.size());
  const bool digits = std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits && (index.size() == 1 || index[0] != '0') ? std::optional(index) : std::nullopt;
}

std::string fill_index(std::string_view pattern, std::string_view index) {
  std::string name(pattern);
  const size_t mark = name.find(kIndexMark);
  if (mark != std::string::npos) name.replace(mark, kIndexMark.size(), index);
  return name;
}

// Buffers that older exports stored and that the config gives anyway.
bool is_rotary_buffer(std::string_view name) {
  const size_t at = name.find("rotary_emb.");
  return at != std::string_view::npos && (at == 0 || name[at - 1] == '.');
}

ErrorSite site_of(const TensorInfo& tensor) {
  return {tensor.file ? tensor.file->name() : std::string(), tensor.name, tensor.offset};
}

// Stands in for a tensor that could not be bound; its values are never read.
Recipe placeholder(const Shape& shape) { return random(DType::f32, shape, 0, 1.0F); }

}  // namespace

CheckpointTensors::CheckpointTensors(const Checkpoint& checkpoint) : checkpoint_name_(checkpoint.path().filename().string()) {
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    Entry entry;
    entry.tensor = &tensor;
    entry.ignored = is_rotary_buffer(tensor.name);
    entries_.emplace(tensor.name, entry);
  }
}

CheckpointTensors::CheckpointTensors(const Checkpoint& checkpoint, const GgufFamily& family, uint64_t heads, uint64_t kv_heads)
    : checkpoint_name_(checkpoint.path().filename().string()), rows_(family.tensors), heads_(heads), kv_heads_(kv_heads) {
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    Entry entry;
    entry.tensor = &tensor;
    std::string name = tensor.name;
    for (const GgufTensorRow& row : rows_) {
      if (const auto index = match_index(row.gguf, tensor.name)) {
        name = fill_index(row.hugging_face, *index);
        entry.form = row.form;
        break;
      }
    }
    const auto [place, is_new] = entries_.emplace(std::move(name), entry);
    if (!is_new) {
      doubled_.push_back({fmt::format("two stored tensors for '{}': got a second one, expected only '{}'", place->first,
                                      place->second.tensor->name),
                          site_of(tensor)});
    }
  }
}

bool CheckpointTensors::has(std::string_view name) const { return entries_.contains(name); }

std::string CheckpointTensors::stored_name(const std::string& name) const {
  for (const GgufTensorRow& row : rows_) {
    if (const auto index = match_index(row.hugging_face, name)) return fill_index(row.gguf, *index);
  }
  return name;
}

Recipe CheckpointTensors::require(const std::string& name, const Shape& shape) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    missing_.push_back({fmt::format("missing: got none, expected shape {}", shape_text(shape)),
                        {checkpoint_name_, stored_name(name), std::nullopt}});
    return placeholder(shape);
  }
  Entry& entry = found->second;
  entry.used = true;
  const TensorInfo& tensor = *entry.tensor;
  if (tensor.shape != shape) {
    misshaped_.push_back(
        {fmt::format("wrong shape: got {}, expected {}", shape_text(tensor.shape), shape_text(shape)), site_of(tensor)});
    return placeholder(shape);
  }
  if (!is_floating(tensor.dtype)) {
    mistyped_.push_back(
        {fmt::format("wrong type: got {}, expected a floating or block type", dtype_name(tensor.dtype)), site_of(tensor)});
    return placeholder(shape);
  }
  return restore(entry);
}

Recipe CheckpointTensors::require_norm(const std::string& name, const Shape& shape, float) { return require(name, shape); }

Recipe CheckpointTensors::restore(const Entry& entry) const {
  const Recipe stored = source(*entry.tensor);
  const auto unpair = [&](uint64_t heads) {
    if (stored.shape().size() == 2) return unpair_rotary_rows(stored, heads);
    const uint64_t rows = stored.shape().front();  // a bias
    return reshape(unpair_rotary_rows(reshape(stored, {rows, 1}), heads), {rows});
  };
  switch (entry.form) {
    case GgufTensorRow::Form::plain:
      return stored;
    case GgufTensorRow::Form::paired_rotary_q:
      return unpair(heads_);
    case GgufTensorRow::Form::paired_rotary_k:
      return unpair(kv_heads_);
    case GgufTensorRow::Form::norm_plus_one:
      return affine(stored, 1.0F, -1.0F);
  }
  return stored;
}

void CheckpointTensors::ignore(const std::string& name) {
  const auto found = entries_.find(name);
  if (found != entries_.end()) found->second.ignored = true;
}

bool CheckpointTensors::ignore_prefix(std::string_view prefix) {
  bool any = false;
  for (auto at = entries_.lower_bound(prefix); at != entries_.end() && at->first.starts_with(prefix); ++at) {
    at->second.ignored = any = true;
  }
  return any;
}

std::vector<CheckpointTensors::Fault> CheckpointTensors::unused() const {
  std::vector<Fault> faults;
  for (const auto& [name, entry] : entries_) {
    if (!entry.used && !entry.ignored) {
      faults.push_back({"not used by the model: got a stored tensor, expected none of this name", site_of(*entry.tensor)});
    }
  }
  return faults;
}

void CheckpointTensors::throw_if_any(ErrorCode code, const std::vector<Fault>& faults) const {
  if (faults.empty()) return;
  if (faults.size() == 1) throw Error(code, faults.front().text, faults.front().site);
  std::vector<std::string> lines;
  lines.reserve(faults.size());
  for (const Fault& fault : faults) lines.emplace_back(Error(code, fault.text, fault.site).what());
  throw Error(code, join_faults(lines), {checkpoint_name_, "", std::nullopt});
}

std::optional<std::string> CheckpointTensors::finish(bool leave_unused) const {
  throw_if_any(ErrorCode::duplicate_name, doubled_);
  const std::vector<Fault> left = unused();
  try {
    throw_if_any(ErrorCode::tensor_missing, missing_);
  } catch (Error& error) {
    // A renamed tensor is missing under one name and left over under another.
    if (!left.empty())
      error.note(fmt::format("{} stored tensors were left over, the first '{}'", left.size(), left.front().site.tensor));
    throw;
  }
  throw_if_any(ErrorCode::shape_mismatch, misshaped_);
  throw_if_any(ErrorCode::dtype_mismatch, mistyped_);
  if (!leave_unused) throw_if_any(ErrorCode::tensor_unused, left);
  if (left.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(left.size(), kMostNames); ++i) {
    names.push_back(fmt::format("'{}'", printable(left[i].site.tensor, 120)));
  }
  if (left.size() > kMostNames) names.push_back(fmt::format("and {} more", left.size() - kMostNames));
  return fmt::format("{} stored tensors are left out, the model does not use them: {}", left.size(), fmt::join(names, ", "));
}

uint64_t CheckpointTensors::used_count() const {
  return static_cast<uint64_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const auto& item) { return item.second.used; }));
}

}  // namespace transload
