// Scalar conversions of half and quarter floats, in integer code: the reference of the kernels and the code of their tails.
// Narrowing rounds to nearest, ties to even. A NaN stays a NaN, is quieted and keeps its sign and upper payload bits.
#pragma once

#include <bit>
#include <cstdint>

namespace transload {

inline float bf16_to_f32(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  const bool is_nan = (half & 0x7FFFU) > 0x7F80U;
  return std::bit_cast<float>(is_nan ? bits | 0x00400000U : bits);
}

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x0040U);
  const uint32_t round = 0x7FFFU + ((bits >> 16) & 1U);
  return static_cast<uint16_t>((bits + round) >> 16);
}

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0x1F) {
    const uint32_t quiet = mantissa != 0 ? 0x00400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13) | quiet);
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // Subnormal: mantissa * 2^-24, so the exponent field is that of the highest set bit.
  const uint32_t shift = static_cast<uint32_t>(std::countl_zero(mantissa)) - 21;
  return std::bit_cast<float>(sign | ((113 - shift) << 23) | (((mantissa << shift) & 0x3FFU) << 13));
}

inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);  // 65,520 and above round to infinity
  if (magnitude >= 0x38800000U) {                                              // 2^-14, the smallest normal
    const uint32_t round = 0xFFFU + ((magnitude >> 13) & 1U);
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + round) >> 13));
  }
  if (magnitude <= 0x33000000U) return static_cast<uint16_t>(sign);  // 2^-25 ties to zero
  // Subnormal: the mantissa with its hidden bit, in units of 2^-24.
  const uint32_t shift = 126 - (magnitude >> 23);
  const uint32_t mantissa = (magnitude & 0x007FFFFFU) | 0x00800000U;
  const uint32_t round = (1U << (shift - 1)) - 1 + ((mantissa >> shift) & 1U);
  return static_cast<uint16_t>(sign | ((mantissa + round) >> shift));
}

// E4M3FN: bias 7, no infinities, NaN is all ones.
inline float f8_e4m3_to_f32(uint8_t quarter) {
  const uint32_t sign = static_cast<uint32_t>(quarter & 0x80U) << 24;
  const uint32_t magnitude = quarter & 0x7FU;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (magnitude >= 0x08) return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// E5M2 is the upper byte of an f16.
inline float f8_e5m2_to_f32(uint8_t quarter) { return f16_to_f32(static_cast<uint16_t>(static_cast<uint32_t>(quarter) << 8)); }

}  // namespace transload
