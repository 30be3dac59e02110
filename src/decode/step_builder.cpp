// Weights, scalars, shape changes and linear layers of decode-step graphs.
#include "decode/step_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace transload {

ValueId StepBuilder::weight(const std::string& name, const Recipe& recipe) {
  const ValueId stored = graph_.add_constant(name, transload::cast(recipe, options_.weights));
  if (options_.weights == options_.compute) return stored;
  // One cast per weight, also when the embedding serves both the lookup and the head.
  const auto [place, is_new] = casts_.try_emplace(stored, stored);
  if (is_new) place->second = cast(name + "_" + std::string(dtype_name(options_.compute)), stored, options_.compute);
  return place->second;
}

ValueId StepBuilder::vector(const std::string& name, const Recipe& recipe) {
  return graph_.add_constant(name, transload::cast(recipe, options_.compute));
}

ValueId StepBuilder::scalar(float value, DType dtype) {
  std::string digits = fmt::format("{}", value);
  for (char& c : digits) {
    if (c == '-') c = 'm';
    if (c == '+') c = 'p';
    if (c == '.') c = '_';
  }
  return graph_.add_constant(fmt::format("scalar_{}_{}", digits, dtype_name(dtype)),
                             transload::cast(constant(Shape{1}, {value}), dtype));
}

ValueId StepBuilder::reshape(const std::string& name, ValueId x, const Shape& target) {
  if (shape(x) == target) return x;
  return graph_.add_node(Op::reshape, name, {x}, {{"shape", std::vector<int64_t>(target.begin(), target.end())}});
}

ValueId StepBuilder::cast(const std::string& name, ValueId x, DType dtype) {
  if (graph_.value(x).dtype == dtype) return x;
  return graph_.add_node(Op::cast, name, {x}, {{"to", static_cast<int64_t>(dtype)}});
}

ValueId StepBuilder::transpose(const std::string& name, ValueId x, const std::vector<int64_t>& perm) {
  return graph_.add_node(Op::transpose, name, {x}, {{"perm", perm}});
}

ValueId StepBuilder::slice(const std::string& name, ValueId x, int64_t axis, uint64_t begin, uint64_t end) {
  return graph_.add_node(Op::slice, name, {x},
                         {{"axis", axis}, {"begin", static_cast<int64_t>(begin)}, {"end", static_cast<int64_t>(end)}});
}

ValueId StepBuilder::concat(const std::string& name, const std::vector<ValueId>& inputs, int64_t axis) {
  return graph_.add_node(Op::concat, name, inputs, {{"axis", axis}});
}

ValueId StepBuilder::linear(const std::string& name, ValueId x, const Linear& layer, const std::string& weight_name) {
  const Shape& stored = layer.weight.shape();
  const uint64_t out = stored[0];
  const uint64_t in = stored[1];
  const uint64_t q = shape(x)[0];
  const bool has_bias = !layer.bias.empty();
  const std::string bias_name = name + "_bias";

  switch (options_.linear) {
    case LinearForm::gemm: {
      std::vector<ValueId> inputs{x, weight(weight_name, layer.weight)};
      if (has_bias) inputs.push_back(vector(bias_name, layer.bias));
      return graph_.add_node(Op::gemm, name, inputs);
    }
    case LinearForm::matmul: {
      const ValueId product =
          binary(Op::matmul, has_bias ? name + "_product" : name, x, weight(weight_name, transload::transpose(layer.weight)));
      return has_bias ? binary(Op::add, name, product, vector(bias_name, layer.bias)) : product;
    }
    case LinearForm::conv1x1: {
      ValueId columns = x;
      if (q > 1) columns = transpose(name + "_columns", x, {1, 0});
      std::vector<ValueId> inputs{reshape(name + "_image", columns, {1, in, 1, q}),
                                  weight(weight_name, transload::reshape(layer.weight, {out, in, 1, 1}))};
      if (has_bias) inputs.push_back(vector(bias_name, layer.bias));
      const ValueId image = graph_.add_node(Op::conv1x1, name + "_conv", inputs);
      if (q == 1) return reshape(name, image, {1, out});
      return transpose(name, reshape(name + "_rows", image, {out, q}), {1, 0});
    }
  }
  return x;
}

ValueId StepBuilder::norm(const std::string& name, ValueId x, const Norm& norm) {
  const auto last = static_cast<int64_t>(shape(x).size()) - 1;
  const auto mean_of = [&](const std::string& mean_name, ValueId values) {
    return graph_.add_node(Op::reduce_mean, mean_name, {values}, {{"axes", std::vector<int64_t>{last}}});
  };
  ValueId wide = cast(name + "_f32", x, DType::f32);
  if (norm.kind == NormKind::layer) wide = binary(Op::sub, name + "_centered", wide, mean_of(name + "_center", wide));
  const ValueId square = binary(Op::mul, name + "_square", wide, wide);
  const ValueId mean = mean_of(name + "_mean", square);
  const ValueId shifted = binary(Op::add, name + "_mean_eps", mean, scalar(static_cast<float>(norm.epsilon), DType::f32));
  const ValueId unit = binary(Op::div, name + "_unit", wide, unary(Op::sqrt, name + "_rms", shifted));
  const ValueId gain = graph_.add_constant(name + "_weight", transload::cast(norm.weight, DType::f32));
  const bool narrows = options_.compute != DType::f32;
  const bool has_bias = !norm.bias.empty();
  ValueId out = binary(Op::mul, narrows || has_bias ? name + "_scaled" : name, unit, gain);
  if (has_bias) {
    const ValueId bias = graph_.add_constant(name + "_bias", transload::cast(norm.bias, DType::f32));
    out = binary(Op::add, narrows ? name + "_biased" : name, out, bias);
  }
  return cast(name, out, options_.compute);
}

}  // namespace transload
