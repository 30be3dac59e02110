// Reference: the walk of a block of tokens through embedding, layers and head.
#include "runtime/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/activations.h"
#include "runtime/matmul.h"
#include "runtime/reference_attention.h"
#include "runtime/reference_experts.h"
#include "runtime/reference_weights.h"
#include "runtime/token_ids.h"
#include "transload/error.h"

namespace transload {
namespace {

// Values of an elementwise pass that are worth another worker.
constexpr uint64_t kElementGrain = 4096;
// Rows of logits made at once: a vocabulary of 256 Ki takes 1 MiB a row.
constexpr uint64_t kLogitRows = 32;

// `out` may be `in`.
void normalize(const NormWeights& norm, const float* in, float* out) {
  const uint64_t width = norm.weight.size();
  if (norm.kind == NormKind::layer) {
    double sum = 0;
    for (uint64_t i = 0; i < width; ++i) sum += in[i];
    const auto mean = static_cast<float>(sum / static_cast<double>(width));
    for (uint64_t i = 0; i < width; ++i) out[i] = in[i] - mean;
    in = out;
  }
  const float square = dot_product(in, in, width) / static_cast<float>(width);
  const float rms = std::sqrt(square + norm.epsilon);
  for (uint64_t i = 0; i < width; ++i) out[i] = in[i] / rms * norm.weight[i];
  if (norm.bias.empty()) return;
  for (uint64_t i = 0; i < width; ++i) out[i] += norm.bias[i];
}

}  // namespace

struct Reference::State {
  const DecoderModel& model;
  WorkerPool& pool;
  ModelWeights weights;
  std::vector<KeyValueHistory> histories;
  uint64_t position = 0;

  // Of the block being read.
  uint64_t rows = 0;
  const ValueTap* tap = nullptr;
  std::vector<RopeTable> rope;
  std::vector<float> x;  // the residual stream
  std::vector<float> normed;
  std::vector<float> branch;
  std::vector<float> query;
  std::vector<float> scores;
  std::vector<float> heads;
  std::vector<float> head_gate;
  std::vector<float> gate;
  std::vector<float> up;
  std::vector<float> router;
  std::vector<float> routing;
  std::vector<float> expert_in;
  std::vector<float> expert_out;
  std::vector<float> logits;

  State(const DecoderModel& described, WeightStore& store, WorkerPool& workers)
      : model(described), pool(workers), weights(load_weights(described, store)) {
    for (const Layer& layer : model.layers) {
      histories.emplace_back(uint64_t{layer.attention.kv_heads} * layer.attention.head_dim, layer.attention.window);
    }
  }

  void show(std::string_view name, const float* values, uint64_t width) const { show(name, values, width, position, rows); }
  void show(std::string_view name, const float* values, uint64_t width, uint64_t first, uint64_t count) const {
    if (*tap) (*tap)(name, first, count, {values, count * width});
  }
  void show(uint64_t index, std::string_view what, const float* values, uint64_t width) const {
    if (*tap) show(fmt::format("layers_{}_{}", index, what), values, width);
  }

  const float* multiply(const LinearWeights& linear, const std::vector<float>& in, std::vector<float>& out) {
    out.resize(in.size() / linear.weight.columns * linear.weight.rows);
    multiply_into(linear, in, out.data());
    return out.data();
  }
  void multiply_into(const LinearWeights& linear, const std::vector<float>& in, float* out) {
    multiply_into(linear, in.data(), in.size() / linear.weight.columns, out);
  }
  void multiply_into(const LinearWeights& linear, const float* in, uint64_t count, float* out) {
    multiply_transposed(pool, in, count, linear.weight, linear.bias.empty() ? nullptr : linear.bias.data(), out);
  }

  // Calls `part(begin, end)` for ranges of the values of the block.
  template <class Part>
  void for_elements(uint64_t count, const Part& part) {
    pool.run(count, kElementGrain, [&](uint64_t begin, uint64_t end, uint32_t) { part(begin, end); });
  }
  template <class Row>
  void for_rows(uint64_t width, const Row& row) {
    pool.run(rows, std::max<uint64_t>(1, kElementGrain / width), [&](uint64_t begin, uint64_t end, uint32_t) {
      for (uint64_t i = begin; i < end; ++i) row(i);
    });
  }

  void normalize_rows(const NormWeights& norm, const float* in, float* out) {
    const uint64_t width = norm.weight.size();
    for_rows(width, [&](uint64_t row) { normalize(norm, in + row * width, out + row * width); });
  }

  void add_branch() {
    for_elements(x.size(), [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) x[i] += branch[i];
    });
  }

  void embed(std::span<const int32_t> tokens) {
    const uint64_t hidden = model.hidden_size;
    x.resize(rows * hidden);
    normed.resize(rows * hidden);
    for_rows(hidden,
             [&](uint64_t row) { read_row(weights.embedding, static_cast<uint64_t>(tokens[row]), x.data() + row * hidden); });
    show("x", x.data(), hidden);
    if (model.embedding_factor == 1.0F) return;
    for_elements(x.size(), [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) x[i] *= model.embedding_factor;
    });
    show("x_scaled", x.data(), hidden);
  }

  // Normalises and turns the heads of each row in place.
  void place_heads(const std::optional<NormWeights>& norm, const RopeTable& table, float* values, uint64_t heads_of_row,
                   uint64_t head_dim) {
    for_rows(heads_of_row * head_dim, [&](uint64_t row) {
      for (uint64_t i = 0; i < heads_of_row; ++i) {
        float* one = values + (row * heads_of_row + i) * head_dim;
        if (norm) normalize(*norm, one, one);
        table.turn(one, row);
      }
    });
  }

  // normed -> branch
  void run_attention(uint64_t index) {
    const Attention& attention = model.layers[index].attention;
    const LayerWeights& layer = weights.layers[index];
    KeyValueHistory& history = histories[index];
    const RopeTable& table = rope[attention.rope_group];
    const uint64_t q_width = uint64_t{attention.heads} * attention.head_dim;
    const uint64_t kv_width = history.width();

    history.extend(position, rows);
    float* keys = history.key(position);
    float* values = history.value(position);
    show(index, "attn_q", multiply(layer.q, normed, query), q_width);
    multiply_into(layer.k, normed, keys);
    show(index, "attn_k", keys, kv_width);
    multiply_into(layer.v, normed, values);
    show(index, "attn_v", values, kv_width);
    place_heads(layer.q_norm, table, query.data(), attention.heads, attention.head_dim);
    show(index, "attn_q_rope", query.data(), q_width);
    place_heads(layer.k_norm, table, keys, attention.kv_heads, attention.head_dim);
    if (*tap) {
      show(fmt::format("k_new_{}", index), keys, kv_width);
      show(fmt::format("v_new_{}", index), values, kv_width);
    }

    heads.resize(rows * q_width);
    attend(pool, attention, history, position, rows, query.data(), heads.data(), scores);
    show(index, "attn_heads", heads.data(), q_width);
    if (layer.head_gate) {
      multiply(*layer.head_gate, normed, head_gate);
      activate(attention.gate_activation, head_gate.data(), head_gate.size());
      for_rows(q_width, [&](uint64_t row) {
        for (uint64_t i = 0; i < q_width; ++i) {
          heads[row * q_width + i] *= head_gate[row * attention.heads + i / attention.head_dim];
        }
      });
      show(index, "attn_heads_gated", heads.data(), q_width);
    }
    show(index, "attn_o", multiply(layer.o, heads, branch), model.hidden_size);
  }

  void activate_gates(const Mlp& mlp) {
    for_elements(gate.size(), [&](uint64_t begin, uint64_t end) { activate_gate(mlp, gate.data() + begin, end - begin); });
  }
  void multiply_by_ups(const Mlp& mlp) {
    for_elements(gate.size(),
                 [&](uint64_t begin, uint64_t end) { multiply_by_up(mlp, up.data() + begin, gate.data() + begin, end - begin); });
  }

  // normed -> branch
  void run_mlp(uint64_t index) {
    const Mlp& mlp = model.layers[index].mlp;
    const MlpWeights& layer = weights.layers[index].mlp;
    const uint64_t width = layer.gate.weight.rows;
    show(index, "mlp_gate", multiply(layer.gate, normed, gate), width);
    activate_gates(mlp);
    show(index, "mlp_act", gate.data(), width);
    show(index, "mlp_up", multiply(layer.up, normed, up), width);
    multiply_by_ups(mlp);
    show(index, "mlp_product", gate.data(), width);
    show(index, "mlp_down", multiply(layer.down, gate, branch), model.hidden_size);
  }

  // normed -> branch; the tokens of an expert go through it together.
  void run_experts(uint64_t index) {
    const Experts& experts = *model.layers[index].experts;
    const LayerWeights& layer = weights.layers[index];
    const uint64_t count = experts.experts.size();
    const uint64_t hidden = model.hidden_size;
    show(index, "mlp_router", multiply(layer.router, normed, router), count);
    routing.resize(rows * count);
    for (uint64_t row = 0; row < rows; ++row) {
      sparse_mixer(std::span(router).subspan(row * count, count), experts.jitter, routing.data() + row * count);
    }
    show(index, "mlp_routing", routing.data(), count);
    branch.assign(rows * hidden, 0.0F);
    for (uint64_t e = 0; e < count; ++e) run_expert(experts.experts[e], layer.experts[e], e, count);
    show(index, "mlp_down", branch.data(), hidden);
  }

  void run_expert(const Mlp& mlp, const MlpWeights& expert, uint64_t index, uint64_t count) {
    const uint64_t hidden = model.hidden_size;
    expert_in.clear();
    for (uint64_t row = 0; row < rows; ++row) {
      if (routing[row * count + index] == 0) continue;
      const float* token = normed.data() + row * hidden;
      expert_in.insert(expert_in.end(), token, token + hidden);
    }
    if (expert_in.empty()) return;
    multiply(expert.gate, expert_in, gate);
    activate_gates(mlp);
    multiply(expert.up, expert_in, up);
    multiply_by_ups(mlp);
    const float* out = multiply(expert.down, gate, expert_out);
    for (uint64_t row = 0; row < rows; ++row) {
      const float weight = routing[row * count + index];
      if (weight == 0) continue;
      add_scaled(branch.data() + row * hidden, out, weight, hidden);
      out += hidden;
    }
  }

  void run_layer(uint64_t index) {
    const LayerWeights& layer = weights.layers[index];
    const uint64_t hidden = model.hidden_size;
    normalize_rows(layer.input_norm, x.data(), normed.data());
    show(index, "input_norm", normed.data(), hidden);
    run_attention(index);
    if (layer.post_attention_norm) {
      normalize_rows(*layer.post_attention_norm, branch.data(), branch.data());
      show(index, "post_attn_norm", branch.data(), hidden);
    }
    add_branch();
    show(index, "attn_out", x.data(), hidden);

    normalize_rows(layer.mlp_norm, x.data(), normed.data());
    show(index, "mlp_norm", normed.data(), hidden);
    if (layer.experts.empty()) {
      run_mlp(index);
    } else {
      run_experts(index);
    }
    if (layer.post_mlp_norm) {
      normalize_rows(*layer.post_mlp_norm, branch.data(), branch.data());
      show(index, "post_mlp_norm", branch.data(), hidden);
    }
    add_branch();
    show(index, "out", x.data(), hidden);
  }

  void run_head(const ReferenceSinks& sinks, bool last_block) {
    const uint64_t hidden = model.hidden_size;
    normalize_rows(weights.final_norm, x.data(), normed.data());
    show("final_norm", normed.data(), hidden);
    if (!sinks.logits || !(sinks.every_row || last_block)) return;
    const uint64_t most = sinks.tap ? rows : kLogitRows;
    for (uint64_t row = sinks.every_row ? 0 : rows - 1; row < rows;) {
      const uint64_t count = std::min(most, rows - row);
      logits.resize(count * model.vocab_size);
      multiply_into(weights.head, normed.data() + row * hidden, count, logits.data());
      if (model.logits_factor != 1.0F) {
        for_elements(logits.size(), [&](uint64_t begin, uint64_t end) {
          for (uint64_t i = begin; i < end; ++i) logits[i] *= model.logits_factor;
        });
      }
      show("logits", logits.data(), model.vocab_size, position + row, count);
      for (uint64_t i = 0; i < count; ++i) {
        sinks.logits(position + row + i, {logits.data() + i * model.vocab_size, model.vocab_size});
      }
      row += count;
    }
  }

  void check(std::span<const int32_t> tokens, uint32_t block) const {
    if (block == 0) throw Error(ErrorCode::usage, "tokens read at once: got 0, expected at least 1");
    if (tokens.empty()) throw Error(ErrorCode::usage, "no tokens to read: got 0, expected at least 1");
    if (tokens.size() > model.max_positions - position) {
      throw Error(ErrorCode::usage,
                  fmt::format("position beyond what the model was made for: got {} tokens after {}, expected at most {} in all",
                              tokens.size(), position, model.max_positions));
    }
    require_token_ids(tokens, model.vocab_size);
  }
};

Reference::Reference(const DecoderModel& model, WeightStore& store, WorkerPool& pool)
    : state_(std::make_unique<State>(model, store, pool)) {}
Reference::~Reference() = default;

uint64_t Reference::position() const { return state_->position; }

uint64_t Reference::kv_bytes() const {
  uint64_t bytes = 0;
  for (const KeyValueHistory& history : state_->histories) bytes += history.bytes();
  return bytes;
}

void Reference::reset() {
  state_->position = 0;
  for (KeyValueHistory& history : state_->histories) history.reset();
}

void Reference::read(std::span<const int32_t> tokens, const ReferenceSinks& sinks, uint32_t block) {
  State& s = *state_;
  s.check(tokens, block);
  s.tap = &sinks.tap;
  while (!tokens.empty()) {
    s.rows = std::min<uint64_t>(block, tokens.size());
    s.rope.clear();
    for (const RopeGroup& group : s.model.rope_groups) s.rope.emplace_back(group, s.position, s.rows);
    s.embed(tokens.first(s.rows));
    for (uint64_t index = 0; index < s.weights.layers.size(); ++index) s.run_layer(index);
    s.run_head(sinks, tokens.size() == s.rows);
    s.position += s.rows;
    tokens = tokens.subspan(s.rows);
  }
}

}  // namespace transload
