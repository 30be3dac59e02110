// The table of element types, and sizes of packed tensors.
#include "transload/dtype.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "transload/error.h"

namespace transload {
namespace {

// Block sizes: 32 or 256 values with their scales, as the GGUF format defines them.
constexpr std::array<DTypeInfo, kDTypeCount> kDTypes{{
    {DType::f64, "f64", "F64", 1, 8},
    {DType::f32, "f32", "F32", 1, 4},
    {DType::f16, "f16", "F16", 1, 2},
    {DType::bf16, "bf16", "BF16", 1, 2},
    {DType::f8_e4m3, "f8_e4m3", "F8_E4M3", 1, 1},
    {DType::f8_e5m2, "f8_e5m2", "F8_E5M2", 1, 1},
    {DType::i64, "i64", "I64", 1, 8},
    {DType::i32, "i32", "I32", 1, 4},
    {DType::i16, "i16", "I16", 1, 2},
    {DType::i8, "i8", "I8", 1, 1},
    {DType::u64, "u64", "U64", 1, 8},
    {DType::u32, "u32", "U32", 1, 4},
    {DType::u16, "u16", "U16", 1, 2},
    {DType::u8, "u8", "U8", 1, 1},
    {DType::boolean, "boolean", "BOOL", 1, 1},
    {DType::q4_0, "q4_0", "", 32, 18},
    {DType::q4_1, "q4_1", "", 32, 20},
    {DType::q5_0, "q5_0", "", 32, 22},
    {DType::q5_1, "q5_1", "", 32, 24},
    {DType::q8_0, "q8_0", "", 32, 34},
    {DType::q2_k, "q2_k", "", 256, 84},
    {DType::q3_k, "q3_k", "", 256, 110},
    {DType::q4_k, "q4_k", "", 256, 144},
    {DType::q5_k, "q5_k", "", 256, 176},
    {DType::q6_k, "q6_k", "", 256, 210},
    {DType::mxfp4, "mxfp4", "", 32, 17},
}};

constexpr bool rows_follow_enumerators() {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeInfo& row = kDTypes[static_cast<size_t>(i)];
    if (static_cast<int>(row.dtype) != i || row.name.empty() || row.block_elements == 0 || row.block_bytes == 0) return false;
  }
  return true;
}
static_assert(rows_follow_enumerators(), "each DType needs one row, in the order of the enumerators");

constexpr uint64_t kMaxElements = uint64_t{1} << 63;

}  // namespace

const DTypeInfo& dtype_info(DType dtype) { return kDTypes.at(static_cast<size_t>(dtype)); }

bool is_floating(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::q4_0:
    case DType::q4_1:
    case DType::q5_0:
    case DType::q5_1:
    case DType::q8_0:
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
    case DType::mxfp4:
      return true;
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8:
    case DType::boolean:
      return false;
  }
  return false;
}

std::optional<DType> find_dtype_by_safetensors_name(std::string_view name) {
  if (name.empty()) return std::nullopt;
  const auto* row = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeInfo& info) { return info.safetensors == name; });
  if (row == kDTypes.end()) return std::nullopt;
  return row->dtype;
}

// A zero dimension empties the tensor, yet the others must still multiply to a size: strides are made of them later.
uint64_t element_count(const Shape& shape) {
  uint64_t product = 1;
  bool empty = false;
  for (const uint64_t dimension : shape) {
    if (dimension == 0) {
      empty = true;
      continue;
    }
    const auto next = checked_mul(product, dimension);
    if (!next || *next > kMaxElements) {
      throw Error(ErrorCode::size_overflow,
                  fmt::format("element count overflows: got shape {}, expected at most 2^63 elements", shape_text(shape)));
    }
    product = *next;
  }
  return empty ? 0 : product;
}

uint64_t tensor_bytes(DType dtype, const Shape& shape) {
  const DTypeInfo& info = dtype_info(dtype);
  const uint64_t elements = element_count(shape);
  if (info.block_elements > 1) {
    const uint64_t width = shape.empty() ? 1 : shape.back();
    if (width % info.block_elements != 0) {
      throw Error(ErrorCode::shape_mismatch, fmt::format("last axis of a {} tensor: got {}, expected a multiple of {}", info.name,
                                                         width, info.block_elements));
    }
  }
  const auto bytes = checked_mul(elements / info.block_elements, info.block_bytes);
  if (!bytes) {
    throw Error(ErrorCode::size_overflow,
                fmt::format("byte size overflows: got shape {} {}, expected less than 2^64 bytes", shape_text(shape), info.name));
  }
  return *bytes;
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

}  // namespace transload
