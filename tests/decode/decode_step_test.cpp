// Decode-step graphs: the contract at real size, slots and masks at the edges, slices, dialects, refusals.
#include "decode/decode_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "decode/model_fixture.h"
#include "error_matchers.h"

namespace transload {
namespace {

using testing::HasSubstr;

const Port& port(const std::vector<Port>& ports, const std::string& name) {
  const auto found = std::find_if(ports.begin(), ports.end(), [&](const Port& p) { return p.name == name; });
  EXPECT_NE(found, ports.end()) << name;
  return *found;
}

bool has_port(const std::vector<Port>& ports, const std::string& name) {
  return std::any_of(ports.begin(), ports.end(), [&](const Port& p) { return p.name == name; });
}

// A small model whose graphs have every feature.
FixtureShape small() {
  FixtureShape shape;
  shape.pattern = "SSF";
  shape.window = 8;
  shape.hidden = 16;
  shape.intermediate = 24;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.vocab = 32;
  shape.max_positions = 256;
  return shape;
}

TEST(DecodeStep, SparkAtRealSizeHasThePublishedContract) {
  FixtureShape shape;
  shape.pattern = repeated("SSSF", 7);
  StepOptions options;
  options.context = 4096;
  const DecodeStep step = build_decode_step(fixture_model(shape), options);
  ASSERT_EQ(step.contract.inputs.size(), 63U);
  ASSERT_EQ(step.contract.outputs.size(), 57U);

  std::vector<std::pair<std::string, Shape>> inputs{
      {"x", {1, 1, 2048}},         {"cos_sw", {1, 1, 1, 256}},  {"sin_sw", {1, 1, 1, 256}},    {"cos_full", {1, 1, 1, 64}},
      {"sin_full", {1, 1, 1, 64}}, {"mask_sw", {1, 1, 1, 512}}, {"mask_full", {1, 1, 1, 4097}}};
  std::vector<std::pair<std::string, Shape>> outputs{{"logits", {1, 131072}}};
  for (int i = 0; i < 28; ++i) {
    const uint64_t slots = i % 4 == 3 ? 4096 : 511;
    inputs.push_back({"k_cache_" + std::to_string(i), {1, 2, slots, 256}});
    inputs.push_back({"v_cache_" + std::to_string(i), {1, 2, slots, 256}});
    outputs.push_back({"k_new_" + std::to_string(i), {1, 2, 1, 256}});
    outputs.push_back({"v_new_" + std::to_string(i), {1, 2, 1, 256}});
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(step.contract.inputs[i].name, inputs[i].first);
    EXPECT_EQ(step.contract.inputs[i].shape, inputs[i].second) << inputs[i].first;
    EXPECT_EQ(step.graph.value(step.graph.inputs()[i]).name, inputs[i].first);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(step.contract.outputs[i].name, outputs[i].first);
    EXPECT_EQ(step.contract.outputs[i].shape, outputs[i].second) << outputs[i].first;
    EXPECT_EQ(step.graph.value(step.graph.outputs()[i]).name, outputs[i].first);
  }
}

TEST(DecodeStep, SparkKvBytesAreThePublishedOnes) {
  FixtureShape shape;
  shape.pattern = repeated("SSSF", 7);
  const DecoderModel model = fixture_model(shape);
  const auto fp16_bytes = [&](uint32_t context, CacheLayout layout) {
    StepOptions options;
    options.context = context;
    options.cache_layout = layout;
    const KvElements elements = kv_elements(build_decode_step(model, options).contract);
    return std::pair{elements.hybrid * 2, elements.uniform * 2};
  };
  EXPECT_EQ(fp16_bytes(4096, CacheLayout::automatic), (std::pair<uint64_t, uint64_t>{80'697'344, 234'881'024}));
  EXPECT_EQ(fp16_bytes(4096, CacheLayout::ring).first, 80'697'344U);
  EXPECT_EQ(fp16_bytes(4096, CacheLayout::roll).first, 80'740'352U);
  EXPECT_EQ(fp16_bytes(1024, CacheLayout::automatic).first, 36'657'152U);
  EXPECT_EQ(fp16_bytes(131072, CacheLayout::automatic).first, 1'901'025'280U);
}

struct EdgeCase {
  const char* name;
  uint32_t query, context, window;
  CacheLayout layout;
  uint64_t slots, new_entries, mask_columns;
};

class SlotEdges : public testing::TestWithParam<EdgeCase> {};

TEST_P(SlotEdges, SlidingLayerHasTheseSlotsEntriesAndColumns) {
  const EdgeCase& edge = GetParam();
  FixtureShape shape = small();
  shape.window = edge.window;
  StepOptions options;
  options.query = edge.query;
  options.context = edge.context;
  options.cache_layout = edge.layout;
  const DecodeStep step = build_decode_step(fixture_model(shape), options);
  EXPECT_EQ(port(step.contract.inputs, "k_cache_0").shape, (Shape{1, 2, edge.slots, 8}));
  EXPECT_EQ(port(step.contract.outputs, "v_new_0").shape, (Shape{1, 2, edge.new_entries, 8}));
  EXPECT_EQ(port(step.contract.inputs, "mask_sw").shape, (Shape{1, 1, edge.query, edge.mask_columns}));
  EXPECT_EQ(port(step.contract.inputs, "mask_full").shape, (Shape{1, 1, edge.query, edge.context + edge.query}));
  EXPECT_EQ(port(step.contract.inputs, "k_cache_2").shape, (Shape{1, 2, edge.context, 8}));
}

INSTANTIATE_TEST_SUITE_P(Table, SlotEdges,
                         testing::Values(EdgeCase{"ring", 1, 64, 8, CacheLayout::ring, 7, 1, 8},
                                         EdgeCase{"roll", 1, 64, 8, CacheLayout::roll, 8, 8, 8},
                                         EdgeCase{"ring_context_below_window", 1, 4, 8, CacheLayout::ring, 4, 1, 5},
                                         EdgeCase{"roll_context_below_window", 1, 4, 8, CacheLayout::roll, 4, 4, 4},
                                         EdgeCase{"ring_query_above_window", 16, 64, 8, CacheLayout::ring, 7, 16, 23},
                                         EdgeCase{"roll_query_above_window", 16, 64, 8, CacheLayout::roll, 8, 16, 23},
                                         EdgeCase{"roll_query_below_window", 3, 64, 8, CacheLayout::roll, 8, 8, 10},
                                         EdgeCase{"ring_window_of_one", 1, 64, 1, CacheLayout::ring, 1, 1, 2},
                                         EdgeCase{"roll_window_of_one", 4, 64, 1, CacheLayout::roll, 1, 4, 4}),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(DecodeStep, GroupsNoLayerUsesHaveNoInputs) {
  FixtureShape shape = small();
  StepOptions options;
  options.context = 32;
  options.layers = {LayerRange::Kind::sliding, 0, 0};
  const DecodeStep sliding = build_decode_step(fixture_model(shape), options);
  EXPECT_FALSE(has_port(sliding.contract.inputs, "mask_full"));
  EXPECT_FALSE(has_port(sliding.contract.inputs, "cos_full"));
  EXPECT_TRUE(has_port(sliding.contract.inputs, "mask_sw"));
  options.layers = {LayerRange::Kind::full, 0, 0};
  const DecodeStep full = build_decode_step(fixture_model(shape), options);
  EXPECT_FALSE(has_port(full.contract.inputs, "mask_sw"));
  EXPECT_TRUE(has_port(full.contract.inputs, "cos_full"));
}

TEST(DecodeStep, BlockSparseLayersShareAMaskOfOneRowForEachHead) {
  FixtureShape shape = small();
  shape.pattern = "FBSCB";
  StepOptions options;
  options.context = 32;
  for (const uint32_t query : {1U, 4U}) {
    options.query = query;
    const DecodeStep step = build_decode_step(fixture_model(shape), options);
    std::vector<std::string> masks;
    for (const Port& p : step.contract.inputs) {
      if (p.role == PortRole::mask) masks.push_back(p.name);
    }
    EXPECT_EQ(masks, (std::vector<std::string>{"mask_sw", "mask_blocksparse", "mask_blocksparse_2", "mask_full"}));
    EXPECT_EQ(port(step.contract.inputs, "mask_blocksparse").shape, (Shape{1, 4, query, 32 + query}));
    EXPECT_EQ(port(step.contract.inputs, "mask_full").shape, (Shape{1, 1, query, 32 + query}));
    EXPECT_EQ(find_mask_group(step.contract, "blocksparse")->block_sparse, (BlockSparse{64, 16, 8, 1}));
    EXPECT_EQ(find_mask_group(step.contract, "blocksparse_2")->block_sparse, (BlockSparse{64, 8, 8, 0}));
    EXPECT_EQ(find_mask_group(step.contract, "blocksparse")->heads, 4U);
    EXPECT_EQ(step.contract.caches[1].rule, SlotRule::append);
    EXPECT_EQ(step.contract.caches[1].slots, 32U);
    EXPECT_EQ(step.contract.caches[4].mask_group, "blocksparse");
    // The mask takes the shape of the scores: query heads folded onto their two key heads.
    EXPECT_EQ(step.graph.value(step.graph.find("layers_1_attn_mask")).shape,
              query == 1 ? (Shape{1, 2, 2, 33}) : (Shape{2, 2, 4, 36}));
  }
  options.layers = {LayerRange::Kind::full, 0, 0};
  shape.pattern = "SBF";
  EXPECT_EQ(build_decode_step(fixture_model(shape), options).contract.first_layer, 1U);
}

const Node& node_of(const Graph& graph, const std::string& output) {
  const ValueId id = graph.find(output);
  return *std::find_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.output == id; });
}

TEST(DecodeStep, ExpertsAreAllComputedAndWeightedByTheRouting) {
  FixtureShape shape = small();
  shape.experts = 3;
  shape.activation = Activation::silu;
  StepOptions options;
  options.context = 32;
  options.query = 4;
  options.weights = options.compute = DType::f16;
  const Graph graph = build_decode_step(fixture_model(shape), options).graph;
  const auto type = [&](const std::string& name) {
    const Value& value = graph.value(graph.find(name));
    return std::pair{value.dtype, value.shape};
  };
  // A rounded logit would choose another expert.
  EXPECT_EQ(type("layers_1_mlp_router"), (std::pair{DType::f32, Shape{4, 3}}));
  EXPECT_EQ(type("layers_1_mlp_routing"), (std::pair{DType::f32, Shape{4, 3}}));
  EXPECT_EQ(type("layers_1_mlp_router_first_place").first, DType::boolean);
  for (int expert = 0; expert < 3; ++expert) {
    const std::string prefix = "layers_1_mlp_expert_" + std::to_string(expert);
    for (const char* part : {"_gate", "_up", "_act", "_product"}) {
      EXPECT_EQ(type(prefix + part), (std::pair{DType::f16, Shape{4, 24}})) << part;
    }
    EXPECT_EQ(type(prefix + "_down"), (std::pair{DType::f16, Shape{4, 16}}));
    EXPECT_EQ(type(prefix + "_weight"), (std::pair{DType::f16, Shape{4, 1}}));
    EXPECT_EQ(node_of(graph, prefix + "_weight").integer("begin"), expert);
  }
  EXPECT_EQ(node_of(graph, "layers_1_mlp_down").op, Op::add);
}

TEST(DecodeStep, LayerNormsCentreInFp32AndAddTheirBias) {
  FixtureShape shape = small();
  shape.layer_norm = true;
  StepOptions options;
  options.context = 32;
  options.weights = options.compute = DType::f16;
  const Graph graph = build_decode_step(fixture_model(shape), options).graph;
  EXPECT_EQ(node_of(graph, "layers_0_mlp_norm_centered").op, Op::sub);
  EXPECT_EQ(graph.value(graph.find("layers_0_mlp_norm_bias")).dtype, DType::f32);
  EXPECT_EQ(graph.value(graph.find("layers_0_mlp_norm_biased")).dtype, DType::f32);
  EXPECT_EQ(graph.value(graph.find("layers_0_mlp_norm")).dtype, DType::f16);
}

TEST(DecodeStep, LimitsClampTheGateFromAboveAndUpFromBothSides) {
  FixtureShape shape = small();
  shape.limit = 20.0F;
  shape.activation = Activation::quick_gelu;
  StepOptions options;
  options.context = 32;
  const Graph graph = build_decode_step(fixture_model(shape), options).graph;
  EXPECT_EQ(node_of(graph, "layers_0_mlp_gate_clamped").op, Op::min);
  EXPECT_EQ(node_of(graph, "layers_0_mlp_up_floored").op, Op::max);
  EXPECT_EQ(node_of(graph, "layers_0_mlp_up_clamped").op, Op::min);
  EXPECT_EQ(node_of(graph, "layers_0_mlp_up_offset").op, Op::add);
  EXPECT_EQ(node_of(graph, "layers_0_mlp_act").inputs.front(), graph.find("layers_0_mlp_gate_clamped"));
}

TEST(DecodeStep, LogitsTakeTheirBiasBeforeTheirFactor) {
  FixtureShape shape = small();
  shape.head_bias = true;
  StepOptions options;
  options.context = 32;
  EXPECT_EQ(node_of(build_decode_step(fixture_model(shape), options).graph, "logits").inputs.size(), 3U);
  shape.logits_factor = 0.5F;
  const DecodeStep step = build_decode_step(fixture_model(shape), options);
  EXPECT_EQ(node_of(step.graph, "logits").op, Op::mul);
  EXPECT_EQ(node_of(step.graph, "lm_head").inputs.size(), 3U);
  EXPECT_EQ(step.contract.outputs.front().name, "logits");
}

TEST(DecodeStep, SliceRestartsCacheNamesAndKeepsWeightIndices) {
  StepOptions options;
  options.context = 32;
  options.layers = {LayerRange::Kind::range, 1, 3};
  options.head = false;
  const DecodeStep step = build_decode_step(fixture_model(small()), options);
  EXPECT_EQ(step.contract.inputs.front().role, PortRole::hidden_in);
  EXPECT_TRUE(has_port(step.contract.inputs, "k_cache_0"));
  EXPECT_FALSE(has_port(step.contract.inputs, "k_cache_2"));
  EXPECT_NO_THROW(step.graph.find("layers_2_mlp_up_weight"));
  EXPECT_NO_THROW(step.graph.find("layers_2_out"));
  EXPECT_THROW(step.graph.find("layers_0_out"), Error);
  EXPECT_EQ(step.contract.outputs.front().name, "hidden");
  EXPECT_EQ(step.contract.outputs.front().shape, (Shape{1, 1, 16}));
}

TEST(DecodeStep, EveryDialectBuildsWithTheSamePorts) {
  FixtureShape shape = small();
  shape.qk_norm = true;
  shape.four_norms = true;
  shape.embedding_factor = 4.0F;
  const DecoderModel model = fixture_model(shape);
  StepOptions base;
  base.context = 32;
  const std::vector<Port> expected = build_decode_step(model, base).contract.inputs;
  for (const LinearForm linear : {LinearForm::gemm, LinearForm::matmul, LinearForm::conv1x1}) {
    for (const int opset : {17, 18, 20, 23}) {
      for (const GeluForm gelu : {GeluForm::model, GeluForm::exact, GeluForm::tanh, GeluForm::sigmoid}) {
        StepOptions options = base;
        options.linear = linear;
        options.opset = opset;
        options.gelu = gelu;
        const DecodeStep step = build_decode_step(model, options);
        ASSERT_EQ(step.contract.inputs.size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(step.contract.inputs[i].shape, expected[i].shape);
      }
    }
  }
}

TEST(DecodeStep, TiedHeadSharesTheEmbeddingUnlessTransposed) {
  StepOptions options;
  options.context = 32;
  EXPECT_EQ(build_decode_step(fixture_model(small()), options).embedding_constant, "embed_tokens_weight");
  options.linear = LinearForm::conv1x1;
  EXPECT_EQ(build_decode_step(fixture_model(small()), options).embedding_constant, "lm_head_weight");
  options.linear = LinearForm::matmul;
  EXPECT_EQ(build_decode_step(fixture_model(small()), options).embedding_constant, "");
  options.linear = LinearForm::gemm;
  FixtureShape untied = small();
  untied.tied = false;
  EXPECT_EQ(build_decode_step(fixture_model(untied), options).embedding_constant, "");
}

TEST(DecodeStep, PrecisionsFixBoundaryAndStoredTypes) {
  StepOptions options;
  options.context = 32;
  options.weights = DType::f16;
  const DecodeStep mixed = build_decode_step(fixture_model(small()), options);
  EXPECT_EQ(port(mixed.contract.inputs, "x").dtype, DType::f32);
  EXPECT_EQ(mixed.graph.value(mixed.graph.find("layers_0_attn_q_weight")).dtype, DType::f16);
  EXPECT_EQ(mixed.graph.value(mixed.graph.find("layers_0_input_norm_weight")).dtype, DType::f32);
  options.compute = DType::f16;
  const DecodeStep half = build_decode_step(fixture_model(small()), options);
  for (const Port& p : half.contract.inputs) EXPECT_EQ(p.dtype, DType::f16) << p.name;
  for (const Port& p : half.contract.outputs) EXPECT_EQ(p.dtype, DType::f16) << p.name;
  // x^2 leaves the range of f16 at |x| = 256.
  EXPECT_EQ(half.graph.value(half.graph.find("layers_0_input_norm_square")).dtype, DType::f32);
}

TEST(DecodeStep, HalfTablesAreHalfAsWide) {
  StepOptions options;
  options.context = 32;
  options.rope_width = RopeWidth::half;
  const DecodeStep step = build_decode_step(fixture_model(small()), options);
  EXPECT_EQ(port(step.contract.inputs, "cos_sw").shape, (Shape{1, 1, 1, 4}));
  EXPECT_EQ(port(step.contract.inputs, "sin_full").shape, (Shape{1, 1, 1, 1}));
}

TEST(DecodeStep, LastLogitsHaveOneRow) {
  StepOptions options;
  options.context = 32;
  options.query = 4;
  EXPECT_EQ(build_decode_step(fixture_model(small()), options).contract.outputs.front().shape, (Shape{4, 32}));
  options.logits = LogitsRows::last;
  EXPECT_EQ(build_decode_step(fixture_model(small()), options).contract.outputs.front().shape, (Shape{1, 32}));
}

struct Refusal {
  const char* name;
  std::function<void(FixtureShape&, StepOptions&)> change;
  const char* text;
};

class Refusals : public testing::TestWithParam<Refusal> {};

TEST_P(Refusals, NameTheOptionGotAndExpected) {
  FixtureShape shape = small();
  StepOptions options;
  options.context = 32;
  GetParam().change(shape, options);
  EXPECT_THAT([&] { build_decode_step(fixture_model(shape), options); }, Fails(ErrorCode::usage, HasSubstr(GetParam().text)));
}

INSTANTIATE_TEST_SUITE_P(
    Table, Refusals,
    testing::Values(
        Refusal{"zero_query", [](FixtureShape&, StepOptions& o) { o.query = 0; }, "query length"},
        Refusal{"zero_context", [](FixtureShape&, StepOptions& o) { o.context = 0; }, "context must be positive"},
        Refusal{"query_above_context", [](FixtureShape&, StepOptions& o) { o.query = 33; }, "got 33, expected at most 32"},
        Refusal{"context_above_model", [](FixtureShape&, StepOptions& o) { o.context = 257; }, "got 257, expected at most 256"},
        Refusal{"opset_too_low", [](FixtureShape&, StepOptions& o) { o.opset = 16; }, "got 16, expected 17 to 23"},
        Refusal{"opset_too_high", [](FixtureShape&, StepOptions& o) { o.opset = 24; }, "got 24, expected 17 to 23"},
        Refusal{"half_compute_with_full_weights", [](FixtureShape&, StepOptions& o) { o.compute = DType::f16; },
                "got f32, expected f16"},
        Refusal{"bf16_weights", [](FixtureShape&, StepOptions& o) { o.weights = DType::bf16; }, "got bf16"},
        Refusal{"gelu_of_a_silu_model",
                [](FixtureShape& s, StepOptions& o) {
                  s.activation = Activation::silu;
                  o.gelu = GeluForm::tanh;
                },
                "got a model without GELU"},
        Refusal{"gelu_of_a_quick_gelu_model",
                [](FixtureShape& s, StepOptions& o) {
                  s.activation = Activation::quick_gelu;
                  o.gelu = GeluForm::exact;
                },
                "got a model without GELU"},
        Refusal{"gelu_of_silu_experts",
                [](FixtureShape& s, StepOptions& o) {
                  s.experts = 2;
                  s.activation = Activation::silu;
                  o.gelu = GeluForm::tanh;
                },
                "got a model without GELU"},
        Refusal{"no_sliding_layer",
                [](FixtureShape& s, StepOptions& o) {
                  s.pattern = "FF";
                  o.layers = {LayerRange::Kind::sliding, 0, 0};
                },
                "without sliding layers"},
        Refusal{"no_full_layer",
                [](FixtureShape& s, StepOptions& o) {
                  s.pattern = "SS";
                  o.layers = {LayerRange::Kind::full, 0, 0};
                },
                "without full-attention layers"},
        Refusal{"empty_range",
                [](FixtureShape&, StepOptions& o) {
                  o.layers = {LayerRange::Kind::range, 1, 1};
                },
                "got 1:1"},
        Refusal{"range_past_the_end",
                [](FixtureShape&, StepOptions& o) {
                  o.layers = {LayerRange::Kind::range, 0, 4};
                },
                "B <= 3"},
        Refusal{"ids_into_a_later_slice",
                [](FixtureShape&, StepOptions& o) {
                  o.inputs = InputForm::ids;
                  o.layers = {LayerRange::Kind::range, 1, 2};
                },
                "got first layer 1, expected 0"},
        Refusal{"last_logits_without_head",
                [](FixtureShape&, StepOptions& o) {
                  o.logits = LogitsRows::last;
                  o.head = false;
                },
                "got no head"}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace transload
