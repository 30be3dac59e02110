// interpreter_samples DIRECTORY: writes small ONNX graphs, random inputs and what the interpreter makes of them, for
// tests/python/test_interpreter.py to compare with ONNX Runtime.
#include <fmt/format.h>

#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/half.h"
#include "graph/graph.h"
#include "graph/one_node.h"
#include "runtime/interpreter.h"
#include "sample_program.h"
#include "targets/onnx/onnx_writer.h"

namespace transload {
namespace {

using Ints = std::vector<int64_t>;
constexpr DType kFloat = DType::f32;  // stands for f32 and f16, each a sample of its own

struct Operand {
  DType dtype;
  Shape shape;
  float lowest = -2;
  float highest = 2;
};
Operand in(Shape shape) { return {kFloat, std::move(shape)}; }
Operand positive(Shape shape) { return {kFloat, std::move(shape), 0.25F, 3}; }
Operand wide(Shape shape) { return {kFloat, std::move(shape), -30, 30}; }
Operand i32(Shape shape, float highest) { return {DType::i32, std::move(shape), 1, highest}; }
Operand i64(Shape shape, float highest) { return {DType::i64, std::move(shape), 1, highest}; }

struct Sample {
  std::string name;
  Op op;
  std::vector<Operand> operands;
  std::vector<Attribute> attributes;
};

Attribute axis(int64_t value) { return {"axis", value}; }
std::vector<Attribute> to(DType dtype) { return {{"to", static_cast<int64_t>(dtype)}}; }
std::vector<Attribute> axes(Ints values) { return {{"axes", std::move(values)}}; }
std::vector<Attribute> perm(Ints values) { return {{"perm", std::move(values)}}; }
std::vector<Attribute> bounds(int64_t along, int64_t begin, int64_t end) { return {axis(along), {"begin", begin}, {"end", end}}; }

// Shapes of decode steps and corners of broadcasting.
std::vector<Sample> samples() {
  return {
      {"add_same", Op::add, {in({3, 33}), in({3, 33})}, {}},
      {"add_mask", Op::add, {in({2, 4, 5, 37}), in({1, 1, 5, 37})}, {}},
      {"add_mask_one_row", Op::add, {in({1, 2, 4, 37}), in({1, 1, 1, 37})}, {}},
      {"add_both_stretch", Op::add, {in({4, 1, 3}), in({5, 1})}, {}},
      {"add_i32", Op::add, {i32({2, 3}, 9), i32({3}, 9)}, {}},
      {"sub_scalar_left", Op::sub, {in({1}), in({7, 9})}, {}},
      {"mul_gate", Op::mul, {in({1, 4, 3, 24}), in({1, 4, 3, 1})}, {}},
      {"mul_rope", Op::mul, {in({1, 4, 3, 24}), in({1, 1, 3, 24})}, {}},
      {"mul_scalar", Op::mul, {in({5, 70}), in({1})}, {}},
      {"div_column", Op::div, {in({3, 70}), positive({3, 1})}, {}},
      {"div_i64", Op::div, {i64({4}, 100), i64({4}, 9)}, {}},
      {"max_column", Op::max, {in({3, 33}), in({3, 1})}, {}},
      {"min_scalar", Op::min, {in({3, 33}), in({1})}, {}},
      {"equal_indices", Op::equal, {i64({1, 5}, 3), i64({4, 1}, 3)}, {}},
      {"greater", Op::greater, {in({4, 5}), in({4, 1})}, {}},
      {"where", Op::where, {in({4, 5}), in({1}), in({4, 5})}, {}},
      {"where_i64", Op::where, {{DType::f32, {4, 5}}, i64({5}, 9), i64({4, 1}, 9)}, {}},
      {"abs", Op::abs, {in({3, 5})}, {}},
      {"neg", Op::neg, {in({3, 5})}, {}},
      {"sqrt", Op::sqrt, {positive({3, 50})}, {}},
      {"sigmoid", Op::sigmoid, {wide({3, 50})}, {}},
      {"tanh", Op::tanh, {wide({3, 50})}, {}},
      {"erf", Op::erf, {in({3, 50})}, {}},
      {"gelu_none", Op::gelu, {in({3, 50})}, {{"approximate", "none"}}},
      {"gelu_tanh", Op::gelu, {in({3, 50})}, {{"approximate", "tanh"}}},
      {"softmax_last", Op::softmax, {wide({2, 3, 4, 33})}, {axis(3)}},
      {"softmax_first", Op::softmax, {wide({5, 7})}, {axis(0)}},
      {"softmax_middle", Op::softmax, {wide({2, 9, 4})}, {axis(1)}},
      {"reduce_mean_last", Op::reduce_mean, {in({3, 70})}, axes({1})},
      {"reduce_mean_first", Op::reduce_mean, {in({6, 7})}, axes({0})},
      {"reduce_mean_two", Op::reduce_mean, {in({4, 5, 6})}, axes({0, 2})},
      {"reduce_mean_inner", Op::reduce_mean, {in({4, 5, 6})}, axes({1, 2})},
      {"reduce_max_last", Op::reduce_max, {in({3, 70})}, axes({1})},
      {"reduce_max_two", Op::reduce_max, {in({4, 5, 6})}, axes({0, 2})},
      {"argmax_last", Op::argmax, {in({3, 70})}, {axis(1)}},
      {"argmax_middle", Op::argmax, {in({4, 5, 6})}, {axis(1)}},
      {"gemm_row", Op::gemm, {in({1, 64}), in({50, 64})}, {}},
      {"gemm_rows_bias", Op::gemm, {in({5, 31}), in({50, 31}), in({50})}, {}},
      {"matmul", Op::matmul, {in({5, 31}), in({31, 50})}, {}},
      {"matmul_scores", Op::matmul, {in({1, 2, 4, 24}), in({1, 2, 24, 37})}, {}},
      {"matmul_context", Op::matmul, {in({1, 2, 20, 37}), in({1, 2, 37, 24})}, {}},
      {"matmul_one_right", Op::matmul, {in({2, 3, 4, 8}), in({8, 5})}, {}},
      {"matmul_both_stretch", Op::matmul, {in({2, 1, 4, 8}), in({1, 3, 8, 5})}, {}},
      {"conv1x1", Op::conv1x1, {in({1, 31, 1, 7}), in({50, 31, 1, 1})}, {}},
      {"conv1x1_one_column", Op::conv1x1, {in({1, 64, 1, 1}), in({50, 64, 1, 1}), in({50})}, {}},
      {"conv1x1_bias", Op::conv1x1, {in({1, 31, 1, 7}), in({50, 31, 1, 1}), in({50})}, {}},
      {"reshape", Op::reshape, {in({2, 6})}, {{"shape", Ints{3, 1, 4}}}},
      {"transpose_keys", Op::transpose, {in({1, 2, 37, 24})}, perm({0, 1, 3, 2})},
      {"transpose_heads", Op::transpose, {in({1, 5, 4, 24})}, perm({0, 2, 1, 3})},
      {"transpose_reversed", Op::transpose, {in({2, 3, 4, 5})}, perm({3, 2, 1, 0})},
      {"transpose_turned", Op::transpose, {in({2, 3, 4})}, perm({2, 0, 1})},
      {"transpose_i64", Op::transpose, {i64({3, 4}, 99)}, perm({1, 0})},
      {"concat_cache", Op::concat, {in({1, 2, 31, 24}), in({1, 2, 5, 24})}, {axis(2)}},
      {"concat_last", Op::concat, {in({2, 3}), in({2, 4}), in({2, 1})}, {axis(1)}},
      {"slice_last", Op::slice, {in({1, 2, 3, 24})}, bounds(3, 12, 24)},
      {"slice_middle", Op::slice, {in({1, 2, 33, 24})}, bounds(2, 1, 33)},
      {"gather", Op::gather, {in({9, 40}), i32({1, 3}, 8)}, {}},
      {"gather_i64", Op::gather, {in({9, 3, 2}), i64({5}, 8)}, {}},
      {"cast_to_f16", Op::cast, {wide({3, 50})}, to(DType::f16)},
      {"cast_to_f32", Op::cast, {wide({3, 50})}, to(DType::f32)},
      {"cast_to_i32", Op::cast, {wide({3, 50})}, to(DType::i32)},
      {"cast_i64_to_f32", Op::cast, {i64({6}, 100)}, to(DType::f32)},
  };
}

std::vector<float> random_values(const Operand& operand, std::mt19937& random) {
  std::uniform_real_distribution<float> distribution(operand.lowest, operand.highest);
  std::vector<float> values(element_count(operand.shape));
  for (float& value : values) value = distribution(random);
  return values;
}

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* const first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

Tensor tensor_of(const std::string& name, DType dtype, const Shape& shape, const std::vector<float>& values) {
  Tensor tensor{name, dtype, shape, {}};
  for (const float value : values) {
    if (dtype == DType::f32) append(tensor.bytes, value);
    if (dtype == DType::f16) append(tensor.bytes, f32_to_f16(value));
    if (dtype == DType::i32) append(tensor.bytes, static_cast<int32_t>(value));
    if (dtype == DType::i64) append(tensor.bytes, static_cast<int64_t>(value));
  }
  return tensor;
}

Recipe recipe_of(DType dtype, const Shape& shape, const std::vector<float>& values) {
  if (dtype == DType::i64) return constant_i64(shape, {values.begin(), values.end()});
  return cast(constant(shape, values), dtype);
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Where the operands after the first come from.
enum class Weights : uint8_t { inputs, constants, cast_constants };

class SampleWriter {
 public:
  explicit SampleWriter(std::filesystem::path directory) : directory_(std::move(directory)) {}

  void write(const Sample& sample, DType dtype, Weights weights, const std::string& name) {
    Graph graph;
    graph.name = name;
    std::vector<Tensor> inputs;
    std::vector<ValueId> ids;
    for (size_t i = 0; i < sample.operands.size(); ++i) {
      const Operand& operand = sample.operands[i];
      const DType type = operand.dtype == kFloat ? dtype : operand.dtype;
      const std::string operand_name(1, static_cast<char>('a' + i));
      const std::vector<float> values = random_values(operand, random_);
      if (i == 0 || weights == Weights::inputs || type == DType::i32) {
        ids.push_back(graph.add_input(operand_name, type, operand.shape));
        inputs.push_back(tensor_of(operand_name, type, operand.shape, values));
      } else if (weights == Weights::cast_constants && type == DType::f32) {
        const ValueId stored = graph.add_constant(operand_name, recipe_of(DType::f16, operand.shape, values));
        ids.push_back(graph.add_node(Op::cast, operand_name + "_f32", {stored}, to(DType::f32)));
      } else {
        ids.push_back(graph.add_constant(operand_name, recipe_of(type, operand.shape, values)));
      }
    }
    graph.add_output(add_one_node(graph, sample.op, ids, sample.attributes));

    OnnxWriteOptions options;
    options.opset = 20;
    write_sample(directory_ / (name + ".onnx"), write_onnx(graph, options));
    std::vector<TensorView> views;
    for (const Tensor& input : inputs) {
      views.push_back(input.view());
      write_sample(directory_ / fmt::format("{}.{}.bin", name, input.name), text_of(input.bytes));
    }
    WeightStore store;
    const std::vector<Tensor> outputs = Interpreter(graph, store, pool_).run(views);
    write_sample(directory_ / (name + ".y.bin"), text_of(outputs[0].bytes));
  }

 private:
  std::filesystem::path directory_;
  std::mt19937 random_{20};
  WorkerPool pool_{2};
};

void write_samples(const std::filesystem::path& directory) {
  SampleWriter writer(directory);
  for (const Sample& sample : samples()) {
    const bool is_float = sample.operands[0].dtype == kFloat;
    for (const DType dtype : {DType::f32, DType::f16}) {
      if (dtype == DType::f16 && !is_float) continue;
      const std::string name = is_float ? fmt::format("{}_{}", sample.name, dtype_name(dtype)) : sample.name;
      writer.write(sample, dtype, Weights::inputs, name);
      if (sample.operands.size() == 1) continue;
      writer.write(sample, dtype, Weights::constants, name + "_constant");
      if (is_float && dtype == DType::f32) writer.write(sample, dtype, Weights::cast_constants, name + "_cast_constant");
    }
  }
}

}  // namespace
}  // namespace transload

int main(int argc, char** argv) {
  return transload::run_sample_program(argc, argv, "interpreter_samples", transload::write_samples);
}
