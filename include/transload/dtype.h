// Element types of tensors: scalars and the GGUF block types, with their sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace transload {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  // GGUF blocks of 32 or 256 values along the last axis.
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  mxfp4,
};
inline constexpr int kDTypeCount = static_cast<int>(DType::mxfp4) + 1;

struct DTypeInfo {
  DType dtype;
  std::string_view name;         // "f32", "q4_k": used in messages, contract.json and manifest.json
  std::string_view safetensors;  // "F32"; empty where the format has none
  uint32_t block_elements;       // values in a block; 1 for scalars
  uint32_t block_bytes;          // bytes in a block
};

const DTypeInfo& dtype_info(DType dtype);
inline std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }
inline bool is_block(DType dtype) { return dtype_info(dtype).block_elements > 1; }
// f64, f32, f16, bf16, f8_*, and every block type.
bool is_floating(DType dtype);
std::optional<DType> find_dtype_by_safetensors_name(std::string_view name);

// Outermost dimension first, as Hugging Face and ONNX write it (GGUF's reversed order is undone on reading).
using Shape = std::vector<uint64_t>;

// Number of elements; throws size_overflow past 2^63. An empty shape is a scalar: 1.
uint64_t element_count(const Shape& shape);
// Bytes of a packed tensor; throws size_overflow, or shape_mismatch when a block type does not divide the last axis.
uint64_t tensor_bytes(DType dtype, const Shape& shape);
// "[32064,3072]"
std::string shape_text(const Shape& shape);

}  // namespace transload
