// The interpreter: which constants stay mapped, when values can go, and the loop over the nodes.
#include "runtime/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "runtime/interpreter_ops.h"
#include "transload/error.h"
#include "weights/executor.h"
#include "weights/kernels.h"

namespace transload {
namespace {

constexpr uint64_t kConvertGrain = 65536;  // elements

template <typename Stored>
void widen_integers(const std::byte* bytes, int64_t* out, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, bytes + i * sizeof(Stored), sizeof(Stored));
    out[i] = value;
  }
}

void widen_integers(DType dtype, const std::byte* bytes, int64_t* out, uint64_t count) {
  if (dtype == DType::i32) return widen_integers<int32_t>(bytes, out, count);
  widen_integers<int64_t>(bytes, out, count);
}

// Stored values as the interpreter holds them; f32 is read in place.
ValueArray open_input(const TensorView& view, WorkerPool& pool, ValueMemory& memory) {
  const uint64_t count = element_count(view.shape);
  if (!is_floating(view.dtype)) {
    NewValue<int64_t> value = new_value<int64_t>(memory, count);
    widen_integers(view.dtype, view.bytes.data(), value.data, count);
    return value.array;
  }
  if (view.dtype == DType::f32) {
    ValueArray array;
    array.floats = reinterpret_cast<const float*>(view.bytes.data());
    return array;
  }
  const auto* const halves = reinterpret_cast<const uint16_t*>(view.bytes.data());
  NewValue<float> value = new_value<float>(memory, count);
  run_ranges(pool, count, kConvertGrain, [&](uint64_t begin, uint64_t end) {
    const auto convert = view.dtype == DType::f16 ? convert_f16_to_f32 : convert_bf16_to_f32;
    convert(halves + begin, value.data + begin, end - begin);
  });
  return value.array;
}

Tensor tensor_of(const Value& value, const ValueArray& array, WorkerPool& pool) {
  Tensor tensor{value.name, value.dtype, value.shape, {}};
  const uint64_t count = element_count(value.shape);
  if (value.dtype == DType::f32 || value.dtype == DType::i64) {
    const void* const values = value.dtype == DType::f32 ? static_cast<const void*>(array.floats) : array.integers;
    const auto* const first = static_cast<const std::byte*>(values);
    tensor.bytes.assign(first, first + tensor_bytes(value.dtype, value.shape));
    return tensor;
  }
  tensor.bytes.resize(tensor_bytes(value.dtype, value.shape));
  std::byte* const bytes = tensor.bytes.data();
  if (is_floating(value.dtype)) {
    run_ranges(pool, count, kConvertGrain, [&](uint64_t begin, uint64_t end) {
      const auto convert = value.dtype == DType::f16 ? convert_f32_to_f16 : convert_f32_to_bf16;
      convert(array.floats + begin, reinterpret_cast<uint16_t*>(bytes) + begin, end - begin);
    });
  } else {
    for (uint64_t i = 0; i < count; ++i) {
      const auto narrow = static_cast<int32_t>(array.integers[i]);
      std::memcpy(bytes + i * sizeof(narrow), &narrow, sizeof(narrow));
    }
  }
  return tensor;
}

ValueArray turned_operand(const OpCall& call) {
  ValueArray array = *call.operands[0];
  array.turned = true;
  return array;
}

void check_input(const Value& expected, const TensorView& got) {
  if (got.dtype != expected.dtype) {
    throw Error(ErrorCode::dtype_mismatch, fmt::format("type of input '{}': got {}, expected {}", got.name, dtype_name(got.dtype),
                                                       dtype_name(expected.dtype)));
  }
  if (got.shape != expected.shape) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("shape of input '{}': got {}, expected {}", got.name,
                                                       shape_text(got.shape), shape_text(expected.shape)));
  }
  const uint64_t bytes = tensor_bytes(expected.dtype, expected.shape);
  if (got.bytes.size() != bytes) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("bytes of input '{}': got {}, expected {}", got.name, got.bytes.size(), bytes));
  }
}

}  // namespace

struct Interpreter::State {
  const Graph& graph;
  WorkerPool& pool;
  ValueMemory memory;                 // before the arrays that live in it
  std::vector<ValueArray> constants;  // by value; empty for values that are not constant
  std::vector<std::unique_ptr<const WeightMatrix>> matrices;
  std::vector<std::unique_ptr<const std::vector<float>>> floats;
  std::vector<std::unique_ptr<const std::vector<int64_t>>> integers;
  std::vector<bool> folded;                     // nodes whose output is a constant
  std::vector<bool> turned;                     // nodes whose output is the operand, read with its last two axes swapped
  std::vector<std::vector<ValueId>> last_uses;  // by node: values that no later node reads

  State(const Graph& checked, WeightStore& store, WorkerPool& workers);
  std::vector<Recipe> fold_constants();
  void open_constant(ValueId id, const Recipe& recipe, bool as_matrix, bool as_values, WeightStore& store);
  void plan_turned();
  void plan_last_uses();
  void bind_inputs(std::span<const TensorView> inputs, std::vector<ValueArray>& arrays);
};

Interpreter::State::State(const Graph& checked, WeightStore& store, WorkerPool& workers) : graph(checked), pool(workers) {
  check_graph(graph);
  // Sizes are multiplied freely from here on: the widest form of every value (8 bytes) fits in 64 bits.
  for (const Value& value : graph.values()) tensor_bytes(DType::i64, value.shape);

  const size_t count = graph.values().size();
  const std::vector<Recipe> recipes = fold_constants();
  std::vector<bool> as_matrix(count);
  std::vector<bool> as_values(count);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (folded[i]) continue;
    for (size_t operand = 0; operand < node.inputs.size(); ++operand) {
      const ValueId id = node.inputs[operand];
      const bool matrix = takes_matrix(node.op, operand, graph.value(id));
      (matrix ? as_matrix : as_values)[id] = true;
    }
  }
  for (const ValueId id : graph.outputs()) as_values[id] = true;
  constants.resize(count);
  for (ValueId id = 0; id < count; ++id) {
    if (!recipes[id].empty()) open_constant(id, recipes[id], as_matrix[id], as_values[id], store);
  }
  plan_turned();
  plan_last_uses();
}

// Casts and reshapes of floating-point constants become recipes, so that a cast weight is the stored one.
std::vector<Recipe> Interpreter::State::fold_constants() {
  std::vector<Recipe> recipes;
  for (const Value& value : graph.values()) recipes.push_back(value.constant);
  folded.resize(graph.nodes().size());
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (node.op != Op::cast && node.op != Op::reshape) continue;
    const Recipe& input = recipes[node.inputs[0]];
    const Value& output = graph.value(node.output);
    if (input.empty() || !is_floating(input.dtype()) || !is_floating(output.dtype)) continue;
    recipes[node.output] = node.op == Op::cast ? cast(input, output.dtype) : reshape(input, output.shape);
    folded[i] = true;
  }
  return recipes;
}

void Interpreter::State::open_constant(ValueId id, const Recipe& recipe, bool as_matrix, bool as_values, WeightStore& store) {
  ValueArray& array = constants[id];
  try {
    if (as_matrix) {
      matrices.push_back(std::make_unique<const WeightMatrix>(store.matrix(recipe)));
      array.matrix = matrices.back().get();
    }
    if (!as_values) return;
    if (is_floating(recipe.dtype())) {
      floats.push_back(std::make_unique<const std::vector<float>>(store.values(recipe)));
      array.floats = floats.back()->data();
    } else {
      const std::vector<std::byte> bytes = materialize(recipe);
      std::vector<int64_t> values(element_count(recipe.shape()));
      widen_integers(recipe.dtype(), bytes.data(), values.data(), values.size());
      integers.push_back(std::make_unique<const std::vector<int64_t>>(std::move(values)));
      array.integers = integers.back()->data();
    }
  } catch (Error& error) {
    error.note(fmt::format("opening constant '{}'", graph.value(id).name));
    throw;
  }
}

// Keys come as [positions, head_dim] and are multiplied as their transposes: dot products of rows as they lie.
void Interpreter::State::plan_turned() {
  std::vector<bool> only_right(graph.values().size(), true);
  for (const ValueId id : graph.outputs()) only_right[id] = false;
  for (const Node& node : graph.nodes()) {
    for (size_t operand = 0; operand < node.inputs.size(); ++operand) {
      if (node.op != Op::matmul || operand != 1) only_right[node.inputs[operand]] = false;
    }
  }
  for (const Node& node : graph.nodes()) turned.push_back(only_right[node.output] && turns_matrices(graph, node));
}

void Interpreter::State::plan_last_uses() {
  constexpr size_t kNever = SIZE_MAX;
  std::vector<size_t> last(graph.values().size(), kNever);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    if (folded[i]) continue;
    for (const ValueId id : graph.nodes()[i].inputs) last[id] = i;
  }
  for (const ValueId id : graph.outputs()) last[id] = kNever;
  last_uses.resize(graph.nodes().size());
  for (ValueId id = 0; id < last.size(); ++id) {
    if (last[id] != kNever) last_uses[last[id]].push_back(id);
  }
}

void Interpreter::State::bind_inputs(std::span<const TensorView> inputs, std::vector<ValueArray>& arrays) {
  std::unordered_map<std::string_view, ValueId> missing;
  for (const ValueId id : graph.inputs()) missing.emplace(graph.value(id).name, id);
  std::vector<std::pair<ValueId, const TensorView*>> bound;
  std::vector<std::string> faults;
  for (const TensorView& view : inputs) {
    const auto found = missing.find(view.name);
    if (found == missing.end()) {
      const bool twice = std::any_of(bound.begin(), bound.end(), [&](const auto& b) { return b.second->name == view.name; });
      faults.push_back(twice ? fmt::format("input '{}': got it twice, expected it once", view.name)
                             : fmt::format("input '{}': got it, expected only inputs of graph '{}'", view.name, graph.name));
      continue;
    }
    bound.emplace_back(found->second, &view);
    missing.erase(found);
  }
  for (const ValueId id : graph.inputs()) {
    const std::string& name = graph.value(id).name;
    if (missing.contains(name)) faults.push_back(fmt::format("input '{}': got none, expected one", name));
  }
  if (!faults.empty()) throw Error(ErrorCode::usage, join_faults(faults));
  for (const auto& [id, view] : bound) check_input(graph.value(id), *view);
  for (const auto& [id, view] : bound) arrays[id] = open_input(*view, pool, memory);
}

Interpreter::Interpreter(const Graph& graph, WeightStore& store, WorkerPool& pool)
    : state_(std::make_unique<State>(graph, store, pool)) {}

Interpreter::~Interpreter() = default;

std::vector<Tensor> Interpreter::run(std::span<const TensorView> inputs, const ValueObserver& observe) {
  State& state = *state_;
  const Graph& graph = state.graph;
  state.memory.restart_peak();
  std::vector<ValueArray> arrays = state.constants;
  state.bind_inputs(inputs, arrays);

  std::vector<const ValueArray*> operands;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    if (state.folded[i]) continue;
    const Node& node = graph.nodes()[i];
    operands.clear();
    for (const ValueId id : node.inputs) operands.push_back(&arrays[id]);
    const OpCall call{graph, node, operands, state.pool, state.memory};
    arrays[node.output] = state.turned[i] ? turned_operand(call) : run_op(call);
    const Value& output = graph.value(node.output);
    if (observe && is_floating(output.dtype)) {
      const ValueArray shown = state.turned[i] ? run_op(call) : arrays[node.output];
      observe(output, {shown.floats, element_count(output.shape)});
    }
    for (const ValueId id : state.last_uses[i]) arrays[id] = {};
  }
  std::vector<Tensor> outputs;
  for (const ValueId id : graph.outputs()) {
    outputs.push_back(tensor_of(graph.value(id), arrays[id], state.pool));
    arrays[id] = {};
  }
  return outputs;
}

uint64_t Interpreter::peak_value_bytes() const { return state_->memory.peak_bytes(); }

}  // namespace transload
