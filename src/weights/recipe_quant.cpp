// The recipes of weight-only quantisation: to a stored pair of integers and scales, and back.
#include <fmt/format.h>

#include "base/checked.h"
#include "transload/error.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

bool is_weight_type(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

void require_shape(const TensorInfo& tensor, const Shape& expected) {
  if (tensor.shape == expected && tensor.bytes == tensor_bytes(tensor.dtype, expected)) return;
  throw Error(ErrorCode::shape_mismatch,
              fmt::format("shape of a quantised pair: got {} in {} bytes, expected {} in {} bytes", shape_text(tensor.shape),
                          tensor.bytes, shape_text(expected), tensor_bytes(tensor.dtype, expected)),
              {.file = {}, .tensor = tensor.name, .offset = tensor.offset});
}

void require_dtype(const TensorInfo& tensor, bool right, std::string_view expected) {
  if (right) return;
  throw Error(ErrorCode::dtype_mismatch,
              fmt::format("type of a quantised pair: got '{}', expected {}", dtype_name(tensor.dtype), expected),
              {.file = {}, .tensor = tensor.name, .offset = tensor.offset});
}

}  // namespace

Recipe quantize(const Recipe& weight, const WeightQuant& quant) {
  if (weight.empty()) throw Error(ErrorCode::internal, "quantize of an empty recipe: got nothing, expected a recipe");
  if (!is_weight_type(weight.dtype())) {
    throw Error(ErrorCode::dtype_mismatch,
                fmt::format("quantize: got '{}', expected f32, f16 or bf16", dtype_name(weight.dtype())));
  }
  const QuantFormat format = quant_format(quant, weight.shape());
  Shape shape = weight.shape();
  shape[shape.size() - 2] = format.in;
  shape.back() = format.packed_bytes(format.out);
  return make_recipe(DType::i8, std::move(shape), QuantizeOp{weight, format});
}

Recipe dequantize(const TensorInfo& weight, const TensorInfo& scales, const WeightQuant& quant) {
  require_dtype(weight, weight.dtype == DType::i8, "i8");
  require_dtype(scales, is_weight_type(scales.dtype), "f32, f16 or bf16");
  if (weight.shape.size() != 2 && weight.shape.size() != 3) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("quantised weight: got shape {}, expected [in,out] or [n,in,out]", shape_text(weight.shape)),
                {.file = {}, .tensor = weight.name, .offset = weight.offset});
  }
  Shape shape = weight.shape;
  shape.back() = weight.shape[weight.shape.size() - 2];
  shape[shape.size() - 2] = checked_mul(weight.shape.back(), quant.bits == 4 ? 2 : 1, "output channels of a quantised weight");
  require_shape(weight, weight.shape);
  try {
    const QuantFormat format = quant_format(quant, shape);
    require_shape(scales, shape.size() == 3 ? Shape{shape[0], shape[1]} : Shape{shape[0]});
    return make_recipe(DType::f32, std::move(shape), DequantizeLeaf{weight, scales, format});
  } catch (Error& error) {
    error.at({.file = {}, .tensor = weight.name, .offset = weight.offset});
    throw;
  }
}

}  // namespace transload
