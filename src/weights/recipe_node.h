// One node of a recipe expression: a leaf (stored, dequantised, constant, random) or an operation on other recipes. Validated
// when built.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "transload/recipe.h"
#include "weights/quant_format.h"

namespace transload {

struct SourceLeaf {
  TensorInfo tensor;
};
// A quantised pair as f32 values.
struct DequantizeLeaf {
  TensorInfo weight;
  TensorInfo scales;
  QuantFormat format;
};
struct ConstantLeaf {
  std::vector<float> values;
};
struct ConstantI64Leaf {
  std::vector<int64_t> values;
};
// A leaf of f32 values; `random` puts a cast on it for other types.
struct RandomLeaf {
  uint64_t seed = 0;
  float stddev = 0;
  float mean = 0;
};
struct SliceOp {
  Recipe input;
  uint32_t axis = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};
struct ConcatOp {
  std::vector<Recipe> inputs;
  uint32_t axis = 0;
};
struct TransposeOp {
  Recipe input;
};
struct ReshapeOp {
  Recipe input;
};
struct UnpairRotaryRowsOp {
  Recipe input;
  uint64_t heads = 0;
};
struct CastOp {
  Recipe input;
};
struct AffineOp {
  Recipe input;
  float scale = 1;
  float offset = 0;
};
struct QuantizeOp {
  Recipe input;
  QuantFormat format;
};

using RecipeOperation = std::variant<SourceLeaf, DequantizeLeaf, ConstantLeaf, ConstantI64Leaf, RandomLeaf, SliceOp, ConcatOp,
                                     TransposeOp, ReshapeOp, UnpairRotaryRowsOp, CastOp, AffineOp, QuantizeOp>;

struct RecipeNode {
  DType dtype = DType::f32;
  Shape shape;
  uint64_t elements = 0;
  uint64_t bytes = 0;
  RecipeOperation operation;
};

Recipe make_recipe(DType dtype, Shape shape, RecipeOperation operation);

// Equal for equal recipes, as a hash is.
uint64_t recipe_hash(const Recipe& recipe);
// The open file of a stored tensor; throws internal when there is none.
const InputFile& source_file(const TensorInfo& tensor);
// The stored tensor that a recipe reads first, or nullptr.
const TensorInfo* first_source(const Recipe& recipe);

// The operation at the root of a recipe when it is of this kind, or nullptr.
template <class Operation>
const Operation* find_operation(const Recipe& recipe) {
  return std::get_if<Operation>(&recipe.node().operation);
}

// visit(overloaded{[](const SliceOp& slice) {...}, ...}, node.operation)
template <class... Functions>
struct overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
overloaded(Functions...) -> overloaded<Functions...>;

}  // namespace transload
