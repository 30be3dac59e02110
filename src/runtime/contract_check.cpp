// Checks that the graphs of a host contract agree with its caches and with each other.
#include "runtime/contract_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/printable.h"
#include "io/bundle_files.h"
#include "io/json_fields.h"
#include "transload/error.h"

namespace transload {
namespace {

std::string in_quotes(std::string_view text) { return fmt::format("'{}'", printable(text, 80)); }

std::string window_text(const std::optional<uint32_t>& window) {
  return window ? fmt::format("window {}", *window) : std::string("full attention");
}

uint32_t expected_slots(const CacheLayer& cache, uint32_t context) {
  switch (cache.rule) {
    case SlotRule::append:
      return context;
    case SlotRule::ring:
      return std::min(context, std::max(*cache.window - 1, 1U));  // window 1 keeps one slot that is never open
    case SlotRule::roll:
      return std::min(context, *cache.window);
  }
  return context;
}

bool is_cache_role(PortRole role) {
  return role == PortRole::k_cache || role == PortRole::v_cache || role == PortRole::k_new || role == PortRole::v_new;
}

class StepCheck {
 public:
  StepCheck(const BundleContract& contract, const StepFile& file) : contract_(contract), file_(file), step_(file.contract) {}

  void run() {
    expect_rows();
    const uint64_t layers = uint64_t{step_.end_layer} - step_.first_layer;
    if (step_.caches.size() != layers) fault("number of caches does not match", step_.caches.size(), layers);
    for (size_t i = 0; i < step_.caches.size(); ++i) check_cache(i);
    check_ports();
  }

 private:
  struct Tensor {
    DType dtype;
    Shape shape;
  };
  using Use = std::pair<PortRole, std::string>;  // a cache role with its layer, another with its group

  template <typename Got, typename Expected>
  [[noreturn]] void fault(std::string_view what, const Got& got, const Expected& expected, const std::string& tensor = {}) const {
    throw Error(ErrorCode::config_invalid,
                fmt::format("step '{}': {}: got {}, expected {}", printable(file_.file, 80), what, got, expected),
                {kContractFile, tensor, {}});
  }

  void expect(PortRole role, const std::string& of, Shape shape, DType dtype) {
    const auto [place, is_new] = expected_.try_emplace({role, of}, Tensor{dtype, shape});
    if (!is_new && place->second.shape != shape) {
      fault(fmt::format("caches of group {} disagree on '{}'", in_quotes(of), port_role_name(role)), shape_text(shape),
            shape_text(place->second.shape));
    }
  }
  void expect(PortRole role, const std::string& of, Shape shape) { expect(role, of, std::move(shape), contract_.compute); }

  void expect_rows() {
    const uint64_t q = step_.query;
    const Shape rows{1, q, contract_.hidden_size};
    switch (contract_.input_form) {
      case RowForm::rows:
        expect(PortRole::embedding_rows, {}, rows);
        break;
      case RowForm::hidden:
        expect(PortRole::hidden_in, {}, rows);
        break;
      case RowForm::ids:
        expect(PortRole::token_ids, {}, {1, q}, DType::i32);
        break;
    }
    if (contract_.head) {
      expect(PortRole::logits, {}, {contract_.last_row_only ? 1 : q, contract_.vocab_size});
    } else {
      expect(PortRole::hidden, {}, rows);
    }
  }

  void check_cache(size_t index) {
    const CacheLayer& cache = step_.caches[index];
    const auto what = [&](std::string_view text) { return fmt::format("cache {}: {}", index, text); };
    const uint64_t q = step_.query;
    if (cache.layer != index) fault(what("layers out of order"), cache.layer, index);
    if (cache.model_layer != step_.first_layer + index) {
      fault(what("layer of the model does not match"), cache.model_layer, step_.first_layer + index);
    }
    const MaskGroup* group = find_mask_group(step_, cache.mask_group);
    if (group == nullptr) fault(what("unknown mask group"), in_quotes(cache.mask_group), "one listed in 'masks'");
    if (group->window != cache.window) {
      fault(what("window does not match its mask group"), window_text(cache.window), window_text(group->window));
    }
    if (group->block_sparse && group->heads % cache.kv_heads != 0) {
      fault(what("heads of its mask group do not match"), group->heads, fmt::format("a multiple of {}", cache.kv_heads));
    }
    if ((cache.rule == SlotRule::append) != !cache.window) {
      fault(what("slot rule does not match"), in_quotes(slot_rule_name(cache.rule)), "one for " + window_text(cache.window));
    }
    const uint32_t slots = expected_slots(cache, step_.context);
    if (cache.slots != slots) fault(what("slots do not match rule, window and context"), cache.slots, slots);
    const uint64_t entries = cache.rule == SlotRule::roll ? std::max<uint64_t>(cache.slots, q) : q;
    if (cache.new_entries != entries) fault(what("new entries do not match"), cache.new_entries, entries);
    check_against_first(index);

    const std::string layer = std::to_string(index);
    const Shape stored{1, cache.kv_heads, cache.slots, cache.head_dim};
    const Shape added{1, cache.kv_heads, entries, cache.head_dim};
    expect(PortRole::k_cache, layer, stored);
    expect(PortRole::v_cache, layer, stored);
    expect(PortRole::k_new, layer, added);
    expect(PortRole::v_new, layer, added);
    expect(PortRole::mask, cache.mask_group, {1, group->heads, q, mask_columns(cache, step_.query)});
    if (cache.rope_group.empty()) return;
    const auto rope = std::find_if(contract_.rope.begin(), contract_.rope.end(),
                                   [&](const RopeRule& rule) { return rule.group == cache.rope_group; });
    if (rope == contract_.rope.end()) fault(what("unknown rope group"), in_quotes(cache.rope_group), "one listed in 'rope'");
    if (rope->width > cache.head_dim) fault(what("rotary width exceeds the head"), rope->width, cache.head_dim);
    const Shape table{1, 1, q, rope->table_width};
    expect(PortRole::rope_cos, cache.rope_group, table);
    expect(PortRole::rope_sin, cache.rope_group, table);
  }

  // Graphs of a bundle share the caches, so a layer is the same in all of them but for what q and context change.
  void check_against_first(size_t index) const {
    const CacheLayer& cache = step_.caches[index];
    const CacheLayer& first = contract_.steps.front().contract.caches[index];
    const auto kind = [](const CacheLayer& layer) {
      return fmt::format("{} heads of {}, {}, {}, rope {}", layer.kv_heads, layer.head_dim, slot_rule_name(layer.rule),
                         window_text(layer.window), in_quotes(layer.rope_group));
    };
    if (kind(cache) != kind(first) || cache.mask_group != first.mask_group) {
      fault(fmt::format("cache {}: differs from that of {}", index, in_quotes(contract_.steps.front().file)), kind(cache),
            kind(first));
    }
  }

  void check_ports() {
    std::set<std::string_view> names;
    for (const std::vector<Port>* ports : {&step_.inputs, &step_.outputs}) {
      for (const Port& port : *ports) {
        if (!names.insert(port.name).second) fault("repeated tensor name", in_quotes(port.name), "each name once");
        check_port(port);
      }
    }
    if (expected_.empty()) return;
    const auto& [use, tensor] = *expected_.begin();
    const std::string of =
        use.second.empty() ? "" : fmt::format(" of {} {}", is_cache_role(use.first) ? "layer" : "group", use.second);
    fault(fmt::format("missing tensor{}", of), "none", in_quotes(port_role_name(use.first)));
  }

  void check_port(const Port& port) {
    const bool is_cache = is_cache_role(port.role);
    if (port.layer.has_value() != is_cache || (is_cache && !port.group.empty())) {
      fault(fmt::format("'{}' tensor of the wrong kind", port_role_name(port.role)),
            port.layer ? fmt::format("layer {}", *port.layer) : "no layer", is_cache ? "a layer and no group" : "no layer",
            port.name);
    }
    const auto found = expected_.find({port.role, is_cache ? std::to_string(*port.layer) : port.group});
    if (found == expected_.end()) {
      fault("unexpected or repeated role", in_quotes(port_role_name(port.role)), "a role that a layer uses, once", port.name);
    }
    if (port.dtype != found->second.dtype) {
      fault("dtype does not match", dtype_name(port.dtype), dtype_name(found->second.dtype), port.name);
    }
    if (port.shape != found->second.shape) {
      fault("shape does not match", shape_text(port.shape), shape_text(found->second.shape), port.name);
    }
    tensor_bytes(port.dtype, port.shape);  // throws size_overflow
    expected_.erase(found);
  }

  const BundleContract& contract_;
  const StepFile& file_;
  const StepContract& step_;
  std::map<Use, Tensor> expected_;
};

}  // namespace

uint64_t mask_columns(const CacheLayer& cache, uint32_t query) {
  return uint64_t{cache.slots} + query - (cache.rule == SlotRule::roll ? 1 : 0);
}

void check_contract(const BundleContract& contract) {
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  std::set<std::string_view> files;
  for (const StepFile& step : contract.steps) {
    const auto repeated = [&](std::string_view what, const std::string& got) {
      throw Error(ErrorCode::config_invalid, fmt::format("field 'steps': repeated {}: got {} twice, expected once", what, got),
                  {kContractFile, {}, {}});
    };
    if (!pairs.insert({step.contract.query, step.contract.context}).second) {
      repeated("graph", fmt::format("q {} context {}", step.contract.query, step.contract.context));
    }
    if (!files.insert(step.file).second) repeated("file", in_quotes(step.file));
    StepCheck(contract, step).run();
  }
}

}  // namespace transload
