// Makes the same piece of both tensors of a pair and compares them.
#include "export/verify_trtllm_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "export/piece_tasks.h"
#include "io/file.h"
#include "transload/error.h"
#include "weights/convert.h"
#include "weights/lower.h"
#include "weights/piece.h"

namespace transload {
namespace {

constexpr uint64_t kPieceElements = uint64_t{1} << 16;

float value_at(DType dtype, const std::byte* bytes) {
  float value = 0;
  convert_to_f32(dtype, bytes, 1, &value);
  return value;
}

std::string element_text(const Shape& shape, uint64_t element) {
  std::string text;
  for (size_t axis = shape.size(); axis-- > 0;) {
    text = fmt::format("{}{}{}", element % shape[axis], text.empty() ? "" : ",", text);
    element /= shape[axis];
  }
  return fmt::format("[{}]", text);
}

// One pair and how it is cut.
struct Pair {
  const TensorComparison* tensors = nullptr;
  LoweredTensor expected;
  LoweredTensor got;
  uint64_t piece = 0;  // elements

  std::string failure(uint64_t element, const std::byte* got_bytes, const std::byte* expected_bytes) const {
    const DType dtype = expected.dtype;
    const std::string values = fmt::format("got {}, expected {}", value_at(dtype, got_bytes), value_at(dtype, expected_bytes));
    const std::string place = element_text(tensors->expected.shape(), element);
    if (!tensors->stored) return fmt::format("tensor '{}': element {}: {}", tensors->name, place, values);
    const uint64_t offset = tensors->stored->offset + element * dtype_info(dtype).block_bytes;
    return fmt::format("{}@{}: tensor '{}': element {}: {}", tensors->stored->file->name(), offset, tensors->name, place, values);
  }
};

Pair prepare(const TensorComparison& tensors) {
  Pair pair{&tensors, lower(tensors.expected), lower(tensors.got), kPieceElements};
  if (pair.expected.dtype != pair.got.dtype || tensors.expected.shape() != tensors.got.shape()) {
    throw Error(
        ErrorCode::internal,
        fmt::format("tensors that are compared: got {} {}, expected {} {}", dtype_name(pair.got.dtype),
                    shape_text(tensors.got.shape()), dtype_name(pair.expected.dtype), shape_text(tensors.expected.shape())),
        {{}, tensors.name, {}});
  }
  if (tensors.row_tolerance > 0) {
    const uint64_t row = tensors.expected.shape().back();
    pair.piece = std::max<uint64_t>(1, kPieceElements / row) * row;
  }
  return pair;
}

// The first element of one row that is too far off, or nothing. Values that no quantisation keeps are left out.
std::optional<uint64_t> first_off_row(const float* got, const float* expected, uint64_t count, double tolerance) {
  // A scale below the normal range of f16 is off by up to 2^-25, and is multiplied by up to 128.
  constexpr double kScaleRounding = 0x1p-18;
  double largest = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (!std::isfinite(expected[i])) return std::nullopt;
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  const double allowed = largest * tolerance + kScaleRounding;
  for (uint64_t i = 0; i < count; ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!(difference <= allowed)) return i;
  }
  return std::nullopt;
}

// Bits of an exponent, as integers of the width of an element.
template <typename Bits>
uint64_t count_full_exponents(const std::byte* bytes, uint64_t count, Bits exponent) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Bits value;
    std::memcpy(&value, bytes + i * sizeof(Bits), sizeof(Bits));
    found += (value & exponent) == exponent ? 1 : 0;
  }
  return found;
}

// NaN and infinities have all bits of the exponent set.
uint64_t count_not_finite(DType dtype, const std::byte* bytes, uint64_t count) {
  if (dtype == DType::f32) return count_full_exponents<uint32_t>(bytes, count, 0x7F800000);
  if (dtype == DType::f16) return count_full_exponents<uint16_t>(bytes, count, 0x7C00);
  return dtype == DType::bf16 ? count_full_exponents<uint16_t>(bytes, count, 0x7F80) : 0;
}

struct Scratch {
  PieceMaker maker;
  std::unique_ptr<Buffer> expected;
  std::unique_ptr<Buffer> got;

  static std::byte* sized(std::unique_ptr<Buffer>& buffer, uint64_t bytes) {
    if (buffer == nullptr || buffer->bytes() < bytes) buffer = std::make_unique<Buffer>(bytes);
    return buffer->data();
  }
};

std::optional<std::string> compare_piece(const Pair& pair, uint64_t begin, uint64_t end, Scratch& scratch,
                                         std::atomic<uint64_t>& not_finite) {
  const uint64_t element_bytes = dtype_info(pair.expected.dtype).block_bytes;
  const uint64_t bytes = (end - begin) * element_bytes;
  std::byte* expected = Scratch::sized(scratch.expected, bytes);
  std::byte* got = Scratch::sized(scratch.got, bytes);
  scratch.maker.make(pair.expected, begin, end, expected);
  scratch.maker.make(pair.got, begin, end, got);
  if (std::memcmp(expected, got, bytes) == 0) {
    not_finite.fetch_add(count_not_finite(pair.expected.dtype, got, end - begin), std::memory_order_relaxed);
    return std::nullopt;
  }
  const auto fail = [&](uint64_t element) {
    return pair.failure(begin + element, got + element * element_bytes, expected + element * element_bytes);
  };
  if (pair.tensors->row_tolerance > 0) {
    const uint64_t row = pair.tensors->expected.shape().back();
    const auto* got_values = reinterpret_cast<const float*>(got);
    const auto* expected_values = reinterpret_cast<const float*>(expected);
    for (uint64_t i = 0; i < end - begin; i += row) {
      if (const auto off = first_off_row(got_values + i, expected_values + i, row, pair.tensors->row_tolerance))
        return fail(i + *off);
    }
    return std::nullopt;
  }
  uint64_t byte = 0;
  while (expected[byte] == got[byte]) ++byte;
  return fail(byte / element_bytes);
}

}  // namespace

ComparisonResult compare_tensors(const std::vector<TensorComparison>& list, uint32_t workers, const Progress& progress) {
  ComparisonResult result;
  std::vector<Pair> pairs;
  PieceTasks tasks;
  for (const TensorComparison& tensors : list) {
    const Pair& pair = pairs.emplace_back(prepare(tensors));
    tasks.add(pair.expected.elements, pair.piece, pair.expected.bytes);
    result.bytes += pair.expected.bytes;
  }
  std::vector<std::atomic<uint64_t>> not_finite(list.size());
  result.failure = tasks.run<Scratch>(workers, progress, [&](size_t index, uint64_t begin, uint64_t end, Scratch& scratch) {
    try {
      return compare_piece(pairs[index], begin, end, scratch, not_finite[index]);
    } catch (Error& error) {
      throw error.at({{}, list[index].name, {}});
    }
  });
  for (size_t i = 0; i < list.size(); ++i) result.add_not_finite(not_finite[i], list[i].name);
  return result;
}

}  // namespace transload
