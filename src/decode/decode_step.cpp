// Puts a decode-step graph together: inputs in contract order, the layers of the slice, head or hidden state, new cache entries.
#include "decode/decode_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "decode/step_builder.h"
#include "transload/error.h"

namespace transload {
namespace {

[[noreturn]] void refuse(std::string what) { throw Error(ErrorCode::usage, std::move(what)); }

void check_options(const DecoderModel& model, const StepOptions& options) {
  if (options.query < 1) refuse("query length must be positive: got 0, expected at least 1");
  if (options.context < 1) refuse("context must be positive: got 0, expected at least 1");
  if (options.query > options.context) {
    refuse(fmt::format("query length exceeds the context: got {}, expected at most {}", options.query, options.context));
  }
  if (options.context > model.max_positions) {
    refuse(fmt::format("context exceeds what the model was made for: got {}, expected at most {}", options.context,
                       model.max_positions));
  }
  if (options.opset < 17 || options.opset > 23) {
    refuse(fmt::format("opset is out of range: got {}, expected 17 to 23", options.opset));
  }
  for (const DType dtype : {options.weights, options.compute}) {
    if (dtype != DType::f32 && dtype != DType::f16) {
      refuse(fmt::format("precision of a graph: got {}, expected f32 or f16", dtype_name(dtype)));
    }
  }
  if (options.compute == DType::f16 && options.weights != DType::f16) {
    refuse("weights of a graph that computes in f16: got f32, expected f16");
  }
  if (options.gelu != GeluForm::model && !has_gelu(model)) {
    refuse("a GELU form does not apply: got a model without GELU, expected one with it");
  }
  if (options.logits == LogitsRows::last && !options.head) {
    refuse("the rows of the logits do not apply: got no head, expected one");
  }
}

// Order of mask groups among the inputs: windows, block-sparse patterns, full attention.
int rank_of(const MaskGroup& group) {
  if (group.window) return 0;
  return group.block_sparse ? 1 : 2;
}

// The first window met is "sw", further ones carry their length; block-sparse patterns are numbered from the second on.
std::string mask_group_of(const Attention& attention, std::vector<MaskGroup>& groups) {
  MaskGroup wanted{"full", attention.window, attention.block_sparse, attention.block_sparse ? attention.heads : 1};
  for (const MaskGroup& group : groups) {
    const bool same = group.window == wanted.window && group.block_sparse == wanted.block_sparse && group.heads == wanted.heads;
    if (same) return group.name;
  }
  const auto alike =
      std::count_if(groups.begin(), groups.end(), [&](const MaskGroup& group) { return rank_of(group) == rank_of(wanted); });
  if (wanted.window) wanted.name = alike > 0 ? fmt::format("sw_{}", *wanted.window) : "sw";
  if (wanted.block_sparse) wanted.name = alike > 0 ? fmt::format("blocksparse_{}", alike + 1) : "blocksparse";
  groups.push_back(wanted);
  return wanted.name;
}

CacheLayer cache_of(const Attention& attention, const StepOptions& options) {
  CacheLayer cache;
  cache.window = attention.window;
  cache.kv_heads = attention.kv_heads;
  cache.head_dim = attention.head_dim;
  if (!attention.window) {
    cache.rule = SlotRule::append;
    cache.slots = options.context;
    cache.new_entries = options.query;
  } else if (options.cache_layout == CacheLayout::roll) {
    cache.rule = SlotRule::roll;
    cache.slots = std::min(options.context, *attention.window);
    // All q new entries come back even when they overflow the window, so that the host can commit fewer than q.
    cache.new_entries = std::max(cache.slots, options.query);
  } else {
    cache.rule = SlotRule::ring;
    // A window of one token needs no slot; a cache of none has no shape, so one stays that is never open.
    cache.slots = std::max(1U, std::min(options.context, *attention.window - 1));
    cache.new_entries = options.query;
  }
  return cache;
}

// Everything about one graph that its builder passes around.
struct Assembly {
  const DecoderModel& model;
  const StepOptions& options;
  DecodeStep& step;
  StepBuilder builder;
  std::vector<RopeTables> rope_tables;  // by index in model.rope_groups
  std::vector<ValueId> masks;           // by index in contract.mask_groups
  std::vector<ValueId> caches;          // k, v of each layer of the slice

  ValueId input(const std::string& name, PortRole role, DType dtype, Shape shape, std::string group = {},
                std::optional<uint32_t> layer = std::nullopt) {
    step.contract.inputs.push_back({name, role, dtype, shape, std::move(group), layer});
    return step.graph.add_input(name, dtype, std::move(shape));
  }
  void output(ValueId value, PortRole role, std::optional<uint32_t> layer = std::nullopt) {
    const Value& out = step.graph.value(value);
    step.contract.outputs.push_back({out.name, role, out.dtype, out.shape, {}, layer});
    step.graph.add_output(value);
  }
};

void describe_layers(const DecoderModel& model, const StepOptions& options, StepContract& contract) {
  for (uint32_t index = contract.first_layer; index < contract.end_layer; ++index) {
    const Attention& attention = model.layers[index].attention;
    CacheLayer cache = cache_of(attention, options);
    cache.layer = index - contract.first_layer;
    cache.model_layer = index;
    cache.mask_group = mask_group_of(attention, contract.mask_groups);
    cache.rope_group = model.rope_groups[attention.rope_group].name;
    contract.caches.push_back(cache);
  }
  std::stable_sort(contract.mask_groups.begin(), contract.mask_groups.end(),
                   [](const MaskGroup& a, const MaskGroup& b) { return rank_of(a) < rank_of(b); });
  for (const RopeGroup& group : model.rope_groups) {
    const bool used = std::any_of(contract.caches.begin(), contract.caches.end(),
                                  [&](const CacheLayer& cache) { return cache.rope_group == group.name; });
    if (used) contract.rope_groups.push_back(group.name);
  }
}

ValueId declare_rows(Assembly& a) {
  const uint64_t q = a.options.query;
  const uint64_t hidden = a.model.hidden_size;
  if (a.step.contract.first_layer > 0) {
    return a.builder.reshape("x_rows", a.input("x", PortRole::hidden_in, a.options.compute, {1, q, hidden}), {q, hidden});
  }
  if (a.options.inputs == InputForm::rows) {
    return a.builder.reshape("x_rows", a.input("x", PortRole::embedding_rows, a.options.compute, {1, q, hidden}), {q, hidden});
  }
  const ValueId ids = a.builder.reshape("ids_flat", a.input("ids", PortRole::token_ids, DType::i32, {1, q}), {q});
  // Only the gathered rows are cast, not the table.
  const ValueId table = a.step.graph.add_constant("embed_tokens_weight", cast(a.model.embedding, a.options.weights));
  const bool same = a.options.weights == a.options.compute;
  const ValueId rows = a.step.graph.add_node(Op::gather, same ? "x_rows" : "x_rows_stored", {table, ids});
  return a.builder.cast("x_rows", rows, a.options.compute);
}

void declare_tables_and_caches(Assembly& a) {
  StepContract& contract = a.step.contract;
  const uint64_t q = a.options.query;
  a.rope_tables.resize(a.model.rope_groups.size());
  for (size_t i = 0; i < a.model.rope_groups.size(); ++i) {
    const RopeGroup& group = a.model.rope_groups[i];
    if (!uses_rope_group(contract, group.name)) continue;
    const uint64_t width = a.options.rope_width == RopeWidth::full ? group.width : group.width / 2;
    const Shape shape{1, 1, q, width};
    a.rope_tables[i].cos = a.input("cos_" + group.name, PortRole::rope_cos, a.options.compute, shape, group.name);
    a.rope_tables[i].sin = a.input("sin_" + group.name, PortRole::rope_sin, a.options.compute, shape, group.name);
  }
  for (const MaskGroup& group : contract.mask_groups) {
    const auto cache = std::find_if(contract.caches.begin(), contract.caches.end(),
                                    [&](const CacheLayer& c) { return c.mask_group == group.name; });
    const uint64_t columns = cache->slots + q - (cache->rule == SlotRule::roll ? 1 : 0);
    a.masks.push_back(a.input("mask_" + group.name, PortRole::mask, a.options.compute, {1, group.heads, q, columns}, group.name));
  }
  for (const CacheLayer& cache : contract.caches) {
    const Shape shape{1, cache.kv_heads, cache.slots, cache.head_dim};
    const auto add = [&](std::string_view kind, PortRole role) {
      a.caches.push_back(a.input(fmt::format("{}_cache_{}", kind, cache.layer), role, a.options.compute, shape, {}, cache.layer));
    };
    add("k", PortRole::k_cache);
    add("v", PortRole::v_cache);
  }
}

ValueId build_layer(Assembly& a, ValueId x, const CacheLayer& cache, std::vector<ValueId>& new_entries) {
  const Layer& layer = a.model.layers[cache.model_layer];
  const std::string prefix = fmt::format("layers_{}", cache.model_layer);
  StepBuilder& b = a.builder;

  AttentionPorts ports;
  ports.rope = a.rope_tables[layer.attention.rope_group];
  for (size_t i = 0; i < a.masks.size(); ++i) {
    if (a.step.contract.mask_groups[i].name == cache.mask_group) ports.mask = a.masks[i];
  }
  ports.k_cache = a.caches[2 * cache.layer];
  ports.v_cache = a.caches[2 * cache.layer + 1];
  ports.roll = cache.rule == SlotRule::roll;
  ports.new_entries = cache.new_entries;
  ports.k_new_name = fmt::format("k_new_{}", cache.layer);
  ports.v_new_name = fmt::format("v_new_{}", cache.layer);

  const uint32_t rope_width = a.model.rope_groups[layer.attention.rope_group].width;
  const ValueId normed = b.norm(prefix + "_input_norm", x, layer.input_norm);
  const AttentionResult attention = build_attention(b, prefix + "_attn", normed, layer.attention, rope_width, ports);
  new_entries.push_back(attention.k_new);
  new_entries.push_back(attention.v_new);
  ValueId branch = attention.out;
  if (layer.post_attention_norm) branch = b.norm(prefix + "_post_attn_norm", branch, *layer.post_attention_norm);
  x = b.binary(Op::add, prefix + "_attn_out", x, branch);

  const ValueId mlp_rows = b.norm(prefix + "_mlp_norm", x, layer.mlp_norm);
  branch = layer.experts ? build_experts(b, prefix + "_mlp", mlp_rows, *layer.experts)
                         : build_mlp(b, prefix + "_mlp", mlp_rows, layer.mlp);
  if (layer.post_mlp_norm) branch = b.norm(prefix + "_post_mlp_norm", branch, *layer.post_mlp_norm);
  return b.binary(Op::add, prefix + "_out", x, branch);
}

void build_head(Assembly& a, ValueId x) {
  const uint64_t q = a.options.query;
  StepBuilder& b = a.builder;
  if (!a.options.head) {
    a.output(b.reshape("hidden", x, {1, q, a.model.hidden_size}), PortRole::hidden);
    return;
  }
  if (a.options.logits == LogitsRows::last && q > 1) x = b.slice("last_row", x, 0, q - 1, q);
  const ValueId normed = b.norm("final_norm", x, a.model.final_norm);
  // A tied head stored as [vocab, hidden] has the bytes of the embedding: one constant serves both.
  const bool shares_rows = a.model.tied_head && a.options.linear != LinearForm::matmul;
  const bool same_shape = a.options.linear == LinearForm::gemm;
  const std::string weight = shares_rows && same_shape ? "embed_tokens_weight" : "lm_head_weight";
  if (shares_rows) a.step.embedding_constant = weight;
  const Linear head{a.model.head, a.model.head_bias};
  if (a.model.logits_factor == 1.0F) return a.output(b.linear("logits", normed, head, weight), PortRole::logits);
  const ValueId unscaled = b.linear("lm_head", normed, head, weight);
  a.output(b.binary(Op::mul, "logits", unscaled, b.scalar(a.model.logits_factor)), PortRole::logits);
}

// First layer and the one after the last that `range` names.
LayerRange resolve_layers(const DecoderModel& model, const LayerRange& range) {
  const auto count = static_cast<uint32_t>(model.layers.size());
  LayerRange found{LayerRange::Kind::range, 0, count};
  switch (range.kind) {
    case LayerRange::Kind::all:
      return found;
    case LayerRange::Kind::sliding:
    case LayerRange::Kind::full: {
      const bool want_window = range.kind == LayerRange::Kind::sliding;
      for (uint32_t i = 0; i < count; ++i) {
        if (model.layers[i].attention.window.has_value() == want_window) return {LayerRange::Kind::range, i, i + 1};
      }
      refuse(fmt::format("no such layer: got a model without {0} layers, expected at least one {0} layer",
                         want_window ? "sliding" : "full-attention"));
    }
    case LayerRange::Kind::range:
      if (range.begin >= range.end || range.end > count) {
        refuse(
            fmt::format("layer range is not in the model: got {}:{}, expected 0 <= A < B <= {}", range.begin, range.end, count));
      }
      return range;
  }
  return found;
}

}  // namespace

bool has_gelu(const DecoderModel& model) {
  const auto is_gelu = [](const Mlp& mlp) {
    return mlp.activation == Activation::gelu_erf || mlp.activation == Activation::gelu_tanh;
  };
  return std::any_of(model.layers.begin(), model.layers.end(), [&](const Layer& layer) {
    if (!layer.experts) return is_gelu(layer.mlp);
    return std::any_of(layer.experts->experts.begin(), layer.experts->experts.end(), is_gelu);
  });
}

DecodeStep build_decode_step(const DecoderModel& model, const StepOptions& options) {
  check_options(model, options);
  DecodeStep step;
  step.graph.name = fmt::format("step_q{}_c{}", options.query, options.context);
  StepContract& contract = step.contract;
  const LayerRange layers = resolve_layers(model, options.layers);
  contract.query = options.query;
  contract.context = options.context;
  contract.rope_width = options.rope_width;
  contract.first_layer = layers.begin;
  contract.end_layer = layers.end;
  contract.head = options.head;
  if (options.inputs == InputForm::ids && layers.begin > 0) {
    refuse(fmt::format("token ids do not apply to a slice: got first layer {}, expected 0", layers.begin));
  }
  describe_layers(model, options, contract);

  Assembly a{model, options, step, StepBuilder(step.graph, options), {}, {}, {}};
  ValueId x = declare_rows(a);
  declare_tables_and_caches(a);
  if (layers.begin == 0 && model.embedding_factor != 1.0F) {
    x = a.builder.binary(Op::mul, "x_scaled", x, a.builder.scalar(model.embedding_factor));
  }
  std::vector<ValueId> new_entries;
  for (const CacheLayer& cache : contract.caches) x = build_layer(a, x, cache, new_entries);
  build_head(a, x);
  for (size_t i = 0; i < new_entries.size(); ++i) {
    a.output(new_entries[i], i % 2 == 0 ? PortRole::k_new : PortRole::v_new, static_cast<uint32_t>(i / 2));
  }
  if (options.inputs == InputForm::ids) step.embedding_constant = "embed_tokens_weight";
  check_graph(step.graph);
  return step;
}

}  // namespace transload
