// Activation functions, each by its definition.
#include "runtime/activations.h"

#include <algorithm>
#include <cmath>

namespace transload {
namespace {

constexpr float kSqrtHalf = 0.70710678118654752440F;
constexpr float kSqrtTwoOverPi = 0.79788456080286535588F;

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
float silu(float x) { return x / (1.0F + std::exp(-x)); }
float gelu_erf(float x) { return 0.5F * x * (1.0F + std::erf(x * kSqrtHalf)); }
float gelu_tanh(float x) { return 0.5F * x * (1.0F + std::tanh(kSqrtTwoOverPi * x * (1.0F + 0.044715F * x * x))); }

float quick_gelu(float x) { return x / (1.0F + std::exp(-1.702F * x)); }

template <float (*Function)(float)>
void apply(float* values, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) values[i] = Function(values[i]);
}

}  // namespace

void activate(Activation activation, float* values, uint64_t count) {
  switch (activation) {
    case Activation::silu:
      return apply<silu>(values, count);
    case Activation::gelu_erf:
      return apply<gelu_erf>(values, count);
    case Activation::gelu_tanh:
      return apply<gelu_tanh>(values, count);
    case Activation::quick_gelu:
      return apply<quick_gelu>(values, count);
  }
}

void activate(GateActivation activation, float* values, uint64_t count) {
  switch (activation) {
    case GateActivation::sigmoid:
      return apply<sigmoid>(values, count);
    case GateActivation::silu:
      return apply<silu>(values, count);
  }
}

void activate_gate(const Mlp& mlp, float* gate, uint64_t count) {
  if (mlp.limit) {
    for (uint64_t i = 0; i < count; ++i) gate[i] = std::min(gate[i], *mlp.limit);
  }
  activate(mlp.activation, gate, count);
}

void multiply_by_up(const Mlp& mlp, float* up, float* gate, uint64_t count) {
  if (mlp.limit) {
    for (uint64_t i = 0; i < count; ++i) up[i] = std::clamp(up[i], -*mlp.limit, *mlp.limit);
  }
  for (uint64_t i = 0; i < count; ++i) gate[i] *= up[i] + mlp.up_offset;
}

}  // namespace transload
