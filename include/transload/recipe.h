// A recipe: an immutable expression over source tensors that says how one output tensor is made. Nothing is read until run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transload/checkpoint.h"
#include "transload/dtype.h"

namespace transload {

struct RecipeNode;  // src/weights/recipe_node.h

// A value type; copies share the expression. Operations check shapes when built and throw shape_mismatch / dtype_mismatch.
// Values flow in fp32 between operations; only `cast` fixes a stored type, rounding to nearest even.
class Recipe {
 public:
  Recipe() = default;
  explicit Recipe(std::shared_ptr<const RecipeNode> node) : node_(std::move(node)) {}

  // A default-constructed recipe is empty: it has no dtype, shape or node, and asking for them is undefined.
  bool empty() const { return node_ == nullptr; }
  DType dtype() const;
  const Shape& shape() const;
  uint64_t bytes() const;
  const RecipeNode& node() const { return *node_; }
  // One line for --explain, e.g. "cast(slice(src 'model.layers.0.self_attn.q_k_v_proj.weight', 0, 0:2048), f16)".
  std::string text() const;

  // Structural equality: same sources, same operations.
  friend bool operator==(const Recipe& a, const Recipe& b);

 private:
  std::shared_ptr<const RecipeNode> node_;
};

// Names of the stored tensors a recipe reads, each once, in order of first use.
std::vector<std::string> source_tensor_names(const Recipe& recipe);

// A stored tensor as it lies in its file.
Recipe source(const TensorInfo& tensor);
// A small tensor computed by the host; f32 values in row-major order, or i64 values.
Recipe constant(Shape shape, std::vector<float> values);
Recipe constant_i64(Shape shape, std::vector<int64_t> values);
// Values of the given mean and standard deviation, nearly normal and bounded (a sum of uniform parts), f32 before the cast to
// `dtype` (f32, f16 or bf16); a pure function of (seed, element index).
Recipe random(DType dtype, Shape shape, uint64_t seed, float stddev, float mean = 0.0F);

// Elements begin..end-1 of `axis`. Block types can be sliced on the last axis only at block boundaries.
Recipe slice(const Recipe& input, uint32_t axis, uint64_t begin, uint64_t end);
Recipe concat(const std::vector<Recipe>& inputs, uint32_t axis);
Recipe transpose(const Recipe& input);  // rank 2: [a, b] -> [b, a]
// Same elements in row-major order under another shape.
Recipe reshape(const Recipe& input, Shape shape);
// Rows of a [heads * head_dim, n] matrix from rotary pairs stored side by side (GGUF llama) to half-split order:
// out row (h, half, j) = in row (h, 2j + half).
Recipe unpair_rotary_rows(const Recipe& input, uint64_t heads);
// To f32, f16 or bf16. Dequantises block types. Identity casts vanish.
Recipe cast(const Recipe& input, DType dtype);
// input * scale + offset in fp32, as one multiplication and one addition; the result is f32.
Recipe affine(const Recipe& input, float scale, float offset);

// Weight-only quantisation as TensorRT-LLM stores it. w is [out, in], or [n, out, in] for n stacked matrices, in f32, f16 or
// bf16. For each output channel, in fp32: scale = max|w| * 2^-(bits-1); q = w / scale rounded half away from zero and clamped to
// [-2^(bits-1), 2^(bits-1) - 1]; q = 0 where scale is 0. NaN raises no scale; NaN and inf / inf give 127 (4 bits: -8).
enum class QuantLayout : uint8_t {
  plain,      // [in, out] row-major
  transpose,  // [out, in] row-major
  sm80,  // rows permuted, transposed, columns interleaved, biased, shuffled: GPUs of compute capability 7.5 to 8.9, and 10.0 up
  sm90,  // sm80 without the interleaving; of stacked matrices sm80 itself, as no kernel for experts takes another
};
std::string_view quant_layout_name(QuantLayout layout);  // "plain", "transpose", "sm80", "sm90"
struct WeightQuant {
  uint8_t bits = 8;  // 8 or 4
  QuantLayout layout = QuantLayout::plain;
  bool operator==(const WeightQuant&) const = default;
};
// i8 [in, out * bits / 8] or [n, in, out * bits / 8]; for 4 bits two channels a byte, the even one low. Only as the root of a
// recipe that is executed: its scales come from the same pass (PlannedTensor::scales). Throws quant_unsupported for a shape that
// the layout cannot hold: row or column bytes that are no multiples of 32 (sm80, sm90), in mod 64 (sm80), an odd `out` for 4
// bits.
Recipe quantize(const Recipe& weight, const WeightQuant& quant);
// The values q * scale of a stored pair, f32 [out, in] or [n, out, in]; may be used like any other leaf.
Recipe dequantize(const TensorInfo& weight, const TensorInfo& scales, const WeightQuant& quant);

}  // namespace transload
