// onnx_op_samples DIRECTORY: writes one small graph for each op, variant and opset, which tests/python/test_onnx_writer.py runs.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/one_node.h"
#include "sample_program.h"
#include "targets/onnx/onnx_lowering.h"
#include "targets/onnx/onnx_writer.h"

namespace transload {
namespace {

struct Operand {
  DType dtype;
  Shape shape;
};
Operand f32(Shape shape) { return {DType::f32, std::move(shape)}; }
Operand f16(Shape shape) { return {DType::f16, std::move(shape)}; }
Operand i32(Shape shape) { return {DType::i32, std::move(shape)}; }
Operand i64(Shape shape) { return {DType::i64, std::move(shape)}; }

struct Sample {
  const char* name;  // the key of the reference in the Python test
  Op op;
  std::vector<Operand> operands;  // graph inputs a, b, c
  std::vector<Attribute> attributes;
};

using Ints = std::vector<int64_t>;
Attribute axis(int64_t value) { return {"axis", value}; }
std::vector<Attribute> to(DType dtype) { return {{"to", static_cast<int64_t>(dtype)}}; }

std::vector<Sample> samples() {
  return {
      {"add", Op::add, {f32({2, 3}), f32({3})}, {}},
      {"add_i32", Op::add, {i32({2, 3}), i32({1})}, {}},
      {"sub", Op::sub, {f32({1}), f32({4, 1, 3})}, {}},
      {"mul", Op::mul, {f32({2, 1, 3}), f32({5, 1})}, {}},
      {"mul_f16", Op::mul, {f16({2, 3}), f16({2, 3})}, {}},
      {"div", Op::div, {f32({2, 3}), f32({2, 1})}, {}},
      {"max", Op::max, {f32({2, 3}), f32({2, 1})}, {}},
      {"min", Op::min, {f32({2, 3}), f32({1})}, {}},
      {"min_f16", Op::min, {f16({2, 3}), f16({2, 3})}, {}},
      {"equal", Op::equal, {i64({1, 9}), i64({4, 1})}, {}},
      {"greater", Op::greater, {f32({4, 3}), f32({3})}, {}},
      {"where", Op::where, {f32({2, 3}), f32({1}), f32({2, 1})}, {}},
      {"abs", Op::abs, {f32({2, 3})}, {}},
      {"neg", Op::neg, {f32({2, 3})}, {}},
      {"sqrt", Op::sqrt, {f32({2, 3})}, {}},
      {"sigmoid", Op::sigmoid, {f32({2, 3})}, {}},
      {"tanh", Op::tanh, {f32({2, 3})}, {}},
      {"erf", Op::erf, {f32({2, 3})}, {}},
      {"gelu_none", Op::gelu, {f32({2, 3})}, {{"approximate", "none"}}},
      {"gelu_tanh", Op::gelu, {f32({2, 3})}, {{"approximate", "tanh"}}},
      {"softmax_last", Op::softmax, {f32({1, 2, 3, 4})}, {axis(3)}},
      {"softmax_axis_1", Op::softmax, {f32({1, 2, 3})}, {axis(1)}},
      {"reduce_mean_last", Op::reduce_mean, {f32({2, 3, 4})}, {{"axes", Ints{2}}}},
      {"reduce_mean_two", Op::reduce_mean, {f32({2, 3, 4})}, {{"axes", Ints{0, 2}}}},
      {"reduce_max_last", Op::reduce_max, {f32({2, 3, 4})}, {{"axes", Ints{2}}}},
      {"reduce_max_two", Op::reduce_max, {f32({2, 3, 4})}, {{"axes", Ints{0, 2}}}},
      {"argmax", Op::argmax, {f32({2, 3, 4})}, {axis(1)}},
      {"gemm", Op::gemm, {f32({2, 3}), f32({5, 3})}, {}},
      {"gemm_bias", Op::gemm, {f32({2, 3}), f32({5, 3}), f32({5})}, {}},
      {"matmul", Op::matmul, {f32({2, 3}), f32({3, 5})}, {}},
      {"matmul_broadcast", Op::matmul, {f32({1, 4, 2, 3}), f32({1, 1, 3, 5})}, {}},
      {"conv1x1", Op::conv1x1, {f32({1, 3, 1, 7}), f32({5, 3, 1, 1})}, {}},
      {"conv1x1_bias", Op::conv1x1, {f32({1, 3, 1, 7}), f32({5, 3, 1, 1}), f32({5})}, {}},
      {"reshape", Op::reshape, {f32({2, 6})}, {{"shape", Ints{3, 1, 4}}}},
      {"transpose", Op::transpose, {f32({2, 3, 4})}, {{"perm", Ints{2, 0, 1}}}},
      {"concat", Op::concat, {f32({2, 3}), f32({2, 4}), f32({2, 1})}, {axis(1)}},
      {"slice", Op::slice, {f32({2, 6})}, {axis(1), {"begin", int64_t{2}}, {"end", int64_t{5}}}},
      {"gather", Op::gather, {f32({9, 4}), i32({1, 3})}, {}},
      {"cast_f16", Op::cast, {f32({2, 3})}, to(DType::f16)},
      {"cast_f32", Op::cast, {f16({2, 3})}, to(DType::f32)},
      {"cast_i64", Op::cast, {i32({2, 3})}, to(DType::i64)},
  };
}

Graph op_graph(const Sample& sample) {
  static const char* const kNames[] = {"a", "b", "c"};
  Graph graph;
  graph.name = sample.name;
  std::vector<ValueId> ids;
  for (const Operand& operand : sample.operands) {
    ids.push_back(graph.add_input(kNames[ids.size()], operand.dtype, operand.shape));
  }
  graph.add_output(add_one_node(graph, sample.op, ids, sample.attributes));
  check_graph(graph);
  return graph;
}

// y = gemm(x, w, bias) + ids_cast: constants of each stored type, `w` in weights.bin when external.
Graph constant_graph() {
  Graph graph;
  graph.name = "constants";
  const ValueId x = graph.add_input("x", DType::f32, {1, 3});
  const ValueId w = graph.add_constant("w", constant({2, 3}, {1, 2, 3, 4, 5, 6}));
  const ValueId bias = graph.add_constant("bias", cast(constant({2}, {0.5F, -0.25F}), DType::f16));
  const ValueId offsets = graph.add_constant("offsets", constant_i64({2}, {100, -200}));
  const ValueId bias_f32 = graph.add_node(Op::cast, "bias_f32", {bias}, to(DType::f32));
  const ValueId offsets_f32 = graph.add_node(Op::cast, "offsets_f32", {offsets}, to(DType::f32));
  const ValueId product = graph.add_node(Op::gemm, "product", {x, w, bias_f32});
  graph.add_output(graph.add_node(Op::add, "y", {product, offsets_f32}));
  check_graph(graph);
  return graph;
}

void write_samples(const std::filesystem::path& directory) {
  std::string weights(4096, '\0');  // the first page is not used, so that a wrong offset reads zeros
  const float values[] = {1, 2, 3, 4, 5, 6};
  weights.append(reinterpret_cast<const char*>(values), sizeof(values));
  write_sample(directory / "weights.bin", weights);

  for (int opset = kMinOnnxOpset; opset <= kMaxOnnxOpset; ++opset) {
    OnnxWriteOptions options;
    options.opset = opset;
    for (const Sample& sample : samples()) {
      if (sample.op == Op::gelu && opset < 20) continue;  // ONNX has no Gelu there
      write_sample(directory / fmt::format("{}.opset{}.onnx", sample.name, opset), write_onnx(op_graph(sample), options));
    }
    write_sample(directory / fmt::format("constants_inline.opset{}.onnx", opset), write_onnx(constant_graph(), options));
    options.external = [](const Value& value) -> std::optional<ExternalTensor> {
      if (value.name != "w") return std::nullopt;
      return ExternalTensor{"weights.bin", 4096, sizeof(values)};
    };
    write_sample(directory / fmt::format("constants_external.opset{}.onnx", opset), write_onnx(constant_graph(), options));
  }
}

}  // namespace
}  // namespace transload

int main(int argc, char** argv) { return transload::run_sample_program(argc, argv, "onnx_op_samples", transload::write_samples); }
