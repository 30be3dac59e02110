// Equal recipes are one run, written to several places. Pieces of all runs are numbered through, runs in the order of their
// sources; workers take pieces in order. A tensor's bytes are hashed in order by a ticket: whoever made piece i waits until the
// pieces before it are hashed, which workers that run already hold. Tiles are hashed by nobody: one more piece waits for all of
// them and reads the tensor back.
#include "weights/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "base/workers.h"
#include "io/hash.h"
#include "transload/error.h"
#include "weights/lower.h"
#include "weights/piece.h"
#include "weights/quantize.h"
#include "weights/tensor_run.h"

namespace transload {
namespace {

constexpr uint64_t kMostMaterialized = uint64_t{64} << 20;
constexpr uint64_t kReadBackBytes = uint64_t{512} << 10;  // stays in the L2 cache

struct WorkerBuffers {
  WorkerBuffers(const PieceLimits& limits, uint64_t piece_bytes) : maker(limits), out(piece_bytes) {}
  PieceMaker maker;
  QuantMaker quant_maker;
  Buffer out;
};

class Run {
 public:
  Run(const Plan& plan, OutputDirectory& output, const ExecuteOptions& options)
      : options_(options), total_bytes_(plan.tensor_bytes()) {
    TensorRunList list(options.limits);
    for (const PlannedFile& file : plan.files) {
      OutputFile& made = output.create(file.name, file.size);
      for (const PlannedBytes& fixed : file.bytes) made.write_at(fixed.offset, std::as_bytes(std::span(fixed.bytes)));
      for (const PlannedTensor& tensor : file.tensors) list.add(tensor, made);
    }
    planned_ = list.planned();
    tensors_ = list.take_in_source_order();
    for (const std::unique_ptr<TensorRun>& run : tensors_) {
      run->first_piece = piece_count_;
      piece_count_ += run->piece_count;
      piece_bytes_ = std::max(piece_bytes_, run->most_piece_bytes);
    }
  }

  void execute() {
    const uint32_t workers = options_.workers == 0 ? default_workers() : options_.workers;
    buffers_.resize(std::min<uint64_t>(workers, std::max<uint64_t>(piece_count_, 1)));
    parallel_for(piece_count_, workers, [this](uint64_t index, const WorkerContext& context) { run_piece(index, context); });
  }

  std::vector<TensorResult> results() const {
    std::vector<TensorResult> results;
    for (const auto& [run, place] : planned_) {
      const TensorPlace& at = run->places[place];
      TensorResult result{at.planned->name, at.file->name(),     at.planned->offset, run->bytes(),
                          run->digest,      run->overflow_count, run->nan_count,     std::nullopt};
      if (run->quant() != nullptr) result.quant_error = run->quant_error;
      results.push_back(std::move(result));
      if (!at.planned->scales) continue;
      results.push_back({at.planned->scales->name, at.file->name(), at.planned->scales->offset, scales_bytes(*at.planned),
                         run->scales_digest, run->infinite_scales, 0, std::nullopt});
    }
    return results;
  }

 private:
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
      if (!run.tiled) {
        run_range(run, piece, *buffers, context);
      } else if (piece + 1 < run.piece_count) {
        run_tile(run, piece, *buffers);
      } else {
        run_digest(run, piece, *buffers, context);
      }
    } catch (Error& error) {
      const TensorPlace& first = run.places.front();
      error.at({.file = {}, .tensor = first.planned->name, .offset = {}});
      error.note(fmt::format("writing '{}' of '{}'", first.planned->name, first.file->name()));
      throw;
    }
  }

  // Makes the bytes of a piece in the buffer; says where they go.
  Strips make(TensorRun& run, uint64_t piece, WorkerBuffers& buffers) {
    NumericCounts counts;
    Strips strips;
    if (const LoweredQuant* quant = run.quant()) {
      std::call_once(run.quant_started, [&] {
        run.scales.resize(quant->format.channels());
        run.piece_errors.resize(run.piece_count);
      });
      strips = quant->strips(piece);
      const QuantPieceResult made = buffers.quant_maker.make(*quant, piece, run.planned().scales->dtype, buffers.maker,
                                                             buffers.out.data(), run.scales.data() + quant->first_channel(piece));
      run.piece_errors[piece] = made.error;
      counts = made.counts;
    } else {
      const auto& tensor = std::get<LoweredTensor>(run.lowered);
      strips = tensor.strips(piece);
      counts = buffers.maker.make_piece(tensor, piece, buffers.out.data());
    }
    run.overflow_count += counts.overflow;
    run.nan_count += counts.nan;
    return strips;
  }

  void write(const TensorRun& run, const Strips& strips, std::byte* data) {
    for (const TensorPlace& place : run.places) {
      for (uint64_t row = 0; row < strips.rows; ++row) {
        place.file->write_at(place.planned->offset + strips.offset + row * strips.stride,
                             {data + row * strips.row_bytes, strips.row_bytes});
      }
    }
  }

  // A range of the output, hashed in its turn.
  void run_range(TensorRun& run, uint64_t piece, WorkerBuffers& buffers, const WorkerContext& context) {
    const Strips strips = make(run, piece, buffers);
    write(run, strips, buffers.out.data());
    if (!wait_for_turn(run, piece, context)) return;
    if (piece == 0) run.hasher.emplace();
    run.hasher->update({buffers.out.data(), strips.bytes()});
    if (piece + 1 == run.piece_count) {
      run.digest = run.hasher->hex();
      run.hasher.reset();
      finish_quant(run);
    }
    pass_turn(run);
    report(strips.bytes() * run.places.size());
  }

  // Some columns of every row.
  void run_tile(TensorRun& run, uint64_t piece, WorkerBuffers& buffers) {
    const Strips strips = make(run, piece, buffers);
    write(run, strips, buffers.out.data());
    pass_turn(run);
    report(strips.bytes() * run.places.size());
  }

  // The last piece of a tensor made of tiles: the whole tensor, read back from the page cache.
  void run_digest(TensorRun& run, uint64_t piece, WorkerBuffers& buffers, const WorkerContext& context) {
    if (!wait_for_turn(run, piece, context)) return;
    const uint64_t block = std::min<uint64_t>(kReadBackBytes, buffers.out.bytes());
    const TensorPlace& place = run.places.front();
    Hasher hasher;
    for (uint64_t done = 0; done < run.bytes(); done += block) {
      const std::span<std::byte> bytes(buffers.out.data(), std::min(block, run.bytes() - done));
      place.file->read_at(place.planned->offset + done, bytes);
      hasher.update(bytes);
    }
    run.digest = hasher.hex();
    finish_quant(run);
  }

  // After the last piece of a quantised tensor: its error and its scales.
  void finish_quant(TensorRun& run) {
    if (run.quant() == nullptr) return;
    for (const QuantError& part : run.piece_errors) run.quant_error += part;
    const StoredScales stored = store_scales(run.scales, run.planned().scales->dtype);
    run.scales_digest = digest_of({reinterpret_cast<const char*>(stored.bytes.data()), stored.bytes.size()});
    run.infinite_scales = stored.infinite_count;
    for (const TensorPlace& place : run.places) place.file->write_at(place.planned->scales->offset, stored.bytes);
    run.scales = {};
    run.piece_errors = {};
    report(stored.bytes.size() * run.places.size());
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
  std::vector<std::unique_ptr<TensorRun>> tensors_;      // in the order of their sources, by first_piece
  std::vector<PlannedRun> planned_;                      // in plan order
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
