// The lockstep of bundle and reference: values by name, in the order of computation, token by token.
#include "export/verify_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "export/verify_digests.h"
#include "runtime/step_inputs.h"
#include "transload/error.h"

namespace transload {
namespace {

// [1, heads, n, head_dim] or [n, width]: the last `query` of n are the call's tokens (a roll returns older entries before them);
// of those the first `real`. Returns [rows, width] and the call's row of the first of them.
struct TokenRows {
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t width = 0;
};

TokenRows token_major(const Shape& shape, std::span<const float> values, uint32_t query, uint32_t real, std::vector<float>& out) {
  const uint64_t heads = shape.size() == 4 ? shape[1] : 1;
  const uint64_t length = shape.size() < 2 ? 1 : shape[shape.size() - 2];
  const uint64_t head_width = shape.back();
  TokenRows rows;
  rows.width = heads * head_width;
  uint64_t begin = 0;
  if (length >= query) {
    begin = length - query;
    rows.count = real;
  } else {
    // One row of several: that of the last token (--logits last), which counts when it is no padding.
    rows.first = query - 1;
    rows.count = length == 1 && real == query ? 1 : 0;
  }
  out.resize(rows.count * rows.width);
  for (uint64_t t = 0; t < rows.count; ++t) {
    for (uint64_t h = 0; h < heads; ++h) {
      const float* from = values.data() + (h * length + begin + t) * head_width;
      std::copy(from, from + head_width, out.data() + t * rows.width + h * head_width);
    }
  }
  return rows;
}

// Where the error is largest; the first value that is not finite comes before all.
uint64_t worst_element(std::span<const float> got, std::span<const float> expected) {
  uint64_t worst = 0;
  double largest = -1;
  for (uint64_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return i;
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (error > largest) {
      largest = error;
      worst = i;
    }
  }
  return worst;
}

}  // namespace

void TapRecord::add(std::string_view name, uint64_t first_position, uint64_t rows, std::span<const float> values) {
  const auto [place, is_new] = rows_.try_emplace(std::string(name));
  Rows& record = place->second;
  if (is_new) {
    record.first_position = first_position;
    record.width = rows > 0 ? values.size() / rows : 0;
  }
  record.values.insert(record.values.end(), values.begin(), values.end());
}

const TapRecord::Rows* TapRecord::find(const std::string& name) const {
  const auto found = rows_.find(name);
  return found == rows_.end() ? nullptr : &found->second;
}

struct Lockstep::CallState {
  size_t graph = 0;  // index in graphs_
  uint32_t query = 0;
  uint32_t real = 0;
  uint64_t position = 0;
  StepResult result;
  std::unordered_set<ValueId> compared;
};

Lockstep::Lockstep(BundleRunner& runner, Reference& reference, const std::vector<Graph>& graphs, const Tolerance& tolerance)
    : runner_(runner), reference_(reference), graphs_(graphs), tolerance_(tolerance) {
  const StepContract& step = runner.contract().steps.front().contract;
  first_layer_ = step.first_layer;
  unknown_.tolerance = tolerance;
  const size_t count = step.caches.size();
  keys_.resize(count);
  values_.resize(count);
  layers_.resize(count);
  for (const Graph& graph : graphs) {
    std::vector<size_t> producer(graph.values().size(), 0);
    for (size_t i = 0; i < graph.nodes().size(); ++i) producer[graph.nodes()[i].output] = i + 1;
    producers_.push_back(std::move(producer));
  }
}

const Lockstep::Usual& Lockstep::usual(const std::string& tap) const {
  const auto found = usual_.find(tap);
  return found == usual_.end() ? unknown_ : found->second;
}

void Lockstep::learn_scales(std::span<const int32_t> tokens, Reference& disturbed) {
  TapRecord plain;
  ReferenceSinks sinks;
  sinks.every_row = true;
  if (runner_.contract().head) sinks.logits = [](uint64_t, std::span<const float>) {};
  sinks.tap = [&](std::string_view name, uint64_t position, uint64_t rows, std::span<const float> values) {
    plain.add(name, position, rows, values);
  };
  const auto block = static_cast<uint32_t>(tokens.size());
  reference_.read(tokens, sinks, block);
  reference_.reset();

  sinks.tap = [&](std::string_view name, uint64_t, uint64_t rows, std::span<const float> values) {
    const std::span<const float> expected = plain.find(std::string(name))->values;
    const uint64_t width = values.size() / rows;
    const auto row_of = [&](std::span<const float> all, uint64_t row) { return all.subspan(row * width, width); };
    std::vector<TypicalRow> measured;
    for (uint64_t row = 0; row < rows; ++row) measured.push_back(measure_row(row_of(expected, row)));
    Usual& found = usual_[std::string(name)];
    found.row = in_normal_range(typical_row(std::move(measured)), runner_.contract().compute);
    Closeness moved;
    moved.sqnr_db = std::numeric_limits<double>::infinity();
    for (uint64_t row = 0; row < rows; ++row) {
      const Closeness one = row_closeness(row_of(values, row), row_of(expected, row), found.row);
      moved.relative = std::max(moved.relative, one.relative);
      moved.sqnr_db = std::min(moved.sqnr_db, one.sqnr_db);
    }
    found.tolerance = widened(tolerance_, moved);
    if (found.tolerance.relative > std::max(tolerance_.relative, widest_tolerance_)) {
      widest_tolerance_ = found.tolerance.relative;
      widest_tensor_ = name;
    }
  };
  disturbed.read(tokens, sinks, block);
}

void Lockstep::read_reference(std::span<const int32_t> tokens) {
  taps_.clear();
  const std::string hidden_in = first_layer_ > 0 ? fmt::format("layers_{}_out", first_layer_ - 1) : std::string();
  const bool head = runner_.contract().head;
  ReferenceSinks sinks;
  sinks.every_row = head && !runner_.contract().last_row_only;
  sinks.tap = [&](std::string_view name, uint64_t position, uint64_t rows, std::span<const float> values) {
    std::optional<uint32_t> layer = layer_of_name(name);
    for (const std::string_view entry : {"k_new_", "v_new_"}) {
      if (name.starts_with(entry)) layer = static_cast<uint32_t>(std::stoul(std::string(name.substr(entry.size()))));
    }
    if (layer && *layer < first_layer_ && name != hidden_in) return;
    taps_.add(name, position, rows, values);
  };
  if (head) {
    sinks.logits = [&](uint64_t, std::span<const float> logits) { best_token_ = static_cast<int32_t>(best_index(logits)); };
  }
  reference_.read(tokens, sinks, static_cast<uint32_t>(tokens.size()));
  for (size_t i = 0; i < keys_.size(); ++i) {
    for (const auto& [kind, all] : {std::pair{"k", &keys_[i]}, std::pair{"v", &values_[i]}}) {
      const TapRecord::Rows* rows = taps_.find(fmt::format("{}_new_{}", kind, first_layer_ + i));
      if (rows == nullptr) throw Error(ErrorCode::internal, "reference: got no tap for cache entries, expected one");
      all->insert(all->end(), rows->values.begin(), rows->values.end());
    }
  }
}

// The reference's name for a value of a graph. Cache entries count from the start of the slice; a roll names the new ones apart
// from the window it returns.
std::string Lockstep::tap_of(const std::string& name) const {
  if (name == "x_rows") return first_layer_ > 0 ? fmt::format("layers_{}_out", first_layer_ - 1) : "x";
  if (name == "hidden") return fmt::format("layers_{}_out", first_layer_ + layers_.size() - 1);
  for (const std::string_view entry : {"k_new_", "v_new_"}) {
    if (!name.starts_with(entry)) continue;
    const std::string digits = name.substr(entry.size());
    if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) return name;
    return fmt::format("{}{}", entry, first_layer_ + std::stoul(digits));
  }
  if (const auto layer = layer_of_name(name)) {
    if (name == fmt::format("layers_{}_attn_k_rope", *layer)) return fmt::format("k_new_{}", *layer);
    if (name == fmt::format("layers_{}_attn_v_heads", *layer)) return fmt::format("v_new_{}", *layer);
  }
  return name;
}

void Lockstep::observe(CallState& state, const Value& value, std::span<const float> values) {
  const std::string tap = tap_of(value.name);
  const TapRecord::Rows* expected = taps_.find(tap);
  if (expected == nullptr) return;
  const TokenRows rows = token_major(value.shape, values, state.query, state.real, rows_);
  if (rows.count == 0) return;
  const uint64_t position = state.position + rows.first;
  if (rows.width != expected->width || position < expected->first_position ||
      position + rows.count > expected->first_position + expected->count()) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("rows of a value: got {} of {} from position {}, expected {} of {} from {}", rows.count, rows.width,
                            position, expected->count(), expected->width, expected->first_position),
                {state.result.file, value.name, {}});
  }
  const std::span<const float> expected_rows(expected->values.data() + (position - expected->first_position) * rows.width,
                                             rows.count * rows.width);
  DifferenceSum sum;
  sum.add(rows_, expected_rows);
  ++values_compared_;
  const Usual& known = usual(tap);
  double worst = 0;
  for (uint64_t row = 0; row < rows.count; ++row) {
    const auto got = std::span<const float>(rows_).subspan(row * rows.width, rows.width);
    const auto wanted = expected_rows.subspan(row * rows.width, rows.width);
    const Closeness closeness = row_closeness(got, wanted, known.row);
    worst = std::max(worst, closeness.relative);
    if (closeness.sqnr_db < least_sqnr_db_) {
      least_sqnr_db_ = closeness.sqnr_db;
      noisiest_tensor_ = value.name;
    }
    if (failure_ || known.tolerance.holds(closeness)) continue;
    const uint64_t element = worst_element(got, wanted);
    failure_ = VerifyFailure{value.name,
                             layer_of_value(value.name),
                             position + row,
                             state.result.file,
                             weights_before(state, value),
                             difference_text(closeness, known.tolerance, got[element], wanted[element], element)};
  }
  if (worst > worst_relative_) {
    worst_relative_ = worst;
    worst_tensor_ = value.name;
  }
  accumulate(state, value, sum, worst);
  state.compared.insert(graphs_[state.graph].find(value.name));
  if (value.name != "logits") return;
  has_logits_ = true;
  for (uint64_t row = 0; row < rows.count; ++row) {
    head_.add_row(std::span(rows_).subspan(row * rows.width, rows.width), expected_rows.subspan(row * rows.width, rows.width));
  }
}

std::optional<uint32_t> Lockstep::layer_of_value(const std::string& name) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (name == fmt::format("k_new_{}", i) || name == fmt::format("v_new_{}", i)) return static_cast<uint32_t>(first_layer_ + i);
  }
  return layer_of_name(name);
}

void Lockstep::accumulate(CallState& state, const Value& value, const DifferenceSum& sum, double worst) {
  if (value.name == "logits" || value.name == "hidden") state.result.head_relative = worst;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (value.name == fmt::format("layers_{}_out", first_layer_ + i)) {
      layers_[i].out.add(sum);
      state.result.layer_relative[i] = worst;
    }
    if (value.name == fmt::format("k_new_{}", i)) layers_[i].keys.add(sum);
    if (value.name == fmt::format("v_new_{}", i)) layers_[i].values.add(sum);
  }
}

// Constants that nodes between the values compared before and this one read.
std::vector<std::string> Lockstep::weights_before(const CallState& state, const Value& value) {
  const Graph& graph = graphs_[state.graph];
  const std::vector<size_t>& producer = producers_[state.graph];
  std::vector<ValueId> open{graph.find(value.name)};
  std::unordered_set<ValueId> seen;
  std::vector<ValueId> constants;
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    if (producer[id] == 0) continue;
    for (const ValueId input : graph.nodes()[producer[id] - 1].inputs) {
      if (state.compared.contains(input) || !seen.insert(input).second) continue;
      if (!graph.value(input).constant.empty()) constants.push_back(input);
      open.push_back(input);
    }
  }
  // Tensors first: scalars are many and seldom the fault.
  std::stable_sort(constants.begin(), constants.end(), [&](ValueId a, ValueId b) {
    const uint64_t a_count = element_count(graph.value(a).shape);
    const uint64_t b_count = element_count(graph.value(b).shape);
    return a_count != b_count ? a_count > b_count : a < b;
  });
  std::vector<std::string> names;
  for (const ValueId id : constants) names.push_back(graph.value(id).name);
  return names;
}

void Lockstep::require_values(const CallState& state) const {
  const Graph& graph = graphs_[state.graph];
  std::vector<std::string> needed;
  for (size_t i = 0; i < layers_.size(); ++i) {
    needed.push_back(fmt::format("layers_{}_out", first_layer_ + i));
    needed.push_back(fmt::format("k_new_{}", i));
    needed.push_back(fmt::format("v_new_{}", i));
  }
  const bool padded = runner_.contract().last_row_only && state.real < state.query;
  if (!padded) needed.emplace_back(runner_.contract().head ? "logits" : "hidden");
  std::vector<std::string> missing;
  for (const std::string& name : needed) {
    const bool there =
        std::any_of(state.compared.begin(), state.compared.end(), [&](ValueId id) { return graph.value(id).name == name; });
    if (!there) missing.push_back(fmt::format("'{}'", name));
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::tensor_missing, "values to compare are not in the graph: expected " + join_faults(missing),
                {state.result.file, {}, {}});
  }
}

void Lockstep::call(const ScheduledCall& call, std::span<const int32_t> tokens) {
  const BundleContract& contract = runner_.contract();
  CallState state;
  const auto step = std::find_if(contract.steps.begin(), contract.steps.end(),
                                 [&](const StepFile& file) { return file.file == call.step->file; });
  state.graph = static_cast<size_t>(step - contract.steps.begin());
  state.query = call.step->contract.query;
  state.real = call.real;
  state.position = reference_.position();
  state.result = {state.position, state.query, state.real, call.step->file, std::vector<double>(layers_.size(), 0.0), 0};
  read_reference(tokens);
  if (runner_.cache().context() != call.step->contract.context) runner_.cache().grow(call.step->contract.context);

  const auto observer = [&](const Value& value, std::span<const float> values) { observe(state, value, values); };
  const BundleRunner::Call runner_call{call.step, call.real};
  bool finished = true;
  try {
    if (contract.input_form == RowForm::hidden) {
      runner_.call_hidden(runner_call, taps_.find(fmt::format("layers_{}_out", first_layer_ - 1))->values, observer);
    } else {
      runner_.call_tokens(runner_call, tokens, observer);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::numeric_fault) throw;
    finished = false;
    if (!failure_) {
      failure_ = VerifyFailure{error.site().tensor, layer_of_name(error.site().tensor), state.position, call.step->file, {},
                               error.what()};
    }
  }
  if (finished) require_values(state);
  steps_.push_back(std::move(state.result));
}

void Lockstep::compare_caches() {
  for (uint32_t i = 0; i < layers_.size() && !failure_; ++i) {
    const LayerEntries entries = runner_.cache().entries(i);
    for (const auto& [kind, tensor, all] :
         {std::tuple{"k", &entries.keys, &keys_[i]}, std::tuple{"v", &entries.values, &values_[i]}}) {
      if (entries.count == 0) continue;
      const std::vector<float> stored = from_compute_dtype(tensor->bytes, tensor->dtype);
      const auto count = static_cast<uint32_t>(entries.count);
      const TokenRows rows = token_major({1, tensor->shape[0], tensor->shape[1], tensor->shape[2]}, stored, count, count, rows_);
      const std::span<const float> expected(all->data() + entries.first * rows.width, rows_.size());
      ++values_compared_;
      const Usual& known = usual(fmt::format("{}_new_{}", kind, first_layer_ + i));
      for (uint64_t row = 0; row < rows.count && !failure_; ++row) {
        const auto got = std::span<const float>(rows_).subspan(row * rows.width, rows.width);
        const auto wanted = expected.subspan(row * rows.width, rows.width);
        const Closeness closeness = row_closeness(got, wanted, known.row);
        if (known.tolerance.holds(closeness)) continue;
        const uint64_t element = worst_element(got, wanted);
        failure_ = VerifyFailure{fmt::format("{}_cache_{}", kind, i),
                                 first_layer_ + i,
                                 entries.first + row,
                                 steps_.empty() ? std::string() : steps_.back().file,
                                 {},
                                 difference_text(closeness, known.tolerance, got[element], wanted[element], element)};
      }
    }
  }
}

void Lockstep::fill(VerifyReport& report) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    report.layers.push_back(
        {static_cast<uint32_t>(first_layer_ + i), layers_[i].out.result(), layers_[i].keys.result(), layers_[i].values.result()});
  }
  report.steps = steps_;
  report.values_compared = values_compared_;
  report.worst_tensor = worst_tensor_;
  report.worst_relative = worst_relative_;
  report.noisiest_tensor = noisiest_tensor_;
  report.least_sqnr_db = least_sqnr_db_;
  report.widest_tensor = widest_tensor_;
  report.widest_tolerance = widest_tolerance_;
  if (has_logits_) report.head = head_.result();
  report.failure = failure_;
}

}  // namespace transload
