// Builds recipes: every operation checks its operands, and what can be folded exactly is folded here.
#include "transload/recipe.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "transload/error.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

// Whether `shape` can hold whole blocks of `dtype` along its last axis.
bool holds_blocks(DType dtype, const Shape& shape) {
  const uint64_t block = dtype_info(dtype).block_elements;
  return block == 1 || (!shape.empty() && shape.back() % block == 0);
}

void require_operand(const Recipe& input, std::string_view operation) {
  if (input.empty())
    throw Error(ErrorCode::internal, fmt::format("{} of an empty recipe: got nothing, expected a recipe", operation));
}

void require_axis(const Recipe& input, uint32_t axis, std::string_view operation) {
  if (axis < input.shape().size()) return;
  throw Error(ErrorCode::shape_mismatch, fmt::format("{} along an axis that is not there: got axis {}, expected one of {}",
                                                     operation, axis, shape_text(input.shape())));
}

void require_count(const Shape& shape, size_t count) {
  if (element_count(shape) == count) return;
  throw Error(ErrorCode::shape_mismatch, fmt::format("number of values does not match shape {}: got {}, expected {}",
                                                     shape_text(shape), count, element_count(shape)));
}

// Appends `part`, merged with the last one where both are adjacent slices of one input.
void append_part(std::vector<Recipe>& parts, const Recipe& part, uint32_t axis) {
  if (part.shape()[axis] == 0) return;
  if (!parts.empty()) {
    const SliceOp* last = find_operation<SliceOp>(parts.back());
    const SliceOp* next = find_operation<SliceOp>(part);
    if (last != nullptr && next != nullptr && last->axis == axis && next->axis == axis && last->end == next->begin &&
        last->input == next->input) {
      parts.back() = slice(last->input, axis, last->begin, next->end);
      return;
    }
  }
  parts.push_back(part);
}

}  // namespace

Recipe make_recipe(DType dtype, Shape shape, RecipeOperation operation) {
  RecipeNode node;
  node.dtype = dtype;
  node.elements = element_count(shape);
  node.bytes = tensor_bytes(dtype, shape);
  node.shape = std::move(shape);
  node.operation = std::move(operation);
  return Recipe(std::make_shared<const RecipeNode>(std::move(node)));
}

const InputFile& source_file(const TensorInfo& tensor) {
  if (tensor.file != nullptr) return *tensor.file;
  throw Error(ErrorCode::internal, "source without a file: got no file, expected an open one",
              {.file = {}, .tensor = tensor.name, .offset = {}});
}

DType Recipe::dtype() const { return node_->dtype; }
const Shape& Recipe::shape() const { return node_->shape; }
uint64_t Recipe::bytes() const { return node_->bytes; }

Recipe source(const TensorInfo& tensor) {
  const uint64_t expected = tensor_bytes(tensor.dtype, tensor.shape);
  if (tensor.bytes != expected) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("byte size does not match shape {} {}: got {}, expected {}", shape_text(tensor.shape),
                            dtype_name(tensor.dtype), tensor.bytes, expected),
                {.file = {}, .tensor = tensor.name, .offset = tensor.offset});
  }
  return make_recipe(tensor.dtype, tensor.shape, SourceLeaf{tensor});
}

Recipe constant(Shape shape, std::vector<float> values) {
  require_count(shape, values.size());
  return make_recipe(DType::f32, std::move(shape), ConstantLeaf{std::move(values)});
}

Recipe constant_i64(Shape shape, std::vector<int64_t> values) {
  require_count(shape, values.size());
  return make_recipe(DType::i64, std::move(shape), ConstantI64Leaf{std::move(values)});
}

Recipe random(DType dtype, Shape shape, uint64_t seed, float stddev, float mean) {
  return cast(make_recipe(DType::f32, std::move(shape), RandomLeaf{seed, stddev, mean}), dtype);
}

Recipe slice(const Recipe& input, uint32_t axis, uint64_t begin, uint64_t end) {
  require_operand(input, "slice");
  require_axis(input, axis, "slice");
  const uint64_t size = input.shape()[axis];
  if (begin > end || end > size) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("slice leaves axis {} of {}: got {}:{}, expected a range inside 0:{}",
                                                       axis, shape_text(input.shape()), begin, end, size));
  }
  if (begin == 0 && end == size) return input;
  const uint64_t block = axis + 1 == input.shape().size() ? dtype_info(input.dtype()).block_elements : 1;
  if (begin % block != 0 || end % block != 0) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("slice cuts blocks of {}: got {}:{}, expected multiples of {}",
                                                       dtype_name(input.dtype()), begin, end, block));
  }
  if (const SliceOp* inner = find_operation<SliceOp>(input); inner != nullptr && inner->axis == axis) {
    return slice(inner->input, axis, inner->begin + begin, inner->begin + end);
  }
  if (const ConcatOp* joined = find_operation<ConcatOp>(input); joined != nullptr && joined->axis == axis) {
    std::vector<Recipe> parts;
    uint64_t start = 0;
    for (const Recipe& part : joined->inputs) {
      const uint64_t stop = start + part.shape()[axis];
      if (start < end && stop > begin) {
        parts.push_back(slice(part, axis, begin > start ? begin - start : 0, (end < stop ? end : stop) - start));
      }
      start = stop;
    }
    if (!parts.empty()) return concat(parts, axis);
  }
  Shape shape = input.shape();
  shape[axis] = end - begin;
  return make_recipe(input.dtype(), std::move(shape), SliceOp{input, axis, begin, end});
}

Recipe concat(const std::vector<Recipe>& inputs, uint32_t axis) {
  if (inputs.empty()) throw Error(ErrorCode::internal, "concat of nothing: got 0 recipes, expected at least 1");
  std::vector<Recipe> parts;
  Shape shape;
  uint64_t joined_size = 0;
  for (const Recipe& input : inputs) {
    require_operand(input, "concat");
    require_axis(input, axis, "concat");
    if (input.dtype() != inputs.front().dtype()) {
      throw Error(ErrorCode::dtype_mismatch, fmt::format("concat of different types: got '{}', expected '{}'",
                                                         dtype_name(input.dtype()), dtype_name(inputs.front().dtype())));
    }
    shape = inputs.front().shape();
    shape[axis] = input.shape()[axis];
    if (input.shape() != shape) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("concat along axis {} of shapes that differ elsewhere: got {}, expected {}", axis,
                              shape_text(input.shape()), shape_text(shape)));
    }
    joined_size += input.shape()[axis];
    const ConcatOp* nested = find_operation<ConcatOp>(input);
    if (nested != nullptr && nested->axis == axis) {
      for (const Recipe& part : nested->inputs) append_part(parts, part, axis);
    } else {
      append_part(parts, input, axis);
    }
  }
  if (parts.empty()) return inputs.front();
  if (parts.size() == 1) return parts.front();
  shape[axis] = joined_size;
  return make_recipe(inputs.front().dtype(), std::move(shape), ConcatOp{std::move(parts), axis});
}

Recipe transpose(const Recipe& input) {
  require_operand(input, "transpose");
  if (input.shape().size() != 2) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("transpose: got shape {}, expected a matrix", shape_text(input.shape())));
  }
  if (const TransposeOp* inner = find_operation<TransposeOp>(input)) return inner->input;
  // Blocks run along the last axis and cannot be turned: their values are.
  if (is_block(input.dtype())) return transpose(cast(input, DType::f32));
  return make_recipe(input.dtype(), {input.shape()[1], input.shape()[0]}, TransposeOp{input});
}

Recipe reshape(const Recipe& input, Shape shape) {
  require_operand(input, "reshape");
  if (element_count(shape) != input.node().elements) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("reshape to another number of elements: got {} to {}, expected {} elements",
                            shape_text(input.shape()), shape_text(shape), input.node().elements));
  }
  if (shape == input.shape()) return input;
  if (const ReshapeOp* inner = find_operation<ReshapeOp>(input)) return reshape(inner->input, std::move(shape));
  if (!holds_blocks(input.dtype(), shape)) return reshape(cast(input, DType::f32), std::move(shape));
  return make_recipe(input.dtype(), std::move(shape), ReshapeOp{input});
}

Recipe unpair_rotary_rows(const Recipe& input, uint64_t heads) {
  require_operand(input, "unpair_rotary_rows");
  const Shape& shape = input.shape();
  if (shape.size() != 2 || heads == 0 || heads > std::numeric_limits<uint64_t>::max() / 2 || shape[0] % (2 * heads) != 0) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("rotary rows do not come in pairs: got shape {} with {} heads, expected a matrix of "
                            "heads x an even head size rows",
                            shape_text(shape), heads));
  }
  if (shape[0] == 2 * heads) return input;  // one pair a head is in place
  return make_recipe(input.dtype(), shape, UnpairRotaryRowsOp{input, heads});
}

Recipe cast(const Recipe& input, DType dtype) {
  require_operand(input, "cast");
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
    throw Error(ErrorCode::dtype_mismatch, fmt::format("cast: got '{}', expected f32, f16 or bf16", dtype_name(dtype)));
  }
  if (input.dtype() == dtype) return input;
  // Values flow in fp32, so a cast to f32 below another cast changes nothing.
  if (const CastOp* inner = find_operation<CastOp>(input); inner != nullptr && input.dtype() == DType::f32) {
    return cast(inner->input, dtype);
  }
  return make_recipe(dtype, input.shape(), CastOp{input});
}

Recipe affine(const Recipe& input, float scale, float offset) {
  require_operand(input, "affine");
  // x - 1 + 1, as a GGUF norm meets a family that adds 1: exactly x, not the rounded sum.
  const AffineOp* inner = find_operation<AffineOp>(input);
  if (inner != nullptr && inner->scale == 1.0F && scale == 1.0F && inner->offset + offset == 0.0F) {
    return cast(inner->input, DType::f32);
  }
  return make_recipe(DType::f32, input.shape(), AffineOp{input, scale, offset});
}

}  // namespace transload
