// Runs blocks twice: split over the ranks by the loader's rules, and whole. The split side knows tensor names and the mapping
// and shares nothing with the code that cuts or joins ranks.
#include "export/verify_trtllm_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "export/block_arithmetic.h"
#include "runtime/matmul.h"
#include "runtime/weight_matrix.h"
#include "targets/trtllm/hf_tensors.h"
#include "targets/trtllm/rank_names.h"

namespace transload {
namespace {

constexpr uint64_t kHeadChunk = 4096;  // rows of the head at a time: a head may be gigabytes in fp32
constexpr double kAllowed = 1e-5;

// Products with weights that live as long as this.
class Products {
 public:
  explicit Products(WorkerPool& pool) : pool_(pool) {}

  Values times(const Values& x, const Recipe& weight, const Recipe& bias = {}) {
    const WeightMatrix matrix = store_.matrix(weight);
    const Values added = bias.empty() ? Values() : store_.values(bias);
    Values out(kBlockRows * matrix.rows);
    multiply_transposed(pool_, x.data(), kBlockRows, matrix, added.empty() ? nullptr : added.data(), out.data());
    return out;
  }
  void add_bias(Values& rows, const Recipe& bias) {
    if (bias.empty()) return;
    const Values added = store_.values(bias);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += added[i % added.size()];
  }

 private:
  WorkerPool& pool_;
  WeightStore store_;
};

// What a layer computes between its products: the same on either side, and of the model, since joined ranks do not tell.
const Mlp& mlp_of(const Layer& layer) { return layer.experts ? layer.experts->experts.front() : layer.mlp; }

// The runtime's side: every rank of a stage, results summed.
class SplitBlocks {
 public:
  SplitBlocks(const TrtllmCheckpoint& checkpoint, const Layer& kind, WorkerPool& pool)
      : checkpoint_(checkpoint), d_(checkpoint.dimensions), mapping_(checkpoint.options.mapping), kind_(kind), pool_(pool) {}

  // Finds the stage and the local number of a layer: early stages have one more where they do not divide.
  void go_to(uint32_t layer) {
    uint32_t stage = 0;
    const auto layers = [&] { return d_.layers / mapping_.pipeline + (stage < d_.layers % mapping_.pipeline ? 1 : 0); };
    while (layer >= layers()) {
      layer -= layers();
      ++stage;
    }
    first_rank_ = stage * mapping_.tensor;
    prefix_ = fmt::format("transformer.layers.{}.", layer);
  }

  Values attention(const Values& x) const {
    const uint64_t heads = d_.heads / mapping_.tensor;
    const uint64_t kv_heads = (d_.kv_heads + mapping_.tensor - 1) / mapping_.tensor;
    const uint64_t q_end = heads * d_.head_dim;
    const uint64_t k_end = q_end + kv_heads * d_.head_dim;
    const uint64_t width = k_end + kv_heads * d_.head_dim;
    Values sum(kBlockRows * d_.hidden);
    Products products(pool_);
    for (uint32_t rank = 0; rank < mapping_.tensor; ++rank) {
      const Values qkv = products.times(x, weight(rank, "attention.qkv"), maybe(rank, "attention.qkv.bias"));
      const Values heads_out = attend(columns(qkv, width, 0, q_end), columns(qkv, width, q_end, k_end),
                                      columns(qkv, width, k_end, width), heads, kv_heads, d_.head_dim);
      add(sum, products.times(heads_out, weight(rank, "attention.dense")));
    }
    products.add_bias(sum, maybe(0, "attention.dense.bias"));
    return sum;
  }

  Values mlp(const Values& x) const {
    Values sum(kBlockRows * d_.hidden);
    Products products(pool_);
    for (uint32_t rank = 0; rank < mapping_.tensor; ++rank) {
      const Values inner = activated(products.times(x, weight(rank, "mlp.fc"), maybe(rank, "mlp.fc.bias")));
      add(sum, products.times(inner, weight(rank, "mlp.proj")));
    }
    products.add_bias(sum, maybe(0, "mlp.proj.bias"));
    return sum;
  }

  Values experts(const Values& x) const {
    Values sum(kBlockRows * d_.hidden);
    const uint32_t own = d_.experts / mapping_.expert;
    for (uint32_t rank = 0; rank < mapping_.tensor; ++rank) {
      const Values routing = route(Products(pool_).times(x, maybe(rank, "mlp.router.weight")), kind_.experts->jitter);
      for (uint32_t local = 0; local < own; ++local) {
        const std::vector<float> row_weights = weights_of(rank % mapping_.expert * own + local, routing);
        if (row_weights.empty()) continue;
        Products products(pool_);
        const Values inner = activated(products.times(x, expert(rank, "mlp.fc", local)));
        add_weighted_rows(sum, products.times(inner, expert(rank, "mlp.proj", local)), row_weights);
      }
    }
    return sum;
  }

  // Rows begin..end-1 of one rank's part of the head.
  Values logits(const Values& x, uint32_t rank, uint64_t begin, uint64_t end) const {
    const uint32_t last = static_cast<uint32_t>(checkpoint_.ranks.size()) - mapping_.tensor + rank;
    const auto rows = [&](const char* name) {
      return checkpoint_.has(last, name) ? slice(source(checkpoint_.tensor(last, name)), 0, begin, end) : Recipe();
    };
    return Products(pool_).times(x, rows("lm_head.weight"), rows("lm_head.bias"));
  }

 private:
  Recipe maybe(uint32_t rank, const std::string& name) const {
    const uint32_t file = first_rank_ + rank;
    return checkpoint_.has(file, prefix_ + name) ? source(checkpoint_.tensor(file, prefix_ + name)) : Recipe();
  }

  Recipe weight(uint32_t rank, const std::string& name) const {
    const TensorInfo& tensor = checkpoint_.tensor(first_rank_ + rank, prefix_ + name + ".weight");
    if (!checkpoint_.options.has_baked_weights()) return source(tensor);
    return dequantize(tensor, checkpoint_.tensor(first_rank_ + rank, prefix_ + name + kScalesSuffix),
                      checkpoint_.options.weight_quant());
  }

  Recipe expert(uint32_t rank, const std::string& name, uint32_t local) const {
    const Recipe one = slice(weight(rank, name), 0, local, local + 1);
    return reshape(one, {one.shape()[1], one.shape()[2]});
  }

  // swiglu: left half linear, right half through the activation; gegelu: even channels through it, odd ones linear.
  Values activated(const Values& fc) const {
    const uint64_t width = fc.size() / kBlockRows;
    Values gate;
    Values up;
    if (checkpoint_.architecture->fc == FcOrder::up_gate) {
      up = columns(fc, width, 0, width / 2);
      gate = columns(fc, width, width / 2, width);
    } else {
      for (size_t i = 0; i < fc.size(); ++i) (i % 2 == 0 ? gate : up).push_back(fc[i]);
    }
    combine(mlp_of(kind_), gate, up);
    return gate;
  }

  const TrtllmCheckpoint& checkpoint_;
  const TrtllmDimensions& d_;
  const TrtllmMapping& mapping_;
  const Layer& kind_;
  WorkerPool& pool_;
  uint32_t first_rank_ = 0;
  std::string prefix_;
};

// The model's side. Weights are cast as the rank files have them, or come as f32 where those were quantised.
class WholeBlocks {
 public:
  WholeBlocks(const DecoderModel& model, const Layer& kind, DType dtype, WorkerPool& pool)
      : model_(model), kind_(kind), dtype_(dtype), pool_(pool) {}

  Values attention(const Values& x, uint32_t layer) const {
    const Attention& a = model_.layers[layer].attention;
    Products products(pool_);
    const Values heads =
        attend(linear(products, x, a.q), linear(products, x, a.k), linear(products, x, a.v), a.heads, a.kv_heads, a.head_dim);
    return linear(products, heads, a.o);
  }
  Values mlp(const Values& x, uint32_t layer) const { return feed_forward(x, model_.layers[layer].mlp); }
  Values experts(const Values& x, uint32_t layer) const {
    const Experts& experts = *model_.layers[layer].experts;
    const Values routing = route(Products(pool_).times(x, cast(experts.router.weight, DType::f32)), kind_.experts->jitter);
    Values sum(kBlockRows * model_.hidden_size);
    for (size_t e = 0; e < experts.experts.size(); ++e) {
      const std::vector<float> row_weights = weights_of(e, routing);
      if (!row_weights.empty()) add_weighted_rows(sum, feed_forward(x, experts.experts[e]), row_weights);
    }
    return sum;
  }
  Values logits(const Values& x, uint64_t begin, uint64_t end) const {
    Products products(pool_);
    return linear(
        products, x,
        {slice(model_.head, 0, begin, end), model_.head_bias.empty() ? Recipe() : slice(model_.head_bias, 0, begin, end)});
  }

 private:
  Recipe rounded(const Recipe& recipe) const { return recipe.empty() ? recipe : cast(recipe, dtype_); }
  Values linear(Products& products, const Values& x, const Linear& linear) const {
    return products.times(x, rounded(linear.weight), rounded(linear.bias));
  }
  Values feed_forward(const Values& x, const Mlp& mlp) const {
    Products products(pool_);
    Values gate = linear(products, x, mlp.gate);
    Values up = linear(products, x, mlp.up);
    combine(mlp_of(kind_), gate, up);
    return linear(products, gate, mlp.down);
  }

  const DecoderModel& model_;
  const Layer& kind_;
  DType dtype_;
  WorkerPool& pool_;
};

// Largest difference and largest expected value, over any number of parts.
class Relative {
 public:
  void add(const Values& got, const Values& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      // Weights that overflowed give no number on either side.
      if (!std::isfinite(expected[i])) {
        ++left_out_;
        continue;
      }
      const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
      difference_ = difference <= difference_ ? difference_ : difference;
      largest_ = std::max(largest_, std::abs(static_cast<double>(expected[i])));
      if (std::isnan(difference)) difference_ = std::numeric_limits<double>::infinity();
    }
    values_ += expected.size();
  }
  double value() const { return largest_ > 0 ? difference_ / largest_ : difference_; }
  uint64_t left_out() const { return left_out_; }
  uint64_t values() const { return values_; }

 private:
  double difference_ = 0;
  double largest_ = 0;
  uint64_t left_out_ = 0;
  uint64_t values_ = 0;
};

Relative relative(const Values& got, const Values& expected) {
  Relative result;
  result.add(got, expected);
  return result;
}

class BlockRun {
 public:
  BlockRun(const TrtllmCheckpoint& checkpoint, const DecoderModel& model, WorkerPool& pool)
      : checkpoint_(checkpoint),
        model_(model),
        split_(checkpoint, model.layers.front(), pool),
        whole_(model, model.layers.front(), *checkpoint.options.dtype, pool) {
    if (!checkpoint.options.has_baked_weights()) return;
    joined_ = join_ranks(checkpoint);
    rounded_.emplace(*joined_, model.layers.front(), DType::f32, pool);
  }

  std::vector<TrtllmBlockResult> run() {
    layer(0);
    if (const auto last = static_cast<uint32_t>(model_.layers.size()) - 1; last > 0) layer(last);
    head();
    return std::move(results_);
  }

 private:
  using Block = Values (WholeBlocks::*)(const Values&, uint32_t) const;

  void layer(uint32_t number) {
    split_.go_to(number);
    const Values x = pseudo_random_rows(model_.hidden_size, number);
    compare("attention", number, x, split_.attention(x), &WholeBlocks::attention);
    if (model_.layers[number].experts) {
      compare("experts", number, x, split_.experts(x), &WholeBlocks::experts);
    } else {
      compare("mlp", number, x, split_.mlp(x), &WholeBlocks::mlp);
    }
  }

  void compare(const char* name, uint32_t number, const Values& x, const Values& got, Block block) {
    TrtllmBlockResult result{.block = name, .layer = number, .allowed = kAllowed};
    const Relative exact = relative(got, (whole_.*block)(x, number));
    const Relative own = rounded_ ? relative(got, (*rounded_.*block)(x, number)) : exact;
    result.relative = own.value();
    if (rounded_ && exact.left_out() < exact.values()) result.quantisation = exact.value();
    result.not_comparable = std::max(exact.left_out(), own.left_out());
    result.values = own.values();
    results_.push_back(result);
  }

  void head() {
    const uint32_t tensor = checkpoint_.options.mapping.tensor;
    const uint64_t vocab = checkpoint_.dimensions.vocab;
    const uint64_t rows = (vocab + tensor - 1) / tensor;
    const Values x = pseudo_random_rows(model_.hidden_size, model_.layers.size());
    Relative all;
    for (uint32_t rank = 0; rank < tensor; ++rank) {
      for (uint64_t begin = 0; begin < rows; begin += kHeadChunk) {
        const uint64_t end = std::min(rows, begin + kHeadChunk);
        const uint64_t first = std::min(vocab, rank * rows + begin);
        const uint64_t last = std::min(vocab, rank * rows + end);
        const Values got = split_.logits(x, rank, begin, end);
        const uint64_t width = end - begin;
        const uint64_t real = last - first;
        if (real > 0) all.add(columns(got, width, 0, real), whole_.logits(x, first, last));
        // Rows behind the vocabulary are zero.
        all.add(columns(got, width, real, width), Values(kBlockRows * (width - real)));
      }
    }
    results_.push_back({.block = "lm_head",
                        .relative = all.value(),
                        .allowed = kAllowed,
                        .not_comparable = all.left_out(),
                        .values = all.values()});
  }

  const TrtllmCheckpoint& checkpoint_;
  const DecoderModel& model_;
  SplitBlocks split_;
  WholeBlocks whole_;
  std::optional<DecoderModel> joined_;  // of baked weights
  std::optional<WholeBlocks> rounded_;  // over joined_
  std::vector<TrtllmBlockResult> results_;
};

}  // namespace

std::vector<TrtllmBlockResult> run_trtllm_blocks(const TrtllmCheckpoint& checkpoint, const DecoderModel& model,
                                                 WorkerPool& pool) {
  return BlockRun(checkpoint, model, pool).run();
}

}  // namespace transload
