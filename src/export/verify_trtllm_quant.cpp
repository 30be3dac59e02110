// Baked weights against the weights they were made from: q is read back from its place in the layout, written from the layout's
// closed form rather than from the code that bakes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <span>

#include "base/half.h"
#include "export/piece_tasks.h"
#include "export/verify_trtllm_tensors.h"
#include "io/file.h"
#include "transload/error.h"
#include "weights/convert.h"
#include "weights/lower.h"
#include "weights/piece.h"

namespace transload {
namespace {

constexpr uint64_t kBandValues = uint64_t{1} << 19;
constexpr uint64_t kBandStep = 8;  // channels: whole bytes and whole groups of interleaved columns in every layout
constexpr double kStepsAllowed = 1;

// Where the value of channel n and input k of a matrix lies, counted in values: of_channel(n) + of_input(k), because a step of
// either moves by whole registers of the other.
class Places {
 public:
  Places(const WeightQuant& quant, uint64_t in, uint64_t out) : layout_(quant.layout), bits_(quant.bits), in_(in), out_(out) {
    // Rows of the matrix in the order in which the tensor cores take them, in groups of 16 (8 bits) or 32 (4 bits).
    group_ = bits_ == 8 ? 16 : 32;
    const uint64_t step = group_ / 4;
    for (uint64_t j = 0; j < group_; ++j) place_in_group_[2 * (j / step) + j % step / 2 * 8 + j % 2] = j;
  }

  bool is_biased() const { return layout_ == QuantLayout::sm80 || layout_ == QuantLayout::sm90; }

  uint64_t of_channel(uint64_t n) const {
    switch (layout_) {
      case QuantLayout::plain:
        return n;
      case QuantLayout::transpose:
      case QuantLayout::sm90:
        return n * in_;
      case QuantLayout::sm80:
        return n / columns() * columns() * in_ + n % columns() * kTile;
    }
    return 0;
  }

  uint64_t of_input(uint64_t k) const {
    switch (layout_) {
      case QuantLayout::plain:
        return k * out_;
      case QuantLayout::transpose:
        return k;
      case QuantLayout::sm80:
      case QuantLayout::sm90:
        break;
    }
    const uint64_t row = k / group_ * group_ + place_in_group_[k % group_];
    const uint64_t place = layout_ == QuantLayout::sm90 ? row : row / kTile * kTile * columns() + row % kTile;
    // The last step reorders the values of each 32-bit register.
    if (bits_ == 8) return place / 4 * 4 + std::array<uint64_t, 4>{0, 2, 1, 3}[place % 4];
    return place / 8 * 8 + place % 8 / 2 + place % 2 * 4;
  }

 private:
  static constexpr uint64_t kTile = 64;
  uint64_t columns() const { return 16 / bits_; }  // interleaved

  QuantLayout layout_;
  uint64_t bits_;
  uint64_t in_;
  uint64_t out_;
  uint64_t group_ = 0;
  std::array<uint64_t, 32> place_in_group_{};
};

struct Matrices {
  const QuantComparison* tensors = nullptr;
  LoweredTensor weight;
  uint64_t count = 1;  // stacked
  uint64_t out = 0;
  uint64_t in = 0;
  uint64_t band = 0;   // channels in a piece
  uint64_t bands = 0;  // of one matrix
};

Matrices prepare(const QuantComparison& tensors) {
  const Shape& shape = tensors.weight.shape();
  Matrices m{.tensors = &tensors, .weight = lower(tensors.weight)};
  m.count = shape.size() == 3 ? shape[0] : 1;
  m.out = shape[shape.size() - 2];
  m.in = shape.back();
  m.band = std::max<uint64_t>(1, kBandValues / m.in / kBandStep) * kBandStep;
  m.bands = (m.out + m.band - 1) / m.band;
  return m;
}

struct Scratch {
  PieceMaker maker;
  std::vector<float> weights;
  std::vector<std::byte> stored;
  std::vector<uint64_t> places;  // of the inputs of one channel, in `stored`
};

float round_scale(DType dtype, float scale) {
  if (dtype == DType::f16) return f16_to_f32(f32_to_f16(scale));
  return dtype == DType::bf16 ? bf16_to_f32(f32_to_bf16(scale)) : scale;
}

class Band {
 public:
  Band(const Matrices& matrices, uint64_t piece, Scratch& scratch)
      : m_(matrices),
        quant_(matrices.tensors->quant),
        places_(quant_, matrices.in, matrices.out),
        matrix_(piece / matrices.bands),
        begin_(piece % matrices.bands * matrices.band),
        end_(std::min(matrices.out, begin_ + matrices.band)),
        scratch_(scratch) {}

  std::optional<std::string> compare() {
    read_weights();
    read_stored();
    find_places();
    std::vector<std::byte> scale_bytes((end_ - begin_) * dtype_info(m_.tensors->scales.dtype).block_bytes);
    const TensorInfo& scales = m_.tensors->scales;
    const uint64_t width = dtype_info(scales.dtype).block_bytes;
    scales.file->read_at(scales.offset + (matrix_ * m_.out + begin_) * width, scale_bytes);
    std::vector<float> stored_scales(end_ - begin_);
    convert_to_f32(scales.dtype, scale_bytes.data(), stored_scales.size(), stored_scales.data());
    for (uint64_t n = begin_; n < end_; ++n) {
      if (auto fault = compare_channel(n, stored_scales[n - begin_])) return fault;
    }
    return std::nullopt;
  }

  double worst_steps() const { return worst_steps_; }
  uint64_t not_finite() const { return not_finite_; }

 private:
  void read_weights() {
    const uint64_t count = (end_ - begin_) * m_.in;
    const uint64_t first = (matrix_ * m_.out + begin_) * m_.in;
    const DType dtype = m_.weight.dtype;
    Buffer values(count * dtype_info(dtype).block_bytes);
    scratch_.maker.make(m_.weight, first, first + count, values.data());
    scratch_.weights.resize(count);
    convert_to_f32(dtype, values.data(), count, scratch_.weights.data());
  }

  uint64_t matrix_bytes() const { return m_.in * m_.out * quant_.bits / 8; }

  // The bytes of these channels; in the plain layout, those of each input.
  void read_stored() {
    const TensorInfo& tensor = m_.tensors->quantised;
    const uint64_t base = tensor.offset + matrix_ * matrix_bytes();
    const uint64_t channels = (end_ - begin_) * quant_.bits / 8;
    scratch_.stored.resize(channels * m_.in);
    const std::span<std::byte> all(scratch_.stored);
    if (quant_.layout != QuantLayout::plain) return tensor.file->read_at(base + begin_ * m_.in * quant_.bits / 8, all);
    for (uint64_t k = 0; k < m_.in; ++k) {
      tensor.file->read_at(base + (k * m_.out + begin_) * quant_.bits / 8, all.subspan(k * channels, channels));
    }
  }

  // Byte of the value, in the file.
  uint64_t offset_of(uint64_t k, uint64_t n) const {
    const uint64_t place = places_.of_channel(n) + places_.of_input(k);
    return m_.tensors->quantised.offset + matrix_ * matrix_bytes() + place * quant_.bits / 8;
  }

  // In the plain layout what was read of each input follows that of the one before; other layouts keep channels together.
  void find_places() {
    scratch_.places.resize(m_.in);
    const bool is_plain = quant_.layout == QuantLayout::plain;
    for (uint64_t k = 0; k < m_.in; ++k) scratch_.places[k] = is_plain ? k * (end_ - begin_) : places_.of_input(k);
  }

  int stored_value(uint64_t place) const {
    const auto byte = static_cast<unsigned>(scratch_.stored[place * quant_.bits / 8]);
    const unsigned raw = quant_.bits == 8 ? byte : (byte >> (4 * (place % 2))) & 0xFU;
    const int half = 1 << (quant_.bits - 1);
    const int value = static_cast<int>(raw);
    if (places_.is_biased()) return value - half;
    return value >= half ? value - 2 * half : value;
  }

  std::optional<std::string> compare_channel(uint64_t n, float stored_scale) {
    const float* weights = scratch_.weights.data() + (n - begin_) * m_.in;
    float largest = 0;
    for (uint64_t k = 0; k < m_.in; ++k) largest = std::max(largest, std::abs(weights[k]));  // NaN does not raise it
    const float scale = largest * (quant_.bits == 8 ? 0x1p-7F : 0x1p-3F);
    const TensorInfo& scales = m_.tensors->scales;
    if (const float expected = round_scale(scales.dtype, scale); stored_scale != expected) {
      return fmt::format("{}@{}: tensor '{}': channel {}: got {}, expected {}", scales.file->name(),
                         scales.offset + (matrix_ * m_.out + n) * dtype_info(scales.dtype).block_bytes, scales.name, n,
                         stored_scale, expected);
    }
    const uint64_t channel = places_.of_channel(n) - places_.of_channel(begin_);
    for (uint64_t k = 0; k < m_.in; ++k) {
      if (!std::isfinite(weights[k]) || !std::isfinite(scale)) {
        ++not_finite_;
        continue;
      }
      const double exact = scale == 0 ? 0 : static_cast<double>(weights[k]) / scale;
      const int got = stored_value(channel + scratch_.places[k]);
      const double steps = std::abs(exact - got);
      worst_steps_ = std::max(worst_steps_, steps);
      if (steps <= kStepsAllowed) continue;
      const TensorInfo& tensor = m_.tensors->quantised;
      return fmt::format("{}@{}: tensor '{}': channel {}, input {}: got {}, expected {:.4g} within {} step", tensor.file->name(),
                         offset_of(k, n), tensor.name, n, k, got, exact, kStepsAllowed);
    }
    return std::nullopt;
  }

  const Matrices& m_;
  const WeightQuant& quant_;
  Places places_;
  uint64_t matrix_;
  uint64_t begin_;
  uint64_t end_;
  Scratch& scratch_;
  double worst_steps_ = 0;
  uint64_t not_finite_ = 0;
};

}  // namespace

ComparisonResult compare_quantised(const std::vector<QuantComparison>& list, uint32_t workers, const Progress& progress) {
  ComparisonResult result;
  std::vector<Matrices> matrices;
  PieceTasks tasks;
  for (const QuantComparison& tensors : list) {
    const Matrices& m = matrices.emplace_back(prepare(tensors));
    tasks.add(m.count * m.bands, 1, m.weight.bytes);
    result.bytes += m.weight.bytes;
  }
  std::vector<uint64_t> not_finite(list.size());
  std::mutex mutex;
  size_t worst = list.size();
  result.failure = tasks.run<Scratch>(workers, progress, [&](size_t index, uint64_t begin, uint64_t, Scratch& scratch) {
    Band band(matrices[index], begin, scratch);
    std::optional<std::string> fault = band.compare();
    const std::lock_guard lock(mutex);
    not_finite[index] += band.not_finite();
    // Of equal ones the first in the list, whichever was found first.
    if (band.worst_steps() > result.worst_steps || (band.worst_steps() == result.worst_steps && index < worst)) {
      result.worst_steps = band.worst_steps();
      worst = index;
    }
    return fault;
  });
  for (size_t i = 0; i < list.size(); ++i) result.add_not_finite(not_finite[i], list[i].quantised.name);
  if (worst < list.size()) {
    result.worst_tensor = fmt::format("{}: {}", list[worst].quantised.file->name(), list[worst].quantised.name);
  }
  return result;
}

}  // namespace transload
