// The tensors of an opened checkpoint under their Hugging Face names, with every fault of binding collected.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/families.h"
#include "model/tensor_source.h"
#include "transload/checkpoint.h"
#include "transload/error.h"

namespace transload {

class CheckpointTensors final : public TensorSource {
 public:
  // Names as stored.
  explicit CheckpointTensors(const Checkpoint& checkpoint);
  // Names by the rows of a GGUF family; the head counts say how paired rotary rows lie.
  CheckpointTensors(const Checkpoint& checkpoint, const GgufFamily& family, uint64_t heads, uint64_t kv_heads);

  bool has(std::string_view name) const override;
  Recipe require(const std::string& name, const Shape& shape) override;
  Recipe require_norm(const std::string& name, const Shape& shape, float around = 1.0F) override;
  void ignore(const std::string& name) override;
  bool ignore_prefix(std::string_view prefix) override;

  // Throws the faults of the first kind there are any of: missing, mis-shaped, of a type that holds no weights, unused. With
  // `leave_unused` the last are no faults but one warning, which is returned.
  std::optional<std::string> finish(bool leave_unused) const;
  uint64_t used_count() const;

 private:
  struct Entry {
    const TensorInfo* tensor = nullptr;
    GgufTensorRow::Form form = GgufTensorRow::Form::plain;
    bool used = false;
    bool ignored = false;
  };
  struct Fault {
    std::string text;
    ErrorSite site;
  };
  std::string stored_name(const std::string& name) const;
  Recipe restore(const Entry& entry) const;
  void throw_if_any(ErrorCode code, const std::vector<Fault>& faults) const;
  std::vector<Fault> unused() const;

  std::string checkpoint_name_;
  std::span<const GgufTensorRow> rows_;  // empty for safetensors
  uint64_t heads_ = 0;
  uint64_t kv_heads_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;  // by Hugging Face name; by stored name where no row fits
  std::vector<Fault> doubled_;
  std::vector<Fault> missing_;
  std::vector<Fault> misshaped_;
  std::vector<Fault> mistyped_;
};

}  // namespace transload
