// What the ONNX reader refuses, and that it says which node, value or tensor, and where.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "error_matchers.h"
#include "io/scratch_folder.h"
#include "targets/onnx/onnx_reader.h"
#include "targets/onnx_bytes.h"

namespace transload {
namespace {

using testing::HasSubstr;
namespace spell = onnx_bytes;
using spell::Ints;
using spell::read_bytes;
using spell::unary_model;

struct Refusal {
  const char* name;
  std::string file;
  ErrorCode code;
  const char* text;
};

spell::Model changed(spell::Model model, const std::function<void(spell::Model&)>& change) {
  change(model);
  return model;
}

spell::Model neg() { return unary_model(spell::node("Neg", {"x"}, "y")); }

spell::Model with_tensor(const std::string& tensor) { return unary_model(spell::node("Add", {"x", "w"}, "y"), {tensor}); }

spell::Model gemm(const std::vector<std::string>& attributes) {
  spell::Model model = unary_model(spell::node("Gemm", {"x", "w"}, "y", attributes));
  model.inputs = {spell::value_info("x", spell::kFloat, {2, 2}), spell::value_info("w", spell::kFloat, {2, 2})};
  return model;
}

spell::Model conv(const std::string& attribute) {
  spell::Model model = unary_model(spell::node("Conv", {"x", "w"}, "y", {attribute}));
  model.inputs = {spell::value_info("x", spell::kFloat, {1, 2, 1, 3}), spell::value_info("w", spell::kFloat, {2, 2, 1, 1})};
  return model;
}

std::vector<Refusal> refused_operators() {
  const ErrorCode unsupported = ErrorCode::op_unsupported;
  const auto attribute = [](const char* name, auto value) { return spell::attribute(name, value); };
  const std::string trans_b = attribute("transB", int64_t{1});
  const auto gather = unary_model(spell::node("Gather", {"x", "ids"}, "y", {attribute("axis", int64_t{-1})}));
  const auto reshape = [](const Ints& shape) {
    return unary_model(spell::node("Reshape", {"x", "shape"}, "y"), {spell::integers("shape", shape)}).file();
  };
  const auto slice = [](const Ints& starts, const Ints& steps) {
    return unary_model(spell::node("Slice", {"x", "starts", "ends", "starts", "steps"}, "y"),
                       {spell::integers("starts", starts), spell::integers("ends", Ints(starts.size(), 2)),
                        spell::integers("steps", steps)})
        .file();
  };
  const auto constant_node = [](const std::string& value) {
    return unary_model(spell::node("Constant", {}, "y", {value})).file();
  };
  return {
      {"unknown_operator", unary_model(spell::node("Relu", {"x"}, "y") + spell::bytes(3, "relu_1")).file(), unsupported,
       "g.onnx@9: operator of Relu 'relu_1': got Relu, expected one of Add, Sub,"},
      {"hostile_operator", unary_model(spell::node("Re\nlu", {"x"}, "y")).file(), unsupported, "operator of Re\\x0alu 'y'"},
      {"domain", unary_model(spell::node("Neg", {"x"}, "y") + spell::bytes(7, "com.microsoft")).file(), unsupported,
       "domain of Neg 'y': got 'com.microsoft'"},
      {"overload", unary_model(spell::node("Neg", {"x"}, "y") + spell::bytes(8, "o")).file(), unsupported,
       "field of NodeProto: got number 8"},
      {"two_outputs", unary_model(spell::node("Neg", {"x"}, "y") + spell::bytes(2, "z")).file(), unsupported,
       "outputs of Neg 'y': got 2, expected 1"},
      {"too_many_operands", unary_model(spell::node("Neg", {"x", "x"}, "y")).file(), unsupported,
       "operands of Neg 'y': got 2, expected at most 1"},
      {"too_few_operands", unary_model(spell::node("Add", {"x"}, "y")).file(), ErrorCode::bad_header,
       "operands of Add 'y': got 1, expected at least 2"},
      {"absent_operand", unary_model(spell::node("Add", {"", "x"}, "y")).file(), ErrorCode::bad_header,
       "operand of Add 'y': got none"},
      {"no_operands", unary_model(spell::node("Softmax", {}, "y")).file(), ErrorCode::bad_header,
       "operands of Softmax 'y': got 0, expected at least 1"},
      {"gelu_before_opset_20", unary_model(spell::node("Gelu", {"x"}, "y")).file(), unsupported,
       "opset of Gelu 'y': got 18, expected at least 20"},
      {"unknown_attribute", unary_model(spell::node("Neg", {"x"}, "y", {attribute("fast", int64_t{1})})).file(), unsupported,
       "attribute of Neg 'y': got 'fast'"},
      {"attribute_of_another_type", unary_model(spell::node("Softmax", {"x"}, "y", {attribute("axis", Ints{1})})).file(),
       ErrorCode::bad_header, "type of attribute 'axis' of Softmax 'y': got 7, expected 2"},
      {"attribute_twice",
       unary_model(spell::node("Softmax", {"x"}, "y", {attribute("axis", int64_t{1}), attribute("axis", int64_t{0})})).file(),
       ErrorCode::bad_header, "attribute of Softmax 'y': got 'axis' twice"},
      {"attribute_without_a_type", unary_model(spell::node("Softmax", {"x"}, "y", {spell::bytes(1, "axis")})).file(), unsupported,
       "type of an attribute: got 0"},
      {"attribute_with_two_values",
       unary_model(spell::node("Softmax", {"x"}, "y", {attribute("axis", int64_t{1}) + spell::number(8, 1)})).file(),
       ErrorCode::bad_header, "value of an attribute of type 2: got field 8, expected field 3"},
      {"axis_outside", unary_model(spell::node("Softmax", {"x"}, "y", {attribute("axis", int64_t{3})})).file(),
       ErrorCode::bad_header, "axis of Softmax 'y': got 3, expected -3 to 2"},
      {"concat_without_axis", unary_model(spell::node("Concat", {"x", "x"}, "y")).file(), unsupported,
       "attribute 'axis' of Concat 'y': got none"},
      {"gather_axis",
       changed(gather, [](spell::Model& m) { m.inputs.push_back(spell::value_info("ids", spell::kInt64, {1})); }).file(),
       unsupported, "attribute 'axis' of Gather 'y': got 2, expected 0"},
      {"gemm_without_trans_b", gemm({}).file(), unsupported, "attribute 'transB' of Gemm 'y': got 0, expected 1"},
      {"gemm_trans_a", gemm({trans_b, attribute("transA", int64_t{1})}).file(), unsupported,
       "attribute 'transA' of Gemm 'y': got 1, expected 0"},
      {"gemm_alpha", gemm({trans_b, spell::attribute_float("alpha", 0.5F)}).file(), unsupported,
       "attribute 'alpha' of Gemm 'y': got 0.5, expected 1"},
      {"gemm_beta", gemm({trans_b, spell::attribute_float("beta", 0.0F)}).file(), unsupported,
       "attribute 'beta' of Gemm 'y': got 0, expected 1"},
      {"conv_auto_pad", conv(attribute("auto_pad", "SAME_UPPER")).file(), unsupported,
       "attribute 'auto_pad' of Conv 'y': got SAME_UPPER, expected NOTSET"},
      {"conv_dilations", conv(attribute("dilations", Ints{2, 1})).file(), unsupported,
       "attribute 'dilations' of Conv 'y': got [2, 1], expected [1, 1]"},
      {"conv_group", conv(attribute("group", int64_t{2})).file(), unsupported, "attribute 'group' of Conv 'y': got 2"},
      {"conv_kernel", conv(attribute("kernel_shape", Ints{3, 3})).file(), unsupported, "attribute 'kernel_shape' of Conv 'y'"},
      {"conv_pads", conv(attribute("pads", Ints{0, 1, 0, 1})).file(), unsupported, "attribute 'pads' of Conv 'y'"},
      {"conv_strides", conv(attribute("strides", Ints{1, 2})).file(), unsupported, "attribute 'strides' of Conv 'y'"},
      {"cast_to_bf16", unary_model(spell::node("Cast", {"x"}, "y", {attribute("to", int64_t{16})})).file(), unsupported,
       "attribute 'to' of Cast 'y': got 16"},
      {"cast_to_boolean", unary_model(spell::node("Cast", {"x"}, "y", {attribute("to", int64_t{9})})).file(), unsupported,
       "attribute 'to' of Cast 'y': got 9, expected the number of f32, f16, i32 or i64"},
      {"max_of_three", unary_model(spell::node("Max", {"x", "x", "x"}, "y")).file(), unsupported,
       "operands of Max 'y': got 3, expected at most 2"},
      {"min_of_one", unary_model(spell::node("Min", {"x"}, "y")).file(), unsupported, "operands of Min 'y': got 1, expected 2"},
      {"max_of_none", unary_model(spell::node("Max", {}, "y")).file(), ErrorCode::bad_header,
       "operands of Max 'y': got 0, expected at least 2"},
      {"reduce_max_of_everything", unary_model(spell::node("ReduceMax", {"x"}, "y")).file(), unsupported,
       "axes of ReduceMax 'y': got none"},
      {"argmax_keepdims", unary_model(spell::node("ArgMax", {"x"}, "y", {attribute("keepdims", int64_t{0})})).file(), unsupported,
       "attribute 'keepdims' of ArgMax 'y': got 0, expected 1"},
      {"argmax_last_of_equals",
       unary_model(spell::node("ArgMax", {"x"}, "y", {attribute("select_last_index", int64_t{1})})).file(), unsupported,
       "attribute 'select_last_index' of ArgMax 'y': got 1, expected 0"},
      {"where_on_numbers", unary_model(spell::node("Where", {"x", "x", "x"}, "y")).file(), ErrorCode::bad_header,
       "type of 'x': got f32, expected boolean"},
      {"boolean_arithmetic",
       changed(unary_model(spell::node("Greater", {"x", "x"}, "b")),
               [](spell::Model& m) {
                 m.nodes.push_back(spell::node("Add", {"b", "b"}, "y"));
               })
           .file(),
       ErrorCode::bad_header, "operand type: got boolean, expected f32, f16, bf16, i32 or i64"},
      {"boolean_output", unary_model(spell::node("Equal", {"x", "x"}, "y")).file(), ErrorCode::bad_header,
       "type of graph output 'y': got boolean, expected numbers"},
      {"cast_saturate",
       unary_model(spell::node("Cast", {"x"}, "y", {attribute("to", int64_t{1}), attribute("saturate", int64_t{0})})).file(),
       unsupported, "attribute 'saturate' of Cast 'y': got 0"},
      {"gelu_of_another_form",
       changed(unary_model(spell::node("Gelu", {"x"}, "y", {attribute("approximate", "sigmoid")})),
               [](spell::Model& m) { m.opset = 20; })
           .file(),
       ErrorCode::bad_header, "'sigmoid'"},
      {"reduce_mean_keepdims",
       unary_model(spell::node("ReduceMean", {"x", "a"}, "y", {attribute("keepdims", int64_t{0})}), {spell::integers("a", {1})})
           .file(),
       unsupported, "attribute 'keepdims' of ReduceMean 'y': got 0, expected 1"},
      {"reduce_mean_of_everything", unary_model(spell::node("ReduceMean", {"x"}, "y")).file(), unsupported,
       "axes of ReduceMean 'y': got none"},
      {"reduce_mean_old_axes", unary_model(spell::node("ReduceMean", {"x"}, "y", {attribute("axes", Ints{1})})).file(),
       unsupported, "axes of ReduceMean 'y': got none"},
      {"reduce_mean_axis_twice", unary_model(spell::node("ReduceMean", {"x", "a"}, "y"), {spell::integers("a", {1, -2})}).file(),
       ErrorCode::bad_header, "ascending axes"},
      {"reshape_allowzero",
       unary_model(spell::node("Reshape", {"x", "s"}, "y", {attribute("allowzero", int64_t{1})}), {spell::integers("s", {24})})
           .file(),
       unsupported, "attribute 'allowzero' of Reshape 'y': got 1"},
      {"reshape_two_open", reshape({-1, -1}), ErrorCode::bad_header, "shape of Reshape 'y': got [-1, -1]"},
      {"reshape_does_not_divide", reshape({5, -1}), ErrorCode::bad_header, "got [5, -1], expected one of 24 elements"},
      {"reshape_zero_beyond", reshape({2, 3, 4, 0}), ErrorCode::bad_header, "shape of Reshape 'y': got [2, 3, 4, 0]"},
      {"reshape_overflow", reshape({INT64_MAX, 4, -1}), ErrorCode::size_overflow, "elements of a shape"},
      {"reshape_rank_5", reshape({1, 1, 2, 3, 4}), ErrorCode::shape_mismatch, "rank of 'y': got 5, expected 1 to 4"},
      {"reshape_to_a_computed_shape",
       changed(unary_model(spell::node("Reshape", {"x", "s"}, "y")),
               [](spell::Model& m) { m.inputs.push_back(spell::value_info("s", spell::kInt64, {2})); })
           .file(),
       unsupported, "operand 1 of Reshape 'y': got 's', which is computed"},
      {"reshape_without_shape", unary_model(spell::node("Reshape", {"x"}, "y")).file(), unsupported,
       "shape of Reshape 'y': got none"},
      {"reshape_to_floats",
       unary_model(spell::node("Reshape", {"x", "s"}, "y"),
                   {spell::tensor("s", spell::kFloat, {1}, spell::bytes(9, spell::raw(std::vector<float>{24})))})
           .file(),
       ErrorCode::shape_mismatch, "tensor 's': integer operand: got f32[1]"},
      {"slice_two_axes", slice({0, 1}, {1, 1}), unsupported, "starts of Slice 'y': got 2 values, expected 1"},
      {"slice_step", slice({1}, {2}), unsupported, "steps of Slice 'y': got 2, expected 1"},
      {"slice_empty", slice({2}, {1}), ErrorCode::bad_header, "slice bounds: got 2:2"},
      {"constant_of_a_list", constant_node(attribute("value_ints", Ints{1})), unsupported,
       "Constant 'y': got attribute 'value_ints', expected one tensor as its attribute 'value'"},
      {"constant_as_output",
       constant_node(spell::attribute_tensor(
           "value", spell::tensor("", spell::kFloat, {1}, spell::bytes(9, spell::raw(std::vector<float>{1}))))),
       ErrorCode::bad_header, "graph output: got 'y', expected the output of a node"},
  };
}

std::vector<Refusal> refused_names_and_types() {
  const auto model = [](const std::function<void(spell::Model&)>& change) { return changed(neg(), change).file(); };
  const auto without_dimension =
      spell::bytes(1, "x") +
      spell::bytes(2, spell::bytes(1, spell::number(1, 1) + spell::bytes(2, spell::bytes(1, spell::bytes(2, "N")))));
  return {
      {"value_name", model([](auto& m) { m.nodes = {spell::node("Neg", {"x"}, "a/b")}; }), ErrorCode::bad_header,
       "name of a value: got 'a/b'"},
      {"empty_name", model([](auto& m) { m.nodes = {spell::node("Neg", {"x"}, "")}; }), ErrorCode::bad_header,
       "name of a value: got ''"},
      {"tensor_name", model([](auto& m) { m.initializers = {spell::integers("w\n", {1})}; }), ErrorCode::bad_header,
       "name of a value: got 'w\\x0a'"},
      {"graph_name", model([](auto& m) { m.graph_name = "main graph"; }), ErrorCode::bad_header,
       "name of the graph: got 'main graph'"},
      {"tensor_twice", model([](auto& m) {
         m.initializers = {spell::integers("w", {1}), spell::integers("w", {1})};
       }),
       ErrorCode::duplicate_name, "got 'w' twice"},
      {"input_and_tensor", model([](auto& m) { m.initializers = {spell::integers("x", {1})}; }), ErrorCode::duplicate_name,
       "got 'x' twice"},
      {"output_twice", model([](auto& m) { m.nodes.push_back(m.nodes[0]); }), ErrorCode::duplicate_name, "got 'y' twice"},
      {"graph_output_twice", model([](auto& m) { m.outputs.push_back(m.outputs[0]); }), ErrorCode::bad_header,
       "graph output: got 'y' twice"},
      {"declared_twice", model([](auto& m) {
         m.value_info = {spell::value_info("y", 1, {2, 3, 4}), spell::value_info("y", 1, {2, 3, 4})};
       }),
       ErrorCode::duplicate_name, "declared type: got 'y' twice"},
      {"not_topological", model([](auto& m) {
         m.nodes = {spell::node("Neg", {"h"}, "y"), spell::node("Neg", {"x"}, "h")};
       }),
       ErrorCode::bad_header, "operand of Neg 'y': got 'h', which a later node makes"},
      {"cycle", model([](auto& m) { m.nodes = {spell::node("Neg", {"y"}, "y")}; }), ErrorCode::bad_header,
       "got 'y', which a later node makes"},
      {"unknown_operand", model([](auto& m) { m.nodes = {spell::node("Neg", {"gone"}, "y")}; }), ErrorCode::bad_header,
       "got 'gone', which nothing makes"},
      {"unknown_output", model([](auto& m) { m.outputs = {spell::bytes(1, "gone")}; }), ErrorCode::bad_header,
       "output of the graph: got 'gone'"},
      {"unused_input", model([](auto& m) { m.inputs.push_back(spell::value_info("z", 1, {1})); }), ErrorCode::bad_header,
       "uses of 'z': got 0"},
      {"unused_node", model([](auto& m) { m.nodes.push_back(spell::node("Neg", {"x"}, "z")); }), ErrorCode::bad_header,
       "uses of 'z': got 0"},
      {"no_output", model([](auto& m) { m.outputs.clear(); }), ErrorCode::bad_header, "graph outputs: got none"},
      {"open_dimension", model([&](auto& m) { m.inputs = {without_dimension}; }), ErrorCode::shape_mismatch,
       "dimension 0 of 'x': got none, expected a number"},
      {"zero_dimension", model([](auto& m) {
         m.inputs = {spell::value_info("x", 1, {2, 0})};
       }),
       ErrorCode::shape_mismatch, "shape of 'x': got [2,0]"},
      {"negative_dimension", model([](auto& m) { m.inputs = {spell::value_info("x", 1, {-2})}; }), ErrorCode::bad_header,
       "dim_value: got -2"},
      {"scalar_input", model([](auto& m) { m.inputs = {spell::value_info("x", 1, {})}; }), ErrorCode::shape_mismatch,
       "rank of 'x': got 0, expected 1 to 4"},
      {"huge_input", model([](auto& m) {
         m.inputs = {spell::value_info("x", 1, {INT64_MAX, 2})};
       }),
       ErrorCode::size_overflow, "got"},
      {"input_without_type", model([](auto& m) { m.inputs = {spell::bytes(1, "x")}; }), ErrorCode::shape_mismatch,
       "type of input 'x': got none"},
      {"input_type", model([](auto& m) { m.inputs = {spell::value_info("x", 16, {2})}; }), ErrorCode::dtype_unsupported,
       "elem_type of 'x': got 16"},
      {"boolean_input", model([](auto& m) { m.inputs = {spell::value_info("x", 9, {2})}; }), ErrorCode::dtype_unsupported,
       "type of input 'x': got boolean, expected f32, f16, i32 or i64"},
      {"sequence_type", model([](auto& m) { m.inputs = {spell::bytes(1, "x") + spell::bytes(2, spell::bytes(4, ""))}; }),
       ErrorCode::op_unsupported, "field of TypeProto: got number 4"},
      {"declared_output_shape", model([](auto& m) {
         m.outputs = {spell::value_info("y", 1, {2, 3, 5})};
       }),
       ErrorCode::shape_mismatch, "declared type of 'y': got f32[2,3,5], expected f32[2,3,4] as inferred"},
      {"declared_output_type", model([](auto& m) {
         m.outputs = {spell::value_info("y", 10, {2, 3, 4})};
       }),
       ErrorCode::dtype_mismatch, "declared type of 'y': got f16[2,3,4]"},
      {"declared_value_shape", model([](auto& m) {
         m.nodes = {spell::node("Neg", {"x"}, "h"), spell::node("Neg", {"h"}, "y")};
         m.value_info = {spell::value_info("h", 1, {24})};
       }),
       ErrorCode::shape_mismatch, "declared type of 'h': got f32[24], expected f32[2,3,4] as inferred"},
      {"operand_types", model([](auto& m) {
         m.nodes = {spell::node("Add", {"x", "z"}, "y")};
         m.inputs.push_back(spell::value_info("z", 10, {2, 3, 4}));
       }),
       ErrorCode::bad_header, "add 'y' of ('x' f32[2,3,4], 'z' f16[2,3,4]): operand types differ"},
  };
}

std::vector<Refusal> refused_tensors() {
  const auto tensor = [](int data_type, const Ints& dims, const std::string& values) {
    return with_tensor(spell::tensor("w", data_type, dims, values)).file();
  };
  const auto floats = [&](const Ints& dims, size_t count) {
    return tensor(spell::kFloat, dims, spell::bytes(9, std::string(count * 4, '\0')));
  };
  const auto external = [&](const std::vector<std::pair<std::string, std::string>>& entries) {
    return tensor(spell::kFloat, {4}, spell::external(entries));
  };
  const std::string four = spell::bytes(9, std::string(16, '\0'));
  return {
      {"too_few_bytes", floats({4}, 3), ErrorCode::shape_mismatch, "tensor 'w': bytes of values of f32[4]: got 12, expected 16"},
      {"no_values", tensor(spell::kFloat, {4}, ""), ErrorCode::shape_mismatch, "got 0, expected 16"},
      {"too_many_values", tensor(spell::kFloat, {4}, spell::bytes(4, std::string(20, '\0'))), ErrorCode::shape_mismatch,
       "got 20, expected 16"},
      {"values_of_another_type", tensor(spell::kFloat, {4}, spell::bytes(7, spell::packed({1, 2, 3, 4}))), ErrorCode::bad_header,
       "values of type f32: got several forms or a list of another type"},
      {"values_in_two_forms", tensor(spell::kFloat, {4}, four + spell::bytes(4, std::string(16, '\0'))), ErrorCode::bad_header,
       "values of type f32: got several forms"},
      {"half_outside", tensor(spell::kFloat16, {2}, spell::bytes(5, spell::packed({0, 65536}))), ErrorCode::bad_header,
       "value in int32_data: got 65536, expected 0 to 65535"},
      {"torn_float", tensor(spell::kFloat, {4}, spell::bytes(4, std::string(15, '\0'))), ErrorCode::bad_header,
       "TensorProto: got"},
      {"scalar", floats({}, 1), ErrorCode::shape_mismatch, "tensor 'w': rank: got 0, expected 1 to 4"},
      {"rank_5", floats({1, 1, 1, 1, 1}, 1), ErrorCode::shape_mismatch, "rank: got 5"},
      {"zero_dimension", floats({0}, 0), ErrorCode::shape_mismatch, "dimension: got 0, expected a positive number"},
      {"negative_dimension", floats({-4}, 4), ErrorCode::shape_mismatch, "dimension: got -4"},
      {"overflow", floats({INT64_MAX, INT64_MAX}, 1), ErrorCode::size_overflow, "tensor 'w'"},
      {"bf16", tensor(16, {4}, spell::bytes(9, std::string(8, '\0'))), ErrorCode::dtype_unsupported,
       "tensor 'w': data_type: got 16"},
      {"boolean", tensor(9, {4}, spell::bytes(9, std::string(4, '\1'))), ErrorCode::dtype_unsupported,
       "tensor 'w': data_type: got 9"},
      {"i32_inside", tensor(spell::kInt32, {4}, four), ErrorCode::dtype_unsupported, "type of values inside the graph: got i32"},
      {"segment", tensor(spell::kFloat, {4}, four + spell::bytes(3, "")), ErrorCode::op_unsupported,
       "field of TensorProto: got number 3"},
      {"location_code", tensor(spell::kFloat, {4}, four + spell::number(14, 2)), ErrorCode::bad_header,
       "data_location: got 2, expected 0 or 1"},
      {"no_location", external({}), ErrorCode::bad_header, "location of external data: got ''"},
      {"location_up", external({{"location", ".."}}), ErrorCode::bad_header, "location of external data: got '..'"},
      {"location_elsewhere", external({{"location", "../w.bin"}}), ErrorCode::bad_header, "got '../w.bin'"},
      {"location_absolute", external({{"location", "/etc/passwd"}}), ErrorCode::bad_header, "got '/etc/passwd'"},
      {"location_with_zero", external({{"location", std::string("w.bin\0x", 7)}}), ErrorCode::bad_header, "got 'w.bin\\x00x'"},
      {"location_missing", external({{"location", "gone.bin"}}), ErrorCode::file_missing, "gone.bin: tensor 'w': no such file"},
      {"offset_text", external({{"location", "w.bin"}, {"offset", "4k"}}), ErrorCode::bad_header,
       "offset of external data: got '4k', expected a decimal number"},
      {"offset_negative", external({{"location", "w.bin"}, {"offset", "-4"}}), ErrorCode::bad_header, "got '-4'"},
      {"offset_empty", external({{"location", "w.bin"}, {"offset", ""}}), ErrorCode::bad_header, "got ''"},
      {"offset_overflow", external({{"location", "w.bin"}, {"offset", "18446744073709551615"}}), ErrorCode::size_overflow,
       "end of external data"},
      {"offset_past_64_bits", external({{"location", "w.bin"}, {"offset", "18446744073709551616"}}), ErrorCode::bad_header,
       "got '18446744073709551616'"},
      {"past_the_end", external({{"location", "w.bin"}, {"offset", "52"}}), ErrorCode::bad_offset,
       "w.bin@52: tensor 'w': data ends past the end of the file: got end 68, expected at most 64"},
      {"length", external({{"location", "w.bin"}, {"length", "15"}}), ErrorCode::shape_mismatch,
       "length of external data of f32[4]: got 15 bytes, expected 16"},
      {"entry_twice", external({{"location", "w.bin"}, {"location", "w.bin"}}), ErrorCode::bad_header,
       "location of external data: got it twice"},
      {"entry_key", external({{"location", "w.bin"}, {"checksum", "0"}}), ErrorCode::bad_header,
       "key of external data: got 'checksum'"},
      {"external_and_inside", tensor(spell::kFloat, {4}, four + spell::external({{"location", "w.bin"}})), ErrorCode::bad_header,
       "values of an external tensor: got some inside"},
      {"entries_of_an_inside_tensor", tensor(spell::kFloat, {4}, four + spell::bytes(13, spell::bytes(1, "location"))),
       ErrorCode::bad_header, "got several forms"},
  };
}

std::vector<Refusal> refused_messages() {
  const auto model = [](const std::function<void(spell::Model&)>& change) { return changed(neg(), change).file(); };
  const std::string good = neg().file();
  return {
      {"empty", "", ErrorCode::bad_header, "ir_version: got 0"},
      {"text", "{\"format\": 1}", ErrorCode::bad_header, "g.onnx@0: ModelProto: got"},
      {"ir_version_old", model([](auto& m) { m.ir_version = 3; }), ErrorCode::bad_header, "ir_version: got 3, expected 4 to 14"},
      {"ir_version_new", model([](auto& m) { m.ir_version = 15; }), ErrorCode::bad_header, "ir_version: got 15"},
      {"opset_old", model([](auto& m) { m.opset = 16; }), ErrorCode::op_unsupported, "opset: got 16, expected 17 to 23"},
      {"opset_new", model([](auto& m) { m.opset = 24; }), ErrorCode::op_unsupported, "opset: got 24"},
      {"opset_twice", good + spell::bytes(8, spell::bytes(1, "ai.onnx") + spell::number(2, 18)), ErrorCode::bad_header,
       "opset of the default domain: got it twice"},
      {"no_opset", spell::number(1, 8), ErrorCode::bad_header, "opset of the default domain: got none"},
      {"no_graph", spell::number(1, 8) + spell::bytes(8, spell::number(2, 18)), ErrorCode::bad_header,
       "name of the graph: got ''"},
      {"graph_twice", good + spell::bytes(7, ""), ErrorCode::bad_header, "field 7 of ModelProto: got it twice, expected it once"},
      {"functions", good + spell::bytes(25, ""), ErrorCode::op_unsupported, "field of ModelProto: got number 25"},
      {"sparse", model([](auto& m) { m.graph_fields = spell::bytes(15, ""); }), ErrorCode::op_unsupported,
       "field of GraphProto: got number 15"},
      {"wire_type", model([](auto& m) { m.graph_fields = spell::number(1, 5); }), ErrorCode::bad_header,
       "wire type of field 1 of GraphProto: got 0, expected 2"},
      {"group", good + spell::key(6, 3), ErrorCode::bad_header, "ModelProto: got unknown pbf field type"},
      {"field_zero", good + spell::key(0, 0), ErrorCode::bad_header, "ModelProto: got invalid tag"},
      {"long_varint", good + spell::key(5, 0) + std::string(11, '\xff'), ErrorCode::bad_header,
       "ModelProto: got varint too long"},
      {"length_past_the_end", good + spell::key(6, 2) + spell::varint(0xFFFFFFFF), ErrorCode::bad_header,
       "ModelProto: got end of buffer"},
  };
}

TEST(OnnxReader, RefusesWhatNoGraphHoldsByName) {
  for (const auto& table : {refused_operators(), refused_names_and_types(), refused_tensors(), refused_messages()}) {
    for (const Refusal& row : table) {
      EXPECT_THAT([&] { read_bytes(row.file); }, Fails(row.code, HasSubstr(row.text))) << row.name;
    }
  }
}

TEST(OnnxReader, RefusesAFileThatIsNotThereOrTooLarge) {
  const ScratchFolder folder;
  EXPECT_THAT([&] { read_onnx(folder.path() / "gone.onnx"); }, Fails(ErrorCode::file_missing, HasSubstr("gone.onnx")));
  std::filesystem::resize_file(folder.write("large.onnx", ""), (uint64_t{64} << 20) + 1);
  EXPECT_THAT(
      [&] { read_onnx(folder.path() / "large.onnx"); },
      Fails(ErrorCode::bad_header, HasSubstr("large.onnx: size of the graph: got 67108865 bytes, expected at most 67108864")));
}

TEST(OnnxReader, RefusesMoreMessagesThanAnyGraphHas) {
  std::string nodes;
  for (int i = 0; i < 1 << 20; ++i) nodes += spell::bytes(1, "");
  EXPECT_THAT([&] { read_bytes(changed(neg(), [&](auto& m) { m.graph_fields = nodes; }).file()); },
              Fails(ErrorCode::bad_header, HasSubstr("messages and names: got 1048577, expected at most 1048576")));
}

}  // namespace
}  // namespace transload
