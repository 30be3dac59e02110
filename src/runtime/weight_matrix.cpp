// A lowered recipe whose rows are runs of stored values becomes a view of the mapping; any other is computed once.
#include "runtime/weight_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/checked.h"
#include "base/memory.h"
#include "transload/error.h"
#include "weights/lower.h"
#include "weights/piece.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

// Types that products read directly; others (f64, f8) are converted.
bool is_readable(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || is_block(dtype); }

// Values flow in fp32; rounding to the type they are stored in gives them back.
bool keeps_values(const ElementSteps& steps, DType stored) {
  return std::all_of(steps.begin(), steps.end(),
                     [&](const ElementStep& step) { return step.kind == ElementStep::Kind::round && step.dtype == stored; });
}

size_t alignment_of(DType dtype) { return is_block(dtype) ? 1 : dtype_info(dtype).block_bytes; }

LoweredTensor lower_to_f32(const Recipe& recipe) {
  if (recipe.empty()) throw Error(ErrorCode::internal, "weights: got nothing, expected a recipe");
  if (!is_floating(recipe.dtype())) {
    throw Error(ErrorCode::dtype_mismatch,
                fmt::format("weights of this type cannot be computed with: got '{}', expected floating point",
                            dtype_name(recipe.dtype())));
  }
  return lower(cast(recipe, DType::f32));
}

// Values that are computed are touched at once, so the system would end the program where they do not fit.
void require_memory(uint64_t bytes) {
  constexpr uint64_t kWorthALook = uint64_t{16} << 20;
  if (bytes < kWorthALook) return;
  const uint64_t available = available_memory_bytes();
  if (bytes > available) {
    throw Error(ErrorCode::io_failure,
                fmt::format("weights in f32 do not fit in memory: got {} bytes, expected at most {}", bytes, available));
  }
}

void compute(const LoweredTensor& tensor, std::byte* out) {
  if (tensor.elements > 0) PieceMaker().make(tensor, 0, tensor.elements, out);
}

// One run of whole rows.
struct RowRun {
  const std::byte* data;
  uint64_t first_row;
  uint64_t rows;
};

}  // namespace

struct WeightStore::State {
  struct Computed {
    Recipe recipe;
    std::unique_ptr<Buffer> values;
  };

  std::map<FileIdentity, std::shared_ptr<const MappedFile>> files;
  std::set<std::pair<FileIdentity, uint64_t>> tensors_in_place;  // by offset in their file
  std::unordered_multimap<std::string, Computed> computed;       // by text, which leaves out long constants
  uint64_t mapped_bytes = 0;
  uint64_t owned_bytes = 0;

  const MappedFile& mapping_of(const InputFile& file, const FileIdentity& identity) {
    std::shared_ptr<const MappedFile>& mapped = files[identity];
    if (mapped == nullptr) mapped = MappedFile::map(file);
    return *mapped;
  }

  // The stored bytes of a tensor, inside the mapping of its file.
  const std::byte* open_tensor(const TensorInfo& tensor) {
    if (tensor.file == nullptr) {
      throw Error(ErrorCode::internal, "source without a file: got no file, expected an open one",
                  {.file = {}, .tensor = tensor.name, .offset = {}});
    }
    const FileIdentity identity = identity_of(*tensor.file);
    const std::span<const std::byte> bytes = mapping_of(*tensor.file, identity).bytes();
    const auto end = checked_add(tensor.offset, tensor.bytes);
    if (!end || *end > bytes.size()) {
      throw Error(ErrorCode::bad_offset,
                  fmt::format("data ends past the end of the file: got {} bytes from {}, expected an end of at most {}",
                              tensor.bytes, tensor.offset, bytes.size()),
                  {.file = tensor.file->name(), .tensor = tensor.name, .offset = tensor.offset});
    }
    if (tensors_in_place.emplace(identity, tensor.offset).second) mapped_bytes += tensor.bytes;
    return bytes.data() + tensor.offset;
  }

  const std::byte* computed_values(const Recipe& recipe, const LoweredTensor& tensor) {
    const std::string key = recipe.text();
    const auto [first, last] = computed.equal_range(key);
    for (auto entry = first; entry != last; ++entry) {
      if (entry->second.recipe == recipe) return entry->second.values->data();
    }
    require_memory(tensor.bytes);
    auto values = std::make_unique<Buffer>(tensor.bytes);
    compute(tensor, values->data());
    owned_bytes += tensor.bytes;
    return computed.emplace(key, Computed{recipe, std::move(values)})->second.values->data();
  }
};

namespace {

// The stored type when every row is one run of stored values that nothing changes.
std::optional<DType> stored_rows(const LoweredTensor& tensor, uint64_t columns) {
  std::optional<DType> stored;
  for (const Fragment& f : tensor.fragments) {
    const RecipeNode& leaf = tensor.leaves[f.leaf].node();
    const auto* source = std::get_if<SourceLeaf>(&leaf.operation);
    if (source == nullptr || !is_readable(leaf.dtype) || (stored && *stored != leaf.dtype)) return {};
    stored = leaf.dtype;
    const uint64_t block = dtype_info(leaf.dtype).block_elements;
    if (!keeps_values(tensor.steps[f.steps], leaf.dtype)) return {};
    if (f.in_column_stride != 1) return {};
    // Fragments tile the output, so lengths of whole rows also start at rows.
    if (f.columns % columns != 0 || columns % block != 0 || f.in % block != 0) return {};
    if (f.rows > 1 && f.in_row_stride % block != 0) return {};
    if (source->tensor.offset % alignment_of(leaf.dtype) != 0) return {};
  }
  return stored;
}

}  // namespace

WeightStore::WeightStore() : state_(std::make_unique<State>()) {}
WeightStore::~WeightStore() = default;

WeightMatrix WeightStore::matrix(const Recipe& recipe) {
  if (recipe.empty()) return matrix(recipe, 1);
  return matrix(recipe, recipe.shape().empty() ? 1 : recipe.shape()[0]);
}

WeightMatrix WeightStore::matrix(const Recipe& recipe, uint64_t rows) {
  const LoweredTensor tensor = lower_to_f32(recipe);
  if (rows == 0 || tensor.elements == 0 || tensor.elements % rows != 0) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("values do not fill the rows of a matrix: got {}, expected {} rows",
                                                       shape_text(recipe.shape()), rows));
  }
  WeightMatrix matrix;
  matrix.rows = rows;
  matrix.columns = tensor.elements / rows;
  const std::optional<DType> stored = stored_rows(tensor, matrix.columns);
  matrix.dtype = stored.value_or(DType::f32);
  matrix.row_bytes_ = packed_bytes(matrix.dtype, matrix.columns);
  if (!stored) {
    matrix.base_ = state_->computed_values(recipe, tensor);
    return matrix;
  }

  std::vector<const std::byte*> starts(rows);
  for (const Fragment& f : tensor.fragments) {
    const auto& leaf = std::get<SourceLeaf>(tensor.leaves[f.leaf].node().operation);
    const std::byte* data = state_->open_tensor(leaf.tensor);
    for (uint64_t line = 0; line < f.rows; ++line) {
      const uint64_t first_row = (f.out + line * f.out_row_stride) / matrix.columns;
      const std::byte* run = data + packed_bytes(*stored, f.in + line * f.in_row_stride);
      for (uint64_t i = 0; i < f.columns / matrix.columns; ++i) starts[first_row + i] = run + i * matrix.row_bytes_;
    }
  }
  matrix.base_ = starts.front();
  bool in_order = true;
  for (uint64_t i = 1; in_order && i < rows; ++i) in_order = starts[i] == matrix.base_ + i * matrix.row_bytes_;
  if (!in_order) matrix.starts_ = std::move(starts);
  return matrix;
}

std::vector<float> WeightStore::values(const Recipe& recipe) {
  const LoweredTensor tensor = lower_to_f32(recipe);
  require_memory(tensor.bytes);
  std::vector<float> values(tensor.elements);
  compute(tensor, std::as_writable_bytes(std::span(values)).data());
  return values;
}

uint64_t WeightStore::mapped_bytes() const { return state_->mapped_bytes; }
uint64_t WeightStore::owned_bytes() const { return state_->owned_bytes; }

}  // namespace transload
