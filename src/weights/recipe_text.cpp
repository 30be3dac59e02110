// Recipes as one line of text, and compared and hashed by structure.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "weights/recipe_node.h"

namespace transload {
namespace {

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

bool same(const TensorInfo& a, const TensorInfo& b) {
  return a.file == b.file && a.offset == b.offset && a.bytes == b.bytes && a.dtype == b.dtype && a.name == b.name;
}
bool same(const SourceLeaf& a, const SourceLeaf& b) { return same(a.tensor, b.tensor); }
bool same(const DequantizeLeaf& a, const DequantizeLeaf& b) {
  return a.format == b.format && same(a.weight, b.weight) && same(a.scales, b.scales);
}
bool same(const ConstantLeaf& a, const ConstantLeaf& b) {
  if (a.values.size() != b.values.size()) return false;
  for (size_t i = 0; i < a.values.size(); ++i) {
    if (!same_bits(a.values[i], b.values[i])) return false;
  }
  return true;
}
bool same(const ConstantI64Leaf& a, const ConstantI64Leaf& b) { return a.values == b.values; }
bool same(const RandomLeaf& a, const RandomLeaf& b) {
  return a.seed == b.seed && same_bits(a.stddev, b.stddev) && same_bits(a.mean, b.mean);
}
bool same(const SliceOp& a, const SliceOp& b) {
  return a.axis == b.axis && a.begin == b.begin && a.end == b.end && a.input == b.input;
}
bool same(const ConcatOp& a, const ConcatOp& b) { return a.axis == b.axis && a.inputs == b.inputs; }
bool same(const TransposeOp& a, const TransposeOp& b) { return a.input == b.input; }
bool same(const ReshapeOp& a, const ReshapeOp& b) { return a.input == b.input; }
bool same(const UnpairRotaryRowsOp& a, const UnpairRotaryRowsOp& b) { return a.heads == b.heads && a.input == b.input; }
bool same(const CastOp& a, const CastOp& b) { return a.input == b.input; }
bool same(const AffineOp& a, const AffineOp& b) {
  return same_bits(a.scale, b.scale) && same_bits(a.offset, b.offset) && a.input == b.input;
}
bool same(const QuantizeOp& a, const QuantizeOp& b) { return a.format == b.format && a.input == b.input; }

std::string list_text(const std::vector<Recipe>& inputs) {
  std::string text;
  for (const Recipe& input : inputs) text += input.text() + ", ";
  return text;
}

}  // namespace

bool operator==(const Recipe& a, const Recipe& b) {
  if (a.node_ == b.node_) return true;
  if (a.empty() || b.empty()) return false;
  const RecipeNode& x = a.node();
  const RecipeNode& y = b.node();
  if (x.dtype != y.dtype || x.shape != y.shape) return false;
  return std::visit(
      [](const auto& first, const auto& second) {
        if constexpr (std::is_same_v<decltype(first), decltype(second)>) {
          return same(first, second);
        } else {
          return false;
        }
      },
      x.operation, y.operation);
}

namespace {

class RecipeHash {
 public:
  void add(uint64_t value) { state_ = (state_ ^ value) * 0x9E3779B97F4A7C15U ^ (state_ >> 29); }
  void add(const TensorInfo& tensor) {
    add(reinterpret_cast<uintptr_t>(tensor.file.get()));
    add(tensor.offset);
  }
  void add(const QuantFormat& format) { add(uint64_t{format.bits} << 8 | static_cast<uint64_t>(format.layout)); }
  // Parameters that seldom tell two recipes apart are left to the comparison.
  void add(const Recipe& recipe) {
    add(recipe.node().operation.index());
    add(static_cast<uint64_t>(recipe.dtype()));
    for (const uint64_t size : recipe.shape()) add(size);
    std::visit(overloaded{
                   [&](const SourceLeaf& leaf) { add(leaf.tensor); },
                   [&](const DequantizeLeaf& leaf) { add(leaf.weight); },
                   [&](const ConstantLeaf& leaf) {
                     if (!leaf.values.empty()) add(std::bit_cast<uint32_t>(leaf.values.back()));
                   },
                   [&](const ConstantI64Leaf& leaf) {
                     if (!leaf.values.empty()) add(static_cast<uint64_t>(leaf.values.back()));
                   },
                   [&](const RandomLeaf& leaf) { add(leaf.seed); },
                   [&](const SliceOp& op) {
                     add(op.begin);
                     add(op.input);
                   },
                   [&](const ConcatOp& op) {
                     for (const Recipe& input : op.inputs) add(input);
                   },
                   [&](const QuantizeOp& op) {
                     add(op.format);
                     add(op.input);
                   },
                   [&](const auto& op) { add(op.input); },
               },
               recipe.node().operation);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace

uint64_t recipe_hash(const Recipe& recipe) {
  RecipeHash hash;
  hash.add(recipe);
  return hash.value();
}

namespace {

void collect_sources(const Recipe& recipe, std::vector<std::string>& names) {
  const auto add = [&](const TensorInfo& tensor) {
    if (std::find(names.begin(), names.end(), tensor.name) == names.end()) names.push_back(tensor.name);
  };
  std::visit(overloaded{
                 [&](const SourceLeaf& leaf) { add(leaf.tensor); },
                 [&](const DequantizeLeaf& leaf) {
                   add(leaf.weight);
                   add(leaf.scales);
                 },
                 [](const ConstantLeaf&) {},
                 [](const ConstantI64Leaf&) {},
                 [](const RandomLeaf&) {},
                 [&](const ConcatOp& op) {
                   for (const Recipe& input : op.inputs) collect_sources(input, names);
                 },
                 [&](const auto& op) { collect_sources(op.input, names); },
             },
             recipe.node().operation);
}

}  // namespace

const TensorInfo* first_source(const Recipe& recipe) {
  return std::visit(overloaded{
                        [](const SourceLeaf& leaf) { return &leaf.tensor; },
                        [](const DequantizeLeaf& leaf) { return &leaf.weight; },
                        [](const ConstantLeaf&) -> const TensorInfo* { return nullptr; },
                        [](const ConstantI64Leaf&) -> const TensorInfo* { return nullptr; },
                        [](const RandomLeaf&) -> const TensorInfo* { return nullptr; },
                        [](const ConcatOp& op) -> const TensorInfo* {
                          for (const Recipe& input : op.inputs) {
                            if (const TensorInfo* found = first_source(input)) return found;
                          }
                          return nullptr;
                        },
                        [](const auto& op) { return first_source(op.input); },
                    },
                    recipe.node().operation);
}

std::vector<std::string> source_tensor_names(const Recipe& recipe) {
  std::vector<std::string> names;
  collect_sources(recipe, names);
  return names;
}

std::string Recipe::text() const {
  if (empty()) return "nothing";
  return std::visit(
      overloaded{
          [](const SourceLeaf& leaf) { return fmt::format("src '{}'", leaf.tensor.name); },
          [](const DequantizeLeaf& leaf) {
            return fmt::format("dequantize(src '{}', src '{}', {})", leaf.weight.name, leaf.scales.name, quant_text(leaf.format));
          },
          [this](const ConstantLeaf&) { return fmt::format("constant {}", shape_text(shape())); },
          [this](const ConstantI64Leaf&) { return fmt::format("constant i64 {}", shape_text(shape())); },
          [](const RandomLeaf& leaf) {
            return fmt::format("random(seed {}, stddev {}, mean {})", leaf.seed, leaf.stddev, leaf.mean);
          },
          [](const SliceOp& op) { return fmt::format("slice({}, {}, {}:{})", op.input.text(), op.axis, op.begin, op.end); },
          [](const ConcatOp& op) { return fmt::format("concat({}{})", list_text(op.inputs), op.axis); },
          [](const TransposeOp& op) { return fmt::format("transpose({})", op.input.text()); },
          [this](const ReshapeOp& op) { return fmt::format("reshape({}, {})", op.input.text(), shape_text(shape())); },
          [](const UnpairRotaryRowsOp& op) { return fmt::format("unpair_rotary_rows({}, {})", op.input.text(), op.heads); },
          [this](const CastOp& op) { return fmt::format("cast({}, {})", op.input.text(), dtype_name(dtype())); },
          [](const AffineOp& op) { return fmt::format("affine({}, {}, {})", op.input.text(), op.scale, op.offset); },
          [](const QuantizeOp& op) { return fmt::format("quantize({}, {})", op.input.text(), quant_text(op.format)); },
      },
      node_->operation);
}

}  // namespace transload
