// The ONNX reader gives back what the writer wrote, reads other spellings of it, and refuses the rest by name.
#include "targets/onnx/onnx_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "decode/decode_step.h"
#include "decode/model_fixture.h"
#include "error_matchers.h"
#include "io/scratch_folder.h"
#include "targets/onnx/onnx_lowering.h"
#include "targets/onnx/onnx_writer.h"
#include "targets/onnx_bytes.h"
#include "transload/checkpoint.h"
#include "weights/executor.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

using testing::HasSubstr;

// graph_text without the recipes of constants: a file holds their values, not how they were made.
std::string structure(const Graph& graph) {
  std::string result;
  std::string text = graph_text(graph);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    std::string line = text.substr(begin, end - begin);
    if (line.starts_with("constant ")) line.resize(line.find(" = "));
    result += line + "\n";
    begin = end + 1;
  }
  return result;
}

// Writes constants of at least `threshold` bytes to weights.bin beside the graph, as the export does.
std::filesystem::path write_model(const ScratchFolder& folder, const Graph& graph, int opset, uint64_t threshold) {
  std::string weights;
  std::map<std::string, ExternalTensor> places;
  for (const ValueId id : graph.constants()) {
    const Value& value = graph.value(id);
    if (value.constant.bytes() < threshold) continue;
    weights.resize((weights.size() + kExternalAlignment - 1) / kExternalAlignment * kExternalAlignment);
    places[value.name] = {"weights.bin", weights.size(), value.constant.bytes()};
    const std::vector<std::byte> bytes = materialize(value.constant);
    weights.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  OnnxWriteOptions options;
  options.opset = opset;
  options.external = [&](const Value& value) {
    const auto found = places.find(value.name);
    return found == places.end() ? std::nullopt : std::optional(found->second);
  };
  folder.write("weights.bin", weights);
  return folder.write("g.onnx", write_onnx(graph, options));
}

void expect_round_trip(const Graph& graph, int opset, uint64_t threshold) {
  const ScratchFolder folder;
  const Graph got = read_onnx(write_model(folder, graph, opset, threshold));
  ASSERT_EQ(structure(got), structure(graph)) << "opset " << opset;
  for (const ValueId id : graph.constants()) {
    const Value& expected = graph.value(id);
    const Recipe& recipe = got.value(got.find(expected.name)).constant;
    const bool external = std::holds_alternative<SourceLeaf>(recipe.node().operation);
    EXPECT_EQ(external, expected.constant.bytes() >= threshold) << expected.name;
    EXPECT_EQ(materialize(recipe), materialize(expected.constant)) << expected.name;
  }
}

using Ints = std::vector<int64_t>;

// One graph with every op and constants of every type; `opset` decides whether it holds Gelu.
Graph graph_of_every_op(int opset) {
  Graph graph;
  graph.name = "every_op";
  const auto node = [&](Op op, const char* name, std::vector<ValueId> inputs, std::vector<Attribute> attributes = {}) {
    return graph.add_node(op, name, std::move(inputs), std::move(attributes));
  };
  const ValueId x = graph.add_input("x", DType::f32, {2, 6});
  const ValueId ids = graph.add_input("ids", DType::i32, {1, 2});
  const ValueId w = graph.add_constant("w", constant({4, 6}, std::vector<float>(24, 0.5F)));
  const ValueId bias = graph.add_constant("bias", constant({4}, {1, -2, 3, -0.0F}));
  const ValueId half = graph.add_constant("half", cast(constant({4}, {0.1F, 65504, -6e-8F, 1}), DType::f16));
  const ValueId offsets = graph.add_constant("const_i64_1", constant_i64({4}, {1, -2, int64_t{1} << 40, 0}));
  ValueId y = node(Op::gemm, "gemm", {x, w});
  y = node(Op::add, "sum", {y, node(Op::gemm, "gemm_bias", {x, w, bias})});
  y = node(Op::sub, "difference", {y, node(Op::cast, "half_f32", {half}, {{"to", int64_t{int(DType::f32)}}})});
  y = node(Op::mul, "product", {y, node(Op::cast, "offsets_f32", {offsets}, {{"to", int64_t{int(DType::f32)}}})});
  y = node(Op::div, "quotient", {node(Op::neg, "negative", {y}), node(Op::sqrt, "root", {y})});
  y = node(Op::erf, "erf", {node(Op::tanh, "tanh", {node(Op::sigmoid, "sigmoid", {y})})});
  if (opset >= 20) {
    y = node(Op::gelu, "gelu", {y}, {{"approximate", "tanh"}});
    y = node(Op::gelu, "gelu_exact", {y}, {{"approximate", "none"}});
  }
  y = node(Op::softmax, "softmax", {y}, {{"axis", int64_t{0}}});
  y = node(Op::reshape, "image", {y}, {{"shape", Ints{1, 4, 1, 2}}});
  const ValueId kernel = graph.add_constant("kernel", constant({3, 4, 1, 1}, std::vector<float>(12, 2)));
  const ValueId kernel_bias = graph.add_constant("kernel_bias", constant({3}, {1, 2, 3}));
  y = node(Op::concat, "both", {node(Op::conv1x1, "conv", {y, kernel}), node(Op::conv1x1, "conv_bias", {y, kernel, kernel_bias})},
           {{"axis", int64_t{3}}});
  y = node(Op::reduce_mean, "mean", {node(Op::transpose, "turned", {y}, {{"perm", Ints{0, 3, 1, 2}}})}, {{"axes", Ints{1, 3}}});
  y = node(Op::matmul, "matmul",
           {y, node(Op::slice, "part", {y}, {{"axis", int64_t{2}}, {"begin", int64_t{1}}, {"end", int64_t{2}}})});
  y = node(Op::min, "least",
           {node(Op::max, "most", {y, node(Op::abs, "size", {y})}), node(Op::reduce_max, "top", {y}, {{"axes", Ints{1, 2}}})});
  const ValueId place = node(Op::argmax, "place", {y}, {{"axis", int64_t{3}}});
  const ValueId same = node(Op::equal, "same", {place, graph.add_constant("first", constant_i64({1}, {0}))});
  y = node(Op::where, "chosen", {same, y, node(Op::where, "larger", {node(Op::greater, "above", {y, y}), y, y})});
  graph.add_output(y);
  graph.add_output(node(Op::gather, "rows", {w, ids}));
  graph.add_output(node(Op::cast, "ids_i64", {ids}, {{"to", int64_t{int(DType::i64)}}}));
  check_graph(graph);
  return graph;
}

TEST(OnnxReader, GivesBackEveryOpAtEveryOpsetInlineAndExternal) {
  for (int opset = kMinOnnxOpset; opset <= kMaxOnnxOpset; ++opset) {
    for (const uint64_t threshold : {uint64_t{1} << 40, uint64_t{40}, uint64_t{0}}) {
      expect_round_trip(graph_of_every_op(opset), opset, threshold);
    }
  }
}

TEST(OnnxReader, GivesBackADecodeStepOfEveryTestDecoderAtEveryOpset) {
  for (const auto& entry : std::filesystem::directory_iterator(TRANSLOAD_TEST_DATA "/decoders")) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::filesystem::path gguf = entry.path() / "model.gguf";  // beside golden.safetensors
    const Checkpoint checkpoint = Checkpoint::open(std::filesystem::exists(gguf) ? gguf : entry.path());
    const DecoderModel model = build_model(checkpoint, ModelOptions{32});
    for (int opset = kMinOnnxOpset; opset <= kMaxOnnxOpset; ++opset) {
      StepOptions options;
      options.context = 32;
      options.query = opset % 2 == 0 ? 1 : 4;
      options.opset = opset;
      expect_round_trip(build_decode_step(model, options).graph, opset, 4096);
    }
  }
}

FixtureShape small() {
  FixtureShape shape;
  shape.pattern = "SF";
  shape.window = 8;
  shape.hidden = 16;
  shape.intermediate = 24;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.vocab = 32;
  shape.max_positions = 256;
  shape.qk_norm = true;
  shape.four_norms = true;
  shape.embedding_factor = 4;
  return shape;
}

TEST(OnnxReader, GivesBackEveryDialectOfADecodeStep) {
  const DecoderModel model = fixture_model(small());
  for (const LinearForm linear : {LinearForm::gemm, LinearForm::matmul, LinearForm::conv1x1}) {
    for (const GeluForm gelu : {GeluForm::model, GeluForm::exact, GeluForm::tanh, GeluForm::sigmoid}) {
      for (const CacheLayout layout : {CacheLayout::ring, CacheLayout::roll}) {
        for (const DType compute : {DType::f32, DType::f16}) {
          StepOptions options;
          options.linear = linear;
          options.gelu = gelu;
          options.cache_layout = layout;
          options.compute = compute;
          options.weights = compute;
          options.inputs = layout == CacheLayout::ring ? InputForm::rows : InputForm::ids;
          options.rope_width = compute == DType::f32 ? RopeWidth::full : RopeWidth::half;
          options.logits = compute == DType::f32 ? LogitsRows::all : LogitsRows::last;
          options.query = 4;
          options.context = 32;
          for (const int opset : {17, 18, 20, 23}) {
            options.opset = opset;
            expect_round_trip(build_decode_step(model, options).graph, opset, 256);
          }
        }
      }
    }
  }
}

// Other spellings.

namespace spell = onnx_bytes;
using spell::read_bytes;
using spell::unary_model;

std::string line_of_y(const spell::Model& model) {
  const std::string text = graph_text(read_bytes(model.file()));
  const size_t begin = text.find("%y: ");
  return text.substr(begin, text.find('\n', begin) - begin);
}

struct Spelling {
  const char* name;
  spell::Model model;
  const char* expected;  // the line of y
};

std::vector<Spelling> spellings() {
  const auto ints = [](const char* name, Ints values) { return spell::integers(name, values); };
  const auto slice = [&](Ints starts, Ints ends, Ints axes) {
    return unary_model(spell::node("Slice", {"x", "starts", "ends", "axes"}, "y"),
                       {ints("starts", starts), ints("ends", ends), ints("axes", axes)});
  };
  spell::Model at_17 = unary_model(spell::node("ReduceMean", {"x"}, "y", {spell::attribute("axes", Ints{-1, 0})}));
  at_17.opset = 17;
  spell::Model gelu = unary_model(spell::node("Gelu", {"x"}, "y"));
  gelu.opset = 20;
  spell::Model matrix =
      unary_model(spell::node("Gemm", {"x", "w", ""}, "y", {spell::attribute("transB", int64_t{1})}),
                  {spell::tensor("w", spell::kFloat, {2, 2}, spell::bytes(4, spell::raw(std::vector<float>(4))))});
  matrix.inputs = {spell::value_info("x", spell::kFloat, {3, 2})};
  spell::Model domain = unary_model(spell::node("Neg", {"x"}, "y") + spell::bytes(7, "ai.onnx"));
  domain.model_fields = spell::bytes(8, spell::bytes(1, "com.example") + spell::number(2, 1));
  spell::Model documented = unary_model(spell::node("Neg", {"x"}, "y") + spell::bytes(6, "doc") + spell::bytes(9, ""));
  documented.graph_fields = spell::bytes(10, "doc") + spell::bytes(16, "") + spell::bytes(13, spell::value_info("gone", 16, {7}));
  documented.model_fields = spell::bytes(6, "doc") + spell::number(5, 3) + spell::bytes(14, "");
  return {
      {"softmax_default_axis", unary_model(spell::node("Softmax", {"x"}, "y")), "%y: f32[2,3,4] = softmax(%x) {axis=2}"},
      {"softmax_negative_axis", unary_model(spell::node("Softmax", {"x"}, "y", {spell::attribute("axis", int64_t{-2})})),
       "%y: f32[2,3,4] = softmax(%x) {axis=1}"},
      {"concat_negative_axis", unary_model(spell::node("Concat", {"x", "x"}, "y", {spell::attribute("axis", int64_t{-1})})),
       "%y: f32[2,3,8] = concat(%x, %x) {axis=2}"},
      {"transpose_default_perm", unary_model(spell::node("Transpose", {"x"}, "y")),
       "%y: f32[4,3,2] = transpose(%x) {perm=[2,1,0]}"},
      {"gelu_default", gelu, "%y: f32[2,3,4] = gelu(%x) {approximate=none}"},
      {"reduce_mean_attribute", at_17, "%y: f32[1,3,1] = reduce_mean(%x) {axes=[0,2]}"},
      {"reduce_mean_operand", unary_model(spell::node("ReduceMean", {"x", "axes"}, "y"), {ints("axes", {-1})}),
       "%y: f32[2,3,1] = reduce_mean(%x) {axes=[2]}"},
      {"reduce_max_operand", unary_model(spell::node("ReduceMax", {"x", "axes"}, "y"), {ints("axes", {2, 0})}),
       "%y: f32[1,3,1] = reduce_max(%x) {axes=[0,2]}"},
      {"argmax_defaults", unary_model(spell::node("ArgMax", {"x"}, "y")), "%y: i64[1,3,4] = argmax(%x) {axis=0}"},
      {"argmax_negative_axis", unary_model(spell::node("ArgMax", {"x"}, "y", {spell::attribute("axis", int64_t{-1})})),
       "%y: i64[2,3,1] = argmax(%x) {axis=2}"},
      {"reshape_zero_and_rest", unary_model(spell::node("Reshape", {"x", "shape"}, "y"), {ints("shape", {0, -1})}),
       "%y: f32[2,12] = reshape(%x) {shape=[2,12]}"},
      {"slice_negative_bounds", slice({-3}, {-1}, {-1}), "%y: f32[2,3,2] = slice(%x) {axis=2, begin=1, end=3}"},
      {"slice_past_the_end", slice({1}, {INT64_MAX}, {1}), "%y: f32[2,2,4] = slice(%x) {axis=1, begin=1, end=3}"},
      {"slice_from_before_the_start", slice({INT64_MIN}, {2}, {2}), "%y: f32[2,3,2] = slice(%x) {axis=2, begin=0, end=2}"},
      {"slice_default_axis", unary_model(spell::node("Slice", {"x", "s", "e"}, "y"), {ints("s", {1}), ints("e", {2})}),
       "%y: f32[1,3,4] = slice(%x) {axis=0, begin=1, end=2}"},
      {"slice_absent_axes_and_a_step",
       unary_model(spell::node("Slice", {"x", "s", "e", "", "s"}, "y"), {ints("s", {1}), ints("e", {2})}),
       "%y: f32[1,3,4] = slice(%x) {axis=0, begin=1, end=2}"},
      {"integers_as_int64_data",
       unary_model(spell::node("Reshape", {"x", "shape"}, "y"),
                   {spell::tensor("shape", spell::kInt64, {2}, spell::bytes(7, spell::packed({6, -1})))}),
       "%y: f32[6,4] = reshape(%x) {shape=[6,4]}"},
      {"integers_one_field_each",
       unary_model(spell::node("Reshape", {"x", "shape"}, "y"),
                   {spell::tensor("shape", spell::kInt64, {2}, spell::number(7, 6) + spell::number(7, 4))}),
       "%y: f32[6,4] = reshape(%x) {shape=[6,4]}"},
      {"integers_as_int32_data",
       unary_model(spell::node("Slice", {"x", "s", "e"}, "y"),
                   {spell::tensor("s", spell::kInt32, {1}, spell::bytes(5, spell::packed({-1}))),
                    spell::tensor("e", spell::kInt32, {1}, spell::bytes(9, spell::raw(std::vector<int32_t>{2})))}),
       "%y: f32[1,3,4] = slice(%x) {axis=0, begin=1, end=2}"},
      {"integers_in_another_file",
       unary_model(spell::node("Slice", {"x", "s", "e"}, "y"),
                   {ints("s", {0}), spell::tensor("e", spell::kInt64, {1}, spell::external({{"location", "w.bin"}}))}),
       "%y: f32[2,3,4] = slice(%x) {axis=0, begin=0, end=2}"},
      {"gemm_absent_bias", matrix, "%y: f32[3,2] = gemm(%x, %w)"},
      {"named_domain_and_other_imports", domain, "%y: f32[2,3,4] = neg(%x)"},
      {"documentation_metadata_and_stale_types", documented, "%y: f32[2,3,4] = neg(%x)"},
      {"unused_tensors", unary_model(spell::node("Neg", {"x"}, "y"), {ints("unused", {1})}), "%y: f32[2,3,4] = neg(%x)"},
  };
}

TEST(OnnxReader, ResolvesOtherSpellings) {
  for (const Spelling& spelling : spellings()) EXPECT_EQ(line_of_y(spelling.model), spelling.expected) << spelling.name;
}

template <typename Element>
std::vector<Element> constant_values(const spell::Model& model) {
  const Graph graph = read_bytes(model.file());
  EXPECT_EQ(graph.constants().size(), 1U);
  const std::vector<std::byte> bytes = materialize(graph.value(graph.constants()[0]).constant);
  std::vector<Element> values(bytes.size() / sizeof(Element));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(OnnxReader, ReadsValuesFromRawBytesTypedListsFilesAndConstantNodes) {
  const auto sum_with = [](int data_type, const std::string& values) {
    spell::Model model = unary_model(spell::node("Add", {"x", "w"}, "y"), {spell::tensor("w", data_type, {2}, values)});
    model.inputs = {spell::value_info("x", data_type, {2})};
    return model;
  };
  const std::vector<float> floats{1.5F, -0.0F};
  for (const std::string& values :
       {spell::bytes(9, spell::raw(floats)), spell::bytes(4, spell::raw(floats)),
        spell::key(4, 5) + spell::raw(std::vector<float>{1.5F}) + spell::key(4, 5) + spell::raw(std::vector<float>{-0.0F})}) {
    EXPECT_EQ(constant_values<float>(sum_with(spell::kFloat, values)), floats);
  }
  const std::vector<uint16_t> halves{0x3C00, 0x8001};
  EXPECT_EQ(constant_values<uint16_t>(sum_with(spell::kFloat16, spell::bytes(9, spell::raw(halves)))), halves);
  EXPECT_EQ(constant_values<uint16_t>(sum_with(spell::kFloat16, spell::bytes(5, spell::packed({0x3C00, 0x8001})))), halves);
  const std::vector<int64_t> integers{-1, int64_t{1} << 40};
  EXPECT_EQ(constant_values<int64_t>(sum_with(spell::kInt64, spell::bytes(9, spell::raw(integers)))), integers);
  EXPECT_EQ(constant_values<int64_t>(sum_with(spell::kInt64, spell::bytes(7, spell::packed(integers)))), integers);
  const spell::Model external =
      sum_with(spell::kInt32, spell::external({{"length", "8"}, {"offset", "4"}, {"location", "w.bin"}}));
  EXPECT_EQ(constant_values<int32_t>(external), (std::vector<int32_t>{0x01010101, 0x01010101}));

  spell::Model constant_node = sum_with(spell::kFloat, "");
  const std::string tensor = spell::tensor("other_name", spell::kFloat, {2}, spell::bytes(9, spell::raw(floats)));
  constant_node.initializers.clear();
  constant_node.nodes.insert(constant_node.nodes.begin(),
                             spell::node("Constant", {}, "w", {spell::attribute_tensor("value", tensor)}));
  EXPECT_EQ(constant_values<float>(constant_node), floats);
}

// Whatever the bytes, an Error or a graph that keeps every rule.
bool reads(const ScratchFolder& folder, const std::string& bytes) {
  std::filesystem::remove(folder.path() / "g.onnx");  // a file written over is flushed to the disk
  try {
    check_graph(read_onnx(folder.write("g.onnx", bytes)));
    return true;
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
    return false;
  }
}

TEST(OnnxReader, RefusesEveryTruncation) {
  const ScratchFolder folder;
  OnnxWriteOptions options;
  options.opset = 20;
  const std::string bytes = write_onnx(graph_of_every_op(20), options);
  EXPECT_TRUE(reads(folder, bytes));
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(reads(folder, bytes.substr(0, size))) << size;
}

TEST(OnnxReader, SurvivesEveryFlippedByte) {
  const ScratchFolder folder;
  OnnxWriteOptions options;
  options.opset = 18;
  const std::string bytes = write_onnx(graph_of_every_op(18), options);
  size_t refused = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int change : {0x01, 0x80, 0xFF}) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ change);
      refused += reads(folder, flipped) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, bytes.size());  // values of constants, names of nodes and documentation may be anything
}

}  // namespace
}  // namespace transload
