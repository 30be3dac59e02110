// Half and quarter floats by arithmetic on doubles: independent of the integer code that the tests check.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace transload::reference {

inline uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

// `fraction_bits` and `smallest` (exponent of the smallest normal) describe the format; infinity falls out of the carry.
inline uint16_t narrow(float value, int fraction_bits, int smallest) {
  const uint32_t bits = bits_of(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const int exponent_bits = 15 - fraction_bits;
  const auto infinity = static_cast<uint16_t>(((1U << exponent_bits) - 1) << fraction_bits);
  if (std::isnan(value)) {
    const auto payload = static_cast<uint16_t>((bits & 0x7FFFFFU) >> (23 - fraction_bits));
    return static_cast<uint16_t>(sign | infinity | (1U << (fraction_bits - 1)) | payload);
  }
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = m 2^exponent, m in [0.5, 1)
  --exponent;
  if (magnitude == 0 || exponent < smallest) exponent = smallest;
  const double units = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
  const auto biased = static_cast<uint32_t>(exponent - smallest);
  const uint32_t half = (biased << fraction_bits) + static_cast<uint32_t>(units);
  return static_cast<uint16_t>(sign | (half > infinity ? infinity : half));
}

inline uint16_t f32_to_f16(float value) { return narrow(value, 10, -14); }
inline uint16_t f32_to_bf16(float value) { return narrow(value, 7, -126); }

inline float widen(uint16_t half, int fraction_bits, int smallest) {
  const bool negative = (half & 0x8000U) != 0;
  const int exponent_bits = 15 - fraction_bits;
  const uint32_t exponent = (half >> fraction_bits) & ((1U << exponent_bits) - 1);
  const uint32_t fraction = half & ((1U << fraction_bits) - 1);
  if (exponent == (1U << exponent_bits) - 1) {
    const uint32_t special = 0x7F800000U | (fraction << (23 - fraction_bits)) | (fraction != 0 ? 0x400000U : 0U);
    return std::bit_cast<float>(special | (negative ? 0x80000000U : 0U));
  }
  const double units = exponent == 0 ? fraction : fraction + (1U << fraction_bits);
  const int scale = smallest - fraction_bits + (exponent == 0 ? 0 : static_cast<int>(exponent) - 1);
  const auto magnitude = static_cast<float>(std::ldexp(units, scale));
  return negative ? -magnitude : magnitude;
}

inline float f16_to_f32(uint16_t half) { return widen(half, 10, -14); }
inline float bf16_to_f32(uint16_t half) { return widen(half, 7, -126); }

// E4M3FN: no infinities, only all ones is NaN.
inline float f8_e4m3_to_f32(uint8_t quarter) {
  const float sign = (quarter & 0x80U) != 0 ? -1.0F : 1.0F;
  const int exponent = (quarter >> 3) & 0xF;
  const int fraction = quarter & 7;
  if (exponent == 15 && fraction == 7) return std::copysign(std::bit_cast<float>(0x7FC00000U), sign);
  if (exponent == 0) return sign * static_cast<float>(std::ldexp(fraction, -9));
  return sign * static_cast<float>(std::ldexp(8 + fraction, exponent - 10));
}

inline float f8_e5m2_to_f32(uint8_t quarter) { return f16_to_f32(static_cast<uint16_t>(static_cast<uint32_t>(quarter) << 8)); }

// A finite value that becomes infinite in f16.
inline bool overflows_f16(float value) { return std::isfinite(value) && (f32_to_f16(value) & 0x7FFFU) == 0x7C00U; }

}  // namespace transload::reference
