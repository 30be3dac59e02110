// contract.json: the host contract of a bundle as docs/contract.md describes it.
#include "export/bundle.h"

namespace transload {
namespace {

template <typename Range, typename Convert>
Json::Array map(const Range& range, Convert convert) {
  Json::Array out;
  for (const auto& item : range) out.push_back(convert(item));
  return out;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json shape_json(const Shape& shape) {
  return map(shape, [](uint64_t dim) { return Json(dim); });
}

Json port_json(const Port& port) {
  Json::Object out{{"name", port.name},
                   {"role", port_role_name(port.role)},
                   {"dtype", dtype_name(port.dtype)},
                   {"shape", shape_json(port.shape)}};
  if (!port.group.empty()) out.emplace_back("group", port.group);
  if (port.layer) out.emplace_back("layer", *port.layer);
  return out;
}

Json cache_json(const CacheLayer& cache) {
  return Json::Object{{"layer", cache.layer},           {"model_layer", cache.model_layer}, {"rule", slot_rule_name(cache.rule)},
                      {"mask_group", cache.mask_group}, {"rope_group", cache.rope_group},   {"window", or_null(cache.window)},
                      {"slots", cache.slots},           {"new_entries", cache.new_entries}, {"kv_heads", cache.kv_heads},
                      {"head_dim", cache.head_dim}};
}

Json step_json(const BundleStep& step) {
  const StepContract& contract = step.step.contract;
  return Json::Object{{"file", step.file},
                      {"q", contract.query},
                      {"context", contract.context},
                      {"inputs", map(contract.inputs, port_json)},
                      {"outputs", map(contract.outputs, port_json)},
                      {"caches", map(contract.caches, cache_json)}};
}

Json mask_json(const MaskGroup& group) {
  Json::Object out{{"group", group.name}, {"window", or_null(group.window)}};
  if (group.block_sparse) {
    const BlockSparse& pattern = *group.block_sparse;
    out.emplace_back("block_sparse", Json::Object{{"heads", group.heads},
                                                  {"block", pattern.block},
                                                  {"local_blocks", pattern.local_blocks},
                                                  {"vertical_stride", pattern.vertical_stride},
                                                  {"head_step", pattern.head_step}});
  }
  return out;
}

Json rope_json(const DecoderModel& model, const StepContract& contract) {
  Json::Array out;
  for (const RopeGroup& group : model.rope_groups) {
    if (!uses_rope_group(contract, group.name)) continue;
    const uint32_t table = contract.rope_width == RopeWidth::full ? group.width : group.width / 2;
    out.push_back(Json::Object{{"group", group.name},
                               {"width", group.width},
                               {"table_width", table},
                               {"inv_freq", inv_freq_tensor_name(group)},
                               {"attention_factor", static_cast<double>(group.attention_factor)}});
  }
  return out;
}

std::string_view input_form_name(PortRole role) {
  if (role == PortRole::token_ids) return "ids";
  return role == PortRole::hidden_in ? "hidden" : "rows";
}

}  // namespace

std::string_view cache_layout_name(CacheLayout layout) {
  switch (layout) {
    case CacheLayout::automatic:
      return "auto";
    case CacheLayout::ring:
      return "ring";
    case CacheLayout::roll:
      return "roll";
  }
  return {};
}

Json contract_json(const DecoderModel& model, const Bundle& bundle, const ExportOnnxOptions& options) {
  const StepContract& contract = bundle.steps.front().step.contract;
  Json embedding;
  if (bundle.embedding) {
    embedding = Json::Object{{"file", bundle.embedding->file},
                             {"offset", bundle.embedding->offset},
                             {"dtype", dtype_name(bundle.embedding->dtype)},
                             {"shape", shape_json(bundle.embedding->shape)}};
  }
  return Json::Object{
      {"format", "transload-contract"},
      {"version", 1},
      {"family", model.family},
      {"hidden_size", model.hidden_size},
      {"vocab_size", model.vocab_size},
      {"max_positions", model.max_positions},
      {"layers",
       Json::Object{{"first", contract.first_layer}, {"end", contract.end_layer}, {"of", uint64_t{model.layers.size()}}}},
      {"head", contract.head},
      {"logits", options.step.logits == LogitsRows::all ? "all" : "last"},
      {"cache_layout", cache_layout_name(options.step.cache_layout)},
      {"compute", dtype_name(options.step.compute)},
      {"weights", dtype_name(options.step.weights)},
      // -1e9 has no f16; -1e4 leaves room for a score below it.
      {"mask_fill", options.step.compute == DType::f16 ? -1e4 : -1e9},
      {"input_form", input_form_name(contract.inputs.front().role)},
      {"embedding", std::move(embedding)},
      {"bos_token", or_null(model.bos_token)},
      {"eos_tokens", map(bundle.eos_tokens, [](int64_t token) { return Json(token); })},
      {"tokenizer", bundle.tokenizer.empty() ? Json() : Json(bundle.tokenizer)},
      {"rope", rope_json(model, contract)},
      {"masks", map(contract.mask_groups, mask_json)},
      {"steps", map(bundle.steps, step_json)}};
}

}  // namespace transload
