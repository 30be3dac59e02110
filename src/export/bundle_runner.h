// Runs the graphs of a written bundle in the interpreter, through the KV cache contract, one call at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "graph/graph.h"
#include "runtime/interpreter.h"
#include "runtime/weight_matrix.h"
#include "transload/contract.h"
#include "transload/kv_cache.h"

namespace transload {

class BundleRunner {
 public:
  // `context`: 0 starts at the smallest of the bundle; reserve() moves to larger ones unless one was given. `store` and
  // `pool` must outlive this. Throws what read_contract and KvCache throw, and bad_offset for embedding rows outside their file.
  // Graphs are read and checked against the contract at first use: ports by name, dtype and shape.
  BundleRunner(const std::filesystem::path& bundle, WeightStore& store, WorkerPool& pool, uint32_t context = 0);

  const BundleContract& contract() const { return *contract_; }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }
  uint64_t room() const;  // tokens that can still be read, over all contexts this runner may use
  void reset() { cache_.clear(); }

  // Calls that read `count` tokens: the largest q while full, then the least that holds the rest. With logits of the last row
  // only, the last call is a full one.
  struct Call {
    const StepFile* step = nullptr;
    uint32_t real = 0;
  };
  std::vector<Call> plan(uint64_t count, bool every_row) const;  // throws usage where the last row alone cannot give them
  void reserve(uint64_t count);  // moves to the smallest context that holds `count` more tokens; throws usage

  // Embedding rows of tokens as the host hands them to the graph: [tokens, hidden], in f32 of the compute dtype's precision.
  std::vector<float> embedding_rows(std::span<const int32_t> tokens) const;

  // One call. `tokens` with input forms rows and ids; `hidden` [real, hidden] with a slice that starts above layer 0. Returns
  // logits or hidden states of the real rows, [rows, width] (when the graph gives the last row alone: that row, or none where it
  // is padding), checks them for NaN and commits. `observe` sees the graph's values; its rows beyond `real` are padding. Throws
  // usage (the rows), what read_onnx and Interpreter throw, config_invalid (a graph that differs from the contract) and
  // numeric_fault; nothing is stored then.
  std::vector<float> call_tokens(const Call& call, std::span<const int32_t> tokens, const ValueObserver& observe = {});
  std::vector<float> call_hidden(const Call& call, std::span<const float> hidden, const ValueObserver& observe = {});

 private:
  struct LoadedGraph {
    Graph graph;
    std::unique_ptr<Interpreter> interpreter;
  };
  LoadedGraph& load(const StepFile& step);
  void open_call(const Call& call, RowForm form, uint64_t count);
  std::vector<std::byte> padded_rows(const Call& call, std::vector<float> rows) const;
  std::vector<float> run(const Call& call, const std::vector<std::byte>& rows, const ValueObserver& observe);

  std::shared_ptr<const BundleContract> contract_;
  WeightStore& store_;
  WorkerPool& pool_;
  KvCache cache_;
  bool fixed_context_ = false;
  std::optional<WeightMatrix> embedding_;
  std::map<std::string, LoadedGraph> graphs_;  // by file
};

}  // namespace transload
