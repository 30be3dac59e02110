// One node of a recipe expression: a leaf (stored, constant, random) or an operation on other recipes. Validated when built.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "transload/recipe.h"

namespace transload {

struct SourceLeaf {
  TensorInfo tensor;
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

using RecipeOperation = std::variant<SourceLeaf, ConstantLeaf, ConstantI64Leaf, RandomLeaf, SliceOp, ConcatOp, TransposeOp,
                                     ReshapeOp, UnpairRotaryRowsOp, CastOp, AffineOp>;

struct RecipeNode {
  DType dtype = DType::f32;
  Shape shape;
  uint64_t elements = 0;
  uint64_t bytes = 0;
  RecipeOperation operation;
};

// visit(overloaded{[](const SliceOp& slice) {...}, ...}, node.operation)
template <class... Functions>
struct overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
overloaded(Functions...) -> overloaded<Functions...>;

}  // namespace transload
