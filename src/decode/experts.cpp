// A mixture of experts in a decode step: the router's choice as arithmetic over all experts, and the weighted sum.
#include <fmt/format.h>

#include <numeric>

#include "decode/step_builder.h"

namespace transload {
namespace {

constexpr float kFill = -1e9F;  // of a logit that is left out; finite, as in the masks

// One expert of each row of logits [q, experts]: where it is, and its weight among the others.
struct Choice {
  ValueId place = 0;   // boolean [q, experts]
  ValueId weight = 0;  // [q, experts], 0 elsewhere
};

// All arithmetic of the router is fp32: a rounded logit chooses another expert.
class SparseMixer {
 public:
  SparseMixer(StepBuilder& builder, std::string prefix, double jitter, ValueId logits)
      : b_(builder), prefix_(std::move(prefix)), tolerance_(scalar(static_cast<float>(2 * jitter))), logits_(logits) {
    const uint64_t experts = b_.shape(logits)[1];
    std::vector<int64_t> indices(experts);
    std::iota(indices.begin(), indices.end(), 0);
    indices_ = b_.graph().add_constant(fmt::format("indices_{}", experts), constant_i64({1, experts}, std::move(indices)));
  }

  ValueId routing(const std::string& name) {
    const Choice first = choose("_first", logits_);
    const ValueId others = where("_others", first.place, scalar(kFill), logits_);
    return b_.binary(Op::add, name, first.weight, choose("_second", others).weight);
  }

 private:
  ValueId scalar(float value) { return b_.scalar(value, DType::f32); }
  ValueId binary(Op op, const std::string& name, ValueId a, ValueId b) { return b_.binary(op, prefix_ + name, a, b); }
  ValueId where(const std::string& name, ValueId condition, ValueId a, ValueId b) {
    return b_.graph().add_node(Op::where, prefix_ + name, {condition, a, b});
  }

  Choice choose(const std::string& rank, ValueId logits) {
    const std::vector<int64_t> axes{1};
    const ValueId best = b_.graph().add_node(Op::reduce_max, prefix_ + rank + "_logit", {logits}, {{"axes", axes}});
    const ValueId index = b_.graph().add_node(Op::argmax, prefix_ + rank + "_index", {logits}, {{"axis", int64_t{1}}});
    const ValueId place = binary(Op::equal, rank + "_place", indices_, index);
    // best - r > tolerance * max(|r|, best), a product where others divide: a row of zeros gives no NaN.
    const ValueId magnitude = binary(Op::max, rank + "_magnitude", b_.unary(Op::abs, prefix_ + rank + "_abs", logits), best);
    const ValueId allowed = binary(Op::mul, rank + "_allowed", magnitude, tolerance_);
    const ValueId distant = binary(Op::greater, rank + "_distant", binary(Op::sub, rank + "_gap", best, logits), allowed);
    const ValueId near = where(rank + "_near", distant, scalar(kFill), logits);
    const ValueId shares = b_.graph().add_node(Op::softmax, prefix_ + rank + "_shares", {near}, {{"axis", int64_t{1}}});
    return {place, where(rank + "_weight", place, shares, scalar(0))};
  }

  StepBuilder& b_;
  std::string prefix_;
  ValueId tolerance_;
  ValueId logits_;
  ValueId indices_ = 0;
};

ValueId build_routing(StepBuilder& b, const std::string& prefix, const Experts& experts, ValueId logits) {
  switch (experts.routing) {
    case ExpertRouting::sparse_mixer:
      return SparseMixer(b, prefix + "_router", experts.jitter, logits).routing(prefix + "_routing");
  }
  return logits;
}

}  // namespace

ValueId build_experts(StepBuilder& b, const std::string& prefix, ValueId x, const Experts& experts) {
  StepOptions wide_options = b.options();
  wide_options.compute = DType::f32;
  StepBuilder wide(b.graph(), wide_options);
  const ValueId logits = wide.linear(prefix + "_router", b.cast(prefix + "_router_input", x, DType::f32), experts.router);
  const ValueId routing = build_routing(wide, prefix, experts, logits);
  const ValueId weights = b.cast(prefix + "_routing_weights", routing, b.options().compute);

  ValueId sum = 0;
  for (size_t i = 0; i < experts.experts.size(); ++i) {
    const std::string expert = fmt::format("{}_expert_{}", prefix, i);
    const ValueId weight = b.slice(expert + "_weight", weights, 1, i, i + 1);
    const ValueId part = b.binary(Op::mul, expert + "_weighted", build_mlp(b, expert, x, experts.experts[i]), weight);
    const bool is_last = i + 1 == experts.experts.size();
    sum = i == 0 ? part : b.binary(Op::add, is_last ? prefix + "_down" : expert + "_sum", sum, part);
  }
  return sum;
}

}  // namespace transload
