// Grouped-query attention of a decode step over cached and new keys, with the query heads folded onto their KV head.
#include "decode/step_builder.h"

namespace transload {
namespace {

// [q, heads * head_dim] -> [1, heads, q, head_dim]; the last node gets `name`.
ValueId split_heads(StepBuilder& b, const std::string& name, ValueId x, uint64_t heads, uint64_t head_dim) {
  const uint64_t q = b.query();
  if (q == 1) return b.reshape(name, x, {1, heads, 1, head_dim});
  return b.transpose(name, b.reshape(name + "_by_token", x, {1, q, heads, head_dim}), {0, 2, 1, 3});
}

// [1, heads, q, head_dim] -> [q, heads * head_dim]
ValueId merge_heads(StepBuilder& b, const std::string& name, ValueId x) {
  const uint64_t heads = b.shape(x)[1];
  const uint64_t q = b.shape(x)[2];
  const uint64_t head_dim = b.shape(x)[3];
  const ValueId by_token = q == 1 ? x : b.transpose(name + "_by_token", x, {0, 2, 1, 3});
  return b.reshape(name, by_token, {q, heads * head_dim});
}

// act(gate(h)), one factor for each head: [1, heads, q, 1]
ValueId head_gate(StepBuilder& b, const std::string& prefix, ValueId x, const Attention& attention) {
  const uint64_t q = b.query();
  const ValueId logits = b.linear(prefix + "_gate", x, *attention.head_gate);
  ValueId gate = b.unary(Op::sigmoid, prefix + "_gate_sigmoid", logits);
  if (attention.gate_activation == GateActivation::silu) gate = b.binary(Op::mul, prefix + "_gate_silu", logits, gate);
  if (q > 1) gate = b.transpose(prefix + "_gate_by_head", gate, {1, 0});
  return b.reshape(prefix + "_gate_factor", gate, {1, attention.heads, q, 1});
}

// What a layer scores and what it returns, for keys or values: `fresh` holds the q new entries.
struct Entries {
  ValueId scored = 0;
  ValueId returned = 0;
};

Entries join_cache(StepBuilder& b, const std::string& name, const std::string& returned_name, ValueId cache, ValueId fresh,
                   const AttentionPorts& ports) {
  const ValueId all = b.concat(name + "_all", {cache, fresh}, 2);
  if (!ports.roll) return {all, fresh};
  // A roll drops the oldest entry before scoring, so that q = 1 scores exactly one window.
  const uint64_t count = b.shape(all)[2];
  const ValueId returned = b.slice(returned_name, all, 2, count - ports.new_entries, count);
  const bool same = ports.new_entries == count - 1;
  return {same ? returned : b.slice(name + "_window", all, 2, 1, count), returned};
}

}  // namespace

AttentionResult build_attention(StepBuilder& b, const std::string& prefix, ValueId x, const Attention& attention,
                                uint32_t rope_width, const AttentionPorts& ports) {
  const uint64_t q = b.query();
  const uint64_t heads = attention.heads;
  const uint64_t kv_heads = attention.kv_heads;
  const uint64_t head_dim = attention.head_dim;
  const uint64_t group = heads / kv_heads;

  ValueId query = split_heads(b, prefix + "_q_heads", b.linear(prefix + "_q", x, attention.q), heads, head_dim);
  ValueId key = split_heads(b, prefix + "_k_heads", b.linear(prefix + "_k", x, attention.k), kv_heads, head_dim);
  const ValueId value_rows = b.linear(prefix + "_v", x, attention.v);
  const ValueId value = split_heads(b, ports.roll ? prefix + "_v_heads" : ports.v_new_name, value_rows, kv_heads, head_dim);
  if (attention.q_norm) query = b.norm(prefix + "_q_norm", query, *attention.q_norm);
  if (attention.k_norm) key = b.norm(prefix + "_k_norm", key, *attention.k_norm);

  query = build_rope(b, prefix + "_q_rope", query, rope_width, ports.rope);
  key = build_rope(b, ports.roll ? prefix + "_k_rope" : ports.k_new_name, key, rope_width, ports.rope);
  const Entries keys = join_cache(b, prefix + "_k", ports.k_new_name, ports.k_cache, key, ports);
  const Entries values = join_cache(b, prefix + "_v", ports.v_new_name, ports.v_cache, value, ports);

  // The query is scaled rather than the scores: q k^T alone can leave the range of f16.
  if (attention.scale != 1.0F) query = b.binary(Op::mul, prefix + "_q_scaled", query, b.scalar(attention.scale));
  const ValueId folded = b.reshape(prefix + "_q_folded", query, {1, kv_heads, group * q, head_dim});
  ValueId scores =
      b.binary(Op::matmul, prefix + "_scores", folded, b.transpose(prefix + "_k_transposed", keys.scored, {0, 1, 3, 2}));
  const uint64_t columns = b.shape(scores)[3];
  // With several query rows the mask differs by row, so the group becomes an axis of its own.
  if (q > 1) scores = b.reshape(prefix + "_scores_by_row", scores, {kv_heads, group, q, columns});
  ValueId mask = ports.mask;
  if (b.shape(mask)[1] > 1) mask = b.reshape(prefix + "_mask", mask, b.shape(scores));
  const ValueId masked = b.binary(Op::add, prefix + "_scores_masked", scores, mask);
  const ValueId by_row = b.graph().add_node(Op::softmax, prefix + "_probabilities", {masked}, {{"axis", int64_t{3}}});
  const ValueId probabilities = b.reshape(prefix + "_probabilities_folded", by_row, {1, kv_heads, group * q, columns});

  ValueId out = b.reshape(prefix + "_heads", b.binary(Op::matmul, prefix + "_context", probabilities, values.scored),
                          {1, heads, q, head_dim});
  if (attention.head_gate) out = b.binary(Op::mul, prefix + "_heads_gated", out, head_gate(b, prefix, x, attention));
  return {b.linear(prefix + "_o", merge_heads(b, prefix + "_merged", out), attention.o), keys.returned, values.returned};
}

}  // namespace transload
