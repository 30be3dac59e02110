// Totals, the check that ranges are disjoint, and the text of a plan.
#include "weights/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/checked.h"
#include "io/file.h"
#include "transload/error.h"
#include "weights/lower.h"
#include "weights/quantize.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

constexpr uint64_t kPiecesExplained = 2;
constexpr uint64_t kFragmentsExplained = 3;

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string what;
};

[[noreturn]] void refuse(const PlannedFile& file, const std::string& what) {
  throw Error(ErrorCode::internal, what, {.file = file.name, .tensor = {}, .offset = {}});
}

void check_scales(const PlannedFile& file, const PlannedTensor& tensor) {
  const bool quantizes = find_operation<QuantizeOp>(tensor.recipe) != nullptr;
  if (quantizes == tensor.scales.has_value()) {
    if (!quantizes) return;
    const DType dtype = tensor.scales->dtype;
    if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return;
    refuse(file, fmt::format("scales '{}': got type '{}', expected f32, f16 or bf16", tensor.scales->name, dtype_name(dtype)));
  }
  refuse(file, fmt::format("tensor '{}' that {} scales: got {}, expected {}", tensor.name,
                           quantizes ? "quantizes has no" : "does not quantize has", quantizes ? "none" : "some",
                           quantizes ? "some" : "none"));
}

void check_file(const PlannedFile& file) {
  std::vector<Range> ranges;
  for (const PlannedBytes& fixed : file.bytes) {
    ranges.push_back({fixed.offset, checked_add(fixed.offset, fixed.bytes.size(), "end of planned bytes"), "planned bytes"});
  }
  for (const PlannedTensor& tensor : file.tensors) {
    if (tensor.recipe.empty()) refuse(file, fmt::format("tensor '{}' has no recipe: got nothing, expected one", tensor.name));
    ranges.push_back({tensor.offset, checked_add(tensor.offset, tensor.recipe.bytes(), "end of a planned tensor"),
                      fmt::format("tensor '{}'", tensor.name)});
    check_scales(file, tensor);
    if (!tensor.scales) continue;
    ranges.push_back({tensor.scales->offset, checked_add(tensor.scales->offset, scales_bytes(tensor), "end of planned scales"),
                      fmt::format("scales '{}'", tensor.scales->name)});
  }
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  uint64_t taken = 0;
  std::string before;
  for (const Range& range : ranges) {
    if (range.end > file.size)
      refuse(file, fmt::format("{} leaves its file: got end {}, expected at most {}", range.what, range.end, file.size));
    if (range.begin == range.end) continue;
    if (range.begin < taken) {
      refuse(file, fmt::format("{} overlaps {}: got begin {}, expected at least {}", range.what, before, range.begin, taken));
    }
    taken = range.end;
    before = range.what;
  }
}

std::string leaf_text(const LoweredTensor& tensor, const Fragment& f) {
  const Recipe& leaf = tensor.leaves[f.leaf];
  const auto* stored = std::get_if<SourceLeaf>(&leaf.node().operation);
  if (stored == nullptr) return fmt::format("{} at element {}", leaf.text(), f.in);
  const uint64_t block = dtype_info(leaf.dtype()).block_elements;
  return fmt::format("'{}' {} {}@{}", stored->tensor.name, dtype_name(leaf.dtype()),
                     stored->tensor.file == nullptr ? "?" : stored->tensor.file->name(),
                     stored->tensor.offset + packed_bytes(leaf.dtype(), f.in / block * block));
}

std::string strides_text(const Fragment& f) {
  std::string text = fmt::format("{} x {}", f.rows, f.columns);
  if (f.rows > 1) text += fmt::format(", row strides {} <- {}", f.out_row_stride, f.in_row_stride);
  if (f.in_column_stride != 1) text += fmt::format(", column stride {}", f.in_column_stride);
  return text;
}

void explain_fragments(const LoweredTensor& lowered, std::string& text) {
  const auto out = std::back_inserter(text);
  for (size_t i = 0; i < std::min<size_t>(lowered.fragments.size(), kFragmentsExplained); ++i) {
    const Fragment& f = lowered.fragments[i];
    fmt::format_to(out, "  fragment at element {}: {} <- {}\n", f.out, strides_text(f), leaf_text(lowered, f));
  }
  if (lowered.fragments.size() > kFragmentsExplained) {
    fmt::format_to(out, "  ... {} more\n", lowered.fragments.size() - kFragmentsExplained);
  }
}

void explain_quantize(const PlannedFile& file, const PlannedTensor& tensor, std::string& text) {
  const auto out = std::back_inserter(text);
  const LoweredQuant lowered = lower_quantize(tensor.recipe);
  const QuantFormat& format = lowered.format;
  fmt::format_to(out, "  scales {}@{} {} {}, {} for {} channels of {} values\n", file.name, tensor.scales->offset,
                 tensor.scales->name, dtype_name(tensor.scales->dtype), quant_text(format), format.channels(), format.in);
  fmt::format_to(out, "  {} bytes in {} pieces of {} channels, {} fragments\n", lowered.bytes(), lowered.piece_count,
                 lowered.piece_channels, lowered.weight.fragments.size());
  if (lowered.tiles > 0) {
    fmt::format_to(out, "  a piece: {} bytes of every row; the last one: the digest\n", lowered.strips(0).row_bytes);
  }
  explain_fragments(lowered.weight, text);
}

void explain_tensor(const PlannedFile& file, const PlannedTensor& tensor, std::string& text) {
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}@{} {} {} {} = {}\n", file.name, tensor.offset, tensor.name, dtype_name(tensor.recipe.dtype()),
                 shape_text(tensor.recipe.shape()), tensor.recipe.text());
  if (tensor.scales) return explain_quantize(file, tensor, text);
  const LoweredTensor lowered = lower(tensor.recipe);
  fmt::format_to(out, "  {} bytes in {} pieces of {} elements, {} fragments\n", lowered.bytes, lowered.piece_count,
                 lowered.piece_elements, lowered.fragments.size());
  const bool tiled = lowered.tile_columns > 0;
  if (tiled) fmt::format_to(out, "  a piece: {} columns of every row; the last one: the digest\n", lowered.tile_columns);
  const uint64_t ranges = tiled ? 0 : lowered.piece_count;
  for (uint64_t piece = 0; piece < std::min(ranges, kPiecesExplained); ++piece) {
    fmt::format_to(out, "  piece {}: bytes {}..{}\n", piece, packed_bytes(lowered.dtype, lowered.piece_begin(piece)),
                   packed_bytes(lowered.dtype, lowered.piece_end(piece)));
  }
  if (ranges > kPiecesExplained) fmt::format_to(out, "  ... {} more\n", ranges - kPiecesExplained);
  explain_fragments(lowered, text);
}

}  // namespace

uint64_t Plan::total_bytes() const {
  uint64_t total = 0;
  for (const PlannedFile& file : files) total = checked_add(total, file.size, "size of a plan");
  return total;
}

uint64_t Plan::tensor_bytes() const {
  uint64_t total = 0;
  for (const PlannedFile& file : files) total = checked_add(total, file.tensor_bytes(), "size of a plan");
  return total;
}

uint64_t PlannedFile::tensor_bytes() const {
  uint64_t total = 0;
  for (const PlannedTensor& tensor : tensors) {
    total = checked_add(total, checked_add(tensor.recipe.bytes(), scales_bytes(tensor), "size of a plan"), "size of a plan");
  }
  return total;
}

uint64_t stored_tensors(const PlannedFile& file) {
  uint64_t count = 0;
  for (const PlannedTensor& tensor : file.tensors) count += tensor.scales ? 2 : 1;
  return count;
}

uint64_t scales_bytes(const PlannedTensor& tensor) {
  const QuantizeOp* op = find_operation<QuantizeOp>(tensor.recipe);
  return op == nullptr || !tensor.scales ? 0 : packed_bytes(tensor.scales->dtype, op->format.channels());
}

PlannedFile planned_text(std::string name, std::string bytes) {
  PlannedFile file;
  file.name = std::move(name);
  file.size = bytes.size();
  file.bytes.push_back({0, std::move(bytes)});
  return file;
}

void check_plan(const Plan& plan) {
  std::set<std::string> names;
  for (const PlannedFile& file : plan.files) {
    if (!names.insert(file.name).second) refuse(file, "file planned twice: got two, expected one");
    check_file(file);
  }
}

std::string explain_plan(const Plan& plan) {
  std::string text;
  for (const PlannedFile& file : plan.files) {
    fmt::format_to(std::back_inserter(text), "file {}: {} bytes, {} tensors\n", file.name, file.size, file.tensors.size());
    for (const PlannedTensor& tensor : file.tensors) explain_tensor(file, tensor, text);
  }
  return text;
}

}  // namespace transload
