// One call of a written graph after another: inputs by the contract, the interpreter, the result, and the commit.
#include "export/bundle_runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/half.h"
#include "io/file.h"
#include "runtime/matmul.h"
#include "runtime/step_inputs.h"
#include "runtime/token_ids.h"
#include "targets/onnx/onnx_reader.h"
#include "transload/error.h"

namespace transload {
namespace {

[[noreturn]] void refuse(std::string text) { throw Error(ErrorCode::usage, std::move(text)); }

std::string_view input_form_text(RowForm form) {
  switch (form) {
    case RowForm::rows:
    case RowForm::ids:
      return "tokens";
    case RowForm::hidden:
      return "hidden states";
  }
  return {};
}

bool is_token_input(const Port& port) {
  return port.role == PortRole::embedding_rows || port.role == PortRole::token_ids || port.role == PortRole::hidden_in;
}

bool is_result(const Port& port) { return port.role == PortRole::logits || port.role == PortRole::hidden; }

// The rows where they lie in a file of the bundle.
Recipe embedding_source(const BundleContract& contract) {
  const EmbeddingPlace& place = *contract.embedding;
  const auto file = InputFile::open(contract.folder / place.file);
  const uint64_t bytes = tensor_bytes(place.dtype, place.shape);
  const uint64_t end = checked_add(place.offset, bytes, "end of the embedding rows");
  const ErrorSite site{place.file, "embedding", place.offset};
  if (end > file->size()) {
    throw Error(ErrorCode::bad_offset,
                fmt::format("rows end past the end of the file: got end {}, expected at most {}", end, file->size()), site);
  }
  if (place.offset % dtype_info(place.dtype).block_bytes != 0) {
    throw Error(ErrorCode::bad_offset,
                fmt::format("rows are not aligned: got offset {}, expected a multiple of {} bytes", place.offset,
                            dtype_info(place.dtype).block_bytes),
                site);
  }
  return source(TensorInfo{"embedding", place.dtype, place.shape, place.offset, bytes, file});
}

void check_ports(const StepFile& step, std::string_view side, const Graph& graph, const std::vector<ValueId>& ids,
                 const std::vector<Port>& ports) {
  const auto text = [](const std::string& name, DType dtype, const Shape& shape) {
    return fmt::format("'{}' {} {}", name, dtype_name(dtype), shape_text(shape));
  };
  std::vector<std::string> faults;
  for (size_t i = 0; i < std::max(ids.size(), ports.size()); ++i) {
    const std::string got = i < ids.size() ? text(graph.value(ids[i]).name, graph.value(ids[i]).dtype, graph.value(ids[i]).shape)
                                           : std::string("none");
    const std::string expected = i < ports.size() ? text(ports[i].name, ports[i].dtype, ports[i].shape) : std::string("none");
    if (got != expected) {
      faults.push_back(fmt::format("{} {} does not match contract.json: got {}, expected {}", side, i, got, expected));
    }
  }
  if (!faults.empty()) throw Error(ErrorCode::config_invalid, join_faults(faults), {step.file, {}, {}});
}

}  // namespace

BundleRunner::BundleRunner(const std::filesystem::path& bundle, WeightStore& store, WorkerPool& pool, uint32_t context)
    : contract_(std::make_shared<const BundleContract>(read_contract(bundle))),
      store_(store),
      pool_(pool),
      cache_(contract_, context),
      fixed_context_(context != 0) {
  if (contract_->embedding) embedding_ = store_.matrix(embedding_source(*contract_));
}

uint64_t BundleRunner::room() const {
  const uint32_t largest = fixed_context_ ? cache_.context() : contract_->contexts().back();
  const uint64_t capacity = KvCache::capacity_of(*contract_, largest);
  return capacity - std::min(capacity, cache_.position());
}

void BundleRunner::reserve(uint64_t count) {
  if (count > room()) {
    refuse(fmt::format("tokens do not fit: got {}, expected at most {}", cache_.position() + count, cache_.position() + room()));
  }
  const uint64_t needed = cache_.position() + count;
  if (needed <= cache_.capacity()) return;
  for (const uint32_t context : contract_->contexts()) {
    if (context <= cache_.context() || needed > KvCache::capacity_of(*contract_, context)) continue;
    cache_.grow(context);
    graphs_.clear();  // those of the smaller context are not needed again
    return;
  }
}

std::vector<BundleRunner::Call> BundleRunner::plan(uint64_t count, bool every_row) const {
  const std::vector<uint32_t> queries = contract_->queries(cache_.context());
  std::vector<Call> calls;
  const auto add = [&](uint32_t query, uint64_t real) {
    calls.push_back({contract_->find_step(query, cache_.context()), static_cast<uint32_t>(real)});
  };
  const auto fill = [&](uint64_t tokens) {
    const uint32_t largest = queries.back();
    for (uint64_t i = 0; i < tokens / largest; ++i) add(largest, largest);
    const uint64_t rest = tokens % largest;
    if (rest > 0) add(*std::lower_bound(queries.begin(), queries.end(), rest), rest);
  };
  if (!contract_->last_row_only) {
    fill(count);
    return calls;
  }
  // Only the last row of a call comes out, so a row that is wanted must be the last of a full call.
  if (every_row) {
    if (queries.front() != 1) {
      refuse(
          fmt::format("logits of the last row only: got all rows asked for, expected a graph of q 1, not {}", queries.front()));
    }
    for (uint64_t i = 0; i < count; ++i) add(1, 1);
    return calls;
  }
  if (count == 0) return calls;
  if (count < queries.front()) {
    refuse(fmt::format("logits of the last row only: got {} tokens, expected at least {}", count, queries.front()));
  }
  const uint32_t last = *(std::upper_bound(queries.begin(), queries.end(), count) - 1);
  fill(count - last);
  add(last, last);
  return calls;
}

std::vector<float> BundleRunner::embedding_rows(std::span<const int32_t> tokens) const {
  if (!embedding_) refuse("bundle has no embedding rows for the host: got tokens, expected input form 'rows'");
  require_token_ids(tokens, contract_->vocab_size);
  const uint64_t width = contract_->hidden_size;
  std::vector<float> rows(tokens.size() * width);
  for (size_t i = 0; i < tokens.size(); ++i) read_row(*embedding_, static_cast<uint64_t>(tokens[i]), rows.data() + i * width);
  if (contract_->compute == DType::f16) {
    for (float& value : rows) value = f16_to_f32(f32_to_f16(value));
  }
  return rows;
}

std::vector<float> BundleRunner::call_tokens(const Call& call, std::span<const int32_t> tokens, const ValueObserver& observe) {
  open_call(call, RowForm::rows, tokens.size());
  if (contract_->input_form == RowForm::rows) return run(call, padded_rows(call, embedding_rows(tokens)), observe);
  require_token_ids(tokens, contract_->vocab_size);
  std::vector<int32_t> ids(tokens.begin(), tokens.end());
  ids.resize(call.step->contract.query);  // with zeros
  const auto bytes = std::as_bytes(std::span(ids));
  return run(call, {bytes.begin(), bytes.end()}, observe);
}

std::vector<float> BundleRunner::call_hidden(const Call& call, std::span<const float> hidden, const ValueObserver& observe) {
  if (hidden.size() % contract_->hidden_size != 0) {
    refuse(fmt::format("hidden states are no whole rows: got {} values, expected a multiple of {}", hidden.size(),
                       contract_->hidden_size));
  }
  open_call(call, RowForm::hidden, hidden.size() / contract_->hidden_size);
  return run(call, padded_rows(call, {hidden.begin(), hidden.end()}), observe);
}

// `form`: hidden, or any other for tokens. The graph comes first: until it agrees with the contract, sizes are mere claims.
void BundleRunner::open_call(const Call& call, RowForm form, uint64_t count) {
  if (input_form_text(form) != input_form_text(contract_->input_form)) {
    refuse(fmt::format("bundle takes other rows: got {}, expected {}", input_form_text(form),
                       input_form_text(contract_->input_form)));
  }
  if (call.step == nullptr || call.real < 1 || call.real > call.step->contract.query) {
    refuse(fmt::format("count of real tokens out of range: got {}, expected 1 to {}", call.real,
                       call.step == nullptr ? 0 : call.step->contract.query));
  }
  if (count != call.real) refuse(fmt::format("rows do not match the call: got {}, expected {}", count, call.real));
  load(*call.step);
}

std::vector<std::byte> BundleRunner::padded_rows(const Call& call, std::vector<float> rows) const {
  rows.resize(uint64_t{call.step->contract.query} * contract_->hidden_size);  // with zeros
  return to_compute_dtype(rows, contract_->compute);
}

BundleRunner::LoadedGraph& BundleRunner::load(const StepFile& step) {
  const auto found = graphs_.find(step.file);
  if (found != graphs_.end()) return found->second;
  Graph graph = read_onnx(contract_->folder / step.file);
  check_ports(step, "input", graph, graph.inputs(), step.contract.inputs);
  check_ports(step, "output", graph, graph.outputs(), step.contract.outputs);
  LoadedGraph& loaded = graphs_[step.file];
  loaded.graph = std::move(graph);
  try {
    loaded.interpreter = std::make_unique<Interpreter>(loaded.graph, store_, pool_);
  } catch (...) {
    graphs_.erase(step.file);
    throw;
  }
  return loaded;
}

std::vector<float> BundleRunner::run(const Call& call, const std::vector<std::byte>& rows, const ValueObserver& observe) {
  const StepContract& step = call.step->contract;
  const uint64_t position = cache_.position();
  std::vector<TensorView> inputs = cache_.inputs(step, position, call.real);
  const auto port = std::find_if(step.inputs.begin(), step.inputs.end(), is_token_input);
  inputs.push_back({port->name, port->dtype, port->shape, rows});
  const std::vector<Tensor> outputs = load(*call.step).interpreter->run(inputs, observe);

  std::vector<float> result;
  std::vector<TensorView> entries;
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    if (!is_result(step.outputs[i])) {
      entries.push_back(outputs[i].view());
      continue;
    }
    const Shape& shape = outputs[i].shape;
    const uint64_t width = shape.back();
    const uint64_t given = element_count(shape) / width;
    const bool is_padding = given != step.query && call.real < step.query;  // the last row alone, and it is none of the real ones
    const uint64_t kept = is_padding ? 0 : std::min<uint64_t>(given, call.real);
    result =
        from_compute_dtype(std::span(outputs[i].bytes).first(tensor_bytes(outputs[i].dtype, {kept * width})), outputs[i].dtype);
    const auto bad = std::count_if(result.begin(), result.end(), [](float value) { return !std::isfinite(value); });
    if (bad > 0) {
      throw Error(ErrorCode::numeric_fault, fmt::format("values are not finite: got {} of {}, expected 0", bad, result.size()),
                  {call.step->file, step.outputs[i].name, {}});
    }
  }
  cache_.commit(step, entries, position, call.real);
  return result;
}

}  // namespace transload
