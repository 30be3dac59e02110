// The ONNX writer: bytes are stable, and parsed back they hold what the graph says.
#include "targets/onnx/onnx_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <protozero/pbf_reader.hpp>
#include <string>
#include <vector>

#include "error_matchers.h"
#include "targets/onnx/onnx_lowering.h"

namespace transload {
namespace {

using protozero::pbf_reader;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What this test reads of a ModelProto; field numbers are spelled out here, apart from the writer's table.
struct ParsedTensor {
  std::vector<int64_t> dims;
  int32_t data_type = 0;
  std::string raw_data;
  std::map<std::string, std::string> external;
  int32_t location = 0;
};
struct ParsedAttribute {
  int32_t type = 0;
  int64_t i = 0;
  float f = 0;
  std::string s;
  std::vector<int64_t> ints;
};
struct ParsedNode {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::string name;
  std::string op_type;
  std::map<std::string, ParsedAttribute> attributes;
};
struct ParsedValue {
  std::string name;
  int32_t elem_type = 0;
  std::vector<int64_t> dims;
};
struct ParsedModel {
  int64_t ir_version = 0;
  std::string producer_name;
  std::string producer_version;
  std::string opset_domain = "?";
  int64_t opset = 0;
  std::string graph_name;
  std::vector<ParsedNode> nodes;
  std::vector<std::string> initializer_names;  // in order
  std::map<std::string, ParsedTensor> initializers;
  std::vector<ParsedValue> inputs, outputs, value_info;
};

std::pair<std::string, std::string> parse_entry(pbf_reader entry) {
  std::pair<std::string, std::string> result;
  while (entry.next()) {
    std::string& part = entry.tag() == 1 ? result.first : result.second;
    part = entry.get_string();
  }
  return result;
}

void parse_tensor(pbf_reader message, ParsedModel& model) {
  ParsedTensor tensor;
  std::string name;
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        tensor.dims.push_back(message.get_int64());
        break;
      case 2:
        tensor.data_type = message.get_int32();
        break;
      case 8:
        name = message.get_string();
        break;
      case 9:
        tensor.raw_data = message.get_bytes();
        break;
      case 13:
        tensor.external.insert(parse_entry(message.get_message()));
        break;
      case 14:
        tensor.location = message.get_enum();
        break;
      default:
        ADD_FAILURE() << "TensorProto field " << message.tag();
        message.skip();
    }
  }
  model.initializer_names.push_back(name);
  EXPECT_TRUE(model.initializers.emplace(name, tensor).second) << name << " twice";
}

ParsedNode parse_node(pbf_reader message) {
  ParsedNode node;
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        node.inputs.push_back(message.get_string());
        break;
      case 2:
        node.outputs.push_back(message.get_string());
        break;
      case 3:
        node.name = message.get_string();
        break;
      case 4:
        node.op_type = message.get_string();
        break;
      case 5: {
        pbf_reader field = message.get_message();
        std::string name;
        ParsedAttribute attribute;
        while (field.next()) {
          switch (field.tag()) {
            case 1:
              name = field.get_string();
              break;
            case 2:
              attribute.f = field.get_float();
              break;
            case 3:
              attribute.i = field.get_int64();
              break;
            case 4:
              attribute.s = field.get_string();
              break;
            case 8:
              attribute.ints.push_back(field.get_int64());
              break;
            case 20:
              attribute.type = field.get_enum();
              break;
            default:
              ADD_FAILURE() << "AttributeProto field " << field.tag();
              field.skip();
          }
        }
        node.attributes[name] = attribute;
        break;
      }
      default:
        ADD_FAILURE() << "NodeProto field " << message.tag();
        message.skip();
    }
  }
  return node;
}

ParsedValue parse_value(pbf_reader message) {
  ParsedValue value;
  EXPECT_TRUE(message.next(1));
  value.name = message.get_string();
  EXPECT_TRUE(message.next(2));
  pbf_reader type = message.get_message();
  EXPECT_TRUE(type.next(1));
  pbf_reader tensor = type.get_message();
  EXPECT_TRUE(tensor.next(1));
  value.elem_type = tensor.get_enum();
  EXPECT_TRUE(tensor.next(2));
  pbf_reader shape = tensor.get_message();
  while (shape.next(1)) {
    pbf_reader dim = shape.get_message();
    EXPECT_TRUE(dim.next(1));
    value.dims.push_back(dim.get_int64());
  }
  return value;
}

ParsedModel parse(const std::string& bytes) {
  ParsedModel model;
  pbf_reader message(bytes);
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        model.ir_version = message.get_int64();
        break;
      case 2:
        model.producer_name = message.get_string();
        break;
      case 3:
        model.producer_version = message.get_string();
        break;
      case 7: {
        pbf_reader graph = message.get_message();
        while (graph.next()) {
          switch (graph.tag()) {
            case 1:
              model.nodes.push_back(parse_node(graph.get_message()));
              break;
            case 2:
              model.graph_name = graph.get_string();
              break;
            case 5:
              parse_tensor(graph.get_message(), model);
              break;
            case 11:
              model.inputs.push_back(parse_value(graph.get_message()));
              break;
            case 12:
              model.outputs.push_back(parse_value(graph.get_message()));
              break;
            case 13:
              model.value_info.push_back(parse_value(graph.get_message()));
              break;
            default:
              ADD_FAILURE() << "GraphProto field " << graph.tag();
              graph.skip();
          }
        }
        break;
      }
      case 8: {
        pbf_reader opset = message.get_message();
        while (opset.next()) {
          if (opset.tag() == 1) {
            model.opset_domain = opset.get_string();
          } else {
            model.opset = opset.get_int64();
          }
        }
        break;
      }
      default:
        ADD_FAILURE() << "ModelProto field " << message.tag();
        message.skip();
    }
  }
  return model;
}

std::vector<int64_t> int64_values(const ParsedTensor& tensor) {
  std::vector<int64_t> values(tensor.raw_data.size() / sizeof(int64_t));
  std::memcpy(values.data(), tensor.raw_data.data(), values.size() * sizeof(int64_t));
  return values;
}

// y = mean(gemm(x, w)[:, 1:3], axis 1); h = gemm(x, w) as [2,2,4] is an output, too.
Graph sample_graph() {
  Graph graph;
  graph.name = "sample";
  const ValueId x = graph.add_input("x", DType::f32, {4, 3});
  const ValueId w = graph.add_constant("w", constant({4, 3}, std::vector<float>(12, 0.5F)));
  const ValueId product = graph.add_node(Op::gemm, "product", {x, w});
  const ValueId part =
      graph.add_node(Op::slice, "part", {product}, {{"axis", int64_t{1}}, {"begin", int64_t{1}}, {"end", int64_t{3}}});
  const ValueId mean = graph.add_node(Op::reduce_mean, "mean", {part}, {{"axes", std::vector<int64_t>{1}}});
  const ValueId h = graph.add_node(Op::reshape, "h", {product}, {{"shape", std::vector<int64_t>{2, 2, 4}}});
  graph.add_output(mean);
  graph.add_output(h);
  return graph;
}

OnnxWriteOptions at_opset(int opset) {
  OnnxWriteOptions options;
  options.opset = opset;
  options.producer_version = "1.2.3";
  return options;
}

// sample_graph with its one weight placed in a file
OnnxWriteOptions with_place(ExternalTensor place) {
  OnnxWriteOptions options = at_opset(18);
  options.external = [place](const Value&) { return std::optional(place); };
  return options;
}

TEST(OnnxWriter, WritesTheSameBytesForEqualGraphs) {
  EXPECT_EQ(write_onnx(sample_graph(), at_opset(18)), write_onnx(sample_graph(), at_opset(18)));
}

TEST(OnnxWriter, NamesItselfTheGraphAndTheDefaultDomain) {
  const ParsedModel model = parse(write_onnx(sample_graph(), at_opset(18)));
  EXPECT_EQ(model.producer_name, "transload");
  EXPECT_EQ(model.producer_version, "1.2.3");
  EXPECT_EQ(model.graph_name, "sample");
  EXPECT_EQ(model.opset_domain, "");
}

TEST(OnnxWriter, WritesTheLowestIrVersionOfEachOpset) {
  const std::map<int, int64_t> ir_versions = {{17, 8}, {18, 8}, {19, 9}, {20, 9}, {21, 10}, {22, 10}, {23, 11}};
  for (const auto& [opset, ir_version] : ir_versions) {
    const ParsedModel model = parse(write_onnx(sample_graph(), at_opset(opset)));
    EXPECT_EQ(model.opset, opset);
    EXPECT_EQ(model.ir_version, ir_version) << "opset " << opset;
  }
}

TEST(OnnxWriter, RefusesOpsetsItDoesNotKnow) {
  for (const int opset : {16, 24}) {
    EXPECT_THAT([&] { write_onnx(sample_graph(), at_opset(opset)); },
                Fails(ErrorCode::usage, "opset: got " + std::to_string(opset) + ", expected 17 to 23"));
  }
}

TEST(OnnxWriter, DeclaresInputsOutputsAndEveryValueBetween) {
  const ParsedModel model = parse(write_onnx(sample_graph(), at_opset(18)));
  ASSERT_EQ(model.inputs.size(), 1U);
  EXPECT_EQ(model.inputs[0].name, "x");
  EXPECT_EQ(model.inputs[0].elem_type, 1);
  EXPECT_THAT(model.inputs[0].dims, ElementsAre(4, 3));
  ASSERT_EQ(model.outputs.size(), 2U);
  EXPECT_EQ(model.outputs[0].name, "mean");
  EXPECT_THAT(model.outputs[0].dims, ElementsAre(4, 1));
  EXPECT_EQ(model.outputs[1].name, "h");
  EXPECT_THAT(model.outputs[1].dims, ElementsAre(2, 2, 4));
  ASSERT_EQ(model.value_info.size(), 2U);
  EXPECT_EQ(model.value_info[0].name, "product");
  EXPECT_EQ(model.value_info[1].name, "part");
  EXPECT_THAT(model.value_info[1].dims, ElementsAre(4, 2));
}

TEST(OnnxWriter, NamesNodesAfterTheirOutputsAndKeepsTheirOrder) {
  const ParsedModel model = parse(write_onnx(sample_graph(), at_opset(18)));
  ASSERT_EQ(model.nodes.size(), 4U);
  EXPECT_EQ(model.nodes[0].op_type, "Gemm");
  EXPECT_THAT(model.nodes[0].inputs, ElementsAre("x", "w"));
  EXPECT_EQ(model.nodes[0].attributes.at("transB").i, 1);
  EXPECT_EQ(model.nodes[0].attributes.at("transB").type, 2);
  EXPECT_EQ(model.nodes[0].attributes.at("alpha").f, 1.0F);
  EXPECT_EQ(model.nodes[0].attributes.at("beta").type, 1);
  for (const ParsedNode& node : model.nodes) EXPECT_THAT(node.outputs, ElementsAre(node.name));
  EXPECT_EQ(model.nodes[3].name, "h");
}

TEST(OnnxWriter, SharesIntegerOperandsOfEqualContent) {
  const ParsedModel model = parse(write_onnx(sample_graph(), at_opset(18)));
  EXPECT_THAT(model.nodes[1].inputs, ElementsAre("product", "const_i64_1", "const_i64_3", "const_i64_1", "const_i64_1"));
  EXPECT_THAT(model.nodes[3].inputs, ElementsAre("product", "const_i64_2_2_4"));
  EXPECT_THAT(model.initializer_names, ElementsAre("w", "const_i64_1", "const_i64_3", "const_i64_2_2_4"));
  const ParsedTensor& shape = model.initializers.at("const_i64_2_2_4");
  EXPECT_EQ(shape.data_type, 7);
  EXPECT_THAT(shape.dims, ElementsAre(3));
  EXPECT_THAT(int64_values(shape), ElementsAre(2, 2, 4));
}

TEST(OnnxWriter, GivesReduceMeanItsAxesAsTheOpsetWants) {
  const ParsedNode before = parse(write_onnx(sample_graph(), at_opset(17))).nodes[2];
  EXPECT_THAT(before.inputs, ElementsAre("part"));
  EXPECT_THAT(before.attributes.at("axes").ints, ElementsAre(1));
  EXPECT_EQ(before.attributes.at("axes").type, 7);
  const ParsedNode after = parse(write_onnx(sample_graph(), at_opset(18))).nodes[2];
  EXPECT_THAT(after.inputs, ElementsAre("part", "const_i64_1"));
  EXPECT_FALSE(after.attributes.contains("axes"));
  EXPECT_EQ(after.attributes.at("keepdims").i, 1);
}

TEST(OnnxWriter, KeepsIntegerOperandsApartFromValuesOfThatName) {
  Graph graph;
  graph.name = "clash";
  const ValueId x = graph.add_input("const_i64_6", DType::f32, {2, 3});
  graph.add_output(graph.add_node(Op::reshape, "y", {x}, {{"shape", std::vector<int64_t>{6}}}));
  EXPECT_THAT(parse(write_onnx(graph, at_opset(18))).nodes[0].inputs, ElementsAre("const_i64_6", "const_i64_6_"));
}

TEST(OnnxLowering, SpellsNegativeNumbersWithoutAMinus) {
  const Graph graph;
  OnnxLowering lowering(graph, 18);
  EXPECT_EQ(lowering.integers({1, -1}), "const_i64_1_m1");
}

TEST(OnnxWriter, StoresConstantsInlineWithoutACallback) {
  const ParsedTensor w = parse(write_onnx(sample_graph(), at_opset(18))).initializers.at("w");
  EXPECT_EQ(w.data_type, 1);
  EXPECT_THAT(w.dims, ElementsAre(4, 3));
  EXPECT_EQ(w.location, 0);
  EXPECT_THAT(w.external, IsEmpty());
  const std::vector<float> expected(12, 0.5F);
  EXPECT_EQ(w.raw_data, std::string(reinterpret_cast<const char*>(expected.data()), 48));
}

TEST(OnnxWriter, PointsToTheExternalFileWithDecimalStrings) {
  const ParsedModel model = parse(write_onnx(sample_graph(), with_place({"weights.bin", 8192, 48})));
  const ParsedTensor& w = model.initializers.at("w");
  EXPECT_EQ(w.location, 1);
  EXPECT_EQ(w.raw_data, "");
  EXPECT_EQ(w.external, (std::map<std::string, std::string>{{"location", "weights.bin"}, {"offset", "8192"}, {"length", "48"}}));
}

TEST(OnnxWriter, RefusesAnExternalPlaceThatDoesNotFitTheConstant) {
  EXPECT_THAT(
      [&] {
        write_onnx(sample_graph(), with_place({"weights.bin", 8192, 47}));
      },
      Fails(ErrorCode::internal, HasSubstr("constant 'w': got 47 bytes at 8192, expected 48 bytes at a multiple of 4096")));
  EXPECT_THAT(
      [&] {
        write_onnx(sample_graph(), with_place({"weights.bin", 100, 48}));
      },
      Fails(ErrorCode::internal, HasSubstr("got 48 bytes at 100")));
}

Graph gelu_graph() {
  Graph graph;
  graph.name = "gelu";
  const ValueId x = graph.add_input("x", DType::f32, {2});
  graph.add_output(graph.add_node(Op::gelu, "y", {x}, {{"approximate", "tanh"}}));
  return graph;
}

TEST(OnnxWriter, RefusesGeluBelowOpset20) {
  EXPECT_THAT([] { write_onnx(gelu_graph(), at_opset(19)); },
              Fails(ErrorCode::op_unsupported, "opset for operator Gelu of 'y': got 19, expected at least 20"));
  const ParsedNode node = parse(write_onnx(gelu_graph(), at_opset(20))).nodes[0];
  EXPECT_EQ(node.op_type, "Gelu");
  EXPECT_EQ(node.attributes.at("approximate").s, "tanh");
  EXPECT_EQ(node.attributes.at("approximate").type, 3);
}

TEST(OnnxWriter, RefusesTypesADecodeGraphNeverHolds) {
  Graph graph;
  graph.name = "bf16";
  graph.add_output(graph.add_node(Op::neg, "y", {graph.add_input("x", DType::bf16, {2})}));
  EXPECT_THAT([&] { write_onnx(graph, at_opset(18)); },
              Fails(ErrorCode::dtype_unsupported, "type in an ONNX graph: got bf16, expected f32, f16, i32, i64 or boolean"));
}

TEST(OnnxWriter, RefusesToInlineMoreThan64MiB) {
  Graph graph;
  graph.name = "large";
  const ValueId x = graph.add_input("x", DType::f32, {1, 4096});
  const ValueId w = graph.add_constant("w", random(DType::f32, {1 << 20, 4096}, 1, 0.02F));  // 16 GiB, never made
  graph.add_output(graph.add_node(Op::gemm, "y", {x, w}));
  EXPECT_THAT([&] { write_onnx(graph, at_opset(18)); },
              Fails(ErrorCode::format_limit, HasSubstr("got 17179869184 bytes, expected at most 67108864")));
}

TEST(OnnxWriter, RefusesTheFirstInlineConstantBeyond64MiBInAll) {
  Graph graph;
  graph.name = "many";
  ValueId sum = graph.add_input("x", DType::f32, {1024});
  for (int i = 0; i < 5; ++i) {
    const Recipe rows = random(DType::f32, {4096, 1024}, static_cast<uint64_t>(i), 0.02F);  // 16 MiB each
    const ValueId w = graph.add_constant("w" + std::to_string(i), rows);
    sum = graph.add_node(Op::add, "sum" + std::to_string(i), {sum, w});
  }
  graph.add_output(sum);
  // The fourth constant ends a few bytes past 64 MiB; the fifth would make it 80.
  EXPECT_THAT([&] { write_onnx(graph, at_opset(18)); }, Fails(ErrorCode::format_limit, HasSubstr("got 67109")));
}

}  // namespace
}  // namespace transload
