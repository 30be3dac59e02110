// The reference against golden outputs of other implementations, and what must not change its results.
#include "runtime/reference.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "decode/model_fixture.h"
#include "error_matchers.h"
#include "runtime/golden.h"

namespace transload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Everything a run shows: taps by name with the rows of all blocks joined, and logits.
struct Recording {
  std::map<std::string, std::vector<float>, std::less<>> taps;
  std::vector<std::string> order;
  std::vector<float> logits;
  std::vector<uint64_t> positions;

  const std::vector<float>& at(std::string_view name) const { return taps.find(name)->second; }

  ReferenceSinks sinks(bool with_taps = true, bool every_row = true) {
    ReferenceSinks sinks;
    sinks.every_row = every_row;
    sinks.logits = [this](uint64_t position, std::span<const float> row) {
      positions.push_back(position);
      logits.insert(logits.end(), row.begin(), row.end());
    };
    if (!with_taps) return sinks;
    sinks.tap = [this](std::string_view name, uint64_t, uint64_t rows, std::span<const float> values) {
      EXPECT_EQ(values.size() % rows, 0U);
      order.emplace_back(name);
      std::vector<float>& all = taps[std::string(name)];
      all.insert(all.end(), values.begin(), values.end());
    };
    return sinks;
  }
};

Recording run(const DecoderModel& model, std::span<const int32_t> tokens, uint32_t block = 128, uint32_t workers = 2,
              bool with_taps = true) {
  WeightStore store;
  WorkerPool pool(workers);
  Reference reference(model, store, pool);
  Recording recording;
  reference.read(tokens, recording.sinks(with_taps), block);
  return recording;
}

float largest(std::span<const float> values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

// Infinity when the sizes differ or a value is NaN.
double difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double distance = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(distance <= most)) most = std::isnan(distance) ? INFINITY : distance;
  }
  return most;
}

// [L, kv_heads, T, head_dim] of one layer as the reference shows it: [T, kv_heads * head_dim].
std::vector<float> token_major(const Golden::Values& cache, uint64_t layer) {
  const uint64_t heads = cache.shape[1];
  const uint64_t tokens = cache.shape[2];
  const uint64_t head_dim = cache.shape[3];
  std::vector<float> out;
  for (uint64_t t = 0; t < tokens; ++t) {
    for (uint64_t h = 0; h < heads; ++h) {
      const auto row = cache.data.begin() + static_cast<std::ptrdiff_t>(((layer * heads + h) * tokens + t) * head_dim);
      out.insert(out.end(), row, row + static_cast<std::ptrdiff_t>(head_dim));
    }
  }
  return out;
}

std::vector<int32_t> some_tokens(size_t count, uint32_t vocab) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>((i * 37 + 11) % vocab);
  return tokens;
}

FixtureShape small_shape() {
  FixtureShape shape;
  shape.window = 5;
  shape.hidden = 48;
  shape.intermediate = 80;
  shape.heads = 6;
  shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.vocab = 96;
  shape.max_positions = 1000;
  return shape;
}

std::vector<std::string> all_goldens() {
  std::vector<std::string> names = golden_names();
  for (const std::string& name : phi_golden_names()) names.push_back(name);
  return names;
}

DecoderModel model_of(const Golden& golden, const Checkpoint& checkpoint) {
  return build_model(checkpoint, {.context = static_cast<uint32_t>(golden.positions)});
}

class GoldenReference : public testing::TestWithParam<std::string> {};

TEST_P(GoldenReference, GivesTheStatesOfEveryLayerAndTheLogits) {
  const Golden golden = read_golden(GetParam());
  const Checkpoint checkpoint = golden.checkpoint();
  const DecoderModel model = model_of(golden, checkpoint);
  const Recording got = run(model, golden.read_tokens());

  const Golden::Values& logits = golden.at("logits");
  EXPECT_LE(difference(got.logits, logits.data), golden.max_abs_logits);
  EXPECT_EQ(got.logits, got.at("logits"));
  for (uint64_t p = golden.prompt - 1; p < golden.positions; ++p) {
    const auto row = got.logits.begin() + static_cast<std::ptrdiff_t>(p * model.vocab_size);
    EXPECT_EQ(std::max_element(row, row + model.vocab_size) - row, golden.tokens[p + 1]) << "position " << p;
  }

  const Golden::Values& hidden = golden.at("hidden");
  const uint64_t state = golden.prompt * model.hidden_size;
  ASSERT_EQ(hidden.shape[0], model.layers.size() + 1);
  for (uint64_t i = 0; i <= model.layers.size(); ++i) {
    std::string name = fmt::format("layers_{}_out", i - 1);
    if (i == 0) name = model.embedding_factor == 1.0F ? "x" : "x_scaled";
    if (i == model.layers.size()) name = "final_norm";
    const std::span<const float> expected = std::span(hidden.data).subspan(i * state, state);
    EXPECT_LE(difference(std::span(got.at(name)).first(state), expected), 1e-4 * largest(expected)) << name;
  }
  const std::vector<float>& last = got.at(fmt::format("layers_{}_out", model.layers.size() - 1));
  const std::vector<float>& pre_norm = golden.at("pre_norm").data;
  EXPECT_LE(difference(std::span(last).first(state), pre_norm), 1e-4 * largest(pre_norm));

  for (uint64_t i = 0; i < model.layers.size(); ++i) {
    const std::vector<float> keys = token_major(golden.at("k"), i);
    const std::vector<float> values = token_major(golden.at("v"), i);
    EXPECT_LE(difference(got.at(fmt::format("k_new_{}", i)), keys), 1e-4 * largest(keys)) << "keys of layer " << i;
    EXPECT_LE(difference(got.at(fmt::format("v_new_{}", i)), values), 1e-4 * largest(values)) << "values of layer " << i;
  }

  for (uint64_t i = 0; !golden.experts.empty() && i < model.layers.size(); ++i) {
    const std::vector<float>& routing = got.at(fmt::format("layers_{}_mlp_routing", i));
    const std::vector<float>& router = got.at(fmt::format("layers_{}_mlp_router", i));
    const uint64_t count = model.layers[i].experts->experts.size();
    std::vector<int32_t> chosen;
    for (uint64_t p = 0; p < golden.positions; ++p) {
      std::vector<int32_t> of_token;
      for (uint64_t e = 0; e < count; ++e) {
        if (routing[p * count + e] != 0) of_token.push_back(static_cast<int32_t>(e));
      }
      std::sort(of_token.begin(), of_token.end(), [&](int32_t a, int32_t b) {
        return router[p * count + static_cast<uint64_t>(a)] > router[p * count + static_cast<uint64_t>(b)];
      });
      chosen.insert(chosen.end(), of_token.begin(), of_token.end());
    }
    const auto begin = golden.experts.begin() + static_cast<std::ptrdiff_t>(i * golden.positions * 2);
    EXPECT_EQ(chosen, std::vector<int32_t>(begin, begin + static_cast<std::ptrdiff_t>(golden.positions * 2))) << "layer " << i;
  }
}

TEST_P(GoldenReference, GivesTheSameInBlocksOfAnySize) {
  const Golden golden = read_golden(GetParam());
  const Checkpoint checkpoint = golden.checkpoint();
  const DecoderModel model = model_of(golden, checkpoint);
  for (const uint32_t block : {1U, 3U}) {
    EXPECT_LE(difference(run(model, golden.read_tokens(), block, 2, false).logits, golden.at("logits").data),
              golden.max_abs_logits);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenReference, testing::ValuesIn(all_goldens()), [](const auto& test) { return test.param; });

// Fused, grouped and interleaved rows are views of the stored tensors.
TEST(Reference, ComputesNoMatrixOfThePhiGoldensAnew) {
  for (const char* name : {"phi3", "phimoe", "phi3small_unofficial"}) {
    const Golden golden = read_golden(name);
    const Checkpoint checkpoint = golden.checkpoint();
    const DecoderModel model = build_model(checkpoint);
    WeightStore store;
    WorkerPool pool(1);
    const Reference reference(model, store, pool);
    EXPECT_EQ(store.owned_bytes(), 0U) << name;
    EXPECT_GT(store.mapped_bytes(), 0U) << name;
  }
}

TEST(Reference, DoesNotDependOnTheNumberOfWorkers) {
  FixtureShape shape = small_shape();
  shape.window = 70;
  shape.qk_norm = shape.four_norms = true;
  const DecoderModel model = fixture_model(shape);
  const std::vector<int32_t> tokens = some_tokens(150, shape.vocab);
  for (const uint32_t block : {1U, 37U, 128U}) {
    const Recording expected = run(model, tokens, block, 1);
    for (const uint32_t workers : {2U, 5U}) {
      const Recording got = run(model, tokens, block, workers);
      ASSERT_EQ(got.logits.size(), expected.logits.size());
      EXPECT_EQ(std::memcmp(got.logits.data(), expected.logits.data(), got.logits.size() * sizeof(float)), 0);
      EXPECT_EQ(got.taps, expected.taps);
    }
  }
}

TEST(Reference, ShowsEveryValueByTheNamesOfTheGraph) {
  FixtureShape shape = small_shape();
  shape.pattern = "F";
  shape.embedding_factor = 2;
  shape.four_norms = true;
  const DecoderModel model = fixture_model(shape);
  EXPECT_THAT(run(model, some_tokens(3, shape.vocab)).order,
              ElementsAre("x", "x_scaled", "layers_0_input_norm", "layers_0_attn_q", "layers_0_attn_k", "layers_0_attn_v",
                          "layers_0_attn_q_rope", "k_new_0", "v_new_0", "layers_0_attn_heads", "layers_0_attn_heads_gated",
                          "layers_0_attn_o", "layers_0_post_attn_norm", "layers_0_attn_out", "layers_0_mlp_norm",
                          "layers_0_mlp_gate", "layers_0_mlp_act", "layers_0_mlp_up", "layers_0_mlp_product", "layers_0_mlp_down",
                          "layers_0_post_mlp_norm", "layers_0_out", "final_norm", "logits"));
  shape.embedding_factor = 1;
  shape.four_norms = shape.head_gate = false;
  const DecoderModel plain = fixture_model(shape);
  EXPECT_THAT(run(plain, some_tokens(3, shape.vocab)).order,
              ElementsAre("x", "layers_0_input_norm", "layers_0_attn_q", "layers_0_attn_k", "layers_0_attn_v",
                          "layers_0_attn_q_rope", "k_new_0", "v_new_0", "layers_0_attn_heads", "layers_0_attn_o",
                          "layers_0_attn_out", "layers_0_mlp_norm", "layers_0_mlp_gate", "layers_0_mlp_act", "layers_0_mlp_up",
                          "layers_0_mlp_product", "layers_0_mlp_down", "layers_0_out", "final_norm", "logits"));
}

TEST(Reference, GivesTheLogitsAskedFor) {
  const DecoderModel model = fixture_model(small_shape());
  const std::vector<int32_t> tokens = some_tokens(40, model.vocab_size);
  const Recording every = run(model, tokens, 16, 2, false);
  std::vector<uint64_t> positions(40);
  for (uint64_t i = 0; i < positions.size(); ++i) positions[i] = i;
  EXPECT_EQ(every.positions, positions);

  WeightStore store;
  WorkerPool pool(2);
  Reference reference(model, store, pool);
  Recording last;
  reference.read(tokens, last.sinks(false, false), 16);
  EXPECT_THAT(last.positions, ElementsAre(39));
  EXPECT_LE(difference(last.logits, std::span(every.logits).last(model.vocab_size)), 1e-5);
  EXPECT_EQ(reference.position(), 40U);

  std::vector<std::string> names;
  ReferenceSinks taps;
  taps.tap = [&](std::string_view name, uint64_t first, uint64_t rows, std::span<const float>) {
    names.emplace_back(name);
    EXPECT_EQ(first, 40U);
    EXPECT_EQ(rows, 2U);
  };
  reference.read(std::vector<int32_t>{1, 2}, taps);
  EXPECT_EQ(names.back(), "final_norm");
}

TEST(Reference, StartsAgainAfterAReset) {
  const DecoderModel model = fixture_model(small_shape());
  const std::vector<int32_t> tokens = some_tokens(20, model.vocab_size);
  WeightStore store;
  WorkerPool pool(2);
  Reference reference(model, store, pool);
  Recording first;
  Recording second;
  reference.read(tokens, first.sinks(false));
  reference.reset();
  EXPECT_EQ(reference.position(), 0U);
  EXPECT_EQ(reference.kv_bytes(), 0U);
  reference.read(tokens, second.sinks(false));
  EXPECT_EQ(first.logits, second.logits);
  EXPECT_EQ(second.positions.front(), 0U);
}

TEST(Reference, HoldsNoMoreOfAWindowThanItMaySee) {
  FixtureShape shape = small_shape();
  shape.pattern = "SF";
  const DecoderModel model = fixture_model(shape);
  const std::vector<int32_t> tokens = some_tokens(900, shape.vocab);
  WeightStore store;
  WorkerPool pool(2);
  Reference reference(model, store, pool);
  reference.read(tokens, {}, 1);
  const uint64_t token_bytes = 2 * sizeof(float) * shape.kv_heads * shape.head_dim;
  EXPECT_GE(reference.kv_bytes(), (900 + shape.window) * token_bytes);
  EXPECT_LE(reference.kv_bytes(), (900 + 100) * token_bytes);
}

// A block that a sink breaks off is read again from its start.
TEST(Reference, KeepsItsPositionWhenASinkThrows) {
  const DecoderModel model = fixture_model(small_shape());
  const std::vector<int32_t> tokens = some_tokens(40, model.vocab_size);
  const Recording expected = run(model, tokens, 8, 2, false);
  WeightStore store;
  WorkerPool pool(2);
  Reference reference(model, store, pool);
  ReferenceSinks broken;
  broken.tap = [](std::string_view name, uint64_t first, uint64_t, std::span<const float>) {
    if (name == "layers_2_attn_o" && first == 24) throw Error(ErrorCode::internal, "broken off");
  };
  EXPECT_THAT([&] { reference.read(tokens, broken, 8); }, Fails(ErrorCode::internal, HasSubstr("broken off")));
  EXPECT_EQ(reference.position(), 24U);
  Recording rest;
  reference.read(std::span(tokens).subspan(24), rest.sinks(false), 8);
  EXPECT_TRUE(std::equal(rest.logits.begin(), rest.logits.end(), expected.logits.begin() + 24 * model.vocab_size));
}

TEST(Reference, RefusesTokensItCannotRead) {
  FixtureShape shape = small_shape();
  shape.max_positions = 10;
  const DecoderModel model = fixture_model(shape);
  WeightStore store;
  WorkerPool pool(1);
  Reference reference(model, store, pool);
  const auto read = [&](std::vector<int32_t> tokens, uint32_t block = 4) { reference.read(tokens, {}, block); };
  read({1, 2, 3});
  EXPECT_THAT([&] { read({}); }, Fails(ErrorCode::usage, HasSubstr("no tokens to read: got 0")));
  EXPECT_THAT([&] { read({1}, 0); }, Fails(ErrorCode::usage, HasSubstr("tokens read at once: got 0")));
  EXPECT_THAT([&] { read({1, -1}); }, Fails(ErrorCode::usage, HasSubstr("got -1, expected 0 to 95")));
  EXPECT_THAT([&] { read({1, 1, 1, 1, 96}); }, Fails(ErrorCode::usage, HasSubstr("got 96, expected 0 to 95")));
  EXPECT_THAT([&] { read(std::vector<int32_t>(8, 1)); },
              Fails(ErrorCode::usage, HasSubstr("got 8 tokens after 3, expected at most 10 in all")));
  EXPECT_EQ(reference.position(), 3U);
  read(std::vector<int32_t>(7, 1));
  EXPECT_EQ(reference.position(), 10U);
  EXPECT_THAT([&] { read({1}); }, Fails(ErrorCode::usage, HasSubstr("got 1 tokens after 10")));
}

TEST(Reference, RefusesDescriptionsThatDoNotFitTogether) {
  WeightStore store;
  WorkerPool pool(1);
  const auto refuses = [&](const auto& change, ErrorCode code, const std::string& text) {
    DecoderModel model = fixture_model(small_shape());
    change(model);
    EXPECT_THAT([&] { Reference(model, store, pool); }, Fails(code, HasSubstr(text)));
  };
  const Recipe narrow = random(DType::f32, {48, 40}, 1, 0.1F);
  refuses([&](DecoderModel& m) { m.layers[1].mlp.down.weight = narrow; }, ErrorCode::shape_mismatch, "expected [48,80]");
  refuses([&](DecoderModel& m) { m.head = narrow; }, ErrorCode::shape_mismatch, "expected [96,48]");
  refuses([&](DecoderModel& m) { m.final_norm.weight = narrow; }, ErrorCode::shape_mismatch, "expected [48]");
  refuses([&](DecoderModel& m) { m.layers[0].attention.q.bias = narrow; }, ErrorCode::shape_mismatch, "expected [96]");
  refuses([&](DecoderModel& m) { m.layers[0].attention.kv_heads = 4; }, ErrorCode::internal, "got 6 heads, 4 KV heads");
  refuses([&](DecoderModel& m) { m.layers[0].attention.window = 0; }, ErrorCode::internal, "window 0");
  refuses([&](DecoderModel& m) { m.final_norm.bias = narrow; }, ErrorCode::shape_mismatch, "expected [48]");
  refuses([&](DecoderModel& m) { m.head_bias = narrow; }, ErrorCode::shape_mismatch, "expected [96]");
  refuses([&](DecoderModel& m) { m.layers[0].mlp = {}; }, ErrorCode::internal, "feed-forward weights: got nothing");
  refuses(
      [&](DecoderModel& m) {
        m.layers[0].attention.block_sparse = BlockSparse{4, 1, 3, 1};
      },
      ErrorCode::internal, "window 5, sparse blocks 4, 1 local, stride 3");
  const auto sparse = [&](const BlockSparse& pattern, const std::string& text) {
    refuses(
        [&](DecoderModel& m) {
          m.layers[0].attention.window.reset();
          m.layers[0].attention.block_sparse = pattern;
        },
        ErrorCode::internal, text);
  };
  sparse({0, 1, 3, 1}, "sparse blocks 0");
  sparse({4, 0, 3, 1}, "0 local");
  sparse({4, 1, 0, 1}, "stride 0");
  const auto experts = [&](uint32_t count, uint32_t chosen, ErrorCode code, const std::string& text) {
    refuses(
        [&](DecoderModel& m) {
          m.layers[0].experts = Experts{.chosen = chosen, .router = {random(DType::f32, {2, 48}, 1, 0.1F), {}}, .experts = {}};
          m.layers[0].experts->experts.assign(count, m.layers[0].mlp);
        },
        code, text);
  };
  experts(1, 2, ErrorCode::internal, "got 2 of 1 chosen, expected 2");
  experts(4, 3, ErrorCode::internal, "got 3 of 4 chosen, expected 2");
  experts(4, 2, ErrorCode::shape_mismatch, "expected [4,48]");
  refuses([&](DecoderModel& m) { m.layers[3].attention.rope_group = 2; }, ErrorCode::internal, "rope group 2");
  refuses([&](DecoderModel& m) { m.rope_groups[0].inv_freq.pop_back(); }, ErrorCode::internal, "rope group 0");
  refuses(
      [&](DecoderModel& m) {
        m.rope_groups[1] = {"full", 32, std::vector<float>(16, 1.0F), 1.0F};
      },
      ErrorCode::internal, "rope group 1");
}

}  // namespace
}  // namespace transload
