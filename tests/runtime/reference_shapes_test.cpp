// The reference against a second forward pass, written here in double precision, over decoders of every kind of part.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "decode/model_fixture.h"
#include "runtime/reference.h"
#include "weights/executor.h"

namespace transload {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

Row numbers(const Recipe& recipe) {
  const std::vector<std::byte> bytes = materialize(cast(recipe, DType::f32));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

Row linear(const Linear& layer, const Row& x) {
  const Row weight = numbers(layer.weight);
  Row out = layer.bias.empty() ? Row(layer.weight.shape()[0], 0) : numbers(layer.bias);
  for (size_t i = 0; i < out.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) out[i] += weight[i * x.size() + j] * x[j];
  }
  return out;
}

Row normalized(const Norm& norm, const Row& x) {
  const Row weight = numbers(norm.weight);
  const Row bias = norm.bias.empty() ? Row(x.size(), 0) : numbers(norm.bias);
  double mean = 0;
  for (const double value : x) mean += norm.kind == NormKind::layer ? value / static_cast<double>(x.size()) : 0;
  double squares = 0;
  for (const double value : x) squares += (value - mean) * (value - mean);
  Row out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back((x[i] - mean) / std::sqrt(squares / static_cast<double>(x.size()) + norm.epsilon) * weight[i] + bias[i]);
  }
  return out;
}

double activated(Activation activation, double x) {
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  if (activation == Activation::quick_gelu) return x / (1 + std::exp(-1.702 * x));
  if (activation == Activation::gelu_erf) return x * std::erfc(-x / std::sqrt(2.0)) / 2;
  return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));  // 1 + tanh(y) = 2 / (1 + e^-2y)
}

// One head after its norm, turned in the plane of each pair (j, j + width / 2).
Row placed(const std::optional<Norm>& norm, const RopeGroup& group, Row head, size_t position) {
  if (norm) head = normalized(*norm, head);
  const Row before = head;
  const size_t half = group.width / 2;
  for (size_t j = 0; j < half; ++j) {
    const double angle = static_cast<double>(position) * group.inv_freq[j];
    const double c = std::cos(angle) * group.attention_factor;
    const double s = std::sin(angle) * group.attention_factor;
    head[j] = c * before[j] - s * before[j + half];
    head[j + half] = s * before[j] + c * before[j + half];
  }
  return head;
}

Row mlp_of(const Mlp& mlp, const Row& x) {
  const double limit = mlp.limit.value_or(1e30F);
  Row product = linear(mlp.gate, x);
  const Row up = linear(mlp.up, x);
  for (size_t i = 0; i < up.size(); ++i) {
    product[i] =
        activated(mlp.activation, std::min(product[i], limit)) * (std::min(std::max(up[i], -limit), limit) + mlp.up_offset);
  }
  return linear(mlp.down, product);
}

// The best expert, weighted among those near it; then the same of the others.
Row experts_of(const Experts& experts, const Row& x) {
  Row logits = linear(experts.router, x);
  Row out(x.size(), 0);
  for (int turn = 0; turn < 2; ++turn) {
    const size_t best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    double total = 0;
    for (const double r : logits) {
      if (logits[best] - r <= 2 * experts.jitter * std::max(std::abs(r), logits[best])) total += std::exp(r - logits[best]);
    }
    const Row part = mlp_of(experts.experts[best], x);
    for (size_t i = 0; i < out.size(); ++i) out[i] += part[i] / total;
    logits[best] = -1e300;
  }
  return out;
}

bool is_seen(const Attention& a, size_t head, size_t query, size_t key) {
  if (a.window && query - key >= *a.window) return false;
  if (!a.block_sparse) return true;
  const BlockSparse& s = *a.block_sparse;
  const size_t block = key / s.block;
  return query / s.block - block < s.local_blocks || (block + head * s.head_step + 1) % s.vertical_stride == 0;
}

Row head_of(const Row& row, size_t head, size_t head_dim) {
  const auto start = row.begin() + static_cast<std::ptrdiff_t>(head * head_dim);
  return {start, start + static_cast<std::ptrdiff_t>(head_dim)};
}

Rows attention_of(const DecoderModel& model, const Attention& a, const Rows& normed) {
  const RopeGroup& group = model.rope_groups[a.rope_group];
  Rows queries;
  Rows keys;
  Rows values;
  for (const Row& x : normed) {
    queries.push_back(linear(a.q, x));
    keys.push_back(linear(a.k, x));
    values.push_back(linear(a.v, x));
  }
  Rows out;
  for (size_t t = 0; t < normed.size(); ++t) {
    Row mixed;
    const Row gate = a.head_gate ? linear(*a.head_gate, normed[t]) : Row(a.heads, 0);
    for (size_t h = 0; h < a.heads; ++h) {
      const size_t kv_head = h * a.kv_heads / a.heads;
      const Row query = placed(a.q_norm, group, head_of(queries[t], h, a.head_dim), t);
      Row sum(a.head_dim, 0);
      double total = 0;
      for (size_t s = 0; s <= t; ++s) {
        if (!is_seen(a, h, t, s)) continue;
        const Row key = placed(a.k_norm, group, head_of(keys[s], kv_head, a.head_dim), s);
        const Row value = head_of(values[s], kv_head, a.head_dim);
        double score = 0;
        for (size_t i = 0; i < a.head_dim; ++i) score += query[i] * key[i];
        const double weight = std::exp(score * a.scale);
        total += weight;
        for (size_t i = 0; i < a.head_dim; ++i) sum[i] += weight * value[i];
      }
      double factor = 1 / total;
      if (a.head_gate) factor /= 1 + std::exp(-gate[h]);
      if (a.head_gate && a.gate_activation == GateActivation::silu) factor *= gate[h];
      for (const double value : sum) mixed.push_back(value * factor);
    }
    out.push_back(linear(a.o, mixed));
  }
  return out;
}

void add(Row& x, const std::optional<Norm>& norm, const Row& branch) {
  const Row added = norm ? normalized(*norm, branch) : branch;
  for (size_t i = 0; i < x.size(); ++i) x[i] += added[i];
}

Row logits_of(const DecoderModel& model, const std::vector<int32_t>& tokens) {
  const Row table = numbers(model.embedding);
  Rows x;
  for (const int32_t token : tokens) {
    x.push_back(head_of(table, static_cast<size_t>(token), model.hidden_size));
    for (double& value : x.back()) value *= model.embedding_factor;
  }
  for (const Layer& layer : model.layers) {
    Rows normed;
    for (const Row& row : x) normed.push_back(normalized(layer.input_norm, row));
    const Rows attention = attention_of(model, layer.attention, normed);
    for (size_t t = 0; t < x.size(); ++t) {
      add(x[t], layer.post_attention_norm, attention[t]);
      const Row inner = normalized(layer.mlp_norm, x[t]);
      add(x[t], layer.post_mlp_norm, layer.experts ? experts_of(*layer.experts, inner) : mlp_of(layer.mlp, inner));
    }
  }
  Row logits;
  for (const Row& row : x) {
    Row of_token = linear({model.head, model.head_bias}, normalized(model.final_norm, row));
    for (double& value : of_token) value *= model.logits_factor;
    logits.insert(logits.end(), of_token.begin(), of_token.end());
  }
  return logits;
}

// Weights large enough that every part moves the logits, and a bias for each projection named in `biased`.
void strengthen(DecoderModel& model, uint32_t biased) {
  uint64_t seed = 1000;
  const auto stronger = [&](Linear& linear, bool with_bias) {
    linear.weight = affine(linear.weight, 15, 0);
    if (with_bias) linear.bias = random(DType::f32, {linear.weight.shape()[0]}, ++seed, 0.5F);
  };
  for (Layer& layer : model.layers) {
    Linear* const all[] = {&layer.attention.q, &layer.attention.k, &layer.attention.v, &layer.attention.o,
                           &layer.mlp.gate,    &layer.mlp.up,      &layer.mlp.down};
    for (uint32_t i = 0; i < 7; ++i) stronger(*all[i], (biased >> i & 1) != 0);
    if (layer.attention.head_gate) stronger(*layer.attention.head_gate, (biased >> 7 & 1) != 0);
  }
  model.embedding = affine(model.embedding, 30, 0);
  model.head = model.tied_head ? model.embedding : affine(model.head, 15, 0);
}

RopeGroup rope_group(const std::string& name, uint32_t width, float base, float factor) {
  RopeGroup group{name, width, {}, factor};
  for (uint32_t j = 0; j < width / 2; ++j) {
    group.inv_freq.push_back(std::pow(base, -2.0F * static_cast<float>(j) / static_cast<float>(width)));
  }
  return group;
}

// Norms that take the mean off, with biases; block-sparse attention in place of windows; limits, or experts.
void vary(DecoderModel& model, const BlockSparse& sparse, uint32_t experts, uint64_t seed) {
  const auto vary_norm = [&](Norm& norm) {
    norm.kind = NormKind::layer;
    norm.bias = random(DType::f32, norm.weight.shape(), ++seed, 0.3F);
  };
  for (Layer& layer : model.layers) {
    vary_norm(layer.input_norm);
    vary_norm(layer.mlp_norm);
    if (layer.attention.q_norm) vary_norm(*layer.attention.q_norm);
    if (layer.attention.window) layer.attention.block_sparse = sparse;
    layer.attention.window.reset();
    layer.mlp.limit = 0.5F;
    layer.mlp.up_offset = 1;
    layer.mlp.activation = Activation::quick_gelu;
    if (experts == 0) continue;
    layer.experts = Experts{
        .chosen = 2, .jitter = 0.3, .router = {random(DType::f32, {experts, model.hidden_size}, ++seed, 1), {}}, .experts = {}};
    for (uint32_t e = 0; e < experts; ++e) {
      Mlp expert = layer.mlp;
      for (Linear* part : {&expert.gate, &expert.up, &expert.down}) {
        part->weight = random(DType::f32, part->weight.shape(), ++seed, 0.4F);
      }
      layer.experts->experts.push_back(expert);
    }
    layer.mlp = {};
  }
  vary_norm(model.final_norm);
  model.head_bias = random(DType::f32, {model.vocab_size}, ++seed, 2);
  model.logits_factor = 0.37F;
}

void expect_agreement(const DecoderModel& model, size_t token_count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < token_count; ++i) tokens.push_back(static_cast<int32_t>((i * i * 7 + i * 3 + 1) % model.vocab_size));
  const Row expected = logits_of(model, tokens);
  double scale = 0;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (const uint32_t block : {1U, 4U, 128U}) {
    WeightStore store;
    WorkerPool pool(2);
    Reference reference(model, store, pool);
    std::vector<float> got;
    ReferenceSinks sinks;
    sinks.every_row = true;
    sinks.logits = [&](uint64_t, std::span<const float> row) { got.insert(got.end(), row.begin(), row.end()); };
    reference.read(tokens, sinks, block);
    ASSERT_EQ(got.size(), expected.size());
    size_t wrong = 0;  // counted so that a NaN is wrong too
    for (size_t i = 0; i < got.size(); ++i) wrong += std::abs(got[i] - expected[i]) <= 1e-4 * scale ? 0 : 1;
    EXPECT_EQ(wrong, 0U) << "in blocks of " << block;
  }
}

TEST(ReferenceShapes, ThreeHeadsOfTenOverOneKeyHeadWithEveryPart) {
  FixtureShape shape{.pattern = "SFS",
                     .window = 3,
                     .hidden = 22,
                     .intermediate = 37,
                     .heads = 3,
                     .kv_heads = 1,
                     .head_dim = 10,
                     .vocab = 41,
                     .max_positions = 64,
                     .tied = false,
                     .head_gate = true,
                     .qk_norm = true,
                     .four_norms = true,
                     .embedding_factor = 1.7F,
                     .activation = Activation::gelu_tanh};
  DecoderModel model = fixture_model(shape);
  strengthen(model, 0xFF);
  model.rope_groups = {rope_group("sw", 4, 100, 1.25F), rope_group("full", 10, 500, 1.0F)};
  for (Layer& layer : model.layers) layer.attention.gate_activation = GateActivation::silu;
  expect_agreement(model, 11);
}

TEST(ReferenceShapes, WindowsAndContextsLongerThanABlockOfKeys) {
  FixtureShape shape{.pattern = "SF",
                     .window = 70,
                     .hidden = 12,
                     .intermediate = 9,
                     .heads = 6,
                     .kv_heads = 2,
                     .head_dim = 6,
                     .vocab = 300,
                     .max_positions = 200};
  DecoderModel model = fixture_model(shape);
  strengthen(model, 0);
  model.rope_groups = {rope_group("sw", 6, 10, 1.0F), rope_group("full", 4, 500, 1.0F)};
  expect_agreement(model, 170);
}

// Their exponentials leave the range of fp32.
TEST(ReferenceShapes, ScoresOfHundreds) {
  DecoderModel model = fixture_model({.pattern = "F",
                                      .hidden = 12,
                                      .intermediate = 9,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .head_dim = 6,
                                      .vocab = 30,
                                      .max_positions = 200});
  model.rope_groups = {rope_group("sw", 6, 10, 1.0F), rope_group("full", 4, 500, 1.0F)};
  Attention& attention = model.layers[0].attention;
  attention.scale = 1;
  for (Linear* linear : {&attention.q, &attention.k}) linear->bias = constant({12}, std::vector<float>(12, 8.0F));
  expect_agreement(model, 5);
}

TEST(ReferenceShapes, AnyMixOfParts) {
  std::mt19937 generator(20240607);
  const auto pick = [&](uint32_t low, uint32_t high) { return low + static_cast<uint32_t>(generator() % (high - low + 1)); };
  for (int round = 0; round < 40; ++round) {
    FixtureShape shape;
    shape.pattern = std::vector<std::string>{"S", "F", "SF", "FS", "SSF"}[pick(0, 4)];
    shape.window = pick(1, 9);
    shape.hidden = pick(1, 40);
    shape.intermediate = pick(1, 50);
    shape.kv_heads = pick(1, 3);
    shape.heads = shape.kv_heads * pick(1, 3);
    shape.head_dim = 2 * pick(1, 9);
    shape.vocab = pick(2, 60);
    shape.max_positions = 64;
    shape.tied = pick(0, 1) == 1;
    shape.head_gate = pick(0, 1) == 1;
    shape.qk_norm = pick(0, 1) == 1;
    shape.four_norms = pick(0, 1) == 1;
    shape.embedding_factor = pick(0, 1) == 1 ? 1.0F : 3.5F;
    shape.activation = static_cast<Activation>(pick(0, 2));
    DecoderModel model = fixture_model(shape);
    strengthen(model, pick(0, 255));
    model.rope_groups = {rope_group("sw", 2 * pick(1, shape.head_dim / 2), 50, 1.0F),
                         rope_group("full", 2 * pick(1, shape.head_dim / 2), 900, 1.3F)};
    for (Layer& layer : model.layers) {
      layer.attention.gate_activation = pick(0, 1) == 1 ? GateActivation::silu : GateActivation::sigmoid;
      layer.attention.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
    }
    SCOPED_TRACE(fmt::format("round {}: {} window {} hidden {} heads {} over {} of {}", round, shape.pattern, shape.window,
                             shape.hidden, shape.heads, shape.kv_heads, shape.head_dim));
    expect_agreement(model, pick(1, 14));
    const BlockSparse sparse{pick(1, 4), pick(1, 3), pick(1, 4), pick(0, 3)};
    vary(model, sparse, pick(0, 1) == 1 ? pick(2, 5) : 0, 5000 * static_cast<uint64_t>(round));
    expect_agreement(model, pick(1, 20));
  }
}

}  // namespace
}  // namespace transload
