// The gated MLP of a decode step, with its activation in the form the options ask for.
#include "decode/step_builder.h"

namespace transload {
namespace {

constexpr float kSqrtHalf = 0.70710678118654752440F;
constexpr float kSqrtTwoOverPi = 0.79788456080286535588F;
constexpr int kFirstOpsetWithGelu = 20;

ValueId silu(StepBuilder& b, const std::string& name, ValueId x) {
  return b.binary(Op::mul, name, x, b.unary(Op::sigmoid, name + "_sigmoid", x));
}

// x/2 * (1 + erf(x / sqrt 2)), in the order runtimes recognise and fuse.
ValueId gelu_exact(StepBuilder& b, const std::string& name, ValueId x) {
  if (b.options().opset >= kFirstOpsetWithGelu) {
    return b.graph().add_node(Op::gelu, name, {x}, {{"approximate", std::string("none")}});
  }
  const ValueId scaled = b.binary(Op::mul, name + "_arg", x, b.scalar(kSqrtHalf));
  const ValueId one_plus = b.binary(Op::add, name + "_erf_1", b.unary(Op::erf, name + "_erf", scaled), b.scalar(1.0F));
  return b.binary(Op::mul, name, b.binary(Op::mul, name + "_double", x, one_plus), b.scalar(0.5F));
}

// x/2 * (1 + tanh(sqrt(2/pi) * x * (1 + 0.044715 x^2)))
ValueId gelu_tanh(StepBuilder& b, const std::string& name, ValueId x) {
  if (b.options().opset >= kFirstOpsetWithGelu) {
    return b.graph().add_node(Op::gelu, name, {x}, {{"approximate", std::string("tanh")}});
  }
  const ValueId square = b.binary(Op::mul, name + "_square", x, x);
  const ValueId cubic = b.binary(Op::mul, name + "_cubic", square, b.scalar(0.044715F));
  const ValueId factor = b.binary(Op::add, name + "_factor", cubic, b.scalar(1.0F));
  const ValueId scaled = b.binary(Op::mul, name + "_scaled", x, b.scalar(kSqrtTwoOverPi));
  const ValueId tanh = b.unary(Op::tanh, name + "_tanh", b.binary(Op::mul, name + "_arg", scaled, factor));
  const ValueId one_plus = b.binary(Op::add, name + "_tanh_1", tanh, b.scalar(1.0F));
  return b.binary(Op::mul, name, b.binary(Op::mul, name + "_double", x, one_plus), b.scalar(0.5F));
}

// x * sigmoid(1.702 x): within 3e-2 of GELU. Some models are made with it; for others it serves measurements.
ValueId gelu_sigmoid(StepBuilder& b, const std::string& name, ValueId x) {
  const ValueId scaled = b.binary(Op::mul, name + "_arg", x, b.scalar(1.702F));
  return b.binary(Op::mul, name, x, b.unary(Op::sigmoid, name + "_sigmoid", scaled));
}

ValueId activate(StepBuilder& b, const std::string& name, ValueId x, Activation activation) {
  if (activation == Activation::silu) return silu(b, name, x);
  if (activation == Activation::quick_gelu) return gelu_sigmoid(b, name, x);
  switch (b.options().gelu) {
    case GeluForm::model:
      return activation == Activation::gelu_erf ? gelu_exact(b, name, x) : gelu_tanh(b, name, x);
    case GeluForm::exact:
      return gelu_exact(b, name, x);
    case GeluForm::tanh:
      return gelu_tanh(b, name, x);
    case GeluForm::sigmoid:
      return gelu_sigmoid(b, name, x);
  }
  return x;
}

}  // namespace

ValueId build_mlp(StepBuilder& b, const std::string& prefix, ValueId x, const Mlp& mlp) {
  ValueId gate = b.linear(prefix + "_gate", x, mlp.gate);
  if (mlp.limit) gate = b.binary(Op::min, prefix + "_gate_clamped", gate, b.scalar(*mlp.limit));
  gate = activate(b, prefix + "_act", gate, mlp.activation);
  ValueId up = b.linear(prefix + "_up", x, mlp.up);
  if (mlp.limit) {
    const ValueId floored = b.binary(Op::max, prefix + "_up_floored", up, b.scalar(-*mlp.limit));
    up = b.binary(Op::min, prefix + "_up_clamped", floored, b.scalar(*mlp.limit));
  }
  if (mlp.up_offset != 0) up = b.binary(Op::add, prefix + "_up_offset", up, b.scalar(mlp.up_offset));
  return b.linear(prefix + "_down", b.binary(Op::mul, prefix + "_product", gate, up), mlp.down);
}

}  // namespace transload
