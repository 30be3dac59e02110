// Pieces of all tensors are numbered through; workers take them in order. A tensor's bytes are hashed in order by a ticket:
// whoever made piece i waits until the pieces before it are hashed, which workers that run already hold. Tiles are hashed by
// nobody: one more piece waits for all of them and reads the tensor back.
#include "weights/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/workers.h"
#include "io/hash.h"
#include "transload/error.h"
#include "weights/lower.h"
#include "weights/piece.h"

namespace transload {
namespace {

constexpr uint64_t kMostMaterialized = uint64_t{64} << 20;
constexpr uint64_t kReadBackBytes = uint64_t{512} << 10;  // stays in the L2 cache

// One output tensor while it is made.
struct TensorRun {
  const PlannedTensor* planned = nullptr;
  const OutputFile* file = nullptr;
  LoweredTensor lowered;
  uint64_t first_piece = 0;
  std::atomic<uint64_t> finished{0};  // pieces, in any order when they are tiles; the ticket of the next one to hash
  std::optional<Hasher> hasher;       // from the first piece to the last; whoever has the ticket owns it
  std::string digest;
  std::atomic<uint64_t> overflow_count{0};
  std::atomic<uint64_t> nan_count{0};
};

struct WorkerBuffers {
  WorkerBuffers(const PieceLimits& limits, uint64_t piece_bytes) : maker(limits), out(piece_bytes) {}
  PieceMaker maker;
  Buffer out;
};

class Run {
 public:
  Run(const Plan& plan, OutputDirectory& output, const ExecuteOptions& options)
      : options_(options), total_bytes_(plan.tensor_bytes()) {
    for (const PlannedFile& file : plan.files) {
      OutputFile& made = output.create(file.name, file.size);
      for (const PlannedBytes& fixed : file.bytes) made.write_at(fixed.offset, std::as_bytes(std::span(fixed.bytes)));
      for (const PlannedTensor& tensor : file.tensors) add_tensor(tensor, made);
    }
  }

  void execute() {
    const uint32_t workers = options_.workers == 0 ? default_workers() : options_.workers;
    buffers_.resize(std::min<uint64_t>(workers, std::max<uint64_t>(piece_count_, 1)));
    parallel_for(piece_count_, workers, [this](uint64_t index, const WorkerContext& context) { run_piece(index, context); });
  }

  std::vector<TensorResult> results() const {
    std::vector<TensorResult> results;
    for (const std::unique_ptr<TensorRun>& run : tensors_) {
      results.push_back({run->planned->name, run->file->name(), run->planned->offset, run->lowered.bytes, run->digest,
                         run->overflow_count, run->nan_count});
    }
    return results;
  }

 private:
  void add_tensor(const PlannedTensor& tensor, const OutputFile& file) {
    auto run = std::make_unique<TensorRun>();
    run->planned = &tensor;
    run->file = &file;
    run->lowered = lower(tensor.recipe, options_.limits);
    run->first_piece = piece_count_;
    if (run->lowered.piece_count == 0) run->digest = digest_of({});
    piece_count_ += run->lowered.piece_count;
    piece_bytes_ = std::max(piece_bytes_, packed_bytes(run->lowered.dtype, run->lowered.piece_elements));
    tensors_.push_back(std::move(run));
  }

  TensorRun& tensor_of(uint64_t index) {
    // Of tensors without pieces the last one with this number owns it, hence upper_bound.
    const auto after =
        std::upper_bound(tensors_.begin(), tensors_.end(), index,
                         [](uint64_t piece, const std::unique_ptr<TensorRun>& run) { return piece < run->first_piece; });
    return **std::prev(after);
  }

  void run_piece(uint64_t index, const WorkerContext& context) {
    TensorRun& run = tensor_of(index);
    try {
      std::unique_ptr<WorkerBuffers>& buffers = buffers_[context.worker];
      if (buffers == nullptr) buffers = std::make_unique<WorkerBuffers>(options_.limits, piece_bytes_);
      const uint64_t piece = index - run.first_piece;
      if (run.lowered.tile_columns == 0) {
        run_range(run, piece, *buffers, context);
      } else if (piece + 1 < run.lowered.piece_count) {
        run_tile(run, piece, *buffers);
      } else {
        run_digest(run, piece, *buffers, context);
      }
    } catch (Error& error) {
      error.at({.file = {}, .tensor = run.planned->name, .offset = {}});
      error.note(fmt::format("writing '{}' of '{}'", run.planned->name, run.file->name()));
      throw;
    }
  }

  // A range of the output, hashed in its turn.
  void run_range(TensorRun& run, uint64_t piece, WorkerBuffers& buffers, const WorkerContext& context) {
    const LoweredTensor& tensor = run.lowered;
    const uint64_t begin = tensor.piece_begin(piece);
    const uint64_t end = tensor.piece_end(piece);
    count(run, buffers.maker.make(tensor, begin, end, buffers.out.data()));
    const std::span<const std::byte> bytes(buffers.out.data(), packed_bytes(tensor.dtype, end - begin));
    run.file->write_at(run.planned->offset + packed_bytes(tensor.dtype, begin), bytes);
    if (!wait_for_turn(run, piece, context)) return;
    if (piece == 0) run.hasher.emplace();
    run.hasher->update(bytes);
    if (piece + 1 == tensor.piece_count) {
      run.digest = run.hasher->hex();
      run.hasher.reset();
    }
    pass_turn(run);
    report(bytes.size());
  }

  // Some columns of every row.
  void run_tile(TensorRun& run, uint64_t piece, WorkerBuffers& buffers) {
    const LoweredTensor& tensor = run.lowered;
    const Fragment& matrix = tensor.fragments.front();
    const uint64_t begin = piece * tensor.tile_columns;
    const uint64_t end = std::min(begin + tensor.tile_columns, matrix.columns);
    count(run, buffers.maker.make_tile(tensor, begin, end, buffers.out.data()));
    const uint64_t row_bytes = packed_bytes(tensor.dtype, end - begin);
    for (uint64_t row = 0; row < matrix.rows; ++row) {
      run.file->write_at(run.planned->offset + packed_bytes(tensor.dtype, row * matrix.columns + begin),
                         {buffers.out.data() + row * row_bytes, row_bytes});
    }
    pass_turn(run);
    report(matrix.rows * row_bytes);
  }

  // The last piece of a tensor made of tiles: the whole tensor, read back from the page cache.
  void run_digest(TensorRun& run, uint64_t piece, WorkerBuffers& buffers, const WorkerContext& context) {
    if (!wait_for_turn(run, piece, context)) return;
    const uint64_t block = std::min<uint64_t>(kReadBackBytes, buffers.out.bytes());
    Hasher hasher;
    for (uint64_t done = 0; done < run.lowered.bytes; done += block) {
      const std::span<std::byte> bytes(buffers.out.data(), std::min(block, run.lowered.bytes - done));
      run.file->read_at(run.planned->offset + done, bytes);
      hasher.update(bytes);
    }
    run.digest = hasher.hex();
  }

  static void count(TensorRun& run, const NumericCounts& counts) {
    run.overflow_count += counts.overflow;
    run.nan_count += counts.nan;
  }

  // False when another worker failed and the turn never comes.
  bool wait_for_turn(TensorRun& run, uint64_t piece, const WorkerContext& context) {
    if (run.finished.load(std::memory_order_acquire) == piece) return true;
    std::unique_lock lock(mutex_);
    // The stop flag is set without a signal: look at it now and then.
    while (!turn_.wait_for(lock, std::chrono::milliseconds(10), [&] { return run.finished.load() == piece; })) {
      if (context.stopping()) return false;
    }
    return true;
  }

  void pass_turn(TensorRun& run) {
    {
      const std::lock_guard lock(mutex_);
      run.finished.fetch_add(1, std::memory_order_release);
    }
    turn_.notify_all();
  }

  void report(uint64_t bytes) {
    if (!options_.progress) return;
    const std::lock_guard lock(progress_mutex_);
    done_bytes_ += bytes;
    options_.progress(done_bytes_, total_bytes_);
  }

  const ExecuteOptions& options_;
  const uint64_t total_bytes_;
  uint64_t piece_count_ = 0;
  uint64_t piece_bytes_ = 0;                             // of the longest piece
  std::vector<std::unique_ptr<TensorRun>> tensors_;      // in plan order, by first_piece
  std::vector<std::unique_ptr<WorkerBuffers>> buffers_;  // each touched by its worker only
  std::mutex mutex_;
  std::condition_variable turn_;
  std::mutex progress_mutex_;
  uint64_t done_bytes_ = 0;
};

}  // namespace

std::vector<TensorResult> execute(const Plan& plan, OutputDirectory& output, const ExecuteOptions& options) {
  check_plan(plan);
  Run run(plan, output, options);
  run.execute();
  return run.results();
}

uint64_t worker_buffer_bytes() { return PieceMaker::buffer_bytes(PieceLimits{}); }

std::vector<std::byte> materialize(const Recipe& recipe, NumericCounts* counts) {
  if (recipe.empty()) throw Error(ErrorCode::internal, "materialize: got nothing, expected a recipe");
  if (recipe.bytes() > kMostMaterialized) {
    throw Error(ErrorCode::internal, fmt::format("tensor too large to hold in memory: got {} bytes, expected at most {}",
                                                 recipe.bytes(), kMostMaterialized));
  }
  const LoweredTensor tensor = lower(recipe);
  std::vector<std::byte> bytes(tensor.bytes);
  NumericCounts found;
  if (tensor.elements > 0) found = PieceMaker().make(tensor, 0, tensor.elements, bytes.data());
  if (counts != nullptr) *counts = found;
  return bytes;
}

}  // namespace transload
