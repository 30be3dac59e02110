// The numbers GGUF files use: types of metadata values and of tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "transload/dtype.h"

namespace transload {

enum class GgufValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr uint32_t kGgufValueTypeCount = static_cast<uint32_t>(GgufValueType::f64) + 1;
static_assert(kGgufValueTypeCount == 13);

// Bytes of a scalar; of a string and an array, the least they take.
inline constexpr std::array<uint64_t, kGgufValueTypeCount> kGgufValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

struct GgufTensorType {
  uint32_t id;
  std::string_view name;  // as ggml's enumerators and model file names spell it
  std::optional<DType> dtype;
};
inline constexpr std::array kGgufTensorTypes = {
    GgufTensorType{0, "F32", DType::f32},
    GgufTensorType{1, "F16", DType::f16},
    GgufTensorType{2, "Q4_0", DType::q4_0},
    GgufTensorType{3, "Q4_1", DType::q4_1},
    GgufTensorType{4, "Q4_2", std::nullopt},
    GgufTensorType{5, "Q4_3", std::nullopt},
    GgufTensorType{6, "Q5_0", DType::q5_0},
    GgufTensorType{7, "Q5_1", DType::q5_1},
    GgufTensorType{8, "Q8_0", DType::q8_0},
    GgufTensorType{9, "Q8_1", std::nullopt},
    GgufTensorType{10, "Q2_K", DType::q2_k},
    GgufTensorType{11, "Q3_K", DType::q3_k},
    GgufTensorType{12, "Q4_K", DType::q4_k},
    GgufTensorType{13, "Q5_K", DType::q5_k},
    GgufTensorType{14, "Q6_K", DType::q6_k},
    GgufTensorType{15, "Q8_K", std::nullopt},
    GgufTensorType{16, "IQ2_XXS", std::nullopt},
    GgufTensorType{17, "IQ2_XS", std::nullopt},
    GgufTensorType{18, "IQ3_XXS", std::nullopt},
    GgufTensorType{19, "IQ1_S", std::nullopt},
    GgufTensorType{20, "IQ4_NL", std::nullopt},
    GgufTensorType{21, "IQ3_S", std::nullopt},
    GgufTensorType{22, "IQ2_S", std::nullopt},
    GgufTensorType{23, "IQ4_XS", std::nullopt},
    GgufTensorType{24, "I8", DType::i8},
    GgufTensorType{25, "I16", DType::i16},
    GgufTensorType{26, "I32", DType::i32},
    GgufTensorType{27, "I64", DType::i64},
    GgufTensorType{28, "F64", DType::f64},
    GgufTensorType{29, "IQ1_M", std::nullopt},
    GgufTensorType{30, "BF16", DType::bf16},
    GgufTensorType{31, "Q4_0_4_4", std::nullopt},
    GgufTensorType{32, "Q4_0_4_8", std::nullopt},
    GgufTensorType{33, "Q4_0_8_8", std::nullopt},
    GgufTensorType{34, "TQ1_0", std::nullopt},
    GgufTensorType{35, "TQ2_0", std::nullopt},
    GgufTensorType{36, "IQ4_NL_4_4", std::nullopt},
    GgufTensorType{37, "IQ4_NL_4_8", std::nullopt},
    GgufTensorType{38, "IQ4_NL_8_8", std::nullopt},
    GgufTensorType{39, "MXFP4", DType::mxfp4},
    GgufTensorType{40, "NVFP4", std::nullopt},
    GgufTensorType{41, "Q1_0", std::nullopt},
};
constexpr bool gguf_tensor_type_ids_are_consecutive() {
  for (size_t i = 0; i < kGgufTensorTypes.size(); ++i) {
    if (kGgufTensorTypes[i].id != i) return false;
  }
  return true;
}
static_assert(gguf_tensor_type_ids_are_consecutive(), "tensor types are looked up by id");

}  // namespace transload
