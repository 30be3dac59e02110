// Structural operations as arithmetic on fragments in flat row-major positions: a reshape is then nothing at all, and slice,
// concat and row permutations all move one window of every period of their input to a period of their output.
#include "weights/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "transload/error.h"
#include "weights/recipe_node.h"

namespace transload {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kLineValues = 64;  // at least a cache line of any type

// Position p with begin <= p % period < end goes to (p / period) * out_period + out_base + p % period - begin.
struct Window {
  uint64_t period = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t out_period = 0;
  uint64_t out_base = 0;
};

// Collects fragments, joining each with the one before where they are one rectangle.
class FragmentList {
 public:
  // `join_columns`: also make one long row of two rows that touch.
  explicit FragmentList(bool join_columns) : join_columns_(join_columns) {}

  void add(const Fragment& next) {
    if (next.columns == 0 || next.rows == 0) return;
    if (!list_.empty() && (join_row(list_.back(), next) || join_below(list_.back(), next))) return;
    list_.push_back(next);
  }
  std::vector<Fragment> take() { return std::move(list_); }

 private:
  bool join_row(Fragment& last, const Fragment& next) const {
    if (!join_columns_ || last.rows != 1 || next.rows != 1 || next.out != last.out + last.columns || !same_values(last, next))
      return false;
    if (next.in <= last.in) return false;
    const uint64_t stride = last.columns == 1 ? next.in - last.in : last.in_column_stride;
    if (next.in != last.in + last.columns * stride || (next.columns > 1 && next.in_column_stride != stride)) return false;
    last.in_column_stride = stride;
    last.columns += next.columns;
    return true;
  }
  bool join_below(Fragment& last, const Fragment& next) const {
    if (next.columns != last.columns || !same_values(last, next) || next.in <= last.in || next.out < last.out_end()) return false;
    if (last.columns > 1 && next.in_column_stride != last.in_column_stride) return false;
    const uint64_t out_stride = last.rows == 1 ? next.out - last.out : last.out_row_stride;
    const uint64_t in_stride = last.rows == 1 ? next.in - last.in : last.in_row_stride;
    if (next.out != last.out + last.rows * out_stride || next.in != last.in + last.rows * in_stride) return false;
    if (next.rows > 1 && (next.out_row_stride != out_stride || next.in_row_stride != in_stride)) return false;
    last.out_row_stride = out_stride;
    last.in_row_stride = in_stride;
    last.rows += next.rows;
    return true;
  }
  static bool same_values(const Fragment& a, const Fragment& b) { return a.leaf == b.leaf && a.steps == b.steps; }

  bool join_columns_;
  std::vector<Fragment> list_;
};

// The form in which a rectangle with a single row, a single column or no gaps is written as one row.
void straighten(std::vector<Fragment>& fragments) {
  for (Fragment& f : fragments) {
    if (f.rows > 1 && f.columns == 1 && f.out_row_stride == 1) {
      f = {f.out, 1, f.rows, 0, f.in, 0, f.in_row_stride, f.leaf, f.steps};
    } else if (f.rows > 1 && f.out_row_stride == f.columns && f.in_row_stride == f.columns * f.in_column_stride) {
      f = {f.out, 1, f.rows * f.columns, 0, f.in, 0, f.in_column_stride, f.leaf, f.steps};
    }
    if (f.columns == 1) f.in_column_stride = 1;
    if (f.rows == 1) f.out_row_stride = f.in_row_stride = 0;
  }
}

// One row of a fragment, which may lie over many periods.
void move_row(const Fragment& f, uint64_t row, const Window& w, FragmentList& list) {
  uint64_t out = f.out + row * f.out_row_stride;
  uint64_t in = f.in + row * f.in_row_stride;
  uint64_t left = f.columns;
  while (left > 0) {
    const uint64_t line = out / w.period;
    const uint64_t at = out % w.period;
    uint64_t taken = std::min(left, w.period - at);
    Fragment part = f;
    part.rows = 1;
    if (at == 0 && left >= w.period) {  // whole periods at once
      part.rows = left / w.period;
      taken = part.rows * w.period;
      part.out = line * w.out_period + w.out_base;
      part.out_row_stride = w.out_period;
      part.columns = w.end - w.begin;
      part.in = in + w.begin * f.in_column_stride;
      part.in_row_stride = w.period * f.in_column_stride;
      list.add(part);
    } else {
      const uint64_t low = std::max(at, w.begin);
      const uint64_t high = std::min(at + taken, w.end);
      if (low < high) {
        part.out = line * w.out_period + w.out_base + (low - w.begin);
        part.columns = high - low;
        part.in = in + (low - at) * f.in_column_stride;
        list.add(part);
      }
    }
    out += taken;
    in += taken * f.in_column_stride;
    left -= taken;
  }
}

void move_fragment(const Fragment& f, const Window& w, FragmentList& list) {
  uint64_t row = 0;
  while (row < f.rows) {
    const uint64_t out = f.out + row * f.out_row_stride;
    const uint64_t at = out % w.period;
    const uint64_t left = f.rows - row;
    if (f.rows > 1 && at + f.columns <= w.period) {
      // Rows that start at the same place of their periods move together.
      const bool in_step = f.out_row_stride % w.period == 0;
      uint64_t count = left;
      bool inside = false;
      if (at >= w.begin && at + f.columns <= w.end) {
        inside = true;
        if (!in_step) count = std::min(left, (w.end - f.columns - at) / f.out_row_stride + 1);
      } else if (at >= w.end) {
        if (!in_step) count = std::min(left, (w.period - f.columns - at) / f.out_row_stride + 1);
      } else if (at + f.columns <= w.begin) {
        if (!in_step) count = std::min(left, (w.begin - f.columns - at) / f.out_row_stride + 1);
      } else if (in_step) {
        Fragment part = f;  // the same columns of every row
        const uint64_t low = std::max(at, w.begin);
        part.rows = left;
        part.columns = std::min(at + f.columns, w.end) - low;
        part.out = out / w.period * w.out_period + w.out_base + (low - w.begin);
        part.out_row_stride = f.out_row_stride / w.period * w.out_period;
        part.in = f.in + row * f.in_row_stride + (low - at) * f.in_column_stride;
        list.add(part);
        return;
      } else {
        move_row(f, row, w, list);
        ++row;
        continue;
      }
      if (inside) {
        Fragment part = f;
        part.rows = count;
        part.out = out / w.period * w.out_period + w.out_base + (at - w.begin);
        if (in_step) part.out_row_stride = f.out_row_stride / w.period * w.out_period;
        part.in = f.in + row * f.in_row_stride;
        list.add(part);
      }
      row += count;
      continue;
    }
    move_row(f, row, w, list);
    ++row;
  }
}

std::vector<Fragment> move(const std::vector<Fragment>& fragments, const Window& window) {
  FragmentList list(true);
  for (const Fragment& f : fragments) move_fragment(f, window, list);
  std::vector<Fragment> moved = list.take();
  straighten(moved);
  return moved;
}

// Of a [height, width] matrix.
std::vector<Fragment> turn(const std::vector<Fragment>& fragments, uint64_t height, uint64_t width) {
  // First cut at the ends of the matrix rows, then turn each rectangle.
  FragmentList lines(false);
  const Window whole{width, 0, width, width, 0};
  for (const Fragment& f : fragments) move_fragment(f, whole, lines);
  FragmentList list(true);
  for (const Fragment& f : lines.take()) {
    Fragment turned = f;
    turned.out_row_stride = height;
    turned.rows = f.columns;
    turned.in_row_stride = f.in_column_stride;
    if (f.rows == 1 || f.out_row_stride == width) {
      turned.out = f.out % width * height + f.out / width;
      turned.columns = f.rows;
      turned.in_column_stride = f.in_row_stride;
      list.add(turned);
      continue;
    }
    turned.columns = 1;
    for (uint64_t row = 0; row < f.rows; ++row) {
      const uint64_t out = f.out + row * f.out_row_stride;
      turned.out = out % width * height + out / width;
      turned.in = f.in + row * f.in_row_stride;
      list.add(turned);
    }
  }
  std::vector<Fragment> moved = list.take();
  straighten(moved);
  return moved;
}

uint64_t inner_elements(const Shape& shape, size_t axis) {
  uint64_t count = 1;
  for (size_t i = axis + 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

class Lowering {
 public:
  explicit Lowering(LoweredTensor& tensor) : tensor_(tensor) { tensor_.steps.emplace_back(); }

  std::vector<Fragment> fragments_of(const Recipe& recipe) {
    if (recipe.node().elements == 0) return {};
    return std::visit(
        overloaded{
            [&](const SourceLeaf&) { return leaf(recipe); },
            [&](const DequantizeLeaf&) { return leaf(recipe); },
            [&](const ConstantLeaf&) { return leaf(recipe); },
            [&](const ConstantI64Leaf&) { return leaf(recipe); },
            [&](const RandomLeaf&) { return leaf(recipe); },
            [&](const SliceOp& op) { return slice_of(op, recipe.shape()); },
            [&](const ConcatOp& op) { return concat_of(op, recipe.shape()); },
            [&](const TransposeOp& op) { return turn(fragments_of(op.input), op.input.shape()[0], op.input.shape()[1]); },
            [&](const ReshapeOp& op) { return fragments_of(op.input); },
            [&](const UnpairRotaryRowsOp& op) { return unpair(op); },
            [&](const CastOp& op) {
              std::vector<Fragment> fragments = fragments_of(op.input);
              if (recipe.dtype() == DType::f32) return fragments;  // what values flow in
              return with_step(std::move(fragments), {ElementStep::Kind::round, 1, 0, recipe.dtype()});
            },
            [&](const AffineOp& op) {
              return with_step(fragments_of(op.input), {ElementStep::Kind::affine, op.scale, op.offset, DType::f32});
            },
            [](const QuantizeOp&) -> std::vector<Fragment> {
              throw Error(ErrorCode::internal, "quantize inside a recipe: got an operand, expected the root of a planned tensor");
            },
        },
        recipe.node().operation);
  }

 private:
  std::vector<Fragment> leaf(const Recipe& recipe) {
    Fragment fragment;
    fragment.columns = recipe.node().elements;
    fragment.leaf = static_cast<uint32_t>(tensor_.leaves.size());
    tensor_.leaves.push_back(recipe);
    return {fragment};
  }

  std::vector<Fragment> slice_of(const SliceOp& op, const Shape& shape) {
    const uint64_t inner = inner_elements(shape, op.axis);
    return move(fragments_of(op.input),
                {op.input.shape()[op.axis] * inner, op.begin * inner, op.end * inner, (op.end - op.begin) * inner, 0});
  }

  std::vector<Fragment> concat_of(const ConcatOp& op, const Shape& shape) {
    const uint64_t inner = inner_elements(shape, op.axis);
    std::vector<Fragment> all;
    uint64_t base = 0;
    for (const Recipe& input : op.inputs) {
      const uint64_t width = input.shape()[op.axis] * inner;
      const std::vector<Fragment> placed = move(fragments_of(input), {width, 0, width, shape[op.axis] * inner, base});
      all.insert(all.end(), placed.begin(), placed.end());
      base += width;
    }
    return all;
  }

  std::vector<Fragment> unpair(const UnpairRotaryRowsOp& op) {
    const std::vector<Fragment> input = fragments_of(op.input);
    const uint64_t row = op.input.shape()[1];
    const uint64_t half = op.input.shape()[0] / op.heads / 2 * row;
    std::vector<Fragment> all;
    for (uint64_t which = 0; which < 2; ++which) {
      const std::vector<Fragment> every_second = move(input, {2 * row, which * row, (which + 1) * row, row, 0});
      const std::vector<Fragment> placed = move(every_second, {half, 0, half, 2 * half, which * half});
      all.insert(all.end(), placed.begin(), placed.end());
    }
    return all;
  }

  std::vector<Fragment> with_step(std::vector<Fragment> fragments, const ElementStep& step) {
    std::map<uint32_t, uint32_t> longer;
    for (Fragment& fragment : fragments) {
      const auto [place, added] = longer.try_emplace(fragment.steps, static_cast<uint32_t>(tensor_.steps.size()));
      if (added) {
        ElementSteps steps = tensor_.steps[fragment.steps];
        steps.push_back(step);
        tensor_.steps.push_back(std::move(steps));
      }
      fragment.steps = place->second;
    }
    return fragments;
  }

  LoweredTensor& tensor_;
};

// Steps end in the rounding to the output type, which storing does anyway.
void drop_last_rounding(LoweredTensor& tensor) {
  for (ElementSteps& steps : tensor.steps) {
    if (!steps.empty() && steps.back().kind == ElementStep::Kind::round && steps.back().dtype == tensor.dtype) steps.pop_back();
  }
}

void order(LoweredTensor& tensor) {
  std::vector<Fragment>& fragments = tensor.fragments;
  std::sort(fragments.begin(), fragments.end(), [](const Fragment& a, const Fragment& b) { return a.out < b.out; });
  FragmentList joined(true);
  for (const Fragment& fragment : fragments) joined.add(fragment);
  fragments = joined.take();
  straighten(fragments);
  uint64_t covered = 0;
  uint64_t reach = 0;
  for (const Fragment& fragment : fragments) {
    covered += fragment.rows * fragment.columns;
    reach = std::max(reach, fragment.out_end());
    tensor.reach.push_back(reach);
  }
  if (covered != tensor.elements || reach > tensor.elements) {
    throw Error(ErrorCode::internal, fmt::format("fragments do not cover a tensor: got {} elements up to {}, expected {}",
                                                 covered, reach, tensor.elements));
  }
}

// The largest fragment that is read across the rows of a stored tensor, or nullptr.
const Fragment* widest_turned(const LoweredTensor& tensor) {
  const Fragment* widest = nullptr;
  for (const Fragment& f : tensor.fragments) {
    if (f.rows == 1 || f.columns == 1 || f.in_column_stride == 1) continue;
    const Recipe& leaf = tensor.leaves[f.leaf];
    if (find_operation<SourceLeaf>(leaf) == nullptr && find_operation<DequantizeLeaf>(leaf) == nullptr) continue;
    if (widest == nullptr || f.rows * f.columns > widest->rows * widest->columns) widest = &f;
  }
  return widest;
}

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Elements of one band of whole output rows: enough of them that each strided read is long, few enough for the buffer.
uint64_t band_elements(const LoweredTensor& tensor, const Fragment& turned, const PieceLimits& limits) {
  const DTypeInfo& out = dtype_info(tensor.dtype);
  const DTypeInfo& in = dtype_info(tensor.leaves[turned.leaf].dtype());
  const uint64_t row = turned.out_row_stride;
  const uint64_t fitting = limits.band_bytes / (row * out.block_bytes);
  if (fitting == 0) return std::max<uint64_t>(1, limits.band_bytes / out.block_bytes);
  const uint64_t wanted = std::max<uint64_t>(1, limits.band_read_bytes * in.block_elements / in.block_bytes);
  const uint64_t all_rows = (tensor.elements + row - 1) / row;
  if (fitting >= all_rows) return tensor.elements;  // then the source is read in order
  uint64_t rows = std::min(fitting, wanted);
  const uint64_t bands = (all_rows + rows - 1) / rows;
  rows = (all_rows + bands - 1) / bands;
  // Whole cache lines and whole blocks of the source where there is room.
  for (const uint64_t multiple : {256, 64, 32}) {
    if (round_up(rows, multiple) <= fitting && (multiple <= 64 || in.block_elements == multiple))
      return round_up(rows, multiple) * row;
  }
  return rows * row;
}

// Columns of one tile, or 0 for bands: these need no second reading, and where the matrix is higher than wide their reads are
// long enough.
uint64_t tile_columns(const LoweredTensor& tensor, const Fragment& turned, const PieceLimits& limits) {
  if (turned.in_row_stride != 1 || turned.rows * turned.columns != tensor.elements || turned.rows >= turned.columns) return 0;
  const uint64_t value_bytes = dtype_info(tensor.dtype).block_bytes;
  const uint64_t fitting = limits.band_bytes / (turned.rows * value_bytes);
  if (fitting == 0 || fitting >= turned.columns) return 0;
  const uint64_t page = kPageBytes / value_bytes;
  if (fitting >= page && turned.columns % page == 0) return fitting / page * page;
  const uint64_t tiles = (turned.columns + fitting - 1) / fitting;
  return std::min(fitting, round_up((turned.columns + tiles - 1) / tiles, kLineValues));
}

void cut(LoweredTensor& tensor, const PieceLimits& limits) {
  if (tensor.elements == 0) return;
  if (const Fragment* turned = widest_turned(tensor)) {
    tensor.tile_columns = tile_columns(tensor, *turned, limits);
    if (tensor.tile_columns > 0) {
      tensor.piece_elements = turned->rows * tensor.tile_columns;
      tensor.piece_count = (turned->columns + tensor.tile_columns - 1) / tensor.tile_columns + 1;
      return;
    }
    tensor.piece_elements = band_elements(tensor, *turned, limits);
  } else {
    const DTypeInfo& out = dtype_info(tensor.dtype);
    uint64_t block = out.block_elements;
    uint64_t elements = limits.piece_bytes / out.block_bytes * out.block_elements;
    for (const Recipe& leaf : tensor.leaves) {
      const DTypeInfo& in = dtype_info(leaf.dtype());
      block = std::max<uint64_t>(block, in.block_elements);  // 1, 32 or 256: the largest is a multiple of all
      elements = std::min(elements, limits.piece_bytes / in.block_bytes * in.block_elements);
    }
    tensor.piece_elements = std::max(block, elements / block * block);
  }
  tensor.piece_elements = std::min(tensor.piece_elements, tensor.elements);
  tensor.piece_count = (tensor.elements + tensor.piece_elements - 1) / tensor.piece_elements;
}

}  // namespace

uint64_t packed_bytes(DType dtype, uint64_t elements) {
  const DTypeInfo& info = dtype_info(dtype);
  return elements / info.block_elements * info.block_bytes;
}

uint64_t LoweredTensor::most_piece_bytes() const { return packed_bytes(dtype, piece_elements); }

Strips LoweredTensor::strips(uint64_t piece) const {
  if (tile_columns == 0) {
    const uint64_t begin = piece_begin(piece);
    return {packed_bytes(dtype, begin), 1, packed_bytes(dtype, piece_end(piece) - begin), 0};
  }
  const Fragment& matrix = fragments.front();
  const uint64_t begin = piece * tile_columns;
  return {packed_bytes(dtype, begin), matrix.rows, packed_bytes(dtype, std::min(tile_columns, matrix.columns - begin)),
          packed_bytes(dtype, matrix.columns)};
}

LoweredTensor lower(const Recipe& recipe, const PieceLimits& limits) {
  LoweredTensor tensor;
  tensor.dtype = recipe.dtype();
  tensor.elements = recipe.node().elements;
  tensor.bytes = recipe.bytes();
  tensor.fragments = Lowering(tensor).fragments_of(recipe);
  drop_last_rounding(tensor);
  order(tensor);
  cut(tensor, limits);
  return tensor;
}

}  // namespace transload
