// Ops that go element by element: broadcasting arithmetic, comparisons and choices, functions of one operand, casts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "runtime/interpreter_ops.h"
#include "transload/error.h"

namespace transload {
namespace {

// Elements for one worker at a time: arithmetic, and functions that cost some ten times as much.
constexpr uint64_t kArithmeticGrain = 32768;
constexpr uint64_t kFunctionGrain = 2048;

// Integers wrap, as the hardware of every runtime does; unsigned arithmetic makes that defined.
int64_t wrap(DType dtype, uint64_t value) {
  return dtype == DType::i32 ? static_cast<int32_t>(static_cast<uint32_t>(value)) : static_cast<int64_t>(value);
}

struct Add {
  float operator()(float a, float b) const { return a + b; }
  uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Sub {
  float operator()(float a, float b) const { return a - b; }
  uint64_t operator()(uint64_t a, uint64_t b) const { return a - b; }
};
struct Mul {
  float operator()(float a, float b) const { return a * b; }
  uint64_t operator()(uint64_t a, uint64_t b) const { return a * b; }
};
struct Div {
  float operator()(float a, float b) const { return a / b; }
  // Towards zero. The lowest integer by -1 wraps to itself.
  uint64_t operator()(uint64_t a, uint64_t b) const {
    const auto divisor = static_cast<int64_t>(b);
    if (divisor == 0) throw Error(ErrorCode::numeric_fault, "integer divisor: got 0, expected another number");
    if (divisor == -1) return 0 - a;
    return static_cast<uint64_t>(static_cast<int64_t>(a) / divisor);
  }
};

// NaN wins, as ONNX has it.
struct Max {
  float operator()(float a, float b) const { return std::isnan(a) || a > b ? a : b; }
};
struct Min {
  float operator()(float a, float b) const { return std::isnan(a) || a < b ? a : b; }
};

// Arithmetic as the function of two elements that it is.
template <typename T, typename Function>
auto arithmetic(Function f, DType dtype) {
  if constexpr (std::is_same_v<T, float>) {
    return f;
  } else {
    return [f, dtype](T a, T b) { return wrap(dtype, f(static_cast<uint64_t>(a), static_cast<uint64_t>(b))); };
  }
}

// `count` elements along one axis; a step is 0 or 1.
template <typename T, typename Out, typename Function>
void apply_run(Function f, const T* a, uint64_t a_step, const T* b, uint64_t b_step, Out* out, uint64_t count) {
  if (a_step != 0 && b_step != 0) {
    for (uint64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
  } else if (a_step != 0) {
    const T y = *b;
    for (uint64_t i = 0; i < count; ++i) out[i] = f(a[i], y);
  } else {
    const T x = *a;
    for (uint64_t i = 0; i < count; ++i) out[i] = f(x, b[i * b_step]);
  }
}

// Operands of T, results of Out, one `f(T, T)` for each element.
template <typename T, typename Out, typename Function>
ValueArray run_pairs(const OpCall& call, Function f) {
  const Value& output = call.output();
  const uint64_t count = element_count(output.shape);
  const std::vector<LoopAxis> axes = broadcast_axes(output.shape, call.input(0).shape, call.input(1).shape);
  const LoopAxis inner = axes[0];
  const std::span<const LoopAxis> outer = std::span(axes).subspan(1);
  const T* const a = values_of<T>(*call.operands[0]);
  const T* const b = values_of<T>(*call.operands[1]);
  NewValue<Out> out = new_value<Out>(call.memory, count);
  run_ranges(call.pool, count, kArithmeticGrain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t at = begin; at < end;) {
      const Steps start = steps_at(outer, at / inner.size);
      const uint64_t offset = at % inner.size;
      const uint64_t part = std::min(inner.size - offset, end - at);
      apply_run<T>(f, a + start.a + offset * inner.a_step, inner.a_step, b + start.b + offset * inner.b_step, inner.b_step,
                   out.data + at, part);
      at += part;
    }
    if constexpr (std::is_same_v<Out, float>) round_values(output.dtype, out.data + begin, end - begin);
  });
  return out.array;
}

template <typename Function>
ValueArray run_binary(const OpCall& call, Function f) {
  const DType dtype = call.output().dtype;
  return for_kind(dtype, [&](auto kind) {
    using T = decltype(kind);
    return run_pairs<T, T>(call, arithmetic<T>(f, dtype));
  });
}

template <typename Function>
ValueArray run_comparison(const OpCall& call, Function f) {
  return for_kind(call.input(0).dtype, [&](auto kind) {
    using T = decltype(kind);
    return run_pairs<T, int64_t>(call, [f](T a, T b) { return int64_t{f(a, b)}; });
  });
}

template <typename T>
ValueArray where_of(const OpCall& call) {
  const Shape& shape = call.output().shape;
  const uint64_t count = element_count(shape);
  const std::vector<LoopAxis> choices = broadcast_axes(shape, call.input(1).shape, call.input(2).shape);
  const std::vector<LoopAxis> conditions = broadcast_axes(shape, call.input(0).shape, {1});
  const int64_t* const condition = call.operands[0]->integers;
  const T* const a = values_of<T>(*call.operands[1]);
  const T* const b = values_of<T>(*call.operands[2]);
  NewValue<T> out = new_value<T>(call.memory, count);
  run_ranges(call.pool, count, kArithmeticGrain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const Steps steps = steps_at(choices, i);
      out.data[i] = condition[steps_at(conditions, i).a] != 0 ? a[steps.a] : b[steps.b];
    }
  });
  return out.array;
}

template <typename Function>
ValueArray run_function(const OpCall& call, uint64_t grain, Function f) {
  const Value& output = call.output();
  const uint64_t count = element_count(output.shape);
  const float* const in = call.operands[0]->floats;
  NewValue<float> out = new_value<float>(call.memory, count);
  run_ranges(call.pool, count, grain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) out.data[i] = f(in[i]);
    round_values(output.dtype, out.data + begin, end - begin);
  });
  return out.array;
}

constexpr float kSqrtHalf = 0.70710678118654752440F;
constexpr float kSqrtTwoOverPi = 0.79788456080286535588F;

// x/2 erfc(-x / sqrt 2): x/2 (1 + erf(..)) without its cancellation for negative x.
float gelu_exact(float x) { return 0.5F * x * std::erfc(-x * kSqrtHalf); }

float gelu_tanh(float x) { return 0.5F * x * (1.0F + std::tanh(kSqrtTwoOverPi * (x + 0.044715F * x * x * x))); }

// Towards zero; what does not fit becomes the nearest integer that does, and NaN 0, since C++ leaves both undefined.
int64_t to_integer(float value, DType dtype) {
  const bool narrow = dtype == DType::i32;
  const int64_t lowest = narrow ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
  const int64_t highest = narrow ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max();
  if (std::isnan(value)) return 0;
  if (value >= (narrow ? 0x1p31F : 0x1p63F)) return highest;
  if (value <= (narrow ? -0x1p31F : -0x1p63F)) return lowest;
  return static_cast<int64_t>(value);
}

template <typename From, typename To, typename Function>
ValueArray convert_elements(const OpCall& call, Function f) {
  const uint64_t count = element_count(call.output().shape);
  const From* const in = values_of<From>(*call.operands[0]);
  NewValue<To> out = new_value<To>(call.memory, count);
  std::transform(in, in + count, out.data, f);
  if constexpr (std::is_same_v<To, float>) round_values(call.output().dtype, out.data, count);
  return out.array;
}

}  // namespace

ValueArray run_add(const OpCall& call) { return run_binary(call, Add{}); }
ValueArray run_sub(const OpCall& call) { return run_binary(call, Sub{}); }
ValueArray run_mul(const OpCall& call) { return run_binary(call, Mul{}); }

ValueArray run_div(const OpCall& call) {
  try {
    return run_binary(call, Div{});
  } catch (Error& error) {
    error.note(fmt::format("computing '{}'", call.output().name));
    throw;
  }
}

ValueArray run_max(const OpCall& call) { return run_pairs<float, float>(call, Max{}); }
ValueArray run_min(const OpCall& call) { return run_pairs<float, float>(call, Min{}); }
ValueArray run_equal(const OpCall& call) { return run_comparison(call, std::equal_to<>{}); }
ValueArray run_greater(const OpCall& call) { return run_comparison(call, std::greater<>{}); }

ValueArray run_where(const OpCall& call) {
  return for_kind(call.output().dtype, [&](auto kind) { return where_of<decltype(kind)>(call); });
}

ValueArray run_neg(const OpCall& call) {
  if (is_floating(call.output().dtype)) return run_function(call, kArithmeticGrain, [](float x) { return -x; });
  const DType dtype = call.output().dtype;
  return convert_elements<int64_t, int64_t>(call, [dtype](int64_t x) { return wrap(dtype, 0 - static_cast<uint64_t>(x)); });
}

ValueArray run_abs(const OpCall& call) {
  return run_function(call, kArithmeticGrain, [](float x) { return std::abs(x); });
}

ValueArray run_sqrt(const OpCall& call) {
  return run_function(call, kArithmeticGrain, [](float x) { return std::sqrt(x); });
}

ValueArray run_sigmoid(const OpCall& call) {
  return run_function(call, kFunctionGrain, [](float x) { return 1.0F / (1.0F + std::exp(-x)); });
}

ValueArray run_tanh(const OpCall& call) {
  return run_function(call, kFunctionGrain, [](float x) { return std::tanh(x); });
}

ValueArray run_erf(const OpCall& call) {
  return run_function(call, kFunctionGrain, [](float x) { return std::erf(x); });
}

ValueArray run_gelu(const OpCall& call) {
  return run_function(call, kFunctionGrain, call.node.text("approximate") == "tanh" ? gelu_tanh : gelu_exact);
}

ValueArray run_cast(const OpCall& call) {
  const DType from = call.input(0).dtype;
  const DType to = call.output().dtype;
  if (is_floating(from) && is_floating(to)) {
    if (to == from || to == DType::f32) return *call.operands[0];
    return run_function(call, kArithmeticGrain, [](float x) { return x; });
  }
  if (is_floating(from)) return convert_elements<float, int64_t>(call, [to](float x) { return to_integer(x, to); });
  if (is_floating(to)) return convert_elements<int64_t, float>(call, [](int64_t x) { return static_cast<float>(x); });
  if (to == from || to == DType::i64) return *call.operands[0];
  return convert_elements<int64_t, int64_t>(call, [to](int64_t x) { return wrap(to, static_cast<uint64_t>(x)); });
}

}  // namespace transload
