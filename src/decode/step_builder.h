// StepBuilder: the small vocabulary the decode builders share: weights, scalars, shape changes, linear layers.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "transload/decoder_model.h"
#include "transload/step_options.h"

namespace transload {

// Activations run as [q, width] matrices; heads as [1, heads, q, head_dim].
class StepBuilder {
 public:
  StepBuilder(Graph& graph, const StepOptions& options) : graph_(graph), options_(options) {}

  Graph& graph() { return graph_; }
  const StepOptions& options() const { return options_; }
  uint32_t query() const { return options_.query; }
  const Shape& shape(ValueId value) const { return graph_.value(value).shape; }

  // A stored matrix in the weights dtype; a cast to the compute dtype follows where they differ.
  ValueId weight(const std::string& name, const Recipe& recipe);
  // A vector (bias) in the compute dtype.
  ValueId vector(const std::string& name, const Recipe& recipe);
  // One value of shape [1] in `dtype`, shared by all its users.
  ValueId scalar(float value, DType dtype);
  ValueId scalar(float value) { return scalar(value, options_.compute); }

  ValueId unary(Op op, const std::string& name, ValueId x) { return graph_.add_node(op, name, {x}); }
  ValueId binary(Op op, const std::string& name, ValueId a, ValueId b) { return graph_.add_node(op, name, {a, b}); }
  // Identity shapes, casts and permutations add no node.
  ValueId reshape(const std::string& name, ValueId x, const Shape& shape);
  ValueId cast(const std::string& name, ValueId x, DType dtype);
  ValueId transpose(const std::string& name, ValueId x, const std::vector<int64_t>& perm);
  ValueId slice(const std::string& name, ValueId x, int64_t axis, uint64_t begin, uint64_t end);
  ValueId concat(const std::string& name, const std::vector<ValueId>& inputs, int64_t axis);

  // [q, in] -> [q, out] in the form the options ask for; `weight_name` lets a tied head share the embedding's constant.
  ValueId linear(const std::string& name, ValueId x, const Linear& layer, const std::string& weight_name);
  ValueId linear(const std::string& name, ValueId x, const Linear& layer) { return linear(name, x, layer, name + "_weight"); }

  // RMSNorm or LayerNorm over the last axis, in fp32 whatever the compute dtype: x^2 leaves the range of f16 from |x| = 256 on.
  ValueId norm(const std::string& name, ValueId x, const Norm& norm);

 private:
  Graph& graph_;
  const StepOptions& options_;
  std::unordered_map<ValueId, ValueId> casts_;  // stored weight -> its cast to the compute dtype
};

// The MLP of a layer, [q, hidden] -> [q, hidden].
ValueId build_mlp(StepBuilder& builder, const std::string& prefix, ValueId x, const Mlp& mlp);

// The mixture in its place. Every expert is computed for every token, since a graph has no control flow: its weight is 0 where it
// is not chosen.
ValueId build_experts(StepBuilder& builder, const std::string& prefix, ValueId x, const Experts& experts);

// Rotary tables of one group: [1, 1, q, width] or, with half tables, [1, 1, q, width / 2].
struct RopeTables {
  ValueId cos = 0;
  ValueId sin = 0;
};
// Turns the first `width` elements of every head of x [1, heads, q, head_dim].
ValueId build_rope(StepBuilder& builder, const std::string& name, ValueId x, uint32_t width, const RopeTables& tables);

struct AttentionPorts {
  RopeTables rope;
  ValueId mask = 0;     // [1, 1, q, columns], or [1, heads, q, columns] where heads see different keys
  ValueId k_cache = 0;  // [1, kv_heads, slots, head_dim]
  ValueId v_cache = 0;
  bool roll = false;
  uint32_t new_entries = 0;  // length of k_new and v_new
  std::string k_new_name;
  std::string v_new_name;
};
struct AttentionResult {
  ValueId out = 0;  // [q, hidden]
  ValueId k_new = 0;
  ValueId v_new = 0;
};
AttentionResult build_attention(StepBuilder& builder, const std::string& prefix, ValueId x, const Attention& attention,
                                uint32_t rope_width, const AttentionPorts& ports);

}  // namespace transload
