// A piece is the part of each fragment that falls into its range; rows that are contiguous in the source are read straight,
// turned ones are read as short runs, converted, and turned tile by tile while both sides are in the cache.
#include "weights/piece.h"

#include <algorithm>
#include <cstring>

#include "io/file.h"
#include "transload/error.h"
#include "weights/random.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

constexpr uint64_t kTileColumns = 64;  // source runs turned together: one or two cache lines of an output row
constexpr uint64_t kTileRows = 2048;
constexpr uint64_t kTilePad = 64;  // bytes between runs, so that they do not share cache sets
// Another pread costs 0.9 us, copying 4 KiB more from the page cache 0.8 us (measured).
constexpr uint64_t kNearBytes = 4096;

size_t run_stride(uint64_t run, size_t value_bytes) { return run + kTilePad / value_bytes; }

// Calls `use` with the rectangles of `f` that lie in begin..end-1; their `out` counts from `begin`.
template <class Use>
void for_each_part(const Fragment& f, uint64_t begin, uint64_t end, const Use& use) {
  const auto part_of_row = [&](uint64_t row) {
    const uint64_t start = f.out + row * f.out_row_stride;
    const uint64_t low = std::max(start, begin);
    const uint64_t high = std::min(start + f.columns, end);
    if (low >= high) return;
    Fragment part = f;
    part.rows = 1;
    part.columns = high - low;
    part.out = low - begin;
    part.in = f.in + row * f.in_row_stride + (low - start) * f.in_column_stride;
    use(part);
  };
  if (f.rows == 1) return part_of_row(0);
  uint64_t first = begin <= f.out ? 0 : (begin - f.out) / f.out_row_stride;  // the row that `begin` is in or behind
  const uint64_t last = std::min(f.rows, f.out >= end ? 0 : (end - 1 - f.out) / f.out_row_stride + 1);
  if (first < last && f.out + first * f.out_row_stride < begin) part_of_row(first++);
  if (first >= last) return;
  const bool cut = f.out + (last - 1) * f.out_row_stride + f.columns > end;
  const uint64_t whole_end = cut ? last - 1 : last;
  if (first < whole_end) {
    Fragment part = f;
    part.rows = whole_end - first;
    part.out = f.out + first * f.out_row_stride - begin;
    part.in = f.in + first * f.in_row_stride;
    use(part);
  }
  if (cut) part_of_row(last - 1);
}

template <class T>
void turn_plain(const std::byte* in, size_t in_stride, std::byte* out, size_t out_stride, size_t rows, size_t columns) {
  for (size_t c = 0; c < columns; ++c) {
    for (size_t r = 0; r < rows; ++r) {
      std::memcpy(out + (c * out_stride + r) * sizeof(T), in + (r * in_stride + c) * sizeof(T), sizeof(T));
    }
  }
}

// out[c * out_stride + r] = in[r * in_stride + c], in values of 1, 2, 4 or 8 bytes.
void turn(size_t value_bytes, const std::byte* in, size_t in_stride, std::byte* out, size_t out_stride, size_t rows,
          size_t columns) {
  if (value_bytes == 2) {
    transpose_u16(reinterpret_cast<const uint16_t*>(in), in_stride, reinterpret_cast<uint16_t*>(out), out_stride, rows, columns);
  } else if (value_bytes == 4) {
    transpose_u32(reinterpret_cast<const uint32_t*>(in), in_stride, reinterpret_cast<uint32_t*>(out), out_stride, rows, columns);
  } else if (value_bytes == 8) {
    turn_plain<uint64_t>(in, in_stride, out, out_stride, rows, columns);
  } else {
    turn_plain<uint8_t>(in, in_stride, out, out_stride, rows, columns);
  }
}

}  // namespace

// What the parts of one fragment share.
struct PieceMaker::Job {
  const RecipeNode& leaf;
  const SourceLeaf* source;  // nullptr: a leaf that is computed
  const DTypeInfo& in;
  const DTypeInfo& out;
  const ElementSteps& steps;

  bool converts_in_place() const { return source != nullptr && (in.dtype == out.dtype || scalars_of_one_width()); }
  bool scalars_of_one_width() const {
    return in.block_elements == 1 && out.block_elements == 1 && in.block_bytes == out.block_bytes;
  }
};

PieceMaker::PieceMaker(const PieceLimits& limits)
    // Any limit must leave room for two blocks of the largest type: a run may begin and end inside a block.
    : staging_(std::max<uint64_t>(limits.staging_bytes, 2 * 256 * sizeof(float))),
      tile_(kTileColumns * (kTileRows * sizeof(uint64_t) + kTilePad)) {}

uint64_t PieceMaker::buffer_bytes(const PieceLimits& limits) {
  return std::max(limits.band_bytes, limits.piece_bytes) + limits.staging_bytes +
         kTileColumns * (kTileRows * sizeof(uint64_t) + kTilePad) + RunConverter::scratch_bytes();
}

PieceMaker::Job PieceMaker::job_of(const LoweredTensor& tensor, const Fragment& fragment) {
  const RecipeNode& leaf = tensor.leaves[fragment.leaf].node();
  return {leaf, std::get_if<SourceLeaf>(&leaf.operation), dtype_info(leaf.dtype), dtype_info(tensor.dtype),
          tensor.steps[fragment.steps]};
}

NumericCounts PieceMaker::make(const LoweredTensor& tensor, uint64_t begin, uint64_t end, std::byte* out) {
  counts_ = {};
  const auto first = std::upper_bound(tensor.reach.begin(), tensor.reach.end(), begin) - tensor.reach.begin();
  for (size_t i = static_cast<size_t>(first); i < tensor.fragments.size() && tensor.fragments[i].out < end; ++i) {
    const Fragment& fragment = tensor.fragments[i];
    const Job job = job_of(tensor, fragment);
    for_each_part(fragment, begin, end,
                  [&](const Fragment& part) { fill(job, part, out + packed_bytes(tensor.dtype, part.out)); });
  }
  return counts_;
}

NumericCounts PieceMaker::make_piece(const LoweredTensor& tensor, uint64_t piece, std::byte* out) {
  if (!tensor.tiled()) return make(tensor, tensor.piece_begin(piece), tensor.piece_end(piece), out);
  const uint64_t begin = piece * tensor.tile_columns;
  return make_tile(tensor, begin, std::min(begin + tensor.tile_columns, tensor.fragments.front().columns), out);
}

// Columns begin..end-1 of every row.
NumericCounts PieceMaker::make_tile(const LoweredTensor& tensor, uint64_t begin, uint64_t end, std::byte* out) {
  counts_ = {};
  Fragment part = tensor.fragments.front();
  part.in += begin * part.in_column_stride;
  part.columns = end - begin;
  part.out_row_stride = part.columns;
  fill(job_of(tensor, part), part, out);
  return counts_;
}

void PieceMaker::fill(const Job& job, const Fragment& part, std::byte* out) {
  if (part.in_column_stride == 1 || part.columns == 1) {
    fill_rows(job, part, out);
  } else if (part.in_row_stride == 1 && part.rows > 1) {
    fill_turned(job, part, out);
  } else {
    fill_scattered(job, part, out);
  }
}

// Values that one span may have, so that their blocks fit in the staging buffer.
uint64_t PieceMaker::span_elements(const Job& job) const {
  const uint64_t blocks = staging_.bytes() / job.in.block_bytes;
  return job.in.block_elements == 1 ? blocks : (blocks - 1) * job.in.block_elements;
}

// At most span_elements() values; the data is that of a constant or lies in staging_.
PieceMaker::Span PieceMaker::read_span(const Job& job, uint64_t in, uint64_t count) {
  const auto constant_span = [&](const auto& values) { return Span{std::as_bytes(std::span(values)).data(), in}; };
  return std::visit(
      overloaded{
          [&](const SourceLeaf& leaf) {
            const uint64_t lead = in % job.in.block_elements;
            const uint64_t blocks = (lead + count + job.in.block_elements - 1) / job.in.block_elements;
            source_file(leaf.tensor)
                .read_at(leaf.tensor.offset + packed_bytes(job.in.dtype, in - lead),
                         {staging_.data(), blocks * job.in.block_bytes});
            return Span{staging_.data(), lead};
          },
          [&](const DequantizeLeaf& leaf) {
            channels_.read(leaf, in, count, reinterpret_cast<float*>(staging_.data()));
            return Span{staging_.data(), 0};
          },
          [&](const ConstantLeaf& leaf) { return constant_span(leaf.values); },
          [&](const ConstantI64Leaf& leaf) { return constant_span(leaf.values); },
          [&](const RandomLeaf& leaf) {
            random_values(leaf.seed, leaf.stddev, leaf.mean, in, count, reinterpret_cast<float*>(staging_.data()));
            return Span{staging_.data(), 0};
          },
          [](const auto&) -> Span { throw Error(ErrorCode::internal, "leaf of a piece: got an operation, expected a leaf"); },
      },
      job.leaf.operation);
}

// A run that is contiguous on both sides. Types of one width are read into place and converted there.
void PieceMaker::convert_straight(const Job& job, uint64_t in, uint64_t count, std::byte* out) {
  if (job.converts_in_place()) {
    source_file(job.source->tensor)
        .read_at(job.source->tensor.offset + packed_bytes(job.in.dtype, in), {out, packed_bytes(job.out.dtype, count)});
    counts_ += converter_.convert(job.in.dtype, out, 0, count, job.steps, job.out.dtype, out);
    return;
  }
  const uint64_t most = span_elements(job);
  for (uint64_t done = 0; done < count;) {
    const uint64_t run = std::min(most, count - done);
    const Span span = read_span(job, in + done, run);
    counts_ += converter_.convert(job.in.dtype, span.data, span.first, run, job.steps, job.out.dtype,
                                  out + packed_bytes(job.out.dtype, done));
    done += run;
  }
}

void PieceMaker::fill_rows(const Job& job, const Fragment& part, std::byte* out) {
  // Short rows close together come with one read, gaps included.
  const uint64_t most = span_elements(job);
  const bool near = part.rows > 1 && part.columns <= most && part.in_row_stride >= part.columns &&
                    packed_bytes(job.in.dtype, part.in_row_stride - part.columns) <= kNearBytes;
  const uint64_t group = near ? 1 + (most - part.columns) / part.in_row_stride : 1;
  for (uint64_t row = 0; row < part.rows;) {
    const uint64_t in = part.in + row * part.in_row_stride;
    const uint64_t rows = std::min(group, part.rows - row);
    if (rows == 1) {
      convert_straight(job, in, part.columns, out + packed_bytes(job.out.dtype, row * part.out_row_stride));
    } else {
      const Span span = read_span(job, in, (rows - 1) * part.in_row_stride + part.columns);
      for (uint64_t i = 0; i < rows; ++i) {
        counts_ += converter_.convert(job.in.dtype, span.data, span.first + i * part.in_row_stride, part.columns, job.steps,
                                      job.out.dtype, out + packed_bytes(job.out.dtype, (row + i) * part.out_row_stride));
      }
    }
    row += rows;
  }
}

// Output columns are runs of the source.
void PieceMaker::fill_turned(const Job& job, const Fragment& part, std::byte* out) {
  const size_t value_bytes = job.out.block_bytes;
  const uint64_t most = span_elements(job);
  const uint64_t stride = part.in_column_stride;
  const uint64_t run_most = std::min({kTileRows, part.rows, most});
  for (uint64_t row = 0; row < part.rows; row += run_most) {
    const uint64_t run = std::min(run_most, part.rows - row);
    const size_t tile_stride = run_stride(run, value_bytes);
    const bool near =
        stride >= run && packed_bytes(job.in.dtype, (stride - run) / job.in.block_elements * job.in.block_elements) <= kNearBytes;
    const uint64_t group = near ? 1 + (most - run) / stride : 1;
    for (uint64_t column = 0; column < part.columns; column += kTileColumns) {
      const uint64_t columns = std::min(kTileColumns, part.columns - column);
      for (uint64_t c = 0; c < columns;) {
        const uint64_t in = part.in + row + (column + c) * stride;
        const uint64_t together = std::min(group, columns - c);
        if (together == 1) {
          convert_straight(job, in, run, tile_.data() + c * tile_stride * value_bytes);
        } else {
          const Span span = read_span(job, in, (together - 1) * stride + run);
          for (uint64_t i = 0; i < together; ++i) {
            counts_ += converter_.convert(job.in.dtype, span.data, span.first + i * stride, run, job.steps, job.out.dtype,
                                          tile_.data() + (c + i) * tile_stride * value_bytes);
          }
        }
        c += together;
      }
      turn(value_bytes, tile_.data(), tile_stride, out + (row * part.out_row_stride + column) * value_bytes, part.out_row_stride,
           columns, run);
    }
  }
}

// Both strides are long: value by value, from spans where they are near. Rare; correct is enough.
void PieceMaker::fill_scattered(const Job& job, const Fragment& part, std::byte* out) {
  const uint64_t reach = std::min<uint64_t>(span_elements(job), kNearBytes / job.in.block_bytes * job.in.block_elements);
  const uint64_t group = std::max<uint64_t>(1, reach / part.in_column_stride);
  for (uint64_t row = 0; row < part.rows; ++row) {
    for (uint64_t column = 0; column < part.columns;) {
      const uint64_t columns = std::min(group, part.columns - column);
      const Span span = read_span(job, part.in + row * part.in_row_stride + column * part.in_column_stride,
                                  (columns - 1) * part.in_column_stride + 1);
      for (uint64_t i = 0; i < columns; ++i) {
        counts_ += converter_.convert(job.in.dtype, span.data, span.first + i * part.in_column_stride, 1, job.steps,
                                      job.out.dtype, out + packed_bytes(job.out.dtype, row * part.out_row_stride + column + i));
      }
      column += columns;
    }
  }
}

}  // namespace transload
