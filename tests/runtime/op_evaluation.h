// Graphs of one node for tests: operands as numbers, run by the interpreter, results as numbers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/half.h"
#include "graph/one_node.h"
#include "runtime/interpreter.h"

namespace transload {

using Ints = std::vector<int64_t>;

struct Data {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<double> values;
};
inline Data f32(Shape shape, std::vector<double> values) { return {DType::f32, std::move(shape), std::move(values)}; }
inline Data f16(Shape shape, std::vector<double> values) { return {DType::f16, std::move(shape), std::move(values)}; }
inline Data bf16(Shape shape, std::vector<double> values) { return {DType::bf16, std::move(shape), std::move(values)}; }
inline Data i32(Shape shape, std::vector<double> values) { return {DType::i32, std::move(shape), std::move(values)}; }
inline Data i64(Shape shape, std::vector<double> values) { return {DType::i64, std::move(shape), std::move(values)}; }

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* const first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

inline Tensor tensor_of(const std::string& name, const Data& data) {
  Tensor tensor{name, data.dtype, data.shape, {}};
  for (const double value : data.values) {
    if (data.dtype == DType::f32) append(tensor.bytes, static_cast<float>(value));
    if (data.dtype == DType::f16) append(tensor.bytes, f32_to_f16(static_cast<float>(value)));
    if (data.dtype == DType::bf16) append(tensor.bytes, f32_to_bf16(static_cast<float>(value)));
    if (data.dtype == DType::i32) append(tensor.bytes, static_cast<int32_t>(value));
    if (data.dtype == DType::i64) append(tensor.bytes, static_cast<int64_t>(value));
  }
  return tensor;
}

template <typename T>
T read(const Tensor& tensor, size_t index) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

inline Data data_of(const Tensor& tensor) {
  Data data{tensor.dtype, tensor.shape, {}};
  const size_t count = element_count(tensor.shape);
  EXPECT_EQ(tensor.bytes.size(), tensor_bytes(tensor.dtype, tensor.shape));
  for (size_t i = 0; i < count; ++i) {
    if (data.dtype == DType::f32) data.values.push_back(read<float>(tensor, i));
    if (data.dtype == DType::f16) data.values.push_back(f16_to_f32(read<uint16_t>(tensor, i)));
    if (data.dtype == DType::bf16) data.values.push_back(bf16_to_f32(read<uint16_t>(tensor, i)));
    if (data.dtype == DType::i32) data.values.push_back(read<int32_t>(tensor, i));
    if (data.dtype == DType::i64) data.values.push_back(static_cast<double>(read<int64_t>(tensor, i)));
  }
  return data;
}

inline Recipe recipe_of(const Data& data) {
  if (data.dtype == DType::i64) return constant_i64(data.shape, {data.values.begin(), data.values.end()});
  return cast(constant(data.shape, {data.values.begin(), data.values.end()}), data.dtype);
}

// Runs a graph of one node; operands from `first_constant` on are constants (there is no constant of type i32).
inline Data evaluate(Op op, const std::vector<Data>& operands, std::vector<Attribute> attributes = {},
                     size_t first_constant = 99) {
  Graph graph;
  graph.name = "one_node";
  std::vector<ValueId> ids;
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    if (i >= first_constant && operands[i].dtype != DType::i32) {
      ids.push_back(graph.add_constant(name, recipe_of(operands[i])));
    } else {
      ids.push_back(graph.add_input(name, operands[i].dtype, operands[i].shape));
      inputs.push_back(tensor_of(name, operands[i]));
    }
  }
  graph.add_output(add_one_node(graph, op, ids, std::move(attributes)));
  WeightStore store;
  WorkerPool pool(2);
  Interpreter interpreter(graph, store, pool);
  std::vector<TensorView> views;
  for (const Tensor& input : inputs) views.push_back(input.view());
  std::vector<Tensor> outputs = interpreter.run(views);
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT_EQ(outputs[0].name, "y");
  return data_of(outputs[0]);
}

inline void expect_near(const Data& got, const Data& expected, double tolerance) {
  EXPECT_EQ(got.dtype, expected.dtype);
  EXPECT_EQ(got.shape, expected.shape);
  ASSERT_EQ(got.values.size(), expected.values.size());
  for (size_t i = 0; i < got.values.size(); ++i) {
    if (std::isnan(expected.values[i])) {
      EXPECT_TRUE(std::isnan(got.values[i])) << i;
    } else if (got.values[i] != expected.values[i]) {
      EXPECT_NEAR(got.values[i], expected.values[i], tolerance) << i;
    }
  }
}

inline Attribute axis(int64_t value) { return {"axis", value}; }
inline std::vector<Attribute> bounds(int64_t along, int64_t begin, int64_t end) {
  return {axis(along), {"begin", begin}, {"end", end}};
}
inline std::vector<Attribute> to(DType dtype) { return {{"to", static_cast<int64_t>(dtype)}}; }

}  // namespace transload
