// Attention of the reference: a few heads and tokens that read the same keys go together; no sum depends on which.
#include "runtime/reference_attention.h"

#include <algorithm>
#include <cmath>

#include "runtime/dot_kernels.h"

namespace transload {
namespace {

constexpr uint64_t kMostQueries = 48;        // that share a pass over the keys
constexpr uint64_t kScoreFloats = 32 << 10;  // of one worker: stays in the L2 cache
// Keys taken at a time. Chunks begin at multiples of it, wherever a window does, so that sums are made in one order.
constexpr uint64_t kKeyChunk = 64;
constexpr uint64_t kUnitsPerWorker = 3;

// Dropped tokens are worth a move of the others from here on.
constexpr uint64_t kFewTokens = 64;

// The query heads first .. first + count - 1 of one KV head, numbered token by token.
struct Unit {
  uint64_t kv_head;
  uint64_t first;
  uint64_t count;
};

class Attending {
 public:
  Attending(const Attention& attention, const KeyValueHistory& history, uint64_t position, uint64_t rows, const float* q,
            float* out)
      : history_(history),
        position_(position),
        group_(attention.heads / attention.kv_heads),
        head_dim_(attention.head_dim),
        window_(attention.window.value_or(UINT32_MAX)),
        sparse_(attention.block_sparse),
        scale_(attention.scale),
        q_(q),
        out_(out),
        pairs_(rows * group_) {}

  uint64_t pairs() const { return pairs_; }
  uint64_t most_keys() const { return std::min(position_ + pairs_ / group_, window_ + pairs_ / group_); }
  // Floats of scratch for a unit of `count` queries.
  uint64_t scratch_floats(uint64_t count) const { return count * (most_keys() + 2 * head_dim_); }

  void run(const Unit& unit, float* scratch) const {
    const uint64_t first = first_key(unit.first / group_);
    const uint64_t end = position_ + (unit.first + unit.count - 1) / group_ + 1;
    const uint64_t keys = end - first;
    float* queries = scratch;
    float* mixed = queries + unit.count * head_dim_;
    float* scores = mixed + unit.count * head_dim_;
    const uint64_t offset = unit.kv_head * head_dim_;

    for (uint64_t i = 0; i < unit.count; ++i) std::copy_n(q_ + place(unit, i), head_dim_, queries + i * head_dim_);
    for_chunks(first, end, [&](uint64_t begin, uint64_t count) {
      multiply_tiles({.weights = history_.key(begin) + offset,
                      .weight_stride = history_.width(),
                      .rows = count,
                      .x = queries,
                      .m = unit.count,
                      .columns = head_dim_,
                      .bias = nullptr,
                      .out = scores + (begin - first),
                      .out_stride = keys});
    });
    for (uint64_t i = 0; i < unit.count; ++i) {
      const uint64_t row = (unit.first + i) / group_;
      if (sparse_) hide_blocks(scores + i * keys, unit.kv_head * group_ + (unit.first + i) % group_, position_ + row);
      soften(scores + i * keys, keys, first_key(row) - first, position_ + row + 1 - first);
    }
    std::fill_n(mixed, unit.count * head_dim_, 0.0F);
    for_chunks(first, end, [&](uint64_t begin, uint64_t count) {
      add_column_products({.x = scores + (begin - first),
                           .x_stride = keys,
                           .m = unit.count,
                           .weights = history_.value(begin) + offset,
                           .weight_stride = history_.width(),
                           .rows = count,
                           .columns = head_dim_,
                           .out = mixed,
                           .out_stride = head_dim_});
    });
    for (uint64_t i = 0; i < unit.count; ++i) std::copy_n(mixed + i * head_dim_, head_dim_, out_ + place(unit, i));
  }

 private:
  uint64_t first_key(uint64_t row) const {
    const uint64_t seen = position_ + row + 1;
    return seen > window_ ? seen - window_ : 0;
  }
  // Of a query in q, and of its result in out.
  uint64_t place(const Unit& unit, uint64_t i) const {
    const uint64_t pair = unit.first + i;
    const uint64_t heads = group_ * (history_.width() / head_dim_);
    return (pair / group_ * heads + unit.kv_head * group_ + pair % group_) * head_dim_;
  }

  template <class Use>
  static void for_chunks(uint64_t first, uint64_t end, const Use& use) {
    for (uint64_t begin = first; begin < end;) {
      const uint64_t next = std::min(end, (begin / kKeyChunk + 1) * kKeyChunk);
      use(begin, next - begin);
      begin = next;
    }
  }

  // The scores of all keys up to `position` of one head: those of the blocks it does not see become minus infinity.
  void hide_blocks(float* scores, uint64_t head, uint64_t position) const {
    const uint64_t own = position / sparse_->block;
    const uint64_t shift = head * sparse_->head_step + 1;
    for (uint64_t block = 0; block + sparse_->local_blocks <= own; ++block) {
      if ((block + shift) % sparse_->vertical_stride != 0)
        std::fill_n(scores + block * sparse_->block, sparse_->block, -INFINITY);
    }
  }

  // Scores of the keys begin..end-1 that this token sees become probabilities, those of the others 0.
  void soften(float* scores, uint64_t count, uint64_t begin, uint64_t end) const {
    float highest = -INFINITY;
    for (uint64_t i = begin; i < end; ++i) {
      scores[i] *= scale_;
      highest = std::max(highest, scores[i]);
    }
    float sum = 0;
    for (uint64_t i = begin; i < end; ++i) {
      scores[i] = std::exp(scores[i] - highest);
      sum += scores[i];
    }
    for (uint64_t i = begin; i < end; ++i) scores[i] /= sum;
    std::fill_n(scores, begin, 0.0F);
    std::fill_n(scores + end, count - end, 0.0F);
  }

  const KeyValueHistory& history_;
  uint64_t position_;
  uint64_t group_;
  uint64_t head_dim_;
  uint64_t window_;
  std::optional<BlockSparse> sparse_;
  float scale_;
  const float* q_;
  float* out_;
  uint64_t pairs_;
};

}  // namespace

void KeyValueHistory::reset() {
  first_ = tokens_ = 0;
  keys_.clear();
  values_.clear();
}

void KeyValueHistory::extend(uint64_t position, uint64_t count) {
  if (window_) {
    // The token at `position` sees window - 1 tokens before it.
    const uint64_t needed = std::min<uint64_t>(position, *window_ - 1);
    const uint64_t old = position - needed - first_;
    if (old > std::max(needed, kFewTokens)) {
      const auto gone = static_cast<std::ptrdiff_t>(old * width_);
      keys_.erase(keys_.begin(), keys_.begin() + gone);
      values_.erase(values_.begin(), values_.begin() + gone);
      first_ += old;
    }
  }
  tokens_ = position + count - first_;
  // add_column_products reads past the last column of the last token.
  keys_.resize(tokens_ * width_ + kMostLanes);
  values_.resize(tokens_ * width_ + kMostLanes);
}

RopeTable::RopeTable(const RopeGroup& group, uint64_t first_position, uint64_t rows)
    : half_(group.width / 2), cos_(rows * half_), sin_(rows * half_) {
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t j = 0; j < half_; ++j) {
      const float angle = static_cast<float>(first_position + row) * group.inv_freq[j];
      cos_[row * half_ + j] = static_cast<float>(std::cos(static_cast<double>(angle))) * group.attention_factor;
      sin_[row * half_ + j] = static_cast<float>(std::sin(static_cast<double>(angle))) * group.attention_factor;
    }
  }
}

void RopeTable::turn(float* head, uint64_t row) const {
  const float* cosines = cos_.data() + row * half_;
  const float* sines = sin_.data() + row * half_;
  for (uint64_t j = 0; j < half_; ++j) {
    const float a = head[j];
    const float b = head[j + half_];
    head[j] = a * cosines[j] - b * sines[j];
    head[j + half_] = b * cosines[j] + a * sines[j];
  }
}

void attend(WorkerPool& pool, const Attention& attention, const KeyValueHistory& history, uint64_t position, uint64_t rows,
            const float* q, float* out, std::vector<float>& scratch) {
  const Attending work(attention, history, position, rows, q, out);
  const uint64_t share = work.pairs() * attention.kv_heads / (kUnitsPerWorker * pool.size()) + 1;
  const uint64_t most = std::clamp<uint64_t>(kScoreFloats / work.most_keys(), 1, kMostQueries);
  const uint64_t queries = std::min({share, most, work.pairs()});
  const uint64_t units = (work.pairs() + queries - 1) / queries;  // of a KV head
  const uint64_t floats = work.scratch_floats(queries);
  if (scratch.size() < pool.size() * floats) scratch.resize(pool.size() * floats);
  pool.run(attention.kv_heads * units, 1, [&](uint64_t begin, uint64_t end, uint32_t worker) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t first = i % units * queries;
      work.run({i / units, first, std::min(queries, work.pairs() - first)}, scratch.data() + worker * floats);
    }
  });
}

}  // namespace transload
